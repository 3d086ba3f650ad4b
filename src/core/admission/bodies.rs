//! Memory of request bodies: how much one account may hold, and how slowly a body may arrive.
//!
//! Limits only: the shell keeps the counters and the clock. Bytes throughout. O(1).

use crate::Millis;

/// Bounds of the memory that request bodies take, all requests together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// All accounts together, bytes.
    pub total_bytes: u64,
    /// Bound of an account while another one holds bodies, bytes. A single account leaves as much free, so
    /// that the others can start.
    pub share_bytes: u64,
    /// The largest body, bytes: one of them is never too much for a share.
    pub one_body_bytes: u64,
    /// Only one account exists: nothing is kept free for others.
    pub is_alone: bool,
}

impl BodyLimits {
    /// Returns whether an account that holds `own` of the `held` bytes of all accounts may hold `more`.
    pub fn admit(&self, own: u64, held: u64, more: u64) -> bool {
        let (own_after, held_after) = (own.saturating_add(more), held.saturating_add(more));
        if held_after > self.total_bytes {
            return false;
        }
        let others = held.saturating_sub(own);
        let is_within_share = own_after <= self.share_bytes.max(self.one_body_bytes);
        let reserved = if self.is_alone { 0 } else { self.share_bytes };
        is_within_share || (others == 0 && held_after <= self.total_bytes.saturating_sub(reserved))
    }
}

/// Floor on the rate of one body, over windows of equal length.
#[derive(Clone, Copy, Debug)]
pub struct BodyPace {
    window: Millis,
    window_bytes_min: u64,
    window_end: Millis,
    window_bytes: u64,
}

impl BodyPace {
    /// Begins with the first window. A floor of 0 never cuts.
    pub fn new(now: Millis, window: Millis, kib_per_sec_min: u64) -> BodyPace {
        BodyPace {
            window,
            window_bytes_min: kib_per_sec_min
                .saturating_mul(1024)
                .saturating_mul(window.0)
                / 1000,
            window_end: now + window,
            window_bytes: 0,
        }
    }

    /// Counts bytes that arrived; false when the window that has ended brought fewer than the floor.
    #[must_use]
    pub fn record(&mut self, bytes: u64, now: Millis) -> bool {
        if now >= self.window_end {
            if self.window_bytes < self.window_bytes_min {
                return false;
            }
            self.window_bytes = 0;
            self.window_end = now + self.window;
        }
        self.window_bytes = self.window_bytes.saturating_add(bytes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        total_bytes: 100,
        share_bytes: 25,
        one_body_bytes: 10,
        is_alone: false,
    };

    #[test]
    fn an_account_beside_another_holds_its_share_at_most() {
        assert!(LIMITS.admit(20, 21, 5));
        assert!(!LIMITS.admit(20, 21, 6));
        assert!(!LIMITS.admit(75, 76, 1));
    }

    #[test]
    fn an_account_alone_leaves_a_share_for_the_next_one() {
        assert!(LIMITS.admit(70, 70, 5));
        assert!(!LIMITS.admit(70, 70, 6));
        // Another one begins in what was left.
        assert!(LIMITS.admit(0, 75, 25));
        assert!(!LIMITS.admit(0, 76, 25));
        let only = BodyLimits {
            is_alone: true,
            ..LIMITS
        };
        assert!(only.admit(90, 90, 10));
        assert!(!only.admit(90, 90, 11));
    }

    #[test]
    fn one_body_is_never_too_much_for_a_share() {
        let small = BodyLimits {
            share_bytes: 5,
            ..LIMITS
        };
        assert!(small.admit(0, 50, 10));
        assert!(!small.admit(0, 50, 11));
    }

    #[test]
    fn a_body_below_the_floor_over_a_whole_window_is_cut_and_a_steady_one_is_not() {
        let window = Millis::from_secs(30);
        let mut steady = BodyPace::new(Millis(0), window, 1);
        assert!((0..300).all(|second| steady.record(1024, Millis(second * 1000))));
        let mut dripping = BodyPace::new(Millis(0), window, 1);
        assert!((0..30).all(|second| dripping.record(1, Millis(second * 1000))));
        assert!(!dripping.record(1, Millis(30_000)));
        let mut unbounded = BodyPace::new(Millis(0), window, 0);
        assert!((0..300).all(|second| unbounded.record(1, Millis(second * 1000))));
    }
}
