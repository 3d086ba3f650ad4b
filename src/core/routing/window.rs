//! A count over the last ten seconds, in a fixed number of buckets.
//!
//! Buckets are dropped one second at a time: a count covers nine to ten seconds. O(1).

use crate::Millis;

/// Span of a window.
pub(super) const WINDOW: Millis = Millis::from_secs(10);

const BUCKETS: u64 = 10;

/// Events of the last [`WINDOW`].
#[derive(Clone, Debug, Default)]
pub(super) struct SlidingCount {
    counts: [u32; BUCKETS as usize],
    /// Number of the newest bucket since the start of time.
    newest: u64,
}

impl SlidingCount {
    pub fn add(&mut self, now: Millis) {
        self.advance(now);
        let count = &mut self.counts[(self.newest % BUCKETS) as usize];
        *count = count.saturating_add(1);
    }

    pub fn sum(&mut self, now: Millis) -> u32 {
        self.advance(now);
        self.counts
            .iter()
            .fold(0, |sum, &count| sum.saturating_add(count))
    }

    pub fn clear(&mut self) {
        self.counts = Default::default();
    }

    fn advance(&mut self, now: Millis) {
        let bucket = now.0 / (WINDOW.0 / BUCKETS);
        let passed = bucket.saturating_sub(self.newest).min(BUCKETS);
        for old in 1..=passed {
            self.counts[((self.newest + old) % BUCKETS) as usize] = 0;
        }
        self.newest = self.newest.max(bucket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_forgotten_after_ten_seconds_and_not_before_nine() {
        let mut window = SlidingCount::default();
        window.add(Millis(5_999));
        assert_eq!(window.sum(Millis(14_999)), 1);
        assert_eq!(window.sum(Millis(15_999)), 0);
    }

    #[test]
    fn a_long_silence_empties_the_window() {
        let mut window = SlidingCount::default();
        for second in 0..10 {
            window.add(Millis::from_secs(second));
        }
        assert_eq!(window.sum(Millis::from_secs(9)), 10);
        assert_eq!(window.sum(Millis::from_secs(1_000_003)), 0);
    }
}
