//! `plugin inspect`: what a component is, what it says of itself, what it needs and what it costs.
//!
//! Judges nothing; `plugin check` does. Costs are measured over its fixtures.

use std::fmt::Write;

use clap::Args;
use serde_json::{Map, Value, json};

use super::bench::{self, BenchFigures};
use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget};
use super::test;
use super::wording;
use crate::cli::tooling::host::{CostMeasure, OpenedComponent};

/// `--help` of it.
pub const EXAMPLES: &str = "\
Examples:
  infergate plugin inspect dist/my-prices.wasm
  infergate plugin inspect my-prices --json | jq .description";

/// Calls of each fixture: enough for a 99th of a hundred.
const RUNS: usize = 200;
/// Memory that an instance may use unless the configuration grants more.
const MEMORY_DEFAULT_BYTES: usize = 16 << 20;
/// Bytes of a page.
const PAGE: u64 = 64 << 10;

/// Arguments of `plugin inspect`.
#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    which: PluginSelector,
    /// JSON for `configure`, or @FILE.
    #[arg(long, value_name = "JSON")]
    settings: Option<String>,
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &InspectArgs) -> Result<CommandOutcome, String> {
    let target = args.which.read()?;
    let tools = target::tool_host(CostMeasure::Fuel)?;
    let opened = target.open(&tools)?;
    let description = describe(args, &target, &opened)?;
    let figures = bench::measure(&target, RUNS)?;
    let hidden = test::hidden_state(&opened, &target.fixtures);
    let report = report(&target, &opened, &description, &figures, &hidden);
    let text = match args.json {
        true => format!(
            "{}\n",
            serde_json::to_string_pretty(&report).expect("JSON from JSON")
        ),
        false => pages(&target, &report, &figures),
    };
    Ok(CommandOutcome { text, good: true })
}

/// Description of a task; null for other worlds.
fn describe(
    args: &InspectArgs,
    target: &PluginTarget,
    opened: &OpenedComponent,
) -> Result<Value, String> {
    if !opened.hooks().contains(&"describe") {
        return Ok(Value::Null);
    }
    let (settings, of) = target.settings(opened, args.settings.as_deref())?;
    let tables = of.map(|fixture| fixture.tables.clone()).unwrap_or_default();
    let asked = crate::cli::tooling::host::describe_call();
    let ran = opened.with_settings(&settings, &tables).run(&asked);
    let mut returned = ran.answer.map_err(|failure| {
        format!(
            "{}: describe: {failure}; --settings gives others",
            target.file.display()
        )
    })?;
    // Schemas are texts in WIT and JSON to readers.
    for key in ["input-schema", "output-schema"] {
        let text = returned[key].as_str().unwrap_or_default();
        if let Ok(schema) = serde_json::from_str::<Value>(text) {
            returned[key] = schema;
        }
    }
    Ok(returned)
}

fn report(
    target: &PluginTarget,
    opened: &OpenedComponent,
    description: &Value,
    figures: &std::collections::BTreeMap<String, BenchFigures>,
    hidden: &[String],
) -> Map<String, Value> {
    let info = &target.info;
    let bounds = opened.bounds();
    let reuse = match (target.fixtures.is_empty(), hidden) {
        (true, _) => "unknown: it has no fixtures to compare a used guest with a fresh one",
        (false, []) => "auto: used guests answer as fresh ones",
        (false, _) => {
            "fresh: a used guest answers otherwise, so set `instance: fresh`, or remove its state"
        }
    };
    let report = json!({
        "file": target.file,
        "sha256": info.sha256,
        "bytes": info.bytes.len(),
        "world": target.world.name(),
        "interfaces": "1.0.0",
        "imports": info.imports,
        "stubbed_wasi": info.stubbed_wasi,
        "exports": info.exports,
        "grants": info.required_grants(),
        "hooks": opened.hooks(),
        "memories": info.memories,
        "producers": info.producers,
        "names": info.has_names,
        "description": description,
        "limits": {
            "deadline_ms": bounds.deadline_ms,
            "stream_deadline_ms": bounds.stream_deadline_ms,
            "output_bytes": bounds.output_bytes,
        },
        "fixtures": figures,
        "instance": reuse,
        "hidden_state": hidden,
    });
    match report {
        Value::Object(report) => report,
        _ => Map::new(),
    }
}

fn pages(
    target: &PluginTarget,
    report: &Map<String, Value>,
    figures: &std::collections::BTreeMap<String, BenchFigures>,
) -> String {
    let mut text = outside(target);
    let described = &report["description"];
    if !described.is_null() {
        text += &task(described);
    }
    text += &costs(report, figures);
    text
}

fn line(key: &str, value: &str) -> String {
    format!("{key:10} {value}\n")
}

fn list(items: &[String]) -> String {
    match items {
        [] => "none".to_owned(),
        items => items.join(", "),
    }
}

/// Section on the file itself.
fn outside(target: &PluginTarget) -> String {
    let info = &target.info;
    let grants: Vec<String> = info
        .required_grants()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut exports = info.exports.iter();
    let version = exports.find_map(|name| name.strip_prefix("infergate:plugin/lifecycle@"));
    let version = version.unwrap_or_default();
    let world = format!("{} (infergate:plugin {version})", target.world.name());
    let mut text = [
        line("file", &target.file.display().to_string()),
        line("sha256", &info.sha256),
        line("size", &wording::size(info.bytes.len() as u64)),
        line("world", &world),
        line("imports", &list(&info.imports)),
        line("exports", &list(&info.exports)),
        line("grants", &list(&grants)),
    ]
    .concat();
    // Shims between parts have memories without a page.
    for memory in info.memories.iter().filter(|one| one.min_pages > 0) {
        let own = memory
            .max_pages
            .map(|max| format!(", at most {max} by its own word"));
        let start = wording::size(memory.min_pages * PAGE);
        let pages = memory.min_pages;
        let own = own.unwrap_or_default();
        text += &line(
            "memory",
            &format!("{pages} pages of 64 KiB at the start ({start}){own}"),
        );
    }
    for made in &info.producers {
        let by = format!("{} {} {}", made.field, made.name, made.version);
        text += &line("made by", by.trim_end());
    }
    text
}

/// Section on a task's description, with its schemas in full.
fn task(described: &Value) -> String {
    let wants = match strings(&described["wants"]).as_slice() {
        [] => "the whole body".to_owned(),
        wants => wants.join(", "),
    };
    let mut text = [
        line("task", described["slug"].as_str().unwrap_or_default()),
        line("hooks", &list(&strings(&described["active"]))),
        line("wants", &wants),
    ]
    .concat();
    for key in ["input-schema", "output-schema"] {
        text += &match &described[key] {
            Value::Null => line(key, "none: the plugin checks by itself"),
            schema => {
                let pretty = serde_json::to_string_pretty(schema).expect("JSON from JSON");
                line(key, &format!("\n{pretty}"))
            }
        };
    }
    text
}

fn strings(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.as_str().map(str::to_owned))
        .collect()
}

fn costs(
    report: &Map<String, Value>,
    figures: &std::collections::BTreeMap<String, BenchFigures>,
) -> String {
    let mut text = String::new();
    if figures.is_empty() {
        text += "\nno fixtures: nothing to measure it by\n";
    } else {
        let _ = write!(text, "\n{}", bench::table(figures, &[], false));
        let most = bench::peak_memory(figures);
        if most > MEMORY_DEFAULT_BYTES {
            let mib = most.div_ceil(1 << 20);
            let _ = writeln!(
                text,
                "it needs {}: the configuration must say `limits: {{ memory_mib: {} }}`",
                wording::size(most as u64),
                mib.next_power_of_two()
            );
        }
        let limit_ms = report["limits"]["deadline_ms"].as_u64().unwrap_or(0);
        let slow = bench::slower_than(figures, limit_ms * 1000);
        if !slow.is_empty() {
            let _ = writeln!(
                text,
                "slower than its world's deadline of {limit_ms} ms: {}",
                slow.join(", ")
            );
        }
    }
    let _ = writeln!(
        text,
        "instance   {}",
        report["instance"].as_str().unwrap_or_default()
    );
    text
}
