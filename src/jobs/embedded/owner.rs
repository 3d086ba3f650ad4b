//! Thread that owns the table of the embedded store and writes its rows.
//!
//! Not a reader of ended jobs. Calls are gathered while the disk syncs: one transaction for all of them, then their
//! answers. Ends by time, due releases and removal of old rows happen here between calls.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use hashbrown::HashSet;
use infergate_core::Millis;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobChange, JobId,
    JobOutcome, JobState, JobTable, Release, ReleaseCause, StoreTime, SubmitResult, TakeRequest,
    WorkerId, WriteResult,
};

use super::database::{Access, Database};
use super::shared::{OwnerShared, Reply};
use crate::jobs::deployments::{DeploymentResult, DeploymentWrite};
use crate::jobs::store::{
    EndRecord, NewStoredJob, StoreError, StoreStats, StoredEnd, StoredRun, WebhookSettlement,
};

/// Calls in one transaction.
const BATCH_MAX: usize = 512;
/// Jobs that time ends, or that are due, in one transaction.
const DUTY_MAX: usize = 256;
/// Rows that are removed in one transaction.
const EXPIRED_MAX: usize = 1000;
/// Interval of looks at old rows, and of attempts to open a store that failed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Time that an idempotency key is kept.
const KEY_KEPT: Millis = Millis::from_secs(24 * 3600);
/// Least interval of levels for metrics, milliseconds, and the part of the thread's time that they may take.
const LEVELS_EVERY_MS: u64 = 1000;
const LEVELS_PART: u64 = 100;
/// Undelivered webhooks that are kept for operators.
const DEAD_WEBHOOKS_MAX: usize = 10_000;

/// Call that writes.
pub(super) enum StoreCommand {
    Submit(Box<NewStoredJob>, Reply<SubmitResult>),
    Take(WorkerId, TakeRequest, Reply<Vec<StoredRun>>),
    Finish(WorkerId, Box<StoredEnd>, Reply<WriteResult>),
    Release(WorkerId, Release, Reply<WriteResult>),
    Cancel(JobId, CanceledBy, Reply<CancelResult>),
    Heartbeat(WorkerId, HeldJobs, Reply<HeartbeatReply>),
    Retire(WorkerId, Reply<()>),
    EndQueued(DeployableKey, EndReason, Reply<usize>),
    SetPaused(DeployableKey, bool, Reply<()>),
    Stats(Reply<StoreStats>),
    AcknowledgeEvents(Vec<i64>, Reply<()>),
    SettleWebhook(Arc<str>, WebhookSettlement, Arc<str>, Reply<bool>),
    WriteDeployment(Box<DeploymentWrite>, Reply<DeploymentResult>),
}

/// PendingReply that waits for the commit.
type PendingReply = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// Store that is open.
struct OpenStore {
    database: Database,
    table: JobTable,
}

/// Ends of one transaction, for the hints after it.
#[derive(Default)]
struct BatchHints {
    ended: Vec<JobId>,
    outcomes: Vec<JobOutcome>,
    changed: Vec<JobId>,
    has_webhooks: bool,
    has_deployments: bool,
}

/// Owner of the table.
pub(super) struct StoreOwner {
    shared: Arc<OwnerShared>,
    waiting: Receiver<StoreCommand>,
    open: Option<OpenStore>,
    /// Lock on the folder: one process owns the store.
    lock: Option<File>,
    housekeeping_at: StoreTime,
    /// Moment before which a store that failed is not opened again.
    retry_at: StoreTime,
    levels_at: StoreTime,
    /// The first opening of the process: running jobs are those of a dead one.
    is_first: bool,
}

impl StoreOwner {
    pub fn new(shared: Arc<OwnerShared>, waiting: Receiver<StoreCommand>) -> StoreOwner {
        StoreOwner {
            shared,
            waiting,
            open: None,
            lock: None,
            housekeeping_at: StoreTime::default(),
            retry_at: StoreTime::default(),
            levels_at: StoreTime::default(),
            is_first: true,
        }
    }

    /// Serves calls until the handle is dropped.
    pub fn run(mut self, opened: &SyncSender<()>) {
        self.open();
        // The one that waits for the first attempt.
        let _ = opened.try_send(());
        loop {
            match self.waiting.recv_timeout(self.rest()) {
                Ok(command) => self.serve(command),
                Err(RecvTimeoutError::Timeout) => self.write(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Time until something is due without a call.
    fn rest(&self) -> Duration {
        let now = self.shared.clock.now();
        let due = self.open.as_ref().and_then(|open| open.table.next_duty());
        let due = due.unwrap_or(StoreTime::MAX).since(now);
        Duration::from_millis(due.0).min(HOUSEKEEPING)
    }

    fn serve(&mut self, first: StoreCommand) {
        let mut commands = vec![first];
        while commands.len() < BATCH_MAX
            && let Ok(command) = self.waiting.try_recv()
        {
            commands.push(command);
        }
        self.write(commands);
    }

    /// Opens the file, where it is not open, and reads the table.
    fn open(&mut self) {
        match self.try_open() {
            Ok(open) => {
                self.is_first = false;
                if self.shared.problem.lock().take().is_some() {
                    let live = open.table.len();
                    let path = self.shared.path.display();
                    tracing::info!(%path, live, "the store of jobs is open");
                }
                self.open = Some(open);
                self.publish_deployments();
                self.publish_ready();
                self.publish_levels();
            }
            Err(error) => self.fail(&error),
        }
    }

    fn try_open(&mut self) -> Result<OpenStore, String> {
        if self.lock.is_none() {
            self.lock = Some(lock_folder(&self.shared.path)?);
        }
        let opened = Database::open(&self.shared.path, Access::Write);
        let database = opened.map_err(|error| error.to_string())?;
        let now = self.shared.clock.now();
        let table = database
            .restore_table(now)
            .map_err(|error| error.to_string())?;
        let mut open = OpenStore { database, table };
        if self.is_first {
            open.release_lost(&self.shared, now)?;
        }
        Ok(open)
    }

    /// Closes the store for a reason that calls and operators get.
    fn fail(&mut self, error: &str) {
        self.open = None;
        self.retry_at = self.shared.clock.now() + Millis(HOUSEKEEPING.as_millis() as u64);
        let path = self.shared.path.display();
        let text: Arc<str> = format!("{path}: {error}").into();
        let before = self.shared.problem.lock().replace(Arc::clone(&text));
        if before.as_ref() != Some(&text) {
            tracing::error!(%path, error, "the store of jobs failed: no job is accepted until it works again");
        }
        self.shared.signals.clear_ready();
    }

    /// Applies calls and duties, commits, and answers.
    fn write(&mut self, commands: Vec<StoreCommand>) {
        let now = self.shared.clock.now();
        if self.open.is_none() && now >= self.retry_at {
            self.open();
        }
        let is_housekeeping = now >= self.housekeeping_at;
        if is_housekeeping {
            self.housekeeping_at = now + Millis(HOUSEKEEPING.as_millis() as u64);
        }
        let Some(open) = &mut self.open else {
            let problem = self.shared.problem.lock().clone().unwrap_or_default();
            let error = StoreError::Unavailable(problem);
            for command in commands {
                command.refuse(error.clone());
            }
            return;
        };
        let is_due = open.table.next_duty().is_some_and(|at| at <= now);
        if commands.is_empty() && !is_due && !is_housekeeping {
            return;
        }
        let count = commands.len();
        let mut answers: Vec<PendingReply> = Vec::with_capacity(count);
        let mut hints = BatchHints::default();
        let written = open.transact(&self.shared, now, |open| {
            open.table.expire(DUTY_MAX, now);
            open.table.release_due(DUTY_MAX, now);
            open.write_changes(&self.shared, &mut hints, None)?;
            for command in commands {
                open.apply(&self.shared, now, command, &mut answers, &mut hints)?;
            }
            if is_housekeeping {
                open.database.remove_expired(EXPIRED_MAX, now)?;
                open.database.remove_dead_webhooks(DEAD_WEBHOOKS_MAX)?;
            }
            Ok(())
        });
        match written {
            Ok(()) => {
                // Before the answers: who has one finds the change.
                if hints.has_deployments {
                    self.publish_deployments();
                }
                for answer in answers {
                    answer(None);
                }
                if count > 0 {
                    self.shared.metrics.record_batch(count);
                }
                self.publish(hints);
                self.publish_levels();
                if is_housekeeping && let Some(open) = &self.open {
                    // Space is given back in small steps; a failure leaves the file as large as it is.
                    let _ = open.database.shrink();
                }
            }
            Err(error) => {
                self.fail(&error.to_string());
                let error = StoreError::Unavailable(error.to_string().into());
                for answer in answers {
                    answer(Some(&error));
                }
            }
        }
    }

    /// Gives hints about what was committed.
    fn publish(&self, hints: BatchHints) {
        self.publish_ready();
        let signals = &self.shared.signals;
        self.shared.count_ends(&hints.outcomes);
        for job in &hints.ended {
            signals.job_ended(job);
        }
        for job in &hints.changed {
            signals.job_changed(job);
        }
        if !hints.ended.is_empty() {
            signals.events.notify_one();
            signals.work.notify_one();
        }
        if hints.has_webhooks {
            signals.webhooks.notify_one();
        }
    }

    /// Puts down the present counts for metrics and `/state`, at most once a second.
    fn publish_levels(&mut self) {
        let Some(open) = &self.open else { return };
        let now = self.shared.clock.now();
        if now < self.levels_at {
            return;
        }
        let levels = Arc::new(open.stats(now));
        *self.shared.levels.lock() = levels;
        let took = self.shared.clock.now().since(now).0;
        self.levels_at = now + Millis((took * LEVELS_PART).max(LEVELS_EVERY_MS));
    }

    fn publish_deployments(&self) {
        let Some(open) = &self.open else { return };
        match open.database.deployments() {
            Ok(deployments) => self.shared.deployments.set_stored(deployments),
            Err(error) => {
                tracing::error!(%error, "deployments cannot be read from the store of jobs")
            }
        }
    }

    fn publish_ready(&self) {
        let Some(open) = &self.open else { return };
        let counts = open.table.ready_counts();
        self.shared.signals.set_ready(counts);
    }
}

/// Locks the folder of the store, which is made where there is none. The kernel ends the lock with the process.
fn lock_folder(path: &Path) -> Result<File, String> {
    let folder = path.parent().unwrap_or(path);
    let lock = fs::create_dir_all(folder).and_then(|()| {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        options.open(folder.join("lock"))
    });
    let lock = lock.map_err(|error| error.to_string())?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            Err("another process has it: it is opened when that ends".to_owned())
        }
        Err(TryLockError::Error(error)) => Err(error.to_string()),
    }
}

impl OpenStore {
    fn transact(
        &mut self,
        _shared: &OwnerShared,
        _now: StoreTime,
        act: impl FnOnce(&mut OpenStore) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        self.database.begin()?;
        let done = act(self).and_then(|()| self.database.commit());
        if done.is_err() {
            self.database.roll_back();
        }
        done
    }

    /// Releases the running jobs of dead processes.
    fn release_lost(&mut self, shared: &OwnerShared, now: StoreTime) -> Result<(), String> {
        let workers = self.table.workers();
        if workers.is_empty() {
            return Ok(());
        }
        let mut hints = BatchHints::default();
        let released = self.transact(shared, now, |open| {
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
        released.map_err(|error| error.to_string())
    }

    /// Writes what the table has changed. `record` is the result of the one end that a worker wrote.
    fn write_changes(
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
    fn apply(
        &mut self,
        shared: &OwnerShared,
        now: StoreTime,
        command: StoreCommand,
        answers: &mut Vec<PendingReply>,
        hints: &mut BatchHints,
    ) -> rusqlite::Result<()> {
        match command {
            StoreCommand::Submit(job, reply) => {
                let result = self.submit(*job, now)?;
                answers.push(later(reply, result));
            }
            StoreCommand::Take(worker, request, reply) => {
                let mut runs = Vec::new();
                for taken in self.table.take(&worker, &request, now) {
                    let payload = self.database.payload(&taken.definition.id)?;
                    runs.push(StoredRun { taken, payload });
                }
                answers.push(later(reply, runs));
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
                let result = match self.table.cancel(&job, by, now) {
                    CancelResult::Unknown => self.ended_state(&job)?,
                    known => known,
                };
                answers.push(later(reply, result));
            }
            StoreCommand::Heartbeat(worker, held, reply) => {
                answers.push(later(reply, self.table.heartbeat(&worker, &held, now)));
            }
            StoreCommand::Retire(worker, reply) => {
                let all = self.table.len();
                self.table
                    .release_worker(&worker, ReleaseCause::Drain, all, now);
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
                answers.push(later(reply, self.write_deployment(&write, hints)?));
            }
        }
        self.write_changes(shared, hints, None)
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

    fn write_deployment(
        &self,
        write: &DeploymentWrite,
        hints: &mut BatchHints,
    ) -> rusqlite::Result<DeploymentResult> {
        let result = self.database.write_deployment(write)?;
        hints.has_deployments |= result == DeploymentResult::Done;
        Ok(result)
    }

    fn ended_state(&self, job: &JobId) -> rusqlite::Result<CancelResult> {
        let known = self.database.job(job)?;
        Ok(known.map_or(CancelResult::Unknown, |job| {
            CancelResult::AlreadyEnded(job.state)
        }))
    }

    fn full_stats(&self, now: StoreTime) -> StoreStats {
        let mut stats = self.stats(now);
        let keys = stats.deployables.iter().map(|state| state.key.clone());
        stats.by_account = keys
            .map(|key| (key.clone(), self.table.queued_by_account(&key)))
            .collect();
        stats
    }

    fn stats(&self, now: StoreTime) -> StoreStats {
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

impl StoreCommand {
    /// Returns the name in metrics.
    pub fn verb(&self) -> &'static str {
        match self {
            StoreCommand::Submit(..) => "submit",
            StoreCommand::Take(..) => "take",
            StoreCommand::Finish(..) => "finish",
            StoreCommand::Release(..) => "release",
            StoreCommand::Cancel(..) => "cancel",
            StoreCommand::Heartbeat(..) => "heartbeat",
            StoreCommand::Retire(..) => "retire",
            StoreCommand::EndQueued(..) => "end_queued",
            StoreCommand::SetPaused(..) => "set_paused",
            StoreCommand::Stats(..) => "stats",
            StoreCommand::AcknowledgeEvents(..) => "acknowledge_events",
            StoreCommand::SettleWebhook(..) => "settle_webhook",
            StoreCommand::WriteDeployment(..) => "write_deployment",
        }
    }

    fn refuse(self, error: StoreError) {
        match self {
            StoreCommand::Submit(_, reply) => reply.send(Err(error)),
            StoreCommand::Take(.., reply) => reply.send(Err(error)),
            StoreCommand::Finish(.., reply) | StoreCommand::Release(.., reply) => {
                reply.send(Err(error))
            }
            StoreCommand::Cancel(.., reply) => reply.send(Err(error)),
            StoreCommand::Heartbeat(.., reply) => reply.send(Err(error)),
            StoreCommand::Retire(_, reply)
            | StoreCommand::SetPaused(.., reply)
            | StoreCommand::AcknowledgeEvents(_, reply) => reply.send(Err(error)),
            StoreCommand::EndQueued(.., reply) => reply.send(Err(error)),
            StoreCommand::Stats(reply) => reply.send(Err(error)),
            StoreCommand::SettleWebhook(.., reply) => reply.send(Err(error)),
            StoreCommand::WriteDeployment(_, reply) => reply.send(Err(error)),
        }
    }
}
