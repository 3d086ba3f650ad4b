//! Errors in the OpenAI form.
//!
//! All four members are always there, as client libraries read them.

use serde::Serialize;
use serde_json::{Value, json};

use crate::api::dialect::ApiError;

// A refusal must cost little, so it is written straight from structs, without a tree.
#[derive(Serialize)]
struct OpenAiErrorBody<'a> {
    error: OpenAiErrorObject<'a>,
}

#[derive(Serialize)]
struct OpenAiErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let body = OpenAiErrorBody {
        error: OpenAiErrorObject {
            message: error.message,
            kind: error.kind,
            param: error.pointer,
            code: error.reason,
        },
    };
    serde_json::to_vec(&body).unwrap_or_default()
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
