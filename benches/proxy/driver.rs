//! Starts everything, runs the scenarios that are wanted, prints the tables.
//! Not part of any measurement: it waits on another CPU while the load generator works.
//!
//! Progress goes to standard error, tables to standard output.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::macros::format_description;

use crate::contest::Measurements;
use crate::cores::Cores;
use crate::hall::Processes;
use crate::kit::{Fallible, gateway, procfs};
use crate::options::{HELP, Options};
use crate::targets::{self, Verdict};
use crate::{calls, idle, tables};

pub fn run(words: &[&str]) -> Fallible<()> {
    let Some(options) = Options::parse(words)? else {
        println!("{HELP}");
        return Ok(());
    };
    let journal = journal_path()?;
    let cores = Cores::plan();
    let machine = procfs::machine();
    let mut contest = Measurements::new(&options, &journal)?;
    eprintln!(
        "{machine}\n{} on CPU {}, the bench itself on CPU {}; runs in {}",
        gateway::binary().display(),
        cores.shared,
        cores.other,
        journal.display()
    );
    if gateway::binary()
        .components()
        .any(|part| part.as_os_str() == "debug")
    {
        eprintln!("warning: a debug build; its figures mean nothing");
    }
    contest.note(&serde_json::json!({ "machine": machine }))?;

    let hall = Processes::open(cores)?;
    measure(&hall, &options, &mut contest)?;

    let rows = targets::judge(&contest);
    println!("\n{}", heading(&machine, &options, &contest)?);
    tables::print_musts(&rows);
    tables::print_costs(&contest, &hall.versions);
    tables::print_latencies(&contest);
    if options.check && rows.iter().any(|row| row.verdict == Verdict::NotMet) {
        return Err("a must is missed even by the smallest figures".into());
    }
    Ok(())
}

fn measure(hall: &Processes, options: &Options, contest: &mut Measurements) -> Fallible<()> {
    if options.includes("small") {
        hall.small(options, contest)?;
    }
    if options.includes("bodies") {
        hall.bodies(options, contest)?;
    }
    if options.includes("streams") {
        hall.streams(options, contest)?;
    }
    if options.includes("refusals") {
        hall.refusals(options, contest)?;
    }
    if options.includes("latency") {
        hall.latency(options, contest)?;
    }
    if options.includes("forward") {
        hall.forward(options, contest)?;
    }
    if options.includes("calls") {
        calls::count(hall, options, contest)?;
    }
    if options.includes("idle") {
        idle::count(hall, options, contest)?;
    }
    if options.includes("memory") {
        hall.memory(options, contest)?;
    }
    if options.includes("sizes") {
        hall.sizes(options, contest)?;
    }
    Ok(())
}

/// Machine, date, length of the run, and how quiet it was.
fn heading(machine: &str, options: &Options, contest: &Measurements) -> Fallible<String> {
    let date = OffsetDateTime::now_utc().format(format_description!("[year]-[month]-[day]"))?;
    let quiet = match tables::restlessness(contest) {
        Some(ratio) => format!("; median ÷ lower decile of the yardstick {ratio:.2}"),
        None => String::new(),
    };
    Ok(format!(
        "{machine}, {date}. {} interleaved rounds of {} ms{quiet}.",
        options.rounds, options.window_ms
    ))
}

fn journal_path() -> Fallible<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&folder)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(folder.join(format!("proxy-{seconds}.jsonl")))
}
