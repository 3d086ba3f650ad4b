//! `infergate lease`: runs a command with a lease on the memory of devices.
//!
//! Decides nothing: the ledger does. The process becomes the command, so that signals and the exit status are the
//! command's own and the lease ends with it, however it ends.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use infergate_core::Millis;

use super::gpu_leases::{GpuLocation, problem_of};
use super::output::problem;
use crate::gpu::{GrantedJob, HostLedger, JobCommand, JobError, acquire};

/// Status of sysexits(3) for a service that is not there: no device, no ledger, or a need that no device holds.
const UNAVAILABLE: u8 = 69;
/// Status of sysexits(3) for a failure that another try may not meet: no room in time.
const NO_ROOM: u8 = 75;
/// Statuses of a shell for commands that cannot be run, and that are not there.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// Most urgent and least urgent priority.
const PRIORITIES: std::ops::RangeInclusive<i64> = 0..=9;

/// Help below the options of `infergate lease`.
pub const HELP: &str = "\
The command gets CUDA_VISIBLE_DEVICES with the identities of its devices, CUDA_DEVICE_ORDER=PCI_BUS_ID and
INFERGATE_LEASE. It runs in this process: signals and the exit status are its own, and the lease ends with it.

Exit codes: that of the command; 69 no device, no ledger or a need that no device could hold; 75 no room within
--wait; 126 the command cannot be run; 127 it is not there.
Examples:
  infergate lease --vram 20GiB -- python3 train.py
  infergate lease --vram 40GiB --gpus 2 --wait 8h --priority 9 -- torchrun --nproc-per-node 2 train.py
  infergate lease --vram 2GiB --wait 0s -- ./convert || echo later
  infergate lease --vram 8GiB --cards ./cards -- env      simulated cards, without a GPU";

/// Arguments of `infergate lease`.
#[derive(Args)]
pub struct LeaseArgs {
    /// Memory of each device, as 20GiB or 512MiB
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    vram: u64,
    /// Devices, each with that much memory
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    gpus: u32,
    /// Name in lists [default: the command]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Urgency among those that wait, 0 to 9: the smaller, the more urgent
    #[arg(long, value_name = "NUMBER", default_value_t = 7, value_parser = clap::value_parser!(u8).range(PRIORITIES))]
    priority: u8,
    /// Longest wait for room, as 30s, 10m or 8h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time_span)]
    wait: Millis,
    /// Wait without a claim: take only what is free by itself, behind all that claim
    #[arg(long)]
    min_free_only: bool,
    #[command(flatten)]
    location: GpuLocation,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

/// Waits for the lease, then becomes the command. Returns only when that fails.
pub fn run(args: &LeaseArgs) -> ExitCode {
    let [program, arguments @ ..] = &*args.command else {
        return ExitCode::from(NOT_FOUND);
    };
    let job = JobCommand {
        name: args.name.clone().unwrap_or_else(|| program.clone()),
        mib: args.vram,
        devices: args.gpus,
        priority: args.priority,
        wait: args.wait,
        claims: !args.min_free_only,
    };
    let acquired = args.location.source().and_then(|source| {
        let store = args.location.ledger()?;
        let report_wait = || problem("infergate: no room yet; waiting");
        let granted = acquire(&job, &*source, &store, report_wait)?;
        Ok((granted, store))
    });
    match acquired {
        Ok((granted, store)) => become_command(program, arguments, &granted, &store),
        Err(error) => {
            problem_of(&error);
            ExitCode::from(match error {
                JobError::TimedOut => NO_ROOM,
                _ => UNAVAILABLE,
            })
        }
    }
}

/// Replaces this process. Comes back only with the lease released.
fn become_command(
    program: &str,
    arguments: &[String],
    granted: &GrantedJob,
    store: &HostLedger,
) -> ExitCode {
    let devices: Vec<&str> = granted.devices.iter().map(|id| id.as_str()).collect();
    let error = Command::new(program)
        .args(arguments)
        .env("CUDA_VISIBLE_DEVICES", devices.join(","))
        // NVML and CUDA count differently unless told: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .env("INFERGATE_LEASE", granted.group.id.to_string())
        .exec();
    problem(&format!("error: {program}: {error}"));
    // What cannot be released ends with this process.
    let _ = store.change(|ledger, _| ledger.release(&granted.group));
    ExitCode::from(match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    })
}

/// Reads a size, rounded up to whole MiB.
fn mebibytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, f64); 3] = [("MiB", 1.0), ("GiB", 1024.0), ("TiB", 1024.0 * 1024.0)];
    /// More than any device has: 1 PiB.
    const MIB_MAX: f64 = 1024.0 * 1024.0 * 1024.0;
    for (unit, mib) in UNITS {
        let Some(Ok(number)) = text.strip_suffix(unit).map(str::parse::<f64>) else {
            continue;
        };
        let size = (number * mib).ceil();
        if (1.0..=MIB_MAX).contains(&size) {
            return Ok(size as u64);
        }
    }
    Err("must be a number with MiB, GiB or TiB, such as 20GiB".to_owned())
}

/// Reads a span of time.
fn time_span(text: &str) -> Result<Millis, String> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
    /// Longer than a job waits: a year.
    const SPAN_MAX: u64 = 365 * 24 * 3_600_000;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = UNITS
        .iter()
        .find(|(unit, _)| *unit == &text[digits.len()..]);
    let span = unit.and_then(|(_, millis)| digits.parse::<u64>().ok()?.checked_mul(*millis));
    match span {
        Some(millis) if millis <= SPAN_MAX => Ok(Millis(millis)),
        _ => Err("must be a whole number with ms, s, m or h, such as 10m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_rounded_up() {
        for (text, mib) in [
            ("20GiB", 20_480),
            ("1.5GiB", 1536),
            ("0.1MiB", 1),
            ("1TiB", 1 << 20),
        ] {
            assert_eq!(mebibytes(text), Ok(mib), "{text}");
        }
        for text in [
            "20", "20GB", "GiB", "-1GiB", "0MiB", "nanGiB", "1e99GiB", "",
        ] {
            assert!(mebibytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_have_a_unit() {
        for (text, millis) in [
            ("0s", 0),
            ("10m", 600_000),
            ("8h", 28_800_000),
            ("250ms", 250),
        ] {
            assert_eq!(time_span(text), Ok(Millis(millis)), "{text}");
        }
        for text in ["10", "m", "1.5h", "-1s", "9999999h", ""] {
            assert!(time_span(text).is_err(), "{text}");
        }
    }
}
