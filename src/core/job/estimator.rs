//! Expected permit time of a deployable's jobs, and the rate at which its queue drains.
//!
//! A prediction, not a decision. An exponential mean, as the retransmission timer of TCP has it
//! (<https://datatracker.ietf.org/doc/html/rfc6298>).

use super::store_time::StoreTime;
use crate::Millis;

/// Permit time of a job before any has ended.
const FIRST_HOLD: Millis = Millis(1000);
/// Weight of the newest hold once there are as many.
const GAIN: f64 = 1.0 / 32.0;
/// Least and most `Retry-After` of a full queue.
const RETRY_AFTER: (Millis, Millis) = (Millis::from_secs(1), Millis::from_secs(600));

/// Holds and ends of one deployable.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldEstimator {
    samples: u32,
    mean_ms: f64,
    /// Mean time between two ends, milliseconds.
    gap_ms: f64,
    ended_at: Option<StoreTime>,
}

impl HoldEstimator {
    /// Records a job that ended at `now` after it had held a permit for `hold`.
    pub fn record(&mut self, hold: Millis, now: StoreTime) {
        self.samples = self.samples.saturating_add(1);
        let gain = GAIN.max(1.0 / f64::from(self.samples));
        self.mean_ms += gain * (hold.0 as f64 - self.mean_ms);
        if let Some(before) = self.ended_at {
            self.gap_ms += gain * (now.since(before).0 as f64 - self.gap_ms);
        }
        self.ended_at = Some(now);
    }

    /// Returns the expected hold of a job.
    pub fn expected(&self) -> Millis {
        match self.samples {
            0 => FIRST_HOLD,
            _ => Millis(self.mean_ms.round() as u64),
        }
    }

    /// Returns when one more job may fit into a full queue: the mean time between two ends, in whole seconds.
    pub fn retry_after(&self) -> Millis {
        let (least, most) = RETRY_AFTER;
        Millis((self.gap_ms.ceil() as u64).div_ceil(1000) * 1000).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hold_is_a_second_until_one_is_known() {
        let mut estimator = HoldEstimator::default();
        assert_eq!(estimator.expected(), Millis(1000));
        for n in 0..100 {
            estimator.record(Millis(4000), StoreTime(n * 2500));
        }
        assert_eq!(estimator.expected(), Millis(4000));
        assert_eq!(estimator.retry_after(), Millis(3000));
    }
}
