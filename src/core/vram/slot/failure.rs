//! Failures of an instance, and the ends of processes that they are known by.
//!
//! Not what follows from a failure: `backoff.rs` decides about the next start.

use crate::vram::report::SetupStatus;

/// End of the main process, as its last lines explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// Exit status; `None` when a signal ended the process.
    pub code: Option<i32>,
    /// The process wrote a known message about device memory.
    pub out_of_memory: bool,
    /// The process wrote that its port was taken.
    pub address_in_use: bool,
}

/// Reason why no process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFailure {
    /// A file of the model is not there.
    WeightsMissing,
    /// The command could not be run.
    CommandFailed,
}

/// Failure of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceFailure {
    /// The process ended by itself.
    Crash,
    /// The device had less memory than the process took.
    OutOfMemory,
    /// Every port that was tried was taken.
    AddressInUse,
    /// The load took longer than `ready_timeout_secs`.
    ReadyTimeout,
    /// The server did not answer its probes.
    Unresponsive,
    /// The device failed or disappeared.
    DeviceLost,
    /// A file of the model is not there.
    WeightsMissing,
    /// The command could not be run.
    CommandFailed,
}

impl InstanceFailure {
    /// Every failure.
    pub const ALL: [InstanceFailure; 8] = [
        InstanceFailure::Crash,
        InstanceFailure::OutOfMemory,
        InstanceFailure::AddressInUse,
        InstanceFailure::ReadyTimeout,
        InstanceFailure::Unresponsive,
        InstanceFailure::DeviceLost,
        InstanceFailure::WeightsMissing,
        InstanceFailure::CommandFailed,
    ];

    /// Returns the name in `/gpu`, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            InstanceFailure::Crash => "crash",
            InstanceFailure::OutOfMemory => "out_of_memory",
            InstanceFailure::AddressInUse => "address_in_use",
            InstanceFailure::ReadyTimeout => "ready_timeout",
            InstanceFailure::Unresponsive => "unresponsive",
            InstanceFailure::DeviceLost => "device_lost",
            InstanceFailure::WeightsMissing => "weights_missing",
            InstanceFailure::CommandFailed => "command_failed",
        }
    }

    /// Returns the outcome of a load that failed so.
    pub const fn setup_status(self) -> SetupStatus {
        match self {
            InstanceFailure::OutOfMemory => SetupStatus::OutOfMemory,
            InstanceFailure::ReadyTimeout => SetupStatus::TimedOut,
            _ => SetupStatus::Failed,
        }
    }
}

impl From<ProcessExit> for InstanceFailure {
    fn from(exit: ProcessExit) -> InstanceFailure {
        match exit.out_of_memory {
            true => InstanceFailure::OutOfMemory,
            false => InstanceFailure::Crash,
        }
    }
}

impl From<StartFailure> for InstanceFailure {
    fn from(failure: StartFailure) -> InstanceFailure {
        match failure {
            StartFailure::WeightsMissing => InstanceFailure::WeightsMissing,
            StartFailure::CommandFailed => InstanceFailure::CommandFailed,
        }
    }
}
