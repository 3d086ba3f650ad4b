//! Workers as the table knows them: their running jobs, reconciled at each heartbeat.
//!
//! Leases are decided elsewhere; a worker that is lost or retires is named by the caller.

use super::JobTable;
use crate::job::id::{JobId, WorkerId};
use crate::job::retry::ReleaseCause;
use crate::job::states::CanceledBy;
use crate::job::store_time::StoreTime;

/// Jobs that a worker holds, and which takes of it have no reply yet.
#[derive(Clone, Debug, Default)]
pub struct HeldJobs {
    /// Jobs that it runs.
    pub jobs: Vec<JobId>,
    /// Moment of its oldest take without a reply, by the store's clock.
    pub oldest_take: Option<StoreTime>,
}

/// Reply to a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The worker is known, or has nothing to lose: it goes on. Otherwise it fences itself.
    pub is_known: bool,
    /// Jobs of the worker that it does not hold: the reply of their take was lost. They are queued again.
    pub orphans: Vec<JobId>,
    /// Jobs that it holds and that are to be canceled, each with the origin of that.
    pub canceled: Vec<(JobId, CanceledBy)>,
    /// Jobs that it holds and that are not its own any more.
    pub lost: Vec<JobId>,
}

impl JobTable {
    /// Reconciles what a worker holds with what the table has for it.
    pub fn heartbeat(
        &mut self,
        worker: &WorkerId,
        held: &HeldJobs,
        now: StoreTime,
    ) -> HeartbeatReply {
        let own = self.running.get(worker).cloned().unwrap_or_default();
        let mut reply = HeartbeatReply::default();
        for id in &held.jobs {
            match own.contains(id) {
                false => reply.lost.push(*id),
                true => {
                    let job = self.jobs.get(id);
                    let cancel = job.and_then(|job| job.progress.cancel);
                    reply.canceled.extend(cancel.map(|cancel| (*id, cancel.by)));
                }
            }
        }
        // A job of a take whose reply is on its way makes it known, though what it holds has ended.
        reply.is_known = held.jobs.is_empty() || !own.is_empty();
        for id in own.into_iter().filter(|id| !held.jobs.contains(id)) {
            let taken = self.jobs.get(&id).and_then(|job| job.progress.taken);
            let may_be_on_its_way = held.oldest_take.is_some_and(|take| taken >= Some(take));
            if !may_be_on_its_way {
                self.release_run(&id, ReleaseCause::LostReply, None, now);
                reply.orphans.push(id);
            }
        }
        reply
    }

    /// Releases the jobs of a worker that retires or is lost, at most `limit`. Returns how many there were.
    pub fn release_worker(
        &mut self,
        worker: &WorkerId,
        cause: ReleaseCause,
        limit: usize,
        now: StoreTime,
    ) -> usize {
        let own = self.running.get(worker);
        let jobs: Vec<JobId> = own.into_iter().flatten().take(limit).copied().collect();
        for id in &jobs {
            self.release_run(id, cause, None, now);
        }
        if self.running.get(worker).is_some_and(|own| own.is_empty()) {
            self.running.remove(worker);
        }
        jobs.len()
    }

    /// Returns the workers that run jobs, with the number of them, sorted.
    pub fn workers(&self) -> Vec<(WorkerId, usize)> {
        let workers = self.running.iter().filter(|(_, jobs)| !jobs.is_empty());
        let mut workers: Vec<_> = workers
            .map(|(worker, jobs)| (worker.clone(), jobs.len()))
            .collect();
        workers.sort_unstable();
        workers
    }
}
