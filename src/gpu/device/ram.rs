//! Memory of the host as a device, for servers that compute on the CPU.
//!
//! Not an account of what is free for a lease. Total is the memory of the machine within the limits of the control
//! groups; processes are counted by PSS, so that pages which several share count once. Files that they map are in use too,
//! though the kernel could drop them.
//! <https://docs.kernel.org/filesystems/proc.html>, <https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files>

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use infergate_core::vram::{DeviceId, DeviceInfo, DeviceKind, DeviceSample, HostTime, ProcessUse};

use super::source::{DeviceError, DeviceSource};

/// Identity of the device.
pub const RAM_DEVICE: &str = "ram";
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";
/// KiB of a MiB.
const KIB: u64 = 1024;
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

/// Memory of the host, and the processes that are counted there.
#[derive(Debug)]
pub struct RamDevice {
    pids: Vec<u32>,
    proc: PathBuf,
    cgroups: PathBuf,
}

/// Memory of the host, MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HostMemory {
    total_mib: u64,
    free_mib: u64,
}

impl RamDevice {
    /// Returns the device with the processes whose memory a sample counts, one by one.
    pub fn new(pids: Vec<u32>) -> RamDevice {
        RamDevice {
            pids,
            proc: "/proc".into(),
            cgroups: CGROUP_MOUNT.into(),
        }
    }

    /// Memory of the machine, within the limits of the control group of this process and those above it.
    fn memory(&self) -> Result<HostMemory, DeviceError> {
        let path = self.proc.join("meminfo");
        let text = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let figure = |name: &str| {
            let kib = kib_of(&text, name);
            kib.ok_or_else(|| failed(&path, &format!("no figure {name}")))
        };
        let mut memory = HostMemory {
            total_mib: figure("MemTotal:")? / KIB,
            free_mib: figure("MemAvailable:")? / KIB,
        };
        for group in self.groups()? {
            if let Some((limit_mib, used_mib)) = limit_and_use(&group)? {
                memory.total_mib = memory.total_mib.min(limit_mib);
                memory.free_mib = memory.free_mib.min(limit_mib.saturating_sub(used_mib));
            }
        }
        Ok(memory)
    }

    /// Folders of the control group (version 2) of this process and of those above it.
    fn groups(&self) -> Result<Vec<PathBuf>, DeviceError> {
        let path = self.proc.join("self/cgroup");
        let Some(text) = read(&path)? else {
            return Ok(Vec::new());
        };
        let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
        let Some(own) = own else {
            return Ok(Vec::new());
        };
        let folder = self.cgroups.join(own);
        let folders = folder.ancestors();
        let within = folders.take_while(|folder| folder.starts_with(&self.cgroups));
        Ok(within.map(Path::to_owned).collect())
    }

    /// Memory of a process, and the part of it that is mapped files, MiB; none where it is gone.
    fn use_of(&self, pid: u32) -> Result<Option<(ProcessUse, u64)>, DeviceError> {
        let path = self.proc.join(pid.to_string()).join("smaps_rollup");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // Not to be looked at: its figures are unknown.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => String::new(),
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(failed(&path, &error)),
        };
        let mib = |name: &str| kib_of(&text, name).map(|kib| kib.div_ceil(KIB));
        let own = ProcessUse {
            pid,
            holder_pid: None,
            used_mib: mib("Pss:"),
        };
        Ok(Some((own, mib("Pss_File:").unwrap_or(0))))
    }
}

impl DeviceSource for RamDevice {
    fn list(&self) -> Result<Vec<DeviceInfo>, DeviceError> {
        Ok(vec![DeviceInfo {
            id: RAM_DEVICE.into(),
            index: 0,
            name: "memory of the host".into(),
            total_mib: self.memory()?.total_mib,
            kind: DeviceKind::Ram,
        }])
    }

    fn sample(&self, device: &DeviceId, now: HostTime) -> Result<DeviceSample, DeviceError> {
        if device.as_str() != RAM_DEVICE {
            return Err(failed(Path::new(device.as_str()), &"no such device"));
        }
        let memory = self.memory()?;
        let (mut processes, mut mapped_mib) = (Vec::new(), 0);
        for pid in &self.pids {
            if let Some((own, mapped)) = self.use_of(*pid)? {
                processes.push(own);
                mapped_mib += mapped;
            }
        }
        let free_mib = memory.free_mib.saturating_sub(mapped_mib);
        Ok(DeviceSample {
            used_mib: Some(memory.total_mib.saturating_sub(free_mib)),
            free_mib: Some(free_mib),
            processes: Some(processes),
            utilization_percent: None,
            taken_at: now,
        })
    }
}

/// Returns the memory of the host that is available within the limits of its control groups, MiB; none where it is not
/// known.
pub fn host_free_mib() -> Option<u64> {
    let memory = RamDevice::new(Vec::new()).memory();
    memory.ok().map(|memory| memory.free_mib)
}

/// Limit and use of a control group, MiB; none without a limit. Files that can be dropped from its cache count as free.
fn limit_and_use(group: &Path) -> Result<Option<(u64, u64)>, DeviceError> {
    let Some(limit) = bytes_in(&group.join("memory.max"))? else {
        return Ok(None);
    };
    let used = bytes_in(&group.join("memory.current"))?.unwrap_or(0);
    let stat = read(&group.join("memory.stat"))?.unwrap_or_default();
    let inactive = stat.lines().find_map(|line| {
        let value = line.strip_prefix("inactive_file ")?;
        value.trim().parse::<u64>().ok()
    });
    let used = used.saturating_sub(inactive.unwrap_or(0));
    Ok(Some((limit / MIB, used.div_ceil(MIB))))
}

/// Number in a file; none without the file, or with `max` in it.
fn bytes_in(path: &Path) -> Result<Option<u64>, DeviceError> {
    Ok(read(path)?.and_then(|text| text.trim().parse().ok()))
}

/// Text of a file; none without it.
fn read(path: &Path) -> Result<Option<String>, DeviceError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(failed(path, &error)),
    }
}

/// A process may end between two looks: ESRCH comes from a file that was opened before.
fn is_gone(error: &io::Error) -> bool {
    const ESRCH: i32 = 3;
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(ESRCH)
}

/// Figure of a line such as `MemTotal:       32795904 kB`.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

fn failed(what: &Path, why: &dyn std::fmt::Display) -> DeviceError {
    DeviceError {
        what: what.display().to_string(),
        why: why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       16384000 kB\nMemFree:  100 kB\nMemAvailable:    8192000 kB\n";

    /// A host with 16,000 MiB, and this process in the group `a/b`.
    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, RamDevice) {
        let dir = tempfile::tempdir().unwrap();
        let default = [("proc/meminfo", MEMINFO), ("proc/self/cgroup", "0::/a/b\n")];
        for (path, text) in default.iter().chain(files) {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let device = RamDevice {
            pids: Vec::new(),
            proc: dir.path().join("proc"),
            cgroups: dir.path().join("cgroup"),
        };
        (dir, device)
    }

    fn memory(device: &RamDevice) -> (u64, u64) {
        let memory = device.memory().unwrap();
        (memory.total_mib, memory.free_mib)
    }

    #[test]
    fn this_host_has_memory_and_this_process_uses_some_of_it() {
        let device = RamDevice::new(vec![std::process::id(), u32::MAX]);
        let [info] = &device.list().unwrap()[..] else {
            panic!("one device")
        };
        assert_eq!(info.kind, DeviceKind::Ram);
        assert!(info.total_mib > 100, "{info:?}");
        let sample = device.sample(&RAM_DEVICE.into(), HostTime(5)).unwrap();
        assert!(sample.free_mib.unwrap() <= info.total_mib);
        let processes = sample.processes.unwrap();
        let [own] = &processes[..] else {
            panic!("a process that is gone is no process: {processes:?}")
        };
        assert_eq!(own.pid, std::process::id());
        assert!(own.used_mib.unwrap() >= 1);
        assert!(device.sample(&"sim0".into(), HostTime(5)).is_err());
    }

    #[test]
    fn memory_that_is_taken_is_seen_in_the_process_that_has_it() {
        const TAKEN_MIB: u64 = 64;
        let used = || {
            let device = RamDevice::new(vec![std::process::id()]);
            let sample = device.sample(&RAM_DEVICE.into(), HostTime(5)).unwrap();
            sample.processes.unwrap()[0].used_mib.unwrap()
        };
        let before = used();
        let taken = vec![1_u8; usize::try_from(TAKEN_MIB * MIB).unwrap()];
        let after = used();
        assert!(
            after >= before + TAKEN_MIB / 2,
            "{before} {after} {}",
            taken[7]
        );
    }

    #[test]
    fn files_that_a_counted_process_maps_are_in_use() {
        let rollup =
            "00400000-7ffd r--p 0 00:00 0 [rollup]\nPss: 3072000 kB\nPss_File: 2048000 kB\n";
        let (_dir, mut device) = host(&[("proc/7/smaps_rollup", rollup)]);
        device.pids = vec![7, 8];
        let sample = device.sample(&RAM_DEVICE.into(), HostTime(5)).unwrap();
        assert_eq!(
            (sample.used_mib, sample.free_mib),
            (Some(10_000), Some(6000))
        );
        assert_eq!(sample.processes.unwrap()[0].used_mib, Some(3000));
    }

    #[test]
    fn the_machine_is_the_limit_without_groups() {
        let (_dir, device) = host(&[]);
        assert_eq!(memory(&device), (16_000, 8000));
        let (_dir, device) = host(&[("cgroup/a/b/memory.max", "max\n")]);
        assert_eq!(memory(&device), (16_000, 8000));
    }

    #[test]
    fn the_tightest_group_on_the_way_up_is_the_limit() {
        let mib = |mib: u64| (mib * MIB).to_string();
        let (_dir, device) = host(&[
            ("cgroup/a/b/memory.max", &mib(12_000)),
            ("cgroup/a/b/memory.current", &mib(1000)),
            ("cgroup/a/memory.max", &mib(6000)),
            ("cgroup/a/memory.current", &mib(5000)),
            (
                "cgroup/a/memory.stat",
                &format!("anon 1\ninactive_file {}\n", 2000 * MIB),
            ),
        ]);
        assert_eq!(memory(&device), (6000, 3000));
    }

    #[test]
    fn a_host_that_cannot_be_read_is_named() {
        let (dir, device) = host(&[]);
        std::fs::write(dir.path().join("proc/meminfo"), "nothing").unwrap();
        let error = device.list().unwrap_err().to_string();
        assert!(error.contains("MemTotal"), "{error}");
    }
}
