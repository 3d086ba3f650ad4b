//! Refusals and errors of model servers, written in the caller's dialect.
//!
//! No I/O: status, retry hints and body are values for the shell to write. The shapes are the dialects'.

use std::borrow::Cow;

use bytes::BytesMut;
use serde_json::Value;

use super::call::ApiDialect;
use super::dialect::ApiError;
use crate::refusal::{Refusal, RetryClass};

/// SDKs ignore a longer `Retry-After` and give up instead, so none is sent.
const RETRY_AFTER_MAX_SECS: u64 = 120;

/// Longest text of a model server that is passed on, bytes; a validation error of a long conversation is a
/// few kilobytes.
const SERVER_MESSAGE_BYTES_MAX: usize = 4096;

/// Invalid members that are named in one error; a request with more is mended by its first ones.
const INVALID_MEMBERS_MAX: usize = 8;

/// Workers AI number of a request that the model server refused.
const CODE_BAD_REQUEST: u32 = 5006;
/// Workers AI number of a model server that failed.
const CODE_SERVER_FAILED: u32 = 3050;

/// A refusal, rendered in one dialect.
#[derive(Debug)]
pub struct ErrorResponse {
    /// HTTP status.
    pub status: u16,
    /// JSON body.
    pub body: Vec<u8>,
    /// `Retry-After`, seconds.
    pub retry_after_secs: Option<u64>,
    /// `x-should-retry: false`: SDKs would otherwise retry by the status alone.
    pub never_retry: bool,
}

/// Renders `refusal` in a dialect. `request_id` is none for an error within a stream.
pub fn refusal(dialect: ApiDialect, refusal: &Refusal, request_id: Option<&str>) -> ErrorResponse {
    let row = refusal.row();
    let (message, pointer) = match refusal {
        Refusal::BadRequest { pointer, message }
        | Refusal::Rejected {
            pointer, message, ..
        } => (message.as_str(), Some(pointer.as_str())),
        Refusal::ModelFailed { message } => (message.as_str(), None),
        Refusal::NoSuchFinetune | Refusal::FinetuneIncomplete => (row.message, Some("/lora")),
        Refusal::BadFraming(what)
        | Refusal::NotSupported(what)
        | Refusal::UpgradeRequired(what) => (*what, None),
        _ => (row.message, None),
    };
    let rules = dialect.rules();
    let status = rules.status(refusal);
    let error = ApiError {
        status,
        kind: row.kind,
        reason: row.reason,
        code: row.code,
        message,
        pointer,
        request_id,
        server_error: None,
    };
    ErrorResponse {
        status,
        body: rules.error_body(&error),
        retry_after_secs: retry_after_secs(refusal, row.retry),
        never_retry: row.retry == RetryClass::Never,
    }
}

/// Appends the event that ends a stream which cannot go on. Official client libraries see no other sign of
/// failure in a stream; no end mark follows it.
pub fn error_event(dialect: ApiDialect, refused: &Refusal, out: &mut BytesMut) {
    let body = refusal(dialect, refused, None).body;
    dialect.rules().write_error_event(&body, out);
}

/// Renders the error of a model server, which answered with this status and body. Its text is passed on
/// only where it is about the request (4xx): that of a 5xx may name paths and addresses.
pub fn server_error(
    dialect: ApiDialect,
    status: u16,
    body: &[u8],
    request_id: Option<&str>,
) -> Vec<u8> {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let is_callers = status < 500;
    let server_error = parsed.as_ref().filter(|_| is_callers);
    let found = server_error.and_then(|body| {
        let message = server_message(body).map(Cow::Borrowed);
        message.or_else(|| invalid_members(body).map(Cow::Owned))
    });
    let message = found.as_deref().unwrap_or(match is_callers {
        true => "the model server refused the request",
        false => "the model server failed",
    });
    let error = ApiError {
        status,
        kind: server_error_kind(status),
        reason: "",
        code: match is_callers {
            true => CODE_BAD_REQUEST,
            false => CODE_SERVER_FAILED,
        },
        message: &message[..message.floor_char_boundary(SERVER_MESSAGE_BYTES_MAX)],
        pointer: None,
        request_id,
        server_error,
    };
    dialect.rules().server_error_body(&error, body)
}

/// Returns the text of an error, wherever servers put it: OpenAI's `error.message`, TGI's and TEI's
/// `error`, older vLLM's `message`, FastAPI's `detail`.
fn server_message(body: &Value) -> Option<&str> {
    let places = [
        &body["error"]["message"],
        &body["error"],
        &body["message"],
        &body["detail"],
    ];
    places.into_iter().find_map(Value::as_str)
}

/// Returns the text of FastAPI's list of invalid members: the place and the fault of each.
fn invalid_members(body: &Value) -> Option<String> {
    let listed = body["detail"].as_array()?;
    let mut text = String::new();
    for member in listed.iter().take(INVALID_MEMBERS_MAX) {
        let Some(fault) = member["msg"].as_str() else {
            continue;
        };
        if !text.is_empty() {
            text.push_str("; ");
        }
        let place = member["loc"].as_array().into_iter().flatten();
        let names = place.filter_map(|name| match name {
            Value::String(name) if name != "body" => Some(name.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        let place: Vec<String> = names.collect();
        if !place.is_empty() {
            text.push_str(&place.join("."));
            text.push_str(": ");
        }
        text.push_str(fault);
    }
    (!text.is_empty()).then_some(text)
}

fn server_error_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        408 => "timeout_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

fn retry_after_secs(refusal: &Refusal, retry: RetryClass) -> Option<u64> {
    if retry != RetryClass::Later {
        return None;
    }
    let wait = refusal
        .retry_after()
        .map_or(1, |span| span.0.div_ceil(1000));
    Some(wait.clamp(1, RETRY_AFTER_MAX_SECS))
}

#[cfg(test)]
mod tests;
