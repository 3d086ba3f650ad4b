//! Errors as problem documents (<https://www.rfc-editor.org/rfc/rfc9457>).
//!
//! An invalid input names its fields under `invalid_fields`.

use crate::api::dialect::ApiError;
use crate::api::json::Object;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 256;

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad request",
        401 => "Unauthenticated",
        402 => "Payment required",
        403 => "Forbidden",
        404 => "Not found",
        408 => "Request timeout",
        409 => "Conflict",
        413 => "Payload too large",
        422 => "Unprocessable entity",
        429 => "Too many requests",
        500.. => "Server error",
        _ => "Error",
    }
}

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    // Client libraries show the title alone where they find one.
    body.text("title", title(error.status));
    let detail = match error.status {
        429 => format!("Request was throttled. {}", error.message),
        _ => error.message_with_place().into_owned(),
    };
    body.text("detail", &detail);
    body.raw("status", |out| {
        out.extend_from_slice(error.status.to_string().as_bytes())
    });
    if let Some(pointer) = error
        .pointer
        .filter(|pointer| pointer.starts_with("/input/"))
    {
        let field = pointer.trim_start_matches("/input/").replace('/', ".");
        let list = serde_json::json!([{ "field": field, "type": error.reason, "description": error.message }]);
        body.raw("invalid_fields", |out| {
            out.extend_from_slice(list.to_string().as_bytes())
        });
    }
    body.text_or_null("request_id", error.request_id);
    body.end()
}
