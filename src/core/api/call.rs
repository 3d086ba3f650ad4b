//! A parsed inference request: operation, dialect and the ranges of its members in the body; or an
//! opaque body that is not JSON.
//!
//! Not a conversion: the body stays as the client sent it. Differences for a backend (the model's name,
//! no extension fields, usage requested) are a short list of edits, applied while the body is copied
//! once. A 1 MB chat is never parsed into a tree.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::passed_api::PassedApi;
use super::tensor_request::TensorRequest;

/// API that the client speaks: decides the shape of responses and errors. Names, paths and shapes are in
/// the row of [`DIALECTS`](super::dialects::DIALECTS) at the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApiDialect {
    /// `/v1/*`, and `/client/v4/accounts/{account}/ai/v1/*`.
    OpenAi,
    /// `…/ai/run/{model}`.
    WorkersAi,
    /// `/v1/messages`, and below an account like the OpenAI paths.
    Anthropic,
    /// `/v1/predictions`, `/v1/trainings` and the catalogue around them.
    Replicate,
    /// `/v2/*` of the Open Inference Protocol.
    OpenInference,
}

/// Operation that the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// OpenAI `chat/completions`.
    Chat,
    /// OpenAI `completions`.
    Completions,
    /// OpenAI `embeddings`.
    Embeddings,
    /// Workers AI `run`: the meaning depends on the model's task.
    Run,
    /// Tensors of the Open Inference Protocol, whatever the model's task.
    Infer,
    /// Text of the generate extension of the Open Inference Protocol, whatever the model's task.
    Generate,
    /// The same as a stream of events.
    GenerateStream,
    /// A WebSocket: no body, and messages in both directions for as long as it is open.
    WebSocket,
    /// An OpenAI API whose bodies pass.
    Passed(PassedApi),
}

/// Replacement of a range of the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeEdit {
    /// Byte range of the client's body.
    pub range: Range<usize>,
    /// Replacement, as the backend sees it.
    pub text: Vec<u8>,
}

/// A request whose body has been read: well-formed JSON, or opaque bytes.
#[derive(Clone, Debug)]
pub struct Call {
    /// Dialect of the response.
    pub dialect: ApiDialect,
    /// Requested operation.
    pub operation: Operation,
    /// The model as the client named it (percent-decoded, when it stood in the path).
    pub model: String,
    /// The body as the client sent it.
    pub body: Bytes,
    /// The client asked for a stream of events.
    pub stream: bool,
    /// The client itself asked for usage on its stream (`stream_options.include_usage`).
    pub usage_requested: bool,
    /// `max_tokens` or `max_completion_tokens`, when given.
    pub max_tokens: Option<u64>,
    /// Outputs that are generated: `n`, or `best_of` where that is more, for each prompt; at least 1.
    pub outputs: u32,
    /// Outputs in the response: `n` for each prompt; at least 1.
    pub choices: u32,
    /// The server is asked to report usage with every event of a stream.
    pub continuous_usage: bool,
    /// `x_priority`: 0 is first, 9 last.
    pub priority: Option<u8>,
    /// `x_client_id`, at most 64 bytes: recorded in the event, and matched by client profiles.
    pub client_id: Option<String>,
    /// `options.rejectIfBusy`: fail fast instead of waiting.
    pub reject_if_busy: bool,
    /// Content type of a body that is not JSON: the image or the sound itself, or a form.
    pub content_type: Option<Arc<str>>,
    /// Parts of an inference request of tensors.
    pub tensors: Option<Box<TensorRequest>>,
    /// Ranges of the top-level members that are images or sounds. That of a file which is still coming ends behind `body`.
    pub(crate) files: Vec<Range<usize>>,
    /// Range of the value of `lora` in `body`.
    pub(crate) lora: Option<Range<usize>>,
    /// Range of the value of `model` in `body`.
    pub(crate) model_value: Option<Range<usize>>,
    /// Range of the value of `stream_options` in `body`.
    pub(crate) stream_options: Option<Range<usize>>,
    /// Offset just after the body's opening brace, where a new member may be put. The member's text
    /// carries its own comma when the object is not empty.
    pub(crate) first_member: u32,
    /// The object has no members at all.
    pub(crate) is_empty: bool,
    /// Edits for every backend: removal of extension fields.
    pub(crate) strip_edits: Vec<RangeEdit>,
}

impl Call {
    /// Returns the name of the model as JSON, as in the body; none where the path names it.
    pub fn model_in_body(&self) -> Option<Bytes> {
        Some(self.body.slice(self.model_value.clone()?))
    }

    /// Returns the API, where the bodies of the request pass.
    pub fn passed_api(&self) -> Option<PassedApi> {
        match self.operation {
            Operation::Passed(api) => Some(api),
            _ => None,
        }
    }

    /// Creates a `run` whose body is not JSON: an image, a sound, anything. Members that only a JSON body
    /// can have keep their defaults.
    pub fn opaque(model: String, content_type: Arc<str>, body: Bytes) -> Call {
        Call {
            dialect: ApiDialect::WorkersAi,
            operation: Operation::Run,
            model,
            body,
            stream: false,
            usage_requested: false,
            max_tokens: None,
            outputs: 1,
            choices: 1,
            continuous_usage: false,
            priority: None,
            client_id: None,
            reject_if_busy: false,
            content_type: Some(content_type),
            tensors: None,
            files: Vec::new(),
            lora: None,
            model_value: None,
            stream_options: None,
            first_member: 0,
            is_empty: true,
            strip_edits: Vec::new(),
        }
    }

    /// Creates the request to open a WebSocket, which has no body.
    pub fn websocket(dialect: ApiDialect, model: String) -> Call {
        Call {
            dialect,
            operation: Operation::WebSocket,
            content_type: None,
            ..Call::opaque(model, "".into(), Bytes::new())
        }
    }

    /// Returns the same request with `payload` as its body, which is sent unchanged; ranges of members are
    /// not known.
    pub fn with_payload(self, payload: Bytes, content_type: Option<Arc<str>>) -> Call {
        Call {
            body: payload,
            content_type,
            files: Vec::new(),
            lora: None,
            model_value: None,
            stream_options: None,
            first_member: 0,
            is_empty: true,
            strip_edits: Vec::new(),
            ..self
        }
    }

    /// Returns whether the body has a `lora` that is no null, a text or not.
    pub fn has_lora(&self) -> bool {
        let value = self.lora.as_ref();
        value.is_some_and(|range| self.body[range.clone()] != *b"null")
    }

    /// Returns the low-rank adapter, when the body names one.
    pub fn lora(&self) -> Option<Cow<'_, str>> {
        let value = &self.body[self.lora.clone()?];
        // A name without escapes is borrowed.
        match serde_json::from_slice::<&str>(value) {
            Ok(name) => Some(Cow::Borrowed(name)),
            Err(_) => serde_json::from_slice(value).ok().map(Cow::Owned),
        }
    }

    /// Returns the body without the extension fields, which only this gateway reads. Makes no copy when
    /// there are none.
    pub fn stripped_body(&self) -> Bytes {
        self.edited(self.strip_edits.clone())
    }

    /// Returns the body where it is JSON without extension fields: what a task checks is what the client sent.
    pub fn plain_json(&self) -> Option<&Bytes> {
        let is_plain = self.content_type.is_none() && self.strip_edits.is_empty();
        is_plain.then_some(&self.body)
    }

    /// Returns the body for an OpenAI-compatible backend: `model` replaced, extension fields gone and, on
    /// a stream, usage requested. Copies at most once, and not at all when nothing differs.
    pub fn openai_body(&self, backend_model: &str) -> Bytes {
        let mut edits = self.strip_edits.clone();
        // In a form a value has no quotes.
        let quoted = match &self.content_type {
            Some(_) => backend_model.into(),
            None => serde_json::to_vec(backend_model).unwrap_or_default(),
        };
        match &self.model_value {
            Some(range) if self.body[range.clone()] == quoted[..] => {}
            Some(range) => edits.push(RangeEdit {
                range: range.clone(),
                text: quoted,
            }),
            // Only a body that was changed on its way lacks it.
            None => edits.push(self.insert(&[br#""model":"#, &quoted[..]].concat())),
        }
        let has_options = !matches!(self.operation, Operation::Passed(_));
        if self.stream && has_options && (!self.usage_requested || self.continuous_usage) {
            edits.push(self.usage_edit());
        }
        self.edited(edits)
    }

    fn usage_edit(&self) -> RangeEdit {
        match &self.stream_options {
            Some(range) => {
                let mut options: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_slice(&self.body[range.clone()]).unwrap_or_default();
                options.insert("include_usage".into(), true.into());
                if self.continuous_usage {
                    options.insert("continuous_usage_stats".into(), true.into());
                }
                let text = serde_json::to_vec(&options).unwrap_or_default();
                RangeEdit {
                    range: range.clone(),
                    text,
                }
            }
            None => {
                let options = self.stream_options_json();
                self.insert(&[br#""stream_options":"#, options.as_bytes()].concat())
            }
        }
    }

    /// Returns the `stream_options` that request usage from a server.
    pub fn stream_options_json(&self) -> &'static str {
        match self.continuous_usage {
            true => r#"{"include_usage":true,"continuous_usage_stats":true}"#,
            false => r#"{"include_usage":true}"#,
        }
    }

    /// Returns the edit that puts `member` first. At most one per body without members.
    fn insert(&self, member: &[u8]) -> RangeEdit {
        let comma: &[u8] = if self.is_empty { b"" } else { b"," };
        let at = self.first_member as usize;
        RangeEdit {
            range: at..at,
            text: [member, comma].concat(),
        }
    }

    /// Returns the body with `edits`, which do not overlap. Makes no copy when there are none.
    pub(super) fn edited(&self, mut edits: Vec<RangeEdit>) -> Bytes {
        if edits.is_empty() {
            return self.body.clone();
        }
        edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
        let added: usize = edits.iter().map(|edit| edit.text.len()).sum();
        let mut out = BytesMut::with_capacity(self.body.len() + added);
        let mut at = 0;
        for edit in &edits {
            out.extend_from_slice(&self.body[at..edit.range.start]);
            out.extend_from_slice(&edit.text);
            at = edit.range.end;
        }
        out.extend_from_slice(&self.body[at..]);
        out.freeze()
    }
}
