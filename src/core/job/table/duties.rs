//! Duties of maintenance in the table: ends by time, releases that are due, queues without a server.
//!
//! Not their rhythm. Each call is bounded by its limit and may be repeated.

use super::JobTable;
use crate::job::id::{DeployableKey, JobId};
use crate::job::states::{EndReason, JobState};
use crate::job::store_time::StoreTime;

impl JobTable {
    /// Ends jobs whose time is over, and canceled ones whose grace is. Returns how many.
    pub fn expire(&mut self, limit: usize, now: StoreTime) -> usize {
        let mut ended = 0;
        while ended < limit
            && let Some((at, id)) = self.ends.first().copied()
            && at <= now
        {
            self.end_by_time(&id, now);
            // A job that has started since does not end by the moment until which it had to.
            self.ends.remove(&(at, id));
            ended += 1;
        }
        while ended < limit
            && let Some((at, id)) = self.graces.first().copied()
            && at <= now
        {
            self.graces.pop_first();
            let cancel = self.jobs.get(&id).and_then(|job| job.progress.cancel);
            if let Some(cancel) = cancel {
                let reason = cancel.by.reason();
                self.end(&id, reason.state(true), Some(reason), now, false);
            }
            ended += 1;
        }
        ended
    }

    /// Moment of the next end by time, of the next grace, or of the next release that is due.
    pub fn next_duty(&self) -> Option<StoreTime> {
        let sets = [&self.ends, &self.graces, &self.due];
        let moments = sets.iter().filter_map(|set| set.first());
        moments.map(|(at, _)| *at).min()
    }

    /// Ends a job by the first of its limits that is over.
    pub(super) fn end_by_time(&mut self, id: &JobId, now: StoreTime) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let was_started = job.progress.started.is_some();
        let end = job.definition.limits.next_end(job.progress.timed_from());
        let reason = match job.definition.swept_at(&job.progress) <= now {
            true => end.reason,
            false if !was_started && job.definition.start_until <= now => EndReason::NeverStarted,
            false => return,
        };
        let reason = match (job.progress.cancel, job.progress.owner.is_some()) {
            // The user has asked for the end before time did.
            (Some(cancel), true) => cancel.by.reason(),
            _ => reason,
        };
        self.end(id, reason.state(was_started), Some(reason), now, false);
    }

    /// Queues released jobs that are due. Returns how many.
    pub fn release_due(&mut self, limit: usize, now: StoreTime) -> usize {
        let mut queued = 0;
        while queued < limit
            && let Some((at, id)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(job) = self.jobs.get_mut(&id) {
                job.progress.due = None;
            }
            self.enqueue(id, now);
            queued += 1;
        }
        queued
    }

    /// Ends queued jobs of a deployable that nothing serves, at most `limit`. Returns how many. Visits every job.
    pub fn end_queued(
        &mut self,
        deployable: &DeployableKey,
        reason: EndReason,
        limit: usize,
        now: StoreTime,
    ) -> usize {
        let queued = self.jobs.values().filter(|job| {
            job.definition.deployable == *deployable && job.progress.state() == JobState::Queued
        });
        let ids: Vec<JobId> = queued.take(limit).map(|job| job.definition.id).collect();
        for id in &ids {
            let job = self.jobs.get(id);
            let was_started = job.is_some_and(|job| job.progress.started.is_some());
            self.end(id, reason.state(was_started), Some(reason), now, false);
        }
        ids.len()
    }
}
