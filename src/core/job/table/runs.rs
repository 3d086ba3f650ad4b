//! Runs of jobs: take, end, release. Each take raises the epoch, and later writes must name it.
//!
//! A write of another epoch changes nothing: a frozen worker that wakes cannot end a job twice.

use std::sync::Arc;

use super::JobTable;
use crate::Millis;
use crate::job::id::{DeployableKey, JobId, WorkerId};
use crate::job::record::{JobChange, JobDefinition, JobProgress};
use crate::job::retry::{ReleaseCause, ReleaseDecision};
use crate::job::schedule::{FlowCost, JobClass};
use crate::job::states::{EndReason, JobOwner, JobPosition, JobState, WriteResult, judge_write};
use crate::job::store_time::StoreTime;

/// Jobs whose time is over that one take ends. The others are the duty's, which has its own bound.
pub(super) const EXPIRED_PER_TAKE_MAX: usize = 32;

/// Request of a worker for jobs of one deployable.
#[derive(Clone, Debug)]
pub struct TakeRequest {
    /// Deployable whose permits the worker has.
    pub deployable: DeployableKey,
    /// Jobs at most: one for each permit.
    pub count: usize,
    /// Number of the worker's takes, which rotates the classes.
    pub turn: u32,
    /// Flow whose weights the server has loaded.
    pub preferred_flow: Option<Arc<str>>,
}

/// Job that a worker has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenJob {
    /// Fixed part.
    pub definition: Arc<JobDefinition>,
    /// Changing part, with the epoch that every later write names.
    pub progress: JobProgress,
    /// Time until its end by time, from the take.
    pub time_left: Millis,
    /// Reason of that end.
    pub end_reason: EndReason,
    /// Flow other than the preferred one: the server has to exchange its weights.
    pub is_other_flow: bool,
}

/// End of a run with a result.
#[derive(Clone, Debug)]
pub struct RunEnd {
    /// Job.
    pub id: JobId,
    /// Epoch of the take.
    pub epoch: u32,
    /// State of the end.
    pub state: JobState,
    /// Reason; none of a success.
    pub reason: Option<EndReason>,
}

/// End of a run without a result: the job is queued again, unless its attempts are used up.
#[derive(Clone, Debug)]
pub struct Release {
    /// Job.
    pub id: JobId,
    /// Epoch of the take.
    pub epoch: u32,
    /// Cause.
    pub cause: ReleaseCause,
    /// Moment before which it is not taken again.
    pub not_before: Option<StoreTime>,
}

impl JobTable {
    /// Takes queued jobs for a worker that has a permit for each. Jobs whose time is over end here instead, a bounded
    /// number of them: behind more of those it finds none, until a duty has ended them.
    pub fn take(
        &mut self,
        worker: &WorkerId,
        request: &TakeRequest,
        now: StoreTime,
    ) -> Vec<TakenJob> {
        let (mut taken, mut expired) = (Vec::new(), 0);
        let order = JobClass::order(request.turn);
        while taken.len() < request.count && expired < EXPIRED_PER_TAKE_MAX {
            let Some((class, flow, id)) = self.pop(request, order) else {
                break;
            };
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            job.place = None;
            let end = job.definition.limits.next_end(job.progress.timed_from());
            let is_stale = job.progress.started.is_none() && job.definition.start_until <= now;
            if end.at <= now || is_stale {
                let definition = Arc::clone(&job.definition);
                expired += 1;
                self.end_by_time(&id, now);
                self.uncharge(class, &definition);
                continue;
            }
            let preferred = request.preferred_flow.as_deref();
            let is_other_flow = preferred.is_some_and(|preferred| preferred != &*flow);
            taken.extend(self.start_run(&id, worker, (class, is_other_flow), now));
        }
        taken
    }

    fn pop(
        &mut self,
        request: &TakeRequest,
        order: [JobClass; 4],
    ) -> Option<(JobClass, Arc<str>, JobId)> {
        let deployable = self.deployables.get_mut(&request.deployable)?;
        if deployable.is_paused {
            return None;
        }
        let jobs = &self.jobs;
        let holds = deployable.holds;
        let cost =
            |id: &JobId| super::deployables::cost(&holds, jobs.get(id).map(|job| &*job.definition));
        deployable
            .schedule
            .pop(order, request.preferred_flow.as_deref(), cost)
    }

    /// Gives a flow its charge back for a job that ended where it was to be taken.
    fn uncharge(&mut self, class: JobClass, definition: &JobDefinition) {
        if let Some(deployable) = self.deployables.get_mut(&definition.deployable) {
            let expected = deployable.cost_of(definition);
            let actual = FlowCost {
                expected_ms: 0,
                ..expected
            };
            deployable
                .schedule
                .correct(class, &definition.flow, expected, actual);
        }
    }

    fn start_run(
        &mut self,
        id: &JobId,
        worker: &WorkerId,
        (class, is_other_flow): (JobClass, bool),
        now: StoreTime,
    ) -> Option<TakenJob> {
        let job = self.jobs.get_mut(id)?;
        let definition = Arc::clone(&job.definition);
        let deployable = self.deployables.get_mut(&definition.deployable)?;
        deployable.count_dequeued(&definition.account);
        deployable.running += 1;
        job.charged = Some((class, deployable.cost_of(&definition).expected_ms));
        let before = definition.swept_at(&job.progress);
        let progress = &mut job.progress;
        progress.epoch += 1;
        progress.started = progress.started.or(Some(now));
        progress.taken = Some(now);
        progress.due = None;
        progress.owner = Some(JobOwner {
            worker: worker.clone(),
            epoch: progress.epoch,
        });
        let end = definition.limits.next_end(progress.timed_from());
        self.ends.remove(&(before, *id));
        self.ends.remove(&(definition.start_until, *id));
        self.ends.insert((definition.swept_at(progress), *id));
        self.running.entry(worker.clone()).or_default().insert(*id);
        self.changes.push(JobChange::Progressed(*id));
        Some(TakenJob {
            progress: job.progress.clone(),
            definition,
            time_left: end.at.since(now),
            end_reason: end.reason,
            is_other_flow,
        })
    }

    /// Judges a write of a worker by the job's present position.
    pub fn judge(&self, worker: &WorkerId, id: &JobId, epoch: u32) -> WriteResult {
        if let Some(job) = self.jobs.get(id) {
            let position = JobPosition {
                state: job.progress.state(),
                epoch: job.progress.epoch,
                worker: job.progress.owner.as_ref().map(|owner| &owner.worker),
            };
            return judge_write(position, worker, epoch);
        }
        let Some(end) = self.recent.get(id) else {
            return WriteResult::Stale;
        };
        let position = JobPosition {
            state: end.state,
            epoch: end.epoch,
            worker: end.worker.as_ref(),
        };
        judge_write(position, worker, epoch)
    }

    /// Ends a running job with a worker's result.
    pub fn finish(&mut self, worker: &WorkerId, end: &RunEnd, now: StoreTime) -> WriteResult {
        let result = self.judge(worker, &end.id, end.epoch);
        if result == WriteResult::Done {
            self.end(&end.id, end.state, end.reason, now, true);
        }
        result
    }

    /// Queues a running job again, or ends it when its attempts are used up or its cancel was requested.
    pub fn release(&mut self, worker: &WorkerId, release: &Release, now: StoreTime) -> WriteResult {
        let result = self.judge(worker, &release.id, release.epoch);
        if result == WriteResult::Done {
            self.release_run(&release.id, release.cause, release.not_before, now);
        }
        result
    }

    pub(super) fn release_run(
        &mut self,
        id: &JobId,
        cause: ReleaseCause,
        not_before: Option<StoreTime>,
        now: StoreTime,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if let Some(cancel) = job.progress.cancel {
            let reason = cancel.by.reason();
            self.end(id, reason.state(true), Some(reason), now, false);
            return;
        }
        let decision = job
            .progress
            .attempts
            .release(cause, job.definition.attempts_max);
        let delay = match decision {
            ReleaseDecision::Again(delay) => delay,
            ReleaseDecision::End(reason) => {
                self.end(id, reason.state(true), Some(reason), now, false);
                return;
            }
        };
        self.stop_run(id, now);
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        self.ends
            .remove(&(job.definition.swept_at(&job.progress), *id));
        let due = (now + delay).max(not_before.unwrap_or_default());
        if cause == ReleaseCause::QuotaWait {
            // Neither the run so far nor the wait is the model's time.
            let since = job.progress.taken.unwrap_or(now);
            job.progress.rested_ms += due.since(since).0;
        }
        job.progress.owner = None;
        job.progress.taken = None;
        self.ends
            .insert((job.definition.swept_at(&job.progress), *id));
        job.progress.due = (due > now).then_some(due);
        let definition = Arc::clone(&job.definition);
        if let Some(deployable) = self.deployables.get_mut(&definition.deployable) {
            deployable.count_queued(&definition.account);
        }
        self.enqueue(*id, now);
        self.changes.push(JobChange::Progressed(*id));
    }
}
