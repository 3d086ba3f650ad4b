//! Failures in the client's dialect: an event in a stream, and a backend's own error body.
//!
//! Failures are decided elsewhere. A backend's words are passed on only where they speak of the
//! request (4xx): those of a 5xx may name paths and addresses.

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::{ApiDialect, render, sse};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// The longest text of a backend that is passed on; a validation error of a long conversation is
/// a few kilobytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;

/// A longer body is not read as an error's.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;

/// Workers AI code of a request the backend found wrong, and of a backend that failed.
const CODE_BAD_REQUEST: u32 = 5006;
const CODE_BACKEND: u32 = 3050;

/// Appends the event that ends a stream which cannot go on. Official client libraries see no other
/// sign of failure in a stream; no end mark follows it.
pub fn error_event(face: ApiDialect, refusal: &Refusal, out: &mut BytesMut) {
    sse::event(&render::refusal(face, refusal).body, out);
}

/// The body for a client whose request the backend itself answered with an error status. An OpenAI
/// error passes as it is; anything else is put into the shape the client reads.
pub fn client_error_body(face: ApiDialect, status: u16, body: &[u8]) -> Vec<u8> {
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    let caller = status < 500;
    if face == ApiDialect::OpenAi && caller && parsed.as_ref().is_some_and(is_openai_error) {
        return body.to_vec();
    }
    let caller_error = parsed.as_ref().filter(|_| caller);
    let message = caller_error.and_then(message).unwrap_or(match caller {
        true => "the model server refused the request",
        false => "the model server failed",
    });
    let message = &message[..message.floor_char_boundary(MESSAGE_BYTES_MAX)];
    match face {
        ApiDialect::OpenAi => {
            let error = caller_error.map_or(&Value::Null, |said| said.get("error").unwrap_or(said));
            let kind = error["type"].as_str().unwrap_or(kind(status));
            json!({ "error": {
                "message": message, "type": kind, "param": error["param"], "code": error["code"],
            }})
            .to_string()
            .into_bytes()
        }
        ApiDialect::WorkersAi => {
            let code = if caller {
                CODE_BAD_REQUEST
            } else {
                CODE_BACKEND
            };
            render::error_body(face, kind(status), "", code, message, None)
        }
    }
}

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
    if body.len() > ERROR_BODY_MAX_BYTES || memchr::memmem::find(body, b"\"error\"").is_none() {
        return false;
    }
    let members = serde_json::from_slice::<ErrorMembers>(body);
    members.is_ok_and(|members| {
        let is_answer =
            members.choices.is_some() || members.data.is_some() || members.result.is_some();
        members.error.is_some() && !is_answer
    })
}

/// All four members are there, as client libraries want them.
fn is_openai_error(body: &Value) -> bool {
    let has = |name| body["error"].get(name).is_some();
    body["error"]["message"].is_string() && has("type") && has("param") && has("code")
}

/// The text of an error, wherever servers put it: OpenAI's `error.message`, TGI's and TEI's
/// `error`, older vLLM's `message`, FastAPI's `detail`.
fn message(body: &Value) -> Option<&str> {
    let places = [
        &body["error"]["message"],
        &body["error"],
        &body["message"],
        &body["detail"],
    ];
    places.into_iter().find_map(Value::as_str)
}

fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        408 => "timeout_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
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

    #[test]
    fn a_backends_own_error_reaches_the_client_in_its_dialect() {
        let body = |face, status, body: &str| {
            let bytes = client_error_body(face, status, body.as_bytes());
            serde_json::from_slice::<Value>(&bytes).unwrap()
        };
        let vllm = r#"{"error":{"message":"too long","type":"BadRequestError","param":"input","code":400}}"#;
        assert_eq!(
            client_error_body(ApiDialect::OpenAi, 400, vllm.as_bytes()),
            vllm.as_bytes()
        );
        let llama = r#"{"error":{"code":400,"message":"exceeds the context","type":"invalid_request_error"}}"#;
        assert_eq!(
            body(ApiDialect::OpenAi, 400, llama),
            json!({"error": {"message": "exceeds the context", "type": "invalid_request_error", "param": null, "code": 400}}),
        );
        for other in [
            r#"{"error":"too long","error_type":"validation"}"#,
            r#"{"object":"error","message":"too long","code":400}"#,
            r#"{"detail":"too long"}"#,
        ] {
            let openai = body(ApiDialect::OpenAi, 422, other);
            assert_eq!(openai["error"]["message"], "too long", "{other}");
            assert_eq!(openai["error"]["type"], "invalid_request_error", "{other}");
            let workers_ai = body(ApiDialect::WorkersAi, 422, other);
            assert_eq!(
                workers_ai["errors"],
                json!([{ "code": 5006, "message": "too long" }])
            );
        }
        for odd in ["", "<html>", "[1]", "null", "7"] {
            let message = &body(ApiDialect::OpenAi, 404, odd)["error"]["message"];
            assert_eq!(message, "the model server refused the request", "{odd}");
        }
        let failed = body(
            ApiDialect::WorkersAi,
            500,
            r#"{"error":{"message":"at /opt/x.py"}}"#,
        );
        assert_eq!(
            failed["errors"],
            json!([{ "code": 3050, "message": "the model server failed" }])
        );
        assert_eq!(
            body(ApiDialect::OpenAi, 500, vllm)["error"]["message"],
            "the model server failed"
        );
    }
}
