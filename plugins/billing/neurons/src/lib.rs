//! The price in neurons: `cost_per_infer + Σ coefficient × metric`, in the order of the metrics' names.
//!
//! A metric without a coefficient is free, a coefficient without a metric counts nothing. No settings:
//! the whole price list is the model's `tariff`.

use infergate_sdk::{Billing, BillingError, Charge, Line, Plugin, Settings, Tariff, Usage};

struct Neurons;

impl Plugin for Neurons {
    fn configure(_: &mut Settings) -> Neurons {
        Neurons
    }
}

impl Billing for Neurons {
    fn price(&self, mut tariff: Tariff, usage: Usage) -> Result<Charge, BillingError> {
        // The order of the additions is part of the price: sums of floats depend on it.
        tariff.coefficients.sort_by(|a, b| a.metric.cmp(&b.metric));
        let mut charge = Charge {
            total: tariff.cost_per_infer,
            base: tariff.cost_per_infer,
            lines: Vec::new(),
            visible: Vec::new(),
        };
        for coefficient in tariff.coefficients {
            let name = coefficient.metric;
            let Some(metric) = usage.metrics.iter().find(|metric| metric.name == name) else {
                continue;
            };
            let neurons = coefficient.neurons * metric.value;
            charge.total += neurons;
            charge.visible.push(name.clone());
            charge.lines.push(Line {
                metric: name,
                quantity: metric.value,
                neurons,
            });
        }
        Ok(charge)
    }
}

infergate_sdk::export_billing!(Neurons);
