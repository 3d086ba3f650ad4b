//! Neurons of the day.

use proptest::prelude::*;

use crate::AccountId;
use crate::billing::{
    PEER_USAGES_MAX, Quota, QuotaExhaustion, QuotaReservation, QuotaSnapshot, UnixSecs,
    reserve_estimate,
};
use crate::model::Tariff;

const NOON: UnixSecs = UnixSecs(20_000 * 86_400 + 43_200);

fn account() -> AccountId {
    AccountId::from("a")
}

#[test]
fn who_was_admitted_is_not_refused_for_what_it_may_cost_elsewhere() {
    let mut quota = Quota::default();
    let first = quota.reserve(&account(), 60.0, 100, NOON).unwrap();
    let second = quota.reserve(&account(), 60.0, 100, NOON).unwrap();
    let first = quota.exchange(first, 90.0, NOON);
    assert_eq!(quota.reserved(&account(), NOON), 150.0);
    assert!(quota.reserve(&account(), 1.0, 100, NOON).is_err());
    quota.settle(first, 5.0, NOON);
    quota.release(second, NOON);
    assert_eq!(quota.used(&account(), NOON), 5.0);
    assert_eq!(quota.reserved(&account(), NOON), 0.0);
}

#[test]
fn a_cost_that_is_owed_counts_against_the_limit_until_it_is_settled_or_given_back() {
    let (mut quota, a) = (Quota::default(), account());
    let held = quota.reserve(&a, 0.5, 1, NOON).unwrap();
    assert!(!quota.is_spent(&a, 1, NOON));
    let owed = quota.owe(held, 2.0, NOON);
    assert!(quota.is_spent(&a, 1, NOON));
    let refused = quota.reserve(&a, 1.0, 1, NOON);
    assert_eq!(refused.unwrap_err(), QuotaExhaustion::Used);
    assert_eq!((quota.used(&a, NOON), quota.reserved(&a, NOON)), (0.0, 0.0));
    assert_eq!(quota.snapshot().used_micro, []);
    quota.release(owed, NOON);
    assert!(!quota.is_spent(&a, 1, NOON));
    let again = quota.reserve(&a, 0.5, 1, NOON).unwrap();
    let again = quota.owe(again, 2.0, NOON);
    quota.settle(again, 2.0, NOON);
    assert_eq!(quota.used(&a, NOON), 2.0);
    // The cost belongs to the day of the admission.
    let late = quota.reserve(&a, 0.5, 100, NOON).unwrap();
    let tomorrow = UnixSecs((NOON.day() + 1) * 86_400);
    let late = quota.owe(late, 70.0, tomorrow);
    quota.settle(late, 70.0, tomorrow);
    assert_eq!(quota.used(&a, tomorrow), 0.0);
}

#[test]
fn what_other_nodes_tell_counts_once_for_its_day_and_does_not_fall() {
    let (mut quota, a, day) = (Quota::default(), account(), NOON.day());
    let (one, other) = ("one".into(), "other".into());
    quota.record_peer_usage(&one, 1, &a, day, 30_000_000, NOON);
    quota.record_peer_usage(&one, 1, &a, day, 40_000_000, NOON);
    quota.record_peer_usage(&one, 1, &a, day, 10_000_000, NOON);
    quota.record_peer_usage(&other, 1, &a, day, 50_000_000, NOON);
    quota.record_peer_usage(&other, 1, &a, day - 1, 90_000_000, NOON);
    quota.record_peer_usage(&other, 1, &a, day + 2, 90_000_000, NOON);
    assert_eq!(quota.used_elsewhere(&a, NOON), 90.0);
    assert_eq!(quota.used(&a, NOON), 0.0);
    let held = quota.reserve(&a, 10.0, 100, NOON).unwrap();
    assert!(quota.reserve(&a, 1.0, 100, NOON).is_err());
    quota.settle(held, 9.0, NOON);
    assert_eq!(quota.snapshot().used_micro, [(a, 9_000_000)]);
}

#[test]
fn what_a_clock_that_is_ahead_tells_counts_from_midnight() {
    let (mut quota, a) = (Quota::default(), account());
    let tomorrow = UnixSecs((NOON.day() + 1) * 86_400);
    let one = "one".into();
    quota.record_peer_usage(&one, 1, &a, NOON.day(), 5_000_000, NOON);
    quota.record_peer_usage(&one, 1, &a, tomorrow.day(), 2_000_000, NOON);
    assert_eq!(quota.used_elsewhere(&a, NOON), 5.0);
    quota.record_peer_usage(&one, 1, &a, tomorrow.day(), 3_000_000, tomorrow);
    assert_eq!(quota.used_elsewhere(&a, tomorrow), 3.0);
    let after = UnixSecs(tomorrow.0 + 86_400);
    assert_eq!(quota.used_elsewhere(&a, after), 0.0);
    assert!(quota.reserve(&a, 1.0, 1, after).is_ok());
}

#[test]
fn sums_beyond_the_bound_do_not_count() {
    let mut quota = Quota::default();
    let one = "one".into();
    for number in 0..=PEER_USAGES_MAX {
        let account = AccountId::from(&*number.to_string());
        quota.record_peer_usage(&one, 1, &account, NOON.day(), 1_000_000, NOON);
    }
    let sum = |number: usize| quota.used_elsewhere(&AccountId::from(&*number.to_string()), NOON);
    assert_eq!((sum(PEER_USAGES_MAX - 1), sum(PEER_USAGES_MAX)), (1.0, 0.0));
    assert_eq!(quota.dropped_reports(), 1);
}

#[test]
fn what_a_node_told_wrong_is_taken_back_by_its_next_process() {
    let (mut quota, a) = (Quota::default(), account());
    let tomorrow = UnixSecs(NOON.0 + 86_400);
    quota.record_peer_usage(&"good".into(), 1, &a, NOON.day(), 3_000_000, NOON);
    for at in [NOON, tomorrow] {
        quota.record_peer_usage(&"bad".into(), 1, &a, at.day(), u64::MAX, NOON);
        quota.record_peer_usage(&"worse".into(), 1, &a, at.day(), u64::MAX, NOON);
    }
    assert!(quota.reserve(&a, 1.0, u64::MAX, NOON).is_err());
    quota.record_peer_usage(&"bad".into(), 2, &a, NOON.day(), 1_000_000, NOON);
    quota.record_peer_usage(&"worse".into(), 2, &a, NOON.day(), 0, NOON);
    assert_eq!(quota.used_elsewhere(&a, NOON), 4.0);
    // The former process's word on tomorrow went with it.
    assert_eq!(quota.used_elsewhere(&a, tomorrow), 0.0);
    assert!(quota.reserve(&a, 1.0, 1, tomorrow).is_ok());
}

#[test]
fn a_sum_far_above_the_limit_is_not_within_reason_and_a_node_that_is_forgotten_has_used_nothing() {
    assert!(Quota::is_plausible(1_000_000_000, 100));
    assert!(!Quota::is_plausible(1_000_000_001, 100));
    assert!(Quota::is_plausible(u64::MAX, u64::MAX));
    let (mut quota, a) = (Quota::default(), account());
    quota.record_peer_usage(&"one".into(), 1, &a, NOON.day(), 3_000_000, NOON);
    quota.record_peer_usage(&"other".into(), 1, &a, NOON.day(), 4_000_000, NOON);
    assert!(quota.forget("one") && !quota.forget("one"));
    assert_eq!(quota.used_elsewhere(&a, NOON), 4.0);
    quota.record_peer_usage(&"one".into(), 1, &a, NOON.day(), 5_000_000, NOON);
    assert_eq!(quota.used_elsewhere(&a, NOON), 9.0);
}

#[test]
fn a_clock_that_was_a_day_ahead_and_is_right_again_does_not_forgive_the_day() {
    let (mut quota, a) = (Quota::default(), account());
    let ahead = UnixSecs(NOON.0 + 86_400);
    let spend = |quota: &mut Quota, amount: f64, at: UnixSecs| {
        let held = quota.reserve(&a, amount, 100, at).unwrap();
        quota.settle(held, amount, at);
    };
    spend(&mut quota, 40.0, NOON);
    spend(&mut quota, 30.0, ahead);
    assert_eq!(quota.used(&a, ahead), 30.0);
    let restarted = Quota::restore(&quota.snapshot(), NOON);
    assert_eq!(restarted.used(&a, NOON), 70.0);
    spend(&mut quota, 20.0, NOON);
    assert_eq!(quota.used(&a, NOON), 90.0, "in the same process as well");
    // Midnight, and a clock that is put right by a minute: the new day stays.
    let (late, early) = (
        UnixSecs(ahead.day() * 86_400 - 60),
        UnixSecs(ahead.day() * 86_400),
    );
    let mut quota = Quota::default();
    spend(&mut quota, 40.0, late);
    spend(&mut quota, 30.0, early);
    spend(&mut quota, 5.0, late);
    assert_eq!(quota.used(&a, early), 35.0);
    assert_eq!(
        Quota::restore(&quota.snapshot(), ahead).used(&a, ahead),
        35.0
    );
}

#[test]
fn what_a_former_process_counted_after_this_one_began_counts_here_as_well() {
    let a = account();
    let mut old = Quota::default();
    let held = old.reserve(&a, 8.0, 100, NOON).unwrap();
    let late = old.reserve(&a, 5.0, 100, NOON).unwrap();
    old.settle(held, 8.0, NOON);
    let before = old.snapshot();
    let mut new = Quota::restore(&before, NOON);
    let held = new.reserve(&a, 3.0, 100, NOON).unwrap();
    new.settle(held, 3.0, NOON);
    old.settle(late, 5.0, NOON);
    new.absorb(&before, &old.snapshot(), NOON);
    assert_eq!(new.used(&a, NOON), 16.0);
    new.absorb(&old.snapshot(), &old.snapshot(), NOON);
    assert_eq!(new.used(&a, NOON), 16.0);
}

#[test]
fn a_day_further_than_tomorrow_is_left_out_and_counted() {
    let (mut quota, a) = (Quota::default(), account());
    let one = "one".into();
    quota.record_peer_usage(&one, 1, &a, NOON.day() + 2, 1, NOON);
    quota.record_peer_usage(&one, 1, &a, NOON.day() - 1, 1, NOON);
    assert_eq!(
        (quota.dropped_reports(), quota.used_elsewhere(&a, NOON)),
        (1, 0.0)
    );
}

#[test]
fn a_request_is_refused_only_when_use_and_reservations_have_reached_the_limit() {
    let mut quota = Quota::default();
    let first = quota.reserve(&account(), 60.0, 100, NOON).unwrap();
    let second = quota.reserve(&account(), 60.0, 100, NOON).unwrap();
    assert!(quota.reserve(&account(), 1.0, 100, NOON).is_err());
    assert_eq!(quota.reserved(&account(), NOON), 120.0);
    quota.settle(first, 10.0, NOON);
    let third = quota.reserve(&account(), 1.0, 100, NOON).unwrap();
    quota.release(second, NOON);
    quota.release(third, NOON);
    assert_eq!(
        (
            quota.used(&account(), NOON),
            quota.reserved(&account(), NOON)
        ),
        (10.0, 0.0)
    );
    assert!(quota.reserve(&account(), 1.0, 10, NOON).is_err());
    assert!(quota.reserve(&AccountId::from("b"), 1.0, 0, NOON).is_err());
}

#[test]
fn the_day_ends_at_midnight_utc_and_not_a_second_sooner() {
    let last = UnixSecs(20_001 * 86_400 - 1);
    let midnight = UnixSecs(20_001 * 86_400);
    assert_eq!((last.day() + 1, midnight.day()), (20_001, 20_001));
    let mut quota = Quota::default();
    let early = quota.reserve(&account(), 5.0, 10, NOON).unwrap();
    let late = quota.reserve(&account(), 5.0, 10, last).unwrap();
    quota.settle(early, 10.0, last);
    assert!(quota.reserve(&account(), 1.0, 10, last).is_err());
    assert_eq!(quota.used(&account(), midnight), 0.0);
    let next = quota.reserve(&account(), 1.0, 10, midnight).unwrap();
    // Admitted yesterday: it takes nothing from today.
    quota.settle(late, 10.0, midnight);
    assert_eq!(
        (
            quota.used(&account(), midnight),
            quota.reserved(&account(), midnight)
        ),
        (0.0, 1.0)
    );
    // A clock that is set back does not bring yesterday back.
    quota.settle(next, 10.0, last);
    assert!(quota.reserve(&account(), 1.0, 10, last).is_err());
}

#[test]
fn what_was_used_survives_a_restart_on_the_same_day() {
    let mut quota = Quota::default();
    let reservation = quota.reserve(&account(), 5.0, 10, NOON).unwrap();
    let open = quota.reserve(&account(), 5.0, 10, NOON).unwrap();
    let before = quota.version();
    quota.settle(reservation, 7.25, NOON);
    assert_ne!(quota.version(), before);
    let text = serde_json::to_string(&quota.snapshot()).unwrap();
    let snapshot: QuotaSnapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(snapshot, quota.snapshot());
    let same_day = Quota::restore(&snapshot, NOON);
    assert_eq!(
        (
            same_day.used(&account(), NOON),
            same_day.reserved(&account(), NOON)
        ),
        (7.25, 0.0)
    );
    let tomorrow = UnixSecs(NOON.0 + 86_400);
    assert_eq!(
        Quota::restore(&snapshot, tomorrow).used(&account(), tomorrow),
        0.0
    );
    quota.release(open, NOON);
}

#[test]
fn what_is_held_and_not_spent_is_not_used_up() {
    let mut quota = Quota::default();
    let open = quota.reserve(&account(), 200.0, 100, NOON).unwrap();
    let refused = |quota: &mut Quota| quota.reserve(&account(), 1.0, 100, NOON).unwrap_err();
    assert_eq!(refused(&mut quota), QuotaExhaustion::Held);
    quota.settle(open, 99.0, NOON);
    let last = quota.reserve(&account(), 1.0, 100, NOON).unwrap();
    assert_eq!(refused(&mut quota), QuotaExhaustion::Held);
    quota.settle(last, 1.0, NOON);
    assert_eq!(refused(&mut quota), QuotaExhaustion::Used);
    quota.record_peer_usage(&"one".into(), 1, &"b".into(), NOON.day(), 100_000_000, NOON);
    let elsewhere = quota.reserve(&"b".into(), 1.0, 100, NOON);
    assert_eq!(elsewhere.unwrap_err(), QuotaExhaustion::Used);
}

#[test]
fn a_reservation_is_for_the_prompt_and_the_answer_asked_for() {
    let tariff = Tariff {
        cost_per_infer: 1.0,
        coefficients: [("input_tokens".into(), 0.5), ("output_tokens".into(), 2.0)].into(),
        ..Tariff::default()
    };
    let of = |prompt, max_tokens, outputs| reserve_estimate(&tariff, prompt, max_tokens, outputs);
    assert_eq!(of(3, Some(10), 1), 1.0 + 1.5 + 20.0);
    assert_eq!(of(0, None, 1), 1.0 + 512.0);
    assert_eq!(of(3, Some(10), 128), 1.0 + 1.5 + 128.0 * 20.0);
    assert!(of(u64::MAX, Some(u64::MAX), u32::MAX) <= 1e12);
    let free = reserve_estimate(&Tariff::default(), 1 << 40, Some(u64::MAX), 9);
    assert_eq!(free, 0.0);
}

#[derive(Clone, Debug)]
enum Act {
    Reserve(u32),
    Settle(usize, u32),
    GiveBack(usize),
    Pass(u64),
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..500u32).prop_map(Act::Reserve),
        3 => (any::<usize>(), 0..500u32).prop_map(|(at, actual)| Act::Settle(at, actual)),
        1 => any::<usize>().prop_map(Act::GiveBack),
        1 => (0..40_000u64).prop_map(Act::Pass),
        1 => Just(Act::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn counts_are_exact_and_grants_never_pass_the_limit_by_more_than_one_request(
        acts in proptest::collection::vec(act(), 0..120), limit in 0..2000u64,
    ) {
        let mut quota = Quota::default();
        let mut now = NOON;
        // The model: what was used today, and open reservations with the day they are of.
        let (mut used, mut day) = (0u64, now.day());
        let mut open: Vec<(QuotaReservation, u64, u64)> = Vec::new();
        for act in acts {
            match act {
                Act::Pass(secs) => now = UnixSecs(now.0 + secs),
                Act::Restart => {
                    quota = Quota::restore(&quota.snapshot(), now);
                    open.clear();
                }
                Act::Reserve(_) | Act::Settle(..) | Act::GiveBack(_) => {}
            }
            if now.day() != day {
                (used, day) = (0, now.day());
            }
            let reserved: u64 = open.iter().filter(|one| one.2 == day).map(|one| one.1).sum();
            match act {
                Act::Reserve(amount) => {
                    let granted = quota.reserve(&account(), amount.into(), limit, now);
                    prop_assert_eq!(granted.is_ok(), used + reserved < limit);
                    prop_assert_eq!(granted == Err(QuotaExhaustion::Used), used >= limit);
                    if let Ok(reservation) = granted {
                        open.push((reservation, amount.into(), day));
                        prop_assert!(used + reserved + u64::from(amount) < limit + u64::from(amount));
                    }
                }
                Act::Settle(at, actual) if !open.is_empty() => {
                    let (reservation, amount, of) = open.swap_remove(at % open.len());
                    // No request costs more than was reserved for it.
                    let actual = u64::from(actual).min(amount);
                    quota.settle(reservation, actual as f64, now);
                    used += if of == day { actual } else { 0 };
                }
                Act::GiveBack(at) if !open.is_empty() => {
                    let (reservation, _, _) = open.swap_remove(at % open.len());
                    quota.release(reservation, now);
                }
                _ => {}
            }
            let reserved: u64 = open.iter().filter(|one| one.2 == day).map(|one| one.1).sum();
            prop_assert_eq!(quota.used(&account(), now), used as f64);
            prop_assert_eq!(quota.reserved(&account(), now), reserved as f64);
            prop_assert!(used + reserved < limit + 500 || used + reserved == 0);
        }
    }

    #[test]
    fn no_amount_breaks_the_counters(amount in any::<f64>(), actual in any::<f64>()) {
        let mut quota = Quota::default();
        let reservation = quota.reserve(&account(), amount, 1, NOON).unwrap();
        quota.settle(reservation, actual, NOON);
        prop_assert_eq!(quota.reserved(&account(), NOON), 0.0);
        let used = quota.used(&account(), NOON);
        prop_assert!((0.0..=1e12).contains(&used));
    }
}
