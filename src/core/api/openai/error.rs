//! Errors in the OpenAI form.
//!
//! All four members are always there, as client libraries read them.

use serde_json::{Value, json};

use crate::api::dialect::ApiError;
use crate::api::json_text::push_text;

/// Bytes of an error beside its texts.
const NAMES_BYTES: usize = r#"{"error":{"message":,"type":,"param":,"code":}}"#.len();

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    // A refusal must cost little, so it is written member by member.
    // `null` is as long as two letters in quotes.
    let pointer = error.pointer.unwrap_or("nu");
    let texts = [error.message, error.kind, pointer, error.reason];
    let quoted: usize = texts.iter().map(|text| text.len() + 2).sum();
    // Without escapes exactly as long as the body: what has no spare room is sent as it lies.
    let mut out = Vec::with_capacity(quoted + NAMES_BYTES);
    out.extend_from_slice(br#"{"error":{"message":"#);
    push_text(&mut out, error.message);
    out.extend_from_slice(br#","type":"#);
    push_text(&mut out, error.kind);
    out.extend_from_slice(br#","param":"#);
    match error.pointer {
        Some(pointer) => push_text(&mut out, pointer),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","code":"#);
    push_text(&mut out, error.reason);
    out.extend_from_slice(b"}}");
    out
}

/// Returns whether a server's error has all four members.
pub(super) fn is_complete(server_error: &Value) -> bool {
    let has = |name| server_error["error"].get(name).is_some();
    server_error["error"]["message"].is_string() && has("type") && has("param") && has("code")
}

/// Returns the body of a server's error, with the members that it has.
pub(super) fn server_body(error: &ApiError<'_>) -> Vec<u8> {
    let server_error = error.server_error.unwrap_or(&Value::Null);
    let inner = server_error.get("error").unwrap_or(server_error);
    let kind = inner["type"].as_str().unwrap_or(error.kind);
    json!({ "error": {
        "message": error.message, "type": kind, "param": inner["param"], "code": inner["code"],
    }})
    .to_string()
    .into_bytes()
}
