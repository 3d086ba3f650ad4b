//! The rolling permit window: five minutes of how full a model was, known in the source system as
//! the model permit buffer.
//!
//! Does not sample by itself: the shell calls [`PermitWindow::sample`] every
//! [`SAMPLE_INTERVAL`]. A ring of [`SAMPLES`] with running sums: a sample costs the same however
//! long the window, and so does a summary.

use std::collections::VecDeque;
use std::time::Duration;

/// Samples in the window: five minutes at two a second.
pub const SAMPLES: usize = 600;

/// Time between two samples.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Permit use of a model at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PermitSample {
    /// Permits in use.
    pub permits_used: u32,
    /// Permits there are.
    pub permits_limit: u32,
    /// Requests waiting.
    pub queue_depth: u32,
}

impl PermitSample {
    /// All permits were used. Without any permit the model is full when somebody waits for it.
    fn is_full(self) -> bool {
        match self.permits_limit {
            0 => self.queue_depth > 0,
            limit => self.permits_used >= limit,
        }
    }
}

/// Summary of the window. All zero before the first sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WindowSummary {
    /// Mean of permits in use.
    pub mean_used_permits: f64,
    /// Mean of waiting requests.
    pub mean_queue_size: f64,
    /// Permits there were at the newest sample.
    pub total_permits: u32,
    /// Fraction of the samples in which all permits were used, 0 to 1.
    pub full_fraction: f64,
}

/// The samples of one model.
#[derive(Debug, Default)]
pub struct PermitWindow {
    ring: VecDeque<PermitSample>,
    used_sum: u64,
    depth_sum: u64,
    full_count: u32,
}

impl PermitWindow {
    /// Takes in one sample; the oldest leaves when the window is full.
    pub fn sample(&mut self, sample: PermitSample) {
        if self.ring.len() == SAMPLES
            && let Some(oldest) = self.ring.pop_front()
        {
            self.used_sum -= u64::from(oldest.permits_used);
            self.depth_sum -= u64::from(oldest.queue_depth);
            self.full_count -= u32::from(oldest.is_full());
        }
        self.used_sum += u64::from(sample.permits_used);
        self.depth_sum += u64::from(sample.queue_depth);
        self.full_count += u32::from(sample.is_full());
        self.ring.push_back(sample);
    }

    /// Means and fractions over the samples taken so far, [`SAMPLES`] at most.
    pub fn summary(&self) -> WindowSummary {
        let Some(newest) = self.ring.back() else {
            return WindowSummary::default();
        };
        let count = self.ring.len() as f64;
        WindowSummary {
            mean_used_permits: self.used_sum as f64 / count,
            mean_queue_size: self.depth_sum as f64 / count,
            total_permits: newest.permits_limit,
            full_fraction: f64::from(self.full_count) / count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(permits_used: u32, permits_limit: u32, queue_depth: u32) -> PermitSample {
        PermitSample {
            permits_used,
            permits_limit,
            queue_depth,
        }
    }

    #[test]
    fn an_empty_window_says_nothing() {
        assert_eq!(PermitWindow::default().summary(), WindowSummary::default());
    }

    #[test]
    fn full_fraction_counts_the_samples_with_every_permit_in_use() {
        let mut window = PermitWindow::default();
        for used in [4, 4, 2, 0] {
            window.sample(sample(used, 4, used));
        }
        let summary = window.summary();
        assert_eq!(summary.full_fraction, 0.5);
        assert_eq!(summary.mean_used_permits, 2.5);
        assert_eq!(summary.mean_queue_size, 2.5);
        assert_eq!(summary.total_permits, 4);
    }

    #[test]
    fn the_oldest_sample_leaves_after_five_minutes() {
        let mut window = PermitWindow::default();
        window.sample(sample(600, 600, 600));
        for _ in 1..SAMPLES {
            window.sample(sample(0, 600, 0));
        }
        assert_eq!(window.summary().mean_used_permits, 1.0);
        assert_eq!(window.summary().full_fraction, 1.0 / 600.0);
        window.sample(sample(0, 2, 0));
        let summary = window.summary();
        assert_eq!(
            (summary.mean_used_permits, summary.full_fraction),
            (0.0, 0.0)
        );
        assert_eq!(summary.total_permits, 2);
    }

    #[test]
    fn a_model_without_permits_is_full_only_while_somebody_waits() {
        let mut window = PermitWindow::default();
        window.sample(sample(0, 0, 0));
        assert_eq!(window.summary().full_fraction, 0.0);
        window.sample(sample(0, 0, 3));
        assert_eq!(window.summary().full_fraction, 0.5);
    }

    #[test]
    fn a_lowered_limit_with_old_permits_still_out_is_full() {
        let mut window = PermitWindow::default();
        window.sample(sample(4, 2, 0));
        assert_eq!(window.summary().full_fraction, 1.0);
    }
}
