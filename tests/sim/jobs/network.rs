//! Messages between workers, API nodes and the store: late, lost, repeated, and out of order.
//!
//! Not the faults of those at the two ends. A reply leaves the store when its call is committed.

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::job::{SubmitResult, WorkerId};

use super::ledger::Broken;
use super::store::{StoreCall, StoreReply};
use super::worker::{Fenced, SimJobWorker};
use super::world::{JobsEvent, JobsWorld};

/// Sender of a call.
#[derive(Clone, Debug)]
pub enum JobsCaller {
    Worker {
        worker: usize,
        generation: u64,
        id: WorkerId,
    },
    Api(usize),
    Nobody,
}

impl JobsCaller {
    pub fn worker(worker: usize, actor: &SimJobWorker) -> JobsCaller {
        JobsCaller::Worker {
            worker,
            generation: actor.generation,
            id: actor.id.clone(),
        }
    }
}

/// Manners of the network, in percent.
pub struct JobsNet {
    lost: u32,
    repeated: u32,
    slow: u32,
}

impl JobsNet {
    pub fn drawn(rng: &mut Rng) -> JobsNet {
        JobsNet {
            lost: rng.u32(0..8),
            repeated: rng.u32(0..8),
            slow: rng.u32(0..5),
        }
    }

    pub fn heal(&mut self) {
        (self.lost, self.repeated, self.slow) = (0, 0, 0);
    }

    fn delay(&self, rng: &mut Rng) -> Millis {
        match rng.u32(0..100) < self.slow {
            true => Millis(rng.u64(100..4_000)),
            false => Millis(rng.u64(1..30)),
        }
    }

    /// Delays of the copies that arrive.
    fn copies(&self, rng: &mut Rng) -> Vec<Millis> {
        let percent = rng.u32(0..100);
        let count = match percent {
            _ if percent < self.lost => 0,
            _ if percent < self.lost + self.repeated => 2,
            _ => 1,
        };
        (0..count).map(|_| self.delay(rng)).collect()
    }
}

impl JobsWorld {
    /// Returns whether a worker is partitioned from the store.
    fn is_cut(&self, caller: &JobsCaller) -> bool {
        match caller {
            JobsCaller::Worker { worker, .. } => self.workers[*worker].cut_until > self.now,
            _ => false,
        }
    }

    pub fn send(&mut self, caller: JobsCaller, call: StoreCall) {
        if self.is_cut(&caller) {
            return;
        }
        for delay in self.net.copies(&mut self.rng) {
            let event = JobsEvent::AtStore(caller.clone(), call.clone());
            self.at(self.now + delay, event);
        }
    }

    pub fn at_store(&mut self, caller: JobsCaller, call: StoreCall) {
        if !self.store_is_up {
            return;
        }
        let now = self.store_time();
        let id = match &caller {
            JobsCaller::Worker { id, .. } => Some(id),
            _ => None,
        };
        let reply = self.store.call(id, call, now);
        if let (StoreReply::Heartbeat { is_known: true, .. }, Some(id)) = (&reply, id) {
            self.ledger.reached.insert(id.clone(), self.now);
        }
        self.ledger.count(&reply);
        self.store.table.check();
        self.replies.push((caller, reply));
        self.set_commit();
    }

    /// Commits soon; calls until then share the commit.
    pub fn set_commit(&mut self) {
        if !self.commit_is_set {
            self.commit_is_set = true;
            let at = self.now + Millis(self.rng.u64(0..15));
            self.at(at, JobsEvent::Commit);
        }
    }

    pub fn commit(&mut self) -> Result<(), Broken> {
        self.commit_is_set = false;
        if !self.store_is_up {
            return Ok(());
        }
        let writes = self.store.commit(self.now);
        self.ledger.observe(&writes, &self.store.kept)?;
        self.ledger.compare(&self.store, self.now)?;
        for (caller, reply) in std::mem::take(&mut self.replies) {
            if self.is_cut(&caller) {
                continue;
            }
            for delay in self.net.copies(&mut self.rng) {
                let event = JobsEvent::AtCaller(caller.clone(), reply.clone());
                self.at(self.now + delay, event);
            }
        }
        if self.store.has_pending() {
            self.set_commit();
        }
        Ok(())
    }

    pub fn at_caller(&mut self, caller: JobsCaller, reply: StoreReply) -> Result<(), Broken> {
        match caller {
            JobsCaller::Nobody => Ok(()),
            JobsCaller::Api(n) => {
                let StoreReply::Submitted(id, result) = reply else {
                    return Ok(());
                };
                self.jobs[n].is_answered = true;
                if matches!(result, SubmitResult::Created | SubmitResult::Exists(_)) {
                    self.ledger.acknowledged.entry(id).or_insert(self.now);
                }
                Ok(())
            }
            JobsCaller::Worker {
                worker, generation, ..
            } => self.at_worker(worker, generation, (caller, reply)),
        }
    }

    fn at_worker(
        &mut self,
        worker: usize,
        generation: u64,
        (caller, reply): (JobsCaller, StoreReply),
    ) -> Result<(), Broken> {
        let now = self.now;
        let actor = &mut self.workers[worker];
        if actor.generation != generation || !actor.is_up {
            return Ok(());
        }
        if actor.frozen_until > now {
            // Read from the socket when the process goes on.
            let thaw = actor.frozen_until;
            self.at(thaw, JobsEvent::AtCaller(caller, reply));
            return Ok(());
        }
        match actor.receive(reply, now, &mut self.rng) {
            Ok(began) => {
                let id = actor.id.clone();
                for (job, epoch) in began {
                    self.ledger.begin(job, epoch, &id)?;
                }
            }
            Err(Fenced) => {
                self.ledger.rare.fences += 1;
                self.replace_worker(worker, now);
            }
        }
        Ok(())
    }
}
