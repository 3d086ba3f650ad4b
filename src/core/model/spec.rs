//! A model: its task, its backend and its queue.
//!
//! The fields are the keys under `models[]` in the configuration; no second struct repeats them.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend::BackendName;
use super::base::BaseSpec;
use super::catalog_entry::CatalogEntry;
use super::chat::ChatSpec;
use super::discovery::DiscoverySpec;
use super::endpoint_spec::EndpointSpec;
use super::finetune::FinetuneSpec;
use super::jobs::JobSpec;
use super::parameters::Parameters;
use super::process::{LoadingState, ProcessSpec, ReplicasSpec, VramSpec};
use super::tariff::{MetricMode, ModelPlugins, Tariff, Trust};
use crate::{AccountId, ModelId};

/// Task of a model: the 14 task types of the Workers AI catalogue.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the names are their documentation
pub enum Task {
    TextGeneration,
    TextClassification,
    TextEmbeddings,
    TextToImage,
    TextToSpeech,
    AutomaticSpeechRecognition,
    ImageClassification,
    ImageToText,
    ImageTextToText,
    ObjectDetection,
    Translation,
    Summarization,
    MultimodalEmbeddings,
    DumbPipe,
}

impl Task {
    /// Every task, in the catalogue's order.
    pub const ALL: [Task; 14] = [
        Task::TextGeneration,
        Task::TextClassification,
        Task::TextEmbeddings,
        Task::TextToImage,
        Task::TextToSpeech,
        Task::AutomaticSpeechRecognition,
        Task::ImageClassification,
        Task::ImageToText,
        Task::ImageTextToText,
        Task::ObjectDetection,
        Task::Translation,
        Task::Summarization,
        Task::MultimodalEmbeddings,
        Task::DumbPipe,
    ];

    /// Its name in configurations, schemas and events.
    pub const fn slug(self) -> &'static str {
        match self {
            Task::TextGeneration => "text-generation",
            Task::TextClassification => "text-classification",
            Task::TextEmbeddings => "text-embeddings",
            Task::TextToImage => "text-to-image",
            Task::TextToSpeech => "text-to-speech",
            Task::AutomaticSpeechRecognition => "automatic-speech-recognition",
            Task::ImageClassification => "image-classification",
            Task::ImageToText => "image-to-text",
            Task::ImageTextToText => "image-text-to-text",
            Task::ObjectDetection => "object-detection",
            Task::Translation => "translation",
            Task::Summarization => "summarization",
            Task::MultimodalEmbeddings => "multimodal-embeddings",
            Task::DumbPipe => "dumb-pipe",
        }
    }

    /// Requests may name an adapter by `lora`.
    pub const fn has_adapters(self) -> bool {
        matches!(self, Task::TextGeneration | Task::ImageTextToText)
    }

    /// The body may be the image or the sound itself instead of JSON.
    pub const fn takes_bytes(self) -> bool {
        matches!(
            self,
            Task::AutomaticSpeechRecognition
                | Task::ImageClassification
                | Task::ImageToText
                | Task::ObjectDetection
                | Task::DumbPipe
        )
    }
}

/// Order in which waiting requests get permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Arrival order, one queue for all accounts.
    Fifo,
    /// Weighted round robin over accounts.
    Fair,
    /// `x_priority`, then warm, then arrival.
    Priority,
    /// Least weighted tokens served first (virtual token counter). Ahead of the server's count, text
    /// is 4 bytes a token and an image or a sound 1,024 tokens.
    TokenFair,
}

/// Behaviour of waiting requests while no endpoint is healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenUnhealthy {
    /// Wait for one to recover, for `when_unhealthy_wait_secs`.
    Wait,
    /// Refuse them at once.
    Refuse,
}

/// Queue of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSpec {
    /// Order of service.
    pub algorithm: Algorithm,
    /// Waiting requests per permit: times the sum of permits, clamped to 0..=1000. Per account for
    /// `fair` and `token-fair`, for all together otherwise.
    pub capacity: u32,
    /// Same unit as `capacity`; the larger of the two counts.
    pub site_queue_size: u32,
    /// Waiting requests of all accounts together.
    #[schemars(range(max = 1000000))]
    pub total_capacity: u32,
    /// Behaviour of waiting requests while no endpoint is healthy.
    pub when_unhealthy: WhenUnhealthy,
    /// Seconds that a request waits while no endpoint is healthy, or every one in use keeps failing, at
    /// most to its deadline; then 503.
    #[schemars(range(max = 3600))]
    pub when_unhealthy_wait_secs: u64,
}

impl QueueSpec {
    /// Most waiters per account or queue, whatever is configured: known in the source as the clamp.
    pub const LINE_CAPACITY_MAX: u64 = 1000;

    /// `max(capacity, site_queue_size) × Σ permits`, clamped to `0..=1000`.
    pub fn line_capacity(&self, permits: u64) -> usize {
        let factor = u64::from(self.capacity.max(self.site_queue_size));
        factor.saturating_mul(permits).min(Self::LINE_CAPACITY_MAX) as usize
    }
}

impl Default for QueueSpec {
    fn default() -> Self {
        QueueSpec {
            algorithm: Algorithm::Fair,
            capacity: 2,
            site_queue_size: 0,
            total_capacity: 4096,
            when_unhealthy: WhenUnhealthy::Wait,
            when_unhealthy_wait_secs: 5,
        }
    }
}

/// A model and everything the request pipeline needs to know about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// The name clients use.
    pub id: ModelId,
    /// Other names of the model.
    #[serde(default)]
    pub aliases: Vec<ModelId>,
    /// Task of the model.
    pub task: Task,
    /// Protocol of its endpoints.
    pub backend: BackendName,
    /// Model servers. With none, and none discovered, there are no permits and no queue: every request is refused with 3040.
    #[serde(default)]
    pub endpoints: Vec<EndpointSpec>,
    /// Source of more endpoints while running: one of `file`, `dns`, `consul` and `kubernetes`. A source that
    /// cannot be read changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoverySpec>,
    /// Queue of the model.
    #[serde(default)]
    pub queue: QueueSpec,
    /// Seconds a request may take in all; raised to `timeouts.model_floor_secs`.
    #[serde(default)]
    pub timeout_secs: u64,
    /// Seconds from the grant of a permit to the head of a server's response, 1 to 86,400; then the request
    /// ends with 504 and the endpoint has failed. Without it only the deadline ends the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub first_byte_timeout_secs: Option<u64>,
    /// Attempts that follow a 429 or 424 of a model server, each after a pause, before the client gets a refusal.
    /// Each is one of the three attempts of a request, so that at most 2 count.
    #[serde(default)]
    pub out_of_capacity_retries: u32,
    /// Seconds after which a WebSocket that carries no byte in either direction is closed, 1 to 86,400.
    #[serde(default = "ModelSpec::default_websocket_idle_secs")]
    #[schemars(range(min = 1, max = 86_400))]
    pub websocket_idle_secs: u64,
    /// Seconds for which a WebSocket may be open, 1 to 604,800; in place of `timeouts.ceiling_secs`.
    #[serde(default = "ModelSpec::default_max_connection_duration_secs")]
    #[schemars(range(min = 1, max = 604_800))]
    pub max_connection_duration_secs: u64,
    /// Accounts that may use it; empty means every account.
    #[serde(default)]
    pub allowed_accounts: Vec<AccountId>,
    /// Seconds between SSE comments to a streaming client that still waits in the queue; the first
    /// one commits the status 200. 0 sends none.
    #[serde(default)]
    pub queue_heartbeat_secs: u64,
    /// Sends SSE comments to a streaming client while its model server is silent, before the first event
    /// or between two: every `queue_heartbeat_secs`, or 10 s where that is 0. The first one commits the
    /// status 200. Not sent where another node serves the request.
    #[serde(default)]
    pub progress_comments: bool,
    /// Name under `model` in responses of the OpenAI and Anthropic APIs: the server's, or the one that the client asked for.
    /// With `asked` a whole response is held until complete, up to 16 MiB; a longer one, and events over
    /// 1 MiB, keep the server's name.
    #[serde(default)]
    pub model_in_answers: ModelInAnswers,
    /// Request parameters that are filled in, set or capped before a server is asked; bodies that are
    /// not JSON stay as they are.
    #[serde(default)]
    pub parameters: Parameters,
    /// Form in which chats reach the servers.
    #[serde(default)]
    pub chat: ChatSpec,
    /// Plugins, by name; a name that `plugins` does not declare is that of a built-in one.
    #[serde(default)]
    pub plugins: ModelPlugins,
    /// Parameters of the routing policy, merged over its `settings`.
    #[serde(default)]
    pub routing: serde_json::Map<String, serde_json::Value>,
    /// Price; without a tariff the model is not billed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tariff: Option<Tariff>,
    /// Source of the billed figures.
    #[serde(default)]
    pub metrics_trust: Trust,
    /// Aggregation of a metric's reports on a stream, where it differs from the usual: `cumulative`
    /// (each is the total so far, and the largest counts). `incremental`: they are summed.
    #[serde(default)]
    pub metrics: BTreeMap<Arc<str>, MetricMode>,
    /// Ids of models that take this one's place, in order, when it has no capacity or its servers fail
    /// before the first byte. At most 8, of the same task; their own fallbacks do not count then.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub fallbacks: Vec<ModelId>,
    /// Waits for this model as if it had no fallbacks; they are for failures only.
    #[serde(default)]
    pub pin_primary: bool,
    /// Durable jobs of the model, where the configuration has `jobs`.
    #[serde(default)]
    pub jobs: JobSpec,
    /// Id of the model that runs its trainings, one at a time per endpoint; without it there are none. A
    /// training is a job of the trainer: its price and its events are that model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer: Option<ModelId>,
    /// Finetunes of the model: adapters (LoRA) that requests name by `lora`. Any other name is refused with 3039.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub finetunes: Vec<FinetuneSpec>,
    /// Base on whose endpoints the model runs, in place of its own: the servers exchange their weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseSpec>,
    /// Process on this host that serves the model, beside `endpoints`, which may be empty then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSpec>,
    /// Device memory of the process.
    #[serde(default)]
    pub vram: VramSpec,
    /// Slots of the process, each with a process of its own.
    #[serde(default)]
    pub replicas: ReplicasSpec,
    /// Loaded at start and kept: never evicted, never unloaded while idle, loaded again after a crash.
    #[serde(default)]
    pub pin: bool,
    /// Loaded at start, then as any other.
    #[serde(default)]
    pub preload: bool,
    /// Seconds that the model stays loaded while idle; -1 means always. By task when absent: 900 for text-to-image, 60
    /// for image-classification, 300 for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1, max = 31_536_000))]
    pub keep_alive_secs: Option<i64>,
    /// News for streaming clients that wait until the model is loaded.
    #[serde(default)]
    pub loading_state: LoadingState,
    /// Versions by which jobs name the model, the newest first; one that follows from what serves it when empty.
    #[serde(default)]
    #[schemars(length(max = 64), inner(regex(pattern = "^[0-9a-f]{64}$")))]
    pub versions: Vec<Arc<str>>,
    /// Entry in the catalogue of the Workers AI API.
    #[serde(default)]
    pub catalog: CatalogEntry,
}

/// Name of the model in responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModelInAnswers {
    /// The name that the client asked for, an alias too.
    Asked,
    /// The name that the model server reports.
    #[default]
    Backend,
}

impl ModelSpec {
    /// Model without endpoints, with every other key at its default.
    pub fn new(id: ModelId, task: Task, backend: BackendName) -> ModelSpec {
        ModelSpec {
            id,
            aliases: Vec::new(),
            task,
            backend,
            endpoints: Vec::new(),
            discovery: None,
            queue: QueueSpec::default(),
            timeout_secs: 0,
            first_byte_timeout_secs: None,
            out_of_capacity_retries: 0,
            websocket_idle_secs: ModelSpec::default_websocket_idle_secs(),
            max_connection_duration_secs: ModelSpec::default_max_connection_duration_secs(),
            allowed_accounts: Vec::new(),
            queue_heartbeat_secs: 0,
            progress_comments: false,
            model_in_answers: ModelInAnswers::default(),
            parameters: Parameters::default(),
            chat: ChatSpec::default(),
            plugins: ModelPlugins::default(),
            routing: serde_json::Map::new(),
            tariff: None,
            metrics_trust: Trust::default(),
            metrics: BTreeMap::new(),
            fallbacks: Vec::new(),
            pin_primary: false,
            jobs: JobSpec::default(),
            trainer: None,
            finetunes: Vec::new(),
            base: None,
            process: None,
            vram: VramSpec::default(),
            replicas: ReplicasSpec::default(),
            pin: false,
            preload: false,
            keep_alive_secs: None,
            loading_state: LoadingState::default(),
            versions: Vec::new(),
            catalog: CatalogEntry::default(),
        }
    }

    fn default_websocket_idle_secs() -> u64 {
        60
    }

    fn default_max_connection_duration_secs() -> u64 {
        3600
    }

    /// Returns whether requests may leave for external services.
    pub fn is_external(&self) -> bool {
        self.endpoints.iter().any(EndpointSpec::is_external)
    }

    /// Returns whether a request that was checked for `other` can be served by this model without another
    /// check: same kind of server, same task, same price.
    pub fn serves_like(&self, other: &ModelSpec) -> bool {
        self.id == other.id
            && self.task == other.task
            && self.backend == other.backend
            && self.plugins == other.plugins
            && self.tariff == other.tariff
            && self.parameters == other.parameters
            && self.chat == other.chat
            && self.metrics_trust == other.metrics_trust
            && self.metrics == other.metrics
            && self.allowed_accounts == other.allowed_accounts
            && self.finetunes == other.finetunes
    }

    /// Returns the model with an endpoint for each of its slots; as it is without a process.
    pub fn with_slots(&self) -> ModelSpec {
        let mut spec = self.clone();
        if let Some(process) = &self.process {
            let slots = 0..self.replicas.max;
            let slots = slots.map(|number| EndpointSpec::slot(&self.id, number, process.parallel));
            spec.endpoints.extend(slots);
        }
        spec
    }

    /// Returns the seconds for which an idle model stays loaded; none: always.
    pub fn keep_alive_secs(&self) -> Option<u64> {
        if self.pin {
            return None;
        }
        match self.keep_alive_secs {
            Some(secs) => u64::try_from(secs).ok(),
            None => Some(match self.task {
                Task::TextToImage => 900,
                Task::ImageClassification => 60,
                _ => 300,
            }),
        }
    }

    /// Returns whether this node has servers of the model, or may find or start some.
    pub fn has_own_servers(&self) -> bool {
        !self.endpoints.is_empty() || self.process.is_some() || self.discovery.is_some()
    }

    /// The sum of all endpoints' permits.
    pub fn permits(&self) -> u64 {
        self.endpoints
            .iter()
            .map(|e| u64::from(e.max_concurrent_requests))
            .sum()
    }
}
