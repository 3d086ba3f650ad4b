//! Bill of one request: what its event shows of metrics and price.
//!
//! Not the counting and not the pricing: values, as they were settled.

use std::sync::Arc;

use infergate_core::billing::{MetricSource, Settlement, Usage};

use crate::telemetry::event::Comparison;
use crate::telemetry::{MetricsSource, TokenUsage};

/// Metrics and price of a request, as its event shows them.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    /// Tokens.
    pub tokens: TokenUsage,
    /// Other metrics by name.
    pub extra_metrics: Vec<(Arc<str>, f64)>,
    /// Source of the metrics.
    pub source: MetricsSource,
    /// Reported against estimated, where the model has both compared.
    pub comparison: Vec<Comparison>,
    /// Price, once there is one.
    pub neurons: Option<f64>,
    /// Source of the price.
    pub priced_by: Option<Arc<str>>,
    /// The billing plugin failed, and something else has priced it.
    pub fell_back: bool,
}

impl Bill {
    /// Sets the tokens that the model server reports, until the metrics are settled.
    pub(super) fn report(&mut self, usage: Usage) {
        self.source = MetricsSource::Reported;
        self.tokens = TokenUsage {
            input_tokens: Some(usage.input_tokens),
            output_tokens: Some(usage.output_tokens),
            cached_tokens: usage.cached_tokens,
        };
    }

    /// Sets the metrics that are billed.
    pub(super) fn settle(&mut self, settled: &Settlement) {
        self.tokens = TokenUsage::default();
        self.extra_metrics.clear();
        for metric in &settled.metrics {
            let tokens = match &*metric.name {
                "input_tokens" => &mut self.tokens.input_tokens,
                "output_tokens" => &mut self.tokens.output_tokens,
                "cached_tokens" => &mut self.tokens.cached_tokens,
                _ => {
                    let metric = (Arc::clone(&metric.name), metric.value);
                    self.extra_metrics.push(metric);
                    continue;
                }
            };
            *tokens = Some(metric.value as u64);
        }
        self.source = match settled.source {
            _ if settled.metrics.is_empty() => MetricsSource::None,
            MetricSource::Reported => MetricsSource::Reported,
            MetricSource::Estimated | MetricSource::Derived | MetricSource::Answered => {
                MetricsSource::Estimated
            }
        };
        self.comparison = settled
            .comparison
            .iter()
            .map(|one| Comparison {
                metric: Arc::clone(&one.metric),
                reported: one.reported,
                estimated: one.estimated,
                matches: one.matches,
            })
            .collect();
    }

    /// Returns the bill for the event. The tokens stay, for the rates of the account.
    pub(super) fn take(&mut self) -> Bill {
        let tokens = self.tokens;
        std::mem::replace(
            self,
            Bill {
                tokens,
                ..Bill::default()
            },
        )
    }
}
