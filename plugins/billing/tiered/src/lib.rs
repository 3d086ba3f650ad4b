//! A linear price times a factor by resolution: what 720p costs once, 1080p may cost 2.25 times.
//!
//! The tariff's `criteria` name the resolution of the model; `factors` in the settings give the price of
//! each. A resolution that is not listed is an error, so that 4K is not sold at the price of 720p. The
//! gateway then bills by its own formula and flags the event. Settings: `criterion`, `factors`.

use std::collections::BTreeMap;

use infergate_sdk::price::Linear;
use infergate_sdk::serde_json::Value;
use infergate_sdk::{
    Billing, BillingError, Charge, Plugin, Settings, Tariff, Usage, export_billing,
};

struct Tiered {
    criterion: String,
    factors: BTreeMap<String, f64>,
}

impl Plugin for Tiered {
    fn configure(settings: &mut Settings) -> Tiered {
        let criterion = settings.text("criterion");
        let mut factors = BTreeMap::new();
        match settings.take("factors") {
            Some(Value::Object(given)) => {
                for (tier, factor) in given {
                    match factor.as_f64().filter(|factor| *factor >= 0.0) {
                        Some(factor) => drop(factors.insert(tier, factor)),
                        None => settings.problem(
                            &format!("/factors/{tier}"),
                            &format!("expected a number from 0, found {factor}"),
                        ),
                    }
                }
            }
            _ => settings.problem("/factors", "expected an object such as {\"1080p\": 2.25}"),
        }
        Tiered {
            criterion: criterion.unwrap_or_else(|| "resolution".into()),
            factors,
        }
    }
}

impl Billing for Tiered {
    /// The factor of the model's tier stands beside the linear price.
    type Terms = (Linear, f64);

    fn terms(&self, tariff: &Tariff) -> Result<(Linear, f64), BillingError> {
        let criteria = &tariff.criteria;
        let tier = criteria.iter().find(|(key, _)| *key == self.criterion);
        let factor = match tier {
            None => 1.0,
            Some((_, tier)) => *self.factors.get(tier).ok_or_else(|| {
                BillingError::BadValue(format!("{} {tier} has no factor", self.criterion))
            })?,
        };
        Ok((Linear::new(tariff), factor))
    }

    fn price(
        &self,
        (linear, factor): &(Linear, f64),
        usage: &Usage<'_>,
        charge: &mut Charge,
    ) -> Result<(), BillingError> {
        linear.add_to(charge, usage, *factor);
        Ok(())
    }
}

export_billing!(Tiered);
