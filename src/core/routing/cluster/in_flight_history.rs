//! History of the number of requests in flight from here.
//!
//! A report describes the moment it was made; adding later changes requires knowing which requests
//! it had counted already. Samples of a twentieth of a second, the last sixteen of them; what is
//! older counts as the oldest. O(1).

use crate::Millis;

const SPANS: u64 = 16;

const SPAN: Millis = Millis(50);

/// A count, and what it was at the beginnings of the last spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InFlightHistory {
    count: u32,
    samples: [u16; SPANS as usize],
    /// Number of the newest span since the start of time.
    newest: u64,
}

impl InFlightHistory {
    /// Requests in flight now.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Records one more request in flight.
    pub fn increment(&mut self, now: Millis) {
        self.roll(now);
        self.count = self.count.saturating_add(1);
    }

    /// Records one request less in flight.
    pub fn decrement(&mut self, now: Millis) {
        self.roll(now);
        self.count = self.count.saturating_sub(1);
    }

    /// Returns the count `age` before now, to within a span: the larger of the two samples about
    /// that moment. Too high a count is corrected by a refusal; too low a count leaves permits
    /// unused.
    pub fn count_before(&mut self, age: Millis, now: Millis) -> u32 {
        self.roll(now);
        if age == Millis::ZERO {
            return self.count;
        }
        let span = (now - age).0 / SPAN.0;
        let oldest = (self.newest + 1).saturating_sub(SPANS);
        let span = span.clamp(oldest, self.newest);
        let before = u32::from(self.samples[(span % SPANS) as usize]);
        let after = match span == self.newest {
            true => self.count,
            false => self.samples[((span + 1) % SPANS) as usize].into(),
        };
        before.max(after)
    }

    fn roll(&mut self, now: Millis) {
        let span = now.0 / SPAN.0;
        let sample = u16::try_from(self.count).unwrap_or(u16::MAX);
        let passed = span.saturating_sub(self.newest).min(SPANS);
        for back in 0..passed {
            self.samples[((span - back) % SPANS) as usize] = sample;
        }
        self.newest = self.newest.max(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_a_moment_ago_is_known_to_a_twentieth_of_a_second() {
        let mut past = InFlightHistory::default();
        past.increment(Millis(1_010));
        past.increment(Millis(1_220));
        past.decrement(Millis(1_440));
        let now = Millis(1_490);
        let before = [0, 20, 80, 250, 310, 480, 700].map(|age| past.count_before(Millis(age), now));
        assert_eq!(before, [1, 1, 2, 2, 1, 1, 0]);
    }

    #[test]
    fn a_long_silence_is_all_the_same_count() {
        let mut past = InFlightHistory::default();
        past.increment(Millis(5));
        assert_eq!(past.count_before(Millis(700), Millis(90_000)), 1);
        assert_eq!(past.count(), 1);
    }
}
