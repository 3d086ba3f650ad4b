//! Leases of workers, and the decision that one is lost.
//!
//! Not needed where the store lives in the worker's own process. Leases end by the store's clock; a second, monotonic
//! clock of the sweeper guards against jumps of the first. Known there as the sweep.

use hashbrown::HashMap;

use super::id::WorkerId;
use super::store_time::StoreTime;
use crate::Millis;

/// Least time between the two looks that find a lease ended.
const LOOKS_APART: Millis = Millis(1000);
/// Difference between two clocks above which the store's has jumped.
const CLOCK_JUMP: Millis = Millis(5000);
/// Absence of the store after which workers could not renew their leases.
const STORE_AWAY: Millis = Millis(2000);

/// Leases by worker.
#[derive(Debug)]
pub struct WorkerLeases {
    lease: Millis,
    until: HashMap<WorkerId, StoreTime>,
}

impl WorkerLeases {
    /// Creates an empty table of leases of this length.
    pub fn new(lease: Millis) -> WorkerLeases {
        let until = HashMap::new();
        WorkerLeases { lease, until }
    }

    /// Renews the lease of a worker, which begins with its first call. A worker whose lease has been ended by
    /// [`remove`](WorkerLeases::remove) is a new one to the table; its caller knows it by its jobs.
    pub fn renew(&mut self, worker: &WorkerId, now: StoreTime) {
        let until = now + self.lease;
        match self.until.get_mut(worker) {
            Some(end) => *end = until,
            None => _ = self.until.insert(worker.clone(), until),
        }
    }

    /// Returns whether the worker has a lease, ended or not.
    pub fn contains(&self, worker: &WorkerId) -> bool {
        self.until.contains_key(worker)
    }

    /// Ends the lease of a worker that retires or is lost.
    pub fn remove(&mut self, worker: &WorkerId) {
        self.until.remove(worker);
    }

    /// Returns the workers whose lease is over at `now`. A lease that ends later than one begun now is over too: the
    /// clock has gone back since it was renewed. Living workers have renewed it when the guard is over.
    pub fn ended(&self, now: StoreTime) -> Vec<WorkerId> {
        let latest = now + self.lease;
        let ended = self.until.iter();
        let ended = ended.filter(|(_, until)| **until <= now || **until > latest);
        ended.map(|(worker, _)| worker.clone()).collect()
    }
}

/// Result of a look at the leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseLook {
    /// These workers are lost.
    Lost(Vec<WorkerId>),
    /// No worker is declared lost: a clock has jumped, or the store was away.
    Guarded,
}

/// Sweeper of leases: two looks, and a pause after anything that may have kept workers from renewing.
#[derive(Debug)]
pub struct LeaseSweeper {
    lease: Millis,
    latest: Option<(StoreTime, Millis)>,
    guarded_until: Millis,
    suspects: HashMap<WorkerId, Millis>,
}

impl LeaseSweeper {
    /// Creates a sweeper that has not looked yet.
    pub fn new(lease: Millis) -> LeaseSweeper {
        LeaseSweeper {
            lease,
            latest: None,
            guarded_until: Millis::ZERO,
            suspects: HashMap::new(),
        }
    }

    /// Judges the workers whose lease is over by the store's clock, at `monotonic` on the sweeper's own. The first
    /// look guards as a jump does: what went before it is unknown.
    pub fn look(&mut self, ended: Vec<WorkerId>, store: StoreTime, monotonic: Millis) -> LeaseLook {
        let before = self.latest.replace((store, monotonic));
        if before.is_none_or(|before| is_disturbed(before, (store, monotonic))) {
            self.guarded_until = monotonic + self.lease;
        }
        if monotonic < self.guarded_until {
            self.suspects.clear();
            return LeaseLook::Guarded;
        }
        self.suspects.retain(|worker, _| ended.contains(worker));
        let mut lost = Vec::new();
        for worker in ended {
            let first = *self.suspects.entry(worker.clone()).or_insert(monotonic);
            if monotonic.since(first) >= LOOKS_APART {
                self.suspects.remove(&worker);
                lost.push(worker);
            }
        }
        LeaseLook::Lost(lost)
    }
}

/// Returns whether workers may have been kept from renewing between two looks, by the store's clock and the own one.
fn is_disturbed(before: (StoreTime, Millis), now: (StoreTime, Millis)) -> bool {
    let own = now.1.since(before.1);
    let theirs = Millis(now.0.0.abs_diff(before.0.0));
    let drift = match now.0 < before.0 {
        true => theirs + own,
        false => Millis(own.0.abs_diff(theirs.0)),
    };
    drift > CLOCK_JUMP || own > STORE_AWAY
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Millis = Millis(10_000);

    fn lost(look: LeaseLook) -> usize {
        match look {
            LeaseLook::Lost(workers) => workers.len(),
            LeaseLook::Guarded => panic!("no clock has jumped"),
        }
    }

    #[test]
    fn a_worker_is_lost_at_the_second_look_and_not_when_it_renews_between() {
        let (a, b) = (WorkerId::new("a", 1), WorkerId::new("b", 1));
        let mut leases = WorkerLeases::new(LEASE);
        let mut sweeper = LeaseSweeper::new(LEASE);
        for worker in [&a, &b] {
            leases.renew(worker, StoreTime(0));
        }
        let mut look = |leases: &WorkerLeases, ms: u64| {
            let store = StoreTime(ms);
            sweeper.look(leases.ended(store), store, Millis(ms))
        };
        for second in 0..10 {
            assert_eq!(look(&leases, second * 1000), LeaseLook::Guarded);
        }
        assert_eq!(lost(look(&leases, 10_000)), 0);
        leases.renew(&b, StoreTime(10_500));
        assert_eq!(look(&leases, 11_000), LeaseLook::Lost(vec![a.clone()]));
        leases.remove(&a);
        assert!(leases.contains(&b) && !leases.contains(&a));
    }

    #[test]
    fn after_a_jump_or_an_absence_no_worker_is_lost_for_a_lease() {
        let worker = WorkerId::new("a", 1);
        let hour = 3_600_000;
        for (store, own) in [(hour, 1000), (3_000, 3_000)] {
            let mut sweeper = LeaseSweeper::new(LEASE);
            sweeper.look(Vec::new(), StoreTime(0), Millis(0));
            let ended = || vec![worker.clone()];
            let look = sweeper.look(ended(), StoreTime(store), Millis(own));
            assert_eq!(look, LeaseLook::Guarded);
            let mut waited = 0;
            while waited < LEASE.0 {
                assert_eq!(
                    sweeper.look(ended(), StoreTime(store + waited), Millis(own + waited)),
                    LeaseLook::Guarded
                );
                waited += 1000;
            }
            assert_eq!(
                lost(sweeper.look(ended(), StoreTime(store + waited), Millis(own + waited))),
                0
            );
            waited += 1000;
            assert_eq!(
                lost(sweeper.look(ended(), StoreTime(store + waited), Millis(own + waited))),
                1
            );
        }
    }

    #[test]
    fn a_clock_that_goes_back_guards_too() {
        let mut sweeper = LeaseSweeper::new(LEASE);
        sweeper.look(Vec::new(), StoreTime(3_600_000), Millis(0));
        let look = sweeper.look(Vec::new(), StoreTime(1000), Millis(1000));
        assert_eq!(look, LeaseLook::Guarded);
    }

    #[test]
    fn a_new_sweeper_knows_of_no_jump_before_it_and_waits_for_a_lease() {
        let worker = WorkerId::new("a", 1);
        let mut leases = WorkerLeases::new(LEASE);
        leases.renew(&worker, StoreTime(0));
        // The store's clock has jumped by an hour, and the worker has not renewed since.
        let mut sweeper = LeaseSweeper::new(LEASE);
        for ms in [0, 1000] {
            let store = StoreTime(3_600_000 + ms);
            let ended = leases.ended(store);
            assert_eq!(ended.len(), 1);
            assert_eq!(sweeper.look(ended, store, Millis(ms)), LeaseLook::Guarded);
        }
    }

    #[test]
    fn a_dead_worker_does_not_live_for_as_long_as_the_clock_has_gone_back() {
        let (dead, alive) = (WorkerId::new("a", 1), WorkerId::new("b", 1));
        let mut leases = WorkerLeases::new(LEASE);
        let (before, after) = (StoreTime(3_600_000), StoreTime(1_000));
        for worker in [&dead, &alive] {
            leases.renew(worker, before);
        }
        leases.renew(&alive, after);
        assert_eq!(leases.ended(after), [dead]);
    }
}
