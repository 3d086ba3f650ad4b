//! Errors as clients of each dialect read them.

use serde_json::{Value, json};

use super::*;
use crate::Millis;

const ALL: [ApiDialect; 3] = [
    ApiDialect::OpenAi,
    ApiDialect::WorkersAi,
    ApiDialect::Anthropic,
];

fn parsed(rendered: &ErrorResponse) -> Value {
    serde_json::from_slice(&rendered.body).unwrap()
}

fn render(dialect: ApiDialect, refused: &Refusal) -> ErrorResponse {
    refusal(dialect, refused, Some("r1"))
}

#[test]
fn openai_errors_have_all_four_keys() {
    let rendered = render(ApiDialect::OpenAi, &Refusal::NoSuchModel);
    let error = &parsed(&rendered)["error"];
    assert_eq!(rendered.status, 404);
    assert_eq!(error["code"], "model_not_found");
    for key in ["message", "type", "param", "code"] {
        assert!(error.get(key).is_some(), "{key}");
    }
}

#[test]
fn workers_ai_sends_400_where_openai_sends_404() {
    let rendered = render(ApiDialect::WorkersAi, &Refusal::NoSuchModel);
    assert_eq!(rendered.status, 400);
    assert_eq!(parsed(&rendered)["errors"][0]["code"], 5007);
    assert_eq!(parsed(&rendered)["success"], false);
}

#[test]
fn a_finetune_that_cannot_be_used_is_3039_at_its_member() {
    for refused in [Refusal::NoSuchFinetune, Refusal::FinetuneIncomplete] {
        let rendered = render(ApiDialect::WorkersAi, &refused);
        assert_eq!((rendered.status, rendered.never_retry), (400, false));
        assert_eq!(parsed(&rendered)["errors"][0]["code"], 3039);
        let rendered = render(ApiDialect::OpenAi, &refused);
        assert_eq!(rendered.status, 400);
        assert_eq!(parsed(&rendered)["error"]["param"], "/lora");
        assert_eq!(render(ApiDialect::Anthropic, &refused).status, 400);
    }
}

#[test]
fn anthropic_errors_have_a_type_by_status_and_the_id_of_the_request() {
    let rendered = render(ApiDialect::Anthropic, &Refusal::NoSuchModel);
    assert_eq!(rendered.status, 404);
    let message = Refusal::NoSuchModel.row().message;
    assert_eq!(
        parsed(&rendered),
        json!({
            "type": "error",
            "error": { "type": "not_found_error", "message": message },
            "request_id": "r1",
        })
    );
    let kind = |refused: &Refusal| {
        let rendered = render(ApiDialect::Anthropic, refused);
        let kind = parsed(&rendered)["error"]["type"]
            .as_str()
            .unwrap()
            .to_owned();
        (rendered.status, kind)
    };
    let retry_after = Millis(10);
    for (refused, status, expected) in [
        (Refusal::Unauthenticated, 401, "authentication_error"),
        (Refusal::NotAllowed, 403, "permission_error"),
        (Refusal::NoSuchRoute, 404, "not_found_error"),
        (Refusal::NotSupported("x"), 404, "not_found_error"),
        (Refusal::DeadlinePassed, 408, "timeout_error"),
        (Refusal::BodyTooLarge, 413, "request_too_large"),
        (
            Refusal::RateLimited { retry_after },
            429,
            "rate_limit_error",
        ),
        (Refusal::QuotaUsed, 429, "rate_limit_error"),
        (Refusal::QueueFull { retry_after }, 529, "overloaded_error"),
        (Refusal::Busy { retry_after }, 529, "overloaded_error"),
        (Refusal::NoHealthyEndpoint, 529, "overloaded_error"),
        (Refusal::Draining, 529, "overloaded_error"),
        (Refusal::Internal, 500, "api_error"),
        (Refusal::UpstreamLost, 502, "api_error"),
        (Refusal::UpstreamTimeout, 504, "timeout_error"),
        (Refusal::HeadersTooLarge, 431, "invalid_request_error"),
    ] {
        assert_eq!(kind(&refused), (status, expected.to_owned()), "{refused:?}");
    }
    let place = Refusal::BadRequest {
        pointer: "/messages/0".into(),
        message: "is odd".into(),
    };
    let rendered = parsed(&render(ApiDialect::Anthropic, &place));
    assert_eq!(rendered["error"]["message"], "/messages/0: is odd");
}

#[test]
fn capacity_is_retried_after_the_measured_wait_within_what_sdks_obey() {
    for dialect in ALL {
        let wait = |ms| {
            let full = Refusal::QueueFull {
                retry_after: Millis(ms),
            };
            render(dialect, &full).retry_after_secs
        };
        assert_eq!(wait(0), Some(1));
        assert_eq!(wait(1001), Some(2));
        assert_eq!(wait(1_000_000), Some(120));
    }
}

#[test]
fn a_request_that_a_server_may_have_started_is_never_retried() {
    for lost in [Refusal::UpstreamLost, Refusal::UpstreamTimeout] {
        for dialect in ALL {
            let rendered = render(dialect, &lost);
            assert!(matches!(rendered.status, 502 | 504), "{lost:?}");
            assert!(
                rendered.never_retry && rendered.retry_after_secs.is_none(),
                "{lost:?}"
            );
        }
    }
    let not_started = render(ApiDialect::OpenAi, &Refusal::UpstreamFailed);
    assert!(!not_started.never_retry && not_started.retry_after_secs == Some(1));
}

#[test]
fn a_passed_deadline_is_never_retried() {
    let rendered = render(ApiDialect::OpenAi, &Refusal::DeadlinePassed);
    assert_eq!(
        (
            rendered.status,
            rendered.never_retry,
            rendered.retry_after_secs
        ),
        (408, true, None)
    );
}

#[test]
fn a_backends_own_error_reaches_the_client_in_its_dialect() {
    let body = |dialect, status, body: &str| {
        let bytes = server_error(dialect, status, body.as_bytes(), None);
        serde_json::from_slice::<Value>(&bytes).unwrap()
    };
    let vllm =
        r#"{"error":{"message":"too long","type":"BadRequestError","param":"input","code":400}}"#;
    assert_eq!(
        server_error(ApiDialect::OpenAi, 400, vllm.as_bytes(), None),
        vllm.as_bytes()
    );
    let llama =
        r#"{"error":{"code":400,"message":"exceeds the context","type":"invalid_request_error"}}"#;
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
        let anthropic = body(ApiDialect::Anthropic, 422, other);
        let expected = json!({ "type": "invalid_request_error", "message": "too long" });
        assert_eq!(anthropic["error"], expected, "{other}");
    }
    for odd in ["", "<html>", "[1]", "null", "7"] {
        let message = &body(ApiDialect::OpenAi, 404, odd)["error"]["message"];
        assert_eq!(message, "the model server refused the request", "{odd}");
    }
    let path = r#"{"error":{"message":"at /opt/x.py"}}"#;
    let failed = body(ApiDialect::WorkersAi, 500, path);
    assert_eq!(
        failed["errors"],
        json!([{ "code": 3050, "message": "the model server failed" }])
    );
    assert_eq!(
        body(ApiDialect::OpenAi, 500, vllm)["error"]["message"],
        "the model server failed"
    );
}

#[test]
fn errors_are_the_text_that_a_serializer_writes() {
    let message = "a \"quoted\" name \\ and a\ttab";
    let refused = Refusal::BadRequest {
        pointer: "/messages/0".into(),
        message: message.into(),
    };
    let body = |dialect| String::from_utf8(render(dialect, &refused).body).unwrap();
    let quoted = serde_json::to_string(message).unwrap();
    assert_eq!(
        body(ApiDialect::OpenAi),
        format!(
            r#"{{"error":{{"message":{quoted},"type":"invalid_request_error","param":"/messages/0","code":"invalid_value"}}}}"#
        )
    );
    let placed = quoted.replacen('"', "\"/messages/0: ", 1);
    assert_eq!(
        body(ApiDialect::WorkersAi),
        format!(
            r#"{{"result":null,"success":false,"errors":[{{"code":5006,"message":{placed}}}],"messages":[]}}"#
        )
    );
    assert_eq!(
        body(ApiDialect::Anthropic),
        format!(
            r#"{{"type":"error","error":{{"type":"invalid_request_error","message":{placed}}},"request_id":"r1"}}"#
        )
    );
}
