//! Metrics of webhooks: attempts, those that wait, dead letters, and delays.
//!
//! Counts what it is told; labels are words of this program.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Registry};

use super::job_metrics::{counters, register};

/// Delays of webhooks: from an attempt at once to the last one of the schedule.
const DELAY_BUCKETS: &[f64] = &[
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 14_400.0, 86_400.0, 345_600.0,
];

/// Metrics of the webhooks of a process.
pub struct WebhookMetrics {
    sent: IntCounterVec,
    pending: IntGauge,
    dead: IntCounter,
    dropped: IntCounter,
    delay: Histogram,
}

impl WebhookMetrics {
    /// Makes the series in a registry that has none of them.
    pub(super) fn new(registry: &Registry) -> WebhookMetrics {
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let delay = HistogramOpts::new(
            "infergate_webhook_delay_seconds",
            "end of a job to the acceptance of its webhook",
        );
        let pending = IntGauge::new(
            "infergate_webhooks_pending",
            "webhooks of ended jobs that are neither accepted nor given up",
        );
        WebhookMetrics {
            sent: counters(
                registry,
                "infergate_webhooks_sent_total",
                "attempts to deliver webhooks",
                &["event", "result"],
            ),
            pending: register(registry, pending),
            dead: counter(
                "infergate_webhooks_dead_total",
                "webhooks that were given up",
            ),
            dropped: counter(
                "infergate_webhooks_dropped_total",
                "dead letters that are not kept any more",
            ),
            delay: register(
                registry,
                Histogram::with_opts(delay.buckets(DELAY_BUCKETS.to_vec())),
            ),
        }
    }

    /// Records an attempt to deliver.
    pub fn record_sent(&self, event: &'static str, result: &'static str) {
        self.sent.with_label_values(&[event, result]).inc();
    }

    /// Sets the number of those that wait.
    pub fn set_pending(&self, count: usize) {
        self.pending.set(count as i64);
    }

    /// Records one that was given up.
    pub fn record_dead(&self) {
        self.dead.inc();
    }

    /// Records a dead letter that is not kept any more.
    pub fn record_dropped(&self) {
        self.dropped.inc();
    }

    /// Records an acceptance, so long after the end of the job.
    pub fn record_delay(&self, delay_ms: u64) {
        self.delay.observe(delay_ms as f64 / 1e3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_counted_by_event_and_result() {
        assert!(DELAY_BUCKETS.is_sorted_by(|a, b| a < b));
        let registry = Registry::new();
        let metrics = WebhookMetrics::new(&registry);
        metrics.record_sent("start", "accepted");
        metrics.record_sent("completed", "unanswered");
        metrics.record_sent("completed", "unanswered");
        metrics.set_pending(7);
        metrics.record_dead();
        metrics.record_dropped();
        metrics.record_delay(1500);
        let encoder = prometheus::TextEncoder::new();
        let shown = encoder.encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"infergate_webhooks_sent_total{event="start",result="accepted"} 1"#,
            r#"infergate_webhooks_sent_total{event="completed",result="unanswered"} 2"#,
            "infergate_webhooks_pending 7",
            "infergate_webhooks_dead_total 1",
            "infergate_webhooks_dropped_total 1",
            "infergate_webhook_delay_seconds_sum 1.5",
        ] {
            assert!(shown.contains(line), "no {line} in\n{shown}");
        }
    }
}
