//! Servers without capacity that are asked again before the client hears of it: `out_of_capacity_retries`.

use std::sync::atomic::{AtomicUsize, Ordering};

use infergate::simulate::{Config, Dialect};
use serde_json::{Value, json};

use super::{ask, first_then};
use crate::support::{
    ANSWER, HandledServer, Node, Reaction, STREAM_HEAD, SimulatedServer, chat, chunk, endpoint,
    eventually, json_answer, model, one_model,
};

const CHAT: &str = "/v1/chat/completions";

/// A model with so many retries on one server.
fn retrying(server: &SimulatedServer, retries: u32) -> String {
    one_model(
        server.address,
        2,
        &format!("    out_of_capacity_retries: {retries}\n"),
    )
}

/// A server that is out of capacity `times` times and asks for a pause of `secs`, then answers with `answer`.
async fn full_for(times: usize, secs: u64, answer: String) -> HandledServer {
    let seen = AtomicUsize::new(0);
    let busy = format!(
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {secs}\r\nContent-Length: 0\r\n\r\n"
    );
    HandledServer::by(move |_| {
        let is_full = seen.fetch_add(1, Ordering::SeqCst) < times;
        Reaction::Answer(if is_full {
            busy.clone()
        } else {
            answer.clone()
        })
    })
    .await
}

/// The pauses after the attempts of a request, in milliseconds.
async fn pauses(node: &Node, request_id: &str) -> Vec<Value> {
    let explained = node.explain(request_id).await;
    let steps = explained["steps"].as_array().unwrap();
    let attempts = steps.iter().filter(|step| step["step"] == "attempt");
    let failed = attempts.filter(|step| step["retry"].is_object());
    failed
        .map(|step| step["retry"]["pause_ms"].clone())
        .collect()
}

#[tokio::test]
async fn a_server_without_capacity_is_asked_again_before_the_client_hears_of_it() {
    for status in [429, 424] {
        let server = SimulatedServer::fast().await;
        server
            .fault(&format!(r#"{{"fault":"status={status}","count":2}}"#))
            .await;
        let node = Node::start(&retrying(&server, 2)).await;
        let answer = ask(&node).await;
        assert_eq!(answer.status, 200, "{status}: {}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(event["attempts"], 3, "{event}");
        assert_eq!(event["outcome"], "completed");
        assert_eq!(event["error_code"], Value::Null);
        assert_eq!(event["queued"], true);
        assert!(event["queuing_time_ms"].as_u64() >= Some(1500), "{event}");
        let found = pauses(&node, event["request_id"].as_str().unwrap()).await;
        let found: Vec<u64> = found.iter().map(|pause| pause.as_u64().unwrap()).collect();
        assert!((500..625).contains(&found[0]), "{found:?}");
        assert!((1000..1250).contains(&found[1]), "{found:?}");
        assert_eq!(server.count("faulted").await, 2);
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn without_retries_the_client_gets_what_the_first_answer_comes_to() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&retrying(&server, 0)).await;
    server.fault(r#"{"fault":"status=429","count":1}"#).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    server.fault(r#"{"fault":"status=424","count":1}"#).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 424, "{}", answer.text());
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
}

#[tokio::test]
async fn the_client_gets_429_once_the_retries_are_used_up_whatever_the_server_said() {
    for (status, retries, attempts) in [(429, 1, 2), (424, 1, 2), (429, 9, 3)] {
        let server = SimulatedServer::fast().await;
        server
            .fault(&format!(r#"{{"fault":"status={status}"}}"#))
            .await;
        let node = Node::start(&retrying(&server, retries)).await;
        let answer = ask(&node).await;
        assert_eq!(answer.status, 429, "{status}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
        assert!(answer.header("retry-after").is_some());
        let event = node.event_of(&answer).await;
        assert_eq!(event["attempts"], attempts, "{event}");
        assert_eq!(event["error_code"], "3040");
        assert_eq!(server.count("faulted").await, attempts);
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn a_pause_that_the_server_asks_for_is_kept() {
    let server = full_for(2, 2, json_answer(ANSWER)).await;
    let more = "    out_of_capacity_retries: 2\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 3);
    assert!(event["request_time_ms"].as_u64() >= Some(4000), "{event}");
    assert_eq!(server.seen(), 3);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_pause_that_would_outlast_the_deadline_is_not_begun() {
    let server = full_for(9, 20, json_answer(ANSWER)).await;
    let more = "    out_of_capacity_retries: 2\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let deadline = "x-infergate-timeout-ms: 15000\r\n";
    let answer = node.post_as(deadline, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert!(answer.header("retry-after").is_some());
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 1);
    assert!(event["request_time_ms"].as_u64() < Some(15_000), "{event}");
    assert_eq!(server.seen(), 1);
}

#[tokio::test]
async fn a_client_that_leaves_during_the_pause_had_no_permit_and_reaches_no_server() {
    let server = full_for(9, 20, json_answer(ANSWER)).await;
    let more = "    out_of_capacity_retries: 2\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let client = node.posting("", "").await.0;
    eventually("the server has refused", async || {
        (server.seen() == 1).then_some(())
    })
    .await;
    node.settles(0, 0).await;
    client.close();
    let event = node.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-client", "{event}");
    assert_eq!(event["attempts"], 1);
    assert_eq!(event["queued"], true);
    node.settles(0, 0).await;
    assert_eq!(server.seen(), 1);
}

#[tokio::test]
async fn a_client_that_does_not_wait_gets_the_refusal_at_once() {
    let server = SimulatedServer::fast().await;
    server.fault(r#"{"fault":"status=429"}"#).await;
    let node = Node::start(&retrying(&server, 2)).await;
    let answer = node
        .post_as("x-infergate-queue: reject\r\n", CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
}

#[tokio::test]
async fn another_server_and_a_fallback_come_before_a_pause() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    first.fault(r#"{"fault":"status=429"}"#).await;
    let retries = "    out_of_capacity_retries: 2\n";
    let endpoints = [
        endpoint(first.address, 4),
        format!("{}, priority: 1", endpoint(second.address, 4)),
    ];
    let two_servers = format!("models:\n{}", model("m", &endpoints, retries));
    let more = format!("{retries}    fallbacks: [n]\n");
    let models = [
        model("m", &[endpoint(first.address, 2)], &more),
        model("n", &[endpoint(second.address, 2)], ""),
    ];
    let two_models = format!("models:\n{}", models.concat());
    for config in [two_servers, two_models] {
        let node = Node::start(&config).await;
        let answer = ask(&node).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["attempts"], &event["queued"]),
            (&json!(2), &json!(false))
        );
        let found = pauses(&node, event["request_id"].as_str().unwrap()).await;
        assert_eq!(found, [Value::Null]);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_no_server_without_capacity() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    for server in [&first, &second] {
        server.fault(r#"{"fault":"status=503"}"#).await;
    }
    let config = first_then(first.address, second.address);
    let config = config.replace(
        "    endpoints:",
        "    out_of_capacity_retries: 2\n    endpoints:",
    );
    let node = Node::start(&config).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["queued"], false, "{event}");
}

#[tokio::test]
async fn a_424_of_tgi_is_a_generation_that_failed_and_is_the_clients_to_read() {
    let server = SimulatedServer::start(Config {
        dialect: Dialect::Tgi,
        ..Config::instant()
    })
    .await;
    server.fault(r#"{"fault":"status=424"}"#).await;
    let config = retrying(&server, 2).replace("backend: openai", "backend: tgi");
    let node = Node::start(&config).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 424, "{}", answer.text());
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
}

#[tokio::test]
async fn a_streaming_client_gets_signs_of_life_during_the_pause() {
    let event = r#"data: {"choices":[{"index":0,"delta":{"content":"served"}}]}"#;
    let body = [event, "data: [DONE]"].map(|event| chunk(&format!("{event}\n\n")));
    let stream = format!("{STREAM_HEAD}{}0\r\n\r\n", body.concat());
    let server = full_for(1, 4, stream).await;
    let more = "    out_of_capacity_retries: 1\n    queue_heartbeat_secs: 1\n";
    let node = Node::start(&one_model(server.address, 1, more)).await;
    let answer = node.posting("", r#","stream":true"#).await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.text();
    assert!(text.starts_with(": queued\n\n"), "{text}");
    assert!(text.contains("served") && text.contains("[DONE]"), "{text}");
}
