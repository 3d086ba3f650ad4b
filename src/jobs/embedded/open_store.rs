//! Embedded store that is open: the table in memory and its file, changed together by one transaction.
//!
//! Not when that is: the owner gathers calls, begins and answers. After a transaction that failed, table and file differ,
//! and both are read again.

use hashbrown::HashSet;
use infergate_core::Millis;
use infergate_core::job::{
    CancelResult, CanceledBy, JobChange, JobId, JobOutcome, JobState, JobTable, ReleaseCause,
    StoreTime, SubmitResult, TakeRequest, WorkerId,
};

use super::command::StoreCommand;
use super::database::Database;
use super::deployment_rows::write_deployment;
use super::shared::{OwnerShared, Reply};
use crate::jobs::deployments::DeploymentResult;
use crate::jobs::store::{EndRecord, NewStoredJob, StoreError, StoreStats, StoredRun};

/// Jobs that time ends, or that are due, in one transaction.
pub(super) const DUTY_MAX: usize = 256;
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
    pub has_webhooks: bool,
    pub has_deployments: bool,
}

impl OpenStore {
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
                            let payload = self.database.payload(&id)?;
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
                let result = self.table.finish(&worker, &end.end, now);
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
            StoreCommand::PredecessorEnded(reply) => {
                let workers = std::mem::take(&mut *shared.predecessors.lock());
                self.release_all(&workers, ReleaseCause::WorkerLost, now);
                answers.push(later(reply, ()));
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
            StoreCommand::Stats(reply) => answers.push(later(reply, self.full_stats(now))),
            StoreCommand::AcknowledgeEvents(places, reply) => {
                self.database.delete_events(&places)?;
                answers.push(later(reply, ()));
            }
            StoreCommand::SettleWebhook(id, settlement, result, reply) => {
                let place = self.database.settle_webhook(&id, &settlement, &result)?;
                answers.push(later(reply, place.is_some()));
            }
            StoreCommand::WriteDeployment(write, reply) => {
                let result = write_deployment(&self.database, &write)?;
                hints.has_deployments |= result == DeploymentResult::Done;
                answers.push(later(reply, result));
            }
        }
        self.write_changes(shared, hints, None)
    }

    fn take(
        &mut self,
        worker: &WorkerId,
        request: &TakeRequest,
        now: StoreTime,
    ) -> rusqlite::Result<Vec<StoredRun>> {
        let mut runs = Vec::new();
        for taken in self.table.take(worker, request, now) {
            let payload = self.database.payload(&taken.definition.id)?;
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
