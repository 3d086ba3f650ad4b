//! Compiling that takes longer than a load waits: what stays, what comes, and when.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;

use super::guests::{ONE, Wat};
use super::stand::{TestHost, model, price};
use crate::plugin::{CompileWait, Host, HostSettings, PluginSnapshot, PluginSpec, World};

const NOT_AT_ALL: CompileWait = CompileWait::AtMost(Duration::ZERO);

fn charging(neurons: u32) -> Wat {
    Wat::of(World::BillingFormula)
        .price(&ONE.replace("(f64.const 1)", &format!("(f64.const {neurons})")))
}

fn stand() -> (TestHost, Arc<Notify>) {
    let stand = TestHost::new();
    let compiled = Arc::new(Notify::new());
    let settings = HostSettings {
        slots: 16,
        compiled: Arc::clone(&compiled),
        ..HostSettings::default()
    };
    let host = Host::start(settings).unwrap();
    (TestHost { host, ..stand }, compiled)
}

fn spec(stand: &TestHost, neurons: u32) -> PluginSpec {
    let mut spec = stand.spec(
        &format!("p{neurons}"),
        World::BillingFormula,
        &charging(neurons),
    );
    spec.name = "p".into();
    spec
}

#[tokio::test]
async fn a_model_whose_plugin_is_compiled_keeps_its_former_one_until_it_is_ready() {
    let (stand, compiled) = stand();
    let models = [
        model(json!({ "id": "m", "plugins": { "billing": "p" } })),
        model(json!({ "id": "n" })),
    ];
    let (one, two) = (spec(&stand, 1), spec(&stand, 2));
    let former = stand
        .host
        .load(&PluginSnapshot::default(), &[one], &models)
        .unwrap();
    assert_eq!(price(&former, &models[0], "a").charge.total, 1.0);
    let specs = [two];
    let load =
        |former: &PluginSnapshot| stand.host.load_within(former, &specs, &models, NOT_AT_ALL);

    let meanwhile = load(&former).unwrap();
    let names: Vec<_> = meanwhile.compiling().iter().map(|name| &**name).collect();
    assert_eq!(names, ["p"]);
    assert!(meanwhile.is_held(&models[0].id) && !meanwhile.is_held(&models[1].id));
    assert_eq!(price(&meanwhile, &models[0], "a").charge.total, 1.0);
    assert_eq!(meanwhile.state()[0].role, "active");
    assert!(meanwhile.changed_since(&former).is_empty());

    let mut next = meanwhile;
    while !next.compiling().is_empty() {
        compiled.notified().await;
        next = load(&next).unwrap();
    }
    assert_eq!(price(&next, &models[0], "a").charge.total, 2.0);
    assert!(!next.is_held(&models[0].id) && stand.host.compiling().is_empty());
}

#[tokio::test]
async fn a_new_model_waits_for_its_plugin_and_a_plugin_that_goes_is_not_compiled_on() {
    let (stand, compiled) = stand();
    let models = [model(json!({ "id": "m", "plugins": { "billing": "p" } }))];
    let specs = [spec(&stand, 3)];
    let none = PluginSnapshot::default();
    let waiting = stand
        .host
        .load_within(&none, &specs, &models, NOT_AT_ALL)
        .unwrap();
    assert!(waiting.is_held(&models[0].id) && waiting.state().is_empty());
    let without = stand
        .host
        .load_within(&waiting, &[], &[], NOT_AT_ALL)
        .unwrap();
    assert!(without.compiling().is_empty() && stand.host.compiling().is_empty());
    // Asked for again it begins anew.
    let mut again = stand
        .host
        .load_within(&without, &specs, &models, NOT_AT_ALL)
        .unwrap();
    while !again.compiling().is_empty() {
        compiled.notified().await;
        again = stand
            .host
            .load_within(&again, &specs, &models, NOT_AT_ALL)
            .unwrap();
    }
    assert_eq!(price(&again, &models[0], "a").charge.total, 3.0);
}
