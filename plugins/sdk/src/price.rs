//! A helper for formulas: the linear price. Sums of floats depend on their order, so it is fixed here.

use crate::{Charge, Line, Tariff, Usage};

/// `factor × (cost_per_infer + Σ coefficient × metric)`, in the order of the metrics' names. A metric
/// without a coefficient is free, a coefficient without a metric counts nothing.
pub fn linear(mut tariff: Tariff, usage: &Usage, factor: f64) -> Charge {
    tariff.coefficients.sort_by(|a, b| a.metric.cmp(&b.metric));
    let base = tariff.cost_per_infer * factor;
    let mut charge = Charge {
        total: base,
        base,
        lines: Vec::new(),
        visible: Vec::new(),
    };
    for coefficient in tariff.coefficients {
        let metrics = usage.metrics.iter();
        for metric in metrics.filter(|metric| metric.name == coefficient.metric) {
            let neurons = coefficient.neurons * metric.value * factor;
            charge.total += neurons;
            charge.visible.push(metric.name.clone());
            charge.lines.push(Line {
                metric: metric.name.clone(),
                quantity: metric.value,
                neurons,
            });
        }
    }
    charge
}
