//! `plugin replay`: one recorded call again, with everything there is to know about how it ended.
//!
//! The file is a fixture; `expect` may be left out. The call is made on a fresh guest, whose answer
//! depends on nothing but its arguments, its settings and its tables.

use std::fmt::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::Outcome;
use super::say;
use super::target::{self, Which};
use super::test::{diff, frames, hint, readable, shown};
use crate::plugin::workshop::{Fixture, Measure, Verdict, spelled};

/// `--help` of it.
pub const EXAMPLES: &str = "\
The file has the form of a fixture (`infergate plugin test --help`). The gateway's log names hook, class
and backtrace of a failure and keeps no bodies; write the arguments down, and `expect` when you know it.

Exit codes: 0 as expected, or nothing is expected and it answers; 1 otherwise.

Examples:
  infergate plugin replay crash.json                       the project in this folder
  infergate plugin replay crash.json dist/my-prices.wasm";

/// What can be asked.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The recorded call.
    #[arg(value_name = "CALL")]
    call: PathBuf,
    #[command(flatten)]
    which: Which,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &ReplayArgs) -> Result<Outcome, String> {
    let fixture = Fixture::file(&args.call)?;
    let target = args.which.read()?;
    let workshop = target::workshop(Measure::Fuel)?;
    let opened = target.open(&workshop)?;
    let trial = opened.trial(&fixture.settings, &fixture.tables);
    let ran = trial.run(&fixture);
    let log = trial.log();
    let verdict = fixture.verdict(&ran);
    let good = match verdict {
        Verdict::Good => true,
        Verdict::NothingExpected => ran.answer.is_ok(),
        _ => false,
    };
    if args.json {
        let (answer, error) = match &ran.answer {
            Ok(answer) => (Some(answer), None),
            Err(failure) => (None, Some(spelled(failure))),
        };
        let text = json!({
            "ok": good, "file": target.file, "sha256": target.anatomy.sha256, "hook": fixture.hook,
            "answer": answer, "error": error, "backtrace": frames(&ran), "fuel": ran.fuel,
            "memory_bytes": ran.memory_bytes, "elapsed_us": ran.elapsed_us, "log": log,
        });
        return Ok(Outcome {
            text: format!("{text}\n"),
            good,
        });
    }
    let mut text = format!(
        "{}  {}\n{} of {}\n",
        target.file.display(),
        target.anatomy.sha256,
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
    match &verdict {
        Verdict::Differs(differences) => text += &format!("not as expected\n{}", diff(differences)),
        Verdict::Otherwise => text += "not as expected: a failure and an answer\n",
        Verdict::OverFuel { max, .. } => text += &format!("more fuel than `max-fuel`, {max}\n"),
        Verdict::Good => text += "as expected\n",
        Verdict::NothingExpected => {}
    }
    let fuel = ran.fuel.map_or("none".into(), say::count);
    let _ = writeln!(
        text,
        "fuel {fuel}, {} of memory, {}",
        say::size(ran.memory_bytes as u64),
        say::micros(ran.elapsed_us)
    );
    Ok(Outcome { text, good })
}
