//! Prices as `neurons` does, and estimates the metrics that a model is not trusted to report. Known in the
//! source as Director's estimates.
//!
//! The rules are those of `infergate_tasks::estimate`: a text has max(words × 4/3, UTF-8 bytes ÷ 4) tokens, an
//! image or a sound beside a text 1,024. No settings.

use infergate_sdk::price::Linear;
use infergate_sdk::{
    Billing, BillingError, Charge, Estimator, Plugin, Quantity, Settings, Tariff, Usage,
    export_estimator,
};
use infergate_tasks::estimate::estimate;

struct Estimates;

impl Plugin for Estimates {
    fn configure(_: &mut Settings) -> Estimates {
        Estimates
    }
}

impl Billing for Estimates {
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

impl Estimator for Estimates {
    fn estimate(
        &self,
        input: Vec<u8>,
        output: Vec<u8>,
        _state: Vec<u8>,
    ) -> Result<Vec<Quantity>, String> {
        Ok(estimate(&input, &output))
    }
}

export_estimator!(Estimates);
