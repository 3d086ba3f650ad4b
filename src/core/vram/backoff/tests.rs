//! Tests of backoffs: the delays one by one, and random histories against the bounds.

use proptest::prelude::*;

use super::*;

/// Random number that leaves a delay as it is.
fn unspread(delay: Millis) -> u64 {
    delay.0 / SPREAD_DIVISOR
}

/// Fails a load at `now` and returns the delay in whole seconds.
fn fail(backoff: &mut LoadBackoff, failure: InstanceFailure, now: Millis) -> u64 {
    backoff.record_start(now);
    let next = delay_after(backoff.failures + 1);
    let random = match !backoff.was_ready && backoff.failures_before_ready + 1 >= BROKEN_AFTER {
        true => unspread(BROKEN_RETRY),
        false => unspread(next),
    };
    let state = backoff.record_failure(failure, Millis::ZERO, random, now);
    state.until().unwrap().since(now).0 / 1000
}

#[test]
fn delays_double_up_to_five_minutes_for_a_model_that_was_ready() {
    let mut backoff = LoadBackoff::default();
    backoff.record_ready();
    let mut now = Millis::ZERO;
    let delays: Vec<u64> = (0..11)
        .map(|_| {
            let delay = fail(&mut backoff, InstanceFailure::Crash, now);
            now = now + Millis::from_secs(delay);
            delay
        })
        .collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    assert!(!backoff.is_broken());
}

#[test]
fn five_failures_without_one_ready_break_a_model_until_it_is_ready() {
    let mut backoff = LoadBackoff::default();
    let mut now = Millis::ZERO;
    for delay in [1, 2, 4, 8] {
        assert_eq!(fail(&mut backoff, InstanceFailure::Crash, now), delay);
        assert!(matches!(backoff.state(), BackoffState::Waiting(_)));
        now = now + Millis::from_secs(delay);
    }
    assert_eq!(fail(&mut backoff, InstanceFailure::ReadyTimeout, now), 900);
    let until = now + BROKEN_RETRY;
    assert_eq!(backoff.state(), BackoffState::Broken(until));
    assert!(!backoff.state().permits_load(until - Millis(1)));
    assert!(backoff.state().permits_load(until));
    assert_eq!(fail(&mut backoff, InstanceFailure::Crash, until), 900);
    backoff.record_start(until);
    assert!(backoff.is_broken(), "a try alone mends nothing");
    backoff.record_ready();
    assert!(!backoff.is_broken());
}

#[test]
fn an_operator_ends_the_delay_and_a_new_configuration_forgets_all() {
    let mut backoff = LoadBackoff::default();
    for _ in 0..5 {
        fail(&mut backoff, InstanceFailure::Crash, Millis::ZERO);
    }
    backoff.retry();
    assert_eq!(backoff.state(), BackoffState::Clear);
    assert!(backoff.is_broken());
    backoff.reset();
    assert_eq!(backoff, LoadBackoff::default());
}

#[test]
fn ten_minutes_of_service_forget_failures_and_less_does_not() {
    let mut backoff = LoadBackoff::default();
    backoff.record_ready();
    for _ in 0..3 {
        backoff.record_failure(InstanceFailure::Crash, Millis::ZERO, 0, Millis::ZERO);
    }
    let short = FORGET_AFTER - Millis(1);
    backoff.record_service(short);
    assert_eq!(backoff.failures, 3);
    let now = Millis::from_secs(9000);
    backoff.record_failure(InstanceFailure::Crash, FORGET_AFTER, 100, now);
    assert_eq!(backoff.state(), BackoffState::Waiting(now + DELAY_FIRST));
    backoff.record_service(FORGET_AFTER);
    assert_eq!(
        (backoff.failures, backoff.state()),
        (0, BackoffState::Clear)
    );
    assert!(
        backoff.was_ready,
        "a model that was ready is not broken later"
    );
}

#[test]
fn a_load_that_runs_out_of_memory_is_repeated_at_once_with_a_larger_estimate() {
    let mut backoff = LoadBackoff::default();
    let now = Millis::from_secs(100);
    assert_eq!(backoff.raise(1000), 1000);
    assert_eq!(fail(&mut backoff, InstanceFailure::OutOfMemory, now), 0);
    assert_eq!(backoff.raise(1000), 1150);
    assert_eq!(backoff.failures, 0, "not a crash");
    assert_eq!(fail(&mut backoff, InstanceFailure::OutOfMemory, now), 1);
    assert_eq!(backoff.raise(1000), 1323);
    let later = now + Millis::from_secs(2);
    assert_eq!(fail(&mut backoff, InstanceFailure::OutOfMemory, later), 0);
    assert_eq!(backoff.raise(1000), 1522);
    assert_eq!(fail(&mut backoff, InstanceFailure::OutOfMemory, later), 2);
    assert_eq!(backoff.raise(1000), 1522, "three times at most");
    let last = later + Millis::from_secs(4);
    assert_eq!(fail(&mut backoff, InstanceFailure::OutOfMemory, last), 4);
}

#[test]
fn a_lost_device_delays_and_never_breaks_a_model() {
    let mut backoff = LoadBackoff::default();
    for _ in 0..20 {
        fail(&mut backoff, InstanceFailure::DeviceLost, Millis::ZERO);
    }
    assert!(!backoff.is_broken());
    assert!(matches!(backoff.state(), BackoffState::Waiting(_)));
}

#[test]
fn missing_files_are_looked_for_every_five_seconds() {
    let mut backoff = LoadBackoff::default();
    for look in 0..20 {
        let now = Millis::from_secs(look * 5);
        let missing = InstanceFailure::WeightsMissing;
        let state = backoff.record_failure(missing, Millis::ZERO, 7, now);
        assert_eq!(state, BackoffState::Waiting(now + WEIGHTS_RETRY));
    }
    assert!(!backoff.is_broken());
}

/// Step of a random history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The model is loaded as soon as it may be, serves for a time, and fails.
    Fail {
        failure: InstanceFailure,
        becomes_ready: bool,
        served_ms: u64,
        random: u64,
    },
    /// The model is loaded, serves for a time, and ends in order.
    Serve(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let failure = (0..InstanceFailure::ALL.len()).prop_map(|nth| InstanceFailure::ALL[nth]);
    let fails = (failure, any::<bool>(), 0u64..2000, any::<u64>()).prop_map(
        |(failure, becomes_ready, served_ms, random)| Step::Fail {
            failure,
            becomes_ready,
            served_ms,
            random,
        },
    );
    let serves = (0u64..1_000_000).prop_map(Step::Serve);
    proptest::collection::vec(prop_oneof![9 => fails, 1 => serves], 1..60)
}

/// Runs a history in which each load begins as early as it may; returns the starts that followed a failure.
fn run(steps: &[Step]) -> (Vec<Millis>, Vec<Millis>) {
    let mut backoff = LoadBackoff::default();
    let mut now = Millis::ZERO;
    let (mut starts, mut delays) = (Vec::new(), Vec::new());
    for step in steps {
        now = now.max(backoff.state().until().unwrap_or(now));
        assert!(backoff.state().permits_load(now));
        match *step {
            Step::Serve(served_ms) => {
                backoff.record_start(now);
                backoff.record_ready();
                now = now + Millis(served_ms);
                backoff.record_service(Millis(served_ms));
                starts.clear();
            }
            Step::Fail {
                failure,
                becomes_ready,
                served_ms,
                random,
            } => {
                if failure != InstanceFailure::WeightsMissing {
                    backoff.record_start(now);
                    starts.push(now);
                }
                let ready_for = Millis(if becomes_ready { served_ms } else { 0 });
                if becomes_ready {
                    backoff.record_ready();
                }
                now = now + ready_for;
                let state = backoff.record_failure(failure, ready_for, random, now);
                delays.push(state.until().unwrap().since(now));
            }
        }
    }
    (starts, delays)
}

proptest! {
    #[test]
    fn a_crash_loop_has_six_starts_in_any_minute_and_a_bounded_delay(steps in steps()) {
        let (starts, delays) = run(&steps);
        for window in starts.windows(STARTS_MAX + 1) {
            prop_assert!(window[STARTS_MAX].since(window[0]) >= STARTS_SPAN, "{:?}", window);
        }
        for delay in delays {
            prop_assert!(delay <= spread(BROKEN_RETRY, 2 * unspread(BROKEN_RETRY)));
        }
    }

    #[test]
    fn a_delay_is_spread_by_a_tenth_at_most(failures in 1u32..2000, random in any::<u64>()) {
        let delay = delay_after(failures);
        prop_assert!(delay >= DELAY_FIRST && delay <= DELAY_MAX);
        let spread = spread(delay, random);
        prop_assert!(spread.0 * 10 >= delay.0 * 9 && spread.0 * 10 <= delay.0 * 11);
    }

    #[test]
    fn an_estimate_grows_by_half_at_most(steps in steps(), mib in 1u64..1_000_000) {
        let mut backoff = LoadBackoff::default();
        for step in steps {
            if let Step::Fail { failure, random, .. } = step {
                backoff.record_failure(failure, Millis::ZERO, random, Millis::ZERO);
            }
            let raised = backoff.raise(mib);
            prop_assert!(raised >= mib && raised <= mib * 153 / 100 + 3);
        }
    }
}

#[test]
fn swaps_are_no_crash_loop() {
    let mut backoff = LoadBackoff::default();
    let mut now = Millis::ZERO;
    for _ in 0..2 * STARTS_MAX {
        backoff.record_start(now);
        backoff.record_ready();
        now = now + Millis::from_secs(1);
        backoff.record_service(Millis::from_secs(1));
    }
    assert_eq!(fail(&mut backoff, InstanceFailure::Crash, now), 1);
}
