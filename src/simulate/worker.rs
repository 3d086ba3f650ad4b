//! Manners of the simulated container as a process: a worker of its own, a session of its own.
//!
//! Not its answer to signals, which stands where signals are listened to.

use std::io;
use std::process::{Command, Stdio};

use rustix::process::setsid;

use super::config::ProcessConfig;

/// Starts the worker, or leaves the process group, as configured. A worker outlives its server.
///
/// # Errors
/// The system has no room for a process, or this process leads its group.
pub fn arrange_process(config: &ProcessConfig) -> io::Result<()> {
    if !config.fork_worker {
        if config.escape_group {
            setsid()?;
        }
        return Ok(());
    }
    let mut worker = Command::new("/proc/self/exe");
    worker.args(["simulate", "--address", "127.0.0.1:0"]);
    let manners = [
        (config.ignore_term, "--ignore-term"),
        (config.escape_group, "--escape-group"),
    ];
    worker.args(
        manners
            .iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, flag)| flag),
    );
    let worker = worker.stdin(Stdio::null()).spawn()?;
    println!("worker {}", worker.id());
    Ok(())
}
