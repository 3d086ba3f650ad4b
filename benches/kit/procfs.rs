//! Figures of a process from /proc: CPU time, memory, and the machine's own description.
//! Not a profiler: reads totals, before and after.
//!
//! CPU is user + system time of all threads in nanoseconds, memory is KiB. Linux only. Called by the
//! load generator around its window and by the drivers for memory figures.

use std::collections::BTreeMap;
use std::fs;

use super::Fallible;

/// CPU time of every living thread of `pid`, from the scheduler's own nanosecond counters.
pub fn cpu_ns(pid: u32) -> Fallible<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading; its time is then lost, not an error.
        if let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) {
            let on_cpu = text.split_ascii_whitespace().next().unwrap_or("0");
            total += on_cpu.parse::<u64>()?;
        }
    }
    Ok(total)
}

/// Processor time of a process so far, threads that have ended included, in nanoseconds. Counted in ticks of 10 ms
/// (`USER_HZ`, proc(5)).
pub fn process_cpu_ns(pid: u32) -> Fallible<u64> {
    const TICK_NS: u64 = 10_000_000;
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before it may hold spaces.
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let times = after_name.split_ascii_whitespace().skip(11).take(2);
    let ticks = times.map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(ticks * TICK_NS)
}

/// Voluntary context switches so far by name of the thread, living threads only: how often each slept and woke.
pub fn wake_ups(pid: u32) -> Fallible<BTreeMap<String, u64>> {
    let mut by_name = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let Ok(status) = fs::read_to_string(task.join("status")) else {
            continue;
        };
        let name = field(&status, "Name:").unwrap_or("unnamed").to_owned();
        let switches = field(&status, "voluntary_ctxt_switches:").unwrap_or("0");
        *by_name.entry(name).or_default() += switches.parse::<u64>()?;
    }
    Ok(by_name)
}

/// Resident memory now.
pub fn rss_kib(pid: u32) -> Fallible<u64> {
    status_kib(pid, "VmRSS:")
}

/// The largest resident memory since the process began.
pub fn peak_rss_kib(pid: u32) -> Fallible<u64> {
    status_kib(pid, "VmHWM:")
}

fn status_kib(pid: u32, name: &str) -> Fallible<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = field(&status, name).ok_or("the process has no such memory figure")?;
    let number = value.split_ascii_whitespace().next().unwrap_or("0");
    Ok(number.parse()?)
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim())
}

/// Load average of a minute, so that a noisy machine shows in the report.
pub fn load_average() -> f64 {
    fs::read_to_string("/proc/loadavg")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().next()?.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Description of the machine on which the figures are taken, in a line.
pub fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split(':').nth(1)?.trim().to_owned())
        })
        .unwrap_or_else(|| "unknown processor".into());
    format!(
        "{} cores, {model}, Linux {}, load average {:.2}",
        cores(),
        kernel.trim(),
        load_average()
    )
}

/// Lets this thread, and those it starts later, wake up within a microsecond of what it asked for;
/// the kernel's default is 50. Without it an open loop's schedule is blurred. Failure changes only precision.
pub fn sharpen_timers() {
    let _ = fs::write("/proc/self/timerslack_ns", "1000");
}
