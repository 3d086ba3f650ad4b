//! Errors in the OpenAI form.
//!
//! All four members are always there, as client libraries read them.

use serde_json::{Value, json};

use crate::api::dialect::ApiError;
use crate::api::json::Object;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 256;

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    // A refusal must cost little, so it is written member by member.
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    let mut inner = body.object("error");
    inner.text("message", error.message);
    inner.text("type", error.kind);
    inner.text_or_null("param", error.pointer);
    inner.text("code", error.reason);
    drop(inner);
    body.end()
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
