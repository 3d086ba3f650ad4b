//! Counters of one model's admission results, and of the health of the endpoints that requests were
//! sent to.
//!
//! Decides nothing. Known in the source as the turnstile outcomes and the inferences per health
//! state.

use infergate_core::Refusal;
use infergate_core::routing::Health;
use prometheus::{IntCounter, IntCounterVec, Registry};

use super::model_metrics::counters;

/// Cause of an outcome that needs none.
const NO_CAUSE: &str = "none";

/// Counters of one model, in its registry.
pub(super) struct AdmissionMetrics {
    leased: IntCounter,
    queued: IntCounter,
    /// By outcome and cause.
    outcomes: IntCounterVec,
    /// In the order of [`Health::ALL`].
    by_health: [IntCounter; Health::ALL.len()],
}

/// Outcome of asking for a permit.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionResult<'a> {
    /// Granted at once.
    Leased,
    /// A place in the queue.
    Queued,
    /// Refused, neither permit nor place.
    NoSlots(&'a Refusal),
}

impl AdmissionMetrics {
    pub(super) fn new(registry: &Registry) -> AdmissionMetrics {
        let outcomes = counters(
            registry,
            "infergate_admissions_total",
            "requests and retries that came for a permit, by what they got at once",
            &["outcome", "cause"],
        );
        let by_health = counters(
            registry,
            "infergate_endpoint_requests_total",
            "requests and retries that were given an endpoint, by the health it had then",
            &["health"],
        );
        AdmissionMetrics {
            leased: outcomes.with_label_values(&["leased", NO_CAUSE]),
            queued: outcomes.with_label_values(&["queued", NO_CAUSE]),
            outcomes,
            by_health: Health::ALL.map(|health| by_health.with_label_values(&[health.name()])),
        }
    }

    pub(super) fn count(&self, admission: AdmissionResult<'_>) {
        match admission {
            AdmissionResult::Leased => self.leased.inc(),
            AdmissionResult::Queued => self.queued.inc(),
            AdmissionResult::NoSlots(refusal) => {
                let labels = ["no_slots", refusal.cause()];
                self.outcomes.with_label_values(&labels).inc();
            }
        }
    }

    pub(super) fn count_health(&self, health: Health) {
        // `Health::ALL` is in the order of the enum, a test holds it to that.
        self.by_health[health as usize].inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_in_the_order_of_its_enum() {
        let mut all = Health::ALL.iter().enumerate();
        assert!(all.all(|(at, health)| *health as usize == at));
    }
}
