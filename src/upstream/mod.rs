//! Model servers: how to speak to them, whether they live, and who may.
//!
//! No client connection is known here. A [`ModelRuntime`] is one model as the pipeline uses it: its spec,
//! its gate and its backend. A reload makes new ones around the gates that stay.

mod backend;
mod client;
mod connect_timings;
mod connection;
mod credentials;
pub mod discovery;
mod gate;
mod health;
mod http;
mod json_object;
mod llama_server;
mod openai;
mod pool;
mod ranking;
mod response;
mod servers;
mod sync;
mod target;
mod tei;
#[cfg(test)]
mod tests;
mod tgi;
mod tls;
mod url;
mod warning_limit;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use infergate_core::model::{Catalog, ModelSpec, QueueSpec, WhenUnhealthy, tariff_text};

pub use backend::{Backend, UpstreamRequest, backend};
pub use client::{HttpClient, InterimObserver, OutboundRequest, SendError, UpstreamResponse};
pub use connect_timings::ConnectTimings;
pub use credentials::API_KEY_HEADER;
pub use gate::{
    AdmissionGate, AdmissionSnapshot, EndpointSnapshot, GateEntry, Permit, RetryPlan, Waiter,
};
pub use health::{PROBE_TICK, check_requested, probe_round};
pub use ranking::{
    PromptFingerprint, RANKING_TICK, Ranking, RankingClass, RankingRequest, RankingResult, Site,
    SiteRanking,
};
pub use response::{
    PushOutput, ReportedMetrics, ResponseError, ResponseTransformer, SAMPLE_BYTES_MAX,
    is_error_body,
};
pub use target::{Target, saturated, set_node_keepalive};
pub use tls::{ServerIdentity, read_ca_file, read_pem, roots};
pub use url::{check_address, check_host_and_port, check_url};

use crate::plugin::{BillingSlot, PluginSnapshot, TaskSlot};
use crate::telemetry::{Clock, Metrics, ModelMetrics};
use servers::SharedServers;

/// Runtime of one model, ready to serve.
pub struct ModelRuntime {
    /// As configured in this generation.
    pub spec: Arc<ModelSpec>,
    /// Admission; shared by all generations of the model.
    pub gate: Arc<AdmissionGate>,
    /// How its endpoints are spoken to.
    pub backend: &'static dyn Backend,
    /// Task that checks the input and shapes payload and response.
    pub task: TaskSlot,
    /// Formula that prices its responses.
    pub billing: BillingSlot,
    /// Its tariff as it goes along with a request to another node; none where that is too long.
    pub tariff_text: Option<Arc<str>>,
    /// Order of its endpoints by the routing policy.
    pub routing: Ranking,
    /// Its held counters.
    pub metrics: Arc<ModelMetrics>,
    /// Moving average of the charge of a response, millionths of a neuron; shared by all
    /// generations.
    mean_charge: Arc<AtomicU64>,
}

/// Neurons are kept in millionths.
const MICRO: f64 = 1e6;

impl ModelRuntime {
    /// The endpoint at `url` reports usage with every event of a stream, where it is asked to.
    pub fn has_continuous_usage(&self, url: &str) -> bool {
        let mut endpoints = self.spec.endpoints.iter();
        endpoints.any(|endpoint| endpoint.continuous_usage && *endpoint.url == *url)
    }

    /// Adds the charge of a response, `neurons`, to the moving average. The last value weighs an
    /// eighth; of two concurrent ones one may be lost, which an average can bear.
    pub fn record_charge(&self, neurons: f64) {
        let mean = self.mean_charge.load(Ordering::Relaxed);
        let new = (neurons.max(0.0) * MICRO) as u64;
        let mean = match mean {
            0 => new,
            mean => mean - mean / 8 + new / 8,
        };
        self.mean_charge.store(mean, Ordering::Relaxed);
    }

    /// Moving average of the charge of a response, neurons.
    pub fn mean_charge(&self) -> f64 {
        self.mean_charge.load(Ordering::Relaxed) as f64 / MICRO
    }
}

/// Every model of one configuration generation, in the catalog's order.
#[derive(Default)]
pub struct ModelRuntimes {
    list: Vec<Arc<ModelRuntime>>,
    /// Where their endpoints are; shared by all generations.
    servers: Arc<SharedServers>,
}

impl ModelRuntimes {
    /// Models of a new configuration generation. Gates of models that stay are kept, with their
    /// permits and waiters; those of models that left are closed, and their waiters get a refusal.
    pub fn next_generation(
        &self,
        catalog: &Catalog,
        plugins: &PluginSnapshot,
        connect_timeout: Duration,
        clock: Clock,
        metrics: &Metrics,
    ) -> ModelRuntimes {
        let servers = &self.servers;
        servers.deliver(servers.configure(catalog));
        let list = catalog
            .models()
            .iter()
            .filter_map(|spec| {
                // The configuration admits only models whose backend is in the registry.
                let backend = backend(spec.backend)?;
                let former = self.list.iter().find(|lane| lane.spec.id == spec.id);
                let gate = match former {
                    Some(lane) => {
                        let targets = targets(spec, &lane.gate, connect_timeout);
                        lane.gate.configure(spec, targets);
                        Arc::clone(&lane.gate)
                    }
                    None => AdmissionGate::with_servers(
                        servers,
                        spec,
                        new_targets(spec, connect_timeout),
                        clock,
                    ),
                };
                let metrics = metrics.model(&spec.id);
                Some(Arc::new(ModelRuntime {
                    spec: Arc::clone(spec),
                    gate,
                    backend,
                    task: plugins.task(spec),
                    billing: plugins.billing(spec),
                    tariff_text: tariff_text(spec.tariff.as_ref()).map(Arc::from),
                    routing: Ranking::next_generation(
                        plugins.routing(spec),
                        former.map(|lane| &lane.routing),
                    ),
                    metrics,
                    mean_charge: former
                        .map(|lane| Arc::clone(&lane.mean_charge))
                        .unwrap_or_default(),
                }))
            })
            .collect::<Vec<_>>();
        for lane in &self.list {
            if !list
                .iter()
                .any(|kept: &Arc<ModelRuntime>| kept.spec.id == lane.spec.id)
            {
                lane.gate.configure(&closed(&lane.spec), Vec::new());
            }
        }
        let configured: Vec<_> = list.iter().map(|lane| lane.spec.id.clone()).collect();
        metrics.retain(&configured);
        ModelRuntimes {
            list,
            servers: Arc::clone(servers),
        }
    }

    /// The model at a position of the catalog.
    pub fn get(&self, index: usize) -> &Arc<ModelRuntime> {
        &self.list[index]
    }

    /// All models.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ModelRuntime>> {
        self.list.iter()
    }
}

/// Spec of a model that was removed: no endpoints, no queue.
fn closed(spec: &ModelSpec) -> ModelSpec {
    let queue = QueueSpec {
        capacity: 0,
        site_queue_size: 0,
        total_capacity: 0,
        when_unhealthy: WhenUnhealthy::Refuse,
        ..spec.queue.clone()
    };
    ModelSpec {
        endpoints: Vec::new(),
        queue,
        ..spec.clone()
    }
}

fn new_targets(spec: &ModelSpec, connect_timeout: Duration) -> Vec<Arc<Target>> {
    let make = |e| Target::new(e, spec.id.as_str(), connect_timeout).map(Arc::new);
    spec.endpoints.iter().filter_map(make).collect()
}

/// Targets that did not change stay, with their resolved addresses.
fn targets(spec: &ModelSpec, gate: &AdmissionGate, connect_timeout: Duration) -> Vec<Arc<Target>> {
    let present = gate.targets();
    spec.endpoints
        .iter()
        .filter_map(|endpoint| {
            let model = spec.id.as_str();
            let same = |t: &&Arc<Target>| t.matches(endpoint, model, connect_timeout);
            match present.iter().map(|(target, _)| target).find(same) {
                Some(target) => Some(Arc::clone(target)),
                None => Target::new(endpoint, model, connect_timeout).map(Arc::new),
            }
        })
        .collect()
}
