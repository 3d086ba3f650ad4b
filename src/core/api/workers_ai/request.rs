//! Bodies of `run`: text generation and text embeddings.
//!
//! Not a full validation: presence and type of the input are checked, since every backend relies on
//! them; ranges are left to the model server. A missing member is named by its JSON Pointer, as where a
//! task's schema is enforced. Unknown members are passed on. Called with bodies already
//! bounded by `limits.request_body_mib`.

use std::borrow::Cow;

use infergate_tasks::json::scan_members;
use serde_json::value::RawValue;

use crate::Refusal;

/// Texts in one embeddings request; the limit Workers AI publishes for its embedding models.
pub const TEXTS_MAX: usize = 100;

/// Members that are decided by the gateway, and so never reach a backend. The extension fields
/// `x_client_id…` and `x_priority…` are the others.
const GATEWAY_MEMBERS: [&str; 4] = ["model", "stream", "stream_options", "options"];

/// A member of the body that is passed on: its name, and its value as the client wrote it.
pub type Parameter<'a> = (Cow<'a, str>, &'a RawValue);

/// Input of text generation.
#[derive(Clone, Copy, Debug)]
pub enum GenerationInput<'a> {
    /// A text; with `raw`, without a chat template around it.
    Prompt {
        /// A JSON string.
        text: &'a RawValue,
        /// The caller has applied the model's template itself.
        raw: bool,
    },
    /// A conversation: a JSON array of objects, not empty.
    Messages(&'a RawValue),
}

/// `{prompt | messages, max_tokens, temperature, …}`
#[derive(Clone, Debug)]
pub struct TextGeneration<'a> {
    /// Prompt or messages. `messages` wins where both are given.
    pub input: GenerationInput<'a>,
    /// All other members but nulls, in the client's order.
    pub parameters: Vec<Parameter<'a>>,
}

impl<'a> TextGeneration<'a> {
    /// Reads a body.
    pub fn parse(body: &'a [u8]) -> Result<TextGeneration<'a>, Refusal> {
        let (mut prompt, mut messages, mut raw) = (None, None, false);
        let mut parameters = Vec::new();
        for (name, value) in members(body)? {
            check_kind(&name, value)?;
            match &*name {
                "prompt" => prompt = Some(value),
                "messages" => messages = Some(value),
                "raw" => raw = value.get() == "true",
                _ => parameters.push((name, value)),
            }
        }
        let input = match (messages, prompt) {
            (Some(messages), _) => GenerationInput::Messages(checked_messages(messages)?),
            (None, Some(text)) => GenerationInput::Prompt {
                text: not_empty("/prompt", text)?,
                raw,
            },
            (None, None) => {
                return Err(bad_member("/prompt", "`prompt` or `messages` is required"));
            }
        };
        Ok(TextGeneration { input, parameters })
    }
}

/// `{text: string | [string]}`
#[derive(Clone, Debug)]
pub struct TextEmbeddings<'a> {
    /// JSON strings, 1 to [`TEXTS_MAX`].
    pub texts: Vec<&'a RawValue>,
    /// All other members but nulls, in the client's order.
    pub parameters: Vec<Parameter<'a>>,
}

impl<'a> TextEmbeddings<'a> {
    /// Reads a body.
    pub fn parse(body: &'a [u8]) -> Result<TextEmbeddings<'a>, Refusal> {
        let mut text = None;
        let mut parameters = Vec::new();
        for (name, value) in members(body)? {
            match &*name {
                "text" => text = Some(value),
                _ => parameters.push((name, value)),
            }
        }
        let missing = "`text` is required: a string or a list of strings";
        let text = text.ok_or_else(|| bad_member("/text", missing))?;
        let texts = match kind(text) {
            JsonKind::Text => vec![not_empty("/text", text)?],
            JsonKind::List => checked_texts(text)?,
            _ => {
                return Err(bad_member(
                    "/text",
                    "expected a string or a list of strings",
                ));
            }
        };
        Ok(TextEmbeddings { texts, parameters })
    }
}

fn checked_messages(messages: &RawValue) -> Result<&RawValue, Refusal> {
    let list = list(messages);
    if list.is_empty() {
        return Err(bad_member("/messages", "expected at least one message"));
    }
    match list
        .iter()
        .position(|message| kind(message) != JsonKind::Object)
    {
        Some(at) => Err(bad_member(
            &format!("/messages/{at}"),
            "expected an object with `role` and `content`",
        )),
        None => Ok(messages),
    }
}

fn checked_texts(text: &RawValue) -> Result<Vec<&RawValue>, Refusal> {
    let texts = list(text);
    if texts.is_empty() || texts.len() > TEXTS_MAX {
        let message = format!("expected 1 to {TEXTS_MAX} texts, found {}", texts.len());
        return Err(bad_member("/text", &message));
    }
    for (at, text) in texts.iter().enumerate() {
        let pointer = format!("/text/{at}");
        if kind(text) != JsonKind::Text {
            return Err(bad_member(&pointer, "expected a string"));
        }
        not_empty(&pointer, text)?;
    }
    Ok(texts)
}

fn not_empty<'a>(pointer: &str, text: &'a RawValue) -> Result<&'a RawValue, Refusal> {
    if text.get() == "\"\"" {
        Err(bad_member(pointer, "expected a text that is not empty"))
    } else {
        Ok(text)
    }
}

/// The elements of a value known to be a list.
fn list(raw: &RawValue) -> Vec<&RawValue> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonKind {
    Null,
    Bool,
    Number,
    Text,
    List,
    Object,
}

impl JsonKind {
    fn name(self) -> &'static str {
        match self {
            JsonKind::Null => "null",
            JsonKind::Bool => "true or false",
            JsonKind::Number => "a number",
            JsonKind::Text => "a string",
            JsonKind::List => "a list",
            JsonKind::Object => "an object",
        }
    }
}

fn kind(raw: &RawValue) -> JsonKind {
    match raw.get().as_bytes().first() {
        Some(b'"') => JsonKind::Text,
        Some(b'[') => JsonKind::List,
        Some(b'{') => JsonKind::Object,
        Some(b't' | b'f') => JsonKind::Bool,
        Some(b'n') => JsonKind::Null,
        _ => JsonKind::Number,
    }
}

/// The members whose type is fixed for text generation.
fn check_kind(name: &str, value: &RawValue) -> Result<(), Refusal> {
    let expected: &[JsonKind] = match name {
        "prompt" => &[JsonKind::Text],
        "messages" | "tools" => &[JsonKind::List],
        "raw" => &[JsonKind::Bool],
        "max_tokens" | "temperature" | "top_p" | "top_k" | "seed" | "repetition_penalty"
        | "frequency_penalty" | "presence_penalty" => &[JsonKind::Number],
        "stop" => &[JsonKind::Text, JsonKind::List],
        "response_format" => &[JsonKind::Object],
        _ => return Ok(()),
    };
    if expected.contains(&kind(value)) {
        return Ok(());
    }
    let names: Vec<_> = expected.iter().map(|kind| kind.name()).collect();
    Err(bad_member(
        &format!("/{name}"),
        &format!("expected {}", names.join(" or ")),
    ))
}

fn bad_member(pointer: &str, message: &str) -> Refusal {
    Refusal::BadRequest {
        pointer: pointer.into(),
        message: message.into(),
    }
}

/// The body's members that concern the task. A null is as good as absent.
fn members(body: &[u8]) -> Result<impl Iterator<Item = Parameter<'_>>, Refusal> {
    let not_an_object = || bad_member("", "expected a JSON object");
    let text = std::str::from_utf8(body).map_err(|_| not_an_object())?;
    let mut members: Vec<Parameter<'_>> = Vec::new();
    scan_members(text, |name, value| {
        members.push((name, value));
        Ok(())
    })
    .map_err(|_| not_an_object())?;
    Ok(members
        .into_iter()
        .filter(|(name, value)| kind(value) != JsonKind::Null && !is_gateway_member(name)))
}

fn is_gateway_member(name: &str) -> bool {
    GATEWAY_MEMBERS.contains(&name)
        || name.starts_with("x_client_id")
        || name.starts_with("x_priority")
}
