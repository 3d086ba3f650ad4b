//! The judge's promises, one a test.

use super::record::{EJECTION_MAX, EJECTION_MIN, FORGIVEN_AFTER};
use super::*;
use crate::AccountId;

fn endpoints(urls: &[&str]) -> Vec<EndpointSpec> {
    let endpoint = |&url: &&str| EndpointSpec {
        url: url.into(),
        max_concurrent_requests: 4,
        ..EndpointSpec::default()
    };
    urls.iter().map(endpoint).collect()
}

fn judge(urls: &[&str]) -> Ejector {
    Ejector::new(&endpoints(urls), Millis(0))
}

fn of(account: &str, seen: EndpointSignal) -> Observation {
    Observation {
        signal: seen,
        cause: None,
        account: AccountKey::from(&AccountId::from(account)),
        pause: None,
    }
}

/// A failure that no input causes: it counts for any account.
fn unusable() -> Observation {
    of("ant", EndpointSignal::Unusable)
}

fn change(url: &str, usable: bool) -> Vec<UsabilityChange> {
    vec![UsabilityChange {
        url: url.into(),
        usable,
    }]
}

/// Failures at `url` until it is ejected; how many there were.
fn fail(judge: &mut Ejector, url: &str, now: Millis) -> usize {
    (1..100)
        .find(|_| judge.observe_request(url, unusable(), now) == change(url, false))
        .expect("a hundred failures eject")
}

#[test]
fn five_failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let mut judge = judge(&["a", "b"]);
    for _ in 0..4 {
        assert_eq!(judge.observe_request("a", unusable(), Millis(0)), []);
    }
    assert_eq!(judge.health("a"), Health::Degraded);
    judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(0));
    assert_eq!(judge.health("a"), Health::Healthy);

    assert_eq!(fail(&mut judge, "a", Millis(0)), 5);
    assert_eq!(judge.health("a"), Health::Ejected);
    assert_eq!(judge.ejected_until("a"), Some(EJECTION_MIN));
}

#[test]
fn half_of_the_answers_failing_ejects_too() {
    let mut judge = judge(&["a", "b"]);
    let mut ejected_after = None;
    for answer in 1..=40 {
        let seen = match answer % 2 {
            0 => of(
                ["ant", "bee"][answer as usize / 2 % 2],
                EndpointSignal::Failure,
            ),
            _ => of("ant", EndpointSignal::Success),
        };
        if judge.observe_request("a", seen, Millis(answer)) == change("a", false) {
            ejected_after = Some(answer);
        }
    }
    assert_eq!(ejected_after, Some(20));
}

#[test]
fn what_the_caller_did_wrong_never_counts_against_an_endpoint() {
    let mut judge = judge(&["a", "b"]);
    for _ in 0..100 {
        judge.observe_request("a", of("ant", EndpointSignal::Neutral), Millis(0));
    }
    assert_eq!(judge.health("a"), Health::Healthy);
}

#[test]
fn the_last_usable_endpoint_is_never_ejected() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    for _ in 0..100 {
        assert_eq!(judge.observe_request("b", unusable(), Millis(1)), []);
    }
    assert_eq!(judge.health("b"), Health::Degraded);
}

#[test]
fn an_ejection_ends_half_open_and_the_next_answer_decides() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    assert_eq!(judge.tick(EJECTION_MIN - Millis(1)), []);
    assert_eq!(judge.tick(EJECTION_MIN), change("a", true));
    assert_eq!(judge.health("a"), Health::Degraded);

    assert_eq!(fail(&mut judge, "a", EJECTION_MIN), 1);
    let again = judge.ejected_until("a").expect("it failed its trial");
    assert_eq!(
        again,
        EJECTION_MIN + EJECTION_MIN + EJECTION_MIN,
        "twice as long"
    );

    judge.tick(again);
    judge.observe_request("a", of("ant", EndpointSignal::Success), again);
    assert_eq!(judge.health("a"), Health::Healthy);
    assert_eq!(fail(&mut judge, "a", again), 5);
}

#[test]
fn ejections_grow_up_to_a_bound_and_are_forgiven_after_a_while() {
    let mut judge = judge(&["a", "b"]);
    let mut now = Millis(0);
    for _ in 0..20 {
        fail(&mut judge, "a", now);
        let until = judge.ejected_until("a").expect("it was ejected");
        assert!(until.since(now) <= EJECTION_MAX);
        now = until;
        judge.tick(now);
    }
    judge.observe_request("a", of("ant", EndpointSignal::Success), now);
    now = now + FORGIVEN_AFTER;
    judge.observe_request("a", of("ant", EndpointSignal::Success), now);
    fail(&mut judge, "a", now);
    assert_eq!(judge.ejected_until("a"), Some(now + EJECTION_MIN));
}

#[test]
fn stragglers_of_an_ejected_endpoint_change_nothing() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    for seen in [EndpointSignal::Failure, EndpointSignal::Success] {
        assert_eq!(judge.observe_request("a", of("ant", seen), Millis(10)), []);
    }
    assert_eq!(judge.ejected_until("a"), Some(EJECTION_MIN));
}

#[test]
fn three_failed_checks_take_even_the_last_endpoint_down_and_two_bring_it_back() {
    let mut judge = judge(&["a"]);
    for _ in 0..2 {
        assert_eq!(
            judge.observe_check("a", EndpointSignal::Failure, None, Millis(0)),
            []
        );
    }
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Failure, None, Millis(0)),
        change("a", false)
    );
    assert_eq!(judge.health("a"), Health::Down);
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Success, None, Millis(0)),
        []
    );
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Success, None, Millis(0)),
        change("a", true)
    );
    assert_eq!(judge.health("a"), Health::Healthy);
}

#[test]
fn an_ejected_endpoint_is_better_than_none() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    judge.observe_check("b", EndpointSignal::Failure, None, Millis(0));
    judge.observe_check("b", EndpointSignal::Failure, None, Millis(0));
    let changes = judge.observe_check("b", EndpointSignal::Failure, None, Millis(0));
    assert_eq!(changes, [change("b", false), change("a", true)].concat());
}

#[test]
fn an_absence_forgives_nothing_for_a_minute_and_everything_after() {
    let mut judge = judge(&["a", "b", "c"]);
    fail(&mut judge, "a", Millis(0));
    fail(&mut judge, "b", Millis(0));
    judge.configure(&endpoints(&["a", "c"]), Millis(1));
    assert_eq!(judge.health("b"), Health::Draining);
    let back = judge.configure(&endpoints(&["a", "b", "c"]), Millis(2));
    assert_eq!(back, change("b", false), "new to the turnstile, and unfit");
    assert_eq!([judge.health("a"), judge.health("b")], [Health::Ejected; 2]);

    judge.configure(&endpoints(&["c"]), Millis(3));
    judge.configure(&endpoints(&["c"]), Millis(3) + ABSENCE_MAX);
    judge.configure(&endpoints(&["b", "c"]), Millis(4) + ABSENCE_MAX);
    assert_eq!(judge.health("b"), Health::Healthy);
}

#[test]
fn an_ejected_endpoint_is_used_again_when_the_others_left() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    let changes = judge.configure(&endpoints(&["a"]), Millis(3));
    assert_eq!(changes, change("a", true));
    assert_eq!(judge.health("b"), Health::Draining);
}

#[test]
fn one_account_ejects_nothing_that_others_use_and_its_fifth_failure_asks_for_a_check() {
    let mut judge = judge(&["a", "b"]);
    judge.observe_request("a", of("alice", EndpointSignal::Success), Millis(0));
    for at in 1..=500 {
        let saw = judge.observe_request("a", of("mallory", EndpointSignal::Failure), Millis(at));
        assert_eq!(saw, []);
        let due = judge.take_checks();
        assert_eq!(due.len(), usize::from(at % 5 == 0), "after {at} failures");
    }
    let second = judge.observe_request("a", of("alice", EndpointSignal::Failure), Millis(501));
    assert_eq!(second, change("a", false));
}

#[test]
fn a_lone_server_that_refuses_connections_is_checked_every_100_ms_and_down_by_the_third_check() {
    let mut judge = judge(&["a"]);
    let refused = Observation {
        cause: Some(REFUSED),
        ..unusable()
    };
    let mut checks = Vec::new();
    for at in 0..1_000 {
        let now = Millis(at);
        // The last endpoint is ejected for no request's failure.
        assert_eq!(judge.observe_request("a", refused, now), []);
        if judge.take_checks().is_empty() {
            continue;
        }
        checks.push(at);
        let cause = Some(FailureCause::Check(Some("refused")));
        let seen = judge.observe_check("a", EndpointSignal::Failure, cause, now);
        if seen == change("a", false) {
            break;
        }
    }
    assert_eq!(checks, [0, 100, 200]);
    assert_eq!(judge.health("a"), Health::Down);

    // A key that the server does not take is for the operator to mend: its checks pass.
    let rejected = Observation {
        cause: Some(FailureCause::Status(401)),
        ..unusable()
    };
    let mut other = Ejector::new(&endpoints(&["a"]), Millis(0));
    other.observe_request("a", rejected, Millis(0));
    assert!(other.take_checks().is_empty());
}

#[test]
fn a_server_that_was_away_for_a_moment_is_well_by_checks_that_pass_after_it() {
    let mut judge = judge(&["a"]);
    let mut at = 0;
    let mut check = |judge: &mut Ejector, seen, cause| {
        at += 500;
        judge.observe_check("a", seen, cause, Millis(at));
        judge.health("a")
    };
    let passed = EndpointSignal::Success;
    let failed_check = (
        EndpointSignal::Failure,
        Some(FailureCause::Check(Some("refused"))),
    );
    for _ in 0..3 {
        assert_eq!(check(&mut judge, passed, None), Health::Healthy);
    }
    for (cause, after_two) in [
        (REFUSED, Health::Healthy),
        // The path or the key of requests may be wrong where checks pass.
        (FailureCause::Status(401), Health::Degraded),
    ] {
        let seen = Observation {
            cause: Some(cause),
            ..unusable()
        };
        judge.observe_request("a", seen, Millis(0));
        assert_eq!(judge.health("a"), Health::Degraded);
        check(&mut judge, failed_check.0, failed_check.1);
        assert_eq!(check(&mut judge, passed, None), Health::Degraded);
        assert_eq!(check(&mut judge, passed, None), after_two, "{cause}");
        assert_eq!(judge.failing_since(), None);
        judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(0));
        assert_eq!(judge.health("a"), Health::Healthy);
    }
}

#[test]
fn a_lone_account_ejects_only_what_has_not_served_it_for_ten_seconds() {
    let mut judge = judge(&["a", "b"]);
    judge.observe_request("a", of("alice", EndpointSignal::Success), Millis(0));
    for at in 1..10 {
        let saw = judge.observe_request("a", of("alice", EndpointSignal::Failure), Millis(at));
        assert_eq!(saw, []);
    }
    let later = judge.observe_request("a", of("alice", EndpointSignal::Failure), Millis(10_000));
    assert_eq!(later, change("a", false));
}

#[test]
fn a_pause_takes_even_the_last_endpoint_out_and_says_how_long() {
    let mut judge = judge(&["a", "b"]);
    let busy = |secs| Observation {
        pause: Some(Millis::from_secs(secs)),
        ..of("ant", EndpointSignal::Busy)
    };
    let paused = judge.observe_request("a", busy(17), Millis(0));
    assert_eq!(paused, change("a", false));
    assert_eq!(judge.pause_left(Millis(0)), None);
    judge.observe_request("b", busy(3600), Millis(0));
    assert_eq!(judge.pause_left(Millis(1000)), Some(Millis::from_secs(16)));
    assert_eq!(judge.tick(Millis::from_secs(17)), change("a", true));
    assert_eq!(judge.pause_left(Millis::from_secs(17)), None);
    assert_eq!(judge.ejected_until("b"), Some(PAUSE_MAX));
}

#[test]
fn operators_are_told_of_every_change_with_its_cause_and_of_flapping_once_in_ten_seconds() {
    let mut judge = judge(&["a", "b"]);
    let failed = Observation {
        cause: Some(FailureCause::Named("refused")),
        ..of("ant", EndpointSignal::Failure)
    };
    judge.observe_request("a", failed, Millis(0));
    let reported = judge.take_reports();
    assert_eq!(
        reported,
        [HealthChange {
            url: "a".into(),
            from: Health::Healthy,
            to: Health::Degraded,
            cause: Some(FailureCause::Named("refused")),
            unreported: 0,
        }]
    );
    for at in 1..100 {
        judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(at));
        judge.observe_request("a", failed, Millis(at));
    }
    judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(100));
    assert_eq!(judge.take_reports(), []);
    judge.tick(Millis(10_000));
    let reported = judge.take_reports();
    assert_eq!(
        (reported[0].to, reported[0].unreported),
        (Health::Healthy, 198)
    );
    assert_eq!(
        judge.last_error("a"),
        Some((FailureCause::Named("refused"), Millis(99)))
    );
    assert_eq!(judge.since("a"), Some(Millis(100)));

    fail(&mut judge, "a", Millis(10_001));
    let reported = judge.take_reports();
    assert_eq!(
        reported.last().map(|change| change.to),
        Some(Health::Ejected),
        "at once"
    );
}

#[test]
fn a_server_is_proven_until_a_try_fails_and_again_after_one_that_does_not() {
    let mut judge = judge(&["a", "b"]);
    assert!(judge.is_proven("a"));
    for seen in [
        EndpointSignal::Busy,
        EndpointSignal::Failure,
        EndpointSignal::Unusable,
    ] {
        judge.observe_request("a", of("ant", seen), Millis(0));
        assert!(!judge.is_proven("a"), "{seen:?}");
        judge.observe_request("a", of("ant", EndpointSignal::Neutral), Millis(0));
        assert!(!judge.is_proven("a"), "{seen:?}");
        judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(0));
        assert!(judge.is_proven("a"));
    }
}

#[test]
fn a_model_keeps_failing_from_the_last_endpoints_fifth_failure_to_the_next_success() {
    let mut judge = judge(&["a", "b"]);
    judge.observe_request("a", of("ant", EndpointSignal::Success), Millis(7));
    for (at, url) in [(10, "a"), (20, "b")] {
        for nth in 0..5 {
            assert_eq!(judge.failing_since(), None);
            let account = ["ant", "bee"][nth % 2];
            judge.observe_request(url, of(account, EndpointSignal::Failure), Millis(at));
        }
    }
    assert_eq!(
        judge.health("b"),
        Health::Degraded,
        "the last one is in use"
    );
    assert_eq!(judge.failing_since(), Some(Millis::ZERO), "b never served");
    judge.tick(EJECTION_MIN + Millis(10));
    assert_eq!(judge.failing_since(), Some(Millis(7)));
    judge.observe_request("a", of("bee", EndpointSignal::Success), Millis(6_000));
    assert_eq!(judge.failing_since(), None);
}

#[test]
fn a_model_keeps_failing_too_when_each_endpoint_fails_another_account() {
    let mut judge = judge(&["a", "b"]);
    for (url, account) in [("a", "ant"), ("b", "bee")] {
        for _ in 0..5 {
            assert_eq!(judge.failing_since(), None);
            judge.observe_request(url, of(account, EndpointSignal::Failure), Millis(10));
        }
    }
    assert_eq!(judge.failing_since(), Some(Millis::ZERO));
    judge.observe_request("b", of("bee", EndpointSignal::Success), Millis(20));
    assert_eq!(judge.failing_since(), None);
}

#[test]
fn a_model_that_had_no_failure_for_a_minute_may_serve() {
    let mut judge = judge(&["a"]);
    for at in 0..5 {
        judge.observe_request("a", unusable(), Millis(at));
    }
    judge.tick(Millis(3) + SICK_MAX);
    assert_eq!(judge.failing_since(), Some(Millis::ZERO));
    judge.tick(Millis(4) + SICK_MAX);
    assert_eq!(judge.failing_since(), None);
}

#[test]
fn one_accounts_failures_make_no_model_fail() {
    let mut judge = judge(&["a"]);
    judge.observe_request("a", of("alice", EndpointSignal::Success), Millis(0));
    for at in 1..500 {
        judge.observe_request("a", of("mallory", EndpointSignal::Failure), Millis(at));
        assert_eq!(judge.failing_since(), None);
    }
}

proptest::proptest! {
    #[test]
    fn with_all_endpoints_failing_attempts_grow_by_a_tenth_and_two_a_second(
        pauses in proptest::collection::vec(0..400_u64, 1..400),
        endpoint_count in 2..5_usize,
    ) {
        use crate::routing::{AttemptFailure, RetryBudget, RetryTarget};
        let urls = ["a", "b", "c", "d"];
        let urls = &urls[..endpoint_count];
        let mut judge = judge(urls);
        let mut budget = RetryBudget::new();
        let (mut now, mut attempts) = (Millis(0), 0);
        for (request, pause) in pauses.iter().enumerate() {
            now = now + Millis(*pause);
            judge.tick(now);
            budget.record_request(now);
            let (mut tried, mut at_proven) = (Vec::new(), false);
            loop {
                attempts += 1;
                let used = |url: &&&str| judge.health(url) != Health::Ejected && !tried.contains(*url);
                let usable: Vec<&str> = urls.iter().filter(used).copied().collect();
                let proven = usable.iter().find(|url| judge.is_proven(url)).copied();
                let url = proven.or(usable.first().copied()).unwrap_or(urls[0]);
                tried.push(url);
                let account = ["ant", "bee"][request % 2];
                judge.observe_request(url, of(account, EndpointSignal::Failure), now);
                judge.observe_check(url, EndpointSignal::Success, None, now);
                if at_proven {
                    budget.record_proven_retry_failure(now);
                }
                let next = |url: &&&str| !tried.contains(*url) && judge.is_proven(url);
                let target = match urls.iter().find(next) {
                    Some(_) => RetryTarget::Proven,
                    None => RetryTarget::Unproven,
                };
                at_proven = target == RetryTarget::Proven;
                if !budget.may_retry(tried.len() as u32, AttemptFailure::Failed, target, now) {
                    break;
                }
            }
        }
        let seconds = now.0 as usize / 1000 + 1;
        // Each endpoint is proven once, before its first failure; one is tried first, and one counts.
        let bound = pauses.len() * 11 / 10 + 2 * seconds + (endpoint_count - 2);
        proptest::prop_assert!(attempts <= bound, "{attempts} attempts for {}", pauses.len());
    }
}

#[test]
fn a_server_that_was_gone_while_ejected_is_back_with_its_checks_but_a_sick_one_is_not() {
    let mut judge = judge(&["a", "b"]);
    for url in ["a", "b"] {
        judge.observe_check(url, EndpointSignal::Success, None, Millis(0));
    }
    fail(&mut judge, "a", Millis(0));
    assert_eq!(judge.health("a"), Health::Ejected);
    for _ in 0..10 {
        assert_eq!(
            judge.observe_check("a", EndpointSignal::Success, None, Millis(0)),
            vec![]
        );
    }
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Failure, None, Millis(0)),
        vec![]
    );
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Success, None, Millis(0)),
        vec![]
    );
    assert_eq!(
        judge.observe_check("a", EndpointSignal::Success, None, Millis(0)),
        change("a", true)
    );
    assert_eq!(judge.health("a"), Health::Degraded);
}
