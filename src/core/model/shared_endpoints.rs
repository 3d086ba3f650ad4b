//! Models that run elsewhere: weights on the servers of a base, and trainings on those of a trainer.
//!
//! Decided once, when a catalog is made. Requests see endpoints and parameters as if they were configured.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::base::WEIGHTS_PARAMETER;
use super::{ModelSpec, Payload};
use crate::ModelId;

/// Returns the models with the endpoints that they run on. A base and a trainer have one permit per endpoint: weights
/// are exchanged between two requests, and trainings run one at a time.
pub(super) fn resolve(models: Vec<Arc<ModelSpec>>) -> Vec<Arc<ModelSpec>> {
    let bases = models.iter().filter_map(|spec| spec.base.as_ref());
    let named = models.iter().filter_map(|spec| spec.trainer.as_ref());
    let single: HashSet<ModelId> = named
        .chain(bases.map(|base| &base.model))
        .cloned()
        .collect();
    if single.is_empty() {
        return models;
    }
    let narrowed: HashMap<ModelId, Arc<ModelSpec>> = models
        .iter()
        .filter(|spec| single.contains(&spec.id))
        .map(|spec| (spec.id.clone(), Arc::new(with_one_permit(spec))))
        .collect();
    let resolved = |spec: Arc<ModelSpec>| {
        let own = narrowed.get(&spec.id).map_or(&spec, |narrowed| narrowed);
        let Some(base) = &own.base else {
            return Arc::clone(own);
        };
        match narrowed.get(&base.model) {
            Some(found) => Arc::new(on_base(own, found, &base.weights)),
            None => Arc::clone(own),
        }
    };
    models.into_iter().map(resolved).collect()
}

fn with_one_permit(spec: &ModelSpec) -> ModelSpec {
    let mut spec = spec.clone();
    for endpoint in &mut spec.endpoints {
        endpoint.max_concurrent_requests = 1;
    }
    spec
}

fn on_base(spec: &ModelSpec, base: &ModelSpec, weights: &Arc<str>) -> ModelSpec {
    let mut spec = spec.clone();
    spec.endpoints.clone_from(&base.endpoints);
    for endpoint in &mut spec.endpoints {
        endpoint.backend_model = Some(Arc::clone(weights));
    }
    if spec.backend.payload() == Payload::Task {
        let forced = &mut spec.parameters.force;
        forced.insert(WEIGHTS_PARAMETER.to_owned(), (&**weights).into());
    }
    spec
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn model(id: &str, backend: &str, more: serde_json::Value) -> Arc<ModelSpec> {
        let mut spec = json!({ "id": id, "task": "dumb-pipe", "backend": backend });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        Arc::new(serde_json::from_value(spec).unwrap())
    }

    fn resolved(backend: &str) -> Vec<Arc<ModelSpec>> {
        let endpoints = json!({ "endpoints": [
            { "url": "http://a:1", "max_concurrent_requests": 4, "backend_model": "b" },
            { "url": "http://b:1" },
        ] });
        resolve(vec![
            model(
                "style",
                backend,
                json!({ "base": { "model": "base", "weights": "w-1" } }),
            ),
            model("base", backend, endpoints),
            model(
                "other",
                backend,
                json!({ "endpoints": [{ "url": "http://c:1" }], "trainer": "other" }),
            ),
            model(
                "plain",
                backend,
                json!({ "endpoints": [{ "url": "http://d:1" }] }),
            ),
        ])
    }

    #[test]
    fn weights_run_on_the_endpoints_of_their_base_under_their_own_name() {
        let models = resolved("openai");
        let urls = |spec: &ModelSpec| -> Vec<Arc<str>> {
            let endpoints = spec.endpoints.iter();
            endpoints.map(|known| Arc::clone(&known.url)).collect()
        };
        assert_eq!(urls(&models[0]), urls(&models[1]));
        let names = models[0]
            .endpoints
            .iter()
            .map(|known| known.backend_model.as_deref());
        assert_eq!(names.collect::<Vec<_>>(), [Some("w-1"); 2]);
        assert_eq!(models[1].endpoints[0].backend_model.as_deref(), Some("b"));
        assert!(models[0].parameters.is_empty());
        // A catalog may be made of the models of another one.
        assert_eq!(resolve(models.clone()), models);
    }

    #[test]
    fn servers_of_a_plain_payload_get_the_weights_in_the_body() {
        let models = resolved("http");
        assert_eq!(models[0].parameters.force[WEIGHTS_PARAMETER], "w-1");
        assert!(models[1].parameters.is_empty());
    }

    #[test]
    fn bases_and_trainers_have_one_permit_per_endpoint_and_other_models_their_own() {
        let permits = resolved("http");
        let permits: Vec<u64> = permits.iter().map(|spec| spec.permits()).collect();
        assert_eq!(permits, [2, 2, 1, 4]);
    }
}
