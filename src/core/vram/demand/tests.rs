//! Tests of the demand: its sums against sums over all requests, and who is counted.

use fastrand::Rng;

use super::*;

const NORMAL: DemandWeight = DemandWeight::of_priority(5);
const PERMITS: u32 = 4;

fn demand() -> Demand {
    Demand::new(DemandSettings::default())
}

fn secs(secs: u64) -> Millis {
    Millis::from_secs(secs)
}

/// The debt, request by request.
fn naive_debt(requests: &[(DemandWeight, Millis)], now: Millis) -> f64 {
    let aging = DemandSettings::default().aging.0 as f64;
    let of_one = |(weight, arrived): &(DemandWeight, Millis)| {
        let waited = now.since(*arrived).0 as f64;
        f64::from(weight.0) / 16.0 * waited / 1000.0 * (1.0 + (waited / aging).powi(2))
    };
    requests.iter().map(of_one).sum()
}

fn assert_near(left: f64, right: f64) {
    let bound = 1e-9 * right.abs().max(1.0);
    assert!((left - right).abs() <= bound, "{left} is not {right}");
}

#[test]
fn the_weight_doubles_with_each_priority_within_its_bounds() {
    let sixteenths = [0, 4, 5, 6, 9, 255].map(|priority| DemandWeight::of_priority(priority).0);
    assert_eq!(sixteenths, [512, 32, 16, 8, 1, 1]);
    assert_eq!(NORMAL.scaled(50).0, 8);
    assert_eq!(NORMAL.scaled(0).0, 1);
    assert_eq!(DemandWeight::of_priority(0).scaled(u32::MAX).0, 512);
}

#[test]
fn sums_give_the_debt_of_all_requests_at_any_time_since_the_start() {
    let mut random = Rng::with_seed(1);
    for start in [0, 1 << 40, u64::MAX / 2, u64::MAX - (1 << 33)] {
        for _ in 0..200 {
            let mut sums = DebtSums::default();
            let mut requests = Vec::new();
            let mut now = Millis(start);
            for _ in 0..random.usize(1..40) {
                now = now + Millis(random.u64(0..60_000));
                if random.u8(0..3) == 0 && !requests.is_empty() {
                    let (weight, arrived) = requests.swap_remove(random.usize(..requests.len()));
                    sums.remove(weight, arrived);
                } else {
                    let weight = DemandWeight::of_priority(random.u8(0..10));
                    sums.add(weight, now);
                    requests.push((weight, now));
                }
                let later = now + Millis(random.u64(0..600_000));
                let debt = sums.debt(later, DemandSettings::default().aging);
                assert_near(debt, naive_debt(&requests, later));
            }
        }
    }
}

#[test]
fn waiters_that_leave_in_any_order_leave_nothing() {
    let mut random = Rng::with_seed(2);
    let accounts: Vec<AccountId> = ["a", "b", "c"].map(AccountId::from).into();
    for _ in 0..500 {
        let mut demand = demand();
        let mut waiters = Vec::new();
        let mut now = secs(1000);
        for _ in 0..random.usize(1..60) {
            now = now + Millis(random.u64(0..5000));
            let account = random.choice(&accounts).expect("there are accounts");
            let weight = DemandWeight::of_priority(random.u8(0..10));
            if random.u8(0..4) == 0 {
                demand.refuse(account, weight, PERMITS, now);
            } else {
                waiters.push(demand.join(weight, random.u32(0..8), PERMITS, now));
            }
        }
        random.shuffle(&mut waiters);
        for waiter in waiters {
            if random.bool() {
                demand.time_out(waiter, &accounts[0], PERMITS, now);
            } else {
                demand.leave(waiter);
            }
        }
        demand.expire(now + demand.settings.memory);
        assert_eq!(demand.sums.powers, [0; 4]);
        assert_eq!((demand.waiters(), demand.unserved_since()), (0, None));
        assert_near(demand.debt(now + secs(100)), 0.0);
    }
}

#[test]
fn a_flood_of_one_account_weighs_as_one_round_of_permits_and_keeps_a_path() {
    let mut demand = demand();
    let waiters: Vec<_> = (0..100)
        .map(|nth| demand.join(NORMAL, nth, PERMITS, secs(10)))
        .collect();
    let four = naive_debt(&[(NORMAL, secs(10)); 4], secs(30));
    assert_near(demand.debt(secs(30)), four);
    // The counted ones get their permits, then the model is evicted.
    for waiter in waiters {
        if waiter.is_counted() {
            demand.record_grant(secs(30));
            demand.leave(waiter);
        }
    }
    assert_eq!(demand.waiters(), 100 - PERMITS);
    let one = naive_debt(&[(NORMAL, secs(30))], secs(50));
    assert_near(demand.debt(secs(50)), one);
}

#[test]
fn a_request_that_could_not_wait_long_enough_counts_for_a_minute() {
    let mut demand = demand();
    demand.refuse(&AccountId::from("a"), NORMAL, PERMITS, secs(10));
    assert!(demand.debt(secs(69)) > 0.0);
    assert_eq!(demand.waiters(), 0);
    demand.expire(secs(70));
    assert_near(demand.debt(secs(70)), 0.0);
    assert_eq!(demand.unserved_since(), None);
}

#[test]
fn the_memory_is_bounded_in_all_and_by_account() {
    let mut demand = demand();
    for nth in 0..1000_u64 {
        demand.refuse(&AccountId::from("a"), NORMAL, PERMITS, Millis(nth));
    }
    assert_eq!(demand.remembered.len(), 4);
    for nth in 0..1000_u64 {
        let account = AccountId::from(format!("account-{nth}").as_str());
        demand.refuse(&account, NORMAL, PERMITS, Millis(1000 + nth));
    }
    assert_eq!(demand.remembered.len(), REMEMBERED_MAX);
    demand.clear_memory();
    assert_eq!(demand.sums.powers, [0; 4]);
}

#[test]
fn callers_that_give_up_and_come_again_do_not_begin_the_wait_anew() {
    let mut demand = demand();
    let account = AccountId::from("a");
    for second in 0..100 {
        let waiter = demand.join(NORMAL, 0, PERMITS, secs(second));
        demand.expire(secs(second));
        demand.time_out(waiter, &account, PERMITS, secs(second + 1));
    }
    assert_eq!(demand.unserved_since(), Some(secs(0)));
    demand.record_grant(secs(100));
    assert_eq!(demand.unserved_since(), Some(secs(100)));
}

#[test]
fn the_rate_of_arrivals_follows_and_fades() {
    let mut demand = demand();
    for nth in 0..4000 {
        demand.record_arrivals(1, Millis(nth * 500));
    }
    let end = secs(2000);
    let rate = demand.arrivals_per_sec(end);
    assert!((1.98..2.02).contains(&rate), "{rate}");
    let later = demand.arrivals_per_sec(end + ARRIVALS_SPAN);
    assert!((0.36..0.38).contains(&(later / rate)), "{later}");
}
