//! The judge's promises, one a test.

use super::*;

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

fn change(url: &str, usable: bool) -> Vec<Change> {
    vec![Change {
        url: url.into(),
        usable,
    }]
}

/// Failures at `url` until it is ejected; how many there were.
fn fail(judge: &mut Ejector, url: &str, now: Millis) -> usize {
    (1..100)
        .find(|_| judge.request_saw(url, Seen::Failure, now) == change(url, false))
        .expect("a hundred failures eject")
}

#[test]
fn five_failures_in_a_row_eject_and_a_success_between_them_does_not() {
    let mut judge = judge(&["a", "b"]);
    for _ in 0..4 {
        assert_eq!(judge.request_saw("a", Seen::Failure, Millis(0)), []);
    }
    assert_eq!(judge.health("a"), Health::Degraded);
    judge.request_saw("a", Seen::Success, Millis(0));
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
        let seen = if answer % 2 == 0 {
            Seen::Failure
        } else {
            Seen::Success
        };
        if judge.request_saw("a", seen, Millis(answer)) == change("a", false) {
            ejected_after = Some(answer);
        }
    }
    assert_eq!(ejected_after, Some(20));
}

#[test]
fn what_the_caller_did_wrong_never_counts_against_an_endpoint() {
    let mut judge = judge(&["a", "b"]);
    for status in 400..500 {
        judge.request_saw("a", Seen::from_status(status), Millis(0));
    }
    assert_eq!(judge.health("a"), Health::Healthy);
}

#[test]
fn the_last_usable_endpoint_is_never_ejected() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    for _ in 0..100 {
        assert_eq!(judge.request_saw("b", Seen::Failure, Millis(1)), []);
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
    judge.request_saw("a", Seen::Success, again);
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
    judge.request_saw("a", Seen::Success, now);
    now = now + FORGIVEN_AFTER;
    judge.request_saw("a", Seen::Success, now);
    fail(&mut judge, "a", now);
    assert_eq!(judge.ejected_until("a"), Some(now + EJECTION_MIN));
}

#[test]
fn stragglers_of_an_ejected_endpoint_change_nothing() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    for seen in [Seen::Failure, Seen::Success] {
        assert_eq!(judge.request_saw("a", seen, Millis(10)), []);
    }
    assert_eq!(judge.ejected_until("a"), Some(EJECTION_MIN));
}

#[test]
fn three_failed_checks_take_even_the_last_endpoint_down_and_two_bring_it_back() {
    let mut judge = judge(&["a"]);
    for _ in 0..2 {
        assert_eq!(judge.check_saw("a", Seen::Failure), []);
    }
    assert_eq!(judge.check_saw("a", Seen::Failure), change("a", false));
    assert_eq!(judge.health("a"), Health::Down);
    assert_eq!(judge.check_saw("a", Seen::Success), []);
    assert_eq!(judge.check_saw("a", Seen::Success), change("a", true));
    assert_eq!(judge.health("a"), Health::Healthy);
}

#[test]
fn an_ejected_endpoint_is_better_than_none() {
    let mut judge = judge(&["a", "b"]);
    fail(&mut judge, "a", Millis(0));
    judge.check_saw("b", Seen::Failure);
    judge.check_saw("b", Seen::Failure);
    let changes = judge.check_saw("b", Seen::Failure);
    assert_eq!(changes, [change("b", false), change("a", true)].concat());
}

#[test]
fn an_endpoint_that_comes_back_by_reload_starts_anew_and_one_that_stays_does_not() {
    let mut judge = judge(&["a", "b", "c"]);
    fail(&mut judge, "a", Millis(0));
    fail(&mut judge, "b", Millis(0));
    judge.configure(&endpoints(&["a", "c"]), Millis(1));
    judge.configure(&endpoints(&["a", "b", "c"]), Millis(2));
    assert_eq!(judge.health("a"), Health::Ejected);
    assert_eq!(judge.health("b"), Health::Healthy);

    assert_eq!(
        judge.configure(&endpoints(&["a"]), Millis(3)),
        change("a", true)
    );
    assert_eq!(judge.health("c"), Health::Draining);
}

#[test]
fn a_server_that_was_gone_while_ejected_is_back_with_its_checks_but_a_sick_one_is_not() {
    let mut judge = judge(&["a", "b"]);
    for url in ["a", "b"] {
        judge.check_saw(url, Seen::Success);
    }
    fail(&mut judge, "a", Millis(0));
    assert_eq!(judge.health("a"), Health::Ejected);
    for _ in 0..10 {
        assert_eq!(judge.check_saw("a", Seen::Success), vec![]);
    }
    assert_eq!(judge.check_saw("a", Seen::Failure), vec![]);
    assert_eq!(judge.check_saw("a", Seen::Success), vec![]);
    assert_eq!(judge.check_saw("a", Seen::Success), change("a", true));
    assert_eq!(judge.health("a"), Health::Degraded);
}
