//! One parsed request: what was asked, in whose dialect, and where in the body it stands.
//!
//! It keeps the body as the client sent it. What a backend must see differently (the model's name,
//! the extension fields gone, usage asked for) is a short list of edits applied while copying the
//! body out once, so that a 1 MB chat is never parsed into a tree.

use std::ops::Range;

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

/// A request whose body has been read and found to be well-formed JSON.
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
    /// `x_priority`: 0 is first, 9 last.
    pub priority: Option<u8>,
    /// `x_client_id`, at most 64 bytes; recorded in the event only.
    pub client_id: Option<String>,
    /// `options.rejectIfBusy`: fail fast instead of waiting.
    pub reject_if_busy: bool,
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
    /// The body for an OpenAI-compatible backend: `model` replaced, extension fields gone and, on
    /// a stream, usage asked for. One copy at most; none when nothing differs.
    pub fn openai_body(&self, backend_model: &str) -> Bytes {
        let mut edits = self.strips.clone();
        if let Some(range) = &self.model_value {
            let quoted = serde_json::to_vec(backend_model).unwrap_or_default();
            if self.body[range.clone()] != quoted[..] {
                edits.push(Edit {
                    range: range.clone(),
                    text: quoted,
                });
            }
        }
        if self.stream && !self.usage_asked {
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
                let text = serde_json::to_vec(&options).unwrap_or_default();
                Edit {
                    range: range.clone(),
                    text,
                }
            }
            None => {
                let mut text = br#""stream_options":{"include_usage":true}"#.to_vec();
                if !self.empty {
                    text.push(b',');
                }
                Edit {
                    range: self.first_member..self.first_member,
                    text,
                }
            }
        }
    }

    fn edited(&self, mut edits: Vec<Edit>) -> Bytes {
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
