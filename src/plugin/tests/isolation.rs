//! Guests of one account never meet another's; a fresh one never meets anybody.

use super::guests::Wat;
use super::stand::{BUILTIN_PRICE, Stand, price, user_of};
use crate::plugin::{InstancePolicy, World};

/// Charges what it has charged so far, plus one: a secret kept in a global.
const COUNTING: &str = "(global.set $secret (i64.add (global.get $secret) (i64.const 1)))
    (call $clear)
    (f64.store (i32.const 1032) (f64.convert_i64_u (global.get $secret)))
    (f64.store (i32.const 1040) (f64.convert_i64_u (global.get $secret)))
    (i32.const 1024)";

#[test]
fn what_a_guest_keeps_of_one_account_is_never_seen_by_another() {
    let stand = Stand::new();
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

#[test]
fn a_fresh_guest_has_nothing_from_before() {
    let stand = Stand::new();
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
    let stand = Stand::new();
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
    assert_eq!(
        stand.host.counts().instances_live,
        0,
        "guests go with their revision"
    );
}

#[test]
fn a_guest_is_replaced_when_it_has_grown_and_after_ten_thousand_calls() {
    let stand = Stand::new();
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

    let wat = Wat::of(World::BillingFormula).price(COUNTING).realloc(
        // Reuses its heap, so that ten thousand calls fit.
        "(global.set $heap (i32.add (global.get $heap) (i32.add (local.get $size) (i32.const 16))))
         (if (i32.gt_u (global.get $heap) (i32.const 60000)) (then (global.set $heap (i32.const 8192))))
         (i32.and (i32.sub (global.get $heap) (local.get $size)) (i32.const -16))",
    );
    let spec = stand.spec("long", World::BillingFormula, &wat);
    let plugins = stand.load(&spec).unwrap();
    let model = user_of(&spec);
    let last = (0..10_000)
        .map(|_| price(&plugins, &model, "a").charge.total)
        .fold(0.0, f64::max);
    assert_eq!(last, 10_000.0);
    assert_eq!(price(&plugins, &model, "a").charge.total, 1.0);
}

#[test]
fn a_hundred_thousand_good_and_trapping_calls_leave_the_slots_as_they_were() {
    let stand = Stand::new();
    let good = stand.spec(
        "good",
        World::BillingFormula,
        &Wat::of(World::BillingFormula)
            .price(COUNTING)
            .realloc("(i32.const 8192)"),
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
    let counts = stand.host.counts();
    assert_eq!(counts.instances_live, accounts.len() as u32);
    // The gauge is ours, the other number the engine's own.
    assert_eq!(counts.pool_used, u64::from(counts.instances_live));
    // What the process has left is measured by `benches/plugin.rs`, which has one to itself.
    drop((goods, evils));
    let counts = stand.host.counts();
    assert_eq!((counts.instances_live, counts.pool_used), (0, 0));
}
