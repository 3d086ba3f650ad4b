//! Processes of this host as `/proc` shows them: who they are, whether they live, whose descendants they are.
//!
//! A pid is believed with its start time only (`/proc/<pid>/stat`, field 22,
//! <https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html>). A signal goes through a descriptor of the process, which
//! stays with it when its number goes to another.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getuid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Generations of processes that are looked through for an ancestor.
const ANCESTORS_MAX: usize = 64;

/// Facts of a process from `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Parent.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Session.
    pub session: u32,
    /// Start, clock ticks since boot.
    pub start: u64,
    /// Ended, and not yet waited for by its parent: its memory is gone.
    pub is_ended: bool,
}

impl ProcessFacts {
    /// Reads the facts of a process; none when it is not there, or cannot be read.
    pub fn read(pid: u32) -> Option<ProcessFacts> {
        ProcessFacts::look(pid).ok()?
    }

    /// Reads the facts of a process; none when it is not there.
    ///
    /// # Errors
    /// Unreadable, as without a descriptor or a permission.
    pub fn look(pid: u32) -> io::Result<Option<ProcessFacts>> {
        ProcessFacts::from_stat(std::fs::read_to_string(format!("/proc/{pid}/stat")))
    }

    fn from_stat(stat: io::Result<String>) -> io::Result<Option<ProcessFacts>> {
        match stat {
            Ok(stat) => match ProcessFacts::parse(&stat) {
                Some(facts) => Ok(Some(facts)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // It ended between the opening and the reading.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the fields behind the name, which may contain spaces and brackets.
    fn parse(stat: &str) -> Option<ProcessFacts> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace();
        let state = fields.next()?;
        let mut number = || fields.next()?.parse().ok();
        let (parent, group, session) = (number()?, number()?, number()?);
        let start = fields.nth(15)?.parse().ok()?;
        Some(ProcessFacts {
            parent,
            group,
            session,
            start,
            is_ended: matches!(state, "Z" | "X"),
        })
    }
}

/// A process that is meant for good: its number and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Number.
    pub pid: u32,
    /// Start, clock ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// Returns the process that has the number now.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let facts = ProcessFacts::read(pid)?;
        Some(ProcessId {
            pid,
            start: facts.start,
        })
    }

    /// Returns whether the process runs.
    pub fn is_alive(self) -> bool {
        ProcessFacts::read(self.pid)
            .is_some_and(|facts| facts.start == self.start && !facts.is_ended)
    }

    /// Ends the process at once, when it is the one that is meant. Returns whether a signal was sent.
    ///
    /// # Errors
    /// The process is another user's, or the system has no descriptor left.
    pub fn kill(self) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // Looked at behind the descriptor: from here on the number cannot become another's unnoticed.
        if !self.is_alive() {
            return Ok(false);
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Numbers of all processes that `/proc` shows.
pub fn all_pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.collect()
}

/// Returns whether the process belongs to this process's user.
pub fn is_own(pid: u32) -> bool {
    let owner = std::fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
    owner.is_ok_and(|owner| owner == getuid().as_raw())
}

/// Returns whether the process was started with `entry`, as `NAME=value`, in its environment. A process that is about
/// to become another program has none for a moment.
pub fn has_environment(pid: u32, entry: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|byte| *byte == 0)
        .any(|present| present == entry.as_bytes())
}

/// Returns the process itself, or its nearest ancestor, for which `is_meant` holds.
pub fn nearest(mut pid: u32, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
    for _ in 0..ANCESTORS_MAX {
        if is_meant(pid) {
            return Some(pid);
        }
        pid = ProcessFacts::read(pid)?.parent;
    }
    None
}

/// Returns the processes that are one of `roots`, or descend from one. Each process is looked at once.
pub fn descendants(roots: &BTreeSet<u32>) -> Vec<u32> {
    if roots.is_empty() {
        return Vec::new();
    }
    let parent = |pid: u32| Some((pid, ProcessFacts::read(pid)?.parent));
    let parents: BTreeMap<u32, u32> = all_pids().into_iter().filter_map(parent).collect();
    let is_below = |pid: &u32| {
        let ancestors = std::iter::successors(Some(*pid), |pid| parents.get(pid).copied());
        ancestors.take(ANCESTORS_MAX).any(|it| roots.contains(&it))
    };
    parents.keys().copied().filter(is_below).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let rest = "S 7 1 2 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0";
        let facts = ProcessFacts::parse(&format!("12 (a) b (c)) {rest}")).unwrap();
        let expected = ProcessFacts {
            parent: 7,
            group: 1,
            session: 2,
            start: 99,
            is_ended: false,
        };
        assert_eq!(facts, expected);
    }

    #[test]
    fn a_process_that_cannot_be_read_is_not_taken_for_one_that_has_ended() {
        let read = |errno: Errno| ProcessFacts::from_stat(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::SRCH] {
            assert_eq!(read(errno).unwrap(), None, "{errno}");
        }
        for errno in [Errno::MFILE, Errno::ACCESS] {
            assert!(read(errno).is_err(), "{errno}");
        }
    }

    #[test]
    fn a_descendant_has_its_ancestor_and_another_none() {
        let own = std::process::id();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert_eq!(nearest(child.id(), |pid| pid == own), Some(own));
        assert_eq!(nearest(1, |pid| pid == own), None);
        let below = descendants(&BTreeSet::from([own]));
        assert!(below.contains(&own) && below.contains(&child.id()) && !below.contains(&1));
        assert!(descendants(&BTreeSet::new()).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_ended_by_number_and_start_together_only() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = ProcessId::of(child.id()).unwrap();
        let former = ProcessId {
            start: process.start - 1,
            ..process
        };
        assert!(!former.kill().unwrap());
        assert!(process.is_alive());
        assert!(process.kill().unwrap());
        child.wait().unwrap();
        assert!(!process.is_alive() && !process.kill().unwrap());
    }

    #[test]
    fn an_entry_of_the_environment_is_compared_whole() {
        let mut command = Command::new("cat");
        command
            .env("INFERGATE_TEST_MARK", "a-1")
            .stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        while !has_environment(child.id(), "INFERGATE_TEST_MARK=a-1") {
            std::thread::yield_now();
        }
        assert!(!has_environment(child.id(), "INFERGATE_TEST_MARK=a-"));
        assert!(is_own(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
