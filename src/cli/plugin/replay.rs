//! `plugin replay`: recorded calls again, with everything there is to know about how they ended.
//!
//! The file is a fixture, or several one after the other as a gateway captures them; `expect` may be
//! left out. Each call is made on a fresh guest, whose answer depends on nothing but its arguments, its
//! settings and its tables.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget};
use super::test::{diff, frames, hint, readable, shown};
use super::wording;
use crate::cli::tooling::host::{
    CostMeasure, FixtureRun, FixtureVerdict, OpenedComponent, PluginFixture, failure_json,
};

/// `--help` of it.
pub const EXAMPLES: &str = "\
The file has the form of a fixture (`infergate plugin test --help`), or of several, one after the other.
A gateway writes such a file of the next calls of a plugin when its admin listener is asked to; without
one, the log names hook, class and backtrace of a failure and keeps no bodies. A call that failed is
expected to fail in the same way; of others nothing is expected but an answer.

Exit codes: 0 as expected, or nothing is expected and it answers; 1 otherwise.

Examples:
  infergate plugin replay crash.json                       the project in this folder
  infergate plugin replay crash.json dist/my-prices.wasm
  curl -X POST 'http://127.0.0.1:9090/plugins/my-prices/capture?calls=100'
  infergate plugin replay state/captures/my-prices-….jsonl dist/my-prices.wasm
  infergate plugin replay --call 7 state/captures/my-prices-….jsonl dist/my-prices.wasm";

/// Arguments of `plugin replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The recorded call, or calls.
    #[arg(value_name = "CALL")]
    call: PathBuf,
    /// Only the call of this number, from 1, of a file that has several.
    #[arg(long = "call", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    number: Option<u32>,
    #[command(flatten)]
    which: PluginSelector,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &ReplayArgs) -> Result<CommandOutcome, String> {
    let mut calls = PluginFixture::calls(&args.call)?;
    if let Some(number) = args.number {
        let at = number as usize - 1;
        if at >= calls.len() {
            let shown = args.call.display();
            return Err(format!(
                "{shown}: it has {}",
                wording::some(calls.len(), "call")
            ));
        }
        calls = vec![calls.swap_remove(at)];
    }
    let target = args.which.read()?;
    let tools = target::tool_host(CostMeasure::Fuel)?;
    let opened = target.open(&tools)?;
    match calls.as_slice() {
        [only] => one(args, &target, &opened, only),
        many => several(args, &target, &opened, many),
    }
}

fn is_good(fixture: &PluginFixture, ran: &FixtureRun) -> bool {
    match fixture.verdict(ran) {
        FixtureVerdict::Good => true,
        FixtureVerdict::NothingExpected => ran.answer.is_ok(),
        _ => false,
    }
}

/// A line a call.
fn several(
    args: &ReplayArgs,
    target: &PluginTarget,
    opened: &OpenedComponent,
    calls: &[PluginFixture],
) -> Result<CommandOutcome, String> {
    let mut text = format!(
        "{}  {}\n{} of {}\n",
        target.file.display(),
        target.info.sha256,
        wording::some(calls.len(), "call"),
        args.call.display()
    );
    let mut results = Vec::new();
    let mut failed = 0;
    for (at, fixture) in calls.iter().enumerate() {
        let ran = opened
            .with_settings(&fixture.settings, &fixture.tables)
            .run(fixture);
        let good = is_good(fixture, &ran);
        failed += usize::from(!good);
        let how = match &ran.answer {
            Ok(_) => "answers".to_owned(),
            Err(_) => format!("fails: {}", shown(&ran)),
        };
        let mark = if good { "ok" } else { "FAIL" };
        let fuel = ran.fuel.map_or("none".into(), wording::count);
        let (number, hook) = (at + 1, &fixture.hook);
        let _ = writeln!(text, "  {mark:4}  {number:4}  {hook:8}  fuel {fuel}  {how}");
        let error = ran.answer.as_ref().err().map(failure_json);
        results.push(json!({
            "ok": good, "call": number, "hook": hook, "answer": ran.answer.as_ref().ok(),
            "error": error, "fuel": ran.fuel, "elapsed_us": ran.elapsed_us,
        }));
    }
    text += &match failed {
        0 => format!("{} as expected\n", wording::some(calls.len(), "call")),
        failed => format!(
            "{failed} of {} not as expected; --call N shows one\n",
            calls.len()
        ),
    };
    if args.json {
        let of = json!({ "ok": failed == 0, "file": target.file, "sha256": target.info.sha256, "calls": results });
        text = format!("{of}\n");
    }
    Ok(CommandOutcome {
        text,
        good: failed == 0,
    })
}

/// All there is to know of one.
fn one(
    args: &ReplayArgs,
    target: &PluginTarget,
    opened: &OpenedComponent,
    fixture: &PluginFixture,
) -> Result<CommandOutcome, String> {
    let trial = opened.with_settings(&fixture.settings, &fixture.tables);
    let ran = trial.run(fixture);
    let log = trial.log();
    let verdict = fixture.verdict(&ran);
    let good = is_good(fixture, &ran);
    if args.json {
        let (answer, error) = match &ran.answer {
            Ok(answer) => (Some(answer), None),
            Err(failure) => (None, Some(failure_json(failure))),
        };
        let text = json!({
            "ok": good, "file": target.file, "sha256": target.info.sha256, "hook": fixture.hook,
            "answer": answer, "error": error, "backtrace": frames(&ran), "fuel": ran.fuel,
            "memory_bytes": ran.memory_bytes, "elapsed_us": ran.elapsed_us, "log": log,
        });
        return Ok(CommandOutcome {
            text: format!("{text}\n"),
            good,
        });
    }
    let mut text = format!(
        "{}  {}\n{} of {}\n",
        target.file.display(),
        target.info.sha256,
        fixture.hook,
        args.call.display()
    );
    match &ran.answer {
        Ok(answer) => {
            let pretty = serde_json::to_string_pretty(&readable(answer.clone()));
            let _ = writeln!(text, "answers\n{}", pretty.expect("JSON from JSON"));
        }
        Err(_) => {
            let _ = writeln!(text, "fails\n  {}", shown(&ran));
        }
    }
    for frame in frames(&ran) {
        let _ = writeln!(text, "    {frame}");
    }
    if let Some(hint) = hint(&ran) {
        let _ = writeln!(text, "  {hint}");
    }
    for line in log {
        let _ = writeln!(text, "log  {line}");
    }
    text += &verdict_text(&verdict);
    let fuel = ran.fuel.map_or("none".into(), wording::count);
    let _ = writeln!(
        text,
        "fuel {fuel}, {} of memory, {}",
        wording::size(ran.memory_bytes as u64),
        wording::micros(ran.elapsed_us)
    );
    Ok(CommandOutcome { text, good })
}

/// The verdict on a call as a line, with the differences below it.
fn verdict_text(verdict: &FixtureVerdict) -> String {
    match verdict {
        FixtureVerdict::Differs(differences) => format!("not as expected\n{}", diff(differences)),
        FixtureVerdict::Otherwise => "not as expected: a failure and an answer\n".to_owned(),
        FixtureVerdict::OverFuel { max, .. } => format!("more fuel than `max-fuel`, {max}\n"),
        FixtureVerdict::Good => "as expected\n".to_owned(),
        FixtureVerdict::NothingExpected => String::new(),
    }
}
