//! Holders as processes of this host: who they are, whether they live, which processes descend from them.
//!
//! Not the reading of `/proc`, which is `processes.rs`'s. Pids of other namespaces are not judged.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use infergate_core::vram::{DeviceSample, Holder, HolderKind, HolderLife, HostTime, Ledger};
use rustix::process::getuid;

use super::processes::{ProcessFacts, nearest};
use crate::telemetry::host_time;

/// Facts of the host that are constant while this process runs.
#[derive(Debug)]
pub struct LeaseHost {
    boot_id: String,
    name: String,
    /// Inode of this process's pid namespace.
    pid_namespace: Option<u64>,
    /// `/proc` shows this user no processes of others (mount option `hidepid`).
    hides_others: bool,
}

impl LeaseHost {
    /// Reads what the kernel says of the host.
    ///
    /// # Errors
    /// `/proc` is not there.
    pub fn read() -> io::Result<LeaseHost> {
        let line = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        let namespace = std::fs::metadata("/proc/self/ns/pid");
        Ok(LeaseHost {
            boot_id: line("/proc/sys/kernel/random/boot_id")?,
            name: line("/proc/sys/kernel/hostname")?,
            pid_namespace: namespace.ok().map(|namespace| namespace.ino()),
            // The first process of a namespace lives as long as that.
            hides_others: matches!(ProcessFacts::look(1), Ok(None)),
        })
    }

    /// Identity of this boot.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Returns whether `/proc` hides the processes of other users: whether they live cannot be told.
    pub fn hides_others(&self) -> bool {
        self.hides_others
    }

    /// The host's time.
    pub fn now(&self) -> HostTime {
        host_time()
    }

    /// Returns this process as the holder of a command's leases.
    ///
    /// # Errors
    /// `/proc` does not tell of this process.
    pub fn job_holder(&self, name: &str) -> io::Result<Holder> {
        self.holder(HolderKind::Job, name, std::process::id())
    }

    /// Returns a process as the holder of a slot's leases: the gateway until the keeper is there.
    ///
    /// # Errors
    /// `/proc` does not tell of the process.
    pub fn slot_holder(&self, slot: &str, pid: u32) -> io::Result<Holder> {
        self.holder(HolderKind::Slot, slot, pid)
    }

    fn holder(&self, kind: HolderKind, name: &str, pid: u32) -> io::Result<Holder> {
        let facts = ProcessFacts::read(pid);
        let facts = facts.ok_or_else(|| io::Error::other("/proc is not readable"))?;
        Ok(Holder {
            kind,
            name: name.into(),
            node: Arc::from(&*self.name),
            pid,
            start: facts.start,
            pid_namespace: self.pid_namespace,
            uid: getuid().as_raw(),
        })
    }

    /// Returns whether a holder is this process.
    pub fn is_own(&self, holder: &Holder) -> bool {
        let is_here = holder.pid_namespace == self.pid_namespace;
        is_here && holder.pid == std::process::id()
    }

    /// Returns whether the process of a holder is there.
    pub fn life(&self, holder: &Holder) -> HolderLife {
        if holder.pid_namespace.is_some() && holder.pid_namespace != self.pid_namespace {
            return HolderLife::Unknown;
        }
        match ProcessFacts::look(holder.pid) {
            Ok(Some(facts)) if facts.start == holder.start && !facts.is_ended => HolderLife::Alive,
            Ok(None) if self.hides_others && holder.uid != getuid().as_raw() => HolderLife::Unknown,
            Ok(_) => HolderLife::Dead,
            // No descriptor is left, say: that says nothing of the holder.
            Err(_) => HolderLife::Unknown,
        }
    }

    /// Names the holder of each process of a sample: the process itself, or its nearest ancestor with a lease.
    pub fn attribute(&self, sample: &mut DeviceSample, ledger: &Ledger) {
        let holders = ledger.leases().iter().map(|lease| &lease.holder);
        let holders: BTreeSet<u32> = holders
            .filter(|holder| self.life(holder) == HolderLife::Alive)
            .map(|holder| holder.pid)
            .collect();
        for process in sample.processes.iter_mut().flatten() {
            process.holder_pid = nearest(process.pid, |pid| holders.contains(&pid));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_lives_and_one_with_its_pid_and_another_start_does_not() {
        let host = LeaseHost::read().unwrap();
        let holder = host.job_holder("test").unwrap();
        assert_eq!(host.life(&holder), HolderLife::Alive);
        let former = Holder {
            start: holder.start - 1,
            ..holder.clone()
        };
        assert_eq!(host.life(&former), HolderLife::Dead);
        let foreign = Holder {
            pid_namespace: Some(1),
            ..former
        };
        assert_eq!(host.life(&foreign), HolderLife::Unknown);
    }

    #[test]
    fn a_process_of_another_user_that_is_hidden_is_not_dead() {
        let host = LeaseHost::read().unwrap();
        let (own, hides_others) = (host.job_holder("test").unwrap(), true);
        assert!(!host.hides_others, "pid 1 is seen where tests run");
        let gone = Holder {
            pid: u32::MAX,
            ..own
        };
        let other = Holder {
            uid: gone.uid + 1,
            ..gone.clone()
        };
        assert_eq!(host.life(&other), HolderLife::Dead);
        let host = LeaseHost {
            hides_others,
            ..host
        };
        assert_eq!(host.life(&other), HolderLife::Unknown);
        assert_eq!(host.life(&gone), HolderLife::Dead);
    }

    #[test]
    fn a_process_that_ended_and_was_not_waited_for_is_dead() {
        let host = LeaseHost::read().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let facts = ProcessFacts::read(child.id()).unwrap();
        assert_eq!(facts.parent, std::process::id());
        let holder = Holder {
            pid: child.id(),
            start: facts.start,
            ..host.job_holder("test").unwrap()
        };
        assert_eq!(host.life(&holder), HolderLife::Alive);
        child.kill().unwrap();
        while host.life(&holder) == HolderLife::Alive {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(host.life(&holder), HolderLife::Dead);
    }
}
