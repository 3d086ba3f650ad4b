//! Streams of jobs at their limits: clients that wait, clients that do not read, tokens whose time is over.
//!
//! The usual life of a stream is in `jobs`.

use serde_json::{Value, json};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, chunk, endpoint, eventually,
    model,
};

const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const QUEUE: &str = "/jobs/queues/acme/m";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;

fn config(server: std::net::SocketAddr, jobs: &str) -> String {
    let model = model("acme/m", &[endpoint(server, 2)], "");
    format!("jobs: {{ {jobs} }}\nmodels:\n{model}")
}

async fn create(node: &Node, body: &str) -> Value {
    let created = node.post(PREDICTIONS, body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

/// POST on the admin listener.
async fn post(node: &Node, path: &str) -> Value {
    let mut client = TestClient::connect(node.admin).await;
    client.post("", path, "").await;
    let answer = client.response().await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

/// Begins to follow a job; nothing is read yet.
async fn follow(node: &Node, job: &Value) -> TestClient {
    let url = job["urls"]["stream"].as_str().unwrap();
    let path = &url[url.find("/v1/").unwrap()..];
    let mut client = node.client().await;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
    client.send(request).await;
    client
}

async fn stream(node: &Node, job: &Value) -> TestResponse {
    follow(node, job).await.response().await
}

async fn show(node: &Node, job: &Value) -> TestResponse {
    let id = job["id"].as_str().unwrap();
    let mut client = node.client().await;
    let request = format!("GET /v1/predictions/{id} HTTP/1.1\r\nhost: h\r\n\r\n");
    client.send(request).await;
    client.response().await
}

#[tokio::test]
async fn a_client_that_waits_is_told_the_place_in_the_queue_at_once_and_each_15_seconds() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&config(server.address, "")).await;
    post(&node, &format!("{QUEUE}/pause")).await;
    let first = create(&node, INPUT).await;
    let second = create(&node, INPUT).await;
    let mut client = follow(&node, &second).await;
    client.saw(": queued, position 2\n\n").await;
    let path = format!("/v1/predictions/{}/cancel", first["id"].as_str().unwrap());
    assert_eq!(node.post(&path, "").await.status, 200);
    client.saw(": queued, position 1\n\n").await;
    let seen = String::from_utf8_lossy(client.pending()).into_owned();
    assert!(!seen.contains("event:"), "{seen}");
    assert_eq!(seen.matches(": queued").count(), 2, "{seen}");
}

/// Events of one piece of a response, and the text of each.
const EVENTS: usize = 500;
const TEXT_BYTES: usize = 500;

/// A server that answers with a head, so many pieces of text, and the end.
async fn server_of(pieces: usize) -> ScriptedServer {
    let text = "x".repeat(TEXT_BYTES);
    let event = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    let events = chunk(&format!("data: {event}\n\n").repeat(EVENTS));
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let end = format!("{}0\r\n\r\n", chunk("data: [DONE]\n\n"));
    let mut parts = vec![head];
    parts.extend(std::iter::repeat_n(&*events, pieces));
    parts.push(&end);
    ScriptedServer::new(&parts).await
}

#[tokio::test]
async fn a_follower_that_does_not_read_is_cut_off_and_another_gets_everything() {
    const PIECES: usize = 40;
    let server = server_of(PIECES).await;
    let node = Node::start(&config(server.address, "")).await;
    let job = create(&node, INPUT).await;
    let [mut slow, mut other] = [follow(&node, &job).await, follow(&node, &job).await];
    slow.saw(": waiting").await;
    other.saw(": waiting").await;
    let mut got = 0;
    for piece in 1..=PIECES {
        server.next();
        while got < piece * EVENTS * TEXT_BYTES {
            let some = other.discard(1).await;
            assert!(some > 0, "cut off after {got} bytes");
            got += some;
        }
    }
    // The job goes on: nothing else ends a stream.
    while slow.discard(1 << 20).await > 0 {}
    server.next();
    other.saw("event: done").await;
}

#[tokio::test]
async fn a_follower_that_comes_late_gets_the_output_from_its_beginning() {
    // More than is kept as events.
    const PIECES: usize = 12;
    let server = server_of(PIECES).await;
    let node = Node::start(&config(server.address, "")).await;
    let job = create(&node, INPUT).await;
    let whole = PIECES * EVENTS * TEXT_BYTES;
    for piece in 1..=PIECES {
        server.next();
        eventually("the text has come", async || {
            let output = show(&node, &job).await.json()["output"].take();
            let texts = output.as_array()?.iter().filter_map(Value::as_str);
            let length: usize = texts.map(str::len).sum();
            (length == piece * EVENTS * TEXT_BYTES).then_some(())
        })
        .await;
    }
    let mut late = follow(&node, &job).await;
    late.saw("event: output").await;
    server.next();
    let text = late.response().await.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: x"));
    assert_eq!(data.map(|rest| rest.len() + 1).sum::<usize>(), whole);
    assert!(text.contains("event: done") && !text.contains("event: error"));
}

#[tokio::test]
async fn a_token_is_of_one_job_until_keep_secs_after_its_end() {
    let server = SimulatedServer::fast().await;
    // A receiver that never answers keeps the record longer than that.
    let webhooks =
        "keep_secs: 2, webhooks: { allow_http: true, allow_networks: [127.0.0.0/8], ports: [9] }";
    let node = Node::start(&config(server.address, webhooks)).await;
    let body = json!({ "input": { "prompt": "hello" }, "webhook": "http://127.0.0.1:9/" });
    let job = create(&node, &body.to_string()).await;
    let text = stream(&node, &job).await.text();
    assert!(text.contains("event: done"), "{text}");
    let id = job["id"].as_str().unwrap();
    let again = post(&node, &format!("/jobs/{id}/requeue")).await;
    let again = show(&node, &json!({ "id": again["id"] })).await.json();
    let token = |job: &Value| {
        let url = job["urls"]["stream"].as_str().unwrap();
        url.split("token=").nth(1).unwrap().to_owned()
    };
    assert_ne!(token(&job), token(&again));
    let url = again["urls"]["stream"].as_str().unwrap();
    let url = url.replace(&token(&again), &token(&job));
    let foreign = json!({ "urls": { "stream": url } });
    assert_eq!(stream(&node, &foreign).await.status, 404);
    eventually("the token is no longer good", async || {
        let status = stream(&node, &job).await.status;
        (status == 404).then_some(())
    })
    .await;
    assert_eq!(show(&node, &job).await.status, 200, "the record is there");
}
