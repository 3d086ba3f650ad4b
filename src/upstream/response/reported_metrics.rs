//! Cost that a response reports: usage objects and billing headers.
//!
//! Pricing and trust are decided elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::api::open_inference::ReportedCosts;
use infergate_core::billing::{CHARGE_MAX_DEFAULT, NEURONS, QUANTITY_MAX, Usage, cost_headers};
use infergate_core::model::MetricMode;

/// Prefix of all headers of a bill.
const PREFIX: &str = "cf-ai-";

/// Metrics that a model server has reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReportedMetrics {
    /// Tokens, all reports taken together.
    pub usage: Option<Usage>,
    /// `cf-ai-neurons`.
    pub neurons: Option<f64>,
    /// `cf-ai-cost-metric-name-N` and its value, in the order of N.
    pub metrics: Vec<(String, f64)>,
}

/// Token counts among costs; none where neither side is reported as a whole number.
pub(super) fn usage_of_costs(costs: &ReportedCosts) -> Option<Usage> {
    let tokens = |metric| {
        let sum = costs.get(metric)?;
        (sum.fract() == 0.0).then_some(sum as u64)
    };
    let (input, output) = (tokens("input_tokens"), tokens("output_tokens"));
    input.or(output)?;
    Some(Usage {
        input_tokens: input.unwrap_or(0),
        output_tokens: output.unwrap_or(0),
        cached_tokens: tokens("cached_tokens"),
        reasoning_tokens: tokens("reasoning_tokens"),
    })
}

/// Costs that are neither the server's own price nor among the token counts.
pub(super) fn other_costs(costs: &ReportedCosts) -> impl Iterator<Item = (String, f64)> {
    let has_usage = usage_of_costs(costs).is_some();
    let others = costs.iter().filter(move |(metric, sum)| {
        let is_token = matches!(
            metric.as_str(),
            "input_tokens" | "output_tokens" | "cached_tokens" | "reasoning_tokens"
        );
        metric != NEURONS && !(has_usage && is_token && sum.fract() == 0.0)
    });
    others.cloned()
}

/// Price that is among costs.
pub(super) fn price_in_costs(costs: &ReportedCosts) -> Option<f64> {
    let neurons = costs.get(NEURONS)?;
    (neurons <= CHARGE_MAX_DEFAULT as f64).then_some(neurons)
}

/// The metrics that are reported on streams as what came since the report before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MetricModes {
    input_tokens: bool,
    output_tokens: bool,
    cached_tokens: bool,
    reasoning_tokens: bool,
}

impl MetricModes {
    pub(super) fn of(metrics: &BTreeMap<Arc<str>, MetricMode>) -> MetricModes {
        let incremental = |name: &str| metrics.get(name) == Some(&MetricMode::Incremental);
        MetricModes {
            input_tokens: incremental("input_tokens"),
            output_tokens: incremental("output_tokens"),
            cached_tokens: incremental("cached_tokens"),
            reasoning_tokens: incremental("reasoning_tokens"),
        }
    }

    /// All that is known after one more report.
    pub(super) fn fold(self, before: Option<Usage>, report: Option<Usage>) -> Option<Usage> {
        let (Some(before), Some(report)) = (before, report) else {
            return before.or(report);
        };
        let both = before.merge(report);
        let sum = |one: u64, other: u64| one.saturating_add(other);
        let some = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(sum(one, other)),
            (one, other) => one.or(other),
        };
        Some(Usage {
            input_tokens: match self.input_tokens {
                true => sum(before.input_tokens, report.input_tokens),
                false => both.input_tokens,
            },
            output_tokens: match self.output_tokens {
                true => sum(before.output_tokens, report.output_tokens),
                false => both.output_tokens,
            },
            cached_tokens: match self.cached_tokens {
                true => some(before.cached_tokens, report.cached_tokens),
                false => both.cached_tokens,
            },
            reasoning_tokens: match self.reasoning_tokens {
                true => some(before.reasoning_tokens, report.reasoning_tokens),
                false => both.reasoning_tokens,
            },
        })
    }
}

/// Reads the billing headers of a head. Names are in lower case, as the HTTP library has them.
pub(super) fn read_headers<'h>(
    headers: impl Iterator<Item = (&'h str, &'h [u8])>,
) -> (Option<f64>, Vec<(String, f64)>) {
    // Nearly no head has any, and then nothing is allocated.
    let ours = headers.filter(|(name, _)| name.starts_with(PREFIX));
    split_price(cost_headers(ours))
}

/// Takes the server's own price out of metrics, and what is no quantity.
pub(super) fn split_price(mut metrics: Vec<(String, f64)>) -> (Option<f64>, Vec<(String, f64)>) {
    metrics.retain(|(_, value)| (0.0..=QUANTITY_MAX).contains(value));
    let total = metrics.iter().position(|(name, _)| name == NEURONS);
    let neurons = total.map(|at| metrics.remove(at).1);
    let is_price = |neurons: &f64| *neurons <= CHARGE_MAX_DEFAULT as f64;
    // A zero added makes a zero of minus zero.
    (
        neurons.filter(is_price).map(|neurons| neurons + 0.0),
        metrics,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[(&'static str, &'static str)]) -> (Option<f64>, Vec<(String, f64)>) {
        read_headers(lines.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    #[test]
    fn metrics_of_a_head_are_paired_by_their_number() {
        let (neurons, metrics) = read(&[
            ("content-type", "application/json"),
            ("cf-ai-cost-metric-value-2", "1.5"),
            ("cf-ai-cost-metric-name-1", "steps"),
            ("cf-ai-neurons", " 2.5 "),
            ("cf-ai-cost-metric-name-2", "tiles"),
            ("cf-ai-cost-metric-value-1", "4"),
            ("cf-ai-cost-metric-name-16", "last"),
            ("cf-ai-cost-metric-value-16", "0"),
        ]);
        assert_eq!(neurons, Some(2.5));
        let expected = [("steps", 4.0), ("tiles", 1.5), ("last", 0.0)];
        assert_eq!(
            metrics,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
    }

    #[test]
    fn a_price_beyond_what_one_request_may_cost_is_as_good_as_not_said() {
        assert_eq!(read(&[("cf-ai-neurons", "1000000")]).0, Some(1e6));
        assert_eq!(read(&[("cf-ai-neurons", "9e15")]).0, None);
        let zero = read(&[("cf-ai-neurons", "-0")]).0.unwrap();
        assert!(zero.is_sign_positive());
    }

    #[test]
    fn what_is_no_quantity_is_as_good_as_not_said() {
        for bad in ["-1", "NaN", "inf", "1e300", "", "many"] {
            let (neurons, metrics) = read(&[
                ("cf-ai-neurons", bad),
                ("cf-ai-cost-metric-name-1", "steps"),
                ("cf-ai-cost-metric-value-1", bad),
            ]);
            assert_eq!((neurons, metrics), (None, Vec::new()), "{bad}");
        }
        let (_, metrics) = read(&[
            ("cf-ai-cost-metric-name-3", "alone"),
            ("cf-ai-cost-metric-value-4", "1"),
        ]);
        assert_eq!(metrics, []);
    }

    #[test]
    fn reports_add_up_as_the_model_says_they_do() {
        let usage = |input_tokens, output_tokens| Usage {
            input_tokens,
            output_tokens,
            ..Usage::default()
        };
        let reports = [usage(9, 1), usage(0, 1), usage(0, 3)];
        let total = |modes: MetricModes| {
            let fold = |sum, report: &Usage| modes.fold(sum, Some(*report));
            reports.iter().fold(None, fold).unwrap()
        };
        assert_eq!(total(MetricModes::default()), usage(9, 3));
        let incremental = BTreeMap::from([("output_tokens".into(), MetricMode::Incremental)]);
        assert_eq!(total(MetricModes::of(&incremental)), usage(9, 5));
        assert_eq!(
            MetricModes::default().fold(Some(usage(1, 1)), None),
            Some(usage(1, 1))
        );
    }
}
