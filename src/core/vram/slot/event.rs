//! Events of a slot, and the effects of its changes.
//!
//! Not the table that leads from one to the other, which `slot.rs` has.

use super::failure::{InstanceFailure, ProcessExit, StartFailure};
use super::state::{DrainReason, LoadKind};
use crate::Millis;
use crate::vram::report::SetupStatus;

/// Activity of a server while its probe failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerActivity {
    /// No request is in flight.
    Idle,
    /// Requests are in flight, the last byte of any of which came so long ago.
    Busy {
        /// Time since that byte.
        without_progress: Millis,
    },
}

/// Way to end a process that has no request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMethod {
    /// Puts the server to sleep, where the reason of the drain allows it.
    Sleep,
    /// Ends the process.
    Terminate,
}

/// Event of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEvent {
    /// The model gets this slot.
    Chosen,
    /// Leases were read back from the ledger, and the sample of the device is fresh.
    LeaseHeld,
    /// The ledger granted nothing.
    LeaseRefused,
    /// The process was started.
    Started,
    /// No process was started.
    NotStarted(StartFailure),
    /// The port listens, and the socket belongs to the instance.
    ListeningSeen,
    /// The probe was good and the warm-up is done.
    Ready,
    /// A process of an earlier gateway was taken over; its leases are held.
    Adopted,
    /// A probe of a ready server was good.
    ProbeSucceeded,
    /// A probe of a ready server failed.
    ProbeFailed(ServerActivity),
    /// The main process ended.
    Exited(ProcessExit),
    /// A device of the slot failed or disappeared.
    DeviceLost,
    /// The load took too long.
    ReadyTimeout,
    /// The load is not wanted any more.
    Abort,
    /// No new request is given.
    Drain(DrainReason),
    /// Another model does not need the memory any more.
    DrainCanceled,
    /// No request is in flight.
    InFlightZero(StopMethod),
    /// The server sleeps.
    Slept,
    /// The server did not fall asleep when asked to.
    SleepFailed,
    /// The sleeping model is to serve again.
    WakeChosen,
    /// The server is awake.
    Woke,
    /// The server did not wake when asked to.
    WakeFailed,
    /// The server did not end, or fall asleep, in time.
    StopTimeout,
    /// No process of the instance is left.
    ProcessesGone,
    /// The device shows the memory of the instance as free.
    MemoryReturned,
    /// The memory did not return in time.
    ReclaimTimeout,
    /// Processes were there long after they were killed.
    AliveAfterKill,
    /// The backoff is over, an operator asks for it, or the configuration has changed.
    Retry,
}

impl SlotEvent {
    /// Returns whether the host observes the event; others are the pool's own decisions.
    pub const fn is_observed(self) -> bool {
        !matches!(
            self,
            SlotEvent::Chosen
                | SlotEvent::Adopted
                | SlotEvent::ReadyTimeout
                | SlotEvent::Abort
                | SlotEvent::Drain(_)
                | SlotEvent::DrainCanceled
                | SlotEvent::WakeChosen
                | SlotEvent::StopTimeout
                | SlotEvent::ReclaimTimeout
                | SlotEvent::AliveAfterKill
                | SlotEvent::Retry
        )
    }
}

/// Consequence of a change, for the caller to bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotEffect {
    /// Seek leases; for a wake, what the sleeping process has not.
    Acquire(LoadKind),
    /// Start the process with its keeper.
    Start,
    /// Wake the server.
    Wake,
    /// Give permits.
    Open,
    /// Give no new permit.
    Close,
    /// Put the server to sleep.
    Sleep,
    /// Ask the processes to end.
    Stop,
    /// Kill the processes.
    Kill,
    /// Mark the leases as reclaiming, and watch the memory return.
    AwaitMemory,
    /// Release the leases, granted ones that are not read back included.
    Release,
    /// Reduce the leases to what the sleeping process uses.
    ShrinkLease,
    /// Keep the time and the memory of a load.
    RecordLoad {
        /// Way.
        kind: LoadKind,
        /// Time from the start of the process, or of the wake.
        took: Millis,
    },
    /// Count a failure.
    RecordFailure {
        /// Failure.
        failure: InstanceFailure,
        /// Time since the instance became ready, or zero.
        ready_for: Millis,
    },
    /// Note the end of a service without a failure.
    RecordService {
        /// Time since the instance became ready.
        ready_for: Millis,
    },
    /// Report the outcome of the load.
    ReportSetup(SetupStatus),
    /// Raise the alarm: processes cannot be ended.
    Alarm,
}
