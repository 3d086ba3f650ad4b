//! Record of a job in the queue: what is fixed at its submit, and what changes until its end.
//!
//! Neither its input nor its output: those are the store's.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::deadline::JobLimits;
use super::id::{DeployableKey, JobId};
use super::retry::AttemptCounts;
use super::schedule::{JobClass, QueuePlace};
use super::states::{CanceledBy, EndReason, JobKind, JobOwner, JobPosition, JobState};
use super::store_time::StoreTime;
use crate::model::FairBy;
use crate::{AccountId, Millis, ModelId};

/// Fixed part of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDefinition {
    /// Its id.
    pub id: JobId,
    /// Its kind.
    pub kind: JobKind,
    /// Queue that it is in.
    pub deployable: DeployableKey,
    /// Account that pays.
    pub account: AccountId,
    /// Model as configured.
    pub model: ModelId,
    /// Flow within its queue.
    pub flow: Arc<str>,
    /// Class of its first run.
    pub class: JobClass,
    /// The account's share relative to others.
    pub weight: u32,
    /// Measure of fairness.
    pub fair_by: FairBy,
    /// Moment of its submit.
    pub created: StoreTime,
    /// Limits of its time.
    pub limits: JobLimits,
    /// Moment until which it must have been started.
    pub start_until: StoreTime,
    /// Attempts that may be lost.
    pub attempts_max: u32,
    /// Milliseconds that a canceled run has to end by itself.
    pub cancel_grace_ms: u64,
    /// Bytes that it counts in the store, input included.
    pub bytes: u64,
    /// A notification of its end is to be delivered.
    pub has_webhook: bool,
}

impl JobDefinition {
    /// Returns the moment at which the store ends the job by time. A running one is its worker's to end, which knows
    /// what it made, and has the grace of a cancel for it.
    pub(super) fn swept_at(&self, progress: &JobProgress) -> StoreTime {
        let end = self.limits.next_end(progress.timed_from()).at;
        match progress.owner {
            Some(_) => end + Millis(self.cancel_grace_ms),
            None => end,
        }
    }
}

/// Request to cancel a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Its origin.
    pub by: CanceledBy,
    /// Moment of the request.
    pub at: StoreTime,
}

/// Changing part of a job, as a store keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Number of takes so far.
    pub epoch: u32,
    /// Attempts so far.
    pub attempts: AttemptCounts,
    /// Moment of the first take.
    pub started: Option<StoreTime>,
    /// Worker that runs it; none while it is queued.
    pub owner: Option<JobOwner>,
    /// Moment of the latest take.
    pub taken: Option<StoreTime>,
    /// Moment before which it is not taken again, after a release.
    pub due: Option<StoreTime>,
    /// Request to cancel it, while it runs.
    pub cancel: Option<CancelRequest>,
    /// Time since the first take that it had to wait for its account's quota or pace, milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rested_ms: u64,
}

fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

impl JobProgress {
    /// Returns the moment from which the timeout of the run counts: the first take, and later by what the job had to
    /// wait for its account.
    pub fn timed_from(&self) -> Option<StoreTime> {
        self.started.map(|started| started + Millis(self.rested_ms))
    }

    /// Returns the state of a job that has not ended.
    pub fn state(&self) -> JobState {
        match self.owner {
            Some(_) => JobState::Running,
            None => JobState::Queued,
        }
    }
}

/// Job that has not ended.
#[derive(Clone, Debug)]
pub struct LiveJob {
    /// Fixed part.
    pub definition: Arc<JobDefinition>,
    /// Changing part.
    pub progress: JobProgress,
    /// Place in the schedule; none while it runs or is not due.
    pub(super) place: Option<QueuePlace>,
    /// Cost that its flow was charged at the take, and the class it was charged in.
    pub(super) charged: Option<(JobClass, u64)>,
}

/// End of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOutcome {
    /// Fixed part of the job.
    pub definition: Arc<JobDefinition>,
    /// Changing part as it was at the end.
    pub progress: JobProgress,
    /// State of the end.
    pub state: JobState,
    /// Reason; none of a success.
    pub reason: Option<EndReason>,
    /// Moment of the end.
    pub ended: StoreTime,
    /// A worker wrote the end, and has its result. Otherwise the table made it, and there is none.
    pub by_worker: bool,
}

impl JobOutcome {
    /// Returns the position against which a later write is judged: only the worker that wrote the end repeats it.
    pub fn position(&self) -> JobPosition<'_> {
        let writer = self.progress.owner.as_ref().filter(|_| self.by_worker);
        JobPosition {
            state: self.state,
            epoch: self.progress.epoch,
            worker: writer.map(|owner| &owner.worker),
        }
    }
}

/// Change of a job that a store has to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// The changing part is another one.
    Progressed(JobId),
    /// The job has ended.
    Ended(JobOutcome),
}
