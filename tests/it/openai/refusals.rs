//! Refusals of the OpenAI dialect, and the part of a backend's own refusal that reaches the caller.

use infergate::simulate::Dialect;
use serde_json::{Value, json};

use super::{CHAT, assert_refused, every_kind, server};
use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, accounts, chat, endpoint, eventually,
    json_answer, model, one_model,
};

#[tokio::test]
async fn a_model_that_cannot_do_what_is_asked_says_so() {
    let (node, _servers) = every_kind().await;
    let answer = node.post(CHAT, &chat("vectors/tei", "")).await;
    assert_refused(&answer, 400, "invalid_request_error", "invalid_value");
    assert_eq!(answer.json()["error"]["param"], "/model");
    let answer = node
        .post("/v1/embeddings", r#"{"model":"text/tgi","input":"a"}"#)
        .await;
    assert_refused(&answer, 400, "invalid_request_error", "invalid_value");
}

#[tokio::test]
async fn a_wrong_key_is_refused_before_any_of_the_body_is_sent() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&format!(
        "{}{}",
        accounts(""),
        one_model(backend.address, 1, "")
    ))
    .await;
    for key in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: key-a\r\n",
        "x-api-key: k\r\n",
    ] {
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\n{key}Content-Length: 1000000\r\n\r\n");
        let answer = TestClient::exchange(node.clients, head).await;
        assert_refused(&answer, 401, "authentication_error", "invalid_api_key");
    }
    assert_eq!(backend.requests().len(), 0);
}

#[tokio::test]
async fn a_key_that_cannot_be_read_is_not_taken_for_no_key() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let status = async |key: &str| node.post_as(key, CHAT, &chat("m", "")).await.status;
    assert_eq!(status("").await, 200);
    // What SDKs send for an empty key.
    assert_eq!(status("Authorization: Bearer \r\n").await, 200);
    assert_eq!(status("Authorization: sk-123\r\n").await, 401);
    assert_eq!(status("Authorization: Basic abc\r\n").await, 401);
}

#[tokio::test]
async fn every_refusal_has_its_status_type_and_code() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "{}limits: {{ request_body_mib: 1 }}\n{}",
        accounts(", models: [m], requests_per_minute: 1000"),
        format_args!(
            "models:\n{}{}",
            model("m", &[endpoint(server.address, 1)], ""),
            model("other", &[endpoint(server.address, 1)], "")
        ),
    );
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let post = async |more: &str, path: &str, body: &str| {
        node.post_as(&format!("{key}{more}"), path, body).await
    };

    let refused = post("", CHAT, &chat("other", "")).await;
    assert_refused(&refused, 403, "permission_error", "model_not_allowed");
    let refused = post("", CHAT, &chat("nope", "")).await;
    assert_refused(&refused, 404, "invalid_request_error", "model_not_found");
    for path in [
        "/v1/chat",
        "/v3/chat/completions",
        "/",
        "/v1/models/",
        "//v1/chat/completions",
    ] {
        let refused = post("", path, &chat("m", "")).await;
        assert_refused(&refused, 404, "invalid_request_error", "not_found");
    }
    let big = chat("m", &format!(r#","pad":"{}""#, "x".repeat(1 << 20)));
    let refused = post("", CHAT, &big).await;
    assert_refused(&refused, 413, "invalid_request_error", "request_too_large");
    let refused = post(
        "x-sim-fault: reset-before-headers\r\n",
        CHAT,
        &chat("m", ""),
    )
    .await;
    assert_refused(&refused, 502, "server_error", "upstream_failed");
    let late = "x-sim-fault: stall\r\nx-infergate-timeout-ms: 50\r\n";
    let refused = post(late, CHAT, &chat("m", "")).await;
    assert_refused(&refused, 408, "timeout_error", "deadline_exceeded");
    assert_eq!(refused.header("x-should-retry"), Some("false"));
    assert_eq!(refused.header("retry-after"), None);
}

#[tokio::test]
async fn a_body_that_is_not_valid_is_refused_with_the_pointer_of_what_is_wrong() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (body, pointer) in [
        (r#"{"messages":[]}"#, "/model"),
        (r#"{"model":7}"#, "/model"),
        (r#"{"model":"m","model":"m"}"#, "/model"),
        (r#"{"model":"m","stream":"yes"}"#, "/stream"),
        (r#"{"model":"m","stream_options":[]}"#, "/stream_options"),
        (r#"{"model":"m","x_priority":10}"#, "/x_priority"),
        (r#"{"model":"m","x_priority":-1}"#, "/x_priority"),
        (r#"{"model":"m","max_tokens":"9"}"#, "/max_tokens"),
        (r#"{"model":"m","options":{"rejectIfBusy":1}}"#, "/options"),
        ("{", ""),
        ("", ""),
        ("[]", ""),
        ("{\"model\":\"m\"} x", ""),
        ("{\"model\":\"\u{0}\"}", ""),
    ] {
        let refused = node.post(CHAT, body).await;
        assert_refused(&refused, 400, "invalid_request_error", "invalid_value");
        assert_eq!(refused.json()["error"]["param"], pointer, "{body}");
    }
}

#[tokio::test]
async fn a_full_model_is_429_with_retry_after_and_costs_the_account_nothing() {
    let backend = ScriptedServer::new(&["", &json_answer(r#"{"usage":null}"#)]).await;
    let config = format!(
        "{}{}",
        accounts(", requests_per_minute: 2"),
        one_model(
            backend.address,
            1,
            "    queue: { capacity: 0, total_capacity: 0 }\n"
        )
    );
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let mut first = node.client().await;
    first.post(key, CHAT, &chat("m", "")).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    for _ in 0..6 {
        let refused = node.post_as(key, CHAT, &chat("m", "")).await;
        assert_refused(&refused, 429, "rate_limit_error", "out_of_capacity");
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=120).contains(&wait), "{wait}");
    }
    backend.next();
    assert_eq!(first.response().await.status, 200);
    node.idle().await;
    // The second of two a minute; a third is over the pace.
    let mut second = node.client().await;
    second.post(key, CHAT, &chat("m", "")).await;
    backend.next();
    assert_eq!(second.response().await.status, 200);
    let refused = node.post_as(key, CHAT, &chat("m", "")).await;
    assert_refused(&refused, 429, "rate_limit_error", "rate_limit_exceeded");
    assert!(refused.header("retry-after").is_some());
}

#[tokio::test]
async fn a_backends_own_refusal_passes_with_its_status_and_words() {
    let (node, _servers) = every_kind().await;
    for (kind, status, code) in [
        ("openai", 400, json!(400)),
        ("llama-server", 400, json!(400)),
        ("tgi", 422, Value::Null),
    ] {
        let body = format!(r#"{{"model":"text/{kind}","messages":[]}}"#);
        let answer = node.post(CHAT, &body).await;
        assert_eq!(answer.status, status, "{kind}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(
            error["message"], "messages: at least one message is needed",
            "{kind}"
        );
        assert_eq!(error["code"], code, "{kind}");
        assert!(
            error.get("type").is_some() && error.get("param").is_some(),
            "{kind}"
        );
        assert!(answer.header("x-request-id").is_some(), "{kind}");
    }
    for event in node.events(3).await {
        assert_eq!(event["error_code"], "5006", "{event}");
        assert_eq!(event["outcome"], "completed", "{event}");
    }
}

#[tokio::test]
async fn a_failing_backends_words_do_not_reach_the_client() {
    let server = server(Dialect::Openai).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let answer = node
        .post_as("x-sim-fault: status=500\r\n", CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["message"], "the model server failed");
    assert_eq!(node.events(1).await[0]["error_code"], "3050");
}

#[tokio::test]
async fn a_private_model_is_answered_for_like_one_that_does_not_exist() {
    let server = server(Dialect::Openai).await;
    let config = format!(
        "{}models:\n{}",
        accounts(""),
        model(
            "secret",
            &[endpoint(server.address, 1)],
            "    allowed_accounts: [b]\n"
        )
    );
    let node = Node::start(&config).await;
    let key = "Authorization: Bearer key-a\r\n";
    let output = async |path: &str, body: &str| {
        let answer = node.post_as(key, path, body).await;
        (answer.status, answer.text())
    };
    let chats = [
        output(CHAT, &chat("secret", "")).await,
        output(CHAT, &chat("absent", "")).await,
    ];
    assert_eq!(chats[0], chats[1]);
    assert_eq!(chats[0].0, 404);
    let runs = [
        output("/ai/run/secret", r#"{"prompt":"hi"}"#).await,
        output("/ai/run/absent", r#"{"prompt":"hi"}"#).await,
    ];
    assert_eq!(runs[0], runs[1]);
    assert_eq!(runs[0].0, 400);
    let own = "Authorization: Bearer key-b\r\n";
    let served = node.post_as(own, CHAT, &chat("secret", "")).await;
    assert_eq!(served.status, 200, "{}", served.text());
}
