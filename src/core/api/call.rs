//! One parsed request: what was asked, in whose dialect, and where in the body it stands; or a body
//! that is no JSON and is not looked into.
//!
//! It keeps the body as the client sent it. What a backend must see differently (the model's name,
//! the extension fields gone, usage asked for) is a short list of edits applied while copying the
//! body out once, so that a 1 MB chat is never parsed into a tree.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// Whose API the client speaks: decides the shape of answers and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Face {
    /// `/v1/*`, and `/client/v4/accounts/{account}/ai/v1/*`.
    OpenAi,
    /// `…/ai/run/{model}`.
    WorkersAi,
}

impl Face {
    /// The face's name in events and metric labels.
    pub const fn name(self) -> &'static str {
        match self {
            Face::OpenAi => "openai",
            Face::WorkersAi => "workers-ai",
        }
    }
}

/// What the client wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// OpenAI `chat/completions`.
    Chat,
    /// OpenAI `completions`.
    Completions,
    /// OpenAI `embeddings`.
    Embeddings,
    /// Workers AI `run`: what it means depends on the model's task.
    Run,
}

/// Replace these bytes of the body with that text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Byte range of the client's body.
    pub range: Range<usize>,
    /// What the backend sees there instead.
    pub text: Vec<u8>,
}

/// A request whose body has been read: well-formed JSON, or bytes that nobody parses.
#[derive(Clone, Debug)]
pub struct Call {
    /// Dialect of the answer.
    pub face: Face,
    /// What is asked.
    pub operation: Operation,
    /// The model as the client named it (percent-decoded, when it stood in the path).
    pub model: String,
    /// The body as the client sent it.
    pub body: Bytes,
    /// The client asked for a stream of events.
    pub stream: bool,
    /// The client itself asked for usage on its stream (`stream_options.include_usage`).
    pub usage_asked: bool,
    /// `max_tokens` or `max_completion_tokens`, when given.
    pub max_tokens: Option<u64>,
    /// Outputs that are generated: `n`, or `best_of` where that is more, for each prompt; at least 1.
    pub outputs: u32,
    /// Those that the answer has: `n` for each prompt; at least 1.
    pub choices: u32,
    /// The server is asked to report usage with every event of a stream.
    pub continuous_usage: bool,
    /// `x_priority`: 0 is first, 9 last.
    pub priority: Option<u8>,
    /// `x_client_id`, at most 64 bytes; recorded in the event only.
    pub client_id: Option<String>,
    /// `options.rejectIfBusy`: fail fast instead of waiting.
    pub reject_if_busy: bool,
    /// What the body is, where it is not JSON: the image or the sound itself.
    pub content_type: Option<Arc<str>>,
    /// Where the top-level members stand that are images or sounds.
    pub(crate) files: Vec<Range<usize>>,
    /// Where the value of `lora` stands in `body`.
    pub(crate) lora: Option<Range<usize>>,
    /// Where the value of `model` stands in `body`.
    pub(crate) model_value: Option<Range<usize>>,
    /// Where the value of `stream_options` stands in `body`.
    pub(crate) stream_options: Option<Range<usize>>,
    /// Just after the body's opening brace: where a new member may be put. The member's text
    /// carries its own comma when the object is not empty.
    pub(crate) first_member: usize,
    /// The object has no members at all.
    pub(crate) empty: bool,
    /// Edits every backend needs: extension fields taken out.
    pub(crate) strips: Vec<Edit>,
}

impl Call {
    /// The name of the model as it stands in the body, in JSON; none where the path names it.
    pub fn model_in_body(&self) -> Option<Bytes> {
        Some(self.body.slice(self.model_value.clone()?))
    }

    /// A `run` whose body is not JSON: an image, a sound, anything. All that can be said in a JSON
    /// body besides the input is unsaid.
    pub fn opaque(model: String, content_type: Arc<str>, body: Bytes) -> Call {
        Call {
            face: Face::WorkersAi,
            operation: Operation::Run,
            model,
            body,
            stream: false,
            usage_asked: false,
            max_tokens: None,
            outputs: 1,
            choices: 1,
            continuous_usage: false,
            priority: None,
            client_id: None,
            reject_if_busy: false,
            content_type: Some(content_type),
            files: Vec::new(),
            lora: None,
            model_value: None,
            stream_options: None,
            first_member: 0,
            empty: true,
            strips: Vec::new(),
        }
    }

    /// The same request with `payload` for its body, which is sent as it is: nothing in it is
    /// known by its place.
    pub fn carrying(self, payload: Bytes, content_type: Option<Arc<str>>) -> Call {
        Call {
            body: payload,
            content_type,
            files: Vec::new(),
            lora: None,
            model_value: None,
            stream_options: None,
            first_member: 0,
            empty: true,
            strips: Vec::new(),
            ..self
        }
    }

    /// The low-rank adapter asked for, when the body names one.
    pub fn lora(&self) -> Option<Cow<'_, str>> {
        let value = &self.body[self.lora.clone()?];
        // A name without escapes is borrowed.
        match serde_json::from_slice::<&str>(value) {
            Ok(name) => Some(Cow::Borrowed(name)),
            Err(_) => serde_json::from_slice(value).ok().map(Cow::Owned),
        }
    }

    /// The body without the extension fields, which only this gateway reads. No copy is made when
    /// there are none.
    pub fn stripped_body(&self) -> Bytes {
        self.edited(self.strips.clone())
    }

    /// The body for an OpenAI-compatible backend: `model` replaced, extension fields gone and, on
    /// a stream, usage asked for. One copy at most; none when nothing differs.
    pub fn openai_body(&self, backend_model: &str) -> Bytes {
        let mut edits = self.strips.clone();
        let quoted = serde_json::to_vec(backend_model).unwrap_or_default();
        match &self.model_value {
            Some(range) if self.body[range.clone()] == quoted[..] => {}
            Some(range) => edits.push(Edit {
                range: range.clone(),
                text: quoted,
            }),
            // Only a body that was changed on its way lacks it.
            None => edits.push(self.insert(&[br#""model":"#, &quoted[..]].concat())),
        }
        if self.stream && (!self.usage_asked || self.continuous_usage) {
            edits.push(self.ask_for_usage());
        }
        self.edited(edits)
    }

    fn ask_for_usage(&self) -> Edit {
        match &self.stream_options {
            Some(range) => {
                let mut options: serde_json::Map<String, serde_json::Value> =
                    serde_json::from_slice(&self.body[range.clone()]).unwrap_or_default();
                options.insert("include_usage".into(), true.into());
                if self.continuous_usage {
                    options.insert("continuous_usage_stats".into(), true.into());
                }
                let text = serde_json::to_vec(&options).unwrap_or_default();
                Edit {
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

    /// `stream_options` as a server is asked for usage.
    pub fn stream_options_json(&self) -> &'static str {
        match self.continuous_usage {
            true => r#"{"include_usage":true,"continuous_usage_stats":true}"#,
            false => r#"{"include_usage":true}"#,
        }
    }

    /// Puts `member` first. Of a body without members nothing but one is ever asked.
    fn insert(&self, member: &[u8]) -> Edit {
        let comma: &[u8] = if self.empty { b"" } else { b"," };
        Edit {
            range: self.first_member..self.first_member,
            text: [member, comma].concat(),
        }
    }

    /// The body with `edits`, which do not overlap. No copy is made when there are none.
    pub(super) fn edited(&self, mut edits: Vec<Edit>) -> Bytes {
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
