//! System calls of a request, counted by strace.
//! Not a time: a traced proxy is many times slower.
//!
//! Setting up the connections is counted too, a few hundredths of a call for each request. Called by the driver.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::contest::{Measurements, load};
use crate::hall::{Contender, Processes};
use crate::kit::Fallible;
use crate::kit::process::{Process, find_program};
use crate::load::Plan;
use crate::options::Options;
use crate::scenarios::plan_for;
use crate::targets::{label, single};

/// Length of the traced load.
const TRACED_MS: u64 = 3_000;
/// Longest wait for strace to attach, and to write its table.
const STRACE_LIMIT: Duration = Duration::from_secs(5);

/// Counts the calls of ours, of the yardsticks and of the two proxies in C.
pub fn count(hall: &Processes, options: &Options, contest: &mut Measurements) -> Fallible<()> {
    let Some(strace) = find_program("strace") else {
        eprintln!("strace: not installed, system calls are not counted");
        return Ok(());
    };
    for label in [
        label::INFERGATE,
        label::WITH_PLUGINS,
        label::BARE,
        label::HYPER,
        label::HAPROXY,
        label::NGINX,
    ] {
        let Some(contender) = hall.find(label) else {
            continue;
        };
        match calls_a_request(&strace, contender, plan_for(hall, contender, options)) {
            Ok(calls) => contest.record(single::CALLS, label, calls)?,
            Err(error) => eprintln!("{label}: system calls not counted, {error}"),
        }
    }
    Ok(())
}

fn calls_a_request(strace: &Path, contender: &Contender, plan: Plan) -> Fallible<f64> {
    let pid = contender.pids.first().ok_or("a contender has a process")?;
    let folder = tempfile::tempdir()?;
    let table = folder.path().join("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-c", "-p", &pid.to_string(), "-o"]);
    command.arg(&table);
    let mut tracer = Process::start("strace", command, None, folder.path())?;
    let log = tracer.log_path().to_owned();
    tracer
        .wait_until(|| std::fs::read_to_string(&log).is_ok_and(|log| log.contains("attached")))?;
    let report = load(&Plan {
        warm_up_ms: 0,
        window_ms: TRACED_MS,
        ..plan
    })?;
    let interrupted = Command::new("kill")
        .arg("-INT")
        .arg(tracer.pid().to_string())
        .stderr(Stdio::null())
        .status()?;
    if !interrupted.success() || tracer.wait_for_end(STRACE_LIMIT)?.is_none() {
        return Err("strace does not end".into());
    }
    if report.answers == 0 || report.errors + report.unexpected > 0 {
        return Err("the traced requests failed".into());
    }
    Ok(total(&std::fs::read_to_string(table)?)? / report.answers as f64)
}

/// Calls of all kinds, from the line that sums them up: the fourth column, as in the lines above it.
fn total(table: &str) -> Fallible<f64> {
    let line = table
        .lines()
        .find(|line| line.trim_end().ends_with("total"));
    let line = line.ok_or("strace counted nothing")?;
    let calls = line.split_ascii_whitespace().nth(3);
    Ok(calls.ok_or("a total without calls")?.parse()?)
}
