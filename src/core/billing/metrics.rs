//! Quantities of one request as they are reported by the model server, the task and the gateway's own
//! count.
//!
//! Figures of different sources are kept apart; [`settle`](mod@super::settle) decides which of them is
//! billed. At most [`METRICS_MAX`] names per source, so that none can crowd out another. Reports over the
//! bound or without a valid quantity are dropped and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Usage;
use super::charge::{METRIC_NAME_MAX_BYTES, METRICS_MAX, Metric, MetricSource, QUANTITY_MAX};
use crate::model::MetricMode;

/// Aggregation of the model's metrics on a stream: [`ModelSpec::metrics`](crate::model::ModelSpec).
pub type MetricModes = BTreeMap<Arc<str>, MetricMode>;

/// Quantities reported so far.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    metrics: Vec<Metric>,
    dropped: u32,
}

impl Metrics {
    /// Takes one report, by the rule of its [`MetricMode`]; all that `modes` does not name are
    /// cumulative.
    pub fn report(&mut self, name: &str, value: f64, source: MetricSource, modes: &MetricModes) {
        let is_name = !name.is_empty() && name.len() <= METRIC_NAME_MAX_BYTES;
        if !is_name || !is_quantity(value) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let known = self
            .metrics
            .iter_mut()
            .find(|metric| metric.source == source && &*metric.name == name);
        if let Some(metric) = known {
            metric.value = match modes.get(name) {
                Some(MetricMode::Incremental) => (metric.value + value).min(QUANTITY_MAX),
                Some(MetricMode::Cumulative) | None => metric.value.max(value),
            };
        } else if self.has_capacity_for(source) {
            self.metrics.push(Metric {
                name: name.into(),
                value,
                source,
            });
        } else {
            self.dropped = self.dropped.saturating_add(1);
        }
    }

    /// Merges another collection, each metric with its source. The larger value of a known metric
    /// stays.
    pub fn merge(&mut self, other: &Metrics) {
        for Metric {
            name,
            value,
            source,
        } in &other.metrics
        {
            self.report(name, *value, *source, &MetricModes::new());
        }
    }

    /// Returns whether no metric was reported.
    pub fn is_empty(&self) -> bool {
        self.metrics.is_empty()
    }

    /// Removes all metrics.
    pub fn clear(&mut self) {
        self.metrics.clear();
    }

    /// Takes several reports of one source.
    pub fn report_all(
        &mut self,
        reports: &[(String, f64)],
        source: MetricSource,
        modes: &MetricModes,
    ) {
        for (name, value) in reports {
            self.report(name, *value, source, modes);
        }
    }

    /// Takes a server's token counts, as `input_tokens`, `output_tokens`, `cached_tokens` and
    /// `reasoning_tokens`. [`Usage`] writes a side that was not reported as 0, so a 0 is left out.
    pub fn report_usage(&mut self, usage: Usage, modes: &MetricModes) {
        let counts = [
            ("input_tokens", usage.input_tokens),
            ("output_tokens", usage.output_tokens),
            ("cached_tokens", usage.cached_tokens.unwrap_or(0)),
            ("reasoning_tokens", usage.reasoning_tokens.unwrap_or(0)),
        ];
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            self.report(name, count as f64, MetricSource::Reported, modes);
        }
    }

    /// All of one source, in the order of their first reports.
    pub fn iter_source(&self, source: MetricSource) -> impl Iterator<Item = &Metric> {
        self.metrics
            .iter()
            .filter(move |metric| metric.source == source)
    }

    /// The value of one source.
    pub fn value(&self, name: &str, source: MetricSource) -> Option<f64> {
        let metric = self
            .iter_source(source)
            .find(|metric| &*metric.name == name)?;
        Some(metric.value)
    }

    /// Reports that were left out.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    fn has_capacity_for(&self, source: MetricSource) -> bool {
        self.iter_source(source).count() < METRICS_MAX
    }
}

/// Finite, 0 to [`QUANTITY_MAX`].
fn is_quantity(value: f64) -> bool {
    (0.0..=QUANTITY_MAX).contains(&value)
}
