//! Errors in the form of the protocol: one text.
//!
//! The form has no member for the place of a fault, which stands before the message.

use crate::api::dialect::ApiError;
use crate::api::json::Object;

/// Bytes of a usual error: reserved once.
const BODY_BYTES_USUAL: usize = 128;

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let mut body = Object::with_capacity(BODY_BYTES_USUAL);
    body.text("error", &error.message_with_place());
    body.end()
}
