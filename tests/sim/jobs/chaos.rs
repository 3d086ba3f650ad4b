//! Faults of workers, clocks, sweepers and the store, and the end of all disorder.
//!
//! Not the network's manners. Each fault is drawn from the seed; what it may cause, the ledger knows.

use infergate_core::Millis;
use infergate_core::job::{DeployableKey, ReleaseCause};

use super::network::JobsCaller;
use super::store::{LEASE, StoreCall};
use super::worker::TICK;
use super::world::{DEPLOYABLES, JobsEvent, JobsWorld};

/// Commits that a failover may lose are not older.
const LOSS_MAX: u64 = 2_000;
/// Least time between two jumps of the store's clock.
const JUMPS_APART: Millis = Millis(2 * LEASE.0);
const HOUR_MS: i64 = 3_600_000;

impl JobsWorld {
    /// Lets one fault happen.
    pub fn strike(&mut self) {
        let worker = self.rng.usize(0..self.workers.len());
        match self.rng.u32(0..100) {
            0..18 => self.crash_worker(worker),
            18..36 => self.freeze_worker(worker),
            36..46 => {
                let until = self.now + Millis(self.rng.u64(500..40_000));
                self.workers[worker].cut_until = until;
            }
            46..52 => self.drain_worker(worker),
            52..62 => {
                let causes = [ReleaseCause::ServerLost, ReleaseCause::NoServer];
                self.workers[worker].give_back_all(|n| causes[n % 2]);
            }
            62..72 => self.jump_clock(),
            72..84 => self.crash_store(),
            84..92 => self.disturb_sweeper(),
            _ => self.reload(),
        }
    }

    fn crash_worker(&mut self, worker: usize) {
        let id = self.new_worker_id(worker);
        let actor = &mut self.workers[worker];
        if !actor.is_up {
            return;
        }
        actor.is_up = false;
        actor.frozen_until = Millis::ZERO;
        actor.become_new(id);
        let back = self.now + Millis(self.rng.u64(100..20_000));
        self.at(back, JobsEvent::Restart(worker));
    }

    pub fn restart_worker(&mut self, worker: usize) {
        let actor = &mut self.workers[worker];
        if actor.is_up {
            return;
        }
        actor.is_up = true;
        let generation = actor.generation;
        self.at(self.now, JobsEvent::Tick { worker, generation });
    }

    /// Fences a worker: a new incarnation of the process goes on with nothing.
    pub fn replace_worker(&mut self, worker: usize, now: Millis) {
        let id = self.new_worker_id(worker);
        let actor = &mut self.workers[worker];
        actor.become_new(id);
        let generation = actor.generation;
        self.at(now + TICK, JobsEvent::Tick { worker, generation });
    }

    fn freeze_worker(&mut self, worker: usize) {
        let span = match self.rng.u32(0..10) {
            0 => 300_000,
            _ => self.rng.u64(500..30_000),
        };
        self.workers[worker].frozen_until = self.now + Millis(span);
    }

    /// Drains a worker: everything is given back, and its lease ends. The process comes back as another.
    fn drain_worker(&mut self, worker: usize) {
        let now = self.now;
        let actor = &mut self.workers[worker];
        if !actor.is_up || actor.frozen_until > now {
            return;
        }
        actor.give_back_all(|_| ReleaseCause::Drain);
        let caller = JobsCaller::worker(worker, actor);
        self.send(caller, StoreCall::Retire);
        self.crash_worker(worker);
    }

    /// Lets the store's clock jump, once in a while: two opposite jumps between two looks of a sweeper look like none.
    fn jump_clock(&mut self) {
        if self.now < self.next_jump {
            return;
        }
        self.next_jump = self.now + JUMPS_APART;
        let span = [HOUR_MS, 20_000][self.rng.usize(0..2)];
        let jump = match self.rng.bool() {
            true => span,
            false => -span,
        };
        self.store_offset += jump;
        self.latest_offset = self.latest_offset.max(self.store_offset);
        self.ledger.disturb(self.now);
        // Takes under way look older or younger than they are.
        self.excused += 2 * self.permits();
    }

    pub fn permits(&self) -> u64 {
        let permits: usize = self.workers.iter().map(|worker| worker.permits).sum();
        permits as u64
    }

    fn crash_store(&mut self) {
        if !self.store_is_up {
            return;
        }
        self.store_is_up = false;
        self.replies.clear();
        // Connections of API nodes break with the store: none accepts a job by a reply of the one before.
        self.events
            .retain(|_, event| !matches!(event, JobsEvent::AtCaller(JobsCaller::Api(_), _)));
        let loses = self.may_lose && self.rng.bool();
        let (lose_after, back) = match loses {
            true => {
                let loss = self.rng.u64(0..LOSS_MAX);
                let until = Millis(self.now.0.saturating_sub(loss));
                (Some(until), self.rng.u64(500..5_000))
            }
            false => (None, self.rng.u64(0..20_000)),
        };
        let back = self.now + Millis(back);
        self.ledger.disturb(back);
        self.at(back, JobsEvent::StoreBack { lose_after });
    }

    fn disturb_sweeper(&mut self) {
        let n = self.rng.usize(0..self.sweepers.len());
        let until = self.now + Millis(self.rng.u64(0..15_000));
        let is_new = self.rng.bool();
        self.sweepers[n].disturb(until, is_new);
        self.ledger.disturb(until);
    }

    /// Reloads the configuration: a queue is paused or goes on, or loses its model for good.
    fn reload(&mut self) {
        let key = DeployableKey::from(DEPLOYABLES[self.rng.usize(0..2)]);
        let what = self.rng.u32(0..5);
        if !self.store_is_up {
            return;
        }
        match what {
            0..2 => self.store.table.set_paused(&key, true),
            2..4 => self.store.table.set_paused(&key, false),
            _ => {
                self.store.remove_model(&key, self.store_time());
                self.set_commit();
            }
        }
    }

    /// Ends the disorder: from here on everything must become quiet.
    pub fn heal(&mut self) {
        if self.now < self.next_jump {
            return self.at(self.next_jump, JobsEvent::Heal);
        }
        self.is_healed = true;
        self.net.heal();
        // What was dated by a clock that ran ahead would be waited for.
        self.store_offset = self.latest_offset;
        self.excused += 2 * self.permits();
        self.ledger.disturb(self.now);
        for key in DEPLOYABLES {
            self.store.table.set_paused(&key.into(), false);
        }
        for worker in 0..self.workers.len() {
            self.workers[worker].cut_until = Millis::ZERO;
            self.restart_worker(worker);
        }
    }
}
