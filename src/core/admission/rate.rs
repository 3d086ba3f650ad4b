//! Requests or tokens per minute of one account, by the generic cell rate algorithm: one number instead of a
//! list of timestamps (<https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm>).
//!
//! Independent of accounts: the shell keeps one [`Rate`] for each that has a limit. O(1).
//!
//! The burst is one minute's worth. A client that stays within the limit in every minute is never
//! refused, whenever in the minute the requests come. The price: the first minute after a pause may
//! pass twice the limit. Endpoints are protected by permits and fair queues.

use crate::{Millis, Refusal};

/// Units of a request (or token). `per_minute` units pass each millisecond, so that every limit is exact
/// without fractions.
const REQUEST: u128 = 60_000;

/// Use of an account's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    per_minute: u32,
    /// The moment, in units, at which everything taken so far would have been due one by one.
    due: u128,
    /// Requests that passed here and were not given back, for other nodes to count.
    passed: u64,
}

/// Longest wait that requests at other nodes may cause, in minutes of the account's limit. Each node may let a
/// minute's worth pass before the others learn of it.
const REMOTE_MINUTES_MAX: u128 = 2;
/// Longest wait that a correction may cause, in minutes of the account's limit: a model server that reports nonsense
/// must not lock its callers out for good.
const CORRECTED_MINUTES_MAX: u128 = 60;

impl Rate {
    /// Creates an unused limit. A limit of 0 counts as 1.
    pub fn new(per_minute: u32) -> Rate {
        Rate {
            per_minute: per_minute.max(1),
            due: 0,
            passed: 0,
        }
    }

    /// Takes a unit for a request.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`] with the time until the next unit is free.
    pub fn take(&mut self, now: Millis) -> Result<(), Refusal> {
        self.take_many(1, now)?;
        self.passed = self.passed.saturating_add(1);
        Ok(())
    }

    /// Requests that passed here, since the beginning.
    pub fn passed(&self) -> u64 {
        self.passed
    }

    /// Counts `count` requests that passed at another node.
    pub fn take_remote(&mut self, count: u64, now: Millis) {
        let now = self.units(now);
        let due = self.due.max(now);
        let units = u128::from(count).saturating_mul(REQUEST);
        let most = now + REMOTE_MINUTES_MAX * REQUEST * u128::from(self.per_minute);
        self.due = due.saturating_add(units).min(most.max(due));
    }

    /// Takes `count` units while at least one is left. Units above the limit delay later requests.
    ///
    /// # Errors
    /// [`Refusal::RateLimited`] with the time until one is left.
    pub fn take_many(&mut self, count: u64, now: Millis) -> Result<(), Refusal> {
        let now = self.units(now);
        let due = self.due.max(now);
        let burst = u128::from(self.per_minute - 1) * REQUEST;
        if due > now + burst {
            let early = due - burst - now;
            let retry_after = early.div_ceil(u128::from(self.per_minute));
            let retry_after = Millis(u64::try_from(retry_after).unwrap_or(u64::MAX));
            return Err(Refusal::RateLimited { retry_after });
        }
        self.due = due.saturating_add(u128::from(count).saturating_mul(REQUEST));
        Ok(())
    }

    /// Returns the unit of a request that was refused for capacity.
    pub fn refund(&mut self) {
        self.due = self.due.saturating_sub(REQUEST);
        self.passed = self.passed.saturating_sub(1);
    }

    /// Corrects a charge of `taken` to `actual`.
    pub fn correct(&mut self, taken: u64, actual: u64, now: Millis) {
        let units = |count: u64| u128::from(count).saturating_mul(REQUEST);
        match actual.checked_sub(taken) {
            Some(more) => {
                let now = self.units(now);
                let due = self.due.max(now);
                let most = now + CORRECTED_MINUTES_MAX * REQUEST * u128::from(self.per_minute);
                self.due = due.saturating_add(units(more)).min(most.max(due));
            }
            None => self.due = self.due.saturating_sub(units(taken - actual)),
        }
    }

    /// Returns the state of the limit, for rate-limit headers.
    pub fn status(&self, now: Millis) -> RateStatus {
        let per_minute = u128::from(self.per_minute);
        let used = self.due.saturating_sub(self.units(now));
        let left = (per_minute * REQUEST).saturating_sub(used) / REQUEST;
        RateStatus {
            limit: self.per_minute,
            remaining: u32::try_from(left).unwrap_or(u32::MAX),
            reset: Millis(u64::try_from(used.div_ceil(per_minute)).unwrap_or(u64::MAX)),
        }
    }

    /// The limit was changed by a reload: requests taken stay taken.
    pub fn set_limit(&mut self, per_minute: u32, now: Millis) {
        let used = self.due.saturating_sub(self.units(now));
        self.per_minute = per_minute.max(1);
        self.due = self.units(now) + used;
    }

    fn units(&self, at: Millis) -> u128 {
        u128::from(at.0) * u128::from(self.per_minute)
    }
}

/// State of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateStatus {
    /// Per minute.
    pub limit: u32,
    /// Units free now.
    pub remaining: u32,
    /// Time until all of it is left again.
    pub reset: Millis,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(rate: &mut Rate, now: u64) -> usize {
        std::iter::from_fn(|| rate.take(Millis(now)).ok()).count()
    }

    #[test]
    fn a_minutes_worth_passes_at_once_and_then_one_at_a_time() {
        let mut rate = Rate::new(6);
        assert_eq!(taken(&mut rate, 1_000_000), 6);
        assert_eq!(taken(&mut rate, 1_009_999), 0);
        assert_eq!(taken(&mut rate, 1_010_000), 1);
        assert_eq!(taken(&mut rate, 1_070_000), 6);
    }

    #[test]
    fn a_report_beyond_belief_is_waited_off_within_an_hour() {
        let mut rate = Rate::new(1000);
        rate.take_many(300, Millis(0)).unwrap();
        rate.correct(300, u64::MAX, Millis(0));
        assert!(rate.take_many(1, Millis(59 * 60_000)).is_err());
        rate.take_many(1, Millis(60 * 60_000)).unwrap();
        // What is owed for a reason is not bounded by that.
        let mut rate = Rate::new(1);
        rate.take_many(1_000_000, Millis(0)).unwrap();
        rate.correct(1_000_000, 1_000_001, Millis(0));
        assert!(rate.take_many(1, Millis(999_999 * 60_000)).is_err());
    }

    #[test]
    fn whoever_keeps_to_the_limit_in_every_minute_is_never_refused() {
        let mut rate = Rate::new(7);
        for minute in 0..100_u64 {
            let now = minute * 60_000;
            assert_eq!((0..7).filter(|_| rate.take(Millis(now)).is_ok()).count(), 7);
        }
    }

    #[test]
    fn retry_after_is_the_moment_the_next_one_passes() {
        let mut rate = Rate::new(7);
        taken(&mut rate, 500);
        let Err(Refusal::RateLimited { retry_after }) = rate.take(Millis(600)) else {
            panic!("seven have been taken");
        };
        assert!(rate.take(Millis(600 + retry_after.0 - 1)).is_err());
        assert!(rate.take(Millis(600 + retry_after.0)).is_ok());
    }

    #[test]
    fn a_unit_given_back_can_be_taken_again_and_no_more() {
        let mut rate = Rate::new(3);
        taken(&mut rate, 0);
        rate.refund();
        assert_eq!(taken(&mut rate, 0), 1);
    }

    #[test]
    fn what_passed_elsewhere_counts_here_and_makes_nobody_wait_for_more_than_a_minute() {
        let mut rate = Rate::new(6);
        rate.take_remote(4, Millis(0));
        assert_eq!((taken(&mut rate, 0), rate.passed()), (2, 2));
        rate.take_remote(u64::MAX, Millis(0));
        assert_eq!((taken(&mut rate, 60_000), taken(&mut rate, 70_000)), (0, 1));
        assert_eq!(taken(&mut rate, 130_000), 6);
        rate.refund();
        assert_eq!(rate.passed(), 8);
    }

    #[test]
    fn a_new_limit_counts_what_was_taken_under_the_old_one() {
        let mut rate = Rate::new(10);
        for _ in 0..4 {
            rate.take(Millis(0)).unwrap();
        }
        rate.set_limit(6, Millis(0));
        assert_eq!(taken(&mut rate, 0), 2);
    }

    #[test]
    fn tokens_pass_while_one_is_left_and_a_debt_is_waited_off() {
        let mut rate = Rate::new(600);
        assert!(rate.take_many(1_000, Millis(0)).is_ok());
        let Err(Refusal::RateLimited { retry_after }) = rate.take_many(1, Millis(0)) else {
            panic!("400 above the limit");
        };
        assert_eq!(retry_after, Millis(40_100));
        rate.correct(1_000, 300, Millis(0));
        let left = RateStatus {
            limit: 600,
            remaining: 300,
            reset: Millis(30_000),
        };
        assert_eq!(rate.status(Millis(0)), left);
        rate.correct(0, 200, Millis(60_000));
        assert_eq!(rate.status(Millis(60_000)).remaining, 400);
    }

    #[test]
    fn the_largest_limit_and_the_latest_moment_do_not_overflow() {
        let mut rate = Rate::new(u32::MAX);
        assert!(rate.take(Millis::MAX).is_ok());
        rate.set_limit(1, Millis::MAX);
        assert!(rate.take(Millis::MAX).is_err());
    }
}
