//! Whether a revision is asked at all: it is left alone once it fails too often.
//!
//! It does not know what stands in. Pure: `now` is an argument. Closed, it opens after
//! [`FAILURES_MAX`] failures in ten seconds or one call in [`RATE_ONE_IN`] over a minute; open, it
//! lets one call through after [`PROBE_AFTER`], whose end decides.

use infergate_core::Millis;
use serde::Serialize;

/// Failures in [`WINDOW`] that open it.
pub const FAILURES_MAX: u32 = 5;
/// How far back failures count, each of [`LONG`] such spans.
const WINDOW: Millis = Millis::from_secs(10);
/// Windows the rate looks at.
const LONG: usize = 6;
/// One failed call in this many opens it, …
pub const RATE_ONE_IN: u64 = 100;
/// … from this many calls and failures on: one bad call in the first few is no rate.
pub const RATE_CALLS_MIN: u64 = 100;
#[allow(missing_docs)]
pub const RATE_FAILURES_MIN: u32 = 3;
/// How long it stays open before a call may try.
pub const PROBE_AFTER: Millis = Millis::from_secs(30);
/// A probe that never came back is not waited for longer than this.
const PROBE_LOST_AFTER: Millis = Millis::from_secs(10);

/// Its position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// Calls go through.
    #[default]
    Closed,
    /// None does.
    Open,
    /// One is on its way, to see.
    HalfOpen,
}

/// The breaker of one revision.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    position: Position,
    /// Since when it has its position.
    since: Millis,
    /// Calls and failures of the last windows, the newest at `newest % LONG`.
    calls: [u32; LONG],
    failures: [u32; LONG],
    newest: u64,
    /// Moments of the last failures, a ring.
    moments: [Millis; FAILURES_MAX as usize],
    seen: usize,
}

impl Breaker {
    /// Whether a call may be made now. One that may must end with [`Breaker::ended`].
    pub fn admits(&mut self, now: Millis) -> bool {
        let may = self.would_admit(now);
        if may && self.position != Position::Closed {
            self.turn(Position::HalfOpen, now);
        }
        may
    }

    /// What [`Breaker::admits`] would say, without making this call the one that tries.
    pub fn would_admit(&self, now: Millis) -> bool {
        match self.position {
            Position::Closed => true,
            Position::Open => now.since(self.since) >= PROBE_AFTER,
            Position::HalfOpen => now.since(self.since) >= PROBE_LOST_AFTER,
        }
    }

    /// A call ended. True when the breaker opened over it.
    pub fn ended(&mut self, good: bool, now: Millis) -> bool {
        match self.position {
            Position::Closed => {
                self.count(good, now);
                let opens = !good && self.is_too_much(now);
                if opens {
                    self.turn(Position::Open, now);
                }
                opens
            }
            // A call that began before it opened says nothing about now.
            Position::Open => false,
            Position::HalfOpen if good => {
                *self = Breaker {
                    since: now,
                    ..Breaker::default()
                };
                false
            }
            Position::HalfOpen => {
                self.turn(Position::Open, now);
                true
            }
        }
    }

    /// The admitted call was not made after all: it says nothing, and a probe may be tried again.
    pub fn was_not_asked(&mut self, now: Millis) {
        if self.position == Position::HalfOpen {
            self.turn(Position::Open, now - PROBE_AFTER);
        }
    }

    /// Where it stands.
    pub fn position(&self) -> Position {
        self.position
    }

    fn turn(&mut self, position: Position, now: Millis) {
        self.position = position;
        self.since = now;
    }

    fn count(&mut self, good: bool, now: Millis) {
        let window = now.0 / WINDOW.0;
        let passed = window.saturating_sub(self.newest).min(LONG as u64);
        for old in 1..=passed {
            let at = ((self.newest + old) % LONG as u64) as usize;
            self.calls[at] = 0;
            self.failures[at] = 0;
        }
        self.newest = self.newest.max(window);
        let at = (self.newest % LONG as u64) as usize;
        self.calls[at] = self.calls[at].saturating_add(1);
        if !good {
            self.failures[at] = self.failures[at].saturating_add(1);
            self.moments[self.seen % self.moments.len()] = now;
            self.seen += 1;
        }
    }

    fn is_too_much(&self, now: Millis) -> bool {
        let ring = self.moments.len();
        // The slot that the next failure would take holds the oldest of the last five.
        let oldest = self.moments[self.seen % ring];
        let burst = self.seen >= ring && now.since(oldest) < WINDOW;
        let calls: u64 = self.calls.iter().map(|n| u64::from(*n)).sum();
        let failures: u32 = self.failures.iter().sum();
        let rate = calls >= RATE_CALLS_MIN
            && failures >= RATE_FAILURES_MIN
            && u64::from(failures) * RATE_ONE_IN >= calls;
        burst || rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &mut Breaker, at: u64) -> bool {
        assert!(breaker.admits(Millis(at)));
        breaker.ended(false, Millis(at))
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            breaker.ended(true, Millis(0));
        }
        for at in 0..FAILURES_MAX {
            fail(&mut breaker, u64::from(at));
            if breaker.position() == Position::Open {
                break;
            }
        }
        assert_eq!(breaker.position(), Position::Open);
        breaker
    }

    #[test]
    fn five_failures_in_ten_seconds_open_it_among_however_many_calls() {
        let mut breaker = Breaker::default();
        for _ in 0..100_000 {
            breaker.ended(true, Millis(0));
        }
        assert!(!(0..4).any(|n| fail(&mut breaker, n * 2_000)));
        assert!(fail(&mut breaker, 9_999));
        assert!(!breaker.admits(Millis(10_000)));
    }

    #[test]
    fn failures_far_apart_among_many_calls_do_not_open_it() {
        let mut breaker = Breaker::default();
        for second in 0..600 {
            for _ in 0..200 {
                breaker.ended(true, Millis(second * 1000));
            }
            if second % 3 == 0 {
                assert!(!fail(&mut breaker, second * 1000), "second {second}");
            }
        }
    }

    #[test]
    fn one_call_in_a_hundred_opens_it_from_the_third_failure_on() {
        let mut breaker = Breaker::default();
        let mut opened_at = None;
        for n in 0..2_000_u64 {
            let now = Millis(n * 25);
            if breaker.ended(n % 100 != 50, now) {
                opened_at = Some(n);
                break;
            }
        }
        assert_eq!(opened_at, Some(250));
    }

    #[test]
    fn it_lets_one_call_through_after_thirty_seconds_and_believes_it() {
        let mut breaker = opened();
        assert!(!breaker.admits(Millis(29_000)));
        assert!(!breaker.would_admit(Millis(29_000)));
        assert!(breaker.would_admit(Millis(30_005)));
        assert!(breaker.would_admit(Millis(30_005)), "nothing was begun");
        assert!(breaker.admits(Millis(30_005)));
        assert!(!breaker.admits(Millis(30_006)), "one probe at a time");
        breaker.ended(true, Millis(30_007));
        assert_eq!(breaker.position(), Position::Closed);

        let mut breaker = opened();
        assert!(breaker.admits(Millis(30_005)));
        assert!(breaker.ended(false, Millis(30_007)));
        assert!(!breaker.admits(Millis(60_006)));
        assert!(breaker.admits(Millis(60_007)));
    }

    #[test]
    fn a_probe_that_never_came_back_does_not_keep_it_shut() {
        let mut breaker = opened();
        assert!(breaker.admits(Millis(31_000)));
        assert!(!breaker.admits(Millis(40_000)));
        assert!(breaker.admits(Millis(41_000)));
    }

    #[test]
    fn a_probe_that_was_not_made_may_be_made_again_at_once() {
        let mut breaker = opened();
        assert!(breaker.admits(Millis(31_000)));
        breaker.was_not_asked(Millis(31_000));
        assert!(breaker.admits(Millis(31_001)));
    }

    #[test]
    fn calls_from_before_it_opened_change_nothing() {
        let mut breaker = opened();
        breaker.ended(true, Millis(10));
        breaker.ended(false, Millis(11));
        assert_eq!(breaker.position(), Position::Open);
        assert!(breaker.admits(Millis(30_005)));
    }
}
