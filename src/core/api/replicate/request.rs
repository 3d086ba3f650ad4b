//! Bodies of creates.
//!
//! The input itself is not read: it is the model's.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Refusal;

/// Longest URL of a webhook, bytes.
const WEBHOOK_BYTES_MAX: usize = 2048;
/// Events that a webhook may be limited to.
const WEBHOOK_EVENTS: [&str; 4] = ["start", "output", "logs", "completed"];

/// Body of a create.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Version, where it stands in the body.
    pub version: Option<String>,
    /// Input, a JSON object.
    pub input: Box<RawValue>,
    /// Receiver of notifications.
    pub webhook: Option<String>,
    /// Events that it wants; none means every one.
    pub webhook_events: Option<Vec<String>>,
    /// Destination of a training, `owner/name`.
    pub destination: Option<String>,
}

#[derive(Deserialize)]
struct CreateBody<'a> {
    #[serde(default)]
    version: Option<serde_json::Value>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default)]
    webhook: Option<serde_json::Value>,
    #[serde(default)]
    webhook_events_filter: Option<serde_json::Value>,
    #[serde(default)]
    destination: Option<serde_json::Value>,
}

fn invalid(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: pointer.to_owned(),
        message: message.into(),
    }
}

fn text(pointer: &str, value: Option<serde_json::Value>) -> Result<Option<String>, Refusal> {
    match value {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(invalid(pointer, "must be a string")),
    }
}

/// Reads the body of a create.
///
/// # Errors
/// 400 for a body that is no JSON object, 422 for a field that is missing or mistyped.
pub fn read_create(body: &[u8]) -> Result<CreateRequest, Refusal> {
    let malformed = |message: &str| Refusal::BadRequest {
        pointer: String::new(),
        message: message.to_owned(),
    };
    let text_of_body =
        simdutf8::basic::from_utf8(body).map_err(|_| malformed("the body is not UTF-8"))?;
    if !text_of_body.trim_start().starts_with('{') {
        return Err(malformed("the body must be a JSON object"));
    }
    let read: CreateBody<'_> = serde_json::from_str(text_of_body)
        .map_err(|error| malformed(&format!("the body is not valid JSON: {error}")))?;
    let input = read.input.ok_or_else(|| invalid("/input", "is required"))?;
    if !input.get().starts_with('{') {
        return Err(invalid("/input", "must be an object"));
    }
    let webhook = text("/webhook", read.webhook)?;
    if webhook
        .as_ref()
        .is_some_and(|url| url.len() > WEBHOOK_BYTES_MAX)
    {
        return Err(invalid("/webhook", "must not be longer than 2,048 bytes"));
    }
    Ok(CreateRequest {
        version: text("/version", read.version)?,
        input: input.to_owned(),
        webhook,
        webhook_events: webhook_events(read.webhook_events_filter)?,
        destination: text("/destination", read.destination)?,
    })
}

/// Returns the words of a search, in lower case. The body is plain text, or a JSON string as the client library
/// for JavaScript sends it.
pub fn search_words(body: &str) -> String {
    let body = body.trim();
    let quoted = serde_json::from_str::<String>(body).ok();
    let words = quoted.as_deref().unwrap_or(body);
    words.trim().to_lowercase()
}

fn webhook_events(value: Option<serde_json::Value>) -> Result<Option<Vec<String>>, Refusal> {
    const POINTER: &str = "/webhook_events_filter";
    let list = match value {
        None | Some(serde_json::Value::Null) => return Ok(None),
        Some(serde_json::Value::Array(list)) => list,
        Some(_) => return Err(invalid(POINTER, "must be a list")),
    };
    let mut events = Vec::new();
    for event in list {
        match event.as_str().filter(|word| WEBHOOK_EVENTS.contains(word)) {
            Some(word) if events.iter().any(|known| known == word) => {}
            Some(word) => events.push(word.to_owned()),
            None => {
                return Err(invalid(
                    POINTER,
                    "may have start, output, logs and completed",
                ));
            }
        }
    }
    Ok(Some(events))
}

/// Name of a version in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionName<'a> {
    /// 64 hex digits alone.
    Id(&'a str),
    /// A model's newest version: `owner/name`.
    Model(&'a str),
    /// A version of a model: `owner/name:id`.
    OfModel(&'a str, &'a str),
}

impl<'a> VersionName<'a> {
    /// Reads the name of a version.
    pub fn read(text: &'a str) -> VersionName<'a> {
        match text.split_once(':') {
            Some((model, id)) => VersionName::OfModel(model, id),
            None if text.contains('/') => VersionName::Model(text),
            None => VersionName::Id(text),
        }
    }
}

/// Returns whether a name is `owner/name` as the API has it.
pub fn model_path(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let parts = name.split_once('/');
    parts.is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}
