//! Errors in the Workers AI form, by number.
//!
//! The form has no member for the place of a fault, which stands before the message.

use crate::api::dialect::ApiError;
use crate::api::json::Object;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 256;

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    // A refusal must cost little, so it is written member by member.
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    body.member("result", "null");
    body.member("success", "false");
    let mut errors = body.list("errors");
    let mut first = errors.object();
    first.member("code", &error.code.to_string());
    first.text("message", &error.message_with_place());
    drop(first);
    drop(errors);
    body.member("messages", "[]");
    body.end()
}
