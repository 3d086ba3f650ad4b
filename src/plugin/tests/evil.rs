//! Guests that loop, grow, lie and crash: each is found out, costs its deadline at most, and hurts
//! nobody else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::guests::{ALL_HOOKS, Wat};
use super::rows::{HostileGuest, LOOP, rows};
use super::stand::{BUILTIN_PRICE, TestHost, calling, failures, price, rank, user_of};
use crate::plugin::{PluginSnapshot, PluginSpec, TaskInput, World};
use crate::telemetry::clock::thread_micros;
use bytes::Bytes;
use infergate_core::Refusal;

/// Configuration and plugins of one row.
fn asked(row: &HostileGuest, stand: &TestHost) -> (PluginSpec, PluginSnapshot) {
    let spec = stand.spec("evil", World::BillingFormula, &row.wat);
    let plugins = stand
        .load(&spec)
        .unwrap_or_else(|wrong| panic!("{}: {wrong:?}", row.name));
    (spec, plugins)
}

#[test]
fn every_evil_formula_is_found_out_in_time_and_the_request_is_priced_anyway() {
    let stand = TestHost::new();
    // Billing's deadline is 5 ms. This thread's own time, whatever else the machine does; a slow one
    // gets ten times 2 × deadline + 5 ms. `benches/plugin.rs` measures the wall and the process.
    let bound = Duration::from_millis((2 * 5 + 5) * 10);
    for row in rows() {
        let (spec, plugins) = asked(&row, &stand);
        let model = user_of(&spec);
        let began_us = thread_micros();
        let priced = price(&plugins, &model, "acme");
        let took = Duration::from_micros(thread_micros() - began_us);
        let tally = &plugins.inner.active[0].tally;
        let guest_bytes = tally.crash_bytes.load(Ordering::Relaxed);

        // Writing 16 MiB may take longer than the deadline.
        let late = row.name == "memory bomb that writes" && failures(&plugins, "deadline") == 1;
        assert!(
            late || failures(&plugins, row.class) == 1,
            "{}: {:?}",
            row.name,
            plugins.state()
        );
        assert!(took <= bound, "{}: {took:?}", row.name);
        assert!(guest_bytes <= 16 << 20, "{}: {guest_bytes}", row.name);
        assert!(priced.fell_back && priced.uses.is_empty(), "{}", row.name);
        assert_eq!(priced.charge.total, BUILTIN_PRICE, "{}", row.name);
        assert_eq!(
            stand.host.counts().instances_live,
            0,
            "{}: its store is gone",
            row.name
        );
    }
}

#[test]
fn the_deadline_clock_rests_when_nothing_runs_and_is_there_again_for_the_next_guest() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    let good = stand.spec("good", world, &Wat::of(world));
    let evil = stand.spec("evil", world, &Wat::of(world).price(LOOP));
    let (goods, evils) = (stand.load(&good).unwrap(), stand.load(&evil).unwrap());
    for _ in 0..2 {
        assert!(!price(&goods, &user_of(&good), "acme").fell_back);
        // An idle instance does not keep it awake.
        assert_eq!(stand.host.counts().instances_live, 1);
        while !stand.host.counts().is_resting {
            std::thread::yield_now();
        }
        assert!(price(&evils, &user_of(&evil), "acme").fell_back);
    }
    assert_eq!(failures(&evils, "deadline"), 2);
}

#[test]
fn a_good_guest_answers_right_after_an_evil_one() {
    let stand = TestHost::new();
    let good = stand.spec(
        "good",
        World::BillingFormula,
        &Wat::of(World::BillingFormula),
    );
    let evil = stand.spec(
        "evil",
        World::BillingFormula,
        &Wat::of(World::BillingFormula).price(LOOP),
    );
    let (goods, evils) = (stand.load(&good).unwrap(), stand.load(&evil).unwrap());
    for _ in 0..3 {
        assert!(price(&evils, &user_of(&evil), "acme").fell_back);
        let priced = price(&goods, &user_of(&good), "acme");
        assert_eq!(priced.charge.total, 1.0);
        assert_eq!(&*priced.uses[0].plugin.name, "good");
    }
}

#[test]
fn a_guest_that_fails_while_it_is_made_never_gets_into_a_configuration() {
    let stand = TestHost::new();
    let good = Wat::of(World::BillingFormula);
    for (name, wat, expected_text) in [
        (
            "loop in start",
            good.clone()
                .more("(func $s (loop $on (br $on))) (start $s)"),
            "deadline",
        ),
        (
            "trap in start",
            good.clone().more("(func $s unreachable) (start $s)"),
            "trapped",
        ),
        (
            "loop in configure",
            good.clone().configure(LOOP),
            "deadline",
        ),
        (
            "trap in configure",
            good.clone().configure("unreachable"),
            "trapped",
        ),
        (
            "memory beyond the limit",
            good.memory("(memory (export \"memory\") 1000)"),
            "memory",
        ),
    ] {
        let spec = stand.spec("evil", World::BillingFormula, &wat);
        let wrong = stand.load(&spec).err().unwrap();
        assert_eq!(wrong.len(), 1, "{name}");
        assert!(
            wrong[0].key.starts_with("plugins[0].file"),
            "{name}: {wrong:?}"
        );
        assert!(
            wrong[0].message.contains(expected_text),
            "{name}: {wrong:?}"
        );
        assert_eq!(stand.host.counts().instances_live, 0, "{name}");
    }
}

#[test]
fn a_policy_that_lies_about_ids_is_corrected_and_one_that_fails_is_replaced() {
    let stand = TestHost::new();
    // Three choices of 8 bytes at 2000: id 7 (unknown), id 1 twice.
    let list = |count: u32| {
        format!(
            "(i32.store (i32.const 2000) (i32.const 7)) (i32.store (i32.const 2008) (i32.const 1))
             (i32.store (i32.const 2016) (i32.const 1)) (i32.store8 (i32.const 1024) (i32.const 0))
             (i32.store (i32.const 1028) (i32.const 2000)) (i32.store (i32.const 1032) (i32.const {count}))
             (i32.const 1024)"
        )
    };
    let world = World::RoutingPolicy;
    let liar = stand.spec("liar", world, &Wat::of(world).rank(&list(3)));
    let plugins = stand.load(&liar).unwrap();
    let ranked = rank(&plugins, &user_of(&liar), 3);
    let ids: Vec<u32> = ranked.choices.iter().map(|choice| choice.id).collect();
    assert_eq!(ids, [1, 0, 2]);
    assert_eq!(ranked.uses.len(), 1);

    let babbler = stand.spec("babbler", world, &Wat::of(world).rank(&list(100_000)));
    for (spec, class) in [
        (babbler, "overrun"),
        (
            stand.spec("long", world, &Wat::of(world).rank(&list(4))),
            "invalid",
        ),
        (
            stand.spec("slow", world, &Wat::of(world).rank(LOOP)),
            "deadline",
        ),
        (
            stand.spec("dead", world, &Wat::of(world).rank("unreachable")),
            "trapped",
        ),
    ] {
        let plugins = stand.load(&spec).unwrap();
        let ranked = rank(&plugins, &user_of(&spec), 3);
        assert_eq!(ranked.choices.len(), 3, "{class}");
        assert!(ranked.uses.is_empty(), "{class}");
        let other = if class == "overrun" { "invalid" } else { class };
        assert!(
            failures(&plugins, class) + failures(&plugins, other) >= 1,
            "{class}: {:?}",
            plugins.state()
        );
    }
}

#[test]
fn an_evil_task_closes_its_model_and_never_a_worker() {
    let stand = TestHost::new();
    let world = World::TaskSchemaStreaming;
    let good = Wat::of(world).describe(ALL_HOOKS);
    let big_state = "(call $clear) (i32.store (i32.const 1068) (i32.const 0)) (i32.store (i32.const 1072) (i32.const 60000)) (i32.const 1024)";
    for (name, wat, class) in [
        ("loop", good.clone().prepare(LOOP), "deadline"),
        ("trap", good.clone().prepare("unreachable"), "trapped"),
        (
            "state of 60,000 bytes",
            good.clone().prepare(big_state),
            "invalid",
        ),
        (
            "empty edit of nothing",
            good.prepare(
                "(call $clear) (i32.store8 (i32.const 1028) (i32.const 7)) (i32.const 1024)",
            ),
            "invalid",
        ),
    ] {
        let spec = stand.spec("evil", world, &wat);
        let plugins = stand.load(&spec).unwrap();
        let slot = plugins.task(&user_of(&spec));
        let mut session = calling("acme", |caller| slot.begin(caller));
        let body = Bytes::from_static(b"{}");
        let refused = session.prepare(TaskInput {
            model: "m",
            content_type: "application/json",
            body: &body,
            is_read: false,
            is_checked: false,
            attributes: Vec::new(),
        });
        assert_eq!(refused, Err(Refusal::PluginFailed), "{name}");
        assert_eq!(
            failures(&plugins, class),
            1,
            "{name}: {:?}",
            plugins.state()
        );
    }
}

#[test]
fn a_log_flood_is_cut_to_its_rate_and_counters_that_do_not_exist_are_counted() {
    let stand = TestHost::new();
    let imports = "(import \"infergate:host/log@1.0.0\" \"emit\" (func $emit (param i32 i32 i32)))
        (import \"infergate:host/counters@1.0.0\" \"add\" (func $add (param i32 i64)))";
    let flood = "(local $n i32) (loop $on
        (call $emit (i32.const 2) (i32.const 3000) (i32.const 5))
        (call $add (i32.const 0) (i64.const 2)) (call $add (i32.const 9) (i64.const 1))
        (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $on (i32.lt_u (local.get $n) (i32.const 300))))";
    let world = World::BillingFormula;
    let wat = Wat::of(world)
        .imports(imports)
        .more("(data (i32.const 3000) \"hello\")")
        .price(&format!("{flood} {}", super::guests::ONE));
    let mut spec = stand.spec("loud", world, &wat);
    spec.grants = vec!["log".into(), "counters".into()];
    spec.counters = vec!["unknown_metric".into()];
    let plugins = stand.load(&spec).unwrap();
    assert!(
        !price(&plugins, &user_of(&spec), "acme").fell_back,
        "{:?}",
        plugins.state()
    );
    let state = &plugins.state()[0];
    assert!(state.log_lines_dropped >= 200, "{state:?}");
    assert_eq!(state.counters[0].value, 600);
    assert_eq!(state.undeclared_counts, 300);
}
