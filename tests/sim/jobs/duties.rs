//! Duties of maintenance beside the simulated store: lost workers, ends by time, releases that are due, the outbox.
//!
//! Run by two nodes at a time, which may do no harm. Sweepers have a monotonic clock, and the store's own.

use infergate_core::Millis;
use infergate_core::job::{LeaseLook, LeaseSweeper, ReleaseCause, WorkerId};

use super::kept::{JobEventId, StoreWrite};
use super::ledger::Broken;
use super::store::LEASE;
use super::world::{JobsEvent, JobsWorld};

/// Failed attempts after which a webhook is a dead letter.
const WEBHOOK_ATTEMPTS_MAX: u32 = 3;
/// Rows that one round of a duty touches.
const ROUND_MAX: usize = 8;

/// Node that sweeps.
pub struct SimSweeper {
    sweeper: LeaseSweeper,
    stalled_until: Millis,
}

impl SimSweeper {
    pub fn new() -> SimSweeper {
        SimSweeper {
            sweeper: LeaseSweeper::new(LEASE),
            stalled_until: Millis::ZERO,
        }
    }

    /// Stalls it, and makes it a new process where `is_new`.
    pub fn disturb(&mut self, until: Millis, is_new: bool) {
        self.stalled_until = until;
        if is_new {
            self.sweeper = LeaseSweeper::new(LEASE);
        }
    }
}

/// Node that delivers webhooks and events.
#[derive(Default)]
pub struct SimDeliverer {
    pub is_crashing: bool,
}

impl JobsWorld {
    pub fn sweep(&mut self, n: usize) -> Result<(), Broken> {
        let next = self.now + Millis(1_000 + self.rng.u64(0..50));
        self.at(next, JobsEvent::Sweep(n));
        if !self.store_is_up || self.sweepers[n].stalled_until > self.now {
            return Ok(());
        }
        let now = self.store_time();
        let look = {
            let ended = self.ended_leases();
            self.sweepers[n].sweeper.look(ended, now, self.now)
        };
        if let LeaseLook::Lost(lost) = look {
            for worker in lost {
                self.lose_worker(&worker)?;
            }
            self.store.expire(ROUND_MAX, now);
        }
        self.store.table.release_due(ROUND_MAX, now);
        self.store.table.check();
        self.set_commit();
        Ok(())
    }

    fn ended_leases(&self) -> Vec<WorkerId> {
        let mut ended = self.store.leases.ended(self.store_time());
        // Hash tables have an order of their own in each process.
        ended.sort_unstable();
        ended
    }

    /// Releases the jobs of a worker whose lease is over also now.
    fn lose_worker(&mut self, worker: &WorkerId) -> Result<(), Broken> {
        if !self.ended_leases().contains(worker) {
            return Ok(());
        }
        self.ledger.judge_lost(worker, self.now)?;
        self.ledger.rare.lost_workers += 1;
        let workers = self.store.table.workers();
        let found = workers.into_iter().find(|(id, _)| id == worker);
        self.excused += found.map_or(0, |(_, jobs)| jobs as u64);
        let now = self.store_time();
        self.store
            .release_worker(worker, ReleaseCause::WorkerLost, now);
        Ok(())
    }

    pub fn deliver(&mut self, n: usize) {
        let next = self.now + Millis(500 + self.rng.u64(0..50));
        self.at(next, JobsEvent::Deliver(n));
        if !self.store_is_up {
            return;
        }
        // A node that crashes has sent everything, and settled nothing.
        self.deliverers[n].is_crashing = !self.is_healed && self.rng.u32(0..10) == 0;
        self.send_events(n);
        self.send_webhooks(n);
        if self.store.has_pending() {
            self.set_commit();
        }
    }

    fn send_events(&mut self, n: usize) {
        let events = self.store.kept.events.iter().take(ROUND_MAX);
        let events: Vec<(JobEventId, u64)> =
            events.map(|(event, charge)| (*event, *charge)).collect();
        for (event, charge) in events {
            self.ledger.consumed.insert(event, charge);
            if !self.deliverers[n].is_crashing {
                self.store.write(StoreWrite::EventSettled(event));
            }
        }
    }

    fn send_webhooks(&mut self, n: usize) {
        let now = self.store_time();
        let due = self.store.kept.webhooks.iter();
        let due = due.filter(|(_, open)| open.next <= now);
        let due: Vec<_> = due
            .take(ROUND_MAX)
            .map(|(job, open)| (*job, *open))
            .collect();
        for (job, open) in due {
            let is_accepted = self.rng.u32(0..5) > 0;
            if is_accepted {
                let is_new = self.ledger.delivered.insert(job);
                self.ledger.rare.repeated_webhooks += u64::from(!is_new);
            }
            let is_dead = !is_accepted && open.attempts >= WEBHOOK_ATTEMPTS_MAX;
            self.ledger.rare.dead_letters += u64::from(is_dead);
            let write = match is_accepted || is_dead {
                true => StoreWrite::WebhookSettled { job, is_dead },
                false => StoreWrite::WebhookTried {
                    job,
                    next: now + Millis(1_000 << open.attempts),
                },
            };
            if !self.deliverers[n].is_crashing {
                self.store.write(write);
            }
        }
    }
}
