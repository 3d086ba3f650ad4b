//! Bodies as a task session handles them: read, checked, shown in part, edited.
//!
//! Calls no guest and keeps nothing. Large bodies are never a tree: `json` says how.

use std::cell::OnceCell;
use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::task::{BodyEdit, BodyField, EventEdit};

use crate::plugin::json;
use crate::plugin::json::schema::SchemaError;
use crate::plugin::json::{Outline, OutlineError};
use crate::plugin::json::{fast, outline, select};
use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::traits::{BodyView, TaskHandler};
use crate::plugin::spec::OnFailure;

/// Input from a client.
#[derive(Clone, Debug)]
pub struct TaskInput<'a> {
    /// The model's id.
    pub model: &'a str,
    /// Its type; JSON is checked against the schema, other bodies are opaque.
    pub content_type: &'a str,
    /// The body.
    pub body: &'a Bytes,
    /// The gateway has read the body as JSON: its grammar needs no second check.
    pub is_read: bool,
    /// The schema in force accepts the body (`TaskSlot::passes_at_once`).
    pub is_checked: bool,
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

impl TaskPayload {
    /// The client's body as it came.
    pub fn unchanged(body: &Bytes) -> TaskPayload {
        TaskPayload {
            body: body.clone(),
            changed: false,
            backend_path: None,
        }
    }
}

/// Characters of a member's name that a message repeats.
const NAME_MAX_CHARS: usize = 64;

/// Body that is JSON. Its index is made when something looks into the body.
pub struct JsonBody<'a> {
    text: &'a Bytes,
    outline: OnceCell<Outline>,
}

impl JsonBody<'_> {
    /// The index of the body.
    ///
    /// # Errors
    /// The body is not JSON, or has too many parts.
    pub fn outline(&self) -> Result<&Outline, Refusal> {
        if let Some(known) = self.outline.get() {
            return Ok(known);
        }
        let read = Outline::read(self.text.clone()).map_err(|unreadable| match unreadable {
            OutlineError::Syntax(why) => Refusal::BadRequest {
                pointer: String::new(),
                message: format!("the body is not JSON: {why}"),
            },
            OutlineError::TooComplex => Refusal::BodyTooLarge,
        })?;
        Ok(self.outline.get_or_init(|| read))
    }
}

/// The JSON of a JSON body; none of an opaque one.
pub fn read<'a>(input: &TaskInput<'a>) -> Result<Option<JsonBody<'a>>, Refusal> {
    if !input.is_read && !is_json(input.content_type) {
        return Ok(None);
    }
    let json = JsonBody {
        text: input.body,
        outline: OnceCell::new(),
    };
    if !input.is_read {
        json.outline()?;
    }
    Ok(Some(json))
}

/// Checks a body against the schema of the task; a task without a schema takes any body that can be indexed.
pub fn check_input(rules: &dyn TaskHandler, json: Option<&JsonBody<'_>>) -> Result<(), Refusal> {
    let Some(json) = json else {
        return Ok(());
    };
    let Some(schema) = rules.input_schema() else {
        let is_indexable = json.outline.get().is_some() || fast::INDEXABLE.accepts(json.text);
        return if is_indexable {
            Ok(())
        } else {
            json.outline().map(drop)
        };
    };
    if schema.accepts(json.text) {
        return Ok(());
    }
    let json = json.outline()?;
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

/// Checks a body by the schema in force, unless it `is_checked`. Then offers it to each available handler, whose
/// own schema it must fit too, until one has an answer.
///
/// # Errors
/// The body does not fit, or the answer is a refusal.
pub fn offer<T>(
    chain: &FallbackChain<dyn TaskHandler>,
    json: Option<&JsonBody<'_>>,
    is_checked: bool,
    mut ask: impl FnMut(&Arc<dyn TaskHandler>) -> Option<Result<T, Refusal>>,
) -> Result<Option<T>, Refusal> {
    let in_force = chain.candidates().next();
    if let Some(rules) = in_force.filter(|_| !is_checked) {
        // For every handler, and also where the body passes unchanged.
        check_input(&**rules, json)?;
    }
    for rules in chain.candidates() {
        if !rules.is_available() {
            rules.count_skipped();
            continue;
        }
        if !in_force.is_some_and(|first| Arc::ptr_eq(first, rules)) {
            check_input(&**rules, json)?;
        }
        if let Some(answer) = ask(rules) {
            return answer.map(Some);
        }
    }
    Ok(None)
}

/// The payload where no handler has an answer.
///
/// # Errors
/// The chain does not let bodies pass.
pub fn without_handler(
    chain: &FallbackChain<dyn TaskHandler>,
    body: &Bytes,
) -> Result<TaskPayload, Refusal> {
    match chain.on_failure {
        OnFailure::Passthrough => Ok(TaskPayload::unchanged(body)),
        OnFailure::Builtin | OnFailure::Closed | OnFailure::Cut => Err(Refusal::PluginFailed),
    }
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
