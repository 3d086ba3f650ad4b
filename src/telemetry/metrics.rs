//! Prometheus metrics: one registry for the node, one for each model, joined at a scrape.
//!
//! Measures nothing by itself: modules report through handles they hold ([`ModelMetrics`]), and the
//! shell passes the present [`Levels`] to [`Metrics::render`]. No other module uses the Prometheus
//! library. Names and meanings are in `docs/metrics.md`.

use infergate_core::routing::Health;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use infergate_core::ModelId;
use parking_lot::{Mutex, RwLock};
use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use super::cluster_metrics::ClusterMetrics;
pub use super::cluster_metrics::NodeChange;
use super::connection_metrics::ConnectionMetrics;
use super::event_sink::{EventCounts, SocketCounts};
use super::export_metrics::ExportMetrics;
use super::gpu_metrics::GpuMetrics;
use super::job_metrics::{JobLevels, JobMetrics};
pub use super::model_metrics::ModelMetrics;
use super::otlp::ExportCounts;
use super::plugin_metrics::{PluginLevels, PluginMetricsRegistry};
use super::process;
use super::work_metrics::WorkLevels;
use super::worker::WorkerMetrics;

/// The label of requests whose model is not known: never the name a client sent.
pub const NO_MODEL: &str = "(none)";

/// Result of one attempt at a model server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// Response passed to the client, whatever its status.
    Answered,
    /// Response 429, 502 or 503: "not here, not now".
    Rejected,
    /// No connection.
    ConnectFailed,
    /// The server's certificate was not trusted; no request was sent.
    NotTrusted,
    /// The connection broke before or during the response.
    ConnectionLost,
    /// The deadline or an idle limit passed.
    TimedOut,
    /// The client left.
    Abandoned,
}

/// Result of a request that was forwarded to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardResult {
    /// The node started a response.
    Answered,
    /// Out of capacity.
    NoRoom,
    /// The node does not serve such a request.
    Unfit,
    /// The node's model servers failed before a response started.
    Failed,
    /// No connection.
    ConnectFailed,
    /// The node's certificate was not trusted; no request was sent.
    NotTrusted,
    /// The connection broke before the response.
    Lost,
    /// The client left or the deadline passed before the response.
    CutOff,
}

impl ForwardResult {
    pub(super) const ALL: [ForwardResult; 8] = [
        ForwardResult::Answered,
        ForwardResult::NoRoom,
        ForwardResult::Unfit,
        ForwardResult::Failed,
        ForwardResult::ConnectFailed,
        ForwardResult::NotTrusted,
        ForwardResult::Lost,
        ForwardResult::CutOff,
    ];

    /// Name in metric labels and traces.
    pub const fn name(self) -> &'static str {
        match self {
            ForwardResult::Answered => "answered",
            ForwardResult::NoRoom => "no-room",
            ForwardResult::Unfit => "unfit",
            ForwardResult::Failed => "failed",
            ForwardResult::ConnectFailed => "connect-failed",
            ForwardResult::NotTrusted => "not-trusted",
            ForwardResult::Lost => "lost",
            ForwardResult::CutOff => "cut-off",
        }
    }
}

impl AttemptResult {
    pub(super) const ALL: [AttemptResult; 7] = [
        AttemptResult::Answered,
        AttemptResult::Rejected,
        AttemptResult::ConnectFailed,
        AttemptResult::NotTrusted,
        AttemptResult::ConnectionLost,
        AttemptResult::TimedOut,
        AttemptResult::Abandoned,
    ];

    /// The word for it in metric labels and traces.
    pub const fn name(self) -> &'static str {
        match self {
            AttemptResult::Answered => "answered",
            AttemptResult::Rejected => "rejected",
            AttemptResult::ConnectFailed => "connect-failed",
            AttemptResult::NotTrusted => "not-trusted",
            AttemptResult::ConnectionLost => "connection-lost",
            AttemptResult::TimedOut => "timed-out",
            AttemptResult::Abandoned => "abandoned",
        }
    }
}

/// Change of a discovered endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointChange {
    /// Found by discovery.
    Appeared,
    /// No longer found; requests in flight may finish.
    Disappeared,
}

impl EndpointChange {
    pub(super) const ALL: [EndpointChange; 2] =
        [EndpointChange::Appeared, EndpointChange::Disappeared];

    /// The word for it in metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            EndpointChange::Appeared => "appeared",
            EndpointChange::Disappeared => "disappeared",
        }
    }
}

/// The other nodes at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeLevels {
    /// Nodes that accept requests.
    pub live: u64,
    /// Nodes that finish their requests in flight.
    pub draining: u64,
    /// Nodes without reports.
    pub lost: u64,
    /// Live nodes of another version of the protocol.
    pub incompatible: u64,
    /// Live nodes configured with other accounts than this one.
    pub other_accounts: u64,
    /// Live nodes with other models.
    pub other_models: u64,
    /// Live nodes with other tariffs.
    pub other_tariffs: u64,
}

/// Gossip that was refused or not sent, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GossipRefused {
    /// Datagrams without the right signature.
    pub unsigned: u64,
    /// Datagrams of another minute, by our clock.
    pub untimely: u64,
    /// Datagrams that could not be parsed.
    pub malformed: u64,
    /// Datagrams that could not be sent.
    pub unsent: u64,
    /// Sums of unknown accounts, of another day, or too many.
    pub sums: u64,
}

/// Endpoint at one moment.
#[derive(Clone, Debug)]
pub struct EndpointLevels {
    /// Its URL in the configuration.
    pub url: Arc<str>,
    /// Health of the endpoint.
    pub health: Health,
    /// Work that goes on after its response, of a server that reports its end.
    pub work: Option<WorkLevels>,
}

/// Model at one moment.
#[derive(Clone, Debug)]
pub struct ModelLevels {
    /// Id of the model.
    pub model: ModelId,
    /// Permits in use.
    pub permits_used: u32,
    /// Permits among them that durable requests hold.
    pub durable_permits_used: u32,
    /// Permits there are.
    pub permits_limit: u32,
    /// Requests waiting.
    pub queue_depth: u32,
    /// Its endpoints.
    pub endpoints: Vec<EndpointLevels>,
}

/// The node at one moment.
#[derive(Clone, Debug, Default)]
pub struct Levels {
    /// Every configured model.
    pub models: Vec<ModelLevels>,
    /// Open client connections.
    pub connections: u64,
    /// Bytes of request bodies held.
    pub buffered_body_bytes: u64,
    /// Generation of the configuration in use.
    pub config_generation: u64,
    /// The event file.
    pub events: EventCounts,
    /// Log lines that standard error did not take, since the start.
    pub log_lines_dropped: u64,
    /// Requests recorded for export by OTLP.
    pub exports: ExportCounts,
    /// State of the plugin host.
    pub plugins: PluginLevels,
    /// The other nodes.
    pub nodes: NodeLevels,
    /// Durable jobs; none where they are not configured.
    pub jobs: Option<JobLevels>,
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadResult {
    /// The new configuration is in use, or is the old one.
    Applied,
    /// The file was refused; the old configuration stays.
    Refused,
}

/// All metrics of the process.
pub struct Metrics {
    registry: Registry,
    node: NodeMetrics,
    /// Written at a reload; read when a model's state is built, never per request. In order, so
    /// that two scrapes list the same series alike.
    models: RwLock<BTreeMap<ModelId, Arc<ModelMetrics>>>,
    no_model: Arc<ModelMetrics>,
    plugins: Arc<PluginMetricsRegistry>,
    jobs: Arc<JobMetrics>,
    /// Empty in a process without a GPU host.
    gpu: OnceLock<Arc<GpuMetrics>>,
    /// Held through a scrape, which sets gauges and then reads them.
    scrape: Mutex<()>,
}

struct NodeMetrics {
    config_reloads: IntCounter,
    config_reloads_failed: IntCounter,
    config_generation: IntGauge,
    connections: ConnectionMetrics,
    workers: WorkerMetrics,
    buffered_body: IntGauge,
    events_written: IntCounter,
    events_dropped: IntCounterVec,
    event_socket_lines: IntCounterVec,
    log_lines_dropped: IntCounter,
    exports: ExportMetrics,
    cluster: ClusterMetrics,
    process: Option<ProcessMetrics>,
}

struct ProcessMetrics {
    cpu: prometheus::Counter,
    resident: IntGauge,
    open_fds: IntGauge,
    max_fds: Gauge,
}

impl Metrics {
    /// Metrics of a process of this `version` and git `revision`, started at `started_at` (seconds
    /// of Unix time).
    pub fn new(version: &str, revision: &str, started_at: f64) -> Metrics {
        let registry = Registry::new();
        let build = Opts::new("infergate_build_info", "1, with the build on its labels")
            .const_label("version", version)
            .const_label("revision", revision);
        register(&registry, IntGauge::with_opts(build)).set(1);
        register(
            &registry,
            Gauge::new(
                "process_start_time_seconds",
                "start of the process, Unix time",
            ),
        )
        .set(started_at);
        let node = NodeMetrics::new(&registry);
        Metrics {
            registry,
            node,
            models: RwLock::default(),
            no_model: Arc::new(ModelMetrics::new(NO_MODEL)),
            plugins: Arc::default(),
            jobs: Arc::default(),
            gpu: OnceLock::new(),
            scrape: Mutex::default(),
        }
    }

    /// Records a forward to this site that was not answered.
    pub fn record_forward_failure(&self, site: &Arc<str>, result: ForwardResult) {
        self.node.cluster.record_forward_failure(site, result);
    }

    /// The metrics of `model`, made when they are first asked for. Keep the response beside the
    /// model's state: a request must not look it up.
    pub fn model(&self, model: &ModelId) -> Arc<ModelMetrics> {
        if let Some(metrics) = self.models.read().get(model) {
            return metrics.clone();
        }
        let mut models = self.models.write();
        let metrics = models
            .entry(model.clone())
            .or_insert_with(|| Arc::new(ModelMetrics::new(model.as_str())));
        metrics.clone()
    }

    /// Returns the metrics of a configured model: levels may precede a reload, and must not bring
    /// back the series that it dropped.
    fn known(&self, model: &ModelId) -> Option<Arc<ModelMetrics>> {
        self.models.read().get(model).cloned()
    }

    /// The metrics of requests whose model is not known.
    pub fn no_model(&self) -> &Arc<ModelMetrics> {
        &self.no_model
    }

    /// The metrics of plugins, for the host that runs them.
    pub fn plugins(&self) -> &Arc<PluginMetricsRegistry> {
        &self.plugins
    }

    /// The metrics of durable jobs, for the durable path.
    pub fn jobs(&self) -> &Arc<JobMetrics> {
        &self.jobs
    }

    /// The metrics of the GPU host, shown from the first call on.
    pub fn gpu(&self) -> &Arc<GpuMetrics> {
        self.gpu.get_or_init(Arc::default)
    }

    /// Drops the series of every model that is not `configured` any more. Call it at a reload.
    pub fn retain(&self, configured: &[ModelId]) {
        self.jobs.retain(configured);
        self.models
            .write()
            .retain(|model, _| configured.contains(model));
    }

    /// Records a reload.
    pub fn record_reload(&self, result: ReloadResult) {
        self.node.config_reloads.inc();
        if result == ReloadResult::Refused {
            self.node.config_reloads_failed.inc();
        }
    }

    /// Records an accepted client connection.
    pub fn record_accepted_connection(&self) {
        self.node.connections.accepted.inc();
    }

    /// Records a client connection that was closed unread; `reason` is a word of this program.
    pub fn record_refused_connection(&self, reason: &'static str) {
        let refused = &self.node.connections.refused;
        refused.with_label_values(&[reason]).inc();
    }

    /// Records a trusted proxy's `x-forwarded-for` that tells no address.
    pub fn record_malformed_forwarded_for(&self) {
        self.node.connections.malformed_forwarded_for.inc();
    }

    /// Records a step of a request that held its worker for so long.
    pub fn record_blocked_worker(&self, held_ms: u64) {
        self.node.workers.record_blocked(held_ms);
    }

    /// Records a change of another node.
    pub fn record_node_change(&self, change: NodeChange) {
        let word = change.name();
        self.node.cluster.changes.with_label_values(&[word]).inc();
    }

    /// Sets the counts of gossip not taken or not sent since the start.
    pub fn set_gossip_refused(&self, refused: GossipRefused) {
        for (reason, count) in [
            ("signature", refused.unsigned),
            ("time", refused.untimely),
            ("malformed", refused.malformed),
            ("unsent", refused.unsent),
            ("sum", refused.sums),
        ] {
            let counter = self
                .node
                .cluster
                .gossip_refused
                .with_label_values(&[reason]);
            raise_counter(&counter, count);
        }
    }

    /// Takes one sample of every model into its five-minute window.
    pub fn sample(&self, levels: &[ModelLevels]) {
        for levels in levels {
            if let Some(model) = self.known(&levels.model) {
                model.sample(levels);
            }
        }
    }

    /// The exposition text of a scrape at the moment of `levels`.
    pub fn render(&self, levels: &Levels) -> String {
        let _one_scrape = self.scrape.lock();
        self.node.set(levels);
        self.plugins.set(&levels.plugins);
        if let Some(levels) = &levels.jobs {
            self.jobs.set(levels);
        }
        for levels in &levels.models {
            if let Some(model) = self.known(&levels.model) {
                model.set(levels);
            }
        }
        let models: Vec<_> = self.models.read().values().cloned().collect();
        let nameless = self
            .no_model
            .gather()
            .into_iter()
            .filter_map(without_unused);
        let families = models
            .iter()
            .flat_map(|model| model.gather())
            .chain(nameless)
            .chain(self.plugins.gather())
            .chain(self.jobs.gather())
            .chain(self.gpu.get().into_iter().flat_map(|gpu| gpu.gather()))
            .chain(self.registry.gather());
        TextEncoder::new()
            .encode_to_string(&merge_families(families))
            .unwrap_or_else(|problem| {
                tracing::error!(%problem, "cannot render metrics");
                String::new()
            })
    }
}

/// Removes series that never counted anything: [`NO_MODEL`] has no permits, attempts or tokens.
fn without_unused(mut family: MetricFamily) -> Option<MetricFamily> {
    family.mut_metric().retain(|metric| {
        metric.get_counter().get_value() > 0.0
            || metric.get_gauge().get_value() > 0.0
            || metric.get_histogram().get_sample_count() > 0
    });
    (!family.get_metric().is_empty()).then_some(family)
}

/// Merges families of one name, as the exposition format requires.
fn merge_families(families: impl Iterator<Item = MetricFamily>) -> Vec<MetricFamily> {
    let mut by_name: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for mut family in families {
        match by_name.get_mut(family.name()) {
            Some(known) => known.mut_metric().extend(family.take_metric()),
            None => {
                by_name.insert(family.name().to_owned(), family);
            }
        }
    }
    by_name.into_values().collect()
}

impl NodeMetrics {
    fn new(registry: &Registry) -> NodeMetrics {
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        let gauge = |name, help| register(registry, IntGauge::new(name, help));
        let by_label = |name, help, label: &str| {
            register(
                registry,
                IntCounterVec::new(Opts::new(name, help), &[label]),
            )
        };
        NodeMetrics {
            config_reloads: counter("infergate_config_reload_total", "reloads tried"),
            config_reloads_failed: counter(
                "infergate_config_reload_failed_total",
                "reloads whose file was refused; the old configuration stayed",
            ),
            config_generation: gauge(
                "infergate_config_generation",
                "generation of the configuration in use",
            ),
            connections: ConnectionMetrics::new(registry),
            workers: WorkerMetrics::new(registry),
            buffered_body: gauge(
                "infergate_buffered_body_bytes",
                "request bodies held in memory",
            ),
            events_written: counter("infergate_events_written_total", "inference events written"),
            events_dropped: by_label(
                "infergate_events_dropped_total",
                "inference events dropped, by cause",
                "cause",
            ),
            event_socket_lines: by_label(
                "infergate_event_socket_lines_total",
                "lines for events.unix_socket, by what became of them",
                "result",
            ),
            log_lines_dropped: counter(
                "infergate_log_lines_dropped_total",
                "log lines that standard error did not take",
            ),
            exports: ExportMetrics::new(counter, by_label),
            cluster: ClusterMetrics::new(registry),
            process: process::read().map(|_| ProcessMetrics {
                cpu: register(
                    registry,
                    prometheus::Counter::new(
                        "process_cpu_seconds_total",
                        "user and system time used",
                    ),
                ),
                resident: gauge("process_resident_memory_bytes", "memory in RAM"),
                open_fds: gauge("process_open_fds", "open file descriptors"),
                max_fds: register(
                    registry,
                    Gauge::new("process_max_fds", "file descriptors there may be"),
                ),
            }),
        }
    }

    fn set(&self, levels: &Levels) {
        self.connections.open.set(levels.connections as i64);
        self.buffered_body.set(levels.buffered_body_bytes as i64);
        self.config_generation.set(levels.config_generation as i64);
        self.cluster.set(levels.nodes);
        let events = &levels.events;
        raise_counter(&self.events_written, events.written);
        for (cause, dropped) in [
            ("overrun", events.dropped_overrun),
            ("write-failed", events.dropped_write_failed),
            ("closed", events.dropped_closed),
        ] {
            raise_counter(&self.events_dropped.with_label_values(&[cause]), dropped);
        }
        for (result, count) in events.unix_socket.iter().flat_map(SocketCounts::results) {
            raise_counter(&self.event_socket_lines.with_label_values(&[result]), count);
        }
        raise_counter(&self.log_lines_dropped, levels.log_lines_dropped);
        self.exports.set(levels.exports, raise_counter);
        if let (Some(metrics), Some(now)) = (&self.process, process::read()) {
            metrics
                .cpu
                .inc_by((now.cpu_seconds - metrics.cpu.get()).max(0.0));
            metrics.resident.set(now.resident_bytes as i64);
            metrics.open_fds.set(now.open_fds as i64);
            metrics.max_fds.set(now.max_fds as f64);
        }
    }
}

/// Brings a counter up to a count that is kept elsewhere.
fn raise_counter(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
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

#[cfg(test)]
mod tests;
