//! Errors in the Anthropic form, with the status that its API sends.
//!
//! A refusal for want of capacity is 529 `overloaded_error`, not 429: in this API 429 means that the
//! account has used up its own limit. Client libraries repeat both. Types:
//! <https://docs.anthropic.com/en/api/errors>.

use crate::Refusal;
use crate::api::dialect::ApiError;
use crate::api::json::Object;
use crate::refusal::Blame;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 256;
/// Status of a request for which there is no capacity.
const OVERLOADED: u16 = 529;

/// Returns the status of a refusal.
pub(super) fn status(refusal: &Refusal) -> u16 {
    let row = refusal.row();
    match (row.status, row.blame) {
        (429, Blame::Capacity) | (503, _) => OVERLOADED,
        (status, _) => status,
    }
}

fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 | 504 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | OVERLOADED => "overloaded_error",
        500.. => "api_error",
        _ => "invalid_request_error",
    }
}

/// Returns the body of an error. The place of a fault stands before the message.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    body.text("type", "error");
    let mut inner = body.object("error");
    inner.text("type", kind(error.status));
    inner.text("message", &error.message_with_place());
    drop(inner);
    body.text_or_null("request_id", error.request_id);
    body.end()
}
