//! Thread that owns the table of the embedded store and writes its rows.
//!
//! Not a reader of ended jobs. Calls are gathered while the disk syncs: one transaction for all of them, then their
//! answers. Ends by time, due releases and removal of old rows happen here between calls.

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::job::{StoreTime, WorkerId};

use super::command::StoreCommand;
use super::database::{Access, Database};
use super::deployment_rows::deployments;
use super::files::{StoreFailure, StoreFiles};
use super::handover::{HandedOverStore, SuccessorListener, ask_for_store};
use super::open_store::{BatchHints, DUTY_MAX, OpenStore, PendingReply};
use super::shared::OwnerShared;
use crate::jobs::store::StoreError;

/// Calls in one transaction.
const BATCH_MAX: usize = 512;
/// Rows that are removed in one transaction.
const EXPIRED_MAX: usize = 1000;
/// Interval of looks at old rows, and of attempts to open a store that failed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Pause before a damaged store is opened again.
const DAMAGED_PAUSE: Millis = Millis::from_secs(60);
/// Time after a failure in which nothing ends by time: ends that were kept in memory meanwhile go first.
const ENDS_FIRST: Millis = Millis::from_secs(5);
/// Interval of looks for cancels of running jobs once the store is another process's.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Least interval of levels for metrics, milliseconds, and the part of the thread's time that they may take.
const LEVELS_EVERY_MS: u64 = 1000;
const LEVELS_PART: u64 = 100;
/// Undelivered webhooks that are kept for operators.
const DEAD_WEBHOOKS_MAX: usize = 10_000;

/// Owner of the table.
pub(super) struct StoreOwner {
    shared: Arc<OwnerShared>,
    waiting: Receiver<StoreCommand>,
    open: Option<OpenStore>,
    files: StoreFiles,
    /// Way of a successor to the store, while it is open.
    listener: Option<SuccessorListener>,
    /// Successor that has taken the store over.
    successor: Option<HandedOverStore>,
    heartbeat_at: StoreTime,
    /// Workers of this process, where the store comes back from a successor that is gone.
    taken_back: Option<Vec<WorkerId>>,
    housekeeping_at: StoreTime,
    /// Moment before which a store that failed is not opened again.
    retry_at: StoreTime,
    levels_at: StoreTime,
    /// Moment before which nothing ends by time.
    expire_from: StoreTime,
    /// The first opening of the process: running jobs are those of a dead one.
    is_first: bool,
}

impl StoreOwner {
    pub fn new(shared: Arc<OwnerShared>, waiting: Receiver<StoreCommand>) -> StoreOwner {
        StoreOwner {
            files: StoreFiles::new(&shared.path),
            listener: None,
            successor: None,
            heartbeat_at: StoreTime::default(),
            taken_back: None,
            shared,
            waiting,
            open: None,
            housekeeping_at: StoreTime::default(),
            retry_at: StoreTime::default(),
            levels_at: StoreTime::default(),
            expire_from: StoreTime::default(),
            is_first: true,
        }
    }

    /// Serves calls until the handle is dropped.
    pub fn run(mut self, opened: &SyncSender<Option<UnixStream>>) {
        let mut predecessor = None;
        if let Err(failure) = self.files.lock() {
            predecessor = self.take_over(&failure);
        }
        self.open(predecessor.is_some());
        // The one that waits for the first attempt.
        let _ = opened.try_send(predecessor);
        loop {
            self.look_for_successor();
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
        let due = self.next_duty().unwrap_or(StoreTime::MAX).since(now);
        let most = match self.successor {
            Some(_) => HEARTBEAT,
            None => HOUSEKEEPING,
        };
        Duration::from_millis(due.0).min(most)
    }

    fn next_duty(&self) -> Option<StoreTime> {
        let due = self.open.as_ref()?.table.next_duty()?;
        Some(due.max(self.expire_from))
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
    fn open(&mut self, is_taken_over: bool) {
        match self.try_open(is_taken_over) {
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
            Err(failure) => self.fail(&failure),
        }
    }

    fn try_open(&mut self, is_taken_over: bool) -> Result<OpenStore, StoreFailure> {
        self.files.lock()?;
        match self.is_first {
            true => self.files.check()?,
            false => self.files.check_room()?,
        }
        let database = Database::open(&self.shared.path, Access::Write)?;
        // Old frames would be taken for damage by the check of the next start.
        database.truncate_log();
        self.files.mark_used();
        let now = self.shared.clock.now();
        let table = database.restore_table(now)?;
        self.listener = SuccessorListener::bind(self.files.folder());
        let mut open = OpenStore { database, table };
        match self.is_first {
            true if is_taken_over => {
                let workers = open.table.workers().into_iter();
                *self.shared.predecessors.lock() = workers.map(|(worker, _)| worker).collect();
            }
            true => open.release_lost(&self.shared, &[], now)?,
            false => {
                // The process that had the store meanwhile is dead.
                if let Some(own) = &self.taken_back {
                    open.release_lost(&self.shared, own, now)?;
                    self.taken_back = None;
                }
                self.expire_from = now + ENDS_FIRST;
            }
        }
        Ok(open)
    }

    /// Asks the process that has the store to let go of it. Returns the connection to it, once the lock is free.
    fn take_over(&mut self, failure: &StoreFailure) -> Option<UnixStream> {
        let asked = ask_for_store(self.files.folder());
        let predecessor = asked.inspect_err(
            |error| tracing::info!(%failure.text, %error, "the store of jobs is not taken over"),
        );
        let predecessor = predecessor.ok()?;
        self.files.lock().is_ok().then_some(predecessor)
    }

    /// Lets go of the store where another process asks for it: between two transactions, so nothing is under way.
    fn look_for_successor(&mut self) {
        let asking = self.listener.as_ref().and_then(SuccessorListener::accept);
        let Some(stream) = asking else { return };
        let Some(open) = self.open.take() else { return };
        let workers = open.table.workers();
        drop(open);
        self.listener = None;
        self.shared.signals.clear_ready();
        self.files.unlock();
        match HandedOverStore::begin(stream, workers) {
            Ok(successor) => {
                self.shared.is_handed_over.store(true, Ordering::Release);
                tracing::info!("another process has taken the store of jobs over");
                self.successor = Some(successor);
            }
            Err(error) => {
                tracing::warn!(%error, "the process that asked for the store of jobs is gone")
            }
        }
    }

    /// Opens the store again: the process that took it over is gone.
    fn take_back(&mut self, successor: HandedOverStore, error: &std::io::Error) {
        self.taken_back = Some(successor.workers);
        tracing::warn!(%error, "the process that took the store of jobs over is gone");
        self.successor = None;
        self.shared.is_handed_over.store(false, Ordering::Release);
        self.retry_at = StoreTime::default();
    }

    /// Sends calls to the process that has taken the store over.
    fn forward(&mut self, commands: Vec<StoreCommand>) {
        let Some(mut successor) = self.successor.take() else {
            return;
        };
        let mut ended = Ok(());
        for command in commands.into_iter().filter(|it| !it.is_abandoned()) {
            ended = match ended {
                Ok(()) => successor.forward(&self.shared, command),
                Err(error) => {
                    command.refuse(StoreError::Timeout);
                    Err(error)
                }
            };
        }
        let now = self.shared.clock.now();
        if ended.is_ok() && now >= self.heartbeat_at {
            self.heartbeat_at = now + Millis(HEARTBEAT.as_millis() as u64);
            ended = successor.heartbeat(&self.shared);
        }
        match ended {
            Ok(()) => self.successor = Some(successor),
            Err(error) => self.take_back(successor, &error),
        }
    }

    /// Closes the store for a reason that calls and operators get.
    fn fail(&mut self, failure: &StoreFailure) {
        self.open = None;
        let pause = match failure.is_damaged {
            true => DAMAGED_PAUSE,
            false => Millis(HOUSEKEEPING.as_millis() as u64),
        };
        self.retry_at = self.shared.clock.now() + pause;
        let error = &*failure.text;
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
        if self.successor.is_some() {
            return self.forward(commands);
        }
        if self.open.is_none() && now >= self.retry_at {
            self.open(false);
        }
        let is_housekeeping = now >= self.housekeeping_at;
        if is_housekeeping {
            self.housekeeping_at = now + Millis(HOUSEKEEPING.as_millis() as u64);
        }
        let (expire_from, next_duty) = (self.expire_from, self.next_duty());
        let Some(open) = &mut self.open else {
            let problem = self.shared.problem.lock().clone().unwrap_or_default();
            let error = StoreError::Unavailable(problem);
            for command in commands {
                command.refuse(error.clone());
            }
            return;
        };
        let is_due = next_duty.is_some_and(|at| at <= now);
        if commands.is_empty() && !is_due && !is_housekeeping {
            return;
        }
        let count = commands.len();
        let mut answers: Vec<PendingReply> = Vec::with_capacity(count);
        let mut hints = BatchHints::default();
        #[cfg(test)]
        open.database.limit_pages(&self.shared.settings);
        let written = open.transact(|open| {
            if now >= expire_from {
                open.table.expire(DUTY_MAX, now);
                open.table.release_due(DUTY_MAX, now);
                open.write_changes(&self.shared, &mut hints, None)?;
            }
            // Looked at here, because the disk may have taken its time until now.
            for command in commands.into_iter().filter(|it| !it.is_abandoned()) {
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
            Err(error) => self.answer_failure(StoreFailure::from(error), answers),
        }
    }

    /// Closes the store, and answers the calls of the transaction that failed.
    fn answer_failure(&mut self, failure: StoreFailure, answers: Vec<PendingReply>) {
        self.fail(&failure);
        let error = match failure.is_outcome_unknown {
            true => StoreError::Timeout,
            false => StoreError::Unavailable(failure.text.into()),
        };
        for answer in answers {
            answer(Some(&error));
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
        match deployments(&open.database) {
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
