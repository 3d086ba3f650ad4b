//! Embedded store that is open: the table in memory and its file, changed together by one transaction.
//!
//! Not when that is: the owner gathers calls, begins and answers. After a transaction that failed, table and file differ,
//! and both are read again.

use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use infergate_core::Millis;
use infergate_core::job::{
    CancelResult, CanceledBy, JobChange, JobId, JobOutcome, JobState, JobTable, ReleaseCause,
    RunEnd, StoreTime, SubmitResult, TakeRequest, WorkerId, WriteResult,
};

use super::command::StoreCommand;
use super::database::{Database, RemovedRows};
use super::deployment_rows::write_deployment;
use super::shared::{OwnerShared, Reply};
use super::webhook_rows::{DEAD_LETTERS_MAX, DroppedLetter, drop_letters, settle_webhook};
use crate::jobs::deployments::DeploymentResult;
use crate::jobs::store::{EndRecord, NewStoredJob, StoreError, StoreStats, StoredRun};
use crate::telemetry::duty_metrics::JobDuty;

/// Jobs that time ends, or that are due, in one transaction.
pub(super) const DUTY_MAX: usize = 256;
/// Rows that are removed in one transaction.
pub(super) const EXPIRED_MAX: usize = 1000;
/// Rows that are removed for each job that ends, while more wait: the file does not grow, and calls have their turn.
const REMOVED_PER_END: usize = 2;
/// Time that an idempotency key is kept.
const KEY_KEPT: Millis = Millis::from_secs(24 * 3600);

/// PendingReply that waits for the commit.
pub(super) type PendingReply = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// Store that is open.
pub(super) struct OpenStore {
    pub database: Database,
    pub table: JobTable,
}

/// Ends of one transaction, for the hints after it.
#[derive(Default)]
pub(super) struct BatchHints {
    pub ended: Vec<JobId>,
    pub outcomes: Vec<JobOutcome>,
    pub changed: Vec<JobId>,
    /// Jobs that time has ended, and released ones that came back into the schedule.
    pub expired: usize,
    pub released: usize,
    /// Removed rows; none where nothing was looked for.
    pub removed: Option<RemovedRows>,
    pub has_webhooks: bool,
    pub has_deployments: bool,
    pub dropped_letters: Vec<DroppedLetter>,
}

/// Removal of rows whose time is over, in one transaction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Removal {
    /// From the beginning, with everything else that is done once a second.
    All,
    /// From this moment on: the last round left some.
    Rest(StoreTime),
}

impl OpenStore {
    /// Removes rows. Returns where the next round goes on. `is_idle`: no call waits. Between calls as many rows go as
    /// their number is gaining, and more.
    pub fn remove_rows(
        &mut self,
        shared: &OwnerShared,
        hints: &mut BatchHints,
        (removal, is_idle): (Removal, bool),
        now: StoreTime,
    ) -> rusqlite::Result<Option<StoreTime>> {
        let ended = hints.ended.len().saturating_mul(REMOVED_PER_END);
        let (from, limit) = match removal {
            Removal::All => (StoreTime::default(), EXPIRED_MAX),
            Removal::Rest(from) if is_idle => (from, EXPIRED_MAX),
            Removal::Rest(from) if ended == 0 => return Ok(Some(from)),
            Removal::Rest(from) => (from, ended.min(EXPIRED_MAX)),
        };
        let removed = self.database.remove_expired(limit, from, now)?;
        let next = removed.next;
        hints.removed = Some(removed);
        if matches!(removal, Removal::All) {
            self.table.forget_idle(now);
            let bounds = (DEAD_LETTERS_MAX, EXPIRED_MAX);
            let keep = shared.settings.keep();
            hints.dropped_letters = drop_letters(&self.database, bounds, keep)?;
        }
        Ok(next)
    }

    pub fn transact(
        &mut self,
        act: impl FnOnce(&mut OpenStore) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.database.begin()?;
        let done = act(self).and_then(|()| self.database.commit());
        if done.is_err() {
            self.database.roll_back();
        }
        done
    }

    /// Releases the running jobs of dead processes: of all workers but `alive`.
    pub fn release_lost(
        &mut self,
        shared: &OwnerShared,
        alive: &[WorkerId],
        now: StoreTime,
    ) -> rusqlite::Result<()> {
        let mut workers = self.table.workers();
        workers.retain(|(worker, _)| !alive.contains(worker));
        if workers.is_empty() {
            return Ok(());
        }
        let mut hints = BatchHints::default();
        let workers_lost = workers.len();
        let released = self.transact(|open| {
            for (worker, jobs) in &workers {
                open.table
                    .release_worker(worker, ReleaseCause::WorkerLost, *jobs, now);
            }
            open.write_changes(shared, &mut hints, None)
        });
        let count: usize = workers.iter().map(|(_, jobs)| jobs).sum();
        if released.is_ok() {
            let cause = ReleaseCause::WorkerLost.name();
            shared.metrics.record_released(cause, count as u64);
            let duties = &shared.metrics.duties;
            duties.record_workers_lost(workers_lost);
            duties.record_run(JobDuty::Orphans, count, now.0);
            shared.count_ends(&hints.outcomes);
        }
        tracing::warn!(
            count,
            "jobs that ran when the last process ended are queued again"
        );
        released
    }

    /// Writes what the table has changed. `record` is the result of the one end that a worker wrote.
    pub fn write_changes(
        &mut self,
        shared: &OwnerShared,
        hints: &mut BatchHints,
        record: Option<&EndRecord>,
    ) -> rusqlite::Result<()> {
        let mut written = HashSet::new();
        for change in self.table.take_changes() {
            match change {
                JobChange::Progressed(id) => {
                    // The last state counts, once.
                    if written.insert(id)
                        && let Some(job) = self.table.job(&id)
                    {
                        self.database.update_progress(&id, &job.progress)?;
                        hints.changed.push(id);
                    }
                }
                JobChange::Ended(outcome) => {
                    let expires = outcome.ended + shared.settings.keep();
                    let id = outcome.definition.id;
                    match record.filter(|_| outcome.by_worker) {
                        Some(record) => self.database.write_end(&outcome, record, expires)?,
                        None => {
                            let payload = self.database.live_payload(&id)?;
                            let record = shared.renderer.render(&outcome, &payload);
                            self.database.write_end(&outcome, &record, expires)?;
                        }
                    }
                    hints.has_webhooks |= outcome.definition.has_webhook;
                    hints.ended.push(id);
                    hints.outcomes.push(outcome);
                }
            }
        }
        Ok(())
    }

    /// Applies one call. The answer is given after the commit.
    pub fn apply(
        &mut self,
        shared: &OwnerShared,
        now: StoreTime,
        command: StoreCommand,
        answers: &mut Vec<PendingReply>,
        hints: &mut BatchHints,
    ) -> rusqlite::Result<()> {
        match command {
            StoreCommand::Submit(job, reply) => {
                answers.push(later(reply, self.submit(*job, now)?));
            }
            StoreCommand::Take(worker, request, reply) => {
                answers.push(later(reply, self.take(&worker, &request, now)?));
            }
            StoreCommand::Finish(worker, end, reply) => {
                let result = self.finish(&worker, &end.end, now)?;
                answers.push(later(reply, result));
                return self.write_changes(shared, hints, Some(&end.record));
            }
            StoreCommand::Release(worker, release, reply) => {
                let result = self.table.release(&worker, &release, now);
                answers.push(later(reply, result));
            }
            StoreCommand::Cancel(job, by, reply) => {
                answers.push(later(reply, self.cancel(&job, by, now)?));
            }
            StoreCommand::Heartbeat(worker, held, reply) => {
                let result = self.table.heartbeat(&worker, &held, now);
                answers.push(later(reply, result));
            }
            StoreCommand::Retire(worker, reply) => {
                self.release_all(&[worker], ReleaseCause::Drain, now);
                answers.push(later(reply, ()));
            }
            StoreCommand::PredecessorEnded(connections, reply) => {
                let is_ended = self.end_predecessor(shared, connections, now);
                answers.push(later(reply, is_ended));
            }
            StoreCommand::EndQueued(deployable, reason, reply) => {
                let ended = self.table.end_queued(&deployable, reason, DUTY_MAX, now);
                answers.push(later(reply, ended));
            }
            StoreCommand::SetPaused(deployable, is_paused, reply) => {
                self.table.set_paused(&deployable, is_paused);
                self.database.set_paused(&deployable, is_paused)?;
                answers.push(later(reply, ()));
            }
            StoreCommand::Position(job, reply) => {
                answers.push(later(reply, self.table.position(&job)));
            }
            StoreCommand::Stats(reply) => answers.push(later(reply, self.full_stats(now))),
            StoreCommand::AcknowledgeEvents(places, reply) => {
                self.database.delete_events(&places)?;
                answers.push(later(reply, ()));
            }
            StoreCommand::SettleWebhook(id, settlement, result, reply) => {
                let settled = settle_webhook(&self.database, &id, &settlement, &result, now)?;
                answers.push(later(reply, settled));
            }
            StoreCommand::WriteDeployment(write, reply) => {
                let result = write_deployment(&self.database, &write)?;
                hints.has_deployments |= result == DeploymentResult::Done;
                answers.push(later(reply, result));
            }
        }
        self.write_changes(shared, hints, None)
    }

    /// Ends a run. The repeat of an end that was written before the table was made is known by its row.
    fn finish(
        &mut self,
        worker: &WorkerId,
        end: &RunEnd,
        now: StoreTime,
    ) -> rusqlite::Result<WriteResult> {
        match self.table.finish(worker, end, now) {
            WriteResult::Stale if self.table.job(&end.id).is_none() => {
                self.database.judge_ended(&end.id, worker, end.epoch)
            }
            result => Ok(result),
        }
    }

    fn take(
        &mut self,
        worker: &WorkerId,
        request: &TakeRequest,
        now: StoreTime,
    ) -> rusqlite::Result<Vec<StoredRun>> {
        let mut runs = Vec::new();
        for taken in self.table.take(worker, request, now) {
            let payload = self.database.live_payload(&taken.definition.id)?;
            runs.push(StoredRun {
                taken,
                payload,
                weights_changed: false,
            });
        }
        Ok(runs)
    }

    fn cancel(
        &mut self,
        job: &JobId,
        by: CanceledBy,
        now: StoreTime,
    ) -> rusqlite::Result<CancelResult> {
        match self.table.cancel(job, by, now) {
            CancelResult::Unknown => self.ended_state(job),
            known => Ok(known),
        }
    }

    /// Releases the jobs of the process that had the store before. Returns false where it has connected again since.
    fn end_predecessor(&mut self, shared: &OwnerShared, connections: u64, now: StoreTime) -> bool {
        if shared.predecessor_connections.load(Ordering::Acquire) != connections {
            return false;
        }
        let workers = std::mem::take(&mut *shared.predecessors.lock());
        self.release_all(&workers, ReleaseCause::WorkerLost, now);
        true
    }

    fn release_all(&mut self, workers: &[WorkerId], cause: ReleaseCause, now: StoreTime) {
        let all = self.table.len();
        for worker in workers {
            self.table.release_worker(worker, cause, all, now);
        }
    }

    fn submit(&mut self, job: NewStoredJob, now: StoreTime) -> rusqlite::Result<SubmitResult> {
        let NewStoredJob { job, payload, key } = job;
        let (id, account) = (job.definition.id, job.definition.account.clone());
        if let Some(key) = &key
            && let Some(used) = self.database.used_key(account.as_str(), &key.key, now)?
        {
            return Ok(match used.digest == key.digest {
                true => SubmitResult::Duplicate(used.job),
                false => SubmitResult::KeyMismatch,
            });
        }
        if self.table.job(&id).is_none() && self.database.contains_job(&id)? {
            let known = self.database.job(&id)?;
            return Ok(SubmitResult::Exists(
                known.map_or(JobState::Failed, |job| job.state),
            ));
        }
        let result = self.table.submit(job, now);
        if result == SubmitResult::Created
            && let Some(job) = self.table.job(&id)
        {
            self.database
                .insert_job(&job.definition, &job.progress, &payload)?;
            if let Some(key) = &key {
                self.database
                    .insert_key(account.as_str(), key, &id, now + KEY_KEPT)?;
            }
        }
        Ok(result)
    }

    fn ended_state(&self, job: &JobId) -> rusqlite::Result<CancelResult> {
        let known = self.database.job(job)?;
        Ok(known.map_or(CancelResult::Unknown, |job| {
            CancelResult::AlreadyEnded(job.state)
        }))
    }

    pub fn full_stats(&self, now: StoreTime) -> StoreStats {
        let mut stats = self.stats(now);
        let keys = stats.deployables.iter().map(|state| state.key.clone());
        stats.by_account = keys
            .map(|key| (key.clone(), self.table.queued_by_account(&key)))
            .collect();
        stats
    }

    pub fn stats(&self, now: StoreTime) -> StoreStats {
        let oldest = self.table.oldest_queued(now).into_iter();
        StoreStats {
            deployables: self.table.deployables(),
            workers: self.table.workers(),
            live: self.table.len(),
            live_bytes: self.table.bytes(),
            oldest_ms: oldest.map(|(key, age)| (key, age.0)).collect(),
            by_account: Vec::new(),
        }
    }
}

/// PendingReply for after the commit.
fn later<T: Send + 'static>(reply: Reply<T>, result: T) -> PendingReply {
    Box::new(move |error| match error {
        None => reply.send(Ok(result)),
        Some(error) => reply.send(Err(error.clone())),
    })
}
