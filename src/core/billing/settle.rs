//! Which of the figures are billed, once the answer is over.
//!
//! Known in the source as the three flags of billing metrics. It counts nothing and prices
//! nothing. What a task worked out from the input (image steps, characters) is billed in every
//! mode: it is the gateway's own knowledge. What a task read in the answer (a usage object, the
//! seconds of a sound) is the server's word, and is believed as far as the server is.

use std::sync::Arc;

use super::charge::{METRICS_MAX, Metric, Source};
use super::metrics::Metrics;
use crate::model::Trust;

/// Counts that differ by no more than this agree: a word or two at the edges.
const MATCH_WITHIN: f64 = 2.0;

/// They agree too when they differ by no more than this share of the reported one. The source
/// wants equality, which words × 4/3 hardly ever meets.
const MATCH_WITHIN_PERCENT: f64 = 10.0;

/// What is billed.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// Each name once, by name; at most [`METRICS_MAX`].
    pub metrics: Vec<Metric>,
    /// Whose figures they are: [`Source::Derived`] where there are none but the task's, of input
    /// or answer.
    pub source: Source,
    /// How a reported figure compares to the estimate, with [`Trust::Compare`] and when there are
    /// both for some metric. The first that does not agree, else the first, by name.
    pub comparison: Option<Comparison>,
}

/// A figure reported and counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The metric.
    pub metric: Arc<str>,
    /// What the server said; this is billed.
    pub reported: f64,
    /// What the gateway counted.
    pub estimated: f64,
    /// They differ by at most 2, or by at most a tenth of the reported one.
    pub matches: bool,
}

/// Chooses the figures.
///
/// - `trust`: the server's, then what the task read in the answer, then what it worked out from the
///   input; estimates only where the server reported nothing at all, and marked as such.
/// - `estimate`: the estimates, then what the task worked out from the input; nothing that comes
///   from the server is used, whether it reported it or the task read it in its answer.
/// - `compare`: as `trust`, with the comparison.
///
/// `metrics` holds all that was reported, `estimated` what the gateway counted besides.
pub fn settle(trust: Trust, metrics: &Metrics, estimated: &[(String, f64)]) -> Settled {
    let mut all = metrics.clone();
    all.report_all(estimated, Source::Estimated, &super::MetricModes::new());
    let has_reports = all.of(Source::Reported).next().is_some();
    let has_estimates = all.of(Source::Estimated).next().is_some();
    let (order, source): (&[Source], Source) = match trust {
        Trust::Trust | Trust::Compare if has_reports => (
            &[Source::Reported, Source::Answered, Source::Derived],
            Source::Reported,
        ),
        Trust::Trust | Trust::Compare if has_estimates => (
            &[Source::Answered, Source::Derived, Source::Estimated],
            Source::Estimated,
        ),
        Trust::Trust | Trust::Compare => (&[Source::Answered, Source::Derived], Source::Derived),
        Trust::Estimate if has_estimates => {
            (&[Source::Estimated, Source::Derived], Source::Estimated)
        }
        Trust::Estimate => (&[Source::Derived], Source::Derived),
    };
    let mut chosen: Vec<Metric> = Vec::new();
    for metric in order.iter().flat_map(|source| all.of(*source)) {
        if !chosen.iter().any(|other| other.name == metric.name) {
            chosen.push(metric.clone());
        }
    }
    // The sources that come first keep their places.
    chosen.truncate(METRICS_MAX);
    chosen.sort_by(|one, other| one.name.cmp(&other.name));
    Settled {
        metrics: chosen,
        source,
        comparison: (trust == Trust::Compare).then(|| compare(&all)).flatten(),
    }
}

fn compare(all: &Metrics) -> Option<Comparison> {
    let read = all.of(Source::Answered);
    let read = read.filter(|metric| all.value(&metric.name, Source::Reported).is_none());
    let mut pairs: Vec<Comparison> = all
        .of(Source::Reported)
        .chain(read)
        .filter_map(|metric| {
            let estimated = all.value(&metric.name, Source::Estimated)?;
            Some(Comparison {
                metric: Arc::clone(&metric.name),
                reported: metric.value,
                estimated,
                matches: agree(metric.value, estimated),
            })
        })
        .collect();
    pairs.sort_by(|one, other| (one.matches, &one.metric).cmp(&(other.matches, &other.metric)));
    pairs.into_iter().next()
}

fn agree(reported: f64, estimated: f64) -> bool {
    let within = MATCH_WITHIN.max(reported * MATCH_WITHIN_PERCENT / 100.0);
    (reported - estimated).abs() <= within
}
