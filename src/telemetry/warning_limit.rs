//! Warnings that would repeat: one in ten seconds, with the number of those left out.
//!
//! Writing the line is the caller's. Two callers at the same moment may both be due; a line more
//! is no harm.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use infergate_core::Millis;

/// Between two warnings of one kind.
const EVERY: Millis = Millis::from_secs(10);

/// The warnings of one kind, such as those about one endpoint.
#[derive(Debug, Default)]
pub struct WarningLimit {
    /// Moment at which the next one is due, milliseconds on the running clock.
    due_ms: AtomicU64,
    suppressed: AtomicU32,
}

impl WarningLimit {
    /// Returns the number of suppressed warnings when one is to be written at `now`, none while it
    /// is too early.
    pub fn due(&self, now: Millis) -> Option<u32> {
        if now.0 < self.due_ms.load(Ordering::Relaxed) {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.due_ms.store((now + EVERY).0, Ordering::Relaxed);
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_written_once_in_ten_seconds_and_counts_those_left_out() {
        let repeats = WarningLimit::default();
        assert_eq!(repeats.due(Millis(5)), Some(0));
        for at in 6..106 {
            assert_eq!(repeats.due(Millis(at)), None);
        }
        assert_eq!(repeats.due(Millis(10_005)), Some(100));
        assert_eq!(repeats.due(Millis(20_005)), Some(0));
    }
}
