//! Errors in the bodies of 2xx responses.
//!
//! Errors with a status of their own are rendered by the core.

use std::sync::LazyLock;

use memchr::memmem::Finder;
use serde::de::IgnoredAny;

/// The longest text of a backend that is passed on; a validation error of a long conversation is
/// a few kilobytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;

/// Built once: building a finder costs more than one search.
pub(super) static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// A longer body is not read as an error's.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;

/// Returns whether the body of a 2xx is an error's: a non-null `error`, and none of `choices`,
/// `data` and `result` beside it.
pub fn is_error_body(body: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct ErrorMembers {
        error: Option<IgnoredAny>,
        choices: Option<IgnoredAny>,
        data: Option<IgnoredAny>,
        result: Option<IgnoredAny>,
    }
    // An error is short, and nearly no other response has the word.
    if body.len() > ERROR_BODY_MAX_BYTES || ERROR.find(body).is_none() {
        return false;
    }
    let members = serde_json::from_slice::<ErrorMembers>(body);
    members.is_ok_and(|members| {
        let is_answer =
            members.choices.is_some() || members.data.is_some() || members.result.is_some();
        members.error.is_some() && !is_answer
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_body_has_an_error_and_no_answer_beside_it() {
        for error in [
            r#"{"error":{"message":"x"}}"#,
            r#"{"id":1,"error":"x"}"#,
            r#"{"error":{}}"#,
        ] {
            assert!(is_error_body(error.as_bytes()), "{error}");
        }
        for answer in [
            r#"{"choices":[],"error":{"message":"x"}}"#,
            r#"{"data":[],"error":"x"}"#,
            r#"{"result":{},"error":"x"}"#,
            r#"{"choices":[],"error":null}"#,
            r#"{"error":null}"#,
            r#"{"text":"\"error\""}"#,
            r#"["error"]"#,
            "\"error\"",
        ] {
            assert!(!is_error_body(answer.as_bytes()), "{answer}");
        }
    }
}
