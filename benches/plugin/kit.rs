//! Models, plugins and callers for the benches, and CPU time of a closure.
//!
//! No output and no verdicts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use infergate::parts::thread_micros;
use infergate::parts::{Caller, Host, HostSettings, PluginSnapshot, PluginSpec};
use infergate_core::AccountId;
use infergate_core::model::ModelSpec;
use serde_json::{Value, json};

/// Batches of a figure; the middle one is told.
const BATCHES: usize = 9;

/// Microseconds of CPU that one `call` takes: the median of nine batches.
pub fn cpu_us(calls: u32, mut call: impl FnMut()) -> f64 {
    call();
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let began = thread_micros();
            for _ in 0..calls {
                call();
            }
            (thread_micros() - began) as f64 / f64::from(calls)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

/// The component of a shipped plugin.
pub fn shipped(file: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("plugins/dist")
        .join(format!("{file}.wasm"));
    assert!(
        path.exists(),
        "{}: scripts/plugins builds it",
        path.display()
    );
    path
}

/// A plugin called `p`.
pub fn spec(file: &Path, world: &str, instance: &str) -> PluginSpec {
    let spec =
        json!({ "name": "p", "world": world, "file": file, "dev": true, "instance": instance });
    serde_json::from_value(spec).unwrap()
}

/// A model that uses `p` as its `role`.
pub fn user(role: &str, task: &str) -> Arc<ModelSpec> {
    let model: Value =
        json!({ "id": "m", "task": task, "backend": "http", "plugins": { role: "p" } });
    serde_json::from_value(model).unwrap()
}

/// A host, and the plugin loaded for the model.
pub fn loaded(spec: &PluginSpec, model: &Arc<ModelSpec>) -> (Arc<Host>, PluginSnapshot) {
    let host = Host::start(HostSettings::default()).unwrap();
    let plugins = host.load(
        &PluginSnapshot::default(),
        std::slice::from_ref(spec),
        std::slice::from_ref(model),
    );
    (
        host,
        plugins.unwrap_or_else(|problems| panic!("{problems:#?}")),
    )
}

/// Does something on behalf of an account.
pub fn calling<T>(account: &AccountId, body: impl FnOnce(Caller<'_>) -> T) -> T {
    body(Caller {
        account,
        request_id: "r1",
    })
}
