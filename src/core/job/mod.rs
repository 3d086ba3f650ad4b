//! Durable jobs: states, queues, deadlines, attempts, leases. The meaning of the queue, without a store.
//!
//! Neither a clock nor a disk: verbs take the store's time, and changes are values that a store writes. A job that
//! was accepted reaches one end. [`JobTable`] is the place to start.
//!
//! ```text
//! id, store_time, states  ←  deadline, retry, schedule, estimator  ←  record  ←  table
//! turns, lease, webhook, receivers, receiver_url, shard, group stand alone
//! ```

pub mod cancel_after;
mod deadline;
mod estimator;
pub mod forbidden_address;
pub mod group;
mod id;
mod lease;
pub mod receiver_url;
pub mod receivers;
mod record;
mod retry;
mod schedule;
mod shard;
mod states;
mod store_time;
mod table;
mod turns;
pub mod webhook;

pub use deadline::{DEADLINE_MIN, JobLimits, NextEnd, own_deadline};
pub use estimator::HoldEstimator;
pub use id::{DeployableKey, DeployableKind, JobId, JobIdError, WorkerId};
pub use lease::{LeaseLook, LeaseSweeper, WorkerLeases};
pub use record::{CancelRequest, JobChange, JobDefinition, JobOutcome, JobProgress, LiveJob};
pub use retry::{AttemptCounts, ReleaseCause, ReleaseDecision, UNCOUNTED_MAX};
pub use schedule::{AFFINITY_LAG, AFFINITY_STREAK_MAX, FlowCost, JobClass, QueuePlace, Schedule};
pub use states::{
    CanceledBy, EndReason, JobKind, JobOwner, JobPosition, JobState, WriteResult, judge_write,
};
pub use store_time::StoreTime;
pub use table::{
    CancelResult, DeployableState, FlowCounts, HeartbeatReply, HeldJobs, JobTable, NewJob,
    QueueLimits, Release, RunEnd, SubmitResult, TakeRequest, TakenJob,
};
pub use turns::{ExpectedHold, QueueTurns};
