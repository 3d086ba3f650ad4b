//! Figures of a run, recorded or replayed: loads, evictions, and the waits of requests.
//!
//! Not the run. Times are milliseconds. Waits are kept with three digits, so that any number of them takes the same room.

use std::collections::BTreeMap;

use crate::Millis;

/// Digits to which a wait is kept, as the least number that has more.
const WAIT_DIGITS_END: u64 = 1000;

/// Figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFigures {
    /// Loads that ended with a model ready, wakes included.
    pub loads: u64,
    /// Models that left so that another was loaded.
    pub evictions: u64,
    /// Decisions that models leave so that another is loaded.
    pub swaps: u64,
    /// Time that the loads took, together.
    pub loading: Millis,
    /// Requests that were served, or counted where a recording does not say which were.
    pub requests: u64,
    /// Requests that did not wait for a load, or that no load could serve.
    pub refused: u64,
    /// Waits of the requests.
    pub waits: WaitTimes,
}

impl RunFigures {
    /// Counts a load.
    pub(super) fn record_load(&mut self, took: Millis) {
        self.loads += 1;
        self.loading = self.loading + took;
    }

    /// Counts a swap.
    pub(super) fn record_swap(&mut self, victims: usize) {
        self.swaps += 1;
        self.evictions += victims as u64;
    }

    /// Counts a request that has got its permit.
    pub(super) fn record_request(&mut self, wait: Millis) {
        self.requests += 1;
        self.waits.record(wait);
    }
}

/// Waits of requests for their permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitTimes {
    /// Number of waits of each length; empty where only their sum is known.
    counts: BTreeMap<u64, u64>,
    sum_ms: u128,
    longest: Millis,
}

impl WaitTimes {
    fn record(&mut self, wait: Millis) {
        *self.counts.entry(rounded(wait.0)).or_default() += 1;
        self.add(wait.0, wait);
    }

    /// Adds waits of which the sum and the longest are known alone.
    pub(super) fn add(&mut self, sum_ms: u64, longest: Millis) {
        self.sum_ms += u128::from(sum_ms);
        self.longest = self.longest.max(longest);
    }

    /// Returns the mean over so many requests, milliseconds.
    pub fn mean_ms(&self, requests: u64) -> f64 {
        self.sum_ms as f64 / requests.max(1) as f64
    }

    /// Returns the wait that so many of a hundred requests do not exceed; none where single waits are not known.
    pub fn percentile(&self, percent: u64) -> Option<Millis> {
        let total: u64 = self.counts.values().sum();
        let place = (total * percent.min(100)).div_ceil(100).max(1);
        let mut passed = 0;
        let mut counts = self.counts.iter();
        let found = counts.find(|(_, count)| {
            passed += **count;
            passed >= place
        });
        found.map(|(ms, _)| Millis(*ms))
    }

    /// Returns the longest wait.
    pub fn longest(&self) -> Millis {
        self.longest
    }
}

/// Returns the number with its first three digits.
fn rounded(ms: u64) -> u64 {
    let mut unit = 1;
    while ms / unit >= WAIT_DIGITS_END {
        unit *= 10;
    }
    ms / unit * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_waits_that_so_many_requests_do_not_exceed() {
        let mut waits = WaitTimes::default();
        assert_eq!(waits.percentile(50), None);
        (1..=200).for_each(|ms| waits.record(Millis(ms)));
        waits.record(Millis(123_456));
        assert_eq!(waits.percentile(50), Some(Millis(101)));
        assert_eq!(waits.percentile(99), Some(Millis(199)));
        assert_eq!(waits.percentile(100), Some(Millis(123_000)));
        assert_eq!(waits.longest(), Millis(123_456));
        let whole = waits.mean_ms(201) * 201.0;
        assert!((whole - (201.0 * 100.0 + 123_456.0)).abs() < 1.0, "{whole}");
    }
}
