//! Call statistics of one revision since it was made.
//!
//! Decides nothing about calls: the breaker does. Atomic numbers, each by itself; a reader may see one call
//! in some of them and not in others.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use infergate_core::Millis;

use crate::plugin::failure::Failure;

/// A revision of whose calls more than one in so many failed has no good record.
const GOOD_ONE_IN: u64 = 100;
/// Crashes a revision may log in a second; more are counted.
const CRASH_LINES_PER_SECOND: u64 = 2;

/// Call statistics of a revision.
#[derive(Default)]
pub struct CallStats {
    pub calls: AtomicU64,
    /// By class, in the order of [`Failure::CLASSES`].
    pub failures: [AtomicU64; Failure::CLASSES.len()],
    /// Microseconds of a call, smoothed.
    pub mean_us: AtomicU32,
    /// Microseconds that making a guest takes: measured when the revision was loaded.
    pub setup_us: AtomicU32,
    /// Microseconds of its fixtures when it was loaded; 0 without any.
    pub fixture_p50_us: AtomicU64,
    pub fixture_p99_us: AtomicU64,
    /// Memory of a guest under them.
    pub peak_bytes: AtomicU64,
    /// Memory of the largest guest that failed.
    pub crash_bytes: AtomicU64,
    /// Prices that were answered.
    pub prices: AtomicU64,
    /// Its answers depend on what an instance remembers: none is used again.
    pub is_stateful: AtomicBool,
    crash_second: AtomicU64,
    crash_lines: AtomicU64,
    pub crashes_unlogged: AtomicU64,
}

impl CallStats {
    /// True when it has answered calls, and of [`GOOD_ONE_IN`] at most one has failed.
    pub fn has_good_record(&self) -> bool {
        let calls = self.calls.load(Ordering::Relaxed);
        // Calls that were not made do not count.
        let made = Failure::CLASSES.iter().zip(&self.failures);
        let failed: u64 = made
            .filter(|(class, _)| **class != "unavailable")
            .map(|(_, count)| count.load(Ordering::Relaxed))
            .sum();
        calls > failed && failed * GOOD_ONE_IN <= calls
    }

    /// Moves the mean an eighth of the way to what a call took.
    pub fn record_duration(&self, took_us: u64) {
        let took = u32::try_from(took_us).unwrap_or(u32::MAX);
        let mean = self.mean_us.load(Ordering::Relaxed);
        let next = match mean {
            0 => took,
            mean => mean - mean / 8 + took / 8,
        };
        self.mean_us.store(next, Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failure by its class.
    pub fn count_failure(&self, failure: &Failure) {
        let at = Failure::CLASSES
            .iter()
            .position(|class| *class == failure.class());
        if let Some(at) = at {
            self.failures[at].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// True when a failed call of this moment may be logged; the others are counted.
    pub fn may_log_crash(&self, now: Millis) -> bool {
        let second = now.0 / 1000;
        if self.crash_second.swap(second, Ordering::Relaxed) != second {
            self.crash_lines.store(0, Ordering::Relaxed);
        }
        let may = self.crash_lines.fetch_add(1, Ordering::Relaxed) < CRASH_LINES_PER_SECOND;
        if !may {
            self.crashes_unlogged.fetch_add(1, Ordering::Relaxed);
        }
        may
    }
}

/// The value that so many of a hundred do not exceed; none of none.
pub fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied()
}
