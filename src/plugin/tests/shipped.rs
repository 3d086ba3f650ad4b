//! The shipped guests as they were built, each loaded with its own fixtures as admission.
//!
//! `scripts/plugins` builds them, and `scripts/test` calls that before; without them there is nothing
//! to look at, and the test says so.

use std::path::{Path, PathBuf};

use infergate_core::billing::{BillingOutcome, Metric, MetricSource, UsageReport};
use infergate_core::model::{ModelSpec, Tariff, Trust};
use serde_json::json;

use super::stand::{TestHost, calling, model, spec, user_of};
use crate::plugin::{PluginSnapshot, PluginSpec, World};

/// Components that were built, by name.
fn built() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/plugins/dist");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = files
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm"))
        .collect();
    files.sort();
    if files.is_empty() {
        println!("nothing to test: run scripts/plugins first");
    }
    files
}

fn name(file: &Path) -> &str {
    file.file_stem().and_then(|stem| stem.to_str()).unwrap()
}

fn spec_of(file: &Path) -> PluginSpec {
    let world = match name(file) {
        "neurons" | "tiered" | "js-neurons" => World::BillingFormula,
        "estimator" => World::BillingEstimator,
        "latency" | "random" | "forced-site" | "resource-flow" | "affinity" => World::RoutingPolicy,
        "text-generation" | "image-text-to-text" | "image-to-text" => World::TaskSchemaStreaming,
        _ => World::TaskSchema,
    };
    let memory = if name(file).starts_with("js-") {
        64
    } else {
        16
    };
    let settings = match name(file) {
        "tiered" => json!({ "factors": { "1080p": 2.25 } }),
        _ => json!({}),
    };
    spec(json!({
        "name": format!("my-{}", name(file)), "world": world.name(), "file": file, "dev": true,
        "settings": settings, "limits": { "memory_mib": memory },
    }))
}

#[test]
fn every_shipped_plugin_loads_without_grants_and_holds_its_fixtures() {
    let stand = TestHost::new();
    for file in built() {
        let fixtures = std::fs::read_dir(file.with_extension("tests")).unwrap();
        assert!(fixtures.count() >= 3, "{}", file.display());
        let spec = spec_of(&file);
        let loaded = stand.load(&spec).unwrap_or_else(|problems| {
            let messages: Vec<String> = problems.iter().map(|p| p.message.clone()).collect();
            panic!("{}: {}", file.display(), messages.join("\n"))
        });
        assert_eq!(loaded.state().len(), 1);
    }
}

#[test]
fn the_shipped_formula_in_rust_and_in_javascript_price_as_the_built_in_one() {
    let stand = TestHost::new();
    let tariff: Tariff = serde_json::from_value(json!({
        "cost_per_infer": 0.0, "coefficients": { "input_tokens": 0.02561, "output_tokens": 0.07515 },
    }))
    .unwrap();
    let metric = |name: &str, value| Metric {
        name: name.into(),
        value,
        source: MetricSource::Reported,
    };
    let metrics = [metric("output_tokens", 512.0), metric("input_tokens", 23.0)];
    let report = UsageReport {
        model: "m",
        trust: Trust::Trust,
        ending: BillingOutcome::Completed,
        streamed: false,
        metrics: &metrics,
        queue_ms: 0,
        infer_ms: 1,
    };
    let price = |plugins: &PluginSnapshot, model: &ModelSpec| {
        calling("acme", |caller| {
            plugins.billing(model).price(caller, &tariff, &report)
        })
    };
    let native = price(&PluginSnapshot::default(), &model(json!({})));
    assert!((native.charge.total - 39.065_83).abs() < 1e-9, "{native:?}");
    let formulas = built()
        .into_iter()
        .filter(|file| name(file).ends_with("neurons"));
    for spec in formulas.map(|file| spec_of(&file)) {
        let priced = price(&stand.load(&spec).unwrap(), &user_of(&spec));
        assert_eq!(priced.charge, native.charge);
        assert!(!priced.fell_back && priced.uses.len() == 1, "{priced:?}");
    }
}
