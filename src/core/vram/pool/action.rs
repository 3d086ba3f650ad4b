//! Actions of the pool, for the host to perform in order, each with its reason.
//!
//! Not their results, which come back as events of slots.

use crate::vram::fit::DeviceShare;
use crate::vram::lease::ClaimId;
use crate::vram::load_time::ReadyEstimate;
use crate::vram::report::SetupStatus;
use crate::vram::schedule::SwapReason;
use crate::vram::slot::{
    DrainReason, ForbiddenTransition, InstanceFailure, LoadKind, SlotId, SlotState,
};
use crate::{Millis, ModelId};

/// Reason of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadReason {
    /// The model is pinned.
    Pin,
    /// An operator asked for it.
    Command,
    /// A slot was restarted.
    Restart,
    /// An outdated slot is restarted once this one is ready.
    Replacement,
    /// The model is loaded once at start.
    Preload,
    /// Fewer instances than `replicas.min` are there.
    Replicas,
    /// A broken model is tried again.
    BrokenRetry,
    /// Requests wait.
    Demand,
    /// Requests wait although the model serves.
    Growth,
}

impl LoadReason {
    /// Returns the name in `/gpu`, events and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            LoadReason::Pin => "pin",
            LoadReason::Command => "command",
            LoadReason::Restart => "restart",
            LoadReason::Replacement => "replacement",
            LoadReason::Preload => "preload",
            LoadReason::Replicas => "replicas",
            LoadReason::BrokenRetry => "broken_retry",
            LoadReason::Demand => "demand",
            LoadReason::Growth => "growth",
        }
    }

    /// Returns whether other models make room.
    pub const fn may_evict(self) -> bool {
        matches!(
            self,
            LoadReason::Pin | LoadReason::Command | LoadReason::Restart | LoadReason::Demand
        )
    }
}

/// Reason why requests for a model are refused at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The model failed too often without having been ready.
    Broken,
    /// The model would not fit on an empty host.
    DoesNotFit,
}

/// Outlook for requests that come now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyOutlook {
    /// A slot is ready.
    Usable,
    /// No load is under way: it takes so long once it has begun.
    AfterLoad(ReadyEstimate),
    /// A load is under way, or a backoff ends: moments, not spans.
    At(ReadyEstimate),
}

/// Record for events, logs and metrics.
#[derive(Clone, Debug, PartialEq)]
pub enum PoolReport {
    /// A slot changed its state.
    Transition {
        /// State before.
        from: SlotState,
        /// State after.
        to: SlotState,
    },
    /// Victims leave so that the slot can load.
    Swap {
        /// Slots that leave.
        victims: Vec<SlotId>,
        /// Debt of the slot's model, request-seconds.
        debt: f64,
        /// Cost of the eviction, request-seconds.
        cost: f64,
        /// Reason.
        reason: SwapReason,
    },
    /// The slot leaves so that another holder gets its memory.
    RoomForClaim(ClaimId),
    /// A load ended.
    Setup(SetupStatus),
    /// An instance failed.
    Failure(InstanceFailure),
    /// A load succeeded.
    Load {
        /// Way.
        kind: LoadKind,
        /// Time.
        took: Millis,
    },
    /// Processes cannot be ended: the device takes no new load.
    Alarm,
    /// An event changed nothing: it was late, or belongs to an earlier life.
    Ignored(ForbiddenTransition),
}

/// Action of the pool.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Lease the shares, all or none; those that a sleeping process has already are part of them.
    Acquire {
        /// Slot.
        slot: SlotId,
        /// Life of the slot.
        life: u64,
        /// Shares.
        shares: Vec<DeviceShare>,
        /// Urgency.
        priority: u8,
        /// Reason.
        reason: LoadReason,
    },
    /// Release all leases of the slot.
    Release(SlotId),
    /// Reduce the leases of the slot to these.
    Shrink {
        /// Slot.
        slot: SlotId,
        /// Shares that stay.
        shares: Vec<DeviceShare>,
    },
    /// Start a process.
    Start {
        /// Slot.
        slot: SlotId,
        /// Life of the slot.
        life: u64,
        /// Leased shares.
        shares: Vec<DeviceShare>,
    },
    /// Give permits.
    Open(SlotId),
    /// Give no new permit.
    Close {
        /// Slot.
        slot: SlotId,
        /// Reason; `None` for a failure.
        reason: Option<DrainReason>,
        /// Slot that gets the memory.
        challenger: Option<SlotId>,
    },
    /// Ask the processes to end.
    Stop(SlotId),
    /// Kill the processes.
    Kill(SlotId),
    /// Put the server to sleep.
    Sleep(SlotId),
    /// Wake the server.
    Wake(SlotId),
    /// Watch the memory of ended processes return.
    AwaitMemory(SlotId),
    /// Tell admission when the model can serve.
    SetReadyEstimate {
        /// Model.
        model: ModelId,
        /// Outlook.
        outlook: ReadyOutlook,
    },
    /// Refuse requests at once, and those that wait.
    Reject {
        /// Model.
        model: ModelId,
        /// Reason.
        reason: RejectReason,
    },
    /// Record what happened.
    Report {
        /// Slot.
        slot: SlotId,
        /// Life of the slot.
        life: u64,
        /// Record.
        report: PoolReport,
    },
}
