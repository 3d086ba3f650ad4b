//! `readiness`: which models must have a healthy endpoint for this node to be ready.
//!
//! Reads the gates at the moment of the question; makes no check of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::upstream::ModelRuntimes;

/// Entry of [`Readiness::require_models`] for every model.
const EVERY_MODEL: &str = "*";

/// Models named in one answer; the rest is counted.
const NAMED_MAX: usize = 16;

/// Conditions for `/readyz`, besides those that always hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Readiness {
    /// Ids of models, or `*` for all: `/readyz` answers 503 while one of them has no healthy endpoint
    /// here.
    #[schemars(length(max = 4096))]
    pub require_models: Vec<String>,
}

impl Readiness {
    /// Returns why this node is not ready, naming the models, where a required one has no endpoint in
    /// use.
    pub fn fault(&self, models: &ModelRuntimes) -> Option<String> {
        let is_required = |id: &str| {
            let mut required = self.require_models.iter();
            required.any(|required| required == id || required == EVERY_MODEL)
        };
        let required = models
            .iter()
            .filter(|model| is_required(model.spec.id.as_str()));
        let unserved = required.filter(|model| model.gate.gauges().usable_endpoints == 0);
        sentence(unserved.map(|model| model.spec.id.as_str()))
    }
}

fn sentence<'a>(ids: impl Iterator<Item = &'a str>) -> Option<String> {
    let ids: Vec<&str> = ids.collect();
    let named: Vec<String> = ids
        .iter()
        .take(NAMED_MAX)
        .map(|id| format!("`{id}`"))
        .collect();
    if named.is_empty() {
        return None;
    }
    let rest = match ids.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "no healthy endpoint for {}{rest}",
        named.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_models_up_to_a_bound() {
        assert_eq!(sentence([].into_iter()), None);
        let two = sentence(["a", "@cf/b"].into_iter());
        assert_eq!(two.as_deref(), Some("no healthy endpoint for `a`, `@cf/b`"));
        let many = sentence(["m"; 20].into_iter()).unwrap();
        assert!(many.ends_with("`m` and 4 more"), "{many}");
    }
}
