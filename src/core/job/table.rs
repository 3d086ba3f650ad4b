//! Table of the jobs that have not ended: the meaning of the queue.
//!
//! No clock, no disk and no results: verbs take `now` by the store's clock, and every change that a store has to
//! write is appended to a list. Bounded by the queues' limits of its callers. A job leaves it at its end; the latest
//! ends are remembered, to recognize repeated writes.
//!
//! ```text
//! submit → schedule → take → running → finish, release ↺, cancel, deadlines → end
//! ```

mod cancel;
mod deployables;
mod duties;
mod inspection;
mod restore;
mod runs;
mod submit;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transition_tests;
mod workers;

use std::collections::{BTreeSet, VecDeque};

use hashbrown::HashMap;

use super::id::{DeployableKey, JobId, WorkerId};
use super::record::{JobChange, JobOutcome, LiveJob};
use super::schedule::{FlowCost, JobClass};
use super::states::{EndReason, JobState};
use super::store_time::StoreTime;
use crate::model::FairBy;
pub use cancel::CancelResult;
use deployables::Deployable;
pub use deployables::{DeployableState, FlowCounts};
pub use runs::{Release, RunEnd, TakeRequest, TakenJob};
pub use submit::{NewJob, QueueLimits, SubmitResult};
pub use workers::{HeartbeatReply, HeldJobs};

/// Ends that are remembered to recognize a repeated write.
const RECENT_ENDS_MAX: usize = 16_384;

/// End as a repeated write is compared with.
#[derive(Clone, Debug)]
struct RecentEnd {
    state: JobState,
    epoch: u32,
    /// Worker that wrote the end.
    worker: Option<WorkerId>,
}

/// Jobs that have not ended.
#[derive(Debug, Default)]
pub struct JobTable {
    jobs: HashMap<JobId, LiveJob>,
    deployables: HashMap<DeployableKey, Deployable>,
    /// The next end by time of every job.
    ends: BTreeSet<(StoreTime, JobId)>,
    /// Released jobs that are not due yet.
    due: BTreeSet<(StoreTime, JobId)>,
    /// Ends of the grace of running jobs that are canceled.
    graces: BTreeSet<(StoreTime, JobId)>,
    /// Running jobs of each worker.
    running: HashMap<WorkerId, BTreeSet<JobId>>,
    recent: HashMap<JobId, RecentEnd>,
    recent_order: VecDeque<JobId>,
    /// Bytes of all jobs.
    bytes: u64,
    changes: Vec<JobChange>,
}

impl JobTable {
    /// Creates an empty table.
    pub fn new() -> JobTable {
        JobTable::default()
    }

    /// Takes the changes since the last call, in their order.
    pub fn take_changes(&mut self) -> Vec<JobChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns a job that has not ended.
    pub fn job(&self, id: &JobId) -> Option<&LiveJob> {
        self.jobs.get(id)
    }

    /// Returns every job that has not ended, in no order.
    pub fn jobs(&self) -> impl Iterator<Item = &LiveJob> {
        self.jobs.values()
    }

    /// Jobs that have not ended.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Returns whether every job has ended.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Bytes of all jobs that have not ended, inputs included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts a job that is queued in its place: into the schedule, or aside until it is due.
    fn enqueue(&mut self, id: JobId, now: StoreTime) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let definition = &job.definition;
        let deployable = self
            .deployables
            .entry(definition.deployable.clone())
            .or_default();
        if let Some(due) = job.progress.due.filter(|due| *due > now) {
            self.due.insert((due, id));
            return;
        }
        let class = match job.progress.epoch {
            0 => definition.class,
            _ => JobClass::Again,
        };
        let cost = deployable.cost_of(definition);
        job.place = Some(deployable.schedule.push(class, &definition.flow, id, cost));
    }

    /// Takes a queued job out of its place.
    fn dequeue(&mut self, id: &JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if let Some(due) = job.progress.due.take() {
            self.due.remove(&(due, *id));
        }
        if let Some(place) = job.place.take()
            && let Some(deployable) = self.deployables.get_mut(&job.definition.deployable)
        {
            deployable.schedule.remove(&job.definition.flow, &place);
        }
    }

    /// Ends a job and forgets it. Of a running one, the flow's charge is corrected.
    fn end(
        &mut self,
        id: &JobId,
        state: JobState,
        reason: Option<EndReason>,
        now: StoreTime,
        by_worker: bool,
    ) {
        match self.jobs.get(id).map(|job| job.progress.state()) {
            Some(JobState::Running) => self.stop_run(id, now),
            Some(_) => self.leave_queue(id),
            None => return,
        }
        let Some(job) = self.jobs.remove(id) else {
            return;
        };
        let LiveJob {
            definition,
            progress,
            ..
        } = job;
        self.ends.remove(&(definition.swept_at(&progress), *id));
        self.ends.remove(&(definition.start_until, *id));
        self.bytes = self.bytes.saturating_sub(definition.bytes);
        if let Some(deployable) = self.deployables.get_mut(&definition.deployable) {
            deployable.finished += 1;
        }
        let owner = progress.owner.as_ref();
        self.remember(
            RecentEnd {
                state,
                epoch: progress.epoch,
                worker: owner
                    .filter(|_| by_worker)
                    .map(|owner| owner.worker.clone()),
            },
            *id,
        );
        self.changes.push(JobChange::Ended(JobOutcome {
            definition,
            progress,
            state,
            reason,
            ended: now,
            by_worker,
        }));
    }

    fn remember(&mut self, end: RecentEnd, id: JobId) {
        if self.recent_order.len() >= RECENT_ENDS_MAX
            && let Some(oldest) = self.recent_order.pop_front()
        {
            self.recent.remove(&oldest);
        }
        self.recent_order.push_back(id);
        self.recent.insert(id, end);
    }

    /// Takes a queued job out of the queue and its counts.
    fn leave_queue(&mut self, id: &JobId) {
        self.dequeue(id);
        if let Some(job) = self.jobs.get(id)
            && let Some(deployable) = self.deployables.get_mut(&job.definition.deployable)
        {
            deployable.count_dequeued(&job.definition.account);
        }
    }

    /// Ends the run of a job: its worker's set, its counts and its flow's charge. The owner stays for the caller.
    fn stop_run(&mut self, id: &JobId, now: StoreTime) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if let Some(owner) = &job.progress.owner
            && let Some(running) = self.running.get_mut(&owner.worker)
        {
            running.remove(id);
        }
        if let Some(cancel) = job.progress.cancel {
            let grace = crate::Millis(job.definition.cancel_grace_ms);
            self.graces.remove(&(cancel.at + grace, *id));
        }
        let Some(deployable) = self.deployables.get_mut(&job.definition.deployable) else {
            return;
        };
        deployable.running = deployable.running.saturating_sub(1);
        let taken = job.progress.taken.unwrap_or(now);
        let hold = now.since(taken);
        deployable.holds.record(hold, now);
        let Some((class, expected_ms)) = job.charged.take() else {
            return;
        };
        let weight = job.definition.weight;
        let cost = |expected_ms| FlowCost {
            expected_ms,
            weight,
        };
        let actual_ms = match job.definition.fair_by {
            FairBy::Time => hold.0,
            FairBy::Jobs => expected_ms,
        };
        let (expected, actual) = (cost(expected_ms), cost(actual_ms));
        deployable
            .schedule
            .correct(class, &job.definition.flow, expected, actual);
    }
}
