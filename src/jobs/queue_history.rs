//! Counts of queues over the last two minutes, for autoscalers.
//!
//! Not exact counts, which the store gives when it is asked: samples are taken when it publishes its levels, about once a
//! second. A queue in which nothing was for so long has none.

use std::collections::VecDeque;

use hashbrown::HashMap;
use infergate_core::job::{DeployableKey, DeployableState, StoreTime};

/// Samples of one queue: two minutes of them.
const SNAPSHOTS_MAX: usize = 120;

/// Counts of a queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// Moment.
    pub at: StoreTime,
    /// Queued jobs.
    pub queued: u32,
    /// Running jobs.
    pub running: u32,
    /// Jobs that have ended since the store was opened.
    pub finished: u64,
}

impl QueueSnapshot {
    fn is_empty(&self) -> bool {
        self.queued == 0 && self.running == 0
    }
}

/// Samples of the queues that had jobs lately.
#[derive(Debug, Default)]
pub struct QueueHistories {
    queues: HashMap<DeployableKey, VecDeque<QueueSnapshot>>,
}

impl QueueHistories {
    /// Adds a sample of each queue.
    pub fn sample(&mut self, states: &[DeployableState], now: StoreTime) {
        for state in states {
            let snapshot = QueueSnapshot {
                at: now,
                queued: state.queued,
                running: state.running,
                finished: state.finished,
            };
            if snapshot.is_empty() && !self.queues.contains_key(&state.key) {
                continue;
            }
            let own = self.queues.entry(state.key.clone()).or_default();
            if own.len() >= SNAPSHOTS_MAX {
                own.pop_front();
            }
            own.push_back(snapshot);
        }
        let has_any = |own: &VecDeque<QueueSnapshot>| own.iter().any(|one| !one.is_empty());
        self.queues.retain(|_, own| has_any(own));
    }

    /// Returns the samples of a queue, the oldest first.
    pub fn of(&self, key: &DeployableKey) -> Vec<QueueSnapshot> {
        let own = self.queues.get(key);
        own.map_or_else(Vec::new, |own| own.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::Millis;

    use super::*;

    #[test]
    fn a_queue_has_two_minutes_of_samples_while_there_is_something_in_them() {
        let key = DeployableKey::from("vp-a");
        let state = |queued| DeployableState {
            key: key.clone(),
            ready: [0; 4],
            queued,
            running: 0,
            accepted: 0,
            finished: 0,
            last_submit: None,
            expected_hold: Millis(1),
            is_paused: false,
        };
        let mut histories = QueueHistories::default();
        histories.sample(&[state(0)], StoreTime(0));
        assert_eq!(histories.of(&key), []);
        for second in 1..=150 {
            histories.sample(&[state(second)], StoreTime(second.into()));
        }
        let found = histories.of(&key);
        assert_eq!((found.len(), found[0].queued), (SNAPSHOTS_MAX, 31));
        for second in 151..=269 {
            histories.sample(&[state(0)], StoreTime(second));
        }
        assert_eq!(histories.of(&key)[0].queued, 150);
        histories.sample(&[state(0)], StoreTime(270));
        assert!(histories.queues.is_empty());
    }
}
