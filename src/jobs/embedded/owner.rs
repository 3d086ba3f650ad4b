//! Thread that owns the table of the embedded store and writes its rows.
//!
//! Not a reader of ended jobs. Calls are gathered while the disk syncs: one transaction for all of them, then their
//! answers. Ends by time, due releases and removal of old rows happen here between calls.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::job::{EndReason, JobOutcome, StoreTime, WorkerId};

use super::command::StoreCommand;
use super::database::{Access, Database};
use super::deployment_rows::deployments;
use super::files::{StoreFailure, StoreFiles};
use super::handed_over::HandedOverStore;
use super::handover::{SuccessorListener, ask_for_store};
use super::open_store::{BatchHints, DUTY_MAX, OpenStore, PendingReply, Removal};
use super::shared::OwnerShared;
use super::webhook_rows::DEAD_LETTERS_MAX;
use super::wire::StoreRequest;
use crate::jobs::store::StoreError;
use crate::telemetry::duty_metrics::JobDuty;

/// Calls in one transaction.
const BATCH_MAX: usize = 512;
/// Requests of other processes that one look answers.
const REQUESTS_MAX: usize = 16;
/// Interval of looks at old rows, and of attempts to open a store that failed.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// Pause before a damaged store is opened again.
const DAMAGED_PAUSE: Millis = Millis::from_secs(60);
/// Time after a failure in which nothing ends by time: ends that were kept in memory meanwhile go first.
const ENDS_FIRST: Millis = Millis::from_secs(5);
/// Time without a failure after which the next one may be of the moment: the store is opened again at once.
const SOUND: Millis = Millis::from_secs(10);
/// Time between two looks after which the process has stood still: it rests for [`HOUSEKEEPING`] at most.
const FROZEN: Millis = Millis::from_secs(3);
/// Interval of looks for cancels of running jobs once the store is another process's.
const HEARTBEAT: Duration = Duration::from_millis(250);
/// Difference between two looks at the wall clock that is a jump, milliseconds: a clock that is slewed moves by less.
const CLOCK_JUMP_MS: u64 = 2000;
/// Least interval of levels for metrics, milliseconds, and the part of the thread's time that they may take.
const LEVELS_EVERY_MS: u64 = 1000;
const LEVELS_PART: u64 = 100;

/// Owner of the table.
pub(super) struct StoreOwner {
    shared: Arc<OwnerShared>,
    waiting: Receiver<StoreCommand>,
    open: Option<OpenStore>,
    files: StoreFiles,
    /// Way of a successor to the store, while it is open.
    listener: Option<SuccessorListener>,
    /// Way to the server of the process that had the store before.
    predecessor: SyncSender<UnixStream>,
    /// A process that lived let go of the store for this one: running jobs are its own.
    is_taken_over: bool,
    /// Successor that has taken the store over.
    successor: Option<HandedOverStore>,
    heartbeat_at: StoreTime,
    /// Workers of this process, where the store comes back from a successor that is gone.
    taken_back: Option<Vec<WorkerId>>,
    housekeeping_at: StoreTime,
    /// Place where the removal of rows goes on; none while there are no more.
    remove_from: Option<StoreTime>,
    /// Moment before which a store that failed is not opened again.
    retry_at: StoreTime,
    /// Last failure.
    failed_at: Option<StoreTime>,
    levels_at: StoreTime,
    /// Moment before which nothing ends by time.
    expire_from: StoreTime,
    /// Last look at what is due.
    looked_at: StoreTime,
    /// Lead of the wall clock at the last look, milliseconds.
    wall_ahead_ms: i64,
    /// The first opening of the process: running jobs are those of a dead one.
    is_first: bool,
}

impl StoreOwner {
    pub fn new(
        shared: Arc<OwnerShared>,
        waiting: Receiver<StoreCommand>,
        predecessor: SyncSender<UnixStream>,
    ) -> StoreOwner {
        StoreOwner {
            predecessor,
            is_taken_over: false,
            files: StoreFiles::new(&shared.path),
            listener: None,
            successor: None,
            heartbeat_at: StoreTime::default(),
            taken_back: None,
            wall_ahead_ms: shared.clock.wall_ahead_ms(),
            looked_at: shared.clock.now(),
            shared,
            waiting,
            open: None,
            housekeeping_at: StoreTime::default(),
            remove_from: None,
            retry_at: StoreTime::default(),
            failed_at: None,
            levels_at: StoreTime::default(),
            expire_from: StoreTime::default(),
            is_first: true,
        }
    }

    /// Serves calls until the handle is dropped. `opened` gets whether another process had the store at the start.
    pub fn run(mut self, opened: &SyncSender<bool>) {
        let has_predecessor = self.files.lock().is_err();
        self.open();
        // The one that waits for the first attempt.
        let _ = opened.try_send(has_predecessor);
        loop {
            self.answer_processes();
            match self.waiting.recv_timeout(self.rest()) {
                Ok(command) => self.serve(command),
                Err(RecvTimeoutError::Timeout) => self.write_guarded(Vec::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Time until something is due without a call.
    fn rest(&self) -> Duration {
        if self.remove_from.is_some() && self.open.is_some() {
            return Duration::ZERO;
        }
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
        self.write_guarded(commands);
    }

    /// Writes, and closes the store after a panic: the table may be half changed then, and is read again.
    fn write_guarded(&mut self, commands: Vec<StoreCommand>) {
        let written = catch_unwind(AssertUnwindSafe(|| self.write(commands)));
        if written.is_err() {
            self.fail(&StoreFailure {
                text: "a fault of this program, which the log has: please report it".to_owned(),
                is_damaged: false,
                is_outcome_unknown: true,
            });
        }
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
            Err(failure) => self.fail(&failure),
        }
    }

    fn try_open(&mut self) -> Result<OpenStore, StoreFailure> {
        self.lock()?;
        match self.is_first {
            true => self.files.check()?,
            false => self.files.check_room()?,
        }
        let mut database = Database::open(&self.shared.path, Access::Write)?;
        // Old frames would be taken for damage by the check of the next start.
        database.truncate_log();
        self.files.mark_used();
        let now = self.shared.clock.now();
        let table = database.restore_table(now)?;
        self.listener = SuccessorListener::bind(self.files.folder());
        let mut open = OpenStore { database, table };
        match self.is_first {
            true if self.is_taken_over => {
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

    /// Locks the store, which a process that had it at the start of this one is asked for.
    fn lock(&mut self) -> Result<(), StoreFailure> {
        let Err(failure) = self.files.lock() else {
            return Ok(());
        };
        if !self.is_first {
            return Err(failure);
        }
        match ask_for_store(self.files.folder()) {
            Ok(stream) => {
                self.files.lock()?;
                self.is_taken_over = true;
                self.attach(stream);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%failure.text, %error, "the store of jobs is not taken over");
                Err(failure)
            }
        }
    }

    /// Has the connection of a process served that had the store before.
    fn attach(&mut self, stream: UnixStream) {
        // One without room is made again by the process that it is of.
        if self.predecessor.try_send(stream).is_ok() {
            let connections = &self.shared.predecessor_connections;
            connections.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Answers other processes: between two transactions, so nothing is under way.
    fn answer_processes(&mut self) {
        for _ in 0..REQUESTS_MAX {
            let asking = self.listener.as_ref().and_then(SuccessorListener::accept);
            match asking {
                Some((StoreRequest::Resume, stream)) => self.attach(stream),
                Some((StoreRequest::LetGo, stream)) => return self.let_go(stream),
                None => return,
            }
        }
    }

    /// Lets go of the store where it is open.
    fn let_go(&mut self, stream: UnixStream) {
        let Some(open) = self.open.take() else { return };
        let workers = open.table.workers();
        drop(open);
        self.listener = None;
        self.shared.signals.clear_ready();
        self.files.unlock();
        match HandedOverStore::begin(stream, workers, self.files.folder()) {
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

    /// Opens the store again where the process that took it over is gone; where it lives, its connection is made anew.
    fn take_back(&mut self, successor: HandedOverStore, error: &std::io::Error) {
        if self.files.lock().is_err() {
            tracing::debug!(%error, "the process that has the store of jobs does not answer");
            self.successor = Some(successor);
            return;
        }
        self.taken_back = Some(successor.workers);
        tracing::warn!(%error, "the process that took the store of jobs over is gone");
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
        let now = self.shared.clock.now();
        let was_sound = self.failed_at.is_none_or(|at| now.since(at) > SOUND);
        self.failed_at = Some(now);
        let pause = match failure.is_damaged {
            true => DAMAGED_PAUSE,
            // Those whose outcome is unknown ask again within a second.
            false if failure.is_outcome_unknown && was_sound => Millis(0),
            false => Millis(HOUSEKEEPING.as_millis() as u64),
        };
        self.retry_at = now + pause;
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
        if now.since(self.looked_at) > FROZEN {
            // The process stood still, and its runs with it: what they come to is theirs to say.
            self.expire_from = self.expire_from.max(now + ENDS_FIRST);
        }
        self.looked_at = now;
        if self.successor.is_some() {
            return self.forward(commands);
        }
        if self.open.is_none() && now >= self.retry_at {
            self.open();
        }
        let is_housekeeping = now >= self.housekeeping_at;
        if is_housekeeping {
            self.housekeeping_at = now + Millis(HOUSEKEEPING.as_millis() as u64);
            self.look_at_clock();
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
        let removal = match is_housekeeping {
            true => Some(Removal::All),
            false => self.remove_from.map(Removal::Rest),
        };
        if commands.is_empty() && !is_due && removal.is_none() {
            return;
        }
        let count = commands.len();
        let mut answers: Vec<PendingReply> = Vec::with_capacity(count);
        let mut hints = BatchHints::default();
        #[cfg(test)]
        open.database.limit_pages(&self.shared.settings);
        let mut remove_from = None;
        let written = open.transact(|open| {
            if now >= expire_from {
                hints.expired = open.table.expire(DUTY_MAX, now);
                hints.released = open.table.release_due(DUTY_MAX, now);
                open.write_changes(&self.shared, &mut hints, None)?;
            }
            // Looked at here, because the disk may have taken its time until now.
            for command in commands.into_iter().filter(|it| !it.is_abandoned()) {
                open.apply(&self.shared, now, command, &mut answers, &mut hints)?;
            }
            if let Some(removal) = removal {
                let how = (removal, count == 0);
                remove_from = open.remove_rows(&self.shared, &mut hints, how, now)?;
            }
            Ok(())
        });
        self.remove_from = remove_from.filter(|_| written.is_ok());
        match written {
            Ok(()) => {
                self.answer_success(hints, answers, count);
                if is_housekeeping && let Some(open) = &self.open {
                    // Space is given back in small steps; a failure leaves the file as large as it is.
                    let _ = open.database.shrink();
                }
            }
            Err(error) => self.answer_failure(StoreFailure::from(error), answers),
        }
    }

    /// Answers the calls of a transaction that is kept, `count` of them, and gives its hints.
    fn answer_success(&mut self, hints: BatchHints, answers: Vec<PendingReply>, count: usize) {
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
        for letter in &hints.dropped_letters {
            self.shared.metrics.webhooks.record_dropped();
            let (id, last_result) = (&*letter.id, &*letter.last_result);
            tracing::warn!(
                id,
                last_result,
                kept = DEAD_LETTERS_MAX,
                "a dead letter is not kept any more: there are too many newer ones"
            );
        }
        self.count_duties(&hints);
        if let Some(removed) = hints.removed {
            signals.free_files(removed.files);
        }
        if hints.has_webhooks {
            signals.webhooks.notify_one();
        }
    }

    /// Counts what the transaction did by itself: in those with housekeeping, and where there was something to do.
    fn count_duties(&self, hints: &BatchHints) {
        let now_ms = self.shared.clock.now().0;
        let duties = &self.shared.metrics.duties;
        let reason = |outcome: &&JobOutcome| outcome.reason == Some(EndReason::NeverStarted);
        let never_started = hints.outcomes.iter().filter(reason).count();
        let by_time = hints.expired.saturating_sub(never_started);
        for (duty, items) in [
            (JobDuty::Deadlines, by_time),
            (JobDuty::Releases, hints.released),
            (JobDuty::Retention, never_started),
        ] {
            if items > 0 || hints.removed.is_some() {
                duties.record_run(duty, items, now_ms);
            }
        }
        if let Some(removed) = &hints.removed {
            duties.record_run(JobDuty::Garbage, removed.jobs, now_ms);
        }
    }

    /// Counts a jump of the wall clock. The time of the store does not follow it before the next start.
    fn look_at_clock(&mut self) {
        let ahead_ms = self.shared.clock.wall_ahead_ms();
        if let Some(jump_ms) = clock_jump(self.wall_ahead_ms, ahead_ms) {
            tracing::warn!(
                jump_ms,
                "the wall clock jumped: jobs follow it at the next start"
            );
            self.shared.metrics.duties.record_clock_jump();
        }
        self.wall_ahead_ms = ahead_ms;
    }

    /// Puts down the present counts for metrics and `/state`, at most once a second.
    fn publish_levels(&mut self) {
        let Some(open) = &self.open else { return };
        let now = self.shared.clock.now();
        if now < self.levels_at {
            return;
        }
        let levels = Arc::new(open.stats(now));
        let mut histories = self.shared.histories.lock();
        histories.sample(&levels.deployables, now);
        drop(histories);
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

/// Returns how far the wall clock jumped between two looks, milliseconds, by its leads over a clock that does not.
fn clock_jump(before_ms: i64, ahead_ms: i64) -> Option<i64> {
    let jump_ms = ahead_ms.saturating_sub(before_ms);
    (jump_ms.unsigned_abs() >= CLOCK_JUMP_MS).then_some(jump_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_slewed_has_not_jumped() {
        assert_eq!(clock_jump(5, 505), None);
        assert_eq!(clock_jump(0, -1999), None);
        assert_eq!(clock_jump(0, 3_600_000), Some(3_600_000));
        assert_eq!(clock_jump(3_600_000, 0), Some(-3_600_000));
    }
}
