//! Figures: lower deciles, medians, Jain's index and the latency histogram.
//! Not a statistics package: no figure here assumes a distribution.
//!
//! Latencies go in as `Duration` and come out in microseconds. Called wherever a bench prints a number.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency a histogram tells apart; longer ones are recorded as this one.
const LONGEST_US: u64 = 600_000_000;

/// Latencies with three significant digits.
pub struct Latencies(Histogram<u64>);

impl Latencies {
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST_US, 3).expect("bounds are constants that fit"))
    }

    pub fn record(&mut self, latency: Duration) {
        self.0
            .saturating_record((latency.as_micros() as u64).clamp(1, LONGEST_US));
    }

    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The value below which `share` (0..=1) of the latencies lie, in microseconds; 0 when none was recorded.
    pub fn quantile_us(&self, share: f64) -> u64 {
        if self.0.is_empty() {
            0
        } else {
            self.0.value_at_quantile(share)
        }
    }

    pub fn max_us(&self) -> u64 {
        self.0.max()
    }

    pub fn summary(&self) -> Quantiles {
        Quantiles {
            count: self.count(),
            p50_us: self.quantile_us(0.50),
            p99_us: self.quantile_us(0.99),
            p999_us: self.quantile_us(0.999),
            max_us: self.max_us(),
        }
    }
}

/// Summary of a histogram for reports.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Quantiles {
    pub count: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

/// Share of the values below the figure that stands for them: on a shared machine noise only adds.
const LOW: f64 = 0.1;

/// Lower decile, median and smallest of several rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub low: f64,
    pub median: f64,
    pub min: f64,
}

impl Spread {
    /// None when there is nothing to look at.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            min: *sorted.first()?,
            low: quantile(&sorted, LOW),
            median: quantile(&sorted, 0.5),
        })
    }

    /// Combines lower decile with lower decile, median with median, smallest with smallest.
    pub fn with(self, other: Spread, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            low: combine(self.low, other.low),
            median: combine(self.median, other.median),
            min: combine(self.min, other.min),
        }
    }

    /// `1.23 (1.30)`: the lower decile and the median, with the given number of decimals.
    pub fn show(&self, decimals: usize) -> String {
        format!("{:.decimals$} ({:.decimals$})", self.low, self.median)
    }
}

/// Interpolates between the two nearest of at least one value.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

/// Jain's fairness index: 1 when all shares are equal, 1/n when one takes all.
/// Shares are amounts already divided by their weights (<https://arxiv.org/abs/cs/9809099>).
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 {
        0.0
    } else {
        sum * sum / (shares.len() as f64 * squares)
    }
}
