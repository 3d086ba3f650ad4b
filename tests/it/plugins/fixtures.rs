//! The shipped guests as `scripts/plugins` builds them, and models that use them.

use std::path::Path;
use std::sync::Arc;

use infergate::parts::{Host, HostSettings, PluginSnapshot, PluginSpec};
use infergate_core::model::ModelSpec;
use serde_json::{Value, json};

/// The spec of a shipped plugin, under another name than the built-in one that it equals.
pub fn shipped(file: &str, world: &str) -> PluginSpec {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("plugins/dist")
        .join(format!("{file}.wasm"));
    assert!(
        path.exists(),
        "{}: scripts/plugins builds it",
        path.display()
    );
    let name = format!("wasm-{file}");
    // Not about time: on a busy virtual machine one call in 100,000 is charged with milliseconds that
    // others used.
    let mut limits = json!({ "deadline_ms": 500 });
    if world == "billing-formula" {
        // Random tariffs and metrics come to more than a request may cost.
        limits["charge_max"] = json!(u64::MAX);
    }
    serde_json::from_value(
        json!({ "name": name, "world": world, "file": path, "dev": true, "limits": limits }),
    )
    .unwrap()
}

/// A model from JSON, over the least that it needs.
pub fn model(over: Value) -> Arc<ModelSpec> {
    let mut least = json!({ "id": "m", "task": "text-generation", "backend": "http" });
    for (key, value) in over.as_object().unwrap() {
        least[key] = value.clone();
    }
    serde_json::from_value(least).unwrap()
}

/// A host that keeps no compiled code, with these plugins loaded for these models.
pub fn loaded(specs: &[PluginSpec], models: &[Arc<ModelSpec>]) -> (Arc<Host>, PluginSnapshot) {
    let host = Host::start(HostSettings::default()).unwrap();
    let plugins = host.load(&PluginSnapshot::default(), specs, models);
    let plugins = plugins.unwrap_or_else(|problems| panic!("{problems:#?}"));
    (host, plugins)
}
