//! Errors in the Workers AI form, by number.
//!
//! The form has no member for the place of a fault, which stands before the message.

use std::borrow::Cow;

use serde::Serialize;

use crate::api::dialect::ApiError;

// A refusal must cost little, so it is written straight from structs, without a tree.
#[derive(Serialize)]
struct WorkersAiErrorBody<'a> {
    result: Option<()>,
    success: bool,
    errors: [WorkersAiErrorObject<'a>; 1],
    messages: [(); 0],
}

#[derive(Serialize)]
struct WorkersAiErrorObject<'a> {
    code: u32,
    message: Cow<'a, str>,
}

/// Returns the body of an error.
pub(super) fn body(error: &ApiError<'_>) -> Vec<u8> {
    let body = WorkersAiErrorBody {
        result: None,
        success: false,
        errors: [WorkersAiErrorObject {
            code: error.code,
            message: error.message_with_place(),
        }],
        messages: [],
    };
    serde_json::to_vec(&body).unwrap_or_default()
}
