//! Billing slot of a model: the cost of a request, by a plugin or the built-in formula.
//!
//! No counting and no accounts. A usage record is never lost to a plugin: what fails is priced by the
//! built-in formula and marked so. Called once a request, after its answer.

use std::sync::Arc;

use infergate_core::billing::{Charge, UsageReport};
use infergate_core::model::Tariff;

use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::traits::BillingFormula;
use crate::plugin::runtime::call::Caller;
use crate::telemetry::event::PluginUse;

/// Billing of one model, in one configuration generation.
#[derive(Clone)]
pub struct BillingSlot {
    pub(crate) chain: Arc<FallbackChain<dyn BillingFormula>>,
}

/// Charge, with the plugin that computed it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriceResult {
    /// The charge.
    pub charge: Charge,
    /// The plugin that did; empty for the built-in formula.
    pub uses: Vec<PluginUse>,
    /// True when a plugin is configured and the built-in formula had to stand in for it.
    pub fell_back: bool,
}

impl BillingSlot {
    /// The charge of a request, in neurons.
    pub fn price(
        &self,
        caller: Caller<'_>,
        tariff: &Tariff,
        report: &UsageReport<'_>,
    ) -> PriceResult {
        for pricing in self.chain.candidates() {
            if let Ok(charge) = pricing.price(caller, tariff, report) {
                let mut uses = Vec::new();
                crate::plugin::runtime::identity::record_use(
                    &mut uses,
                    pricing.identity(),
                    "price",
                );
                return PriceResult {
                    charge,
                    fell_back: uses.is_empty() && !self.chain.revisions.is_empty(),
                    uses,
                };
            }
        }
        // Not reached: the built-in formula has no way to fail.
        PriceResult {
            fell_back: true,
            ..PriceResult::default()
        }
    }

    /// Metrics by the plugin's own count of the bodies; empty where it does not count or failed.
    pub fn estimate(&self, caller: Caller<'_>, input: &[u8], output: &[u8]) -> Vec<(String, f64)> {
        self.chain
            .candidates()
            .find_map(|pricing| pricing.estimate(caller, input, output).ok())
            .unwrap_or_default()
    }
}
