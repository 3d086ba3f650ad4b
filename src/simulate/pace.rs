//! Due time of each token: time to first token, token rate, jitter. The tokens' text is elsewhere.
//!
//! Tokens are due at times counted from the start of the work, not one pause after the other.
//! Otherwise timer granularity (1 ms) would add up to a slower rate than configured.

use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use super::config::Config;

/// Factor on all durations under the fault `slow`.
const SLOW_FACTOR: f64 = 10.0;

/// The timetable of one response.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenPace {
    start: Instant,
    first: Duration,
    gap: Duration,
}

impl TokenPace {
    /// Builds the pace of a request that begins now; the jitter is this request's own.
    pub(super) fn start(config: &Config, slow: bool, jitter_seed: u64) -> TokenPace {
        let factor = if slow { SLOW_FACTOR } else { 1.0 };
        let mut rng = Rng::with_seed(jitter_seed);
        let mut spread = || 1.0 + config.jitter * (2.0 * rng.f64() - 1.0);
        let first_secs = config.ttft_ms as f64 / 1_000.0 * factor * spread();
        let gap_secs = match config.tokens_per_sec {
            0.0 => 0.0,
            rate => factor * spread() / rate,
        };
        TokenPace {
            start: Instant::now(),
            first: Duration::from_secs_f64(first_secs),
            gap: Duration::from_secs_f64(gap_secs),
        }
    }

    /// Moment at which token `index` (from 0) is due; `None` when it is due at once.
    pub(super) fn due(&self, index: u32) -> Option<Instant> {
        let after = self.first + self.gap * index;
        (!after.is_zero()).then(|| self.start + after)
    }
}
