//! `infergate gpu trace`: replays recorded lifecycle files, and shows what other settings or another card would have cost.
//!
//! Decides nothing: the replay is the core's. Needs no gateway and no card.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use infergate_core::Millis;
use infergate_core::vram::SwapPolicy;
use infergate_core::vram::replay::{
    LINE_BYTES_MAX, Recording, RecordingReader, ReplayOptions, RuleLine, RunFigures, replay,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::output::{print, problem};
use crate::regular_file::open_regular;

const FAILED: u8 = 2;
/// Rows of a table: each is a replay of all files.
const ROWS_MAX: usize = 32;
/// Bounds of what a command line may name, those of memory in MiB: a PiB.
const FACTOR_MAX: i64 = 100_000;
const MEMORY_MIB_MAX: u64 = 1 << 30;

/// Help below the options of `infergate gpu trace`.
pub const HELP: &str = "\
FILE is what a gateway has written to `gpu.events.file`. Rotated files are given together, in any order.
`recorded` is what happened, `replayed` the same day played with the settings of then: their difference is the error of
the replay. Further rows have another policy, or what the options say; several values, with commas, make several rows.
`turn` and `patience` have no effect on `lru`.

Requests come as they were recorded, second by second, and each takes the mean time that its model's requests took. A load
takes the mean of the model's recorded loads. The replay begins with nothing loaded. Nobody gives up waiting, orders of
operators and leases of other holders are left out, and so are failures.

Exit codes: 0 shown, 2 a file cannot be read, a line is no event, or there is nothing to replay.
Examples:
  infergate gpu trace lifecycle.jsonl                          as it was, and the other policy
  infergate gpu trace lifecycle.jsonl lifecycle.jsonl.1        with the file before it
  infergate gpu trace lifecycle.jsonl --policy turns --turn 2,4,8
  infergate gpu trace lifecycle.jsonl --device-mib 49152,81920 --json";

/// Policy of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyChoice {
    /// Turns in units of load time, and waits against what an eviction costs.
    Turns,
    /// Idle models only, the one used least recently first.
    Lru,
}

impl PolicyChoice {
    const fn policy(self) -> SwapPolicy {
        match self {
            PolicyChoice::Turns => SwapPolicy::Turns,
            PolicyChoice::Lru => SwapPolicy::Lru,
        }
    }
}

/// Arguments of `infergate gpu trace`.
#[derive(Args)]
pub struct TraceArgs {
    /// Lifecycle files of one gateway.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Policy of `gpu.swap`; both unless given.
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policy: Vec<PolicyChoice>,
    /// Turn of a busy model, in units of both load times (`gpu.swap.turn`).
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=FACTOR_MAX))]
    turn: Vec<u32>,
    /// Factor by which a debt must exceed the cost of an eviction (`gpu.swap.patience`).
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=FACTOR_MAX))]
    patience: Vec<u32>,
    /// Memory of each device, MiB, with its reserve.
    #[arg(long, value_name = "MIB", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=MEMORY_MIB_MAX))]
    device_mib: Vec<u64>,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// Replay of a row.
struct TraceRow {
    options: ReplayOptions,
    figures: RunFigures,
}

/// Replays the files.
pub fn run(args: &TraceArgs) -> ExitCode {
    let shown = read(&args.files).and_then(|recording| {
        let Some(rule) = recording.rule() else {
            return Err("there is nothing to replay".to_owned());
        };
        let rows = variants(args, rule)?.into_iter().map(|options| TraceRow {
            figures: replay(&recording, options),
            options,
        });
        let rows: Vec<TraceRow> = rows.collect();
        Ok(match args.json {
            true => format!("{:#}\n", as_json(&recording, rule, &rows)),
            false => table(args, &recording, rule, &rows),
        })
    });
    match shown {
        Ok(text) => print(&text),
        Err(why) => {
            problem(&format!("error: {why}"));
            ExitCode::from(FAILED)
        }
    }
}

/// A file, opened, with its first line.
struct TraceFile<'a> {
    path: &'a Path,
    reader: BufReader<File>,
    first: Vec<u8>,
    at: String,
}

impl TraceFile<'_> {
    fn open(path: &Path) -> Result<TraceFile<'_>, String> {
        /// Moment of a line, by which files are ordered.
        #[derive(Deserialize)]
        struct LineMoment {
            at: String,
        }
        let file = open_regular(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut opened = TraceFile {
            path,
            reader: BufReader::new(file),
            first: Vec::new(),
            at: String::new(),
        };
        opened.first = opened.line(1)?.unwrap_or_default();
        if let Ok(moment) = serde_json::from_slice::<LineMoment>(&opened.first) {
            opened.at = moment.at;
        }
        Ok(opened)
    }

    /// Returns the next line; none at the end, where a line that was not written to its end is none.
    fn line(&mut self, number: u64) -> Result<Option<Vec<u8>>, String> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX as u64 + 1);
        let read = bounded.read_until(b'\n', &mut line);
        read.map_err(|error| format!("{}: {error}", self.path.display()))?;
        if line.pop_if(|byte| *byte == b'\n').is_some() {
            return Ok(Some(line));
        }
        match line.len() > LINE_BYTES_MAX {
            true => Err(format!(
                "{}:{number}: the line is longer than {LINE_BYTES_MAX} bytes: no lifecycle file",
                self.path.display()
            )),
            false => Ok(None),
        }
    }

    fn read_into(mut self, reader: &mut RecordingReader) -> Result<(), String> {
        if self.first.is_empty() {
            return Ok(());
        }
        let (mut number, mut next) = (1, Some(std::mem::take(&mut self.first)));
        while let Some(line) = next {
            let taken = reader.take(&line);
            taken.map_err(|error| format!("{}:{number}: {error}", self.path.display()))?;
            number += 1;
            next = self.line(number)?;
        }
        Ok(())
    }
}

/// Reads the files in the order of their first lines.
fn read(paths: &[PathBuf]) -> Result<Recording, String> {
    let files = paths.iter().map(|path| TraceFile::open(path));
    let mut files: Vec<TraceFile<'_>> = files.collect::<Result<_, _>>()?;
    files.sort_by(|one, other| one.at.cmp(&other.at));
    let mut reader = RecordingReader::default();
    for file in files {
        file.read_into(&mut reader)?;
    }
    reader.finish().map_err(|error| error.to_string())
}

/// Settings of all rows. The first is as recorded; no two are the same.
fn variants(args: &TraceArgs, rule: &RuleLine) -> Result<Vec<ReplayOptions>, String> {
    fn values<T: Copy>(given: &[T]) -> Vec<Option<T>> {
        match given.is_empty() {
            true => vec![None],
            false => given.iter().copied().map(Some).collect(),
        }
    }
    let policies = match args.policy.is_empty() {
        true => PolicyChoice::value_variants(),
        false => &args.policy,
    };
    let mut rows = vec![ReplayOptions::default()];
    for device_mib in values(&args.device_mib) {
        for policy in policies.iter().map(|choice| choice.policy()) {
            for turn in values(&args.turn) {
                for patience in values(&args.patience) {
                    let is_turns = policy == SwapPolicy::Turns;
                    let options = ReplayOptions {
                        policy: Some(policy).filter(|it| *it != rule.policy),
                        turn: turn.filter(|it| is_turns && *it != rule.turn),
                        patience: patience.filter(|it| is_turns && *it != rule.patience),
                        device_mib,
                    };
                    if !rows.contains(&options) {
                        rows.push(options);
                    }
                }
            }
        }
    }
    match rows.len() > ROWS_MAX {
        true => Err(format!(
            "the options make {} rows, more than {ROWS_MAX}: give fewer values",
            rows.len()
        )),
        false => Ok(rows),
    }
}

/// Settings of a row, for people.
fn name(rule: &RuleLine, options: ReplayOptions) -> String {
    let policy = options.policy.unwrap_or(rule.policy);
    let mut name = policy.name().to_owned();
    if policy == SwapPolicy::Turns {
        let turn = options.turn.unwrap_or(rule.turn);
        let patience = options.patience.unwrap_or(rule.patience);
        name += &format!(" {turn}, patience {patience}");
    }
    if let Some(mib) = options.device_mib {
        name += &format!(", {mib} MiB");
    }
    name
}

fn table(args: &TraceArgs, recording: &Recording, rule: &RuleLine, rows: &[TraceRow]) -> String {
    let recorded = recording.figures();
    let mut out = format!(
        "{} file(s), {} requests in {}\n\n{:<40} {:>7} {:>9} {:>7} {:>9} {:>8} {:>8} {:>8} {:>9}\n",
        args.files.len(),
        recorded.requests,
        span(recording.span()),
        "run",
        "loads",
        "evictions",
        "swaps",
        "loading s",
        "mean s",
        "p50 s",
        "p99 s",
        "longest s"
    );
    out += &line("recorded", recorded);
    for (nth, row) in rows.iter().enumerate() {
        let name = name(rule, row.options);
        let name = match nth {
            0 => format!("replayed: {name}"),
            _ => name,
        };
        out += &line(&name, &row.figures);
    }
    let left = recording.left_out();
    if left > 0 {
        out += &format!("\n{left} line(s) of demand before the first `models` line are left out\n");
    }
    let refused = rows.first().map_or(0, |row| row.figures.refused);
    if refused > 0 || recorded.refused > 0 {
        out += &format!(
            "\nnot served: {} recorded, {refused} replayed; they are in no wait\n",
            recorded.refused
        );
    }
    out
}

fn line(name: &str, figures: &RunFigures) -> String {
    let waits = &figures.waits;
    let percentile = |percent| match waits.percentile(percent) {
        Some(wait) => secs(wait),
        None => "-".to_owned(),
    };
    format!(
        "{name:<40} {:>7} {:>9} {:>7} {:>9} {:>8} {:>8} {:>8} {:>9}\n",
        figures.loads,
        figures.evictions,
        figures.swaps,
        secs(figures.loading),
        tenths(waits.mean_ms(figures.requests) / 1000.0),
        percentile(50),
        percentile(99),
        secs(waits.longest()),
    )
}

/// Length of a recording in a unit that fits it.
fn span(time: Millis) -> String {
    match time.0 / 1000 {
        secs @ ..600 => format!("{secs} s"),
        secs @ ..36_000 => format!("{} min", secs / 60),
        secs => format!("{} h", secs / 3600),
    }
}

fn secs(time: Millis) -> String {
    tenths(time.0 as f64 / 1000.0)
}

fn tenths(number: f64) -> String {
    format!("{number:.1}")
}

fn as_json(recording: &Recording, rule: &RuleLine, rows: &[TraceRow]) -> Value {
    let replays = rows.iter().map(|row| {
        let options = row.options;
        let mut object = figures_json(&row.figures);
        object["policy"] = json!(options.policy.unwrap_or(rule.policy).name());
        object["turn"] = json!(options.turn.unwrap_or(rule.turn));
        object["patience"] = json!(options.patience.unwrap_or(rule.patience));
        object["device_mib"] = json!(options.device_mib);
        object
    });
    json!({
        "span_secs": recording.span().0 as f64 / 1000.0,
        "demand_lines_left_out": recording.left_out(),
        "recorded": figures_json(recording.figures()),
        "replays": replays.collect::<Vec<Value>>(),
    })
}

fn figures_json(figures: &RunFigures) -> Value {
    let secs = |time: Millis| time.0 as f64 / 1000.0;
    let waits = &figures.waits;
    json!({
        "loads": figures.loads,
        "evictions": figures.evictions,
        "swaps": figures.swaps,
        "loading_secs": secs(figures.loading),
        "requests": figures.requests,
        "not_served": figures.refused,
        "mean_wait_secs": waits.mean_ms(figures.requests) / 1000.0,
        "p50_wait_secs": waits.percentile(50).map(secs),
        "p99_wait_secs": waits.percentile(99).map(secs),
        "longest_wait_secs": secs(waits.longest()),
    })
}
