//! Estimator of the service times of one class of requests, and so of how fast its queue moves.
//!
//! A prediction, not a decision. Spans are milliseconds. By Little's law the drain rate of a queue is
//! the number of permits divided by the mean hold. The law is exact while every permit is held, the only
//! time at which requests wait. The estimate follows a reload or an ejection at once, and no rate is
//! averaged over idle gaps. Mean and deviation are tracked as in TCP's round-trip timer
//! (<https://datatracker.ietf.org/doc/html/rfc6298>).

use crate::Millis;

/// Weight of the newest hold once there are as many: about the last 32 holds count, some four
/// rounds of a typical endpoint with 8 permits.
const GAIN: f64 = 1.0 / 32.0;

/// Samples below which no request is refused on an estimate.
const SAMPLES_MIN: u32 = 16;

/// Least and most `Retry-After`: below one second it cannot be expressed, above half a minute it is a guess.
const RETRY_AFTER_SECS: (u64, u64) = (1, 30);

/// Hold times of one class of a model's requests.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceTimeEstimator {
    samples: u32,
    mean_ms: f64,
    deviation_ms: f64,
    /// Time of the last grant or release of a permit.
    moved_at: Millis,
}

impl ServiceTimeEstimator {
    /// Records the grant of a permit.
    pub fn record_grant(&mut self, now: Millis) {
        self.moved_at = now;
    }

    /// Records the release of a permit that was held for `hold`.
    pub fn record_hold(&mut self, hold: Millis, now: Millis) {
        self.moved_at = now;
        self.samples = self.samples.saturating_add(1);
        // The plain mean until there are enough, so that the first hold is not believed for long.
        let gain = GAIN.max(1.0 / f64::from(self.samples));
        let error = hold.0 as f64 - self.mean_ms;
        self.mean_ms += gain * error;
        if self.samples > 1 {
            self.deviation_ms += gain * (error.abs() - self.deviation_ms);
        }
    }

    /// Returns the expected time until `ahead` others and then one more request have got one of `permits`.
    /// These are the permits that they can count on, a fraction where permits are shared in time.
    pub fn expected_wait(&self, ahead: usize, permits: f64, now: Millis) -> Millis {
        // While nothing moves the mean is out of date: holds are at least as long as the silence.
        let silence_ms = now.since(self.moved_at).0 as f64;
        let hold_ms = self.mean_ms.max(silence_ms);
        let wait_ms = (ahead as f64 + 1.0) * hold_ms / permits;
        Millis(wait_ms.ceil() as u64)
    }

    /// Returns an optimistic service time: mean less deviation, zero while unknown. A request with less
    /// time left is almost surely late.
    pub fn optimistic_service(&self) -> Millis {
        if !self.is_reliable() {
            return Millis::ZERO;
        }
        Millis((self.mean_ms - self.deviation_ms).max(0.0) as u64)
    }

    /// Returns the mean hold, zero while unknown.
    pub fn mean(&self) -> Millis {
        Millis(self.mean_ms.round() as u64)
    }

    /// Returns the mean hold; none while unknown.
    pub fn known_mean(&self) -> Option<Millis> {
        (self.samples > 0).then(|| self.mean())
    }

    /// Returns whether there are enough samples to refuse a request on an estimate.
    pub fn is_reliable(&self) -> bool {
        self.samples >= SAMPLES_MIN
    }
}

/// Returns `wait` as a `Retry-After`: whole seconds, at least 1 and at most 30.
pub(super) fn retry_after(wait: Millis) -> Millis {
    let (least, most) = RETRY_AFTER_SECS;
    Millis::from_secs(wait.0.div_ceil(1000).clamp(least, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimator_after(holds: impl IntoIterator<Item = u64>) -> ServiceTimeEstimator {
        let mut meter = ServiceTimeEstimator::default();
        for hold in holds {
            meter.record_hold(Millis(hold), Millis(0));
        }
        meter
    }

    #[test]
    fn wait_is_the_hold_times_those_ahead_over_the_permits() {
        let meter = estimator_after([100; 20]);
        assert_eq!(meter.expected_wait(0, 8.0, Millis(0)), Millis(13));
        assert_eq!(meter.expected_wait(159, 8.0, Millis(0)), Millis(2000));
        assert_eq!(meter.expected_wait(159, 16.0, Millis(0)), Millis(1000));
    }

    #[test]
    fn silence_longer_than_the_mean_hold_counts_as_the_hold() {
        let meter = estimator_after([100; 20]);
        assert_eq!(meter.expected_wait(0, 8.0, Millis(90)), Millis(13));
        assert_eq!(meter.expected_wait(0, 8.0, Millis(8000)), Millis(1000));
    }

    #[test]
    fn nothing_is_estimated_before_sixteen_holds() {
        assert_eq!(estimator_after([100; 15]).optimistic_service(), Millis(0));
        assert_eq!(estimator_after([100; 16]).optimistic_service(), Millis(100));
    }

    #[test]
    fn optimistic_service_shrinks_as_holds_scatter() {
        let scattered = estimator_after((0..200).map(|n| if n % 2 == 0 { 10 } else { 190 }));
        assert!(scattered.optimistic_service() < Millis(20), "{scattered:?}");
    }

    #[test]
    fn retry_after_is_whole_seconds_between_1_and_30() {
        let secs = |wait| retry_after(Millis(wait)).0;
        assert_eq!(
            [secs(0), secs(1000), secs(1001), secs(90_000)],
            [1000, 1000, 2000, 30_000]
        );
    }
}
