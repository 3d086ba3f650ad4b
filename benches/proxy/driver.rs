//! Starts everything, runs the scenarios that are wanted, prints the verdicts.
//! Not part of any measurement: it sleeps while the load generator works.
//!
//! `--quick` is `just bench-proxy` (T1, T4, T7, under 4 minutes); without it every target (under 30).

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::contest::Measurements;
use crate::hall::{Cores, Processes};
use crate::kit::{Fallible, gateway, procfs};
use crate::memory::Memory;
use crate::options::Options;
use crate::targets::{self, Verdict};

pub fn run(words: &[&str]) -> Fallible<()> {
    let options = Options::parse(words)?;
    let journal = journal_path()?;
    let cores = Cores::plan();
    let mut contest = Measurements::new(options.rounds, &cores.load, &journal)?;
    println!("{}", procfs::machine());
    println!(
        "infergate: {}; proxies on core {}, load and upstream on core {}; runs in {}",
        gateway::binary().display(),
        cores.proxy,
        cores.load,
        journal.display()
    );
    if gateway::binary()
        .components()
        .any(|part| part.as_os_str() == "debug")
    {
        println!("warning: this is a debug build; its figures mean nothing");
    }
    contest.note(&serde_json::json!({ "machine": procfs::machine() }))?;

    let hall = Processes::open(cores)?;
    if options.includes("t1") {
        hall.small(&options, &mut contest)?;
    }
    if options.includes("t4") {
        hall.streams(&options, &mut contest)?;
    }
    if options.includes("t7") {
        hall.refusals(&options, &mut contest)?;
    }
    if options.includes("t5") {
        hall.open_loop(&options, &mut contest)?;
    }
    if options.includes("t6") {
        hall.bodies(&options, &mut contest)?;
    }
    let memory = match options.includes("t9") {
        true => hall.memory(&options, &mut contest)?,
        false => Memory::default(),
    };
    if options.includes("t12") {
        hall.sizes(&options, &mut contest)?;
    }

    let rows = targets::judge(&contest, &memory);
    targets::print(&rows);
    println!("\n{}", procfs::machine());
    if options.check && rows.iter().any(|row| row.verdict == Verdict::NotMet) {
        return Err("a target is missed even by its best round".into());
    }
    Ok(())
}

fn journal_path() -> Fallible<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&folder)?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    Ok(folder.join(format!("proxy-{seconds}.jsonl")))
}
