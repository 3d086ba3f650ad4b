//! Rhythm of the probes of an instance that loads: dense at first, so that a quick server is used at once.
//!
//! Not the probe itself, which is the backend's.

use std::time::Duration;

use infergate_core::Millis;

/// Ends of the first two spans after the start, and the pauses within and behind them.
const DENSE_UNTIL: Millis = Millis(1000);
const MEDIUM_UNTIL: Millis = Millis(10_000);
const DENSE: Duration = Duration::from_millis(25);
const MEDIUM: Duration = Duration::from_millis(100);
const SPARSE: Duration = Duration::from_millis(500);

/// Returns the pause before the next probe of an instance that was started so long ago.
pub fn probe_pause(since_start: Millis) -> Duration {
    match since_start {
        span if span < DENSE_UNTIL => DENSE,
        span if span < MEDIUM_UNTIL => MEDIUM,
        _ => SPARSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_become_rarer_with_the_age_of_the_load() {
        let pauses = [0, 999, 1000, 9999, 10_000, 600_000].map(|at| probe_pause(Millis(at)));
        assert_eq!(pauses, [DENSE, DENSE, MEDIUM, MEDIUM, SPARSE, SPARSE]);
    }
}
