//! Entry of a model in the catalogue of the Workers AI API: words for people, and nothing that changes how it is served.
//!
//! Rendered by `api::catalog`; `beta` is in each event of the model too.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Entry of a model in the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CatalogEntry {
    /// Description of the model.
    pub description: Arc<str>,
    /// Tags to find it by.
    #[schemars(length(max = 64))]
    pub tags: Vec<Arc<str>>,
    /// Properties by their names, such as `context_window`.
    pub properties: BTreeMap<Arc<str>, Value>,
    /// Marks the model as beta, in the catalogue and in its events.
    pub beta: bool,
}
