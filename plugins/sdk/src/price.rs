//! A helper for formulas: the linear price, as the gateway computes it.

use crate::{Charge, Line, Tariff, Usage};

/// `factor × (cost_per_infer + Σ coefficient × metric)`, in the order of the metrics' names. A metric
/// without a coefficient is free, a coefficient without a metric counts nothing.
pub fn linear(mut tariff: Tariff, usage: &Usage, factor: f64) -> Charge {
    tariff.coefficients.sort_by(|a, b| a.metric.cmp(&b.metric));
    let coefficients = tariff.coefficients.into_iter();
    let coefficients = coefficients.map(|one| (one.metric, one.neurons));
    let quantity = |name: &String| {
        let metric = usage.metrics.iter().find(|metric| metric.name == *name)?;
        Some(metric.value)
    };
    let price =
        infergate_tasks::price::linear(tariff.cost_per_infer, coefficients, quantity, factor);
    let visible = price.lines.iter().map(|line| line.metric.clone());
    Charge {
        total: price.total,
        base: price.base,
        visible: visible.collect(),
        lines: price
            .lines
            .into_iter()
            .map(|line| Line {
                metric: line.metric,
                quantity: line.quantity,
                neurons: line.neurons,
            })
            .collect(),
    }
}
