//! The price in neurons: `cost_per_infer + Σ coefficient × metric`, in the order of the metrics' names.
//!
//! A metric without a coefficient is free, a coefficient without a metric counts nothing. No settings:
//! the whole price list is the model's `tariff`.

use infergate_sdk::price::Linear;
use infergate_sdk::{Billing, BillingError, Charge, Plugin, Settings, Tariff, Usage};

struct Neurons;

impl Plugin for Neurons {
    fn configure(_: &mut Settings) -> Neurons {
        Neurons
    }
}

impl Billing for Neurons {
    type Terms = Linear;

    fn terms(&self, tariff: &Tariff) -> Result<Linear, BillingError> {
        Ok(Linear::new(tariff))
    }

    fn price(
        &self,
        terms: &Linear,
        usage: &Usage<'_>,
        charge: &mut Charge,
    ) -> Result<(), BillingError> {
        terms.add_to(charge, usage, 1.0);
        Ok(())
    }
}

infergate_sdk::export_billing!(Neurons);
