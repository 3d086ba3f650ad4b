//! Retries of a request at servers that have no capacity, before its client hears of it: `out_of_capacity_retries`.
//!
//! Not the choice of another server or of a fallback, which come first. Waits for nothing: the shell gives the permit
//! back, lets the pause pass and asks for a permit again. A retry follows only a status by which no work has begun. Each one
//! is an attempt of its request and counts against the retries that the requests of the model share. No pause ends
//! behind the deadline. Times are milliseconds of one clock.

use super::budget::{ATTEMPTS_MAX, AttemptFailure, RetryBudget, RetryTarget};
use crate::Millis;

/// Pause before the first retry; twice as much before the next one. Client libraries wait about as long.
const PAUSE_MIN: Millis = Millis(500);

/// Part of a pause that is added at random, at most: requests that were refused together do not come back together.
const SPREAD_PART: u64 = 4;

/// Status of a server that depends on another one without capacity.
pub const FAILED_DEPENDENCY: u16 = 424;

/// Response without capacity that no other server and no fallback makes up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityAnswer {
    /// HTTP status.
    pub status: u16,
    /// Attempts of the request so far.
    pub tries: u32,
    /// Remaining pause, where every endpoint in use has asked for one.
    pub pause: Option<Millis>,
    /// Deadline of the request.
    pub deadline: Millis,
}

/// Own retries of one request at one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityRetries {
    made: u32,
}

impl CapacityRetries {
    /// Decides at `now` on another attempt, of which the model allows `limit`, and counts it; returns the pause
    /// before it. None where the client is to get the refusal. `random` is any number.
    pub fn next_pause(
        &mut self,
        limit: u32,
        answer: CapacityAnswer,
        model: &mut RetryBudget,
        now: Millis,
        random: u64,
    ) -> Option<Millis> {
        if self.made >= limit || !is_without_work(answer.status) || answer.tries >= ATTEMPTS_MAX {
            return None;
        }
        let least = Millis(PAUSE_MIN.0 << self.made.min(ATTEMPTS_MAX));
        let pause = least.max(answer.pause.unwrap_or(Millis::ZERO));
        let pause = pause + Millis(random % (least.0 / SPREAD_PART));
        if !ends_before(pause, answer.deadline, now) {
            return None;
        }
        // Last, because the model's retries are counted.
        let (failure, target) = (AttemptFailure::Failed, RetryTarget::Unproven);
        if !model.may_retry(answer.tries, failure, target, now) {
            return None;
        }
        self.made += 1;
        Some(pause)
    }
}

/// Returns whether a pause that begins at `now` leaves time before the deadline.
pub fn ends_before(pause: Millis, deadline: Millis, now: Millis) -> bool {
    pause < deadline.since(now)
}

/// Returns whether a server that answers so has not begun to work.
fn is_without_work(status: u16) -> bool {
    matches!(status, 429 | FAILED_DEPENDENCY)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Millis = Millis(10_000);

    fn busy(tries: u32) -> CapacityAnswer {
        CapacityAnswer {
            status: 429,
            tries,
            pause: None,
            deadline: Millis(70_000),
        }
    }

    /// The pauses of a request that has `limit` retries and is refused each time, without the random part.
    fn pauses(limit: u32, answer: impl Fn(u32) -> CapacityAnswer) -> Vec<u64> {
        let (mut retries, mut model) = (CapacityRetries::default(), RetryBudget::new());
        let pauses =
            (1..10).map_while(|tries| retries.next_pause(limit, answer(tries), &mut model, NOW, 0));
        pauses.map(|pause| pause.0).collect()
    }

    #[test]
    fn a_model_without_retries_of_its_own_has_none() {
        assert!(pauses(0, busy).is_empty());
    }

    #[test]
    fn each_pause_is_twice_the_one_before_and_the_third_attempt_is_the_last() {
        assert_eq!(pauses(1, busy), [500]);
        assert_eq!(pauses(2, busy), [500, 1000]);
        assert_eq!(pauses(100, busy), [500, 1000]);
    }

    #[test]
    fn only_answers_without_work_are_followed_by_another_attempt() {
        for status in 100..=599 {
            let answer = |tries| CapacityAnswer {
                status,
                ..busy(tries)
            };
            let is_followed = !pauses(2, answer).is_empty();
            assert_eq!(is_followed, matches!(status, 424 | 429), "{status}");
        }
    }

    #[test]
    fn a_pause_that_servers_ask_for_is_kept() {
        let asked = |millis| {
            move |tries| CapacityAnswer {
                pause: Some(Millis(millis)),
                ..busy(tries)
            }
        };
        assert_eq!(pauses(1, asked(7_000)), [7_000]);
        assert_eq!(pauses(1, asked(20)), [500]);
    }

    #[test]
    fn no_pause_ends_at_the_deadline_or_behind_it() {
        let by = |millis| {
            move |tries| CapacityAnswer {
                deadline: NOW + Millis(millis),
                ..busy(tries)
            }
        };
        assert_eq!(pauses(2, by(1_001)), [500, 1000]);
        assert_eq!(pauses(2, by(1_000)), [500]);
        assert!(pauses(2, by(500)).is_empty());
        let late = |tries| CapacityAnswer {
            deadline: Millis(1),
            ..busy(tries)
        };
        assert!(pauses(2, late).is_empty());
    }

    #[test]
    fn requests_of_a_model_share_its_retries() {
        let mut model = RetryBudget::new();
        let retried = (0..100)
            .filter(|_| {
                let mut retries = CapacityRetries::default();
                model.record_request(NOW);
                let pause = retries.next_pause(2, busy(1), &mut model, NOW, 0);
                pause.is_some()
            })
            .count();
        assert_eq!(retried, 10);
    }

    #[test]
    fn a_request_that_does_not_come_back_in_time_takes_none_of_the_models_retries() {
        let mut model = RetryBudget::new();
        let left = model.retries_left(NOW);
        let late = CapacityAnswer {
            deadline: NOW,
            ..busy(1)
        };
        let mut retries = CapacityRetries::default();
        assert_eq!(retries.next_pause(2, late, &mut model, NOW, 0), None);
        assert_eq!(model.retries_left(NOW), left);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn retries_are_bounded_and_in_time_and_follow_no_answer_of_a_server_that_may_have_begun(
            limit in 0..6_u32,
            left in 0..100_000_u64,
            answers in prop::collection::vec(
                (prop_oneof![Just(429_u16), Just(424), 100..600_u16], prop::option::of(0..70_000_u64), any::<u64>()),
                1..12,
            ),
        ) {
            let (mut retries, mut model) = (CapacityRetries::default(), RetryBudget::new());
            let deadline = NOW + Millis(left);
            let (mut now, mut tries, mut made) = (NOW, 1, 0);
            model.record_request(now);
            for (status, pause, random) in answers {
                let pause = pause.map(Millis);
                let answer = CapacityAnswer { status, tries, pause, deadline };
                let Some(waited) = retries.next_pause(limit, answer, &mut model, now, random) else {
                    continue;
                };
                prop_assert!(status == 429 || status == 424, "{}", status);
                prop_assert!(waited >= pause.unwrap_or(PAUSE_MIN).max(PAUSE_MIN));
                now = now + waited;
                prop_assert!(now < deadline);
                tries += 1;
                made += 1;
            }
            prop_assert!(made <= limit.min(ATTEMPTS_MAX - 1), "{} of {}", made, limit);
            prop_assert!(tries <= ATTEMPTS_MAX);
        }
    }
}
