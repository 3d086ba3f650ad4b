//! A host in a folder, models, callers and calls, for the tests of this module.

use std::sync::Arc;

use infergate_core::AccountId;
use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{ModelSpec, Tariff, Trust};
use infergate_core::routing::{Candidate, Health, Hints};
use serde_json::json;
use tempfile::TempDir;

use super::guests::Wat;
use crate::plugin::runtime::call::Caller;
use crate::plugin::{
    Host, HostSettings, PluginProblem, PluginSnapshot, PluginSpec, PolicyRanking, PriceResult,
    World,
};
use crate::telemetry::PluginMetricsRegistry;

/// A host with a folder for its plugins.
pub struct TestHost {
    pub host: Arc<Host>,
    pub folder: TempDir,
}

impl TestHost {
    pub fn new() -> TestHost {
        TestHost::with_metrics().0
    }

    /// The same with the metrics that its host writes.
    pub fn with_metrics() -> (TestHost, Arc<PluginMetricsRegistry>) {
        let folder = TempDir::new().unwrap();
        let metrics = Arc::<PluginMetricsRegistry>::default();
        let settings = HostSettings {
            cache_dir: None,
            slots: 16,
            metrics: Arc::clone(&metrics),
            ..HostSettings::default()
        };
        let host = Host::start(settings).unwrap();
        (TestHost { host, folder }, metrics)
    }

    /// The spec of a plugin called `name` with these bytes.
    pub fn spec(&self, name: &str, world: World, wat: &Wat) -> PluginSpec {
        let file = wat.file(self.folder.path(), name);
        spec(json!({ "name": name, "world": world.name(), "file": file, "dev": true }))
    }

    /// Loads one plugin for one model, which uses it.
    pub fn load(&self, spec: &PluginSpec) -> Result<PluginSnapshot, Vec<PluginProblem>> {
        self.host.load(
            &PluginSnapshot::default(),
            std::slice::from_ref(spec),
            &[user_of(spec)],
        )
    }
}

/// A spec from JSON, as the configuration has it.
pub fn spec(json: serde_json::Value) -> PluginSpec {
    serde_json::from_value(json).unwrap()
}

/// A model from JSON, over the least that it needs.
pub fn model(over: serde_json::Value) -> Arc<ModelSpec> {
    let mut least = json!({ "id": "m", "task": "text-generation", "backend": "http" });
    for (key, value) in over.as_object().unwrap() {
        least[key] = value.clone();
    }
    serde_json::from_value(least).unwrap()
}

/// The model that uses a plugin.
pub fn user_of(spec: &PluginSpec) -> Arc<ModelSpec> {
    let role = spec.world.role();
    model(json!({ "plugins": { role: &*spec.name } }))
}

/// Runs `body` on behalf of an account.
pub fn calling<T>(account: &str, body: impl FnOnce(Caller<'_>) -> T) -> T {
    let account = AccountId::from(account);
    body(Caller {
        account: &account,
        request_id: "r1",
    })
}

/// Prices seven tokens for an account.
pub fn price(plugins: &PluginSnapshot, model: &ModelSpec, account: &str) -> PriceResult {
    let tariff = Tariff {
        cost_per_infer: 0.5,
        coefficients: [(Arc::from("output_tokens"), 2.0)].into(),
        ..Tariff::default()
    };
    let metrics = [Metric {
        name: "output_tokens".into(),
        value: 7.0,
        source: MetricSource::Reported,
    }];
    let report = UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics: &metrics,
        queue_ms: 1,
        infer_ms: 2,
    };
    calling(account, |caller| {
        plugins.billing(model).price(caller, &tariff, &report)
    })
}

/// Price of [`price`] by the built-in formula.
pub const BUILTIN_PRICE: f64 = 14.5;

/// `count` healthy candidates, all alike.
pub fn candidates(count: u32) -> Vec<Candidate> {
    let one = |id| Candidate {
        id,
        site: 0,
        node: None,
        health: Health::Healthy,
        permits_free: 1,
        permits_total: 1,
        queue_len: 0,
        rtt_us: 0,
        ttft_us: 0,
        latency_us: 0,
        error_ppm: 0,
        lora_affinity: 0,
        prefix_affinity: 0,
        tier: 0,
        ooc: 0,
    };
    (0..count).map(one).collect()
}

/// Ranks `count` candidates for an account.
pub fn rank(plugins: &PluginSnapshot, model: &ModelSpec, count: u32) -> PolicyRanking {
    let slot = plugins.routing(model);
    calling("acme", |caller| {
        slot.rank(Some(caller), &Hints::default(), &candidates(count))
    })
}

/// Number of the plugin's failures with this class so far, its last-good ones included.
pub fn failures(plugins: &PluginSnapshot, class: &str) -> u64 {
    plugins
        .state()
        .iter()
        .map(|state| state.failures[class])
        .sum()
}
