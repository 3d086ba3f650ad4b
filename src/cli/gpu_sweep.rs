//! `infergate gpu sweep`: ends what a gateway that is gone has left of its models.
//!
//! Needs no gateway, and touches nothing of one that runs: its keepers are connected to it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::{print, problem};
use crate::gpu::process::{OrphanDecision, SweepReport, run_directory, sweep};

/// Status of a configuration that does not load and of a directory that cannot be read.
const UNREADABLE: u8 = 2;

/// Help below the options of `infergate gpu sweep`.
pub const HELP: &str = "\
A gateway does this at its start. By itself the command is for the end of one that will not start again, as
`ExecStopPost=` of systemd. A process without the mark of an instance is never touched.

Exit codes: 0 no process is left without a gateway, 1 something could not be ended, 2 the configuration does not load
or the directory cannot be read.
Examples:
  infergate gpu sweep --config infergate.yaml
  infergate gpu sweep --state-dir /var/lib/infergate";

/// Arguments of `infergate gpu sweep`.
#[derive(Args)]
pub struct SweepArgs {
    /// The configuration file, whose `state_dir` is looked through.
    #[arg(
        long,
        short,
        value_name = "FILE",
        required_unless_present = "state_dir"
    )]
    config: Option<PathBuf>,
    /// The gateway's `state_dir`.
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    state_dir: Option<PathBuf>,
}

/// Ends what is left.
pub fn run(args: &SweepArgs) -> ExitCode {
    let state_dir = match (&args.state_dir, &args.config) {
        (Some(directory), _) => Ok(directory.clone()),
        (None, Some(file)) => crate::config::load(file)
            .map(|loaded| loaded.config.state_dir)
            .map_err(|problems| {
                let first = problems.first().map(ToString::to_string);
                format!("{}: {}", file.display(), first.unwrap_or_default())
            }),
        (None, None) => Err("neither --config nor --state-dir is given".to_owned()),
    };
    let swept = state_dir.and_then(|state_dir| {
        let directory = run_directory(&state_dir);
        sweep(&directory, &BTreeSet::new(), |_| OrphanDecision::Stop)
            .map_err(|error| format!("{}: {error}", directory.display()))
    });
    match swept {
        Ok(report) => show(&report),
        Err(why) => {
            problem(&format!("error: {why}"));
            ExitCode::from(UNREADABLE)
        }
    }
}

fn show(report: &SweepReport) -> ExitCode {
    let mut text = String::new();
    for instance in &report.held {
        text += &format!("{instance}: a gateway has it\n");
    }
    for instance in &report.stopped {
        text += &format!("{instance}: ended by its keeper\n");
    }
    for (instance, count) in &report.killed {
        text += &format!("{instance}: had no keeper, {count} process(es) ended\n");
    }
    if text.is_empty() && report.failures.is_empty() {
        text += "nothing is left\n";
    }
    print(&text);
    for failure in &report.failures {
        problem(&format!("error: {failure}"));
    }
    match report.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
