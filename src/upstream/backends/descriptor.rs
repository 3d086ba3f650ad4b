//! Descriptor of a backend: everything the gateway knows about a kind of model server.
//!
//! No connection is made here. A new backend is one file with a `static` of [`Backend`] and one row in
//! [`BACKENDS`](super::BACKENDS). Used by the pipeline for each attempt, by the health checks, and by the
//! configuration for its schema and checks.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::passed::PassedApi;
use infergate_core::api::{BarredNames, Call, Operation};
use infergate_core::model::{BackendName, Payload, Task};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::server_metrics::ServerMetrics;
use crate::upstream::response::{ResponseDecoder, ResponseTransformer};

/// A request as a kind of server takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamRequest {
    /// Path under the endpoint's base URL; empty is that URL itself.
    pub path: Cow<'static, str>,
    /// Body of the request.
    pub body: Bytes,
    /// Content type of the body, where it is not JSON.
    pub content_type: Option<Arc<str>>,
    /// The server will respond with events.
    pub streams: bool,
}

/// Health check of a server.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// `GET` this path under the endpoint's base URL; `{model}` in it is the model's name there.
    pub path: &'static str,
    /// Returns true when status and body of the response say that the server can serve.
    pub is_healthy: fn(status: u16, body: &[u8]) -> bool,
    /// Page of metrics that is read beside the check, where the server has one.
    pub metrics: Option<MetricsPage>,
    /// Reads the body of a 200, where it tells more than the status.
    pub report: Option<fn(body: &[u8]) -> ProbeReport>,
}

/// Report of a server about itself, in the answer to a health check.
#[derive(Clone, Debug, Default)]
pub struct ProbeReport {
    /// Reason for which it can serve nothing, in a word or two.
    pub fault: Option<&'static str>,
    /// Every slot is taken.
    pub is_full: bool,
    /// Logs that tell operators more about the fault.
    pub logs: Option<String>,
}

impl Probe {
    /// Path of the check of a server that calls the model `backend_model`.
    pub fn path_of(&self, backend_model: &str) -> Cow<'static, str> {
        match self.path.split_once(MODEL) {
            Some((before, after)) => {
                format!("{before}{}{after}", path_segment(backend_model)).into()
            }
            None => self.path.into(),
        }
    }
}

/// Place of the model's name in the path of a health check.
const MODEL: &str = "{model}";

/// Characters of a name that stand in a path as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A name as a segment of a path.
pub fn path_segment(name: &str) -> String {
    utf8_percent_encode(name, PLAIN).to_string()
}

/// Page of metrics in the Prometheus text format.
#[derive(Clone, Copy, Debug)]
pub struct MetricsPage {
    /// `GET` this path under the endpoint's base URL.
    pub path: &'static str,
    /// Reads the page; none where it has no metric of this server.
    pub read: fn(page: &str) -> Option<ServerMetrics>,
}

/// A kind of model server.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// Its name in the configuration.
    pub name: &'static str,
    /// The servers it is for, for the schema and the reference.
    pub about: &'static str,
    /// Tasks of the models it serves.
    pub tasks: &'static [Task],
    /// Origin of what is posted.
    pub payload: Payload,
    /// Paths it posts to where a task names none, for the reference.
    pub paths: &'static [&'static str],
    /// OpenAI APIs whose bodies pass that such servers have.
    pub passed: &'static [PassedApi],
    /// Checks that a model with this task can serve the call; a refusal says why not.
    pub accepts: fn(&Call, Task) -> Result<(), Refusal>,
    /// The call as this kind of server takes it, with the model's name there.
    pub encode: fn(&Call, Task, &str) -> Result<UpstreamRequest, Refusal>,
    /// The decoder of the 2xx response to that request.
    pub response_decoder: fn(&Call, Task) -> Box<dyn ResponseDecoder>,
    /// Form in which such a server takes the adapter of a request; none where a request cannot choose one.
    pub adapter_form: Option<AdapterForm>,
    /// Health check of such a server.
    pub probe: Probe,
}

/// Form in which a server takes the adapter (LoRA) of a request.
#[derive(Clone, Copy, Debug)]
pub struct AdapterForm {
    /// An adapter is a model there: its name takes the place of the model's.
    pub is_model: bool,
    /// Member that carries its name.
    pub member: Option<&'static str>,
    /// Member that carries what the configuration says of a finetune with files.
    pub config_member: Option<&'static str>,
    /// Names by which such servers are asked for an adapter past its finetune.
    pub barred: BarredNames,
}

impl AdapterForm {
    /// A model of its own. SGLang and servers alike have a member beside.
    pub(super) const MODEL: AdapterForm = AdapterForm {
        is_model: true,
        member: None,
        config_member: None,
        barred: BarredNames::only(&["lora_path"]),
    };

    /// The member of clients, with the adapter's name there.
    pub(super) const LORA: AdapterForm = AdapterForm {
        is_model: false,
        member: Some("lora"),
        config_member: None,
        barred: BarredNames::only(&[]),
    };
}

impl Backend {
    /// Checks that a model with this task can serve the call; a refusal says why not.
    pub fn accepts(&self, call: &Call, task: Task) -> Result<(), Refusal> {
        self.check_passed(call, task)?;
        (self.accepts)(call, task)
    }

    /// The call as this kind of server takes it; a refusal where it cannot serve it.
    pub fn encode(
        &self,
        call: &Call,
        task: Task,
        backend_model: &str,
    ) -> Result<UpstreamRequest, Refusal> {
        self.check_passed(call, task)?;
        (self.encode)(call, task, backend_model)
    }

    /// Checks that an API whose bodies pass is served by such servers, and by a model with this task.
    fn check_passed(&self, call: &Call, task: Task) -> Result<(), Refusal> {
        let Operation::Passed(api) = call.operation else {
            return Ok(());
        };
        if task != api.task() {
            return Err(wrong_model(call, api.lack()));
        }
        if !self.passed.contains(&api) {
            let why = format!(
                "runs on a server without {}: backend `{}`",
                api.path(),
                self.name
            );
            return Err(wrong_model(call, &why));
        }
        Ok(())
    }

    /// The transformer of the 2xx response to `call`.
    pub fn decoder(&self, call: &Call, task: Task) -> ResponseTransformer {
        let is_of_tokens = call.passed_api().is_none_or(PassedApi::is_of_tokens);
        let is_token_based = self.payload == Payload::Protocol && is_of_tokens;
        ResponseTransformer::new(call, (self.response_decoder)(call, task), is_token_based)
    }

    /// Returns true when the server is posted what the model's task makes of the body, where the task
    /// names a path there. Other kinds are called in their own protocol, whatever a task makes of it.
    pub fn uses_task_payload(&self) -> bool {
        self.payload == Payload::Task
    }

    /// Returns true when the server takes tensors of the Open Inference Protocol.
    pub fn takes_tensors(&self) -> bool {
        self.name == BackendName::TRITON
    }

    /// Returns true when requests are runs under names that the gateway gives, which go on without their connections.
    pub fn names_runs(&self) -> bool {
        self.name == BackendName::COG
    }

    /// Returns true when a 424 of such a server is a failure of its model at work, and not want of capacity.
    pub fn fails_with_424(&self) -> bool {
        matches!(self.name, "tgi" | "tei")
    }

    /// Returns the method of requests to such a server.
    pub fn method(&self) -> &'static str {
        match self.names_runs() {
            true => "PUT",
            false => "POST",
        }
    }

    /// Returns the name under which such a server runs a model, or the adapter that takes its place there.
    pub fn served_name<'a>(&self, model: &'a str, adapter: Option<&'a str>) -> &'a str {
        let form = self.adapter_form.filter(|form| form.is_model);
        form.and(adapter).unwrap_or(model)
    }

    /// Returns true when the task's payload goes to the path that the task names: the server has none of its own.
    pub fn uses_task_path(&self) -> bool {
        self.uses_task_payload() && self.paths.is_empty()
    }
}

/// A call together with what it means for the model's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackendOperation {
    /// OpenAI chat, passed through.
    Chat,
    /// OpenAI completion, passed through.
    Completions,
    /// OpenAI embeddings, passed through.
    Embeddings,
    /// Workers AI text generation, converted.
    RunGeneration,
    /// Workers AI text embeddings, converted.
    RunEmbeddings,
    /// An OpenAI API whose bodies pass.
    Passed(PassedApi),
}

impl BackendOperation {
    /// Operation that `call` means for a model with this task.
    pub(super) fn from_call(call: &Call, task: Task) -> Result<BackendOperation, Refusal> {
        match (call.operation, task) {
            (Operation::Chat, Task::TextGeneration) => Ok(BackendOperation::Chat),
            (Operation::Completions, Task::TextGeneration) => Ok(BackendOperation::Completions),
            (Operation::Embeddings, Task::TextEmbeddings) => Ok(BackendOperation::Embeddings),
            (Operation::Run, Task::TextGeneration) => Ok(BackendOperation::RunGeneration),
            (Operation::Run, Task::TextEmbeddings) => Ok(BackendOperation::RunEmbeddings),
            (Operation::Chat | Operation::Completions, _) => {
                Err(wrong_model(call, "does not generate text"))
            }
            (Operation::Embeddings, _) => Err(wrong_model(call, "does not make embeddings")),
            (Operation::Run, _) => Err(wrong_model(call, "cannot be run here")),
            (Operation::Infer | Operation::Generate | Operation::GenerateStream, _) => {
                Err(wrong_model(call, NO_TENSORS))
            }
            (Operation::WebSocket, _) => Err(wrong_model(call, NO_WEBSOCKET)),
            (Operation::Passed(api), _) => Ok(BackendOperation::Passed(api)),
        }
    }

    /// Path at which an OpenAI-compatible server takes calls that are passed through.
    pub(super) fn openai_path(self) -> &'static str {
        match self {
            BackendOperation::Chat | BackendOperation::RunGeneration => "/v1/chat/completions",
            BackendOperation::Completions => "/v1/completions",
            BackendOperation::Embeddings | BackendOperation::RunEmbeddings => "/v1/embeddings",
            BackendOperation::Passed(api) => api.path(),
        }
    }

    /// Returns whether events are expected: embeddings have no streamed form, whatever the body
    /// says.
    pub(super) fn streams(self, call: &Call) -> bool {
        call.stream
            && !matches!(
                self,
                BackendOperation::Embeddings | BackendOperation::RunEmbeddings
            )
    }

    /// The call passed through to an OpenAI-compatible path.
    pub(super) fn pass(self, call: &Call, backend_model: &str) -> UpstreamRequest {
        UpstreamRequest {
            path: self.openai_path().into(),
            body: call.openai_body(backend_model),
            content_type: call.content_type.clone(),
            streams: self.streams(call),
        }
    }
}

/// Request of an API whose bodies pass, as every server has it.
pub(super) fn pass(call: &Call, api: PassedApi, backend_model: &str) -> UpstreamRequest {
    BackendOperation::Passed(api).pass(call, backend_model)
}

/// Reason why a server that is none of the Open Inference Protocol takes no tensors.
pub(super) const NO_TENSORS: &str = "does not take tensors: its server is none of backend `triton`";

/// Reason why a server that is not plain HTTP takes no WebSocket.
pub(super) const NO_WEBSOCKET: &str = "takes no WebSocket: its server is none of backend `http`";

/// Checks that a model with this task can serve the call by a protocol of text and embeddings.
pub(super) fn accepts(call: &Call, task: Task) -> Result<(), Refusal> {
    BackendOperation::from_call(call, task).map(drop)
}

/// The model exists and does something else.
pub(super) fn wrong_model(call: &Call, why: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: "/model".into(),
        message: format!("model `{}` {why}", call.model),
    }
}

/// A server that answers 200 on its probe path is healthy; a redirect or a wrong key is not.
pub(super) fn answers_200(status: u16, _body: &[u8]) -> bool {
    status == 200
}
