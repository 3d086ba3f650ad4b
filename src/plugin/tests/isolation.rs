//! Guests of one account never meet another's; a fresh one never meets anybody.

use std::time::Duration;

use super::guests::{ONE, Wat};
use super::stand::{BUILTIN_PRICE, TestHost, failures, price, user_of};
use crate::plugin::roles::billing::repeat::REPEATED_ONE_IN;
use crate::plugin::{InstancePolicy, World};
use crate::telemetry::Clock;
use crate::telemetry::plugin_metrics::RepricingResult;

/// Limit of waiting for background work.
const LIMIT: Duration = Duration::from_secs(60);
const COUNTERS: &str =
    "(import \"infergate:host/counters@1.0.0\" \"add\" (func $add (param i32 i64)))";

/// Charges what it has charged so far, plus one: a secret kept in a global.
const COUNTING: &str = "(global.set $secret (i64.add (global.get $secret) (i64.const 1)))
    (call $clear)
    (f64.store (i32.const 1032) (f64.convert_i64_u (global.get $secret)))
    (f64.store (i32.const 1040) (f64.convert_i64_u (global.get $secret)))
    (i32.const 1024)";

#[test]
fn what_a_guest_keeps_of_one_account_is_never_seen_by_another() {
    let stand = TestHost::new();
    let wat = Wat::of(World::BillingFormula).price(COUNTING);
    let spec = stand.spec("keeper", World::BillingFormula, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let charge = |account: &str| price(&plugins, &model, account).charge.total;
    assert_eq!(
        [charge("acme"), charge("acme"), charge("acme")],
        [1.0, 2.0, 3.0]
    );
    assert_eq!(
        [charge("zeta"), charge("acme"), charge("zeta")],
        [1.0, 4.0, 2.0]
    );
}

/// Waits until a count of work beside the requests is reached.
fn until(what: &str, is_reached: impl Fn() -> bool) {
    let began = Clock::start();
    while !is_reached() {
        assert!(began.micros() < LIMIT.as_micros() as u64, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_price_that_depends_on_what_an_instance_remembers_is_found_and_no_instance_is_used_again() {
    let (stand, metrics) = TestHost::with_metrics();
    let wat = Wat::of(World::BillingFormula).price(COUNTING);
    let spec = stand.spec("keeper", World::BillingFormula, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let charge = |account: &str| price(&plugins, &model, account).charge.total;
    let different = || {
        metrics
            .plugin("keeper")
            .repricings(RepricingResult::Different)
    };
    for n in 1..REPEATED_ONE_IN {
        assert_eq!(charge("acme"), n as f64);
    }
    assert_eq!((different(), failures(&plugins, "invalid")), (0, 0));
    assert_eq!(charge("acme"), REPEATED_ONE_IN as f64);
    until("the hundredth price is repeated", || {
        failures(&plugins, "invalid") == 1
    });
    assert_eq!(different(), 1);
    assert_eq!(plugins.state()[0].instance, "fresh");
    for _ in 0..3 {
        assert_eq!((charge("acme"), charge("zeta")), (1.0, 1.0));
    }
    assert_eq!(stand.host.counts().instances_live, 0);
}

#[test]
fn a_price_that_depends_on_its_arguments_alone_is_confirmed_and_stays_on_warm_instances() {
    let (stand, metrics) = TestHost::with_metrics();
    let spec = stand.spec(
        "honest",
        World::BillingFormula,
        &Wat::of(World::BillingFormula),
    );
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    for n in 0..3 * REPEATED_ONE_IN {
        let account = format!("account-{}", n % 3);
        assert_eq!(price(&plugins, &model, &account).charge.total, 1.0);
        if (n + 1).is_multiple_of(REPEATED_ONE_IN) {
            let times = (n + 1) / REPEATED_ONE_IN;
            until("it is repeated", || {
                metrics.plugin("honest").repricings(RepricingResult::Same) == times
            });
        }
    }
    let state = &plugins.state()[0];
    assert_eq!((state.instance, failures(&plugins, "invalid")), ("warm", 0));
    // What is repeated is no call of a request.
    assert_eq!(state.calls, 3 * REPEATED_ONE_IN);
}

#[test]
fn what_a_repeated_price_counts_is_counted_once() {
    let (stand, metrics) = TestHost::with_metrics();
    let body = format!("(call $add (i32.const 0) (i64.const 1)) {ONE}");
    let wat = Wat::of(World::BillingFormula)
        .imports(COUNTERS)
        .price(&body);
    let mut spec = stand.spec("counts", World::BillingFormula, &wat);
    spec.grants = vec!["counters".into()];
    spec.counters = vec!["prices".into()];
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    for _ in 0..REPEATED_ONE_IN {
        price(&plugins, &model, "acme");
    }
    until("it is repeated", || {
        metrics.plugin("counts").repricings(RepricingResult::Same) == 1
    });
    assert_eq!(plugins.state()[0].counters[0].value, REPEATED_ONE_IN);
}

#[test]
fn a_fresh_guest_has_nothing_from_before() {
    let stand = TestHost::new();
    let wat = Wat::of(World::BillingFormula).price(COUNTING);
    let mut spec = stand.spec("keeper", World::BillingFormula, &wat);
    spec.instance = InstancePolicy::Fresh;
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    for _ in 0..5 {
        assert_eq!(price(&plugins, &model, "acme").charge.total, 1.0);
        assert_eq!(stand.host.counts().instances_live, 0);
    }
}

#[test]
fn more_accounts_than_slots_cost_an_eviction_each_and_nothing_else() {
    let stand = TestHost::new();
    let wat = Wat::of(World::BillingFormula).price(COUNTING);
    let spec = stand.spec("keeper", World::BillingFormula, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    for round in 0..3 {
        for account in 0..40 {
            let priced = price(&plugins, &model, &format!("account-{account}"));
            assert_eq!(
                priced.charge.total, 1.0,
                "round {round}: its guest was evicted"
            );
        }
    }
    assert_eq!(stand.host.counts().instances_live, 16);
    drop(plugins);
    // A price that is computed again beside the requests may hold the revision for a moment.
    until("guests go with their revision", || {
        stand.host.counts().instances_live == 0
    });
}

#[test]
fn a_guest_is_replaced_when_it_has_grown_and_after_ten_thousand_calls() {
    let stand = TestHost::new();
    let growing = format!("(drop (memory.grow (i32.const 8))) {COUNTING}");
    let wat = Wat::of(World::BillingFormula).price(&growing);
    let spec = stand.spec("leak", World::BillingFormula, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let charges: Vec<f64> = (0..6)
        .map(|_| price(&plugins, &model, "a").charge.total)
        .collect();
    assert_eq!(
        charges,
        [1.0, 2.0, 3.0, 1.0, 2.0, 3.0],
        "1 MiB over its first size"
    );

    let first_call =
        "(if (i64.eqz (global.get $secret)) (then (call $add (i32.const 0) (i64.const 1))))
        (global.set $secret (i64.const 1))";
    let wat = Wat::of(World::BillingFormula).imports(COUNTERS);
    let wat = wat.price(&format!("{first_call} {ONE}")).realloc(
        // Reuses its heap, so that ten thousand calls fit.
        "(global.set $heap (i32.add (global.get $heap) (i32.add (local.get $size) (i32.const 16))))
         (if (i32.gt_u (global.get $heap) (i32.const 60000)) (then (global.set $heap (i32.const 8192))))
         (i32.and (i32.sub (global.get $heap) (local.get $size)) (i32.const -16))",
    );
    let mut spec = stand.spec("long", World::BillingFormula, &wat);
    spec.grants = vec!["counters".into()];
    spec.counters = vec!["instances".into()];
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let instances = || plugins.state()[0].counters[0].value;
    for _ in 0..10_000 {
        assert!(!price(&plugins, &model, "a").fell_back);
    }
    assert_eq!(instances(), 1);
    price(&plugins, &model, "a");
    assert_eq!(instances(), 2);
}

#[test]
fn a_hundred_thousand_good_and_trapping_calls_leave_the_slots_as_they_were() {
    let stand = TestHost::new();
    let good = stand.spec(
        "good",
        World::BillingFormula,
        &Wat::of(World::BillingFormula).realloc("(i32.const 8192)"),
    );
    let evil_wat = Wat::of(World::BillingFormula).price("unreachable");
    let evil = stand.spec("evil", World::BillingFormula, &evil_wat);
    let goods = stand.load(&good).unwrap();
    let (good_model, evil_model) = (user_of(&good), user_of(&evil));
    let mut evils = stand.load(&evil).unwrap();
    let accounts = ["a", "b", "c", "d"];
    for n in 0..100_000_usize {
        let account = accounts[n % accounts.len()];
        if n % 50 == 0 {
            // Its breaker opens after five: a new revision, as after a reload, has a closed one.
            if n % 250 == 0 {
                evils = stand.load(&evil).unwrap();
            }
            assert_eq!(
                price(&evils, &evil_model, account).charge.total,
                BUILTIN_PRICE
            );
        } else {
            assert!(!price(&goods, &good_model, account).fell_back);
        }
    }
    // The gauge is ours, the other number the engine's own. A price may be repeated still.
    let are_live = |count: usize| {
        let counts = stand.host.counts();
        (counts.instances_live as usize, counts.pool_used as usize) == (count, count)
    };
    until("one for each account", || are_live(accounts.len()));
    // What the process has left is measured by `benches/plugin.rs`, which has one to itself.
    drop((goods, evils));
    until("guests go with their revision", || are_live(0));
}
