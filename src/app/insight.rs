//! Values of the admin listener, gathered from other modules at the moment of the request.

use std::collections::VecDeque;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use infergate_core::Millis;
use infergate_core::routing::fleet::NodeView;
use infergate_core::routing::hops::VISITED_MAX;
use serde_json::{Map, Value, json};

use super::capture::Recorder;
use super::cluster;
use super::load::Loader;
use super::reload::ConfigStatus;
use crate::admin::{
    CaptureFailed, CaptureReport, ConfigState, EndpointState, Insight, LastError, ModelState,
    NodeState, OtherNode, PermitState, QueueState, ReloadError, State,
};
use crate::config;
use crate::plugin::{Plugins, Position};
use crate::proxy::{Connections, Here, Shared, World};
use crate::telemetry::clock::rfc3339;
use crate::telemetry::log::LogHandle;
use crate::telemetry::metrics::EndpointLevels;
use crate::telemetry::plugin_metrics::PluginLevels;
use crate::telemetry::{Levels, ModelLevels};
use crate::upstream::Lane;

/// Since the start: a node without reports of others by then is taken to be the first.
const COMPANY_LIMIT: Millis = Millis(2_000);

/// Parts of one node that the listener shows.
pub struct NodeInsight {
    shared: Arc<Shared>,
    connections: Arc<Connections>,
    status: Arc<ArcSwap<ConfigStatus>>,
    loader: Arc<Loader>,
    recorder: Arc<Recorder>,
    logs: LogHandle,
    started_at: String,
}

impl NodeInsight {
    /// Gathers from these.
    pub fn new(
        shared: Arc<Shared>,
        connections: Arc<Connections>,
        status: Arc<ArcSwap<ConfigStatus>>,
        loader: Arc<Loader>,
        recorder: Arc<Recorder>,
        logs: LogHandle,
    ) -> NodeInsight {
        let started_at = rfc3339(shared.clock.wall_at(0));
        NodeInsight {
            shared,
            connections,
            status,
            loader,
            recorder,
            logs,
            started_at,
        }
    }

    /// Adds a sample to every model's permit window, and drops guests of plugins that idle.
    pub fn sample(&self) {
        let world = self.shared.world.load();
        let levels: Vec<_> = world.lanes.iter().map(|lane| levels_of(lane)).collect();
        self.shared.metrics.sample(&levels);
        self.loader.expire_guests();
    }

    fn levels(&self) -> Levels {
        let world = self.shared.world.load();
        Levels {
            models: world
                .lanes
                .iter()
                .map(|lane| full_levels_of(lane))
                .collect(),
            connections: self.connections.total(),
            buffered_body_bytes: self.shared.bodies.held_bytes(),
            config_generation: world.generation,
            events: self.shared.sink.counts(),
            log_lines_dropped: self.logs.dropped(),
            plugins: self.plugin_levels(&world.plugins),
            nodes: cluster::levels(&self.shared),
        }
    }

    fn plugin_levels(&self, plugins: &Plugins) -> PluginLevels {
        let counts = self.loader.counts();
        let mut breakers: Vec<(Arc<str>, bool)> = Vec::new();
        // A plugin may have several revisions in force, one for each set of parameters.
        for state in plugins.state().into_iter().filter(|s| s.role == "active") {
            let open = state.breaker != Position::Closed;
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

    fn model_state(&self, lane: &Lane) -> ModelState {
        let (state, health) = lane.gate.state();
        let algorithm = serde_json::to_value(state.algorithm).unwrap_or_default();
        ModelState {
            id: lane.spec.id.as_str().to_owned(),
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
            endpoints: state
                .endpoints
                .iter()
                .zip(health)
                .map(|(endpoint, health)| EndpointState {
                    url: endpoint.url.to_string(),
                    source: lane.spec.source_of(&endpoint.url),
                    health: health.health,
                    permits: PermitState {
                        used: endpoint.used,
                        server_used: Some(endpoint.server_used).filter(|&all| all != endpoint.used),
                        limit: endpoint.limit,
                    },
                    ejected_until: health.ejected_until.map(|at| self.wall(at)),
                    since: health.since.map(|at| self.wall(at)),
                    last_error: health.last_error.map(|(cause, at)| LastError {
                        cause: cause.to_string(),
                        at: self.wall(at),
                    }),
                })
                .collect(),
        }
    }

    fn here<'a>(&self, world: &'a World) -> Here<'a> {
        Here {
            clock: self.shared.clock,
            node: &world.node,
            site: &world.site,
        }
    }

    fn wall(&self, at: Millis) -> String {
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
        let world = self.shared.world.load();
        let status = self.status.load();
        State {
            node: NodeState {
                id: world.node.to_string(),
                site: world.site.to_string(),
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
                compiling: self
                    .loader
                    .compiling()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            },
            models: world
                .lanes
                .iter()
                .map(|lane| self.model_state(lane))
                .collect(),
            plugins: world.plugins.state(),
            nodes: self
                .shared
                .others
                .nodes()
                .into_iter()
                .map(|view| self.other(view))
                .collect(),
            events: self.shared.sink.counts(),
        }
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
            "config": running.map(|running| config::shown(running, self.loader.folder(), &salt)),
        })
    }

    fn readiness(&self) -> Result<(), String> {
        let Shared {
            drain,
            others,
            clock,
            ..
        } = &*self.shared;
        if drain.is_draining() {
            return Err("draining".to_owned());
        }
        let is_new = clock.now() < COMPANY_LIMIT;
        if others.has_joined() && others.is_alone() && is_new {
            return Err("looking for other nodes".to_owned());
        }
        let world = self.shared.world.load();
        match world.readiness.fault(&world.lanes) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn metrics_text(&self) -> String {
        self.shared.metrics.render(&self.levels())
    }

    async fn story(&self, request_id: &str) -> Option<Value> {
        let (mut told, nodes) = {
            let story = self.shared.stories.find(request_id)?;
            let world = self.shared.world.load();
            (story.tell(self.here(&world)), story.nodes())
        };
        if !nodes.is_empty() {
            told["nodes"] = elsewhere(&self.shared, request_id, nodes).await;
        }
        Some(told)
    }

    fn stories(&self, count: usize) -> Vec<Value> {
        let world = self.shared.world.load();
        let stories = self.shared.stories.newest(count).into_iter();
        stories.map(|story| story.line(self.here(&world))).collect()
    }

    fn forget(&self, node: &str) -> bool {
        let was_known = self.shared.others.forget(node);
        let had_told = self.shared.ledger.forget(node);
        if was_known || had_told {
            tracing::warn!(node, "forgotten by an operator");
        }
        was_known || had_told
    }

    async fn capture(&self, plugin: &str, calls: u32) -> Result<CaptureReport, CaptureFailed> {
        let (recorder, plugin) = (Arc::clone(&self.recorder), plugin.to_owned());
        let starting = tokio::task::spawn_blocking(move || recorder.start(&plugin, calls)).await;
        starting.unwrap_or_else(|error| Err(CaptureFailed::Unwritable(error.to_string())))
    }
}

impl NodeInsight {
    fn other(&self, view: NodeView) -> OtherNode {
        OtherNode {
            drift: self.shared.others.drifts.of(&view.node).names(),
            id: view.node.name.to_string(),
            generation: view.node.generation,
            site: view.site.to_string(),
            address: view.address.to_string(),
            draining: view.draining,
            gone: view.gone,
            age_ms: view.age.0,
            proven: self.shared.others.is_proven(&view.node),
            rtt_ms: f64::from(view.rtt_us) / 1000.0,
            models: view.models,
        }
    }
}

fn levels_of(lane: &Lane) -> ModelLevels {
    let gauges = lane.gate.gauges();
    ModelLevels {
        model: lane.spec.id.clone(),
        permits_used: gauges.used,
        permits_limit: gauges.limit,
        queue_depth: u32::try_from(gauges.depth).unwrap_or(u32::MAX),
        endpoints: Vec::new(),
    }
}

fn full_levels_of(lane: &Lane) -> ModelLevels {
    let health = lane.gate.health().into_iter();
    ModelLevels {
        endpoints: health
            .map(|(url, health)| EndpointLevels { url, health })
            .collect(),
        ..levels_of(lane)
    }
}

/// Traces of a request on other nodes, by node name; null where a node has left or has dropped the
/// trace.
async fn elsewhere(shared: &Shared, request_id: &str, nodes: Vec<Arc<str>>) -> Value {
    let known = shared.others.nodes();
    let mut told = Map::new();
    let mut to_ask = VecDeque::from(nodes);
    while let Some(name) = to_ask.pop_front() {
        if told.contains_key(&*name) || told.len() >= VISITED_MAX {
            continue;
        }
        let story = match known.iter().find(|view| view.node.name == name) {
            Some(view) => shared.channel.story(view, request_id).await,
            None => None,
        };
        // That node may have sent it on.
        let steps = story.as_ref().and_then(|story| story["steps"].as_array());
        let onward = steps.into_iter().flatten();
        let onward = onward.filter(|step| step["step"] == "forward");
        to_ask.extend(onward.filter_map(|step| step["node"].as_str().map(Arc::from)));
        told.insert(name.to_string(), story.into());
    }
    Value::Object(told)
}
