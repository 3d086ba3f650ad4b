//! What a model costs and how its answers are counted: the billing keys under `models[]`.
//!
//! It computes nothing; `billing` does. Amounts are neurons, quantities in the metric's own unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A linear price: `cost_per_infer + Σ coefficient × metric`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tariff {
    /// Neurons of every request that is charged.
    #[schemars(range(min = 0))]
    pub cost_per_infer: f64,
    /// Neurons per unit of a metric, by the metric's name (`input_tokens`, `output_tokens`, …).
    pub coefficients: BTreeMap<Arc<str>, f64>,
    /// Free keys a billing plugin may look at, such as `resolution: 1080p`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub criteria: BTreeMap<Arc<str>, Arc<str>>,
    /// Whether a request that ended early after a server began to work costs something.
    pub charge_cut: ChargeCut,
    /// Whether a request is charged, as one that was cut, when its server or a plugin failed before
    /// any byte of the answer reached the client. A repeated try is never charged.
    pub charge_failed: bool,
}

/// What a request costs whose client left, or whose deadline passed, after a server was sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ChargeCut {
    /// `cost_per_infer`, the input, and the output that was seen until then. Output that nobody saw is
    /// not guessed.
    #[default]
    Seen,
    /// Nothing.
    None,
}

/// The configuration admits only finite numbers, so that equality is reflexive.
impl Eq for Tariff {}

/// Whose figures are billed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// The model server's own.
    #[default]
    Trust,
    /// The gateway's estimate; what the server says is not used, nor what a task reads in its
    /// answer. What a task works out from the input is.
    Estimate,
    /// The server's, and the event says whether the estimate agrees.
    Compare,
}

/// How the reports of one metric of a request add up: a server's usage on a stream, and what a task
/// reports of its events. One rule for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MetricMode {
    /// Each report is the total so far: the largest counts. A total does not shrink, so that is the
    /// last one, and one that comes late or is left at 0 takes nothing away.
    Cumulative,
    /// Each report is what came since the one before: they are summed.
    Incremental,
}

/// The plugins of a model, by their names in `plugins`, or names of built-in ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ModelPlugins {
    /// Checks the input and shapes payload and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Arc<str>>,
    /// Turns metrics into neurons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing: Option<Arc<str>>,
    /// Orders the endpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing: Option<Arc<str>>,
}
