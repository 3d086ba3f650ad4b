//! Tests of the order of deliveries: bounds, turns, probes, dead letters, and a run with random receivers.

use std::collections::{BTreeMap as Map, BTreeSet as Set};

use proptest::prelude::*;

use super::*;

const FAILED: DeliveryResult = DeliveryResult::Failed {
    status: None,
    retry_after: None,
};

struct Schedule(Receivers);

impl Schedule {
    fn new(limits: ReceiverLimits) -> Schedule {
        Schedule(Receivers::new(limits))
    }

    fn add(&mut self, id: u64, receiver: &str, account: &str, due: u64) -> DeliveryAdmission {
        let receiver = Arc::from(receiver);
        self.0
            .add(DeliveryId(id), &receiver, &account.into(), Millis(due))
    }

    fn add_many(&mut self, ids: std::ops::Range<u64>, receiver: &str, account: &str) {
        for id in ids {
            assert_eq!(
                self.add(id, receiver, account, 0),
                DeliveryAdmission::Waiting
            );
        }
    }

    fn start_all(&mut self, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| self.0.next(Millis(now)).map(|id| id.0)).collect()
    }

    fn accept(&mut self, id: u64, now: u64) {
        let result = DeliveryResult::Accepted;
        self.0
            .finish(DeliveryId(id), result, DeliveryDecision::Done, Millis(now));
    }

    fn fail(&mut self, id: u64, now: u64, retry: u64) {
        let decision = DeliveryDecision::RetryAt(Millis(retry));
        self.0.finish(DeliveryId(id), FAILED, decision, Millis(now));
    }
}

fn schedule() -> Schedule {
    Schedule::new(ReceiverLimits::default())
}

#[test]
fn four_are_in_flight_per_receiver_and_account() {
    let mut s = schedule();
    s.add_many(0..10, "a", "x");
    s.add_many(10..20, "a", "y");
    assert_eq!(s.start_all(0), [0, 10, 1, 11, 2, 12, 3, 13]);
    s.accept(1, 5);
    assert_eq!(s.start_all(5), [4]);
}

#[test]
fn no_more_are_in_flight_than_in_all_to_a_receiver_and_of_an_account() {
    let mut s = schedule();
    for account in 0..100 {
        s.add_many(account * 10..account * 10 + 10, "a", &format!("x{account}"));
    }
    assert_eq!(s.start_all(0).len(), 64);
    for receiver in 0..100 {
        let ids = 2000 + receiver * 10..2000 + receiver * 10 + 10;
        s.add_many(ids, &format!("b{receiver}"), "y");
    }
    assert_eq!(s.start_all(0).len(), 64);
    for other in 0..100 {
        let ids = 4000 + other * 10..4000 + other * 10 + 10;
        s.add_many(ids, &format!("c{other}"), &format!("z{other}"));
    }
    assert_eq!(s.start_all(0).len(), 128);
    assert_eq!((s.0.status().in_flight, s.0.next_due()), (256, None));
    s.accept(0, 1);
    assert_eq!(s.0.next_due(), Some(Millis::ZERO));
}

#[test]
fn receivers_take_turns_however_many_deliveries_they_have() {
    let limits = ReceiverLimits {
        in_flight_max: 1,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    s.add_many(0..5, "a", "x");
    s.add_many(5..10, "a", "y");
    s.add_many(10..14, "b", "x");
    let mut order = Vec::new();
    while let [id] = s.start_all(0)[..] {
        order.push(id);
        s.accept(id, 0);
    }
    assert_eq!(order[..8], [0, 10, 5, 11, 1, 12, 6, 13]);
    assert_eq!(s.0.status(), ReceiversStatus::default());
}

#[test]
fn a_hanging_receiver_delays_no_other() {
    let mut s = schedule();
    for account in 0..500 {
        s.add_many(
            account * 4..account * 4 + 4,
            "hangs",
            &format!("x{account}"),
        );
    }
    s.start_all(0);
    assert_eq!(s.add(9000, "lives", "x0", 10), DeliveryAdmission::Waiting);
    assert_eq!(s.start_all(10), [9000]);
}

#[test]
fn nothing_starts_before_it_is_due() {
    let mut s = schedule();
    let _ = s.add(1, "a", "x", 100);
    let _ = s.add(2, "a", "x", 50);
    let _ = s.add(3, "b", "x", 70);
    assert_eq!(s.0.next_due(), Some(Millis(50)));
    assert_eq!(s.start_all(49), [0_u64; 0]);
    assert_eq!(s.start_all(50), [2]);
    assert_eq!(s.0.next_due(), Some(Millis(70)));
    assert_eq!(s.start_all(100), [3, 1]);
    s.fail(2, 100, 300);
    assert_eq!(
        (s.start_all(299).len(), s.0.next_due()),
        (0, Some(Millis(300)))
    );
    assert_eq!(s.start_all(300), [2]);
}

/// Lets five deliveries to `a` fail at time 0; others wait.
fn failing() -> Schedule {
    let mut s = schedule();
    s.add_many(0..5, "a", "x");
    for id in 0..4 {
        assert!(s.start_all(0).len() <= 4);
        s.fail(id, 0, 10_000);
    }
    s.start_all(0);
    s.fail(4, 0, 10_000);
    assert!(s.0.is_failing("a"));
    s
}

#[test]
fn a_failing_receiver_is_probed_by_one_at_a_time_until_one_succeeds() {
    let mut s = failing();
    s.add_many(10..20, "a", "x");
    s.add_many(20..30, "a", "y");
    assert_eq!(
        (s.start_all(999).len(), s.0.next_due()),
        (0, Some(Millis(1000)))
    );
    assert_eq!(s.start_all(1000), [10]);
    s.fail(10, 1100, 6000);
    // The pause doubles, and the other account has its turn.
    assert_eq!(s.start_all(3099), [0_u64; 0]);
    assert_eq!(s.start_all(3100), [20]);
    s.accept(20, 3200);
    assert!(!s.0.is_failing("a"));
    assert_eq!(s.start_all(3200).len(), 8);
}

#[test]
fn four_failures_and_a_success_are_no_failing_receiver() {
    let mut s = schedule();
    for round in 0..10 {
        let first = round * 5;
        s.add_many(first..first + 5, "a", "x");
        for id in first..first + 4 {
            s.start_all(0);
            s.fail(id, 0, 1_000_000);
        }
        s.start_all(0);
        s.accept(first + 4, 0);
        assert!(!s.0.is_failing("a"));
    }
    assert_eq!(s.0.status().failing, 0);
}

#[test]
fn probes_wait_a_minute_at_most() {
    let mut s = failing();
    s.add_many(10..30, "a", "y");
    let mut now = 0;
    let mut probed_at = 0;
    for _ in 0..20 {
        let mut started = Vec::new();
        while started.is_empty() {
            now = s.0.next_due().unwrap().0.max(now);
            started = s.start_all(now);
        }
        assert!(started.len() == 1 && now - probed_at <= 60_000);
        probed_at = now;
        s.fail(started[0], now, now + 1_000_000_000);
    }
}

#[test]
fn probes_that_hang_leave_room_and_give_it_on() {
    let limits = ReceiverLimits {
        probes_max: 2,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    for receiver in 0..5 {
        let first = receiver * 10;
        s.add_many(
            first..first + 10,
            &format!("r{receiver}"),
            &format!("x{receiver}"),
        );
    }
    let mut failed = 0;
    while failed < 25 {
        for id in s.start_all(0) {
            s.fail(id, 0, 1_000_000);
            failed += 1;
        }
    }
    assert_eq!(s.0.status().failing, 5);
    let first = s.start_all(60_000);
    assert_eq!(first.len(), 2);
    s.accept(first[0], 60_000);
    // The receiver that lives again has its four, and another one its probe.
    let second = s.start_all(60_000);
    assert!(s.0.status().in_flight >= 3 && second.len() >= 2);
    let _ = s.add(999, "other", "z", 0);
    assert_eq!(s.start_all(60_000), [999]);
}

#[test]
fn the_oldest_beyond_an_accounts_bound_is_displaced() {
    let limits = ReceiverLimits {
        pending_max_per_account: 6,
        pending_max: 10,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    s.add_many(0..6, "a", "x");
    assert_eq!(s.start_all(0), [0, 1, 2, 3]);
    assert_eq!(
        s.add(6, "b", "x", 0),
        DeliveryAdmission::Displaced(DeliveryId(4))
    );
    s.fail(0, 0, 1_000_000);
    assert_eq!(
        s.add(7, "b", "x", 0),
        DeliveryAdmission::Displaced(DeliveryId(0))
    );
    assert_eq!(s.add(7, "b", "x", 0), DeliveryAdmission::Known);
    s.add_many(20..24, "c", "y");
    assert_eq!(s.add(24, "c", "z", 0), DeliveryAdmission::Full);
    assert_eq!(s.0.status().waiting + s.0.status().in_flight, 10);
}

#[test]
fn a_delivery_taken_out_frees_its_place() {
    let mut s = schedule();
    s.add_many(0..6, "a", "x");
    s.start_all(0);
    assert!(s.0.remove(DeliveryId(0)) && s.0.remove(DeliveryId(4)));
    assert!(!s.0.remove(DeliveryId(4)));
    assert_eq!(s.start_all(0), [5]);
    s.accept(0, 0);
    for id in [1, 2, 3, 5] {
        s.accept(id, 0);
    }
    assert_eq!(s.0.status(), ReceiversStatus::default());
}

#[test]
fn lanes_without_room_in_their_account_go_on_past_a_paused_receiver() {
    let limits = ReceiverLimits {
        in_flight_max_per_account: 1,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    s.add_many(0..6, "dead", "x");
    for _ in 0..5 {
        let id = s.start_all(0)[0];
        s.fail(id, 0, 0);
    }
    assert!(s.0.is_failing("dead"));
    s.add_many(10..12, "b", "x");
    s.add_many(20..22, "c", "x");
    let mut order = Vec::new();
    while let [id] = s.start_all(10)[..] {
        order.push(id);
        s.accept(id, 10);
    }
    assert_eq!(order, [10, 20, 11, 21]);
}

#[test]
fn a_hundred_thousand_pending_cost_no_scan() {
    let limits = ReceiverLimits {
        pending_max_per_account: 100_000,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    for id in 0..100_000 {
        let _ = s.add(id, &format!("r{}", id % 5000), &format!("x{}", id % 50), 0);
    }
    let mut done = 0;
    let mut now = 0;
    while s.0.status().waiting > 0 {
        now += 1;
        for id in s.start_all(now) {
            s.accept(id, now);
            done += 1;
        }
    }
    assert_eq!(done, 100_000);
}

/// Step of a random run: receiver, account, choice.
type Step = (u8, u8, u8);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Bounds hold after each step; in the end every delivery is finished, and nothing is left behind.
    #[test]
    fn random_runs_keep_the_bounds_and_finish(steps in prop::collection::vec(any::<Step>(), 1..400)) {
        let limits = ReceiverLimits {
            in_flight_max: 6,
            in_flight_max_per_lane: 2,
            in_flight_max_per_receiver: 4,
            in_flight_max_per_account: 3,
            probes_max: 2,
            pending_max_per_account: 20,
            pending_max: 60,
        };
        let mut s = Schedule::new(limits);
        let mut lanes = Map::new();
        let mut in_flight = Set::new();
        let mut now = 0;
        for (id, (receiver, account, choice)) in steps.into_iter().enumerate() {
            let (id, receiver, account) = (id as u64, receiver % 5, account % 4);
            now += u64::from(choice) * 10;
            let (name, owner) = (Arc::from(format!("r{receiver}")), format!("x{account}"));
            let is_notice = choice % 3 == 0;
            if is_notice && s.0.add_notice(DeliveryId(id), &name, &owner.as_str().into()) {
                lanes.insert(id, (receiver, account));
            }
            let due = now + u64::from(choice);
            match is_notice {
                true => {}
                false => match s.add(id, &name, &owner, due) {
                DeliveryAdmission::Waiting => { lanes.insert(id, (receiver, account)); }
                DeliveryAdmission::Displaced(old) => {
                    lanes.insert(id, (receiver, account));
                    prop_assert!(lanes.remove(&old.0).is_some());
                    prop_assert!(!in_flight.contains(&old.0));
                }
                DeliveryAdmission::Full => {}
                DeliveryAdmission::Known => prop_assert!(false),
                },
            }
            for id in s.start_all(now) {
                prop_assert!(lanes.contains_key(&id) && in_flight.insert(id));
            }
            for at in 0..6 {
                let count = |same: &dyn Fn((u8, u8)) -> bool| in_flight.iter().filter(|id| same(lanes[id])).count();
                prop_assert!(count(&|lane| lane.0 == at) <= 4 && count(&|lane| lane.1 == at) <= 3);
                for account in 0..4 {
                    prop_assert!(count(&|lane| lane == (at, account)) <= 2);
                }
            }
            prop_assert!(in_flight.len() <= 6);
            prop_assert_eq!(s.0.status().in_flight, in_flight.len());
            prop_assert_eq!(s.0.status().waiting + in_flight.len(), lanes.len());
            let some = in_flight.iter().nth(usize::from(choice) % 7).copied();
            if let Some(id) = some {
                in_flight.remove(&id);
                match choice % 5 {
                    0 => { s.0.remove(DeliveryId(id)); lanes.remove(&id); }
                    1 => { s.accept(id, now); lanes.remove(&id); }
                    _ => s.fail(id, now, now + 50 * u64::from(choice)),
                }
            }
        }
        for _ in 0..10_000 {
            for id in std::mem::take(&mut in_flight) {
                s.accept(id, now);
                lanes.remove(&id);
            }
            if lanes.is_empty() {
                break;
            }
            now = now.max(s.0.next_due().map_or(now, |due| due.0));
            in_flight.extend(s.start_all(now));
            prop_assert!(!in_flight.is_empty() || s.0.next_due().is_some_and(|due| due.0 > now));
        }
        prop_assert!(lanes.is_empty());
        prop_assert_eq!(s.0.status(), ReceiversStatus::default());
        prop_assert!(s.0.timers.is_empty() && s.0.ready.is_empty() && s.0.pauses.is_empty());
        prop_assert!(s.0.lanes.is_empty() && s.0.accounts.is_empty() && s.0.parked.is_empty());
        prop_assert!(s.0.account_numbers.is_empty() && s.0.receiver_numbers.is_empty());
    }
}

impl Schedule {
    fn add_notices(&mut self, ids: std::ops::Range<u64>, receiver: &str, account: &str) {
        let receiver = Arc::from(receiver);
        for id in ids {
            let id = DeliveryId(id);
            assert!(self.0.add_notice(id, &receiver, &account.into()));
        }
    }
}

#[test]
fn notices_and_ends_of_a_lane_share_its_bound_and_ends_go_first() {
    let mut s = schedule();
    s.add_notices(0..10, "a", "x");
    assert_eq!(s.start_all(0), [0, 1, 2, 3]);
    s.add_many(20..22, "a", "x");
    assert_eq!(s.start_all(5), [0_u64; 0]);
    for id in 0..3 {
        assert!(s.0.remove(DeliveryId(id)));
    }
    assert_eq!(s.start_all(6), [20, 21, 4]);
    // An end whose next attempt is later lets notices go.
    s.fail(20, 6, 1000);
    s.accept(21, 6);
    assert_eq!(s.start_all(6), [5, 6]);
    assert_eq!(s.0.next_due(), None, "the lane is full");
    for id in 3..10 {
        assert!(s.0.remove(DeliveryId(id)));
    }
    assert_eq!(s.0.next_due(), Some(Millis(1000)));
    assert_eq!(s.start_all(1000), [20]);
    s.accept(20, 1000);
    assert_eq!(s.0.status(), ReceiversStatus::default());
}

#[test]
fn notices_of_a_hanging_receiver_delay_no_other_and_displace_no_end() {
    let limits = ReceiverLimits {
        pending_max_per_account: 2,
        ..ReceiverLimits::default()
    };
    let mut s = Schedule::new(limits);
    s.add_notices(0..256, "hangs", "x");
    assert_eq!(s.start_all(0).len(), 4);
    s.add_notices(300..301, "hangs", "y");
    s.add_notices(301..302, "lives", "x");
    assert_eq!(s.start_all(0), [300, 301]);
    s.add_many(400..402, "lives", "x");
    assert_eq!(s.start_all(0), [400, 401]);
    let displaced = s.add(402, "lives", "x", 0);
    assert_eq!(displaced, DeliveryAdmission::Displaced(DeliveryId(402)));
}

#[test]
fn a_failing_receiver_gets_no_notices() {
    let mut s = failing();
    let receiver = Arc::from("a");
    assert!(!s.0.add_notice(DeliveryId(100), &receiver, &"x".into()));
    let mut s = schedule();
    s.add_many(0..5, "a", "x");
    for id in 0..4 {
        s.start_all(0);
        s.fail(id, 0, 10_000);
    }
    s.start_all(0);
    s.add_notices(100..101, "a", "y");
    assert_eq!(s.start_all(0), [100]);
    assert!(!s.0.is_probe(DeliveryId(100)));
    s.add_notices(101..102, "a", "z");
    s.fail(4, 0, 10_000);
    assert!(s.0.remove(DeliveryId(100)));
    // One that waited before is known by being a probe.
    assert_eq!(s.start_all(5000), [101]);
    assert!(s.0.is_probe(DeliveryId(101)));
}

#[test]
fn a_lower_bound_displaces_the_oldest_that_wait() {
    let mut s = schedule();
    s.add_many(0..10, "a", "x");
    s.add_many(10..12, "a", "y");
    s.start_all(0);
    let displaced = s.0.set_pending_max_per_account(6);
    assert_eq!(displaced, [4, 5, 6, 7].map(DeliveryId));
    assert_eq!(s.0.set_pending_max_per_account(6), []);
}
