//! Memory of devices: how much a model needs, what is free, where a need fits, who holds a lease, and which model is loaded
//! next. Decisions without a card.
//!
//! Neither a driver nor a file: samples, the host's time and the state of holders are arguments, and the ledger is a
//! value that a store keeps. Sizes are MiB. [`Ledger`] is the place to start: on each device, leases, reserve and
//! memory of others never exceed the total at a grant.
//!
//! ```text
//! host_time  ←  device  ←  fit
//!               device  ←  lease  ←  account  ←  ledger  ←  job_lease
//!                          lease  ←  peak
//! fit  ←  contender  ←  evict  ←  schedule
//! report  ←  slot  ←  backoff, load_time, rest
//! device, estimate  ←  rest
//! fit, backoff, load_time, schedule  ←  pool
//! managed, fit  ←  host_plan
//! demand, pool  ←  demand_look
//! device, pool, demand_look  ←  replay
//! client_demand, estimate, reclaim stand alone
//! ```

mod account;
mod backoff;
mod client_demand;
mod contender;
mod demand;
mod demand_look;
mod device;
pub mod estimate;
mod evict;
mod fit;
mod host_plan;
mod host_time;
mod job_lease;
mod lease;
mod ledger;
mod load_time;
mod managed;
mod peak;
mod pool;
mod reclaim;
pub mod replay;
mod report;
mod rest;
mod schedule;
mod slot;

pub use account::{FreeMemory, MemoryAccount, UnknownCause, exceeds_lease};
pub use backoff::{BackoffState, LoadBackoff, STARTS_MAX, STARTS_SPAN};
pub use client_demand::{ClientCounts, ClientDemand, ClientUse};
pub use contender::{ColdModel, Protection, Resident};
pub use demand::{Demand, DemandSettings, DemandWeight, WaiterDemand, debt_of_wait};
pub use demand_look::{ColdRefusal, DemandLook, DemandMemory, KeptAlive, SeenRequest};
pub use device::{DeviceId, DeviceInfo, DeviceKind, DeviceSample, DeviceView, ProcessUse};
pub use evict::{SwapPolicy, WaitReason};
pub use fit::{DeviceRoom, DeviceShare, Placement, PlacementRequest, Split, place};
pub use host_plan::{EXACT_MODELS_MAX, HostPlan, PlannedModel, PlannedPlace, plan_host};
pub use host_time::HostTime;
pub use job_lease::{JobRequest, JobStep};
pub use lease::{
    Claim, ClaimId, GroupId, Holder, HolderKind, HolderLife, Lease, LeaseGroup, LeaseId, LeaseState,
};
pub use ledger::{AcquireError, ClaimedNeed, LEDGER_VERSION, Ledger, LedgerError, StaleLease};
pub use load_time::{FileCache, LoadTimes, ReadyEstimate, StoredModel};
pub use managed::ManagedModel;
pub use peak::{PeakMeter, PeakOwner};
pub use pool::{
    Action, ChallengerName, ColdReason, LoadParallel, LoadReason, ModelDemand, ModelDetails,
    ModelPool, PoolClaim, PoolCommand, PoolConfig, PoolDevice, PoolModel, PoolMoment, PoolReport,
    ReadyOutlook, RejectReason, SlotDetails, WaitingChallenger,
};
pub use reclaim::ProcessTrail;
pub use report::{
    InstanceIdentity, InstanceMetadata, InstanceMeter, InstanceReport, InstanceState,
    RuntimeMetadata, SetupReport, SetupStatus, StateTimes, log_tail,
};
pub use rest::{SleepMemory, asleep_lease};
pub use schedule::{SwapDecision, SwapReason, SwapRule, SwapStep};
pub use slot::{
    DrainReason, FailedPhase, ForbiddenTransition, InstanceFailure, KILL_MAX, LoadKind, LoadPhase,
    ProcessExit, RECLAIM_MAX, ServerActivity, Slot, SlotEffect, SlotEvent, SlotId, SlotLimits,
    SlotState, StartFailure, StopMethod, StopPhase,
};
