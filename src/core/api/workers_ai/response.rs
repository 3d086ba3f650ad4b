//! Results of `run` as the client sees them: the envelope, and the deltas of a stream.
//!
//! Responses of model servers are not read here. Values are raw JSON and are copied as they are; a
//! `usage` is the text of a JSON object on one line. Called by the response decoders.

use bytes::BytesMut;
use serde_json::value::RawValue;

use crate::api::sse;

/// A function the model asks to be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedToolCall {
    /// The backend's id for it, when it gave one.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// Arguments as the model wrote them: nearly always a JSON object.
    pub arguments: String,
}

/// Result of text generation.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextResult<'a> {
    /// The text, as JSON; none is written as null.
    pub response: Option<&'a RawValue>,
    /// Reasoning text before it, as JSON; left out when there is none.
    pub reasoning: Option<&'a RawValue>,
    /// Functions to call; left out when there are none.
    pub tool_calls: &'a [RequestedToolCall],
    /// A JSON object, when the backend reported one.
    pub usage: Option<&'a str>,
}

/// Result of text embeddings.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingsResult<'a> {
    /// Length of each vector.
    pub dimensions: usize,
    /// Vectors as JSON arrays, in the order of the texts.
    pub rows: &'a [&'a RawValue],
}

/// Appends the whole response of a text generation.
pub fn write_text(result: &TextResult<'_>, out: &mut BytesMut) {
    out.extend_from_slice(OPENING);
    let response = result.response.map_or("null", RawValue::get);
    write_members(
        response,
        result.reasoning,
        result.tool_calls,
        result.usage,
        out,
    );
    close_envelope(out);
}

/// Appends the whole response of text embeddings.
pub fn write_embeddings(result: &EmbeddingsResult<'_>, out: &mut BytesMut) {
    let shape = format!("[{},{}]", result.rows.len(), result.dimensions);
    let rows: usize = result.rows.iter().map(|row| row.get().len() + 1).sum();
    out.reserve(rows + 128);
    out.extend_from_slice(b"{\"result\":{\"shape\":");
    out.extend_from_slice(shape.as_bytes());
    out.extend_from_slice(b",\"data\":[");
    for (at, row) in result.rows.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(b",");
        }
        out.extend_from_slice(row.get().as_bytes());
    }
    out.extend_from_slice(b"]}");
    close_envelope(out);
}

/// Appends one delta of a stream: a text, reasoning or both, as JSON. A delta of reasoning alone has
/// an empty text, which clients that know no reasoning add to theirs unharmed.
pub fn write_delta(response: Option<&RawValue>, reasoning: Option<&RawValue>, out: &mut BytesMut) {
    let response = response.map_or("\"\"", RawValue::get);
    let mut data = BytesMut::with_capacity(response.len() + 16);
    write_members(response, reasoning, &[], None, &mut data);
    sse::event(&data, out);
}

/// Appends the end of a stream: a delta with the tool calls and the usage, then `[DONE]`.
pub fn write_final_delta(
    tool_calls: &[RequestedToolCall],
    usage: Option<&str>,
    out: &mut BytesMut,
) {
    let mut data = BytesMut::new();
    write_members("\"\"", None, tool_calls, usage, &mut data);
    sse::event(&data, out);
    sse::event(b"[DONE]", out);
}

/// Appends the whole response of any task. `result` is JSON.
pub fn write_result(result: &[u8], out: &mut BytesMut) {
    out.reserve(OPENING.len() + result.len() + CLOSING.len());
    out.extend_from_slice(OPENING);
    out.extend_from_slice(result);
    close_envelope(out);
}

/// Returns the result inside a response that was written here.
pub fn result_of(answer: &[u8]) -> Option<&[u8]> {
    answer.strip_prefix(OPENING)?.strip_suffix(CLOSING)
}

const OPENING: &[u8] = br#"{"result":"#;
const CLOSING: &[u8] = br#","success":true,"errors":[],"messages":[]}"#;

fn close_envelope(out: &mut BytesMut) {
    out.extend_from_slice(CLOSING);
}

fn write_members(
    response: &str,
    reasoning: Option<&RawValue>,
    tool_calls: &[RequestedToolCall],
    usage: Option<&str>,
    out: &mut BytesMut,
) {
    out.extend_from_slice(b"{\"response\":");
    out.extend_from_slice(response.as_bytes());
    if let Some(reasoning) = reasoning {
        out.extend_from_slice(b",\"reasoning_content\":");
        out.extend_from_slice(reasoning.get().as_bytes());
    }
    if !tool_calls.is_empty() {
        let calls: Vec<String> = tool_calls.iter().map(tool_call).collect();
        out.extend_from_slice(format!(",\"tool_calls\":[{}]", calls.join(",")).as_bytes());
    }
    if let Some(usage) = usage {
        out.extend_from_slice(b",\"usage\":");
        out.extend_from_slice(usage.as_bytes());
    }
    out.extend_from_slice(b"}");
}

fn tool_call(call: &RequestedToolCall) -> String {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let id = call
        .id
        .as_deref()
        .map(|id| format!(r#""id":{},"#, text(id)))
        .unwrap_or_default();
    // Arguments that are no object are still shown: the caller may know what the model meant.
    // Line breaks in JSON stand between tokens only, and an event has one line.
    let arguments = match serde_json::from_str::<&RawValue>(&call.arguments) {
        Ok(json) if json.get().starts_with('{') => json.get().replace(['\n', '\r'], " "),
        _ => text(&call.arguments),
    };
    format!(
        r#"{{{id}"name":{},"arguments":{arguments}}}"#,
        text(&call.name)
    )
}
