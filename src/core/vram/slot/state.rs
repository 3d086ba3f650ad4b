//! States of a slot with their parts, and the reasons of a drain.
//!
//! Not the changes between them, which `slot.rs` has.

use std::fmt;

use crate::ModelId;

/// Place for one process of a model. Written `{model}#{number}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// Model.
    pub model: ModelId,
    /// Place among the slots of the model, from 0.
    pub number: u16,
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.model, self.number)
    }
}

/// Way to become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadKind {
    /// A process is started.
    Start,
    /// A sleeping process is woken.
    Wake,
}

impl LoadKind {
    /// Returns the name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            LoadKind::Start => "load",
            LoadKind::Wake => "wake",
        }
    }
}

/// Part of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// The process is about to be started.
    Spawning,
    /// The process has started, and its port does not listen yet.
    Starting,
    /// The port listens, and the server is not ready yet.
    Loading,
    /// A sleeping server is waking.
    Waking,
    /// The port was taken: processes end before another port is tried.
    Restarting,
}

/// Part of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopPhase {
    /// The server falls asleep.
    Sleeping,
    /// Processes have been asked to end.
    Terminating,
    /// Processes have been killed.
    Killing,
}

/// Part of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedPhase {
    /// Processes have been killed.
    Killing,
    /// Processes are gone, and their memory is awaited.
    Reclaiming,
    /// Memory has been released, and the backoff is awaited.
    Backoff,
}

/// Reason of a drain. Later ones are stronger: a drain keeps the strongest reason that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainReason {
    /// Another model gets the memory.
    Victim,
    /// No request has come for the keep-alive time.
    KeepAliveOver,
    /// An operator unloads the model.
    Operator,
    /// The configuration of the model has changed, or the model is removed.
    Configuration,
    /// The node drains.
    NodeDrain,
}

impl DrainReason {
    /// Every reason, weakest first.
    pub const ALL: [DrainReason; 5] = [
        DrainReason::Victim,
        DrainReason::KeepAliveOver,
        DrainReason::Operator,
        DrainReason::Configuration,
        DrainReason::NodeDrain,
    ];

    /// Returns the name in `/gpu`, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            DrainReason::Victim => "victim",
            DrainReason::KeepAliveOver => "keep_alive_over",
            DrainReason::Operator => "operator",
            DrainReason::Configuration => "configuration",
            DrainReason::NodeDrain => "node_drain",
        }
    }

    /// Returns whether the drain ends without a stop once another model does not need the memory any more.
    pub const fn can_be_canceled(self) -> bool {
        matches!(self, DrainReason::Victim)
    }

    /// Returns whether the process may sleep instead of ending.
    pub const fn may_sleep(self) -> bool {
        matches!(self, DrainReason::Victim | DrainReason::KeepAliveOver)
    }
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// No lease, no process.
    Cold,
    /// Leases are sought.
    Acquiring(LoadKind),
    /// The process becomes ready.
    Loading(LoadPhase),
    /// Requests are served.
    Ready,
    /// Requests in flight finish, new ones are not given.
    Draining(DrainReason),
    /// The process sleeps with little device memory.
    Asleep,
    /// Processes end, or fall asleep.
    Stopping(StopPhase),
    /// Processes are gone, and their memory is awaited.
    Reclaiming,
    /// Processes do not end, not even when killed. The device takes no new load.
    Stuck,
    /// The process failed.
    Failed(FailedPhase),
}

impl SlotState {
    /// Returns the name in `/gpu`, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            SlotState::Cold => "cold",
            SlotState::Acquiring(_) => "acquiring",
            SlotState::Loading(_) => "loading",
            SlotState::Ready => "ready",
            SlotState::Draining(_) => "draining",
            SlotState::Asleep => "asleep",
            SlotState::Stopping(_) => "stopping",
            SlotState::Reclaiming => "reclaiming",
            SlotState::Stuck => "stuck",
            SlotState::Failed(_) => "failed",
        }
    }

    /// Returns whether leases belong to the state: from the moment they are held until memory has returned.
    pub const fn holds_lease(self) -> bool {
        !matches!(
            self,
            SlotState::Cold
                | SlotState::Acquiring(LoadKind::Start)
                | SlotState::Failed(FailedPhase::Backoff)
        )
    }

    /// Returns whether a process may be there.
    pub const fn has_process(self) -> bool {
        self.holds_lease()
            && !matches!(
                self,
                SlotState::Reclaiming | SlotState::Failed(FailedPhase::Reclaiming)
            )
    }

    /// Returns whether the slot is on its way to serve requests.
    pub const fn is_becoming_ready(self) -> bool {
        matches!(self, SlotState::Acquiring(_) | SlotState::Loading(_))
    }
}
