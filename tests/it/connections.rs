//! Connections to model servers: which are used again, and what a lost one means for its request.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::{
    ANSWER, HandledServer, Node, Reaction, STREAM_HEAD, TestResponse, chat, chunk, endpoint,
    json_answer, model, one_model,
};

/// Above the time within which a break counts as that of an idle connection.
const LATE: Duration = Duration::from_millis(400);

async fn poison(node: &Node) -> TestResponse {
    node.posting("", r#","user":"poison""#).await.answer().await
}

/// Answers at once, but one that names the poison kills it after `after`.
async fn fragile(after: Duration) -> HandledServer {
    HandledServer::by(move |request| match request.contains("poison") {
        true => Reaction::Crash(after),
        false => Reaction::Answer(json_answer(ANSWER)),
    })
    .await
}

/// A model on `servers`, each with a warm connection to it.
async fn warm(servers: &[HandledServer], more: &str) -> Node {
    let endpoints: Vec<String> = servers.iter().map(|s| endpoint(s.address, 4)).collect();
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, more))).await;
    for _ in 0..servers.len() * 4 {
        let answer = node.posting("", "").await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    node.idle().await;
    node
}

/// A 502 or 504 that no client library repeats.
fn assert_not_to_be_repeated(answer: &TestResponse, status: u16) {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(answer.header("retry-after"), None);
}

#[tokio::test]
async fn a_prompt_that_crashes_its_server_while_it_works_reaches_one_server() {
    let servers = [
        fragile(LATE).await,
        fragile(LATE).await,
        fragile(LATE).await,
    ];
    let node = warm(&servers, "").await;
    let before: usize = servers.iter().map(HandledServer::seen).sum();
    let answer = poison(&node).await;
    let reached = servers.iter().map(HandledServer::seen).sum::<usize>() - before;
    assert_eq!(reached, 1);
    assert_not_to_be_repeated(&answer, 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_failed");
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_prompt_that_crashes_its_server_at_once_reaches_two_at_most() {
    let now = Duration::ZERO;
    let servers = [fragile(now).await, fragile(now).await, fragile(now).await];
    let node = warm(&servers, "").await;
    let before: usize = servers.iter().map(HandledServer::seen).sum();
    let answer = poison(&node).await;
    let reached = servers.iter().map(HandledServer::seen).sum::<usize>() - before;
    assert!((1..=2).contains(&reached), "{reached}");
    assert_not_to_be_repeated(&answer, 502);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_without_saying_so_gets_each_request_once() {
    let delta = r#"data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}"#;
    let stream = format!(
        "{STREAM_HEAD}{}{}0\r\n\r\n",
        chunk(&format!("{delta}\n\n")),
        chunk("data: [DONE]\n\n")
    );
    let server = HandledServer::by(move |request| {
        Reaction::AnswerAndClose(match request.contains("\"stream\":true") {
            true => stream.clone(),
            false => json_answer(ANSWER),
        })
    })
    .await;
    let queue = "    queue: { capacity: 100, algorithm: fifo }\n";
    let node = Node::start(&one_model(server.address, 4, queue)).await;
    let mut clients = JoinSet::new();
    for number in 0..80 {
        let body = match number % 2 {
            0 => chat("m", ""),
            _ => chat("m", r#","stream":true"#),
        };
        let mut client = node.client().await;
        clients.spawn(async move {
            client.post("", "/v1/chat/completions", &body).await;
            client.response().await
        });
    }
    for answer in clients.join_all().await {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.broken);
    }
    assert_eq!(server.seen(), 80);
    let events = node.events(80).await;
    assert!(events.iter().all(|event| event["attempts"] == 1));
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_head_that_does_not_come_in_time_ends_the_request_with_504_at_one_server() {
    let hang = async || HandledServer::by(|_| Reaction::Crash(Duration::from_secs(60))).await;
    let servers = [hang().await, hang().await];
    let endpoints = servers.each_ref().map(|s| endpoint(s.address, 4));
    let more = "    first_byte_timeout_secs: 1\n";
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, more))).await;
    let answer = node.posting("", "").await.answer().await;
    assert_not_to_be_repeated(&answer, 504);
    let error = &answer.json()["error"];
    assert_eq!(
        (&error["type"], &error["code"]),
        (&"timeout_error".into(), &"upstream_timeout".into())
    );
    let event = node.event_of(&answer).await;
    assert_eq!(
        (&event["attempts"], &event["error_code"], &event["outcome"]),
        (&1.into(), &"3055".into(), &"failed".into())
    );
    assert_eq!(servers.iter().map(HandledServer::seen).sum::<usize>(), 1);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_caller_with_less_time_than_the_first_byte_has_gets_its_own_deadline() {
    let server = HandledServer::by(|_| Reaction::Crash(Duration::from_secs(60))).await;
    let more = "    first_byte_timeout_secs: 30\n";
    let node = Node::start(&one_model(server.address, 4, more)).await;
    let wish = "x-infergate-timeout-ms: 300\r\n";
    let answer = node.posting(wish, "").await.answer().await;
    assert_eq!(answer.status, 408, "{}", answer.text());
}

#[tokio::test]
async fn a_502_that_took_its_time_is_not_asked_for_again() {
    let bad = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad".to_owned();
    let slow = async || {
        let bad = bad.clone();
        HandledServer::by(move |_| Reaction::AnswerAfter(LATE, bad.clone())).await
    };
    let servers = [slow().await, slow().await];
    let endpoints = servers.each_ref().map(|s| endpoint(s.address, 4));
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    let answer = node.posting("", "").await.answer().await;
    assert_not_to_be_repeated(&answer, 502);
    assert_eq!(servers.iter().map(HandledServer::seen).sum::<usize>(), 1);
}

#[tokio::test]
async fn a_504_of_a_server_is_passed_on_as_one_that_is_not_to_be_repeated() {
    let late = "HTTP/1.1 504 Gateway Timeout\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    let server = HandledServer::by(|_| Reaction::Answer(late.to_owned())).await;
    let node = Node::start(&one_model(server.address, 4, "")).await;
    let answer = node.posting("", "").await.answer().await;
    assert_not_to_be_repeated(&answer, 504);
}

#[tokio::test]
async fn a_refusal_that_comes_before_the_body_was_read_reaches_the_client() {
    let refusal = json_answer(r#"{"error":{"message":"too large for this server"}}"#);
    let refusal = refusal.replace("200 OK", "413 Payload Too Large");
    let (server, _tasks) = crate::support::early(refusal).await;
    let node = Node::start(&one_model(server, 4, "")).await;
    let pad = "x".repeat(8 << 20);
    let mut client = node.client().await;
    let body = chat("m", &format!(r#","pad":"{pad}""#));
    client.post("", "/v1/chat/completions", &body).await;
    let answer = client.response().await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(answer.text().contains("too large for this server"));
    node.settles(0, 0).await;
}

#[tokio::test]
async fn the_log_tells_apart_why_a_server_did_not_answer() {
    let garbage =
        HandledServer::by(|_| Reaction::Answer("secret-word is not HTTP\r\n\r\n".to_owned())).await;
    let closed = HandledServer::by(|_| Reaction::Crash(Duration::ZERO)).await;
    let refused = crate::support::RefusingServer::new();
    let models = [
        model("m", &[endpoint(garbage.address, 1)], ""),
        model("closed", &[endpoint(closed.address, 1)], ""),
        model("refused", &[endpoint(refused.address, 1)], ""),
    ];
    let node = Node::start(&format!("models:\n{}", models.concat())).await;
    for name in ["m", "closed", "refused"] {
        let answer = node.post("/v1/chat/completions", &chat(name, "")).await;
        assert!(answer.status >= 429, "{}", answer.text());
    }
    let log = node.log();
    let causes: Vec<Value> = log
        .lines()
        .filter(|line| line.contains("no answer from a model server"))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    for cause in ["not HTTP", "closed"] {
        assert!(log.contains(cause), "{cause}: {causes:?}\n{log}");
    }
    assert!(!log.contains("secret-word"), "{log}");
}

#[tokio::test]
async fn a_kept_connection_is_used_again_and_explained_as_such() {
    let server = HandledServer::by(|_| Reaction::Answer(json_answer(ANSWER))).await;
    let node = warm(std::slice::from_ref(&server), "").await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(connection_of(&node, &answer).await, "reused");
}

/// Origin of the connection of a request's attempt, as `/explain` has it.
async fn connection_of(node: &Node, answer: &TestResponse) -> Value {
    let id = answer.header("x-request-id").unwrap();
    let trace = node.explain(id).await;
    let steps = trace["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["step"] == "attempt").unwrap();
    step["connection"].clone()
}

#[tokio::test]
async fn a_server_that_has_no_room_keeps_its_connection() {
    let server = HandledServer::by(|request| match request.contains("poison") {
        true => Reaction::Answer(json_answer("{}").replacen("200 OK", "429 Too Many", 1)),
        false => Reaction::Answer(json_answer(ANSWER)),
    })
    .await;
    let node = warm(std::slice::from_ref(&server), "").await;
    assert_eq!(poison(&node).await.status, 429);
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(connection_of(&node, &answer).await, "reused");
}
