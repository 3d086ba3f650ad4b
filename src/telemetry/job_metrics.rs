//! Metrics of durable jobs: submits, ends, queues, and the calls of their store.
//!
//! Counts what it is told and reads no store: levels come with a scrape. Series of a model and of its queues live as
//! long as the model is configured; ends of jobs whose model is not are counted under [`NO_MODEL`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::job::{DeployableKind, JobClass};
use parking_lot::RwLock;
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use super::duty_metrics::DutyMetrics;
use super::webhook_metrics::WebhookMetrics;

/// Label of jobs whose model is not configured.
const NO_MODEL: &str = "(none)";
/// Reason of a success.
const NO_REASON: &str = "none";
/// Label of the one store of the process.
const STORE: &str = "embedded";

/// Waits for the first start: from an idle queue to a day of retention.
const DELAY_BUCKETS: &[f64] = &[
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0,
];
/// Runs: from a small model to a training.
const RUN_BUCKETS: &[f64] = &[
    0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0,
];
/// Calls of a store: from a read of memory to the limit of a call.
const CALL_BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 10.0,
];
/// Calls in one transaction.
const BATCH_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Queue at one moment.
#[derive(Clone, Debug)]
pub struct JobQueueLevels {
    /// Model of the queue, as configured.
    pub model: ModelId,
    /// Key of the queue.
    pub deployable: Arc<str>,
    /// Queued jobs by class, in the order of [`JobClass::ALL`].
    pub queued: [u64; JobClass::ALL.len()],
    /// Running jobs.
    pub running: u64,
    /// Age of the oldest queued job, milliseconds.
    pub oldest_ms: u64,
}

/// Queues and store at one moment.
#[derive(Clone, Debug, Default)]
pub struct JobLevels {
    /// Queues of configured models.
    pub queues: Vec<JobQueueLevels>,
    /// The store is open.
    pub is_up: bool,
    /// The store accepts further jobs.
    pub is_accepting: bool,
    /// Part of the bytes that jobs which have not ended may have.
    pub memory_ratio: f64,
    /// Kind of the store of files, and the bytes of those.
    pub files: (&'static str, u64),
}

/// End of a job, as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct EndedJob<'a> {
    /// Model.
    pub model: &'a ModelId,
    /// Key of its queue.
    pub deployable: &'a str,
    /// Kind.
    pub kind: &'static str,
    /// State of the end.
    pub status: &'static str,
    /// Reason; none of a success.
    pub reason: Option<&'static str>,
    /// Length of the run that ended it, milliseconds; none where no run did.
    pub run_ms: Option<u64>,
}

/// Call of a store, as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct StoreCall {
    /// Verb.
    pub verb: &'static str,
    /// Seconds from the call to its answer.
    pub secs: f64,
    /// Kind of the failure; none where there was an answer.
    pub error: Option<&'static str>,
}

/// Series of one queue.
struct QueueSeries {
    registry: Registry,
    /// Model that it goes with: the first seen of those that share the queue.
    model: ModelId,
    /// In the order of [`JobClass::ALL`].
    queued: [IntGauge; JobClass::ALL.len()],
    running: IntGauge,
    oldest: Gauge,
    start_delay: Histogram,
    run: Histogram,
    /// Series only for queues whose models share the servers of a base.
    swaps: Option<IntCounter>,
}

/// Series of one model.
struct ModelSeries {
    registry: Registry,
    submitted: IntCounterVec,
    finished: IntCounterVec,
}

/// Metrics of durable jobs of a process.
pub struct JobMetrics {
    registry: Registry,
    /// Duties of the process.
    pub duties: DutyMetrics,
    memory: GaugeVec,
    files: IntGaugeVec,
    released: IntCounterVec,
    refused_writes: IntCounterVec,
    up: IntGaugeVec,
    accepting: IntGaugeVec,
    calls: HistogramVec,
    batches: HistogramVec,
    errors: IntCounterVec,
    /// Webhooks of jobs.
    pub webhooks: WebhookMetrics,
    /// Configured models; the series of one are made at its first job. Written at a reload and then.
    models: RwLock<BTreeMap<ModelId, Option<Arc<ModelSeries>>>>,
    /// By key. Written when a queue is first seen and at a reload.
    queues: RwLock<BTreeMap<Arc<str>, Arc<QueueSeries>>>,
    nameless: ModelSeries,
}

impl Default for JobMetrics {
    fn default() -> Self {
        let registry = Registry::new();
        let memory = Opts::new(
            "infergate_store_memory_ratio",
            "part of the bytes that jobs which have not ended may have",
        );
        JobMetrics {
            duties: DutyMetrics::new(&registry),
            memory: register(&registry, GaugeVec::new(memory, &["store"])),
            files: gauges(
                &registry,
                "infergate_files_bytes",
                "bytes of the files of accounts",
                "store",
            ),
            released: counters(
                &registry,
                "infergate_jobs_released_total",
                "runs of jobs that ended without a result, by cause",
                &["reason"],
            ),
            refused_writes: counters(
                &registry,
                "infergate_jobs_refused_writes_total",
                "writes of a run whose job was not its own any more",
                &["verb"],
            ),
            up: gauges(
                &registry,
                "infergate_store_up",
                "1 while the store is open",
                "store",
            ),
            accepting: gauges(
                &registry,
                "infergate_store_accepting",
                "1 while the store accepts further jobs",
                "store",
            ),
            calls: histograms(
                &registry,
                ("infergate_store_call_seconds", "calls of the store"),
                CALL_BUCKETS,
                &["store", "verb"],
            ),
            batches: histograms(
                &registry,
                (
                    "infergate_store_batch_items",
                    "calls that shared one transaction of the store",
                ),
                BATCH_BUCKETS,
                &["store"],
            ),
            errors: counters(
                &registry,
                "infergate_store_errors_total",
                "calls of the store that failed",
                &["store", "kind"],
            ),
            webhooks: WebhookMetrics::new(&registry),
            models: RwLock::default(),
            queues: RwLock::default(),
            nameless: ModelSeries::new(NO_MODEL),
            registry,
        }
    }
}

impl JobMetrics {
    /// Records a job that was stored. `api` is a name of this program.
    pub fn record_submitted(&self, model: &ModelId, kind: &'static str, api: &str) {
        let count = |series: &ModelSeries| series.submitted.with_label_values(&[kind, api]).inc();
        match self.model(model) {
            Some(series) => count(&series),
            None => count(&self.nameless),
        }
    }

    /// Records the end of a job.
    pub fn record_end(&self, end: EndedJob<'_>) {
        let labels = [end.kind, end.status, end.reason.unwrap_or(NO_REASON)];
        let count = |series: &ModelSeries| series.finished.with_label_values(&labels).inc();
        let Some(series) = self.model(end.model) else {
            count(&self.nameless);
            return;
        };
        count(&series);
        if let Some(run_ms) = end.run_ms {
            let queue = self.queue(end.model, end.deployable);
            queue.run.observe(seconds(run_ms));
        }
    }

    /// Records the first start of a job, so long after its submit.
    pub fn record_start(&self, model: &ModelId, deployable: &str, delay_ms: u64) {
        if self.model(model).is_some() {
            let queue = self.queue(model, deployable);
            queue.start_delay.observe(seconds(delay_ms));
        }
    }

    /// Records that a server of a base has to exchange its weights for a job of this model.
    pub fn record_weight_swap(&self, model: &ModelId, deployable: &str) {
        if self.model(model).is_some()
            && let Some(swaps) = &self.queue(model, deployable).swaps
        {
            swaps.inc();
        }
    }

    /// Records runs that ended without a result. `cause` is a word of this program.
    pub fn record_released(&self, cause: &'static str, count: u64) {
        self.released.with_label_values(&[cause]).inc_by(count);
    }

    /// Records a write of a run whose job was not its own any more.
    pub fn record_refused_write(&self, verb: &'static str) {
        self.refused_writes.with_label_values(&[verb]).inc();
    }

    /// Records a call of the store.
    pub fn record_call(&self, call: StoreCall) {
        let times = self.calls.with_label_values(&[STORE, call.verb]);
        times.observe(call.secs);
        if let Some(kind) = call.error {
            self.errors.with_label_values(&[STORE, kind]).inc();
        }
    }

    /// Records the calls of one transaction.
    pub fn record_batch(&self, items: usize) {
        let sizes = self.batches.with_label_values(&[STORE]);
        sizes.observe(items as f64);
    }

    /// Drops the series of models that are not `configured` any more.
    pub(super) fn retain(&self, configured: &[ModelId]) {
        let mut models = self.models.write();
        let mut before = std::mem::take(&mut *models);
        for model in configured {
            let series = before.remove(model).flatten();
            models.insert(model.clone(), series);
        }
        let mut queues = self.queues.write();
        queues.retain(|_, queue| models.contains_key(&queue.model));
    }

    /// Sets the gauges to the levels of a scrape.
    pub(super) fn set(&self, levels: &JobLevels) {
        let set = |gauges: &IntGaugeVec, is_set: bool| {
            gauges.with_label_values(&[STORE]).set(is_set.into());
        };
        set(&self.up, levels.is_up);
        set(&self.accepting, levels.is_accepting);
        let memory = self.memory.with_label_values(&[STORE]);
        memory.set(levels.memory_ratio);
        let (store, bytes) = levels.files;
        self.files.with_label_values(&[store]).set(bytes as i64);
        for levels in &levels.queues {
            if self.model(&levels.model).is_none() {
                continue;
            }
            let queue = self.queue(&levels.model, &levels.deployable);
            for (gauge, count) in queue.queued.iter().zip(levels.queued) {
                gauge.set(count as i64);
            }
            queue.running.set(levels.running as i64);
            queue.oldest.set(seconds(levels.oldest_ms));
        }
    }

    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let models: Vec<_> = self.models.read().values().flatten().cloned().collect();
        let mut families = self.registry.gather();
        families.extend(self.nameless.registry.gather());
        for model in models {
            families.extend(model.registry.gather());
        }
        for queue in self.queues.read().values() {
            families.extend(queue.registry.gather());
        }
        families
    }

    /// Returns the series of a configured model.
    fn model(&self, model: &ModelId) -> Option<Arc<ModelSeries>> {
        if let Some(series) = self.models.read().get(model)? {
            return Some(Arc::clone(series));
        }
        let mut models = self.models.write();
        // A reload may have come between.
        let place = models.get_mut(model)?;
        let series = place.get_or_insert_with(|| Arc::new(ModelSeries::new(model.as_str())));
        Some(Arc::clone(series))
    }

    /// Returns the series of a queue that jobs of a configured model use.
    fn queue(&self, model: &ModelId, deployable: &str) -> Arc<QueueSeries> {
        if let Some(queue) = self.queues.read().get(deployable) {
            return Arc::clone(queue);
        }
        let mut queues = self.queues.write();
        let queue = queues
            .entry(deployable.into())
            .or_insert_with(|| Arc::new(QueueSeries::new(model, deployable)));
        Arc::clone(queue)
    }
}

impl ModelSeries {
    fn new(model: &str) -> ModelSeries {
        let registry = labeled("model", model);
        ModelSeries {
            submitted: counters(
                &registry,
                "infergate_jobs_submitted_total",
                "jobs that were stored",
                &["kind", "api"],
            ),
            finished: counters(
                &registry,
                "infergate_jobs_finished_total",
                "jobs that ended, by state and reason",
                &["kind", "status", "reason"],
            ),
            registry,
        }
    }
}

impl QueueSeries {
    fn new(model: &ModelId, deployable: &str) -> QueueSeries {
        let registry = labeled("deployable", deployable);
        let queued = gauges(
            &registry,
            "infergate_jobs_queued",
            "queued jobs, those that are not due included",
            "class",
        );
        let histogram = |name, help, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            register(&registry, Histogram::with_opts(opts))
        };
        QueueSeries {
            queued: JobClass::ALL.map(|class| queued.with_label_values(&[class.name()])),
            running: register(
                &registry,
                IntGauge::new("infergate_jobs_running", "running jobs"),
            ),
            oldest: register(
                &registry,
                Gauge::new(
                    "infergate_jobs_oldest_seconds",
                    "age of the oldest queued job",
                ),
            ),
            start_delay: histogram(
                "infergate_jobs_start_delay_seconds",
                "submit to first start",
                DELAY_BUCKETS,
            ),
            run: histogram(
                "infergate_jobs_run_seconds",
                "start to end of runs that ended their job",
                RUN_BUCKETS,
            ),
            swaps: deployable
                .starts_with(DeployableKind::HotSwap.prefix())
                .then(|| {
                    let swaps = IntCounter::new(
                        "infergate_weight_swaps_total",
                        "jobs for which a server had to exchange its weights",
                    );
                    register(&registry, swaps)
                }),
            model: model.clone(),
            registry,
        }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn labeled(name: &str, value: &str) -> Registry {
    let labels = HashMap::from([(name.to_owned(), value.to_owned())]);
    Registry::new_custom(None, Some(labels)).expect("without a prefix there is none to be wrong")
}

pub(super) fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> C {
    let collector = collector.expect("names and labels are well-formed constants");
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
    register(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, label: &str) -> IntGaugeVec {
    register(registry, IntGaugeVec::new(Opts::new(name, help), &[label]))
}

fn histograms(
    registry: &Registry,
    (name, help): (&str, &str),
    buckets: &[f64],
    labels: &[&str],
) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &JobMetrics) -> String {
        let encoder = prometheus::TextEncoder::new();
        let text = encoder.encode_to_string(&metrics.gather()).unwrap();
        let lines: Vec<String> = text.lines().map(sorted_labels).collect();
        lines.join("\n")
    }

    fn sorted_labels(line: &str) -> String {
        let parts = line.split_once('{').and_then(|(name, rest)| {
            let (labels, value) = rest.split_once('}')?;
            let mut labels: Vec<&str> = labels.split(',').collect();
            labels.sort_unstable();
            Some(format!("{name}{{{}}}{value}", labels.join(",")))
        });
        parts.unwrap_or_else(|| line.to_owned())
    }

    fn levels(model: &str, queued: [u64; 4]) -> JobLevels {
        JobLevels {
            queues: vec![JobQueueLevels {
                model: model.into(),
                deployable: "vp-a".into(),
                queued,
                running: 2,
                oldest_ms: 1500,
            }],
            is_up: true,
            is_accepting: false,
            memory_ratio: 0.5,
            files: ("local", 7),
        }
    }

    #[test]
    fn buckets_ascend() {
        for buckets in [DELAY_BUCKETS, RUN_BUCKETS, CALL_BUCKETS, BATCH_BUCKETS] {
            assert!(buckets.is_sorted_by(|a, b| a < b));
        }
    }

    #[test]
    fn series_of_a_model_go_with_it_and_its_late_ends_have_no_name() {
        let metrics = JobMetrics::default();
        let model = ModelId::from("m");
        metrics.retain(std::slice::from_ref(&model));
        metrics.set(&levels("m", [1, 0, 4, 0]));
        metrics.record_submitted(&model, "prediction", "replicate");
        metrics.record_start(&model, "vp-a", 700);
        let end = EndedJob {
            model: &model,
            deployable: "vp-a",
            kind: "prediction",
            status: "succeeded",
            reason: None,
            run_ms: Some(1200),
        };
        metrics.record_end(end);
        let shown = text(&metrics);
        for line in [
            r#"infergate_jobs_submitted_total{api="replicate",kind="prediction",model="m"} 1"#,
            r#"infergate_jobs_finished_total{kind="prediction",model="m",reason="none",status="succeeded"} 1"#,
            r#"infergate_jobs_queued{class="normal",deployable="vp-a"} 4"#,
            r#"infergate_jobs_queued{class="again",deployable="vp-a"} 1"#,
            r#"infergate_jobs_running{deployable="vp-a"} 2"#,
            r#"infergate_jobs_oldest_seconds{deployable="vp-a"} 1.5"#,
            r#"infergate_jobs_start_delay_seconds_sum{deployable="vp-a"} 0.7"#,
            r#"infergate_jobs_run_seconds_count{deployable="vp-a"} 1"#,
            r#"infergate_store_up{store="embedded"} 1"#,
            r#"infergate_store_accepting{store="embedded"} 0"#,
            r#"infergate_store_memory_ratio{store="embedded"} 0.5"#,
            r#"infergate_files_bytes{store="local"} 7"#,
        ] {
            assert!(shown.contains(line), "no {line} in\n{shown}");
        }
        metrics.retain(&[]);
        metrics.record_end(end);
        metrics.record_start(&model, "vp-a", 1);
        metrics.set(&levels("m", [9; 4]));
        let shown = text(&metrics);
        assert!(
            !shown.contains("vp-a") && !shown.contains(r#"model="m""#),
            "{shown}"
        );
        assert!(shown.contains(r#"model="(none)""#), "{shown}");
    }

    #[test]
    fn a_queue_that_models_share_has_one_set_of_series_and_counts_its_swaps() {
        let metrics = JobMetrics::default();
        let models = [ModelId::from("base"), ModelId::from("style")];
        metrics.retain(&models);
        for model in &models {
            metrics.record_start(model, "hp-a", 1000);
            metrics.record_weight_swap(model, "hp-a");
        }
        let shown = text(&metrics);
        for line in [
            r#"infergate_weight_swaps_total{deployable="hp-a"} 2"#,
            r#"infergate_jobs_start_delay_seconds_count{deployable="hp-a"} 2"#,
        ] {
            assert_eq!(shown.matches(line).count(), 1, "{line} in\n{shown}");
        }
        metrics.record_start(&models[0], "vp-a", 1);
        assert!(!text(&metrics).contains(r#"swaps_total{deployable="vp-a"}"#));
    }

    #[test]
    fn calls_of_the_store_are_counted_by_verb_and_failure() {
        let metrics = JobMetrics::default();
        let call = StoreCall {
            verb: "submit",
            secs: 0.002,
            error: None,
        };
        metrics.record_call(call);
        let failed = StoreCall {
            error: Some("timeout"),
            ..call
        };
        metrics.record_call(failed);
        metrics.record_batch(3);
        metrics.record_released("drain", 2);
        metrics.record_refused_write("finish");
        let shown = text(&metrics);
        for line in [
            r#"infergate_store_call_seconds_count{store="embedded",verb="submit"} 2"#,
            r#"infergate_store_errors_total{kind="timeout",store="embedded"} 1"#,
            r#"infergate_store_batch_items_sum{store="embedded"} 3"#,
            r#"infergate_jobs_released_total{reason="drain"} 2"#,
            r#"infergate_jobs_refused_writes_total{verb="finish"} 1"#,
        ] {
            assert!(shown.contains(line), "no {line} in\n{shown}");
        }
    }
}
