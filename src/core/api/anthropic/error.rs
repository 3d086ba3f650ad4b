//! Errors in the Anthropic form, with the status that its API sends.
//!
//! A refusal for want of capacity is 529 `overloaded_error`, not 429: in this API 429 means that the
//! account has used up its own limit. Client libraries repeat both. Types:
//! <https://docs.anthropic.com/en/api/errors>.

use serde::Serialize;

use crate::Refusal;
use crate::api::dialect::ApiError;
use crate::refusal::Blame;

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

#[derive(Serialize)]
struct AnthropicErrorBody<'a> {
    r#type: &'static str,
    error: AnthropicErrorObject<'a>,
    request_id: Option<&'a str>,
}

#[derive(Serialize)]
struct AnthropicErrorObject<'a> {
    r#type: &'static str,
    message: &'a str,
}

/// Returns the body of an error. The place of a fault stands before the message.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let body = AnthropicErrorBody {
        r#type: "error",
        error: AnthropicErrorObject {
            r#type: kind(error.status),
            message: &error.message_with_place(),
        },
        request_id: error.request_id,
    };
    serde_json::to_vec(&body).unwrap_or_default()
}
