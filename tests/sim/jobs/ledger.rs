//! Ledger beside the store: what was promised, what happened outside, and where the two differ.
//!
//! Decides nothing in the simulation. A broken promise is returned as a sentence.

use std::collections::{BTreeMap, BTreeSet};

use infergate_core::Millis;
use infergate_core::job::{
    EndReason, JobId, JobProgress, JobState, SubmitResult, WorkerId, WriteResult,
};

use super::kept::{JobEventId, KeptEnd, KeptJobs, StoreWrite};
use super::store::{LEASE, SimJobStore, StoreReply};

/// Sentence about a broken promise.
pub type Broken = String;

/// Longest time that a dead worker keeps its jobs once nothing else disturbs the store: its lease, one lease of
/// guard, and looks.
const LOST_AFTER: Millis = Millis(2 * LEASE.0 + 5_000);

/// Counts of rare things, to see that seeds reach them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RareThings {
    pub stale_writes: u64,
    pub repeated_ends: u64,
    pub repeated_submits: u64,
    pub orphans: u64,
    pub fences: u64,
    pub lost_workers: u64,
    pub failovers: u64,
    pub undone_ends: u64,
    pub dead_letters: u64,
    pub repeated_webhooks: u64,
}

impl RareThings {
    pub fn all(&self) -> [u64; 10] {
        [
            self.stale_writes,
            self.repeated_ends,
            self.repeated_submits,
            self.orphans,
            self.fences,
            self.lost_workers,
            self.failovers,
            self.undone_ends,
            self.dead_letters,
            self.repeated_webhooks,
        ]
    }
}

#[derive(Default)]
pub struct JobsLedger {
    pub rare: RareThings,
    /// Submits that were answered.
    pub acknowledged: BTreeMap<JobId, Millis>,
    /// Runs that began at a worker.
    pub executions: u64,
    started: BTreeSet<(JobId, u32, WorkerId)>,
    /// Epoch of each job as it is kept.
    epochs: BTreeMap<JobId, u32>,
    /// Jobs with an end that a failover has lost.
    pub undone: BTreeSet<JobId>,
    /// Jobs whose webhook was accepted.
    pub delivered: BTreeSet<JobId>,
    /// Charges by event, as a consumer that drops repeats has them.
    pub consumed: BTreeMap<JobEventId, u64>,
    /// Moment at which each worker's latest heartbeat reached the store.
    pub reached: BTreeMap<WorkerId, Millis>,
    /// Moment since which neither clocks nor the store nor sweepers were disturbed.
    calm_since: Millis,
}

impl JobsLedger {
    /// Notes that clocks, the store or sweepers are disturbed until `until`.
    pub fn disturb(&mut self, until: Millis) {
        self.calm_since = self.calm_since.max(until);
    }

    /// Compares committed writes with what they may be.
    pub fn observe(&mut self, writes: &[StoreWrite], kept: &KeptJobs) -> Result<(), Broken> {
        for write in writes {
            match write {
                StoreWrite::Submitted(definition) => self.judge_submit(definition.id)?,
                StoreWrite::Progressed(id, progress) => self.judge_progress(*id, progress)?,
                StoreWrite::Ended(end) => self.judge_end(end)?,
                _ => {}
            }
        }
        for write in writes {
            if let StoreWrite::Ended(end) = write
                && !kept.is_announced(end)
            {
                return Err(format!("{} ended without event and webhook", end.job()));
            }
        }
        Ok(())
    }

    fn judge_submit(&mut self, id: JobId) -> Result<(), Broken> {
        match self.epochs.insert(id, 0) {
            None => Ok(()),
            Some(_) => Err(format!("{id} is submitted twice")),
        }
    }

    fn judge_progress(&mut self, id: JobId, progress: &JobProgress) -> Result<(), Broken> {
        let before = self.epochs.insert(id, progress.epoch).unwrap_or(0);
        let is_next = progress.epoch == before + 1 && progress.owner.is_some();
        match progress.epoch == before || is_next {
            true => Ok(()),
            false => Err(format!("{id}: epoch {} after {before}", progress.epoch)),
        }
    }

    fn judge_end(&mut self, end: &KeptEnd) -> Result<(), Broken> {
        let id = end.job();
        let outcome = &end.outcome;
        let progress = &outcome.progress;
        let Some(epoch) = self.epochs.get(&id) else {
            return Err(format!("{id} ends and was never submitted"));
        };
        if *epoch == ENDED {
            return Err(format!("{id} ends twice"));
        }
        if *epoch != progress.epoch {
            let epochs = (progress.epoch, epoch);
            return Err(format!("{id} ends in an epoch of its own: {epochs:?}"));
        }
        let owner = progress.owner.as_ref();
        let owner = owner.map(|owner| (owner.worker.clone(), owner.epoch));
        if outcome.by_worker && (end.sent.is_none() || end.sent != owner) {
            let sent = &end.sent;
            return Err(format!("{id} of {owner:?} is ended by {sent:?}"));
        }
        if !outcome.by_worker && outcome.state == JobState::Succeeded {
            return Err(format!("{id} succeeds without a worker"));
        }
        let was_started = progress.started.is_some();
        let by_table = outcome.reason.filter(|_| !outcome.by_worker);
        if by_table.is_some_and(|reason| reason.state(was_started) != outcome.state) {
            return Err(format!("{id} ends {:?} by {by_table:?}", outcome.state));
        }
        if was_started && by_table == Some(EndReason::NeverStarted) {
            return Err(format!("{id} was started, and ends as never started"));
        }
        self.epochs.insert(id, ENDED);
        Ok(())
    }

    /// Counts a reply of the store.
    pub fn count(&mut self, reply: &StoreReply) {
        match reply {
            StoreReply::Written(_, _, WriteResult::Stale) => self.rare.stale_writes += 1,
            StoreReply::Written(_, _, WriteResult::Already) => self.rare.repeated_ends += 1,
            StoreReply::Submitted(_, SubmitResult::Exists(_)) => self.rare.repeated_submits += 1,
            StoreReply::Heartbeat { reply, .. } => self.rare.orphans += reply.orphans.len() as u64,
            _ => {}
        }
    }

    /// Takes back what a failover has lost; `kept` is what is left.
    pub fn undo(&mut self, lost: &[StoreWrite], kept: &KeptJobs) {
        self.rare.failovers += 1;
        for write in lost {
            if let StoreWrite::Ended(end) = write {
                self.rare.undone_ends += 1;
                self.undone.insert(end.job());
            }
        }
        let live = kept.live.iter().map(|(id, job)| (*id, job.progress.epoch));
        let ended = kept.ended.keys().map(|id| (*id, ENDED));
        self.epochs = live.chain(ended).collect();
    }

    /// Sets the epochs of jobs whose rows workers and API nodes have brought back.
    pub fn accept(&mut self, kept: &KeptJobs) {
        for (id, job) in &kept.live {
            self.epochs.insert(*id, job.progress.epoch);
        }
    }

    pub fn begin(&mut self, job: JobId, epoch: u32, worker: &WorkerId) -> Result<(), Broken> {
        self.executions += 1;
        let is_new = self.started.insert((job, epoch, worker.clone()));
        match is_new || self.rare.failovers > 0 {
            true => Ok(()),
            false => Err(format!("{job} begins twice in epoch {epoch} at {worker:?}")),
        }
    }

    /// Judges that a worker is declared lost.
    pub fn judge_lost(&self, worker: &WorkerId, now: Millis) -> Result<(), Broken> {
        let Some(reached) = self.reached.get(worker) else {
            return Ok(());
        };
        match now.since(*reached) < LEASE {
            true => Err(format!("{worker:?} is declared lost and lives")),
            false => Ok(()),
        }
    }

    /// Compares table, rows and workers with each other, after a commit.
    pub fn compare(&self, store: &SimJobStore, now: Millis) -> Result<(), Broken> {
        if store.table.len() != store.kept.live.len() {
            let counts = (store.table.len(), store.kept.live.len());
            return Err(format!("jobs in the table and kept differ: {counts:?}"));
        }
        for (id, kept) in &store.kept.live {
            let Some(job) = store.table.job(id) else {
                return Err(format!("{id} is kept and not in the table"));
            };
            let (has, wrote) = (&job.progress, &kept.progress);
            let is_same = has.epoch == wrote.epoch
                && has.owner == wrote.owner
                && has.attempts == wrote.attempts
                && has.started == wrote.started
                && has.cancel == wrote.cancel;
            if !is_same {
                return Err(format!("{id} is {has:?} and kept as {wrote:?}"));
            }
        }
        for (worker, jobs) in store.table.workers() {
            if !store.leases.contains(&worker) {
                return Err(format!("{jobs} jobs of {worker:?} are nobody's"));
            }
            let reached = self.reached.get(&worker).copied().unwrap_or_default();
            if now.since(reached.max(self.calm_since)) > LOST_AFTER {
                return Err(format!("{worker:?} is dead and keeps its jobs"));
            }
        }
        Ok(())
    }

    /// Judges the whole run once everything is quiet. `excused`: runs that may have been repeated.
    pub fn close(&self, kept: &KeptJobs, excused: u64) -> Result<(), Broken> {
        for id in self.acknowledged.keys() {
            if !kept.ended.contains_key(id) {
                return Err(format!("{id} was accepted and has no end"));
            }
        }
        let mut owed = 0;
        for (id, end) in &kept.ended {
            let is_dead = kept.settled_webhooks.get(id) == Some(&true);
            let is_delivered = self.delivered.contains(id);
            if end.outcome.definition.has_webhook && !is_dead && !is_delivered {
                return Err(format!("the webhook of {id} is lost"));
            }
            let of_job = self.consumed.keys().filter(|(job, _)| job == id).count();
            let is_whole = self.consumed.contains_key(&end.event());
            if !is_whole || (of_job != 1 && !self.undone.contains(id)) {
                return Err(format!("{id} has {of_job} events, its own: {is_whole}"));
            }
            owed += match self.undone.contains(id) {
                true => 0,
                false => end.charge,
            };
        }
        let of_ends = self.consumed.iter();
        let of_ends = of_ends.filter(|((job, _), _)| !self.undone.contains(job));
        let charged: u64 = of_ends.map(|(_, charge)| charge).sum();
        if charged != owed {
            return Err(format!("events charge {charged}, records {owed}"));
        }
        let bound = kept.ended.len() as u64 + excused;
        if self.executions > bound {
            let executions = self.executions;
            return Err(format!("{executions} executions, at most {bound} expected"));
        }
        Ok(())
    }
}

/// Mark of an ended job among the epochs.
const ENDED: u32 = u32::MAX;
