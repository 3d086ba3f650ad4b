//! Payload of a task as tensors: each member is an input of the same name.
//!
//! Shapes are those of a batch: a row for each text of the member `text` where that is a list, else one row, and one
//! column. Values that stand for the whole request are repeated in each row, up to [`GROWTH_MAX`] and
//! [`GROWTH_FLOOR_BYTES`]. Lists and objects are JSON in a text. Not a check of the input, which the task's schema is.

use std::borrow::Cow;

use infergate_tasks::json::{parse_list, scan_members};

use crate::Refusal;
use crate::api::json::bad;
use crate::api::json_text::push_text;

/// Times of the payload's bytes that its tensors take at most: escapes in a list double it, and as much as the payload has
/// is left for repeats. A long member beside many texts would take the product of both.
const GROWTH_MAX: usize = 3;
/// Bytes that tensors may take whatever the payload has: short texts beside some short members are repeated often.
const GROWTH_FLOOR_BYTES: usize = 1 << 20;
/// Bytes of an input beside its name and elements.
const INPUT_HEAD_BYTES: usize = 64;

/// Member whose items are rows of the batch.
const ROWS: &str = "text";

/// Members whose numbers are fractions by the schemas of the tasks, whatever a client writes.
pub(super) const FRACTIONS: [&str; 8] = [
    "temperature",
    "top_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "guidance",
    "strength",
    "threshold",
];

/// Members that are the gateway's to act on, and no input.
const GATEWAY_MEMBERS: [&str; 2] = ["model", "stream"];

/// Name of an input by the name of its member.
fn input_name(member: &str) -> &str {
    match member {
        "lora" => "lora_name",
        other => other,
    }
}

/// Returns the body of `infer` for a task's payload.
///
/// # Errors
/// The payload is no JSON object, or repeats make more of it than three times its bytes
/// ([`Refusal::BodyTooLarge`]).
pub fn infer_body(payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let members = members(payload)?;
    let texts = members.iter().find(|(name, _)| name == ROWS);
    let texts = texts.and_then(|(_, json)| parse_list(json));
    let texts = texts.filter(|list| list.iter().all(|item| item.starts_with('"')));
    let texts = texts.filter(|list| !list.is_empty());
    let rows = texts.as_ref().map_or(1, Vec::len);
    let bytes_max = payload.len().saturating_mul(GROWTH_MAX);
    let bytes_max = bytes_max.max(GROWTH_FLOOR_BYTES);
    let mut body = Vec::with_capacity(payload.len() + 256);
    body.extend_from_slice(br#"{"inputs":["#);
    for (at, (name, json)) in members.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        let (datatype, element) = match &texts {
            Some(texts) if name == ROWS => {
                write_input(name, "BYTES", texts.iter().copied(), &mut body);
                continue;
            }
            _ => element_of(name, json),
        };
        let repeated = (element.len() + 1).saturating_mul(rows);
        let input_bytes = repeated.saturating_add(name.len() + INPUT_HEAD_BYTES);
        if body.len().saturating_add(input_bytes) > bytes_max {
            return Err(Refusal::BodyTooLarge);
        }
        let elements = std::iter::repeat_n(&*element, rows);
        write_input(name, datatype, elements, &mut body);
    }
    body.extend_from_slice(b"]}");
    Ok(body)
}

/// Returns the body of `generate` and `generate_stream` for the payload of text generation.
///
/// # Errors
/// The payload is no JSON object, or has no prompt.
pub fn generate_body(payload: &[u8]) -> Result<Vec<u8>, Refusal> {
    let members = members(payload)?;
    if !members
        .iter()
        .any(|(name, json)| name == "prompt" && json.starts_with('"'))
    {
        let message = "this model takes a `prompt` that is a text, and no `messages`";
        return Err(bad("/prompt", message));
    }
    let mut body = Vec::with_capacity(payload.len() + 64);
    for (name, json) in &members {
        body.push(if body.is_empty() { b'{' } else { b',' });
        let name = match &**name {
            "prompt" => "text_input",
            name => input_name(name),
        };
        push_text(&mut body, name);
        body.push(b':');
        match json.starts_with(['[', '{']) {
            true => push_text(&mut body, json),
            false => body.extend_from_slice(json.as_bytes()),
        }
    }
    body.push(b'}');
    Ok(body)
}

/// Members of a payload, without nulls and what is the gateway's.
fn members(payload: &[u8]) -> Result<Vec<(Cow<'_, str>, &str)>, Refusal> {
    let not_an_object = || bad("", "expected a JSON object");
    let text = std::str::from_utf8(payload).map_err(|_| not_an_object())?;
    let mut members = Vec::new();
    scan_members(text, |name, value| {
        if value.get() != "null" && !GATEWAY_MEMBERS.contains(&&*name) {
            members.push((name, value.get()));
        }
        Ok(())
    })
    .map_err(|_| not_an_object())?;
    Ok(members)
}

/// Datatype and element of a member that stands for one row.
fn element_of<'a>(name: &str, json: &'a str) -> (&'static str, Cow<'a, str>) {
    let element = Cow::Borrowed(json);
    match json.as_bytes().first() {
        Some(b'"') => ("BYTES", element),
        Some(b't' | b'f') => ("BOOL", element),
        Some(b'[' | b'{') => {
            let mut text = Vec::with_capacity(json.len() + 16);
            push_text(&mut text, json);
            let text = String::from_utf8(text).unwrap_or_default();
            ("BYTES", Cow::Owned(text))
        }
        _ if FRACTIONS.contains(&name) || json.parse::<i64>().is_err() => ("FP32", element),
        _ => ("INT64", element),
    }
}

fn write_input<'a>(
    member: &str,
    datatype: &str,
    elements: impl ExactSizeIterator<Item = &'a str>,
    body: &mut Vec<u8>,
) {
    body.extend_from_slice(br#"{"name":"#);
    push_text(body, input_name(member));
    let rows = elements.len();
    let head = format!(r#","shape":[{rows},1],"datatype":"{datatype}","data":["#);
    body.extend_from_slice(head.as_bytes());
    for (at, element) in elements.enumerate() {
        if at > 0 {
            body.push(b',');
        }
        body.extend_from_slice(element.as_bytes());
    }
    body.extend_from_slice(b"]}");
}
