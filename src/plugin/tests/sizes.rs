//! Sizes and values chosen by clients and model servers never take a plugin from others.

use bytes::Bytes;
use infergate_core::Refusal;
use serde_json::json;

use super::guests::Wat;
use super::rows::LOOP;
use super::stand::{BUILTIN_PRICE, TestHost, calling, failures, price, user_of};
use crate::plugin::{
    BreakerState, PluginSnapshot, PluginSpec, TaskInput, TaskPayload, TaskSession, World,
};

const WORLD: World = World::TaskSchema;
/// More than a quarter of 1 MiB.
const LARGE: usize = 300 << 10;

fn prepare(session: &mut TaskSession, body: &Bytes) -> Result<TaskPayload, Refusal> {
    session.prepare(TaskInput {
        model: "m",
        content_type: "application/octet-stream",
        body,
        is_read: false,
        is_checked: false,
        attributes: Vec::new(),
    })
}

fn begin(plugins: &PluginSnapshot, spec: &PluginSpec) -> TaskSession {
    let slot = plugins.task(&user_of(spec));
    calling("acme", |caller| slot.begin(caller))
}

#[test]
fn a_body_too_large_for_a_guest_is_refused_and_leaves_its_breaker_alone() {
    let stand = TestHost::new();
    let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD));
    spec.limits.memory_mib = Some(1);
    let plugins = stand.load(&spec).unwrap();
    let (small, large) = (Bytes::from_static(b"x"), Bytes::from(vec![b'x'; LARGE]));
    for _ in 0..20 {
        let refused = prepare(&mut begin(&plugins, &spec), &large);
        assert_eq!(refused, Err(Refusal::BodyTooLarge));
    }
    assert_eq!(failures(&plugins, "memory"), 0);
    assert_eq!(failures(&plugins, "unavailable"), 20);
    assert_eq!(plugins.state()[0].breaker, BreakerState::Closed);
    assert!(prepare(&mut begin(&plugins, &spec), &small).is_ok());
}

#[test]
fn an_input_that_is_slow_by_its_size_is_too_large_and_a_small_one_is_a_failure() {
    let stand = TestHost::new();
    let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD).prepare(LOOP));
    spec.limits.deadline_ms = Some(1);
    let plugins = stand.load(&spec).unwrap();
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    for _ in 0..6 {
        let refused = prepare(&mut begin(&plugins, &spec), &large);
        assert_eq!(refused, Err(Refusal::BodyTooLarge));
    }
    assert_eq!(failures(&plugins, "deadline"), 0);
    assert_eq!(failures(&plugins, "unavailable"), 6);
    assert_eq!(plugins.state()[0].breaker, BreakerState::Closed);
    let refused = prepare(&mut begin(&plugins, &spec), &Bytes::from_static(b"x"));
    assert_eq!(refused, Err(Refusal::PluginFailed));
    assert_eq!(failures(&plugins, "deadline"), 1);
}

#[test]
fn an_answer_too_large_for_a_guest_is_a_failure_of_the_request_and_not_of_the_plugin() {
    let stand = TestHost::new();
    let (small, large) = (Bytes::from_static(b"x"), Bytes::from(vec![b'x'; LARGE]));
    for (policy, expected) in [
        ("closed", Err(Refusal::PluginFailed)),
        ("passthrough", Ok(large.clone())),
    ] {
        let mut spec = stand.spec("t", WORLD, &Wat::of(WORLD));
        spec.limits.memory_mib = Some(1);
        spec.on_failure = serde_json::from_value(json!(policy)).unwrap();
        let plugins = stand.load(&spec).unwrap();
        for _ in 0..20 {
            let mut session = begin(&plugins, &spec);
            prepare(&mut session, &small).unwrap();
            assert_eq!(session.finish(200, "text/plain", large.clone()), expected);
        }
        assert_eq!(plugins.state()[0].breaker, BreakerState::Closed);
    }
}

#[test]
fn bodies_too_large_for_an_estimator_are_estimated_by_what_is_built_in() {
    let stand = TestHost::new();
    let world = World::BillingEstimator;
    let mut spec = stand.spec("e", world, &Wat::of(world));
    spec.limits.memory_mib = Some(1);
    let plugins = stand.load(&spec).unwrap();
    let slot = plugins.billing(&user_of(&spec));
    let large = vec![b'x'; LARGE];
    let native = PluginSnapshot::default().billing(&user_of(&spec));
    for _ in 0..20 {
        let estimated = calling("acme", |caller| slot.estimate(caller, &large, b"y"));
        let built_in = calling("acme", |caller| native.estimate(caller, &large, b"y"));
        assert_eq!(estimated, built_in);
    }
    assert_eq!(plugins.state()[0].breaker, BreakerState::Closed);
    assert_eq!(failures(&plugins, "unavailable"), 20);
}

#[test]
fn metrics_that_a_formula_can_make_nothing_of_do_not_take_it_from_its_models() {
    let stand = TestHost::new();
    let world = World::BillingFormula;
    // billing-error::broken with no text.
    let broken =
        "(i32.store8 (i32.const 1024) (i32.const 1)) (i32.store8 (i32.const 1032) (i32.const 2))
        (i64.store (i32.const 1036) (i64.const 0)) (i32.const 1024)";
    let spec = stand.spec("f", world, &Wat::of(world).price(broken));
    let plugins = stand.load(&spec).unwrap();
    for _ in 0..20 {
        let priced = price(&plugins, &user_of(&spec), "acme");
        assert!(priced.fell_back);
        assert_eq!(priced.charge.total, BUILTIN_PRICE);
    }
    assert_eq!(failures(&plugins, "broken"), 20);
    assert_eq!(plugins.state()[0].breaker, BreakerState::Closed);
}

#[test]
fn tasks_have_more_memory_than_others_unless_told_otherwise() {
    let stand = TestHost::new();
    for world in World::ALL {
        let bounds = stand.spec("p", world, &Wat::of(world)).bounds();
        let mib = if world.role() == "task" { 64 } else { 16 };
        assert_eq!(bounds.memory_bytes, mib << 20, "{}", world.name());
    }
}
