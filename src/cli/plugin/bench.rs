//! `plugin bench`: what fixtures cost, in fuel and time, and whether that became worse.
//!
//! Fuel comes from fresh guests, time from the code that a gateway runs, on a guest that waits (`used`)
//! and on one that is made for the call (`fresh`). Values go in and out as fixtures write them, which is
//! a few microseconds slower than a gateway's typed call.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::outcome::CommandOutcome;
use super::target::{self, PluginSelector, PluginTarget, progress};
use super::test::is_fatal;
use super::wording;
use crate::cli::tooling::host::{
    CostMeasure, OpenedComponent, PluginFixture, ToolHost, percentile,
};

/// `--help` of it.
pub const EXAMPLES: &str = "\
Compared are fuel, which is the same on every machine and may grow by 1 %, and the used guest's half
time (p50), which may grow by the threshold and 20 µs. Save on the machine you compare on.

Exit codes: 0 measured, and nothing is worse; 1 something is.

Examples:
  infergate plugin bench my-prices
  infergate plugin bench my-prices --save bench.json
  infergate plugin bench my-prices --compare bench.json --threshold 25%";

/// Growth of fuel that is no finding: another compiler moves a few instructions.
const FUEL_TOLERANCE: f64 = 0.01;
/// Growth of time that is no finding: below it a timer and a scheduler speak.
const TIME_TOLERANCE_US: u64 = 20;
/// Microseconds spent on one fixture, each way; at least [`RUNS_MIN`] calls are made.
const FIXTURE_MAX_US: u64 = 1_000_000;
const RUNS_MIN: usize = 20;

/// Arguments of `plugin bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    which: PluginSelector,
    /// Calls of each fixture, at most; each takes at most a second in all.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    runs: u32,
    /// Write the figures to a file.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with figures that were saved before.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Growth of time that is taken.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    threshold: f64,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').parse::<f64>();
    let number = number.ok().filter(|number| (0.0..=1000.0).contains(number));
    let number = number.ok_or("expected a percentage such as 10%")?;
    Ok(number / 100.0)
}

/// The figures of one fixture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchFigures {
    fuel: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    fresh_p50_us: u64,
    fresh_p99_us: u64,
    bytes_copied: usize,
    memory_bytes: usize,
}

/// A file of figures.
#[derive(Debug, Serialize, Deserialize)]
struct SavedFigures {
    sha256: String,
    fixtures: BTreeMap<String, BenchFigures>,
}

/// Runs it.
pub fn run(args: &BenchArgs) -> Result<CommandOutcome, String> {
    let target = args.which.read()?;
    target.some_fixtures()?;
    let before: Option<SavedFigures> = match &args.compare {
        Some(file) => {
            let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
            let text = fs::read(file).map_err(|error| wrong(&error))?;
            Some(serde_json::from_slice(&text).map_err(|error| wrong(&error))?)
        }
        None => None,
    };
    let now = SavedFigures {
        sha256: target.info.sha256.clone(),
        fixtures: measure(&target, args.runs as usize)?,
    };
    if let Some(file) = &args.save {
        let text = serde_json::to_string_pretty(&now).expect("figures are plain JSON") + "\n";
        fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let worse = before.map_or_else(Vec::new, |before| worse(&before, &now, args.threshold));
    let text = match args.json {
        true => format!(
            "{}\n",
            json!({ "ok": worse.is_empty(), "figures": now, "worse": worse })
        ),
        false => table(&now.fixtures, &worse, args.compare.is_some()),
    };
    Ok(CommandOutcome {
        text,
        good: worse.is_empty(),
    })
}

/// The figures of every fixture of a plugin.
pub fn measure(
    target: &PluginTarget,
    runs: usize,
) -> Result<BTreeMap<String, BenchFigures>, String> {
    let (counting, timing) = (
        target::tool_host(CostMeasure::Fuel)?,
        target::tool_host(CostMeasure::Time)?,
    );
    let (counted, timed) = (target.open(&counting)?, target.open(&timing)?);
    let mut figures = BTreeMap::new();
    for fixture in &target.fixtures {
        progress(&format!("measuring {}", fixture.name));
        figures.insert(
            fixture.name.clone(),
            of(&timing, &counted, &timed, fixture, runs),
        );
    }
    Ok(figures)
}

fn of(
    timing: &ToolHost,
    counted: &OpenedComponent,
    timed: &OpenedComponent,
    fixture: &PluginFixture,
    runs: usize,
) -> BenchFigures {
    let once = counted
        .with_settings(&fixture.settings, &fixture.tables)
        .run(fixture);
    let trial = timed.with_settings(&fixture.settings, &fixture.tables);
    let mut guest = trial.instance();
    let used = timing.times(runs, (RUNS_MIN, FIXTURE_MAX_US), || {
        guest = guest.take().or_else(|| trial.instance());
        let ran = match &mut guest {
            Some(guest) => guest.call(fixture),
            None => trial.run(fixture),
        };
        if is_fatal(&ran) {
            guest = None;
        }
        Some(ran.elapsed_us)
    });
    let fresh = timing.times(runs, (RUNS_MIN, FIXTURE_MAX_US), || {
        trial.run(fixture);
        None
    });
    trial.log();
    let of = |times: &[u64], percent| percentile(times, percent).unwrap_or(0);
    BenchFigures {
        fuel: once.fuel.unwrap_or(0),
        p50_us: of(&used, 50),
        p99_us: of(&used, 99),
        max_us: of(&used, 100),
        fresh_p50_us: of(&fresh, 50),
        fresh_p99_us: of(&fresh, 99),
        bytes_copied: once.bytes_copied,
        memory_bytes: once.memory_bytes,
    }
}

/// Figures that became worse, a sentence each.
fn worse(before: &SavedFigures, now: &SavedFigures, threshold: f64) -> Vec<String> {
    let mut found = Vec::new();
    for (name, was) in &before.fixtures {
        let Some(is) = now.fixtures.get(name) else {
            found.push(format!(
                "{name}: measured before, and there is no such fixture now"
            ));
            continue;
        };
        let grown = |is: u64, was: u64| (is as f64 / (was.max(1)) as f64 - 1.0) * 100.0;
        if is.fuel as f64 > was.fuel as f64 * (1.0 + FUEL_TOLERANCE) {
            found.push(format!(
                "{name}: {} fuel, {:+.1} % against {}",
                wording::count(is.fuel),
                grown(is.fuel, was.fuel),
                wording::count(was.fuel)
            ));
        }
        let limit = (was.p50_us as f64 * (1.0 + threshold)) as u64;
        if is.p50_us > limit && is.p50_us > was.p50_us + TIME_TOLERANCE_US {
            found.push(format!(
                "{name}: p50 {}, {:+.1} % against {}",
                wording::micros(is.p50_us),
                grown(is.p50_us, was.p50_us),
                wording::micros(was.p50_us)
            ));
        }
    }
    found
}

/// Memory of the guest that used most.
pub fn peak_memory(figures: &BTreeMap<String, BenchFigures>) -> usize {
    figures
        .values()
        .map(|of| of.memory_bytes)
        .max()
        .unwrap_or(0)
}

/// Fixtures whose 99 of 100 calls do not end in time.
pub fn slower_than(figures: &BTreeMap<String, BenchFigures>, limit_us: u64) -> Vec<String> {
    let slow = figures.iter().filter(|(_, of)| of.p99_us > limit_us);
    slow.map(|(name, _)| name.clone()).collect()
}

/// The figures, a line a fixture.
pub fn table(figures: &BTreeMap<String, BenchFigures>, worse: &[String], compared: bool) -> String {
    let names = figures.keys().map(|name| name.chars().count());
    let width = names.max().unwrap_or(0).max("fixture".len());
    let mut text = format!(
        "{:width$}  {:>11}  {:>8}  {:>8}  {:>8}  {:>9}  {:>9}  {:>9}\n",
        "fixture", "fuel", "p50", "p99", "max", "fresh p50", "copied", "memory"
    );
    for (name, of) in figures {
        if of.max_us == 0 {
            text += &format!(
                "{name:width$}  {:>11}  its settings are refused\n",
                "not run"
            );
            continue;
        }
        text += &format!(
            "{name:width$}  {:>11}  {:>8}  {:>8}  {:>8}  {:>9}  {:>9}  {:>9}\n",
            wording::count(of.fuel),
            wording::micros(of.p50_us),
            wording::micros(of.p99_us),
            wording::micros(of.max_us),
            wording::micros(of.fresh_p50_us),
            wording::size(of.bytes_copied as u64),
            wording::size(of.memory_bytes as u64),
        );
    }
    for one in worse {
        text += &format!("WORSE {one}\n");
    }
    if compared && worse.is_empty() {
        text += "no worse than before\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(fuel: u64, p50_us: u64) -> SavedFigures {
        let figures = BenchFigures {
            fuel,
            p50_us,
            p99_us: 0,
            max_us: 0,
            fresh_p50_us: 0,
            fresh_p99_us: 0,
            bytes_copied: 0,
            memory_bytes: 0,
        };
        SavedFigures {
            sha256: String::new(),
            fixtures: BTreeMap::from([("a".to_owned(), figures)]),
        }
    }

    #[test]
    fn fuel_counts_to_the_percent_and_time_with_both_thresholds() {
        let before = saved(1000, 100);
        assert!(worse(&before, &saved(1010, 110), 0.1).is_empty());
        assert_eq!(
            worse(&before, &saved(1011, 100), 0.1),
            ["a: 1 011 fuel, +1.1 % against 1 000"]
        );
        assert!(
            worse(&before, &saved(1000, 120), 0.1).is_empty(),
            "20 µs are noise"
        );
        assert_eq!(
            worse(&before, &saved(1000, 121), 0.1),
            ["a: p50 121 µs, +21.0 % against 100 µs"]
        );
        assert!(worse(&before, &saved(1000, 121), 0.25).is_empty());
        let none = SavedFigures {
            sha256: String::new(),
            fixtures: BTreeMap::new(),
        };
        assert_eq!(worse(&before, &none, 0.1).len(), 1);
    }

    #[test]
    fn a_threshold_is_a_percentage() {
        assert_eq!(percent("10%"), Ok(0.1));
        assert_eq!(percent("2.5"), Ok(0.025));
        assert!(percent("fast").is_err());
    }
}
