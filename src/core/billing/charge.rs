//! The charge of one request: metrics and a tariff in, neurons out; no counting.
//!
//! Counts come from [`Usage`](super::Usage) and the shell. [`price`] is the built-in formula and the
//! reference for billing plugins. [`Charge::validate`] validates the result of any formula.

use std::sync::Arc;

use infergate_tasks::price::linear;

use crate::model::{Tariff, Trust};

/// Metrics of one request: real ones have fewer than ten.
pub const METRICS_MAX: usize = 64;
/// Bytes of a metric's name.
pub const METRIC_NAME_MAX_BYTES: usize = 64;
/// No quantity is larger: the largest whole number that every JSON reader agrees on (2^53).
pub const QUANTITY_MAX: f64 = 9_007_199_254_740_992.0;
/// No request costs more: a larger charge is a defect of its formula.
pub const CHARGE_MAX_NEURONS: f64 = 1e12;

/// Neurons of one request that a formula, or a model server, may ask for unless it is configured
/// otherwise: `plugins[].limits.charge_max`.
pub const CHARGE_MAX_DEFAULT: u64 = 1_000_000;

/// Origin of a value. The gateway decides this, never a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSource {
    /// Reported by the model server.
    Reported,
    /// Counted by the gateway.
    Estimated,
    /// Derived by a task from the input: the gateway's own knowledge.
    Derived,
    /// Read by a task in the response: as reliable as the model server.
    Answered,
}

/// A quantity of a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// `output_tokens`, `image_steps`, ….
    pub name: Arc<str>,
    /// Finite, 0 to [`QUANTITY_MAX`].
    pub value: f64,
    /// Origin of the value.
    pub source: MetricSource,
}

/// Outcome of the request, as far as its bill is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in the event
pub enum BillingOutcome {
    Completed,
    CutByClient,
    CutByBackend,
    CutByDeadline,
    Failed,
}

/// Input of a formula: totals over the whole response.
#[derive(Clone, Debug)]
pub struct UsageReport<'a> {
    /// The model's id.
    pub model: &'a str,
    /// Trust in the figures of the model server.
    pub trust: Trust,
    /// Outcome of the request.
    pub ending: BillingOutcome,
    /// The response was a stream.
    pub streamed: bool,
    /// At most [`METRICS_MAX`], each name once.
    pub metrics: &'a [Metric],
    /// Milliseconds spent waiting for a permit.
    pub queue_ms: u64,
    /// Milliseconds with a permit.
    pub infer_ms: u64,
}

/// A part of a charge.
#[derive(Clone, Debug, PartialEq)]
pub struct ChargeLine {
    /// The metric it is for.
    pub metric: Arc<str>,
    /// Its quantity.
    pub quantity: f64,
    /// Its price.
    pub neurons: f64,
}

/// The cost of a request, in neurons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charge {
    /// `base` plus all lines.
    pub total: f64,
    /// Independent of any metric.
    pub base: f64,
    /// Lines of the metrics that cost something.
    pub lines: Vec<ChargeLine>,
    /// Metrics the client may see.
    pub visible: Vec<Arc<str>>,
}

/// The built-in formula: `cost_per_infer + Σ coefficient × metric`, in the order of the metrics'
/// names. A metric without a coefficient is free, a coefficient without a metric counts nothing.
pub fn price(tariff: &Tariff, report: &UsageReport<'_>) -> Charge {
    let coefficients = tariff.coefficients.iter();
    let coefficients = coefficients.map(|(name, neurons)| (name, *neurons));
    let quantity = |name: &&Arc<str>| {
        let metric = report.metrics.iter().find(|metric| metric.name == **name)?;
        Some(metric.value)
    };
    let price = linear(tariff.cost_per_infer, coefficients, quantity, 1.0);
    let visible = price.lines.iter().map(|line| Arc::clone(line.metric));
    let lines = price.lines.iter().map(|line| ChargeLine {
        metric: Arc::clone(line.metric),
        quantity: line.quantity,
        neurons: line.neurons,
    });
    Charge {
        total: price.total,
        base: price.base,
        visible: visible.collect(),
        lines: lines.collect(),
    }
}
