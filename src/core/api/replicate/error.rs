//! Errors as problem documents (<https://www.rfc-editor.org/rfc/rfc9457>).
//!
//! An invalid input names its fields under `invalid_fields`.

use crate::api::dialect::ApiError;
use crate::api::json::Object;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 256;

/// Place of the version in the body of a create.
const VERSION: &str = "/version";
/// Place of the input in the body of a create.
const INPUT: &str = "/input";

fn title(error: &ApiError<'_>) -> &'static str {
    match error.status {
        400 => "Bad request",
        401 => "Unauthenticated",
        402 => "Payment required",
        403 => "Forbidden",
        404 => "Not found",
        408 => "Request timeout",
        409 => "Conflict",
        413 => "Payload too large",
        422 if error.pointer == Some(VERSION) => "Invalid version or not permitted",
        422 if input_field(error).is_some() => "Input validation failed",
        422 => "Unprocessable entity",
        429 => "Too many requests",
        500.. => "Server error",
        _ => "Error",
    }
}

/// Returns the field of the input that an error is about, as `input.messages.0`.
fn input_field(error: &ApiError<'_>) -> Option<String> {
    let pointer = error.pointer?;
    let rest = pointer.strip_prefix(INPUT)?;
    let is_input = rest.is_empty() || rest.starts_with('/');
    is_input.then(|| pointer[1..].replace('/', "."))
}

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    // Client libraries show the title alone where they find one.
    body.text("title", title(error));
    let detail = match error.status {
        429 => format!("Request was throttled. {}", error.message),
        _ => error.message_with_place().into_owned(),
    };
    body.text("detail", &detail);
    body.raw("status", |out| {
        out.extend_from_slice(error.status.to_string().as_bytes())
    });
    if let Some(field) = input_field(error) {
        let list = serde_json::json!([{ "field": field, "type": error.reason, "description": error.message }]);
        body.raw("invalid_fields", |out| {
            out.extend_from_slice(list.to_string().as_bytes())
        });
    }
    body.text_or_null("request_id", error.request_id);
    body.end()
}
