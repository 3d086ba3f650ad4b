//! The metrics of one model, as counters held ready: the served path never looks up a label.
//!
//! Each model has a registry of its own, so that its series live exactly as long as the model
//! stands in the configuration. Labels come from closed sets: dialects, outcomes, attempt results and
//! reasons of this program, endpoints of the configuration. Names and meanings are in
//! `docs/metrics.md`.

use infergate_core::admission::PermitClass;
use infergate_core::routing::{FallbackReason, Health};
use std::collections::HashMap;

use infergate_core::api::dialects::DIALECTS;
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry,
};

use super::admission_metrics::{AdmissionMetrics, AdmissionResult};
use super::class_metrics::ClassMetrics;
use super::event::{InferenceEvent, RequestOutcome};
use super::metrics::{AttemptResult, EndpointChange, ForwardResult, ModelLevels};
use super::permit_window::{PermitSample, PermitWindow, WindowSummary};
use super::refusal_metrics::RefusalMetrics;
use super::websocket_metrics::{ConnectionEnd, OpenWebSocket, WebSocketMetrics};
use super::work_metrics::WorkGauges;

/// Whole requests: from an embedding in milliseconds to the default ceiling of 240 s. Four or five
/// to the decade keep a quantile within a factor of 2.5.
const DURATION_BUCKETS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0,
];

/// Waiting for a permit: the first bucket is "did not wait", the last those who waited for most of
/// a usual deadline.
const QUEUE_WAIT_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// Time to first token: finest between 100 ms and 2 s, where people notice.
const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
];

/// Relation of a reported metric to its estimate.
const COMPARED: [&str; 3] = ["match", "mismatch", "unknown"];

/// Counters and histograms of one model. Share it in an `Arc`, beside the model's other state.
pub struct ModelMetrics {
    registry: Registry,
    /// By dialect, by outcome.
    requests: [[IntCounter; RequestOutcome::ALL.len()]; DIALECTS.len()],
    refusals: RefusalMetrics,
    durations: DurationMetrics,
    usage: UsageMetrics,
    admissions: AdmissionMetrics,
    classes: ClassMetrics,
    attempts: [IntCounter; AttemptResult::ALL.len()],
    forwards: [IntCounter; ForwardResult::ALL.len()],
    /// By [`FallbackReason`].
    fallbacks: [IntCounter; FallbackReason::ALL.len()],
    discovery: DiscoveryMetrics,
    websockets: WebSocketMetrics,
    gauges: ModelGauges,
    /// Held by the sampler and by a scrape, for one step of the ring.
    window: Mutex<PermitWindow>,
}

/// Durations of requests.
struct DurationMetrics {
    request: Histogram,
    queue_wait: Histogram,
    first_token: Histogram,
}

/// Usage and cost of responses.
struct UsageMetrics {
    input_tokens: IntCounter,
    output_tokens: IntCounter,
    cached_tokens: IntCounter,
    neurons: Counter,
    billing_fallbacks: IntCounter,
    unmetered: IntCounter,
    /// By [`COMPARED`].
    comparisons: [IntCounter; COMPARED.len()],
}

/// Discovered endpoints.
struct DiscoveryMetrics {
    endpoints: IntGauge,
    changes: [IntCounter; EndpointChange::ALL.len()],
}

/// Set from [`ModelLevels`] at each scrape.
struct ModelGauges {
    permits_used: IntGauge,
    permits_limit: IntGauge,
    queue_depth: IntGauge,
    endpoint_health: IntGaugeVec,
    work: WorkGauges,
    mean_used_permits: Gauge,
    mean_queue_size: Gauge,
    total_permits: IntGauge,
    full_fraction: Gauge,
}

impl DurationMetrics {
    fn new(registry: &Registry) -> DurationMetrics {
        DurationMetrics {
            request: histogram(
                registry,
                "infergate_request_duration_seconds",
                "first byte in to last byte out, of requests that were not refused",
                DURATION_BUCKETS,
            ),
            queue_wait: histogram(
                registry,
                "infergate_queue_wait_seconds",
                "waiting for a permit, of requests that got one or waited for one",
                QUEUE_WAIT_BUCKETS,
            ),
            first_token: histogram(
                registry,
                "infergate_time_to_first_token_seconds",
                "first byte in to first byte of the answer's body",
                FIRST_TOKEN_BUCKETS,
            ),
        }
    }

    fn count(&self, event: &InferenceEvent) {
        if event.outcome != RequestOutcome::Refused {
            self.request.observe(seconds(event.request_time_us));
        }
        if event.queued || event.attempts > 0 {
            self.queue_wait.observe(seconds(event.queuing_time_us));
        }
        if let Some(first_token_us) = event.time_to_first_token_us {
            self.first_token.observe(seconds(first_token_us));
        }
    }
}

impl ModelMetrics {
    pub(super) fn new(model: &str) -> ModelMetrics {
        let labels = HashMap::from([("model".to_owned(), model.to_owned())]);
        let registry = Registry::new_custom(None, Some(labels))
            .expect("without a prefix there is none to be wrong");
        let requests = counters(
            &registry,
            "infergate_requests_total",
            "requests that got past framing, by how they ended",
            &["face", "outcome"],
        );
        let attempts = counters(
            &registry,
            "infergate_upstream_attempts_total",
            "requests sent to a model server, by what came of it",
            &["result"],
        );
        let forwards = counters(
            &registry,
            "infergate_forwards_total",
            "requests sent to another node, by what came of it",
            &["result"],
        );
        let fallbacks = counters(
            &registry,
            "infergate_fallbacks_total",
            "requests that moved to the next fallback, by the reason to leave this model",
            &["reason"],
        );
        ModelMetrics {
            requests: DIALECTS.map(|dialect| {
                RequestOutcome::ALL
                    .map(|outcome| requests.with_label_values(&[dialect.name(), outcome.name()]))
            }),
            refusals: RefusalMetrics::new(
                counters(
                    &registry,
                    "infergate_errors_total",
                    "requests that ended with an error, by the code in their event",
                    &["code"],
                ),
                counters(
                    &registry,
                    "infergate_refusals_total",
                    "requests this gateway refused, by the reason given to the client",
                    &["reason"],
                ),
            ),
            durations: DurationMetrics::new(&registry),
            usage: UsageMetrics::new(&registry),
            admissions: AdmissionMetrics::new(&registry),
            classes: ClassMetrics::new(&registry, QUEUE_WAIT_BUCKETS),
            attempts: AttemptResult::ALL.map(|result| attempts.with_label_values(&[result.name()])),
            forwards: ForwardResult::ALL.map(|result| forwards.with_label_values(&[result.name()])),
            fallbacks: FallbackReason::ALL
                .map(|reason| fallbacks.with_label_values(&[reason.name()])),
            discovery: DiscoveryMetrics::new(&registry),
            websockets: WebSocketMetrics::new(&registry),
            gauges: ModelGauges::new(&registry),
            window: Mutex::new(PermitWindow::default()),
            registry,
        }
    }

    /// Counts a finished request; the only call that does.
    pub fn record_request(&self, event: &InferenceEvent) {
        // `Outcome::ALL` is in the order of the enum, a test holds it to that.
        self.requests[event.dialect.index()][event.outcome as usize].inc();
        if let Some(code) = event.error_code {
            self.refusals.record_error(code);
        }
        if event.outcome == RequestOutcome::Refused {
            let reason = event.reason.unwrap_or("unknown");
            self.refusals.record_refusal(event.error_code, reason);
        }
        self.durations.count(event);
        self.usage.count(event);
    }

    /// Counts the admission result of a request, or of a retry.
    pub fn record_admission(&self, admission: AdmissionResult<'_>) {
        self.admissions.count(admission);
    }

    /// Counts a finished wait for a permit of a class.
    pub fn record_class_wait(&self, class: PermitClass, waited_us: u64) {
        self.classes.observe_wait(class, waited_us);
    }

    /// Counts the health of the endpoint given to a request, or to a retry.
    pub fn record_endpoint_health(&self, health: Health) {
        self.admissions.count_health(health);
    }

    /// Counts a finished attempt at a model server.
    pub fn record_attempt(&self, result: AttemptResult) {
        self.attempts[result as usize].inc();
    }

    /// Counts a forward that was answered or returned.
    pub fn record_forward(&self, result: ForwardResult) {
        self.forwards[result as usize].inc();
    }

    /// Counts a fallback from this model to the next one.
    pub fn record_fallback(&self, reason: FallbackReason) {
        self.fallbacks[reason as usize].inc();
    }

    /// Counts an endpoint that was found, or is no longer found.
    pub fn record_endpoint_change(&self, change: EndpointChange) {
        self.discovery.changes[change as usize].inc();
    }

    /// Counts a WebSocket as open until the guard is dropped.
    pub fn open_websocket(&self) -> OpenWebSocket {
        self.websockets.open()
    }

    /// Counts a WebSocket that has ended.
    pub fn record_websocket_end(&self, end: ConnectionEnd) {
        self.websockets.record_end(end);
    }

    /// Sets the number of discovered endpoints.
    pub fn set_endpoints_discovered(&self, count: usize) {
        self.discovery
            .endpoints
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// The five-minute window as it stands.
    pub fn window(&self) -> WindowSummary {
        self.window.lock().summary()
    }

    pub(super) fn sample(&self, levels: &ModelLevels) {
        self.window.lock().sample(PermitSample {
            permits_used: levels.permits_used,
            permits_limit: levels.permits_limit,
            queue_depth: levels.queue_depth,
        });
    }

    /// Counts a complete response without usage.
    pub fn record_unmetered_response(&self) {
        self.usage.unmetered.inc();
    }

    /// Sets the gauges; the caller keeps two scrapes from doing so at once.
    pub(super) fn set(&self, levels: &ModelLevels) {
        self.gauges.set(levels, self.window());
        self.classes
            .set(levels.permits_used, levels.durable_permits_used);
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        self.registry.gather()
    }
}

impl UsageMetrics {
    fn new(registry: &Registry) -> UsageMetrics {
        let neurons = Counter::new(
            "infergate_neurons_total",
            "price of what was used, in neurons",
        )
        .expect("the name is a well-formed constant");
        let comparisons = counters(
            registry,
            "infergate_metric_comparisons_total",
            "reported metrics held against the estimate, by what came of it",
            &["result"],
        );
        UsageMetrics {
            input_tokens: counter(registry, "infergate_input_tokens_total", "prompt tokens"),
            output_tokens: counter(
                registry,
                "infergate_output_tokens_total",
                "generated tokens",
            ),
            cached_tokens: counter(
                registry,
                "infergate_cached_tokens_total",
                "prompt tokens the model server had in its cache",
            ),
            neurons: register(registry, neurons),
            billing_fallbacks: counter(
                registry,
                "infergate_billing_fallbacks_total",
                "requests priced without the newest revision of their billing plugin, which failed",
            ),
            unmetered: counter(
                registry,
                "infergate_answers_unmetered_total",
                "whole answers whose model server did not say what they used",
            ),
            comparisons: COMPARED.map(|result| comparisons.with_label_values(&[result])),
        }
    }

    fn count(&self, event: &InferenceEvent) {
        let tokens = event.metrics;
        self.input_tokens.inc_by(tokens.input_tokens.unwrap_or(0));
        self.output_tokens.inc_by(tokens.output_tokens.unwrap_or(0));
        self.cached_tokens.inc_by(tokens.cached_tokens.unwrap_or(0));
        // The library panics on what a price cannot be.
        if let Some(neurons) = event.neurons.filter(|n| n.is_finite() && *n >= 0.0) {
            self.neurons.inc_by(neurons);
        }
        if event.flags.billing_fallback {
            self.billing_fallbacks.inc();
        }
        for one in &event.comparison {
            let result = match one.matches {
                Some(true) => 0,
                Some(false) => 1,
                None => 2,
            };
            self.comparisons[result].inc();
        }
    }
}

impl DiscoveryMetrics {
    fn new(registry: &Registry) -> DiscoveryMetrics {
        let changes = counters(
            registry,
            "infergate_endpoint_changes_total",
            "endpoints that were found, and that were not found any more",
            &["change"],
        );
        DiscoveryMetrics {
            endpoints: gauge(
                registry,
                "infergate_endpoints_discovered",
                "endpoints that were found, not configured",
            ),
            changes: EndpointChange::ALL.map(|change| changes.with_label_values(&[change.name()])),
        }
    }
}

impl ModelGauges {
    fn new(registry: &Registry) -> ModelGauges {
        let endpoint_health = IntGaugeVec::new(
            Opts::new(
                "infergate_endpoint_health",
                "1 for the state the endpoint is in",
            ),
            &["endpoint", "health"],
        )
        .expect("the name and labels are well-formed constants");
        ModelGauges {
            permits_used: gauge(registry, "infergate_permits_used", "permits in use"),
            permits_limit: gauge(registry, "infergate_permits_limit", "permits there are"),
            queue_depth: gauge(
                registry,
                "infergate_queue_depth",
                "requests waiting for a permit",
            ),
            endpoint_health: register(registry, endpoint_health),
            work: WorkGauges::new(registry),
            mean_used_permits: mean(
                registry,
                "infergate_mean_used_permits",
                "mean of permits in use over five minutes",
            ),
            mean_queue_size: mean(
                registry,
                "infergate_mean_queue_size",
                "mean of waiting requests over five minutes",
            ),
            total_permits: gauge(
                registry,
                "infergate_total_permits",
                "permits there were at the newest sample of the five-minute window",
            ),
            full_fraction: mean(
                registry,
                "infergate_full_fraction",
                "fraction of five minutes in which all permits were used",
            ),
        }
    }

    fn set(&self, levels: &ModelLevels, window: WindowSummary) {
        self.permits_used.set(levels.permits_used.into());
        self.permits_limit.set(levels.permits_limit.into());
        self.queue_depth.set(levels.queue_depth.into());
        self.mean_used_permits.set(window.mean_used_permits);
        self.mean_queue_size.set(window.mean_queue_size);
        self.total_permits.set(window.total_permits.into());
        self.full_fraction.set(window.full_fraction);
        self.endpoint_health.reset();
        self.work.reset();
        for endpoint in &levels.endpoints {
            if let Some(work) = &endpoint.work {
                self.work.set(&endpoint.url, work);
            }
            for health in Health::ALL {
                self.endpoint_health
                    .with_label_values(&[&*endpoint.url, health.name()])
                    .set((endpoint.health == health).into());
            }
        }
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> C {
    registry
        .register(Box::new(collector.clone()))
        .expect("each name is registered once, in a registry made for it");
    collector
}

pub(super) fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> IntCounterVec {
    let family = IntCounterVec::new(Opts::new(name, help), labels)
        .expect("the name and labels are well-formed constants");
    register(registry, family)
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    register(
        registry,
        IntCounter::new(name, help).expect("the name is a well-formed constant"),
    )
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    register(
        registry,
        IntGauge::new(name, help).expect("the name is a well-formed constant"),
    )
}

fn mean(registry: &Registry, name: &str, help: &str) -> Gauge {
    register(
        registry,
        Gauge::new(name, help).expect("the name is a well-formed constant"),
    )
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let histogram = Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
        .expect("the name is well-formed and the buckets ascend");
    register(registry, histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_set_is_in_the_order_of_its_enum() {
        assert!(
            RequestOutcome::ALL
                .iter()
                .enumerate()
                .all(|(at, outcome)| *outcome as usize == at)
        );
        assert!(
            FallbackReason::ALL
                .iter()
                .enumerate()
                .all(|(at, reason)| *reason as usize == at)
        );
        assert!(
            AttemptResult::ALL
                .iter()
                .enumerate()
                .all(|(at, result)| *result as usize == at)
        );
        assert!(
            EndpointChange::ALL
                .iter()
                .enumerate()
                .all(|(at, change)| *change as usize == at)
        );
    }

    #[test]
    fn buckets_ascend() {
        for buckets in [DURATION_BUCKETS, QUEUE_WAIT_BUCKETS, FIRST_TOKEN_BUCKETS] {
            assert!(buckets.is_sorted_by(|a, b| a < b));
        }
    }
}
