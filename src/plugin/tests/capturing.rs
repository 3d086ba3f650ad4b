//! Captured calls: off until asked for, complete, and fixtures that call again what was called.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Millis;
use infergate_core::task::StreamEvent;
use serde_json::{Value, json};

use super::guests::Wat;
use super::stand::{TestHost, calling, price, rank, user_of};
use crate::plugin::loading::fixtures::fixture::PluginFixture;
use crate::plugin::loading::fixtures::run::{FixtureInstance, with_fixture_settings};
use crate::plugin::loading::setup::SETUP_DEADLINE_MS;
use crate::plugin::runtime::revision::Revision;
use crate::plugin::{PluginSnapshot, PluginSpec, TaskInput, World};

fn active(plugins: &PluginSnapshot) -> &Arc<Revision> {
    &plugins.inner.active[0]
}

/// The lines that `act` leaves behind while up to `calls` calls are captured.
fn captured(plugins: &PluginSnapshot, calls: u32, act: impl FnOnce()) -> Vec<Value> {
    let captures = &active(plugins).context().captures;
    let capture = captures.start("p", calls, Millis(1)).unwrap();
    act();
    let lines = capture.fetch(Millis(2)).lines;
    capture.abort();
    let lines = std::str::from_utf8(&lines).unwrap().lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Calls it again on a guest of its own.
fn again(plugins: &PluginSnapshot, line: &Value) -> Result<Value, String> {
    let fixture = PluginFixture::parse("captured", line.to_string().as_bytes()).unwrap();
    let revision = with_fixture_settings(active(plugins), &fixture);
    let mut subject = FixtureInstance::make(&revision, SETUP_DEADLINE_MS)
        .ok()
        .unwrap();
    let ran = subject.call(&fixture);
    if let Some(difference) = fixture.difference(&ran) {
        return Err(difference);
    }
    ran.answer.map_err(|failure| failure.to_string())
}

fn hooks(lines: &[Value]) -> Vec<&str> {
    lines
        .iter()
        .map(|line| line["hook"].as_str().unwrap())
        .collect()
}

fn loaded(world: World, wat: &Wat) -> (TestHost, PluginSpec, PluginSnapshot) {
    let stand = TestHost::new();
    let mut spec = stand.spec("p", world, wat);
    spec.settings.insert("step".into(), json!(2));
    let plugins = stand.load(&spec).unwrap();
    (stand, spec, plugins)
}

#[test]
fn a_price_is_captured_with_its_account_and_priced_again() {
    let world = World::BillingFormula;
    let (_stand, spec, plugins) = loaded(world, &Wat::of(world));
    let model = user_of(&spec);
    price(&plugins, &model, "before");
    let lines = captured(&plugins, 2, || {
        for account in ["acme", "other", "third"] {
            price(&plugins, &model, account);
        }
    });
    assert_eq!(hooks(&lines), ["price", "price"]);
    let about = &lines[0]["captured"];
    assert_eq!(
        (&about["account"], &about["request_id"], &about["plugin"]),
        (&json!("acme"), &json!("r1"), &json!("p"))
    );
    assert_eq!(about["sha256"], plugins.state()[0].sha256.as_ref());
    assert_eq!(lines[0]["settings"], json!({ "step": 2 }));
    let args = &lines[0]["args"];
    assert_eq!(args["usage"]["metrics"][0]["value"], 7.0);
    assert_eq!(args["tariff"]["cost-per-infer"], 0.5);
    for line in &lines {
        assert_eq!(again(&plugins, line).unwrap()["total"], 1.0);
    }
}

#[test]
fn a_failure_is_captured_as_one_and_fails_again() {
    let world = World::BillingFormula;
    let (_stand, spec, plugins) = loaded(world, &Wat::of(world).price("unreachable"));
    let lines = captured(&plugins, 1, || {
        assert!(price(&plugins, &user_of(&spec), "acme").fell_back);
    });
    assert_eq!(lines[0]["expect-error"]["class"], "trapped");
    let fails = again(&plugins, &lines[0]).unwrap_err();
    assert!(fails.contains("trapped"), "{fails}");
}

#[test]
fn every_hook_of_every_world_is_spelled_as_fixtures_are() {
    let world = World::TaskSchemaStreaming;
    // Keeps the one event it is given.
    let keep = "(call $clear) (i32.store (i32.const 1028) (i32.const 2000))
        (i32.store (i32.const 1032) (i32.const 1)) (i32.const 1024)";
    let (_stand, spec, plugins) = loaded(world, &Wat::of(world).push(keep));
    let lines = captured(&plugins, 10, || {
        let mut session = calling("acme", |caller| plugins.task(&user_of(&spec)).begin(caller));
        let input = TaskInput {
            model: "m",
            content_type: "application/json",
            body: &Bytes::from_static(br#"{"prompt":"x"}"#),
            is_read: false,
            is_checked: false,
            attributes: vec![("face".into(), "workers-ai".into())],
        };
        session.prepare(input).unwrap();
        let answer = Bytes::from_static(br#"{"response":"y"}"#);
        session.finish(200, "application/json", answer).unwrap();
        let event = StreamEvent {
            name: Some("delta".into()),
            data: vec![0xff, 0xfe],
        };
        session.push(vec![event]).unwrap();
        session.close(true).unwrap();
    });
    assert_eq!(hooks(&lines), ["prepare", "finish", "push", "close"]);
    let body = &lines[0]["args"]["request"]["body"]["whole"]["text"];
    assert_eq!(body, r#"{"prompt":"x"}"#);
    assert!(lines[2]["args"]["events"][0]["data"]["base64"].is_string());
    for line in &lines {
        let ended = again(&plugins, line);
        assert!(ended.is_ok(), "{line} {ended:?}");
    }

    let world = World::BillingEstimator;
    let (_stand, spec, plugins) = loaded(world, &Wat::of(world));
    let lines = captured(&plugins, 10, || {
        let slot = plugins.billing(&user_of(&spec));
        calling("acme", |caller| slot.estimate(caller, b"{}", b"words"));
    });
    assert_eq!(hooks(&lines), ["estimate"]);
    assert_eq!(again(&plugins, &lines[0]), Ok(json!([])));

    let world = World::RoutingPolicy;
    let (_stand, spec, plugins) = loaded(world, &Wat::of(world));
    let lines = captured(&plugins, 10, || {
        rank(&plugins, &user_of(&spec), 3);
    });
    assert_eq!(hooks(&lines), ["rank"]);
    assert_eq!(
        lines[0]["args"]["candidates"].as_array().map(Vec::len),
        Some(3)
    );
    assert_eq!(again(&plugins, &lines[0]), Ok(json!([])));
}
