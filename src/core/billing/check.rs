//! Validation of the result of any formula, built-in or plugin.

use super::charge::{Charge, UsageReport};

/// Lines a charge may have: a few per metric, for prices in tiers.
pub const LINES_MAX: usize = 256;

/// Largest difference between the total and the sum of its parts, relative to the total.
const SUM_TOLERANCE: f64 = 1e-9;

impl Charge {
    /// Validates the charge; the error is the name of the violated rule.
    /// A line may be negative (a rebate), the total may not. No part is larger than `charge_max`
    /// neurons.
    pub fn validate(&self, report: &UsageReport<'_>, charge_max: f64) -> Result<(), &'static str> {
        let is_price = |neurons: f64| (0.0..=charge_max).contains(&neurons);
        let known = |name: &str| report.metrics.iter().any(|metric| &*metric.name == name);
        if !is_price(self.total) {
            return Err("total-range");
        }
        if !is_price(self.base) {
            return Err("base-range");
        }
        if self.lines.len() > LINES_MAX || self.visible.len() > LINES_MAX {
            return Err("too-many-lines");
        }
        let mut sum = self.base;
        for line in &self.lines {
            if !known(&line.metric) {
                return Err("line-unknown-metric");
            }
            if !(line.quantity.is_finite() && line.quantity >= 0.0) {
                return Err("line-quantity-range");
            }
            if !is_price(line.neurons.abs()) {
                return Err("line-range");
            }
            sum += line.neurons;
        }
        if (self.total - sum).abs() > SUM_TOLERANCE * self.total.max(1.0) {
            return Err("total-is-not-the-sum");
        }
        if !self.visible.iter().all(|name| known(name)) {
            return Err("visible-unknown-metric");
        }
        Ok(())
    }
}
