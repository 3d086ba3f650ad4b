//! Choice of the figures that are billed, once the response is complete; no counting, no pricing.
//!
//! Known in the source as the three flags of billing metrics. Metrics that a task derives from the input
//! (image steps, characters) are billed in every mode: the gateway knows them itself. Metrics that a task
//! reads in the response (a usage object, the seconds of a sound) are trusted as far as the server is.

use std::sync::Arc;

use super::charge::{METRICS_MAX, Metric, MetricSource};
use super::metrics::Metrics;
use crate::model::Trust;

/// Counts that differ by no more than this agree: a word or two at the edges.
const MATCH_WITHIN: f64 = 2.0;

/// Larger counts agree when they differ by no more than this share of the reported one. The source
/// requires equality, which words × 4/3 hardly ever meets.
const MATCH_WITHIN_PERCENT: f64 = 10.0;

/// The billed metrics and where they came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// Unique names, sorted; at most [`METRICS_MAX`].
    pub metrics: Vec<Metric>,
    /// Origin of the whole: [`MetricSource::Estimated`] as soon as one metric is an estimate,
    /// [`MetricSource::Derived`] where all of them are the task's.
    pub source: MetricSource,
    /// Comparison of reported figures and estimates, with [`Trust::Compare`]: every metric that has
    /// either, by name.
    pub comparison: Vec<MetricComparison>,
}

/// Reported and estimated value of a metric; at least one of them is present.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricComparison {
    /// The metric.
    pub metric: Arc<str>,
    /// Value reported by the server; this one is billed.
    pub reported: Option<f64>,
    /// Value counted by the gateway.
    pub estimated: Option<f64>,
    /// The values differ by at most 2, or by at most a tenth of the reported one; none where one is
    /// missing.
    pub matches: Option<bool>,
}

/// Chooses the figures.
///
/// - `trust`: the server's report, then the task's metrics of the response, then those of the input. An
///   estimate fills gaps only, and is marked as such.
/// - `estimate`: the estimates, then the task's metrics of the input. Figures of the server are not used,
///   neither reported nor read in the response.
/// - `compare`: as `trust`, with the comparison.
///
/// `metrics` holds all reports, `estimated` the gateway's own counts.
pub fn settle(trust: Trust, metrics: &Metrics, estimated: &[(String, f64)]) -> Settlement {
    let mut all = metrics.clone();
    all.report_all(
        estimated,
        MetricSource::Estimated,
        &super::MetricModes::new(),
    );
    let order: &[MetricSource] = match trust {
        Trust::Trust | Trust::Compare => &[
            MetricSource::Reported,
            MetricSource::Answered,
            MetricSource::Derived,
            MetricSource::Estimated,
        ],
        Trust::Estimate => &[MetricSource::Estimated, MetricSource::Derived],
    };
    let mut chosen: Vec<Metric> = Vec::new();
    for metric in order.iter().flat_map(|source| all.iter_source(*source)) {
        if !chosen.iter().any(|other| other.name == metric.name) {
            chosen.push(metric.clone());
        }
    }
    // The sources that come first keep their places.
    chosen.truncate(METRICS_MAX);
    let has = |source| chosen.iter().any(|metric| metric.source == source);
    let source = match (has(MetricSource::Estimated), has(MetricSource::Reported)) {
        (true, _) => MetricSource::Estimated,
        (false, true) => MetricSource::Reported,
        (false, false) => MetricSource::Derived,
    };
    chosen.sort_by(|one, other| one.name.cmp(&other.name));
    Settlement {
        metrics: chosen,
        source,
        comparison: match trust {
            Trust::Compare => compare(&all),
            Trust::Trust | Trust::Estimate => Vec::new(),
        },
    }
}

fn compare(all: &Metrics) -> Vec<MetricComparison> {
    let sides = [
        MetricSource::Reported,
        MetricSource::Answered,
        MetricSource::Estimated,
    ];
    let mut pairs: Vec<MetricComparison> = Vec::new();
    for metric in sides.iter().flat_map(|source| all.iter_source(*source)) {
        if pairs.iter().any(|pair| pair.metric == metric.name) {
            continue;
        }
        let of = |source| all.value(&metric.name, source);
        let reported = of(MetricSource::Reported).or(of(MetricSource::Answered));
        let estimated = of(MetricSource::Estimated);
        let both = reported.zip(estimated);
        pairs.push(MetricComparison {
            metric: Arc::clone(&metric.name),
            reported,
            estimated,
            matches: both.map(|(reported, estimated)| is_match(reported, estimated)),
        });
    }
    pairs.sort_by(|one, other| one.metric.cmp(&other.metric));
    pairs
}

fn is_match(reported: f64, estimated: f64) -> bool {
    let within = MATCH_WITHIN.max(reported * MATCH_WITHIN_PERCENT / 100.0);
    (reported - estimated).abs() <= within
}

/// Adds the two parts of a prompt that may have prices of their own: `cached_input_tokens`, which came
/// from a prefix cache, and `uncached_input_tokens`, the rest. `is_wanted` says whether a tariff names
/// one; without a figure for the input there are none.
pub fn add_parts_of_input(metrics: &mut Vec<Metric>, is_priced: impl Fn(&str) -> bool) {
    let value = |name: &str| metrics.iter().find(|metric| &*metric.name == name);
    let Some(input) = value("input_tokens").cloned() else {
        return;
    };
    let cached = value("cached_tokens").map_or(0.0, |cached| cached.value.min(input.value));
    let parts = [
        ("cached_input_tokens", cached),
        ("uncached_input_tokens", input.value - cached),
    ];
    if !parts.iter().any(|(name, _)| is_priced(name)) {
        return;
    }
    for (name, value) in parts {
        add(metrics, name, value, input.source);
    }
    metrics.sort_by(|one, other| one.name.cmp(&other.name));
}

/// Adds the seconds of a job that a tariff has prices for: `predict_secs`, its run, unless the server tells them, and
/// `total_secs`, since its create.
pub fn add_seconds_of_job(
    metrics: &mut Vec<Metric>,
    (run, total): (f64, f64),
    is_priced: impl Fn(&str) -> bool,
) {
    for (name, secs) in [("predict_secs", run), ("total_secs", total)] {
        if is_priced(name) {
            add(metrics, name, secs, MetricSource::Derived);
        }
    }
    metrics.sort_by(|one, other| one.name.cmp(&other.name));
}

/// Adds a metric that is not there yet.
fn add(metrics: &mut Vec<Metric>, name: &str, value: f64, source: MetricSource) {
    if metrics.len() < METRICS_MAX && !metrics.iter().any(|metric| &*metric.name == name) {
        let name = name.into();
        metrics.push(Metric {
            name,
            value,
            source,
        });
    }
}
