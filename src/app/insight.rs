//! Values of the admin listener, gathered from other modules at the moment of the request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use infergate_core::admission::AdmissionState;
use infergate_core::routing::cluster::NodeView;
use infergate_core::routing::hops::VISITED_MAX;
use infergate_core::{AccountId, Millis};
use serde_json::{Map, Value, json};

use crate::admin::{
    AccountState, AccountsState, CaptureError, CaptureReport, ClassState, ClassesState,
    ConfigState, EndpointState, Insight, LastError, ModelState, NodeState, PermitState, QueueState,
    ReloadError, RemoteNodeState, State, TurnState, WorkState,
};
use crate::app::capture::CaptureRecorder;
use crate::app::cluster;
use crate::app::job_controls;
use crate::app::load::Loader;
use crate::app::reload::ConfigStatus;
use crate::config;
use crate::downstream::ClientConnections;
use crate::jobs::Jobs;
use crate::peer::{IncompatibleNode, PROTOCOL_VERSION};
use crate::plugin::{BreakerState, PluginSnapshot};
use crate::state::{ConfigSnapshot, Shared};
use crate::telemetry::clock::rfc3339;
use crate::telemetry::log::LogHandle;
use crate::telemetry::metrics::EndpointLevels;
use crate::telemetry::plugin_metrics::PluginLevels;
use crate::telemetry::work_metrics::WorkLevels;
use crate::telemetry::{Levels, ModelLevels};
use crate::trace::NodeInfo;
use crate::upstream::ModelRuntime;

/// Since the start: a node without reports of others by then is taken to be the first.
const PEER_WAIT: Millis = Millis(2_000);

/// Accounts that `/accounts` shows, those first that have used most: a page or two.
const ACCOUNTS_SHOWN_MAX: usize = 100;

/// Parts of one node that the listener shows.
pub struct NodeInsight {
    shared: Arc<Shared>,
    connections: Arc<ClientConnections>,
    status: Arc<ArcSwap<ConfigStatus>>,
    loader: Arc<Loader>,
    recorder: Arc<CaptureRecorder>,
    logs: LogHandle,
    jobs: Option<Arc<Jobs>>,
    started_at: String,
}

impl NodeInsight {
    /// Gathers from these.
    pub fn new(
        shared: Arc<Shared>,
        connections: Arc<ClientConnections>,
        status: Arc<ArcSwap<ConfigStatus>>,
        loader: Arc<Loader>,
        recorder: Arc<CaptureRecorder>,
        logs: LogHandle,
        jobs: Option<Arc<Jobs>>,
    ) -> NodeInsight {
        let started_at = rfc3339(shared.clock.wall_at(0));
        NodeInsight {
            shared,
            connections,
            status,
            loader,
            recorder,
            logs,
            jobs,
            started_at,
        }
    }

    /// Adds `samples` of this moment to every model's permit window, and drops guests of plugins that idle.
    /// Returns whether no model has a permit in use or a request that waits.
    pub fn sample(&self, samples: u32) -> bool {
        let snapshot = self.shared.snapshot.load();
        let levels: Vec<_> = snapshot
            .models
            .iter()
            .map(|model| levels_of(model))
            .collect();
        for _ in 0..samples {
            self.shared.metrics.sample(&levels);
        }
        self.loader.expire_instances();
        levels
            .iter()
            .all(|model| model.permits_used == 0 && model.queue_depth == 0)
    }

    fn levels(&self) -> Levels {
        let snapshot = self.shared.snapshot.load();
        Levels {
            models: snapshot
                .models
                .iter()
                .map(|model| full_levels_of(model))
                .collect(),
            connections: self.connections.total(),
            buffered_body_bytes: self.shared.bodies.held_bytes(),
            config_generation: snapshot.generation,
            events: self.shared.sink.counts(),
            log_lines_dropped: self.logs.dropped(),
            exports: self.shared.exports.counts(),
            plugins: self.plugin_levels(&snapshot.plugins),
            nodes: cluster::levels(&self.shared),
            jobs: self.jobs.as_ref().map(|jobs| jobs.levels()),
        }
    }

    fn plugin_levels(&self, plugins: &PluginSnapshot) -> PluginLevels {
        let counts = self.loader.host_counts();
        let mut breakers: Vec<(Arc<str>, bool)> = Vec::new();
        // A plugin may have several revisions in force, one for each set of parameters.
        for state in plugins.state().into_iter().filter(|s| s.role == "active") {
            let open = state.breaker != BreakerState::Closed;
            match breakers.iter_mut().find(|(name, _)| *name == state.name) {
                Some((_, known)) => *known |= open,
                None => breakers.push((state.name, open)),
            }
        }
        PluginLevels {
            ticks_missed: counts.ticks_missed,
            cache_hits: counts.cache_hits,
            cache_misses: counts.cache_misses,
            cache_rejected: counts.cache_rejected,
            breakers,
        }
    }

    /// Plugins of the newest file that are not in effect yet: those that are compiled, and those that the
    /// configuration in effect waits for, whose compiler may have just ended.
    fn compiling(&self) -> Vec<String> {
        // The compilers first: what ends between the two looks is waited for by then.
        let mut names = self.loader.compiling();
        names.extend(self.status.load().compiling.iter().cloned());
        names.sort();
        names.dedup();
        names.iter().map(ToString::to_string).collect()
    }

    fn model_state(&self, model: &ModelRuntime) -> ModelState {
        let (state, health) = model.gate.state();
        let algorithm = serde_json::to_value(state.algorithm).unwrap_or_default();
        ModelState {
            id: model.spec.id.as_str().to_owned(),
            queue: QueueState {
                algorithm: algorithm.as_str().unwrap_or_default().to_owned(),
                depth: state.depth as u64,
                capacity: state.capacity as u64,
                expected_wait_ms: state.expected_wait.0,
                accounts: state
                    .accounts
                    .iter()
                    .map(|(account, depth)| (account.as_str().to_owned(), *depth as u64))
                    .collect(),
            },
            classes: classes_state(&state),
            endpoints: state
                .endpoints
                .iter()
                .zip(health)
                .map(|(endpoint, health)| EndpointState {
                    url: endpoint.url.to_string(),
                    source: model.spec.source_of(&endpoint.url),
                    health: health.health,
                    slot: health.slot,
                    permits: PermitState {
                        used: endpoint.used,
                        server_used: Some(endpoint.server_used).filter(|&all| all != endpoint.used),
                        limit: endpoint.limit,
                    },
                    ejected_until: health.ejected_until.map(|at| self.wall_time(at)),
                    since: health.since.map(|at| self.wall_time(at)),
                    last_error: health.last_error.map(|(cause, at)| LastError {
                        cause: cause.to_string(),
                        at: self.wall_time(at),
                    }),
                    setup_logs: health.setup_logs.map(|logs| logs.to_string()),
                    work: health.work.map(|work| WorkState {
                        reports: work.is_reporting,
                        detached: work.detached,
                        lost_reports: work.expired,
                    }),
                })
                .collect(),
        }
    }

    fn node_info<'a>(&self, snapshot: &'a ConfigSnapshot) -> NodeInfo<'a> {
        NodeInfo {
            clock: self.shared.clock,
            node: &snapshot.node,
            site: &snapshot.site,
        }
    }

    fn wall_time(&self, at: Millis) -> String {
        let clock = self.shared.clock;
        let now = clock.now();
        let ahead = time::Duration::milliseconds(at.since(now).0 as i64);
        let behind = time::Duration::milliseconds(now.since(at).0 as i64);
        rfc3339(clock.wall() + ahead - behind)
    }
}

#[async_trait]
impl Insight for NodeInsight {
    fn state(&self) -> State {
        let snapshot = self.shared.snapshot.load();
        let status = self.status.load();
        State {
            node: NodeState {
                id: snapshot.node.to_string(),
                site: snapshot.site.to_string(),
                draining: self.shared.drain.is_draining(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started_at: self.started_at.clone(),
            },
            config: ConfigState {
                generation: status.generation,
                loaded_at: status.loaded_at.clone(),
                last_reload_error: status
                    .last_error
                    .clone()
                    .map(|(at, problems)| ReloadError { at, problems }),
                compiling: self.compiling(),
            },
            models: snapshot
                .models
                .iter()
                .map(|model| self.model_state(model))
                .collect(),
            plugins: snapshot.plugins.state(),
            nodes: self.remote_nodes(),
            events: self.shared.sink.counts(),
            jobs: self.jobs.as_deref().map(job_controls::state),
        }
    }

    fn accounts(&self) -> AccountsState {
        let snapshot = self.shared.snapshot.load();
        let mut waiting: HashMap<AccountId, u64> = HashMap::new();
        for model in snapshot.models.iter() {
            for (account, depth) in model.gate.state().0.accounts {
                *waiting.entry(account).or_default() += depth as u64;
            }
        }
        let mut accounts: Vec<AccountState> = snapshot
            .accounts
            .specs()
            .map(|spec| AccountState {
                id: spec.id.as_str().to_owned(),
                neurons_used_today: spec
                    .neurons_per_day
                    .map(|_| self.shared.quota.used_by_all(&spec.id)),
                neurons_per_day: spec.neurons_per_day,
                waiting: waiting.get(&spec.id).copied().unwrap_or(0),
            })
            .collect();
        let used = |account: &AccountState| account.neurons_used_today.unwrap_or(0.0);
        accounts.sort_by(|a, b| {
            let by_use = used(b).total_cmp(&used(a));
            by_use.then(b.waiting.cmp(&a.waiting)).then(a.id.cmp(&b.id))
        });
        let left_out = accounts.len().saturating_sub(ACCOUNTS_SHOWN_MAX);
        accounts.truncate(ACCOUNTS_SHOWN_MAX);
        AccountsState { accounts, left_out }
    }

    fn config(&self) -> Value {
        let status = self.status.load();
        // Not a secret: it makes digests of this response useless for any other.
        let salt = format!("{:016x}", fastrand::u64(..));
        let running = status.running.as_deref();
        json!({
            "generation": status.generation,
            "loaded_at": status.loaded_at,
            "salt": salt,
            "config": running.map(|running| config::redacted(running, self.loader.folder(), &salt)),
        })
    }

    fn readiness(&self) -> Result<(), String> {
        let Shared {
            drain,
            cluster,
            clock,
            ..
        } = &*self.shared;
        if drain.is_draining() {
            return Err("draining".to_owned());
        }
        let is_new = clock.now() < PEER_WAIT;
        if cluster.has_joined() && cluster.is_alone() && is_new {
            return Err("looking for other nodes".to_owned());
        }
        let snapshot = self.shared.snapshot.load();
        match snapshot.readiness.fault(&snapshot.models) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn metrics_text(&self) -> String {
        self.shared.metrics.render(&self.levels())
    }

    async fn trace(&self, request_id: &str) -> Option<Value> {
        let (mut rendered, nodes) = {
            let shown_trace = self.shared.traces.find(request_id)?;
            let snapshot = self.shared.snapshot.load();
            (
                shown_trace.to_json(self.node_info(&snapshot)),
                shown_trace.nodes(),
            )
        };
        if !nodes.is_empty() {
            rendered["nodes"] = remote_traces(&self.shared, request_id, nodes).await;
        }
        Some(rendered)
    }

    fn recent_traces(&self, count: usize) -> Vec<Value> {
        let snapshot = self.shared.snapshot.load();
        let traces = self.shared.traces.newest(count).into_iter();
        traces
            .map(|shown_trace| shown_trace.to_summary_json(self.node_info(&snapshot)))
            .collect()
    }

    fn forget(&self, node: &str) -> bool {
        let was_known = self.shared.cluster.forget(node);
        let had_reported = self.shared.quota.forget(node);
        if was_known || had_reported {
            tracing::warn!(node, "forgotten by an operator");
        }
        was_known || had_reported
    }

    async fn capture(&self, plugin: &str, calls: u32) -> Result<CaptureReport, CaptureError> {
        let (recorder, plugin) = (Arc::clone(&self.recorder), plugin.to_owned());
        let starting = tokio::task::spawn_blocking(move || recorder.start(&plugin, calls)).await;
        starting.unwrap_or_else(|error| Err(CaptureError::Unwritable(error.to_string())))
    }
}

impl NodeInsight {
    /// Members of the cluster, then live nodes of other protocol versions.
    fn remote_nodes(&self) -> Vec<RemoteNodeState> {
        let cluster = &self.shared.cluster;
        let others = cluster.incompatible.list();
        let mut nodes = cluster.nodes();
        // A lost member that came back in another version is one node.
        nodes.retain(|view| {
            !view.gone || others.iter().all(|other| other.node.name != view.node.name)
        });
        let members = nodes.into_iter().map(|view| self.remote_node(view));
        members
            .chain(others.into_iter().map(incompatible_node))
            .collect()
    }

    fn remote_node(&self, view: NodeView) -> RemoteNodeState {
        RemoteNodeState {
            drift: self.shared.cluster.drifts.drift_of(&view.node).names(),
            id: view.node.name.to_string(),
            generation: view.node.generation,
            site: view.site.to_string(),
            address: view.address.to_string(),
            draining: view.draining,
            gone: view.gone,
            age_ms: view.age.0,
            proven: self.shared.cluster.is_proven(&view.node),
            rtt_ms: f64::from(view.rtt_us) / 1000.0,
            models: view.models,
            protocol: PROTOCOL_VERSION,
        }
    }
}

fn incompatible_node(IncompatibleNode { node, protocol }: IncompatibleNode) -> RemoteNodeState {
    RemoteNodeState {
        drift: Vec::new(),
        id: node.name.to_string(),
        generation: node.generation,
        site: String::new(),
        address: String::new(),
        draining: false,
        gone: false,
        age_ms: 0,
        proven: false,
        rtt_ms: 0.0,
        models: 0,
        protocol,
    }
}

/// Permits and waiting requests by class: live ones have what durable ones have not.
fn classes_state(state: &AdmissionState) -> ClassesState {
    let used: u32 = state.endpoints.iter().map(|endpoint| endpoint.used).sum();
    let usable = state.endpoints.iter();
    let usable = usable.filter(|endpoint| endpoint.usable && !endpoint.draining);
    ClassesState {
        live: ClassState {
            used: used.saturating_sub(state.durable_used),
            max: usable.map(|endpoint| endpoint.limit).sum(),
            waiting: state.depth.saturating_sub(state.durable_waiting) as u64,
        },
        durable: ClassState {
            used: state.durable_used,
            max: state.durable_max,
            waiting: state.durable_waiting as u64,
        },
        last_turn: state.last_turn.map(|turn| TurnState {
            class: turn.class.name(),
            reason: turn.choice.name(),
        }),
    }
}

fn levels_of(model: &ModelRuntime) -> ModelLevels {
    let gauges = model.gate.gauges();
    ModelLevels {
        model: model.spec.id.clone(),
        permits_used: gauges.used,
        durable_permits_used: gauges.durable_used,
        permits_limit: gauges.limit,
        queue_depth: u32::try_from(gauges.depth).unwrap_or(u32::MAX),
        endpoints: Vec::new(),
    }
}

fn full_levels_of(model: &ModelRuntime) -> ModelLevels {
    let health = model.gate.health().into_iter();
    ModelLevels {
        endpoints: health
            .map(|(url, health, work)| EndpointLevels {
                url,
                health,
                work: work.map(|work| WorkLevels {
                    is_reporting: work.is_reporting,
                    detached: work.detached,
                    expired: work.expired,
                }),
            })
            .collect(),
        ..levels_of(model)
    }
}

/// Traces of a request on other nodes, by node name; null where a node has left or has dropped the
/// trace.
async fn remote_traces(shared: &Shared, request_id: &str, nodes: Vec<Arc<str>>) -> Value {
    let known = shared.cluster.nodes();
    let mut traces = Map::new();
    let mut to_ask = VecDeque::from(nodes);
    while let Some(name) = to_ask.pop_front() {
        if traces.contains_key(&*name) || traces.len() >= VISITED_MAX {
            continue;
        }
        let trace = match known.iter().find(|view| view.node.name == name) {
            Some(view) => shared.peer_client.fetch_trace(view, request_id).await,
            None => None,
        };
        // That node may have sent it on.
        let steps = trace
            .as_ref()
            .and_then(|shown_trace| shown_trace["steps"].as_array());
        let onward = steps.into_iter().flatten();
        let onward = onward.filter(|step| step["step"] == "forward");
        to_ask.extend(onward.filter_map(|step| step["node"].as_str().map(Arc::from)));
        traces.insert(name.to_string(), trace.into());
    }
    Value::Object(traces)
}
