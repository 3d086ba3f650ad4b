//! `infergate gpu presets`: what the gateway runs, sends and reads for each preset.
//!
//! Shows the table of `gpu` and decides nothing.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::output::{print, problem};
use crate::gpu::presets::{
    AdapterOption, HttpCall, MemorySource, PLACEHOLDERS, PRESETS, Preset, Program, SleepSupport,
    preset,
};

/// Help below the options of `infergate gpu presets`.
pub const HELP: &str = "\
Exit codes: 0 shown, 1 no preset has the name.
Examples:
  infergate gpu presets                    names, programs and memory
  infergate gpu presets llama-server       its command, its messages, its placeholders
  infergate gpu presets vllm --json";

/// Arguments of `infergate gpu presets`.
#[derive(Args)]
pub struct PresetsArgs {
    /// A preset; all of them, a line each, without it.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Prints the presets.
pub fn run(args: &PresetsArgs) -> ExitCode {
    let shown = match &args.name {
        None => PRESETS.to_vec(),
        Some(name) => match preset(name) {
            Some(found) => vec![found],
            None => {
                let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
                problem(&format!(
                    "error: no preset is called {name:?}: use one of {}",
                    names.join(", ")
                ));
                return ExitCode::FAILURE;
            }
        },
    };
    print(&match (args.json, &args.name) {
        (true, _) => format!(
            "{:#}\n",
            Value::from_iter(shown.iter().map(|it| json_of(it)))
        ),
        (false, Some(_)) => text_of(shown[0]),
        (false, None) => list(&shown),
    })
}

fn list(presets: &[&Preset]) -> String {
    let mut out = format!("{:<14}{:<26}{:<8} server\n", "preset", "program", "memory");
    for preset in presets {
        let _ = writeln!(
            out,
            "{:<14}{:<26}{:<8} {}",
            preset.name,
            program_of(preset),
            preset.memory.name(),
            preset.about
        );
    }
    out
}

fn program_of(preset: &Preset) -> &'static str {
    match preset.program {
        Program::Named(name) => name,
        Program::Gateway => "infergate",
    }
}

fn text_of(preset: &Preset) -> String {
    let mut out = format!("{}\n\n", preset.about);
    let mut row = |name: &str, text: String| {
        if !text.is_empty() {
            let _ = writeln!(out, "{name:<12}{text}");
        }
    };
    row("backend", preset.backends.join(" or "));
    row("program", program_of(preset).to_owned());
    row("arguments", preset.arguments.join(" "));
    row("if split", preset.split_arguments.join(" "));
    row("variables", variables(preset.environment));
    row("ready", format!("GET {} answers 200", preset.ready_path));
    row("memory", memory_text(preset.memory));
    row("no memory", preset.out_of_memory.join(" | "));
    row("port taken", preset.address_in_use.join(" | "));
    let adapters = preset.adapters.as_ref();
    row("adapters", adapters.map(adapters_text).unwrap_or_default());
    for reserved in preset.reserved {
        let except = reserved.allowed.map(|value| format!(" (but {value})"));
        let names = reserved.names.join(" ");
        let except = except.unwrap_or_default();
        row("reserved", format!("{names}{except}: {}", reserved.why));
    }
    if let Some(sleep) = &preset.sleep {
        sleep_rows(sleep, &mut row);
    }
    out.push_str("\nplaceholders\n");
    for (name, meaning) in PLACEHOLDERS {
        let _ = writeln!(out, "  {:<16}{meaning}", format!("{{{name}}}"));
    }
    out
}

fn sleep_rows(sleep: &SleepSupport, row: &mut impl FnMut(&str, String)) {
    let set = format!(
        "{} {}",
        sleep.arguments.join(" "),
        variables(sleep.environment)
    );
    row("sleep", format!("{set}; GET {} tells", sleep.state_path));
    for level in sleep.levels {
        row(
            &format!("  level {}", level.level.number()),
            format!("{}; wake: {}", calls(level.sleep), calls(level.wake)),
        );
    }
}

fn calls(calls: &[HttpCall]) -> String {
    let each = calls.iter().map(|call| match call.body {
        Some(body) => format!("POST {} {body}", call.path),
        None => format!("POST {}", call.path),
    });
    each.collect::<Vec<_>>().join(", ")
}

fn variables(variables: &[(&str, &str)]) -> String {
    let each = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    each.collect::<Vec<_>>().join(" ")
}

fn memory_text(memory: MemorySource) -> String {
    match memory {
        MemorySource::Header => "as much as the header of the files says".to_owned(),
        MemorySource::Share { beside_mib: 0 } => "a share of the device, by the lease".to_owned(),
        MemorySource::Share { beside_mib } => {
            format!("a share of the device, by the lease less {beside_mib} MiB")
        }
        MemorySource::File => "by the size of the files".to_owned(),
        MemorySource::Fixed => "`vram.mib`".to_owned(),
    }
}

fn adapters_text(option: &AdapterOption) -> String {
    let item = match option.is_named {
        true => "NAME=PATH",
        false => "PATH",
    };
    let between = match option.is_joined {
        true => ",",
        false => " ",
    };
    format!("{} {item}{between}…", option.arguments.join(" "))
}

fn json_of(preset: &Preset) -> Value {
    let pairs = |pairs: &[(&str, &str)]| -> Value {
        let pairs = pairs.iter();
        Value::from_iter(pairs.map(|(name, value)| ((*name).to_owned(), json!(value))))
    };
    json!({
        "name": preset.name,
        "about": preset.about,
        "backends": preset.backends,
        "program": program_of(preset),
        "arguments": preset.arguments,
        "split_arguments": preset.split_arguments,
        "split": preset.split,
        "environment": pairs(preset.environment),
        "ready_path": preset.ready_path,
        "memory": preset.memory.name(),
        "out_of_memory": preset.out_of_memory,
        "address_in_use": preset.address_in_use,
        "sleep_levels": preset.sleep.iter().flat_map(|it| it.levels)
            .map(|level| level.level.number()).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::simulate;

    #[derive(Parser)]
    struct Simulator {
        #[command(flatten)]
        config: simulate::Config,
    }

    #[test]
    fn every_preset_is_listed_and_shown() {
        let listed = list(PRESETS);
        for preset in PRESETS {
            assert!(listed.contains(preset.name), "{listed}");
            let text = text_of(preset);
            assert!(text.contains(&preset.arguments.join(" ")), "{text}");
            assert_eq!(json_of(preset)["ready_path"], preset.ready_path);
        }
        let vllm = text_of(preset("vllm").unwrap());
        assert!(
            vllm.contains("POST /sleep?level=1; wake: POST /wake_up"),
            "{vllm}"
        );
    }

    #[test]
    fn the_simulator_understands_the_arguments_of_its_preset() {
        let row = preset("simulate").unwrap();
        let filled = row.arguments[1..].iter().map(|argument| match *argument {
            "{host}:{port}" => "127.0.0.1:20000",
            "{parallel}" => "4",
            "{gpu_uuids}" => "cards/sim0,cards/sim1",
            "{vram_mib}" => "9000",
            other => other,
        });
        let parsed = Simulator::try_parse_from(std::iter::once("simulate").chain(filled));
        let config = parsed.map(|simulator| simulator.config).unwrap();
        assert_eq!((config.concurrency, config.vram.vram_mib), (4, 9000));
        assert_eq!(config.vram.vram_card.len(), 2);
    }
}
