//! The linear price of a request: `factor × (cost_per_infer + Σ coefficient × metric)`.
//!
//! Counts nothing and knows no tariff. The order of the additions is part of the price, since sums of floats
//! depend on it: coefficients are passed in the order of the metrics' names.

use alloc::vec::Vec;

/// A price in neurons with its parts.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearPrice<N> {
    /// `base` plus all lines.
    pub total: f64,
    /// Independent of any metric.
    pub base: f64,
    /// Metrics that have a coefficient, in the order of the coefficients.
    pub lines: Vec<PriceLine<N>>,
}

/// The part of a price that one metric has.
#[derive(Clone, Debug, PartialEq)]
pub struct PriceLine<N> {
    /// Name of the metric.
    pub metric: N,
    /// Its quantity.
    pub quantity: f64,
    /// Its price.
    pub neurons: f64,
}

/// The sums of a linear price, whose lines were passed on one by one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearSums {
    /// `base` plus all lines.
    pub total: f64,
    /// Independent of any metric.
    pub base: f64,
}

/// Prices a request. A metric without a coefficient is free, a coefficient without a metric counts nothing.
/// `quantity` returns the value of a metric.
pub fn linear<N>(
    cost_per_infer: f64,
    coefficients: impl IntoIterator<Item = (N, f64)>,
    quantity: impl Fn(&N) -> Option<f64>,
    factor: f64,
) -> LinearPrice<N> {
    let mut lines = Vec::new();
    let add = |line| lines.push(line);
    let LinearSums { total, base } = each_line(cost_per_infer, coefficients, quantity, factor, add);
    LinearPrice { total, base, lines }
}

/// Prices a request as [`linear`] does, and passes its lines to `add` instead of keeping them.
pub fn each_line<N>(
    cost_per_infer: f64,
    coefficients: impl IntoIterator<Item = (N, f64)>,
    quantity: impl Fn(&N) -> Option<f64>,
    factor: f64,
    mut add: impl FnMut(PriceLine<N>),
) -> LinearSums {
    let base = cost_per_infer * factor;
    let mut total = base;
    for (metric, coefficient) in coefficients {
        let Some(quantity) = quantity(&metric) else {
            continue;
        };
        let neurons = coefficient * quantity * factor;
        total += neurons;
        add(PriceLine {
            metric,
            quantity,
            neurons,
        });
    }
    LinearSums { total, base }
}
