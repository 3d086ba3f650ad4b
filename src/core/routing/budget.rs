//! Whether a failed try may be made again: at most three tries a request, and all retries together
//! at most a tenth of the requests.
//!
//! It does not know whether a retry would be safe; the shell asks only before the first byte of an
//! answer. A request counts when it begins, a retry when it is allowed, both over a sliding window
//! of ten seconds. When every backend fails, the load on them thus grows by a tenth and not
//! threefold (<https://sre.google/sre-book/handling-overload/>).

use super::window::Window;
use crate::Millis;

/// Tries of one request, the first included.
pub const TRIES_MAX: u32 = 3;

/// One retry is earned by so many requests.
const REQUESTS_PER_RETRY: u32 = 10;

/// Retries allowed in any window however few requests there are: enough for one request to use
/// all its tries.
const RETRIES_FLOOR: u32 = TRIES_MAX - 1;

/// How a try ended, as far as it matters for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection: no backend has seen the request, so another try adds no load.
    NotConnected,
    /// A backend answered 502, 503 or 429, or dropped a reused connection.
    Failed,
}

/// The budget of one model.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    requests: Window,
    retries: Window,
}

impl RetryBudget {
    /// Nothing seen, so the floor is what may be used.
    pub fn new() -> RetryBudget {
        RetryBudget::default()
    }

    /// A request makes its first try.
    pub fn request_begins(&mut self, now: Millis) {
        self.requests.add(now);
    }

    /// Retries that requests may still make together until older ones leave the window.
    pub fn left(&mut self, now: Millis) -> u32 {
        let earned = self.requests.sum(now) / REQUESTS_PER_RETRY;
        let retries = self.retries.sum(now);
        earned.max(RETRIES_FLOOR).saturating_sub(retries)
    }

    /// Whether a request that has made `tries` tries may make another one, which is then counted.
    pub fn may_retry(&mut self, tries: u32, failure: Failure, now: Millis) -> bool {
        if tries >= TRIES_MAX {
            return false;
        }
        match failure {
            Failure::NotConnected => true,
            Failure::Failed => {
                let allowed = self.left(now) > 0;
                if allowed {
                    self.retries.add(now);
                }
                allowed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_failure_may_use_all_its_tries() {
        let mut budget = RetryBudget::new();
        budget.request_begins(Millis(0));
        assert!(budget.may_retry(1, Failure::Failed, Millis(10)));
        assert!(budget.may_retry(2, Failure::Failed, Millis(20)));
        assert!(!budget.may_retry(3, Failure::Failed, Millis(30)));
    }

    #[test]
    fn what_is_left_goes_down_with_each_retry_and_up_with_requests() {
        let mut budget = RetryBudget::new();
        assert_eq!(budget.left(Millis(0)), RETRIES_FLOOR);
        assert!(budget.may_retry(1, Failure::NotConnected, Millis(0)));
        assert_eq!(budget.left(Millis(0)), RETRIES_FLOOR);
        assert!(budget.may_retry(1, Failure::Failed, Millis(0)));
        assert_eq!(budget.left(Millis(0)), RETRIES_FLOOR - 1);
        for _ in 0..50 {
            budget.request_begins(Millis(0));
        }
        assert_eq!(budget.left(Millis(0)), 4);
    }

    #[test]
    fn connect_failures_are_always_tried_again_but_never_a_fourth_time() {
        let mut budget = RetryBudget::new();
        for request in 0..1000 {
            let now = Millis(request);
            assert!(budget.may_retry(1, Failure::NotConnected, now));
            assert!(budget.may_retry(2, Failure::NotConnected, now));
            assert!(!budget.may_retry(3, Failure::NotConnected, now));
        }
    }

    #[test]
    fn when_all_backends_fail_load_grows_by_a_tenth() {
        let mut budget = RetryBudget::new();
        let mut tries = 0;
        for request in 0..10_000_u64 {
            let now = Millis(request * 5);
            budget.request_begins(now);
            tries += 1;
            let mut tried = 1;
            while budget.may_retry(tried, Failure::Failed, now) {
                tried += 1;
                tries += 1;
            }
        }
        assert!((10_900..=11_000).contains(&tries), "{tries}");
    }

    #[test]
    fn retries_are_earned_anew_as_the_window_slides() {
        let mut budget = RetryBudget::new();
        let spend = |budget: &mut RetryBudget, now| {
            (0..100)
                .filter(|_| budget.may_retry(1, Failure::Failed, Millis(now)))
                .count()
        };
        for _ in 0..100 {
            budget.request_begins(Millis(0));
        }
        assert_eq!(spend(&mut budget, 0), 10);
        assert_eq!(spend(&mut budget, 8_000), 0);
        assert_eq!(spend(&mut budget, 11_000), 2, "only the floor is left");
    }
}
