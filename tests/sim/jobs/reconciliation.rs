//! Return of the store: a restart from its own commits, or a failover to a replica that lacks the latest.
//!
//! After a failover workers re-assert what they run and repeat their latest ends, and API nodes submit their latest
//! jobs again. Frozen and partitioned workers take no part.

use infergate_core::Millis;
use infergate_core::job::{NewJob, QueueLimits, RunEnd, TakenJob, WorkerId};

use super::kept::StoreWrite;
use super::ledger::Broken;
use super::store::StoreCall;
use super::worker::ENDS_KEPT;
use super::world::JobsWorld;

impl JobsWorld {
    /// Brings the store back. `lose_after`: moment whose later commits are lost.
    pub fn store_back(&mut self, lose_after: Option<Millis>) -> Result<(), Broken> {
        let mut ends = Vec::new();
        if let Some(until) = lose_after {
            let lost = self.store.fail_over(until);
            self.ledger.undo(&lost, &self.store.kept);
            self.excused += lost.len() as u64 + 2 * self.permits();
            ends = self.reassert();
            self.ledger.accept(&self.store.kept);
        }
        let now = self.store_time();
        self.store.restart(now);
        self.store.table.check();
        self.store_is_up = true;
        self.replies.clear();
        self.ledger.disturb(self.now);
        for (worker, end) in ends {
            self.store.call(Some(&worker), StoreCall::Finish(end), now);
        }
        if let Some(until) = lose_after {
            for job in self.accepted_since(until) {
                // Accepted anew: a second failover may lose this write as the first has lost the other.
                let id = job.definition.id;
                self.ledger.acknowledged.insert(id, self.now);
                self.store.call(None, StoreCall::Submit(Box::new(job)), now);
            }
        }
        // Nothing else is served before this is kept.
        self.commit()
    }

    /// Writes the rows of jobs that workers run, where the store has none or an older take. Returns their ends.
    fn reassert(&mut self) -> Vec<(WorkerId, RunEnd)> {
        let now = self.now;
        let reachable = self
            .workers
            .iter()
            .filter(|worker| worker.is_up && worker.frozen_until <= now && worker.cut_until <= now);
        let mut held: Vec<TakenJob> = Vec::new();
        let mut ends = Vec::new();
        for worker in reachable {
            held.extend(worker.runs.values().map(|run| run.taken.clone()));
            for recent in &worker.recent {
                held.push(recent.taken.clone());
                ends.push((worker.id.clone(), recent.end.clone()));
            }
        }
        for taken in held {
            let id = taken.definition.id;
            if self.store.kept.ended.contains_key(&id) {
                continue;
            }
            let mut writes = Vec::new();
            match self.store.kept.live.get(&id) {
                None => writes.push(StoreWrite::Submitted(taken.definition.clone())),
                Some(kept) if kept.progress.epoch >= taken.progress.epoch => continue,
                Some(_) => {}
            }
            writes.push(StoreWrite::Progressed(id, taken.progress));
            self.store.reconcile(writes, now);
        }
        ends
    }

    /// Jobs whose submit was answered shortly before `until` or after it. Accepted ones pass every limit.
    fn accepted_since(&self, until: Millis) -> Vec<NewJob> {
        let jobs = self.jobs.iter().filter(|job| {
            let answered = self.ledger.acknowledged.get(&job.new.definition.id);
            answered.is_some_and(|at| *at + ENDS_KEPT > until)
        });
        let limits = QueueLimits {
            queue_max: u32::MAX,
            queue_max_per_account: u32::MAX,
            bytes_max: u64::MAX,
        };
        jobs.map(|job| NewJob {
            limits,
            ..job.new.clone()
        })
        .collect()
    }
}
