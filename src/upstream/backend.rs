//! Kinds of model server: how each is called, how its responses are read, how its health is
//! checked.
//!
//! No connection is made here. A new kind is one file with this trait and one line in [`backend`].
//! Called by the pipeline for each attempt, and by the health checks.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::{Call, Operation};
use infergate_core::model::{BackendKind, Task};

use super::response::ResponseTransformer;
use super::{http, llama_server, openai, tei, tgi};

/// A request as this kind of server takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamRequest {
    /// Path under the endpoint's base URL; empty is that URL itself.
    pub path: Cow<'static, str>,
    /// Body of the request.
    pub body: Bytes,
    /// Content type of the body, where it is not JSON.
    pub content_type: Option<Arc<str>>,
    /// The server will answer with events.
    pub streams: bool,
}

/// How to ask a server whether it lives.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// `GET` this path under the endpoint's base URL.
    pub path: &'static str,
    /// Returns true when status and body of the response say that the server can serve.
    pub healthy: fn(status: u16, body: &[u8]) -> bool,
}

/// A kind of model server.
pub trait Backend: Send + Sync {
    /// Its name in the configuration.
    fn name(&self) -> &'static str;

    /// Returns true when the server is posted what the model's task makes of the body, where the
    /// task names a path there. Other kinds are called in their own protocol, whatever a task makes
    /// of the body.
    fn uses_task_payload(&self) -> bool {
        false
    }

    /// Checks that a model with this task can serve the call; a refusal says why not.
    fn accepts(&self, call: &Call, task: Task) -> Result<(), Refusal> {
        BackendOperation::from_call(call, task).map(drop)
    }

    /// The call as this kind of server takes it; a refusal where it cannot serve it.
    fn encode(
        &self,
        call: &Call,
        task: Task,
        backend_model: &str,
    ) -> Result<UpstreamRequest, Refusal>;

    /// The reader of the 2xx answer to that request.
    fn decoder(&self, call: &Call, task: Task) -> ResponseTransformer;

    /// How its health is checked.
    fn probe(&self) -> Probe;
}

/// The backend of this kind; none where the kind is not served.
pub fn backend(kind: BackendKind) -> Option<&'static dyn Backend> {
    match kind {
        BackendKind::Openai => Some(&openai::Openai),
        BackendKind::Tgi => Some(&tgi::Tgi),
        BackendKind::Tei => Some(&tei::Tei),
        BackendKind::LlamaServer => Some(&llama_server::LlamaServer),
        BackendKind::Http => Some(&http::Http),
        BackendKind::Triton | BackendKind::Cog => None,
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
        }
    }

    /// Where an OpenAI-compatible server takes calls that are passed through.
    pub(super) fn openai_path(self) -> &'static str {
        match self {
            BackendOperation::Chat | BackendOperation::RunGeneration => "/v1/chat/completions",
            BackendOperation::Completions => "/v1/completions",
            BackendOperation::Embeddings | BackendOperation::RunEmbeddings => "/v1/embeddings",
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
            content_type: None,
            streams: self.streams(call),
        }
    }
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
