//! Simulated store: the real table and leases, group commit, and rows that survive a crash.
//!
//! No network: calls come when they arrive. A call changes the table at once, and its reply waits for the commit;
//! a crash takes both along. Faults are planted here, never in the core.

use infergate_core::Millis;
use infergate_core::job::{
    CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobChange, JobId, JobTable,
    NewJob, Release, ReleaseCause, RunEnd, StoreTime, SubmitResult, TakeRequest, TakenJob,
    WorkerId, WorkerLeases, WriteResult, judge_write,
};
use infergate_core::model::FairBy;

use super::kept::{CommitLog, KeptEnd, KeptJobs, StoreWrite};

/// Lease of a worker.
pub const LEASE: Millis = Millis(10_000);

/// Fault of the store that the ledger must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A write counts for the present owner, whoever sent it.
    EpochNotCompared,
    /// Flows are not charged for the time that their jobs held permits.
    ChargeForgotten,
    /// The outbox is written by the commit after the end's.
    OutboxOutsideCommit,
    /// Leases are renewed by the worker's clock.
    LeaseByNodeClock,
}

/// Call of the store.
#[derive(Clone, Debug)]
pub enum StoreCall {
    Submit(Box<NewJob>),
    Cancel(JobId),
    Take {
        sequence: u64,
        request: TakeRequest,
    },
    Finish(RunEnd),
    Release(Release),
    Heartbeat {
        sent: Millis,
        held: HeldJobs,
        /// Worker's own clock, which nothing may rely on.
        node_clock: StoreTime,
    },
    Retire,
}

/// Reply to a call.
#[derive(Clone, Debug)]
pub enum StoreReply {
    Submitted(JobId, SubmitResult),
    Taken {
        sequence: u64,
        taken: Vec<TakenJob>,
    },
    Written(JobId, u32, WriteResult),
    Heartbeat {
        sent: Millis,
        is_known: bool,
        reply: HeartbeatReply,
        store_time: StoreTime,
    },
    Nothing,
}

pub struct SimJobStore {
    pub table: JobTable,
    pub leases: WorkerLeases,
    pub kept: KeptJobs,
    pub log: CommitLog,
    pub fault: Option<PlantedFault>,
    /// Executed and not committed.
    pending: Vec<StoreWrite>,
    /// Written by the commit after next, under [`PlantedFault::OutboxOutsideCommit`].
    late: Vec<StoreWrite>,
}

impl SimJobStore {
    pub fn new(fault: Option<PlantedFault>) -> SimJobStore {
        SimJobStore {
            table: JobTable::new(),
            leases: WorkerLeases::new(LEASE),
            kept: KeptJobs::default(),
            log: Vec::new(),
            fault,
            pending: Vec::new(),
            late: Vec::new(),
        }
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.late.is_empty()
    }

    /// Executes a call of `worker`, or of an API node.
    pub fn call(
        &mut self,
        worker: Option<&WorkerId>,
        call: StoreCall,
        now: StoreTime,
    ) -> StoreReply {
        match (call, worker) {
            (StoreCall::Submit(job), _) => self.submit(*job, now),
            (StoreCall::Cancel(id), _) => {
                self.table.cancel(&id, CanceledBy::User, now);
                self.collect(None);
                StoreReply::Nothing
            }
            (StoreCall::Take { sequence, request }, Some(worker)) => {
                // Without a lease nobody would find the jobs when the worker is lost.
                let taken = match self.leases.contains(worker) {
                    true => self.table.take(worker, &request, now),
                    false => Vec::new(),
                };
                self.collect(None);
                StoreReply::Taken { sequence, taken }
            }
            (StoreCall::Finish(end), Some(worker)) => self.finish(worker, end, now),
            (StoreCall::Release(release), Some(worker)) => self.release(worker, release, now),
            (
                StoreCall::Heartbeat {
                    sent,
                    held,
                    node_clock,
                },
                Some(worker),
            ) => {
                let clock = match self.fault {
                    Some(PlantedFault::LeaseByNodeClock) => node_clock,
                    _ => now,
                };
                self.heartbeat(worker, (sent, held), clock, now)
            }
            (StoreCall::Retire, Some(worker)) => {
                self.release_worker(worker, ReleaseCause::Drain, now);
                StoreReply::Nothing
            }
            (_, None) => StoreReply::Nothing,
        }
    }

    fn submit(&mut self, mut job: NewJob, now: StoreTime) -> StoreReply {
        if self.fault == Some(PlantedFault::ChargeForgotten) {
            job.definition.fair_by = FairBy::Jobs;
        }
        let id = job.definition.id;
        // The table forgets ends, the store does not.
        if let Some(end) = self.kept.ended.get(&id) {
            return StoreReply::Submitted(id, SubmitResult::Exists(end.outcome.state));
        }
        let result = self.table.submit(job, now);
        if result == SubmitResult::Created
            && let Some(job) = self.table.job(&id)
        {
            let definition = job.definition.clone();
            self.pending.push(StoreWrite::Submitted(definition));
        }
        self.collect(None);
        StoreReply::Submitted(id, result)
    }

    fn finish(&mut self, worker: &WorkerId, end: RunEnd, now: StoreTime) -> StoreReply {
        let sent = (worker.clone(), end.epoch);
        let (writer, epoch) = self.as_compared(worker, &end.id, end.epoch);
        let compared = RunEnd { epoch, ..end };
        let result = self.table.finish(&writer, &compared, now);
        self.collect(Some(sent));
        let result = self.judge_ended(result, &compared, &writer);
        StoreReply::Written(end.id, end.epoch, result)
    }

    fn release(&mut self, worker: &WorkerId, release: Release, now: StoreTime) -> StoreReply {
        let (writer, epoch) = self.as_compared(worker, &release.id, release.epoch);
        let compared = Release {
            epoch,
            ..release.clone()
        };
        let result = self.table.release(&writer, &compared, now);
        self.collect(None);
        StoreReply::Written(release.id, release.epoch, result)
    }

    /// Worker and epoch that a write is compared by: its own, unless the fault is planted.
    fn as_compared(&self, worker: &WorkerId, id: &JobId, epoch: u32) -> (WorkerId, u32) {
        let owner = self
            .table
            .job(id)
            .and_then(|job| job.progress.owner.as_ref());
        match (self.fault, owner) {
            (Some(PlantedFault::EpochNotCompared), Some(owner)) => {
                (owner.worker.clone(), owner.epoch)
            }
            _ => (worker.clone(), epoch),
        }
    }

    /// Judges a write to a job that the table does not know any more by its row, as every store does.
    fn judge_ended(&self, result: WriteResult, end: &RunEnd, writer: &WorkerId) -> WriteResult {
        let kept = self.kept.ended.get(&end.id);
        match (result, kept) {
            (WriteResult::Stale, Some(kept)) if self.table.job(&end.id).is_none() => {
                judge_write(kept.outcome.position(), writer, end.epoch)
            }
            _ => result,
        }
    }

    fn heartbeat(
        &mut self,
        worker: &WorkerId,
        (sent, held): (Millis, HeldJobs),
        clock: StoreTime,
        now: StoreTime,
    ) -> StoreReply {
        let is_known = self.leases.contains(worker) || held.jobs.is_empty();
        let mut reply = HeartbeatReply::default();
        if is_known {
            self.leases.renew(worker, clock);
            reply = self.table.heartbeat(worker, &held, now);
            self.collect(None);
        }
        StoreReply::Heartbeat {
            sent,
            is_known,
            reply,
            store_time: now,
        }
    }

    /// Releases every job of a worker that retires or is lost, and ends its lease.
    pub fn release_worker(&mut self, worker: &WorkerId, cause: ReleaseCause, now: StoreTime) {
        self.leases.remove(worker);
        self.table.release_worker(worker, cause, usize::MAX, now);
        self.collect(None);
    }

    /// Ends jobs whose time is over.
    pub fn expire(&mut self, limit: usize, now: StoreTime) {
        self.table.expire(limit, now);
        self.collect(None);
    }

    /// Ends the queued jobs of a model that was removed.
    pub fn remove_model(&mut self, deployable: &DeployableKey, now: StoreTime) {
        self.table
            .end_queued(deployable, EndReason::ModelRemoved, usize::MAX, now);
        self.collect(None);
    }

    /// Adds a write of the outbox.
    pub fn write(&mut self, write: StoreWrite) {
        self.pending.push(write);
    }

    /// Turns the table's changes into writes. `sent`: what the call named.
    fn collect(&mut self, sent: Option<(WorkerId, u32)>) {
        for change in self.table.take_changes() {
            match change {
                JobChange::Progressed(id) => {
                    let progress = self.table.job(&id).map(|job| job.progress.clone());
                    let write = progress.map(|progress| StoreWrite::Progressed(id, progress));
                    self.pending.extend(write);
                }
                JobChange::Ended(outcome) => {
                    let named = sent.clone().filter(|_| outcome.by_worker);
                    let end = KeptEnd::new(outcome, named);
                    let outbox = StoreWrite::Outbox {
                        event: end.event(),
                        charge: end.charge,
                        has_webhook: end.outcome.definition.has_webhook,
                    };
                    self.pending.push(StoreWrite::Ended(Box::new(end)));
                    match self.fault {
                        Some(PlantedFault::OutboxOutsideCommit) => self.late.push(outbox),
                        _ => self.pending.push(outbox),
                    }
                }
            }
        }
    }

    /// Commits what was executed, and returns it.
    pub fn commit(&mut self, at: Millis) -> Vec<StoreWrite> {
        let writes = std::mem::take(&mut self.pending);
        self.pending = std::mem::take(&mut self.late);
        self.keep(writes, at)
    }

    fn keep(&mut self, writes: Vec<StoreWrite>, at: Millis) -> Vec<StoreWrite> {
        for write in &writes {
            self.kept.apply(write);
            self.log.push((at, write.clone()));
        }
        writes
    }

    /// Forgets what was not committed, and makes the table of the rows. Leases begin anew.
    pub fn restart(&mut self, now: StoreTime) {
        self.pending.clear();
        self.late.clear();
        let mut table = JobTable::new();
        for job in self.kept.in_order() {
            table.restore((*job.definition).clone(), job.progress.clone(), now);
        }
        self.leases = WorkerLeases::new(LEASE);
        for (worker, _) in table.workers() {
            self.leases.renew(&worker, now);
        }
        self.table = table;
    }

    /// Fails over to a replica that lacks the commits after `until`. Returns what is lost. The table is made by
    /// [`restart`](SimJobStore::restart), after the rows are reconciled.
    pub fn fail_over(&mut self, until: Millis) -> Vec<StoreWrite> {
        self.pending.clear();
        self.late.clear();
        let first = self.log.partition_point(|(at, _)| *at <= until);
        let lost = self.log.split_off(first);
        self.kept = KeptJobs::replay(self.log.iter().map(|(_, write)| write));
        lost.into_iter().map(|(_, write)| write).collect()
    }

    /// Writes rows directly, before the table is made of them.
    pub fn reconcile(&mut self, writes: Vec<StoreWrite>, at: Millis) -> Vec<StoreWrite> {
        self.keep(writes, at)
    }
}
