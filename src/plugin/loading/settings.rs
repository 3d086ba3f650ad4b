//! Settings of revisions: those of a plugin, with a model's own over them.
//!
//! Does not validate them; the plugin's `configure` does.

use std::sync::Arc;

use infergate_core::model::ModelSpec;
use serde_json::{Map, Value, json};

use crate::plugin::spec::{PluginSpec, World};

/// The distinct settings that a plugin needs revisions for; those that differ by a model with that
/// model's place.
pub fn settings_of(spec: &PluginSpec, models: &[Arc<ModelSpec>]) -> Vec<(String, Option<usize>)> {
    let mut all = Vec::new();
    for (at, model) in models.iter().enumerate() {
        if model.plugins.routing.as_ref() == Some(&spec.name) {
            let settings = merged_settings(spec, &model.routing);
            if !all.iter().any(|(known, _)| *known == settings) {
                let own = (!model.routing.is_empty()).then_some(at);
                all.push((settings, own));
            }
        }
    }
    if all.is_empty() {
        all.push((merged_settings(spec, &Map::new()), None));
    }
    all
}

/// A model's own settings over the plugin's, as JSON text.
pub fn merged_settings(spec: &PluginSpec, of_model: &Map<String, Value>) -> String {
    if spec.world != World::RoutingPolicy || of_model.is_empty() {
        return settings_text(&spec.settings);
    }
    let mut settings = spec.settings.clone();
    for (key, value) in of_model {
        settings.insert(key.clone(), value.clone());
    }
    settings_text(&settings)
}

/// Settings as the text that `configure` gets.
pub fn settings_text(settings: &Map<String, Value>) -> String {
    json!(settings).to_string()
}
