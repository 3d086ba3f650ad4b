//! Author tools: reports, and fixtures as they are run and checked.

use serde_json::json;

use crate::cli::tooling::host::{
    ArgGenerator, ComponentInfo, CostMeasure, FixtureRun, FixtureVerdict, OpenedComponent,
    PluginFixture, ToolHost, is_same,
};
use crate::plugin::World;
use crate::plugin::tests::guests::Wat;

fn fixture(json: serde_json::Value) -> PluginFixture {
    PluginFixture::parse("f", json.to_string().as_bytes()).unwrap()
}

fn usage() -> serde_json::Value {
    json!({ "model": "m", "trust": "trust", "outcome": "completed", "streamed": false,
            "metrics": [{ "name": "output_tokens", "value": 7, "source": "model-reported" }],
            "queue-ms": 0, "infer-ms": 0 })
}

fn price(expect: serde_json::Value) -> PluginFixture {
    let tariff = json!({ "cost-per-infer": 0.5, "coefficients": [{ "metric": "output_tokens", "neurons": 2 }], "criteria": [["resolution", "1080p"]] });
    fixture(
        json!({ "hook": "price", "args": { "tariff": tariff, "usage": usage() }, "expect": expect }),
    )
}

fn opened(world: World, wat: &Wat) -> (ComponentInfo, OpenedComponent) {
    let info = ComponentInfo::of(wat.bytes()).unwrap();
    let tools = ToolHost::start(CostMeasure::Fuel, None).unwrap();
    let opened = tools.open(&info, world, Default::default()).unwrap();
    (info, opened)
}

fn run(opened: &OpenedComponent, fixture: &PluginFixture) -> FixtureRun {
    opened
        .with_settings(&fixture.settings, &fixture.tables)
        .run(fixture)
}

#[test]
fn a_fixture_is_run_fresh_and_used_with_fuel_and_judged() {
    let world = World::BillingFormula;
    let (_, plugin) = opened(world, &Wat::of(world));
    let right = price(json!({ "total": 1, "base": 1.0, "lines": [] }));
    let first = run(&plugin, &right);
    assert_eq!(right.verdict(&first), FixtureVerdict::Good);
    assert!(first.fuel.unwrap() > 0 && first.memory_bytes == 65_536);
    assert!(first.bytes_copied > 100, "{}", first.bytes_copied);
    let again = run(&plugin, &right).fuel;
    assert_eq!(first.fuel, again, "fuel is the same each time");
    let trial = plugin.with_settings(&right.settings, &right.tables);
    let mut used = trial.instance().unwrap();
    assert!(is_same(&used.call(&right), &used.call(&right)));

    let wrong = price(json!({ "total": 2, "base": 3 }));
    let FixtureVerdict::Differs(differences) = wrong.verdict(&first) else {
        panic!("{:?}", wrong.verdict(&first));
    };
    let message: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert_eq!(
        message,
        ["/total: expected 2, got 1.0", "/base: expected 3, got 1.0"]
    );
    let greedy = PluginFixture {
        max_fuel: Some(1),
        ..right
    };
    assert!(matches!(
        greedy.verdict(&first),
        FixtureVerdict::OverFuel { max: 1, .. }
    ));
}

#[test]
fn a_failure_is_judged_by_its_class_and_rule() {
    let world = World::BillingFormula;
    let nan = "(call $clear) (f64.store (i32.const 1032) (f64.const nan)) (i32.const 1024)";
    for (body, class, rule) in [
        (nan, "invalid", Some("total-range")),
        ("unreachable", "trapped", None),
        ("(loop $on (br $on)) unreachable", "deadline", None),
    ] {
        let (_, plugin) = opened(world, &Wat::of(world).price(body));
        let mut expected = json!({ "class": class });
        if let Some(rule) = rule {
            expected["rule"] = rule.into();
        }
        let mut case = price(json!(null));
        case.expect = None;
        case.expect_error = expected.as_object().cloned();
        let ran = run(&plugin, &case);
        assert_eq!(case.verdict(&ran), FixtureVerdict::Good, "{ran:?}");
        let traced = ran.backtrace.contains("price");
        assert_eq!(traced, class != "invalid", "{ran:?}");
    }
}

#[test]
fn a_guest_that_remembers_is_found_by_using_it_again() {
    let world = World::BillingFormula;
    let counts = "(call $clear) (global.set $secret (i64.add (global.get $secret) (i64.const 1)))
        (f64.store (i32.const 1032) (f64.convert_i64_u (global.get $secret)))
        (f64.store (i32.const 1040) (f64.convert_i64_u (global.get $secret))) (i32.const 1024)";
    let (_, plugin) = opened(world, &Wat::of(world).price(counts));
    let case = price(json!({ "total": 1 }));
    let fresh = run(&plugin, &case);
    let trial = plugin.with_settings(&case.settings, &case.tables);
    let mut used = trial.instance().unwrap();
    used.call(&case);
    assert!(!is_same(&fresh, &used.call(&case)));
}

#[test]
fn outside_hooks_and_arguments_by_chance_come_from_the_component() {
    let world = World::TaskSchemaStreaming;
    let (info, plugin) = opened(world, &Wat::of(world));
    assert_eq!(info.worlds(), [world]);
    assert!(info.imports.is_empty() && info.required_grants().is_empty());
    assert_eq!(info.memories.len(), 1);
    let hooks = ["describe", "prepare", "finish", "push", "close"];
    assert_eq!(plugin.hooks(), hooks);
    let mut generator = ArgGenerator::new(7, Vec::new());
    for hook in &hooks[1..] {
        let mut args = plugin.arguments(hook, &mut generator);
        for _ in 0..50 {
            let case = fixture(json!({ "hook": hook, "args": args }));
            let message = format!("{:?}", run(&plugin, &case).answer);
            assert!(!message.contains("fixture is wrong"), "{args:?}: {message}");
            args = match generator.one_in(3) {
                true => plugin.arguments(hook, &mut generator),
                false => plugin.changed(hook, &args, &mut generator),
            };
        }
    }
}

#[test]
fn a_fixture_that_is_wrong_says_where() {
    for (text, message) in [
        (r#"{"hook":"fly"}"#, "`hook` must be one of"),
        (
            r#"{"hook":"price","expect":1,"expect-error":{}}"#,
            "not both",
        ),
        (r#"{"hook":"price","expected":1}"#, "unknown field"),
    ] {
        assert!(
            PluginFixture::parse("f", text.as_bytes())
                .unwrap_err()
                .contains(message),
            "{text}"
        );
    }
    let world = World::BillingFormula;
    let (_, plugin) = opened(world, &Wat::of(world));
    let mut usage = usage();
    usage["trust"] = "maybe".into();
    let case = fixture(
        json!({ "hook": "price", "args": { "usage": usage, "tariff": { "cost-per-infer": 1, "coefficients": [], "criteria": [] } } }),
    );
    let ran = run(&plugin, &case);
    let mut expects = case.clone();
    expects.expect_error = json!({ "class": "broken" }).as_object().cloned();
    assert_eq!(
        expects.verdict(&ran),
        FixtureVerdict::Otherwise,
        "a slip is never expected"
    );
    let message = ran.answer.unwrap_err().to_string();
    assert!(
        message.contains("args.usage.trust: expected one of trust, estimate, compare"),
        "{message}"
    );
}
