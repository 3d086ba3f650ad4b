//! Discovered endpoints by model, and their way through a reload.
//!
//! Sources are read elsewhere. A set stays until another look of the model finds another one; what
//! comes from a source that the configuration does not name any more is ignored.

use std::collections::HashMap;
use std::sync::Arc;

use infergate_core::model::{DiscoveredEndpoint, DiscoverySpec, ModelSpec};
use infergate_core::{Millis, ModelId};

use crate::app::discover::DiscoveryReport;
use crate::state::ConfigSnapshot;
use crate::telemetry::metrics::EndpointChange;

/// A set without half of its endpoints or more is believed after this time: a source that restarts is empty
/// for a moment. Servers that are really gone fail their health checks.
const LOSS_HOLDS_FOR: Millis = Millis::from_secs(10);

/// Endpoints found last for each model.
#[derive(Default)]
pub struct DiscoveryState {
    by_model: HashMap<ModelId, Vec<DiscoveredEndpoint>>,
    /// Time since which a model's source has lacked half of its endpoints.
    losses: HashMap<ModelId, Millis>,
}

impl DiscoveryState {
    /// Applies a report; returns true when anything changed.
    pub fn update(&mut self, report: DiscoveryReport, models: &[ModelSpec], now: Millis) -> bool {
        let spec = models.iter().find(|spec| spec.id == report.model);
        let named = spec.and_then(|spec| spec.discovery.as_ref()?.source());
        if named.as_ref() != Some(&report.source) {
            return false;
        }
        let endpoints = report.found.endpoints;
        let known = self.by_model.get(&report.model);
        let same = match known {
            Some(known) => *known == endpoints,
            None => endpoints.is_empty(),
        };
        let known = known.map_or(0, Vec::len);
        if endpoints.len() * 2 <= known && known > 0 {
            let since = *self.losses.entry(report.model.clone()).or_insert(now);
            if now.since(since) < LOSS_HOLDS_FOR {
                return false;
            }
        }
        self.losses.remove(&report.model);
        if !same {
            self.by_model.insert(report.model, endpoints);
        }
        !same
    }

    /// The models of a configuration with what was found for them; the others' are forgotten. A model
    /// with a new source keeps what it has until that source responds.
    pub fn merge_into(&mut self, models: &[Arc<ModelSpec>]) -> Vec<Arc<ModelSpec>> {
        let looked_for = |id: &ModelId| {
            let mut models = models.iter();
            models.any(|spec| spec.id == *id && spec.discovery.is_some())
        };
        self.by_model.retain(|id, _| looked_for(id));
        self.losses.retain(|id, _| looked_for(id));
        let join = |spec: &Arc<ModelSpec>| match self.by_model.get(&spec.id) {
            Some(found) => Arc::new(spec.with_discovered(found)),
            None if spec.process.is_some() => Arc::new(spec.with_slots()),
            None => Arc::clone(spec),
        };
        models.iter().map(join).collect()
    }
}

/// Logs which endpoints appeared and which disappeared between two snapshots. An endpoint that only
/// changed between being configured and being found did neither.
pub fn log_changes(before: &ConfigSnapshot, after: &ConfigSnapshot) {
    for model in after.models.iter() {
        let spec = &*model.spec;
        let mut former = before.models.iter().map(|model| &*model.spec);
        let former = former.find(|former| former.id == spec.id);
        model
            .metrics
            .set_endpoints_discovered(spec.discovered().len());
        for url in new_urls(spec, former) {
            let (id, source) = (spec.id.as_str(), source(spec));
            tracing::info!(model = id, url = &**url, source, "endpoint appeared");
            model
                .metrics
                .record_endpoint_change(EndpointChange::Appeared);
        }
        let Some(former) = former else { continue };
        for url in new_urls(former, Some(spec)) {
            let (id, source) = (spec.id.as_str(), source(former));
            tracing::info!(model = id, url = &**url, source, "endpoint disappeared");
            model
                .metrics
                .record_endpoint_change(EndpointChange::Disappeared);
        }
    }
}

/// Endpoints found for `spec` that are not endpoints of `other`.
fn new_urls<'a>(
    spec: &'a ModelSpec,
    other: Option<&'a ModelSpec>,
) -> impl Iterator<Item = &'a Arc<str>> {
    let known = move |url: &&Arc<str>| {
        let mut endpoints = other.into_iter().flat_map(|other| &other.endpoints);
        endpoints.any(|known| known.url == **url)
    };
    spec.discovered().iter().filter(move |url| !known(url))
}

fn source(spec: &ModelSpec) -> &'static str {
    let source = spec.discovery.as_ref().and_then(DiscoverySpec::source);
    source.map_or("config", |source| source.name())
}

#[cfg(test)]
mod tests {
    use infergate_core::model::{DiscoveredEndpoints, DiscoverySource};

    use super::*;

    fn model(discovery: &str) -> ModelSpec {
        let text =
            format!(r#"{{"id":"m","task":"text-generation","backend":"openai"{discovery}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn report(name: &str, urls: &[&str]) -> DiscoveryReport {
        DiscoveryReport {
            model: "m".into(),
            source: DiscoverySource::Dns(name.into()),
            found: DiscoveredEndpoints::new(
                urls.iter()
                    .map(|url| DiscoveredEndpoint::at(*url))
                    .collect(),
            ),
        }
    }

    fn urls(spec: &ModelSpec) -> Vec<&str> {
        spec.endpoints.iter().map(|known| &*known.url).collect()
    }

    const HERE: &str = r#","discovery":{"dns":"here:1"}"#;

    #[test]
    fn equal_sets_change_nothing_and_an_empty_one_empties() {
        let models = [model(HERE)];
        let mut found = DiscoveryState::default();
        assert!(!found.update(report("here:1", &[]), &models, Millis(0)));
        assert!(found.update(
            report("here:1", &["http://a:1", "http://b:1"]),
            &models,
            Millis(0)
        ));
        assert!(!found.update(
            report("here:1", &["http://b:1", "http://a:1"]),
            &models,
            Millis(0)
        ));
        let [joined] = &found.merge_into(&models.map(Arc::new))[..] else {
            panic!("one model")
        };
        assert_eq!(urls(joined), ["http://a:1", "http://b:1"]);
        assert!(!found.update(report("here:1", &[]), &[model(HERE)], Millis(0)));
        assert!(found.update(report("here:1", &[]), &[model(HERE)], LOSS_HOLDS_FOR));
        assert!(urls(&found.merge_into(&[Arc::new(model(HERE))])[0]).is_empty());
    }

    #[test]
    fn a_source_that_blinks_takes_no_endpoint_away() {
        let models = [model(HERE)];
        let all = ["http://a:1", "http://b:1", "http://c:1", "http://d:1"];
        let mut found = DiscoveryState::default();
        let mut take = |urls: &[&str], secs| {
            let now = Millis::from_secs(secs);
            found.update(report("here:1", urls), &models, now)
        };
        assert!(take(&all, 0));
        assert!(!take(&[], 1));
        assert!(!take(&all[..2], 5));
        assert!(!take(&all, 9), "it is as it was");
        // Counted anew, and believed in the end.
        assert!(!take(&all[..1], 10));
        assert!(!take(&all[..1], 19));
        assert!(take(&all[..1], 20));
        // One of many is gone at once.
        assert!(take(&all, 21));
        assert!(take(&all[..3], 22));
    }

    #[test]
    fn a_place_that_is_not_named_any_more_counts_for_nothing_and_the_new_one_replaces_it() {
        let mut found = DiscoveryState::default();
        assert!(found.update(report("here:1", &["http://a:1"]), &[model(HERE)], Millis(0)));
        let there = || model(r#","discovery":{"dns":"there:1"}"#);
        assert!(!found.update(report("here:1", &["http://b:1"]), &[there()], Millis(0)));
        assert_eq!(
            urls(&found.merge_into(&[Arc::new(there())])[0]),
            ["http://a:1"]
        );
        assert!(found.update(report("there:1", &["http://c:1"]), &[there()], Millis(0)));
        assert_eq!(
            urls(&found.merge_into(&[Arc::new(there())])[0]),
            ["http://c:1"]
        );
        // Without discovery nothing is kept for later.
        assert!(urls(&found.merge_into(&[Arc::new(model(""))])[0]).is_empty());
        assert!(urls(&found.merge_into(&[Arc::new(there())])[0]).is_empty());
    }
}
