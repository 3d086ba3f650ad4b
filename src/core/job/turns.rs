//! Turns of queues that share permits: a model's own, those of its deployments, and others on its servers.
//!
//! Not the order within a queue, which is the schedule's. Each queue is charged the permit time of its runs: the
//! expected one when a run begins, the rest at its end. The queue with the least comes next. A queue that was idle
//! begins with the least of the others: no credit is saved. Bounded by the queues with jobs.

use hashbrown::HashMap;

use super::id::DeployableKey;
use crate::Millis;

/// Expected permit time of a queue's first run.
const FIRST_HOLD_MS: f64 = 1000.0;
/// Weight of the newest run in the expected permit time.
const GAIN: f64 = 0.25;

/// Charge of a queue.
#[derive(Clone, Copy, Debug)]
struct QueueCharge {
    /// Permit time so far, milliseconds.
    charged_ms: f64,
    /// Mean permit time of a run, milliseconds.
    expected_ms: f64,
    /// Runs that hold a permit.
    running: u32,
}

/// Turns of all queues of a worker.
#[derive(Clone, Debug, Default)]
pub struct QueueTurns {
    queues: HashMap<DeployableKey, QueueCharge>,
}

/// Permit time that a run was charged for at its beginning, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpectedHold(f64);

impl QueueTurns {
    /// Chooses the queue that a permit goes to, among those with jobs that share it; none of none. Charges it.
    pub fn choose(&mut self, waiting: &[DeployableKey]) -> Option<(DeployableKey, ExpectedHold)> {
        let known = waiting.iter().filter_map(|key| self.queues.get(key));
        let least = known.map(|queue| queue.charged_ms).reduce(f64::min);
        let least = least.unwrap_or_default();
        for key in waiting {
            self.queues.entry(key.clone()).or_insert(QueueCharge {
                charged_ms: least,
                expected_ms: FIRST_HOLD_MS,
                running: 0,
            });
        }
        let charge = |key: &&DeployableKey| self.queues.get(*key).map_or(0.0, |it| it.charged_ms);
        let by_charge = |a: &&DeployableKey, b: &&DeployableKey| charge(a).total_cmp(&charge(b));
        let chosen = waiting.iter().min_by(by_charge)?.clone();
        let queue = self.queues.get_mut(&chosen)?;
        queue.charged_ms += queue.expected_ms;
        queue.running += 1;
        Some((chosen, ExpectedHold(queue.expected_ms)))
    }

    /// Records the end of a run that held its permit for `hold`; none where there was no run.
    pub fn record(&mut self, key: &DeployableKey, expected: ExpectedHold, hold: Option<Millis>) {
        let Some(queue) = self.queues.get_mut(key) else {
            return;
        };
        queue.running = queue.running.saturating_sub(1);
        let actual = hold.map_or(0.0, |hold| hold.0 as f64);
        queue.charged_ms += actual - expected.0;
        if hold.is_some() {
            queue.expected_ms += GAIN * (actual - queue.expected_ms);
        }
    }

    /// Forgets queues that have neither jobs nor runs.
    pub fn retain(&mut self, has_jobs: impl Fn(&DeployableKey) -> bool) {
        self.queues
            .retain(|key, queue| queue.running > 0 || has_jobs(key));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(count: usize) -> Vec<DeployableKey> {
        let key = |n| DeployableKey::from(&*format!("dp-{n}"));
        (0..count).map(key).collect()
    }

    /// Permit time of each queue after `runs` runs one after the other, all queues waiting.
    fn served(
        turns: &mut QueueTurns,
        keys: &[DeployableKey],
        holds: &[u64],
        runs: usize,
    ) -> Vec<u64> {
        let mut served = vec![0; keys.len()];
        for _ in 0..runs {
            let (chosen, expected) = turns.choose(keys).unwrap();
            let at = keys.iter().position(|key| *key == chosen).unwrap();
            served[at] += holds[at];
            turns.record(&chosen, expected, Some(Millis(holds[at])));
        }
        served
    }

    proptest! {
        #[test]
        fn queues_that_wait_get_equal_permit_time(holds in prop::collection::vec(1_u64..10_000, 2..6)) {
            let keys = keys(holds.len());
            let served = served(&mut QueueTurns::default(), &keys, &holds, 2000);
            let longest = holds.iter().max().copied().unwrap();
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            // The first expectation is a second, whatever is true.
            prop_assert!(most - least <= 2 * longest + 1000, "{:?} of {:?}", served, holds);
        }
    }

    #[test]
    fn an_idle_queue_saves_no_credit() {
        let keys = keys(2);
        let mut turns = QueueTurns::default();
        served(&mut turns, &keys[..1], &[100], 1000);
        let served = served(&mut turns, &keys, &[100, 100], 100);
        assert!(served[0] >= 4_000, "{served:?}");
        turns.retain(|_| false);
        assert!(turns.queues.is_empty());
    }

    #[test]
    fn a_permit_without_a_run_costs_nothing() {
        let keys = keys(2);
        let mut turns = QueueTurns::default();
        let (first, expected) = turns.choose(&keys).unwrap();
        turns.record(&first, expected, None);
        assert_eq!(turns.choose(&keys).unwrap().0, first);
        assert!(turns.choose(&[]).is_none());
    }
}
