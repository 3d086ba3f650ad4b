//! Refusals and catalog responses, written in the caller's dialect.
//!
//! No I/O: status, retry hints and body are values for the shell to write.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::json;

use super::ApiDialect;
use crate::model::ModelSpec;
use crate::refusal::{Refusal, RetryClass};

/// SDKs ignore a longer `Retry-After` and give up instead, so none is sent.
const RETRY_AFTER_MAX_SECS: u64 = 120;

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

/// Renders `refusal` in a dialect.
pub fn refusal(dialect: ApiDialect, refusal: &Refusal) -> ErrorResponse {
    let row = refusal.row();
    let (message, pointer) = match refusal {
        Refusal::BadRequest { pointer, message }
        | Refusal::Rejected {
            pointer, message, ..
        } => (message.as_str(), Some(pointer.as_str())),
        Refusal::BadFraming(what) => (*what, None),
        _ => (row.message, None),
    };
    let status = match dialect {
        ApiDialect::OpenAi => row.status,
        ApiDialect::WorkersAi => row.workers_ai_status,
    };
    ErrorResponse {
        status,
        body: error_body(dialect, row.kind, row.reason, row.code, message, pointer),
        retry_after_secs: retry_after_secs(refusal, row.retry),
        never_retry: row.retry == RetryClass::Never,
    }
}

/// Returns the error object of a dialect for a message.
pub fn error_body(
    dialect: ApiDialect,
    kind: &str,
    reason: &str,
    code: u32,
    message: &str,
    pointer: Option<&str>,
) -> Vec<u8> {
    let body = match dialect {
        ApiDialect::OpenAi => serde_json::to_vec(&OpenAiError {
            error: OpenAiErrorObject {
                message,
                kind,
                param: pointer,
                code: reason,
            },
        }),
        ApiDialect::WorkersAi => {
            let message = match pointer {
                Some(pointer) if !pointer.is_empty() => Cow::Owned(format!("{pointer}: {message}")),
                _ => Cow::Borrowed(message),
            };
            serde_json::to_vec(&WorkersAiError {
                result: None,
                success: false,
                errors: [WorkersAiErrorObject { code, message }],
                messages: [],
            })
        }
    };
    body.unwrap_or_default()
}

// A refusal must cost little, so these are written straight from structs, without a tree.
#[derive(Serialize)]
struct OpenAiError<'a> {
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

#[derive(Serialize)]
struct WorkersAiError<'a> {
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

fn retry_after_secs(refusal: &Refusal, retry: RetryClass) -> Option<u64> {
    if retry != RetryClass::Later {
        return None;
    }
    let wait = refusal
        .retry_after()
        .map_or(1, |span| span.0.div_ceil(1000));
    Some(wait.clamp(1, RETRY_AFTER_MAX_SECS))
}

#[derive(Serialize)]
struct OpenAiModel<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'a str,
}

fn model_object(model: &ModelSpec, created_unix_secs: u64) -> OpenAiModel<'_> {
    let id = model.id.as_str();
    let owner = id.rsplit_once('/').map_or("infergate", |(owner, _)| owner);
    OpenAiModel {
        id,
        object: "model",
        created: created_unix_secs,
        owned_by: owner,
    }
}

/// `GET /v1/models`.
pub fn models<'a>(models: impl Iterator<Item = &'a ModelSpec>, created_unix_secs: u64) -> Vec<u8> {
    let data: Vec<_> = models
        .map(|model| model_object(model, created_unix_secs))
        .collect();
    serde_json::to_vec(&json!({ "object": "list", "data": data })).unwrap_or_default()
}

/// `GET /v1/models/{id}`.
pub fn model(model: &ModelSpec, created_unix_secs: u64) -> Vec<u8> {
    serde_json::to_vec(&model_object(model, created_unix_secs)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;

    fn parsed(rendered: &ErrorResponse) -> serde_json::Value {
        serde_json::from_slice(&rendered.body).unwrap()
    }

    #[test]
    fn openai_errors_have_all_four_keys() {
        let rendered = refusal(ApiDialect::OpenAi, &Refusal::NoSuchModel);
        let error = &parsed(&rendered)["error"];
        assert_eq!(rendered.status, 404);
        assert_eq!(error["code"], "model_not_found");
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn workers_ai_sends_400_where_openai_sends_404() {
        let rendered = refusal(ApiDialect::WorkersAi, &Refusal::NoSuchModel);
        assert_eq!(rendered.status, 400);
        assert_eq!(parsed(&rendered)["errors"][0]["code"], 5007);
        assert_eq!(parsed(&rendered)["success"], false);
    }

    #[test]
    fn capacity_is_retried_after_the_measured_wait_within_what_sdks_obey() {
        let wait = |ms| {
            let full = Refusal::QueueFull {
                retry_after: Millis(ms),
            };
            refusal(ApiDialect::OpenAi, &full).retry_after_secs
        };
        assert_eq!(wait(0), Some(1));
        assert_eq!(wait(1001), Some(2));
        assert_eq!(wait(1_000_000), Some(120));
    }

    #[test]
    fn what_a_server_may_have_begun_is_never_retried() {
        for lost in [Refusal::UpstreamLost, Refusal::UpstreamTimeout] {
            for dialect in [ApiDialect::OpenAi, ApiDialect::WorkersAi] {
                let rendered = refusal(dialect, &lost);
                assert!(matches!(rendered.status, 502 | 504), "{lost:?}");
                assert!(
                    rendered.never_retry && rendered.retry_after_secs.is_none(),
                    "{lost:?}"
                );
            }
        }
        let not_begun = refusal(ApiDialect::OpenAi, &Refusal::UpstreamFailed);
        assert!(!not_begun.never_retry && not_begun.retry_after_secs == Some(1));
    }

    #[test]
    fn a_passed_deadline_is_never_retried() {
        let rendered = refusal(ApiDialect::OpenAi, &Refusal::DeadlinePassed);
        assert_eq!(
            (
                rendered.status,
                rendered.never_retry,
                rendered.retry_after_secs
            ),
            (408, true, None)
        );
    }
}
