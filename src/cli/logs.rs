//! `infergate logs`: what a model's process has written, and what it writes from now on.
//!
//! Decides nothing: each is a question to the admin listener of a gateway that runs.

use std::process::ExitCode;

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::admin::{self, EventStreamEnd, ServerEvent};
use super::gpu_host::{FAILED, GatewayPlace, REFUSED, answer, read_answer};
use super::output::{print, print_on, problem};

/// Help below the options of `infergate logs`.
pub const HELP: &str = "\
Exit codes: 0 shown, or followed to the end of the process; 1 no such model, slot or process; 2 the gateway does not
answer, or has ended while the log was followed.
Examples:
  infergate logs qwen-7b                   the last lines of its process, also of one that has ended
  infergate logs qwen-7b -f                the same, and those that follow until the process ends
  infergate logs qwen-7b --previous        the process before this one: why it has ended
  infergate logs qwen-7b --slot 1 --lines 1000";

/// Arguments of `infergate logs`.
#[derive(Args)]
pub struct ModelLogArgs {
    #[command(flatten)]
    place: GatewayPlace,
    /// Model, by its id.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Go on with what is written, until the process ends.
    #[arg(long, short)]
    follow: bool,
    /// Show the process before the present one, or before the last one.
    #[arg(long, short)]
    previous: bool,
    /// Slot of a model with several; the first one with a process unless given.
    #[arg(long, value_name = "NUMBER")]
    slot: Option<u16>,
    /// Lines to begin with, at most 10000.
    #[arg(long, short = 'n', value_name = "LINES", default_value_t = 100)]
    lines: usize,
}

/// Shows the log of a model's process.
pub fn run(args: &ModelLogArgs) -> ExitCode {
    let report = match answer(args.place.ask("GET", "/gpu")) {
        Ok(report) => report,
        Err(code) => return code,
    };
    let instance = match instance(&report, args) {
        Ok(instance) => utf8_percent_encode(instance, NON_ALPHANUMERIC),
        Err(text) => {
            problem(&text);
            return ExitCode::from(REFUSED);
        }
    };
    let path = format!("/gpu/instances/{instance}/logs?tail={}", args.lines);
    if args.follow {
        return follow(&args.place, &format!("{path}&follow=1"));
    }
    match answer(args.place.ask("GET", &path)) {
        Ok(body) => print(body["log"].as_str().unwrap_or_default()),
        Err(code) => code,
    }
}

/// Chooses the process to show: of the slot that is named, else of the first slot that has one.
fn instance<'a>(report: &'a Value, args: &ModelLogArgs) -> Result<&'a str, String> {
    let model = &args.model;
    let slots = report["slots"].as_array().into_iter().flatten();
    let slots: Vec<&Value> = slots.filter(|slot| slot["model"] == **model).collect();
    if slots.is_empty() {
        return Err(format!(
            "{model} is no model with a process here; `infergate gpu status` lists them"
        ));
    }
    let named = args.slot.map(|number| format!("{model}#{number}"));
    let is_meant = |slot: &Value| named.as_ref().is_none_or(|named| slot["slot"] == **named);
    let meant: Vec<&Value> = slots.iter().copied().filter(|it| is_meant(it)).collect();
    if meant.is_empty() {
        let last = slots.len() - 1;
        return Err(format!("{model} has slots 0 to {last} only"));
    }
    let (member, what) = match args.previous {
        true => ("previous_instance", "no process before the last one"),
        false => ("instance", "no process"),
    };
    let mut running = meant.iter().filter(|slot| slot["pid"].is_u64());
    let found = running.find_map(|slot| slot[member].as_str());
    let found = found.or_else(|| meant.iter().find_map(|slot| slot[member].as_str()));
    let of = named.as_ref().unwrap_or(model);
    found.ok_or_else(|| format!("{of} has had {what} since the gateway started"))
}

fn follow(place: &GatewayPlace, path: &str) -> ExitCode {
    let mut is_over = false;
    let show = |event: &ServerEvent| {
        match event.name.as_str() {
            "" => is_over = !print_on(&format!("{}\n", event.data)),
            "missed" => problem(&format!(
                "{} bytes were overwritten before they were read",
                event.data
            )),
            "ended" => {
                is_over = true;
                problem(&event.data);
            }
            // Another version's.
            _ => {}
        }
        !is_over
    };
    let target = match place.target() {
        Ok(target) => target,
        Err(error) => {
            problem(&error);
            return ExitCode::from(FAILED);
        }
    };
    match admin::follow(&target, path, show) {
        Ok(EventStreamEnd::Refused(response)) => match read_answer(response) {
            Ok(_) => {
                problem("the gateway does not know how to follow a log: it is an older one");
                ExitCode::from(FAILED)
            }
            Err(code) => code,
        },
        Ok(EventStreamEnd::Closed) if is_over => ExitCode::SUCCESS,
        Ok(EventStreamEnd::Closed) => {
            problem("the gateway has ended");
            ExitCode::from(FAILED)
        }
        Err(error) => {
            problem(&error);
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        logs: ModelLogArgs,
    }

    #[test]
    fn the_process_of_the_slot_is_found_and_what_is_not_there_is_named() {
        let report = json!({ "slots": [
            { "slot": "m#0", "model": "m", "pid": null, "instance": "m#0-a", "previous_instance": null },
            { "slot": "m#1", "model": "m", "pid": 7, "instance": "m#1-c", "previous_instance": "m#1-b" },
            { "slot": "n#0", "model": "n", "pid": null, "instance": null, "previous_instance": null },
        ] });
        let found = |line: &[&str]| {
            let args = Line::parse_from([&["logs"], line].concat()).logs;
            instance(&report, &args).map(ToOwned::to_owned)
        };
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(found(&["m"]), ok("m#1-c"), "one that runs comes first");
        assert_eq!(found(&["m", "--slot", "0"]), ok("m#0-a"));
        assert_eq!(found(&["m", "-p"]), ok("m#1-b"));
        for (line, text) in [
            (&["x"][..], "no model with a process"),
            (&["m", "--slot", "2"], "slots 0 to 1"),
            (
                &["m", "--slot", "0", "--previous"],
                "m#0 has had no process before",
            ),
            (&["n", "-f"], "n has had no process since"),
        ] {
            let refused = found(line).unwrap_err();
            assert!(refused.contains(text), "{line:?}: {refused}");
        }
    }
}
