//! The price in neurons: `cost_per_infer + Σ coefficient × metric`, in the order of the metrics' names.
//!
//! A metric without a coefficient is free, a coefficient without a metric counts nothing. No settings:
//! the whole price list is the model's `tariff`.

use infergate_sdk::{Billing, BillingError, Charge, Plugin, Settings, Tariff, Usage, price};

struct Neurons;

impl Plugin for Neurons {
    fn configure(_: &mut Settings) -> Neurons {
        Neurons
    }
}

impl Billing for Neurons {
    fn price(&self, tariff: Tariff, usage: Usage) -> Result<Charge, BillingError> {
        Ok(price::linear(tariff, &usage, 1.0))
    }
}

infergate_sdk::export_billing!(Neurons);
