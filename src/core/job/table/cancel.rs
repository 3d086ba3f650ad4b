//! Cancel of a job: a queued one ends at once, a running one is asked to.
//!
//! The worker drops its exchange; when no end is written within the grace, a duty writes it.

use serde::{Deserialize, Serialize};

use super::JobTable;
use crate::Millis;
use crate::job::id::{JobId, WorkerId};
use crate::job::record::{CancelRequest, JobChange};
use crate::job::states::{CanceledBy, JobState};
use crate::job::store_time::StoreTime;

/// Result of a cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelResult {
    /// The job was queued and has ended.
    Ended(JobState),
    /// The job runs at this worker, which is to end it.
    Requested(WorkerId),
    /// The job had ended before.
    AlreadyEnded(JobState),
    /// No such job has not ended, and none ended lately.
    Unknown,
}

impl JobTable {
    /// Cancels a job.
    pub fn cancel(&mut self, id: &JobId, by: CanceledBy, now: StoreTime) -> CancelResult {
        let Some(job) = self.jobs.get_mut(id) else {
            let recent = self.recent.get(id);
            return recent.map_or(CancelResult::Unknown, |end| {
                CancelResult::AlreadyEnded(end.state)
            });
        };
        let Some(owner) = &job.progress.owner else {
            let reason = by.reason();
            let state = reason.state(job.progress.started.is_some());
            self.end(id, state, Some(reason), now, false);
            return CancelResult::Ended(state);
        };
        let worker = owner.worker.clone();
        if job.progress.cancel.is_none() {
            job.progress.cancel = Some(CancelRequest { by, at: now });
            let grace = now + Millis(job.definition.cancel_grace_ms);
            self.graces.insert((grace, *id));
            self.changes.push(JobChange::Progressed(*id));
        }
        CancelResult::Requested(worker)
    }
}
