//! Runtime of the models: spec, gate, backend, task, price and routing of each, by generation.
//!
//! No request is made here. A reload makes a new [`ModelRuntimes`] around the gates that stay.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use infergate_core::ModelId;
use infergate_core::model::{
    Catalog, EndpointSpec, ModelSpec, QueueSpec, WhenUnhealthy, tariff_text,
};

use super::backends::{Backend, backend};
use super::finetune_files::FinetuneFiles;
use super::gate::AdmissionGate;
use super::process_permits::{PermitSide, ProcessPermits};
use super::ranking::Ranking;
use super::servers::SharedServers;
use super::target::Target;
use crate::plugin::{BillingSlot, PluginSnapshot, TaskSlot};
use crate::telemetry::{Clock, Metrics, ModelMetrics};

/// Header with the tariff of a model, for servers that count neurons by it.
const MODEL_CONFIG_HEADER: &str = "cf-ai-model-config";
/// Requests of a model that wait in a process which ends.
const LATE_REQUESTS_MAX: u32 = 1000;

/// Runtime of one model, ready to serve.
pub struct ModelRuntime {
    /// As configured in this generation.
    pub spec: Arc<ModelSpec>,
    /// Admission; shared by all generations of the model.
    pub gate: Arc<AdmissionGate>,
    /// Kind of its endpoints: their protocol and health check.
    pub backend: &'static Backend,
    /// Task that checks the input and shapes payload and response.
    pub task: TaskSlot,
    /// Formula that prices its responses.
    pub billing: BillingSlot,
    /// Its tariff as it goes along with a request to another node; none where that is too long.
    pub tariff_text: Option<Arc<str>>,
    /// Order of its endpoints by the routing policy.
    pub routing: Ranking,
    /// Files of its finetunes.
    pub finetune_files: FinetuneFiles,
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
    /// Servers of their endpoints; shared by all generations.
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
                let backend = backend(spec.backend.as_str())?;
                let former = self.list.iter().find(|model| model.spec.id == spec.id);
                let gate = match former {
                    Some(model) => {
                        let targets = targets(spec, &model.gate, connect_timeout);
                        model.gate.configure(spec, targets);
                        Arc::clone(&model.gate)
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
                        former.map(|model| &model.routing),
                        &spec.endpoints,
                    ),
                    finetune_files: FinetuneFiles::new(&spec.finetunes),
                    metrics,
                    mean_charge: former
                        .map(|model| Arc::clone(&model.mean_charge))
                        .unwrap_or_default(),
                }))
            })
            .collect::<Vec<_>>();
        for model in &self.list {
            if !list
                .iter()
                .any(|kept: &Arc<ModelRuntime>| kept.spec.id == model.spec.id)
            {
                model.gate.configure(&closed(&model.spec), Vec::new());
            }
        }
        let configured: Vec<_> = list.iter().map(|model| model.spec.id.clone()).collect();
        metrics.retain(&configured);
        ModelRuntimes {
            list,
            servers: Arc::clone(servers),
        }
    }

    /// Limits of all servers, by the names of their permits.
    pub fn server_limits(&self) -> BTreeMap<String, u32> {
        let all = self.servers.all().into_iter();
        all.map(|(name, server)| (name, server.limit())).collect()
    }

    /// Lets requests wait in long queues, for the end of the process: permits that are free are its successor's, and come
    /// back one by one.
    pub fn lengthen_queues(&self) {
        for model in &self.list {
            let former = &model.spec.queue;
            let queue = QueueSpec {
                capacity: u32::MAX,
                total_capacity: former.total_capacity.max(LATE_REQUESTS_MAX),
                ..former.clone()
            };
            let spec = ModelSpec {
                queue,
                ..ModelSpec::clone(&model.spec)
            };
            let targets = model.gate.targets().into_iter().map(|(target, _)| target);
            model.gate.configure(&spec, targets.collect());
        }
    }

    /// Permits of another process at these servers. Of one that ends they are all of `owned`; one that begins has none yet.
    pub fn share_permits(
        &self,
        side: PermitSide,
        owned: &BTreeMap<String, u32>,
    ) -> Arc<ProcessPermits> {
        ProcessPermits::new(&self.servers, side, owned)
    }

    /// Returns whether another process sends requests to these servers, or has sent some.
    pub fn were_shared(&self) -> bool {
        self.servers.was_shared()
    }

    /// Permits that other processes have at a slot of `model`.
    pub fn permits_elsewhere(&self, model: &ModelId, slot: &str) -> u32 {
        self.servers.count_elsewhere(model, slot)
    }

    /// Lets other processes have further permits at a slot of `model`, or none.
    pub fn open_elsewhere(&self, model: &ModelId, slot: &str, is_open: bool) {
        self.servers.set_open_elsewhere(model, slot, is_open);
    }

    /// Models that requests wait for here while no slot of theirs is ready. Takes what was remembered of refused ones.
    pub fn take_cold_demand(&self) -> Vec<ModelId> {
        let cold = self.list.iter().filter(|model| model.gate.is_cold());
        let asked = cold.filter(|model| {
            let mut is_waiting = false;
            let (refused, _) = model.gate.look_at_demand(1, |_| is_waiting = true);
            is_waiting || !refused.is_empty()
        });
        asked.map(|model| model.spec.id.clone()).collect()
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
    let make = |endpoint| {
        let endpoint = with_model_config(endpoint, spec);
        Target::new(&endpoint, spec.id.as_str(), connect_timeout).map(Arc::new)
    };
    spec.endpoints.iter().filter_map(make).collect()
}

/// An endpoint with the tariff of its model among its headers, where the server is to know it.
fn with_model_config<'a>(endpoint: &'a EndpointSpec, spec: &ModelSpec) -> Cow<'a, EndpointSpec> {
    let tariff = spec.tariff.as_ref().filter(|_| endpoint.send_model_config);
    let Some(text) = tariff.and_then(|tariff| tariff_text(Some(tariff))) else {
        return Cow::Borrowed(endpoint);
    };
    let mut endpoint = endpoint.clone();
    let name = Arc::from(MODEL_CONFIG_HEADER);
    endpoint.headers.insert(name, text.as_str().into());
    Cow::Owned(endpoint)
}

/// Targets that did not change stay, with their resolved addresses.
fn targets(spec: &ModelSpec, gate: &AdmissionGate, connect_timeout: Duration) -> Vec<Arc<Target>> {
    let present = gate.targets();
    spec.endpoints
        .iter()
        .filter_map(|endpoint| {
            let model = spec.id.as_str();
            let endpoint = with_model_config(endpoint, spec);
            let same = |t: &&Arc<Target>| t.matches(&endpoint, model, connect_timeout);
            match present.iter().map(|(target, _)| target).find(same) {
                Some(target) => Some(Arc::clone(target)),
                None => {
                    let target = Target::new(&endpoint, model, connect_timeout)?;
                    let mut former = present.iter().map(|(target, _)| target);
                    let former = former.find(|former| former.url == endpoint.url);
                    Some(Arc::new(match former {
                        Some(former) => target.with_work_of(former),
                        None => target,
                    }))
                }
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::upstream::ranking::{RankingClass, RankingRequest};

    fn generation(former: &ModelRuntimes, urls: impl Iterator<Item = String>) -> ModelRuntimes {
        let endpoints: Vec<_> = urls.map(|url| json!({ "url": url })).collect();
        let spec = json!({
            "id": "m", "task": "text-generation", "backend": "openai",
            "plugins": { "routing": "affinity" }, "endpoints": endpoints,
        });
        let catalog = Catalog::new(vec![Arc::new(
            serde_json::from_value(spec).expect("a model"),
        )]);
        let plugins = PluginSnapshot::default();
        let connect_timeout = Duration::from_secs(1);
        former.next_generation(
            &catalog,
            &plugins,
            connect_timeout,
            Clock::start(),
            &Metrics::new("", "", 0.0),
        )
    }

    #[test]
    fn endpoints_that_left_make_room_in_the_memory_of_prefixes_for_those_that_came() {
        let prompt = json!({ "prompt": "x".repeat(4096) }).to_string();
        let url = |number: usize| format!("http://10.0.{}.{}:1", number / 256, number % 256);
        let mut models = ModelRuntimes::default();
        // As many as are remembered, in two generations.
        for from in [0, 512] {
            models = generation(&models, (from..from + 512).map(url));
            let routing = &models.get(0).routing;
            let prompt = routing.prompt(prompt.as_bytes(), None);
            (from..from + 512).for_each(|number| routing.record_sent(&url(number).into(), &prompt));
        }
        let models = generation(&models, std::iter::once(url(2000)));
        let model = models.get(0);
        let prompt = model.routing.prompt(prompt.as_bytes(), None);
        model.routing.record_sent(&url(2000).into(), &prompt);
        let request = RankingRequest {
            account: &"a".into(),
            request_id: "r",
            class: RankingClass::default(),
            body_bytes: 0,
            deadline_ms: 1000,
            prompt: &prompt,
            held: None,
        };
        let now = model.gate.clock.now();
        let ranked = model.routing.rank_endpoints(&model.gate, &request, now);
        let (_, _, candidate) = ranked.unwrap().result.ranked[0].clone();
        assert_eq!(candidate.prefix_affinity, 1000);
    }
}
