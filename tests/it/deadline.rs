//! Deadlines: a single one covers queue, server and stream; the client's response when it passes.

use std::time::Duration;

use serde_json::Value;

use crate::support::{
    Node, STREAM_HEAD, ScriptedServer, chat, chunk, eventually, json_answer, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
/// The floor of every model, by default.
const FLOOR_MS: u64 = 30_000;
/// Long enough for a request to be where it is to be when its deadline passes: in the queue, at the
/// server, or with its first piece at the client.
const REACHED_MS: u64 = 2000;

fn request_time_ms(event: &Value) -> u64 {
    event["request_time_ms"].as_u64().unwrap()
}

fn queuing_time_ms(event: &Value) -> u64 {
    event["queuing_time_ms"].as_u64().unwrap()
}

fn timeout_header(ms: u64) -> String {
    format!("x-infergate-timeout-ms: {ms}\r\n")
}

#[tokio::test]
async fn a_wish_below_the_floor_is_obeyed_and_answered_408_that_is_not_to_be_retried() {
    let backend = ScriptedServer::new(&["", ""]).await;
    let node = Node::start(&one_model(backend.address, 1, "    timeout_secs: 1\n")).await;
    let answer = node
        .post_as(&timeout_header(REACHED_MS), CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 408, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert_eq!(event["error_code"], "3007");
    assert_eq!(event["status"], 408);
    assert!(
        (REACHED_MS..FLOOR_MS).contains(&request_time_ms(&event)),
        "{event}"
    );
    node.idle().await;
    eventually("the server is let go", async || {
        (backend.gone() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_models_timeout_counts_once_it_is_over_the_floor_and_under_the_ceiling() {
    let backend = ScriptedServer::new(&["", ""]).await;
    for (timeouts, model_secs) in [
        ("timeouts: { model_floor_secs: 0 }\n", 1),
        ("timeouts: { model_floor_secs: 1 }\n", 0),
        ("timeouts: { ceiling_secs: 1, model_floor_secs: 1 }\n", 60),
    ] {
        let model = one_model(
            backend.address,
            1,
            &format!("    timeout_secs: {model_secs}\n"),
        );
        let node = Node::start(&format!("{timeouts}{model}")).await;
        // A wish above it changes nothing.
        let answer = node
            .post_as(&timeout_header(3_600_000), CHAT, &chat("m", ""))
            .await;
        assert_eq!(answer.status, 408, "{timeouts}");
        let event = node.events(1).await.remove(0);
        assert!(
            (1000..FLOOR_MS).contains(&request_time_ms(&event)),
            "{timeouts}: {event}"
        );
    }
}

#[tokio::test]
async fn a_stream_cut_by_the_deadline_ends_with_an_error_event_and_no_end_mark() {
    let pieces = [
        &format!("{STREAM_HEAD}{}", chunk(TOKEN))[..],
        &chunk(TOKEN),
        "0\r\n\r\n",
    ];
    for (path, body, expected) in [
        (
            CHAT,
            chat("m", r#","stream":true"#),
            r#""code":"deadline_exceeded""#,
        ),
        (
            "/ai/run/m",
            r#"{"prompt":"hi","stream":true}"#.to_owned(),
            r#""code":3007"#,
        ),
    ] {
        let backend = ScriptedServer::new(&pieces).await;
        let node = Node::start(&one_model(backend.address, 1, "")).await;
        let answer = node.post_as(&timeout_header(REACHED_MS), path, &body).await;
        assert_eq!(answer.status, 200);
        assert!(
            !answer.broken,
            "{path}: the framing of a stream that was told stays whole"
        );
        let events = answer.events();
        assert_eq!(events.len(), 2, "{events:?}");
        assert!(events[1].contains(expected), "{}", events[1]);
        let event = node.events(1).await.remove(0);
        assert_eq!(event["outcome"], "cut-by-deadline");
        assert_eq!(event["error_code"], "3007");
        assert_eq!(event["status"], 200);
        node.idle().await;
        eventually("the server is let go", async || {
            (backend.gone() == 1).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_whole_answer_cut_by_the_deadline_is_left_broken() {
    // Longer than an answer that is held until it is known not to be an error.
    let half = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200000\r\n\r\n{{\"a\":\"{}",
        "x".repeat(100_000)
    );
    let backend = ScriptedServer::new(&[&half, "never"]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let answer = node
        .post_as(&timeout_header(REACHED_MS), CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 200);
    assert!(answer.broken, "{answer:?}");
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-deadline");
}

#[tokio::test]
async fn time_in_the_queue_counts() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut holder = node.client().await;
    holder.post("", CHAT, &chat("m", "")).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let answer = node
        .post_as(&timeout_header(REACHED_MS), CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 408, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["queued"], true);
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert!(
        (REACHED_MS..FLOOR_MS).contains(&request_time_ms(&event)),
        "{event}"
    );
    assert!(queuing_time_ms(&event) > 0, "{event}");
    assert!(
        queuing_time_ms(&event) <= request_time_ms(&event),
        "{event}"
    );
    assert_eq!(event["attempts"], 0);
    assert_eq!(node.queue_depth().await, 0);
    assert_eq!(
        backend.requests().len(),
        1,
        "nothing is begun for one that is late"
    );
    backend.next();
    assert_eq!(holder.response().await.status, 200);
}

#[tokio::test]
async fn time_in_the_queue_is_taken_from_the_server() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut holder = node.client().await;
    holder.post("", CHAT, &chat("m", "")).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let mut late = node.client().await;
    late.post(&timeout_header(2 * REACHED_MS), CHAT, &chat("m", ""))
        .await;
    eventually("it waits", async || {
        (node.queue_depth().await == 1).then_some(())
    })
    .await;
    assert!(!late.closes_within(Duration::from_millis(REACHED_MS)).await);
    backend.next();
    assert_eq!(holder.response().await.status, 200);
    // Granted, and never answered: cut by what is left of its time, not by as much again.
    let answer = late.response().await;
    assert_eq!(answer.status, 408);
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 1);
    assert!(queuing_time_ms(&event) >= REACHED_MS, "{event}");
    assert!(request_time_ms(&event) >= 2 * REACHED_MS, "{event}");
    let at_the_server = event["inference_time_ms"].as_u64().unwrap();
    assert!(at_the_server < 2 * REACHED_MS, "{event}");
}

#[tokio::test]
async fn a_body_that_comes_slower_than_the_deadline_is_cut_by_it() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut client = node.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\n{}Content-Length: 1000\r\n\r\n{{",
        timeout_header(100)
    );
    client.send(head).await;
    let answer = client.response().await;
    assert_eq!(answer.status, 408);
    assert_eq!(answer.json()["error"]["code"], "deadline_exceeded");
    assert_eq!(node.events(1).await[0]["outcome"], "cut-by-deadline");
}

#[tokio::test]
async fn a_wish_that_is_no_positive_number_of_milliseconds_is_refused() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    for value in [
        "0",
        "-1",
        "abc",
        "",
        "1.5",
        "5s",
        "99999999999999999999",
        "1 2",
        "0x10",
    ] {
        let header = format!("x-infergate-timeout-ms: {value}\r\n");
        let answer = node.post_as(&header, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 400, "{value}");
        assert_eq!(answer.json()["error"]["code"], "invalid_value", "{value}");
        assert!(
            answer.text().contains("x-infergate-timeout-ms"),
            "{}",
            answer.text()
        );
    }
    let twice = "x-infergate-timeout-ms: 5000\r\nx-infergate-timeout-ms: 9000\r\n";
    assert_eq!(node.post_as(twice, CHAT, &chat("m", "")).await.status, 400);
    assert_eq!(backend.requests().len(), 0);
    assert_eq!(
        node.post_as(&timeout_header(20_000), CHAT, &chat("m", ""))
            .await
            .status,
        200
    );
}
