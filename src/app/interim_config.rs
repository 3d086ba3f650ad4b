//! The configuration in effect while plugins of the next one are compiled.
//!
//! Compiling and loading are done elsewhere: [`PluginSnapshot`] lists what is still compiled. Keys, endpoints,
//! limits and all other models are those of the next configuration. A model that needs a plugin not ready yet
//! keeps its former plugins, tariff and settings; a new one is not served yet.

use infergate_core::model::ModelSpec;

use crate::config::Config;
use crate::plugin::PluginSnapshot;

/// `next` without what `plugins` still compile, of which the state in `current` stays.
pub fn interim_config(current: &Config, mut next: Config, plugins: &PluginSnapshot) -> Config {
    if plugins.compiling().is_empty() {
        return next;
    }
    let former = |model: &ModelSpec| current.models.iter().find(|one| one.id == model.id);
    let mut named = Vec::new();
    next.models = next
        .models
        .into_iter()
        .filter_map(|model| {
            if !plugins.is_held(&model.id) {
                return Some(model);
            }
            let kept = interim_model(former(&model)?, model);
            let names = &kept.plugins;
            let names = [&names.task, &names.billing, &names.routing];
            named.extend(names.into_iter().flatten().cloned());
            Some(kept)
        })
        .collect();
    next.plugins
        .retain(|spec| !plugins.compiling().contains(&spec.name));
    for spec in &current.plugins {
        let is_kept = plugins.compiling().contains(&spec.name) || named.contains(&spec.name);
        if is_kept && !next.plugins.iter().any(|other| other.name == spec.name) {
            next.plugins.push(spec.clone());
        }
    }
    next
}

/// The next model with what of the former one depends on its plugins. Endpoints of another kind of server
/// wait with it.
fn interim_model(former: &ModelSpec, next: ModelSpec) -> ModelSpec {
    let mut model = next;
    if former.backend != model.backend {
        model.backend = former.backend.clone();
        model.endpoints = former.endpoints.clone();
        model.discovery = former.discovery.clone();
    }
    model.task = former.task;
    model.plugins = former.plugins.clone();
    model.routing = former.routing.clone();
    model.tariff = former.tariff.clone();
    model.metrics_trust = former.metrics_trust;
    model.metrics = former.metrics.clone();
    model
}
