//! Bodies as a task session handles them: read, checked, shown in part, edited.
//!
//! Calls no guest and keeps nothing. Large bodies are never a tree: `json` says how.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::task::{BodyEdit, BodyField, EventEdit};

use crate::plugin::json;
use crate::plugin::json::schema::SchemaError;
use crate::plugin::json::{Outline, OutlineError};
use crate::plugin::json::{outline, select};
use crate::plugin::roles::traits::{BodyView, TaskHandler};

/// Input from a client.
#[derive(Clone, Debug)]
pub struct TaskInput<'a> {
    /// The model's id.
    pub model: &'a str,
    /// Its type; JSON is checked against the schema, other bodies are opaque.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a Bytes,
    /// Facts the gateway vouches for: `face`, `stream`, `lora`.
    pub attributes: Vec<(String, String)>,
}

/// Payload for the model server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPayload {
    /// The body.
    pub body: Bytes,
    /// True when it differs from the client's body.
    pub changed: bool,
    /// Path under the endpoint's base URL, when the task names one.
    pub backend_path: Option<String>,
}

/// Characters of a member's name that a message repeats.
const NAME_MAX_CHARS: usize = 64;

/// The JSON of a JSON body; none of an opaque one.
pub fn read(input: &TaskInput<'_>) -> Result<Option<Outline>, Refusal> {
    if !is_json(input.content_type) {
        return Ok(None);
    }
    let read = Outline::read(input.body.clone());
    read.map(Some).map_err(|unreadable| match unreadable {
        OutlineError::Syntax(why) => Refusal::BadRequest {
            pointer: String::new(),
            message: format!("the body is not JSON: {why}"),
        },
        OutlineError::TooComplex => Refusal::BodyTooLarge,
    })
}

/// Checks a body against the schema of the task; a task without a schema takes any body.
pub fn check_input(rules: &dyn TaskHandler, json: Option<&Outline>) -> Result<(), Refusal> {
    let (Some(schema), Some(json)) = (rules.input_schema(), json) else {
        return Ok(());
    };
    // Readers differ in which of them counts: the server might see another than was checked.
    if let Some(twice) = json.duplicate() {
        let key: String = twice.key.chars().take(NAME_MAX_CHARS).collect();
        return Err(Refusal::BadRequest {
            pointer: twice.pointer.clone(),
            message: format!("`{key}` stands twice in one object"),
        });
    }
    schema.check(json).map_err(|unfit| match unfit {
        SchemaError::Violation(misfit) => Refusal::BadRequest {
            pointer: misfit.pointer,
            message: misfit.message,
        },
        SchemaError::TooCostly => Refusal::BodyTooLarge,
    })
}

/// True when a body that a task replaces is JSON; values of single places are checked as they are set.
pub fn is_json_edit(edit: &BodyEdit) -> bool {
    match edit {
        BodyEdit::Replace(body) => outline::is_json(body),
        BodyEdit::Keep | BodyEdit::Set(_) => true,
    }
}

/// True when the replacements of events are JSON. An event that was none itself may become anything.
pub fn are_events(outs: &[EventEdit], mut given: impl Iterator<Item = Option<bool>>) -> bool {
    outs.iter().all(|out| {
        let was_json = given.next().flatten();
        match out {
            EventEdit::Replace(event) => was_json == Some(false) || outline::is_json(&event.data),
            EventEdit::Keep | EventEdit::Drop => true,
        }
    })
}

pub fn unchanged(body: &Bytes) -> TaskPayload {
    TaskPayload {
        body: body.clone(),
        changed: false,
        backend_path: None,
    }
}

pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// A body without a type is JSON, as the API dialects take it.
pub fn is_json(content_type: &str) -> bool {
    let essence = essence(content_type);
    essence.is_empty()
        || essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

/// Images and sounds: no task reads their bytes.
pub fn is_binary(content_type: &str) -> bool {
    let essence = essence(content_type).to_ascii_lowercase();
    ["image/", "audio/", "video/"]
        .iter()
        .any(|kind| essence.starts_with(kind))
        || essence == "application/octet-stream"
}

pub fn selected_fields(wants: &[String], json: Option<&Outline>) -> Vec<BodyField> {
    json.map_or_else(Vec::new, |json| select::pick(json, wants))
}

pub fn view_of<'a>(wants: &[String], fields: &'a [BodyField], body: &'a Bytes) -> BodyView<'a> {
    if wants.is_empty() {
        BodyView::Whole(body)
    } else {
        BodyView::Fields(fields)
    }
}

/// The edited body; none where it is kept.
pub fn apply(
    edit: BodyEdit,
    body: &Bytes,
    json: Option<&Outline>,
) -> Result<Option<Bytes>, &'static str> {
    match edit {
        BodyEdit::Keep => Ok(None),
        BodyEdit::Replace(body) => Ok(Some(body.into())),
        BodyEdit::Set(fields) => {
            let read;
            let json = match json {
                Some(json) => json,
                None => {
                    read = Outline::read(body.clone()).map_err(|_| "edit-body")?;
                    &read
                }
            };
            json::splice(json, fields).map(Some)
        }
    }
}
