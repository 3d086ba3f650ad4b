//! Process metrics of the operating system, read from `/proc` at each scrape.
//!
//! Keeps no state. Such metrics need `/proc`, and are absent without it.

use std::fs;

/// Ticks of `/proc/self/stat` a second: USER_HZ, which Linux fixes at 100 for user space.
const TICKS_PER_SEC: f64 = 100.0;

/// Values of one reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessLevels {
    /// User and system time used so far, seconds.
    pub cpu_seconds: f64,
    /// Memory in RAM, bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Limit on open file descriptors.
    pub max_fds: u64,
}

/// Reads them now; none where `/proc` is missing.
pub(super) fn read() -> Option<ProcessLevels> {
    Some(ProcessLevels {
        cpu_seconds: cpu_seconds(&fs::read_to_string("/proc/self/stat").ok()?)?,
        resident_bytes: rss_bytes(&fs::read_to_string("/proc/self/status").ok()?)?,
        // One of them is the directory being read.
        open_fds: (fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1),
        max_fds: max_fds(&fs::read_to_string("/proc/self/limits").ok()?)?,
    })
}

/// Memory of this process in RAM, bytes; none where `/proc` is missing.
pub fn resident_bytes() -> Option<u64> {
    rss_bytes(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Fields 14 and 15. The second field, the program's name, may hold spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut fields = after_name.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SEC)
}

fn rss_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The soft limit; `unlimited` is the largest number.
fn max_fds(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 500 0 0 0 150 50 0 0 20 0 4 0 100 1 1";
        assert_eq!(cpu_seconds(stat), Some(2.0));
    }

    #[test]
    fn memory_and_descriptor_limits_are_read_from_their_lines() {
        assert_eq!(
            rss_bytes("VmPeak:\t 9 kB\nVmRSS:\t  2048 kB\n"),
            Some(2048 * 1024)
        );
        let limits = "Max processes  1 2 processes\nMax open files            1024  4096  files\n";
        assert_eq!(max_fds(limits), Some(1024));
        assert_eq!(
            max_fds("Max open files  unlimited unlimited files"),
            Some(u64::MAX)
        );
        assert_eq!(max_fds(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_descriptors() {
        let levels = read().unwrap();
        assert!(levels.resident_bytes > 0 && levels.open_fds > 0 && levels.max_fds > 0);
    }
}
