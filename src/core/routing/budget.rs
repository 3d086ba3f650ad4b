//! Limits on attempts: [`AttemptBudget`] of one request over all its nodes, and the [`RetryBudget`] of a
//! node, at most a tenth of its requests.
//!
//! Does not judge whether a retry is safe; the shell asks only before the first byte of a response.
//! A request counts when it begins at the node its client sent it to, a retry when it is allowed,
//! both over a sliding window of ten seconds. If every backend fails, the load on them thus grows
//! by a tenth and two a second, and not threefold
//! (<https://sre.google/sre-book/handling-overload/>). A retry at another endpoint whose latest
//! attempt succeeded is always allowed: it costs that endpoint what a first attempt would. If it fails, it is
//! counted, and the budget decides again.
//!
//! An attempt is a request whose head was sent to a backend. Known in the source as the entry's
//! error budget and its out-of-capacity budget.

use super::window::SlidingCount;
use crate::Millis;

/// Attempts of one request, the first included.
pub const ATTEMPTS_MAX: u32 = 3;

/// Errors of one request over all nodes: the one that uses the last up is answered to the client.
pub const ERRORS_MAX: u32 = ATTEMPTS_MAX;

/// Out-of-capacity responses that a request with a small body may get, from nodes and backends.
pub const CAPACITY_ATTEMPTS_SMALL: u32 = 5;

/// The same for a large body: sending it around costs more than it is likely to win.
pub const CAPACITY_ATTEMPTS_LARGE: u32 = 2;

/// A body up to so many bytes is small.
pub const SMALL_BODY_BYTES_MAX: u64 = 256 * 1024;

/// Requests that earn one retry.
const REQUESTS_PER_RETRY: u32 = 10;

/// Retries allowed in any second however few requests there are: enough for one request to use
/// all its attempts.
const RETRIES_A_SECOND_MIN: u32 = ATTEMPTS_MAX - 1;

const SECOND: Millis = Millis::from_secs(1);

/// Failure of an attempt, as far as it matters for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// No connection: no backend has seen the request, so another attempt adds no load.
    NotConnected,
    /// A backend answered 429, 503 or at once 502.
    Failed,
}

/// Target of another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryTarget {
    /// Another endpoint, whose latest attempt succeeded.
    Proven,
    /// An endpoint that failed lately, or the one that has just failed.
    Unproven,
    /// Any target: another node was lost with the attempt.
    AfterNode,
}

/// Attempt budget of one request until it is answered, across nodes.
///
/// A forward takes a part of the budget along. Budget that the response does not return counts as
/// used, so the sum over all nodes never exceeds the initial budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptBudget {
    /// Errors; while there is one left another attempt may be made.
    pub errors_left: u32,
    /// Out-of-capacity responses after which it may be tried elsewhere.
    pub capacity_left: u32,
}

impl AttemptBudget {
    /// Returns the budget of a new request.
    pub fn for_body(body_bytes: u64) -> AttemptBudget {
        AttemptBudget {
            errors_left: ERRORS_MAX,
            capacity_left: match body_bytes <= SMALL_BODY_BYTES_MAX {
                true => CAPACITY_ATTEMPTS_SMALL,
                false => CAPACITY_ATTEMPTS_LARGE,
            },
        }
    }

    /// Records a failed attempt or an unreachable node. Returns whether another attempt may be
    /// made.
    pub fn record_error(&mut self) -> bool {
        self.errors_left = self.errors_left.saturating_sub(1);
        self.errors_left > 0
    }

    /// Records an out-of-capacity response of a backend or node. Returns whether another one may be
    /// asked.
    pub fn record_out_of_capacity(&mut self) -> bool {
        let left = self.capacity_left > 0;
        self.capacity_left = self.capacity_left.saturating_sub(1);
        left && self.errors_left > 0
    }

    /// Returns the part of the budget that a forward takes along. Two parts are kept back: one
    /// error while there is more than one, to save the request when the node is lost, and the
    /// out-of-capacity response of the node itself.
    pub fn lend(self) -> AttemptBudget {
        AttemptBudget {
            errors_left: self
                .errors_left
                .saturating_sub(1)
                .max(1)
                .min(self.errors_left),
            capacity_left: self.capacity_left.saturating_sub(1),
        }
    }

    /// Settles a lent part with what the node returned.
    pub fn settle(&mut self, lent: AttemptBudget, left: AttemptBudget) {
        let errors = lent.errors_left.saturating_sub(left.errors_left);
        let capacity = lent.capacity_left.saturating_sub(left.capacity_left);
        self.errors_left = self.errors_left.saturating_sub(errors);
        self.capacity_left = self.capacity_left.saturating_sub(capacity);
    }

    /// Settles a lost forward: one error, and everything that was lent. Returns whether another
    /// attempt may be made.
    pub fn settle_lost(&mut self, lent: AttemptBudget) -> bool {
        let nothing = AttemptBudget {
            errors_left: 0,
            capacity_left: 0,
        };
        self.settle(lent, nothing);
        self.errors_left > 0
    }
}

/// The budget of one model.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    requests: SlidingCount,
    retries: SlidingCount,
    /// Times of the latest retries, for the floor over any second.
    latest: [Option<Millis>; RETRIES_A_SECOND_MIN as usize],
}

impl RetryBudget {
    /// Returns an empty budget: only the floor may be used.
    pub fn new() -> RetryBudget {
        RetryBudget::default()
    }

    /// Records the first attempt of a request.
    pub fn record_request(&mut self, now: Millis) {
        self.requests.add(now);
    }

    /// Retries that requests may still make together until older ones leave the window.
    pub fn retries_left(&mut self, now: Millis) -> u32 {
        let earned = self.requests.sum(now) / REQUESTS_PER_RETRY;
        let earned = earned.saturating_sub(self.retries.sum(now));
        let is_past = |at: &&Option<Millis>| at.is_none_or(|at| now.since(at) >= SECOND);
        let floor = self.latest.iter().filter(is_past).count() as u32;
        earned.max(floor)
    }

    /// Counts a retry at a proven endpoint, which was allowed without being counted and has failed.
    pub fn record_proven_retry_failure(&mut self, now: Millis) {
        self.count(now);
    }

    fn count(&mut self, now: Millis) {
        self.retries.add(now);
        self.latest.rotate_left(1);
        self.latest[RETRIES_A_SECOND_MIN as usize - 1] = Some(now);
    }

    /// Returns whether a request with `attempts` behind it may make another one at `target`. The retry
    /// is then counted unless it adds no load. A retry at a proven endpoint is counted only when it
    /// fails.
    pub fn may_retry(
        &mut self,
        attempts: u32,
        failure: AttemptFailure,
        target: RetryTarget,
        now: Millis,
    ) -> bool {
        if attempts >= ATTEMPTS_MAX {
            return false;
        }
        match (target, failure) {
            (RetryTarget::Proven, _) | (RetryTarget::AfterNode, AttemptFailure::NotConnected) => {
                true
            }
            (RetryTarget::Unproven | RetryTarget::AfterNode, _) => {
                let allowed = self.retries_left(now) > 0;
                if allowed {
                    self.count(now);
                }
                allowed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(budget: &mut RetryBudget, attempts: u32, now: Millis) -> bool {
        budget.may_retry(attempts, AttemptFailure::Failed, RetryTarget::Unproven, now)
    }

    #[test]
    fn a_lone_failure_may_use_all_its_attempts() {
        let mut budget = RetryBudget::new();
        budget.record_request(Millis(0));
        assert!(again(&mut budget, 1, Millis(10)));
        assert!(again(&mut budget, 2, Millis(20)));
        assert!(!again(&mut budget, 3, Millis(30)));
    }

    #[test]
    fn what_is_left_goes_down_with_each_retry_and_up_with_requests() {
        let mut budget = RetryBudget::new();
        assert_eq!(budget.retries_left(Millis(0)), RETRIES_A_SECOND_MIN);
        assert!(budget.may_retry(1, AttemptFailure::Failed, RetryTarget::Proven, Millis(0)));
        assert_eq!(budget.retries_left(Millis(0)), RETRIES_A_SECOND_MIN);
        assert!(again(&mut budget, 1, Millis(0)));
        assert_eq!(budget.retries_left(Millis(0)), RETRIES_A_SECOND_MIN - 1);
        for _ in 0..50 {
            budget.record_request(Millis(0));
        }
        assert_eq!(budget.retries_left(Millis(0)), 4);
    }

    #[test]
    fn a_retry_at_a_proven_endpoint_is_counted_when_it_fails() {
        let mut budget = RetryBudget::new();
        assert!(budget.may_retry(1, AttemptFailure::Failed, RetryTarget::Proven, Millis(0)));
        budget.record_proven_retry_failure(Millis(1));
        assert_eq!(budget.retries_left(Millis(1)), RETRIES_A_SECOND_MIN - 1);
    }

    #[test]
    fn the_floor_is_two_in_any_second_and_not_in_each_of_the_clocks() {
        let mut budget = RetryBudget::new();
        assert!(again(&mut budget, 1, Millis(900)));
        assert!(again(&mut budget, 1, Millis(950)));
        assert!(!again(&mut budget, 1, Millis(1_100)));
        assert!(again(&mut budget, 1, Millis(1_900)));
        assert!(!again(&mut budget, 1, Millis(1_949)));
    }

    #[test]
    fn a_large_body_is_sent_around_less() {
        let capacity = |bytes| AttemptBudget::for_body(bytes).capacity_left;
        assert_eq!([capacity(0), capacity(256 * 1024)], [5, 5]);
        assert_eq!(capacity(256 * 1024 + 1), 2);
    }

    #[test]
    fn the_third_error_is_the_last() {
        let mut attempts = AttemptBudget::for_body(0);
        assert_eq!(
            [
                attempts.record_error(),
                attempts.record_error(),
                attempts.record_error()
            ],
            [true, true, false]
        );
        assert!(
            !attempts.record_out_of_capacity(),
            "nor is it asked elsewhere then"
        );
    }

    #[test]
    fn a_node_lost_with_all_it_was_lent_leaves_one_attempt_to_save_the_request() {
        let mut attempts = AttemptBudget::for_body(0);
        assert!(attempts.settle_lost(attempts.lend()));
        assert_eq!((attempts.errors_left, attempts.capacity_left), (1, 1));
        assert!(!attempts.settle_lost(attempts.lend()));
    }

    #[test]
    fn what_a_node_did_not_use_comes_back() {
        let mut attempts = AttemptBudget::for_body(0);
        let lent = attempts.lend();
        assert_eq!((lent.errors_left, lent.capacity_left), (2, 4));
        let mut there = lent;
        there.record_error();
        there.record_out_of_capacity();
        attempts.settle(lent, there);
        assert!(attempts.record_out_of_capacity());
        assert_eq!((attempts.errors_left, attempts.capacity_left), (2, 3));
    }

    proptest::proptest! {
        #[test]
        fn no_way_of_lending_and_losing_makes_more_of_a_budget(steps in proptest::collection::vec(0..5_u8, 0..60)) {
            let whole = AttemptBudget::for_body(0);
            // Those who wait for a response, each with what it lent to the next.
            let mut path = vec![(whole, whole)];
            let (mut errors, mut refusals) = (0, 0);
            for step in steps {
                let depth = path.len();
                let (_, here) = &mut path[depth - 1];
                match step {
                    0 if here.errors_left > 0 => {
                        errors += 1;
                        here.record_error();
                    }
                    1 if here.capacity_left > 0 => {
                        refusals += 1;
                        here.record_out_of_capacity();
                    }
                    2 if here.errors_left > 0 && here.capacity_left > 0 => {
                        let lent = here.lend();
                        path.push((lent, lent));
                    }
                    3 if depth > 1 => {
                        let (lent, left) = path.pop().expect("deeper than one");
                        let (_, caller) = &mut path[depth - 2];
                        caller.settle(lent, left);
                        refusals += 1;
                        caller.record_out_of_capacity();
                    }
                    4 if depth > 1 => {
                        let (lent, _) = path.pop().expect("deeper than one");
                        path[depth - 2].1.settle_lost(lent);
                    }
                    _ => {}
                }
            }
            proptest::prop_assert!(errors <= ERRORS_MAX, "{errors} errors");
            proptest::prop_assert!(refusals <= CAPACITY_ATTEMPTS_SMALL, "{refusals} refusals");
        }
    }

    #[test]
    fn a_proven_endpoint_or_a_lost_node_is_always_followed_by_a_try_but_never_a_fourth() {
        let mut budget = RetryBudget::new();
        for request in 0..1000 {
            let now = Millis(request);
            for (failure, target) in [
                (AttemptFailure::Failed, RetryTarget::Proven),
                (AttemptFailure::NotConnected, RetryTarget::Proven),
                (AttemptFailure::NotConnected, RetryTarget::AfterNode),
            ] {
                assert!(budget.may_retry(1, failure, target, now));
                assert!(budget.may_retry(2, failure, target, now));
                assert!(!budget.may_retry(3, failure, target, now));
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn when_all_backends_fail_load_grows_by_a_tenth_and_two_a_second(
            pauses in proptest::collection::vec(0..2_000_u64, 1..500),
            burst in 1..50_u64,
        ) {
            let mut budget = RetryBudget::new();
            let (mut now, mut requests, mut retries) = (0, 0_u64, 0_u64);
            for (at, pause) in pauses.iter().enumerate() {
                // Bursts, floods and trickles.
                now += if at % 20 < 15 { pause / 200 } else { *pause };
                for _ in 0..(if at % 7 == 0 { burst } else { 1 }) {
                    budget.record_request(Millis(now));
                    requests += 1;
                    for attempts in 1.. {
                        if !again(&mut budget, attempts, Millis(now)) {
                            break;
                        }
                        retries += 1;
                    }
                }
            }
            let seconds = now / 1000 + 1;
            proptest::prop_assert!(retries <= requests / 10 + 2 * seconds, "{retries} of {requests}");
        }
    }

    #[test]
    fn retries_are_earned_anew_as_the_window_slides() {
        let mut budget = RetryBudget::new();
        let spend = |budget: &mut RetryBudget, now| {
            (0..100).filter(|_| again(budget, 1, Millis(now))).count()
        };
        for _ in 0..100 {
            budget.record_request(Millis(0));
        }
        assert_eq!(spend(&mut budget, 0), 10);
        assert_eq!(spend(&mut budget, 8_000), 2, "only the floor is left");
        for _ in 0..100 {
            budget.record_request(Millis(9_000));
        }
        assert_eq!(spend(&mut budget, 11_000), 8);
    }
}
