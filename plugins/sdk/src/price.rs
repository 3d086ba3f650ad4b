//! A helper for formulas: the linear price, as the gateway computes it.

use infergate_tasks::price::PriceLine;

use crate::Tariff;
use crate::pricing::{Charge, Line, Usage};

/// `factor × (cost_per_infer + Σ coefficient × metric)`, in the order of the metrics' names, made from a tariff
/// once. A metric without a coefficient is free, a coefficient without a metric counts nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    cost_per_infer: f64,
    /// Indices of metrics with their coefficients, in the order of names.
    coefficients: Vec<(u32, f64)>,
}

impl Linear {
    /// The terms of a tariff.
    pub fn new(tariff: &Tariff) -> Linear {
        let mut sorted: Vec<_> = tariff.coefficients.iter().collect();
        sorted.sort_by(|a, b| a.metric.cmp(&b.metric));
        let coefficients = sorted.into_iter().filter_map(|one| {
            let mut metrics = (0..).zip(&tariff.metrics);
            let (index, _) = metrics.find(|(_, metric)| metric.name == one.metric)?;
            Some((index, one.neurons))
        });
        Linear {
            cost_per_infer: tariff.cost_per_infer,
            coefficients: coefficients.collect(),
        }
    }

    /// Adds the price of a request to a charge, and shows the metrics that it depends on.
    pub fn add_to(&self, charge: &mut Charge, usage: &Usage<'_>, factor: f64) {
        let sums = infergate_tasks::price::each_line(
            self.cost_per_infer,
            self.coefficients.iter().copied(),
            |metric| usage.quantities.get(*metric as usize).copied(),
            factor,
            |PriceLine {
                 metric,
                 quantity,
                 neurons,
             }| {
                charge.lines.push(Line {
                    metric,
                    quantity,
                    neurons,
                });
                charge.show(metric);
            },
        );
        charge.base += sums.base;
        charge.total += sums.total;
    }
}
