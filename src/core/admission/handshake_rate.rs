//! Handshakes a second of all clients together: a token bucket that holds a second's worth.
//!
//! Not the queue of those that wait, which the shell has: it asks again at the moment that it is told. O(1).

use crate::Millis;

/// Units of a handshake. `per_second` units pass each millisecond, so that every rate is exact without fractions.
const HANDSHAKE: u64 = 1000;

/// Handshakes taken so far, against a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeRate {
    /// Units taken and not yet come back.
    used: u64,
    /// Moment of that count.
    counted_at: Millis,
}

impl HandshakeRate {
    /// Takes a handshake, of `per_second` at most; 0 is no bound.
    ///
    /// # Errors
    /// The moment to ask again: none is free before.
    pub fn take(&mut self, per_second: u32, now: Millis) -> Result<(), Millis> {
        if per_second == 0 {
            return Ok(());
        }
        let per_milli = u64::from(per_second);
        let back = now.since(self.counted_at).0.saturating_mul(per_milli);
        // A rate that was lowered finds more than its own second's worth taken, and waits for no more than that.
        let most = per_milli * HANDSHAKE;
        self.used = self.used.saturating_sub(back).min(most);
        self.counted_at = self.counted_at.max(now);
        let over = (self.used + HANDSHAKE).saturating_sub(most);
        if over > 0 {
            return Err(self.counted_at + Millis(over.div_ceil(per_milli)));
        }
        self.used += HANDSHAKE;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seconds_worth_passes_at_once_and_then_one_after_the_other() {
        let mut rate = HandshakeRate::default();
        let now = Millis(10_000);
        for _ in 0..4 {
            assert_eq!(rate.take(4, now), Ok(()));
        }
        let next = rate.take(4, now).unwrap_err();
        assert_eq!(next, Millis(10_250));
        assert_eq!(rate.take(4, Millis(10_249)), Err(next));
        assert_eq!(rate.take(4, next), Ok(()));
        assert!(rate.take(4, next).is_err());
        // After a pause no more than a second's worth has gathered.
        let later = Millis(100_000);
        assert_eq!((0..9).filter(|_| rate.take(4, later).is_ok()).count(), 4);
    }

    #[test]
    fn a_rate_may_change_and_none_is_no_bound() {
        let mut rate = HandshakeRate::default();
        for _ in 0..1000 {
            assert_eq!(rate.take(1000, Millis(1)), Ok(()));
        }
        assert_eq!(rate.take(1, Millis(1)), Err(Millis(1001)));
        assert_eq!(rate.take(0, Millis(1)), Ok(()));
        assert_eq!(rate.take(2000, Millis(1)), Ok(()));
    }

    proptest::proptest! {
        #[test]
        fn no_second_has_more_than_twice_its_worth(
            per_second in 1_u32..50, steps in proptest::collection::vec(0_u64..400, 1..200)
        ) {
            let (mut rate, mut now, mut made) = (HandshakeRate::default(), Millis(0), Vec::new());
            for step in steps {
                now = now + Millis(step);
                while rate.take(per_second, now).is_ok() {
                    made.push(now);
                }
                let recent = made.iter().filter(|at| now.since(**at) < Millis(1000)).count();
                proptest::prop_assert!(recent <= 2 * per_second as usize);
            }
        }
    }
}
