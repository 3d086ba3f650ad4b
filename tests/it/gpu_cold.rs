//! Requests for a model that is not ready: how long they wait, and what client, event and trace say about it.
//!
//! Processes and memory are real; only the card is simulated.

use serde_json::{Value, json};

use crate::support::gpu_host::{ask_as, becomes, host, model, serve, slot};
use crate::support::{Node, TestClient, accounts, eventually};

const ALLOWED: &str = "authorization: Bearer key-a\r\n";

/// A small model that takes `secs` to load.
fn slow(id: &str, secs: u32, process: &str, more: &str) -> String {
    let loads = format!("\"--load-secs\", \"{secs}\", \"--ttft-ms\"");
    model(id, 1000, process, more).replace("\"--ttft-ms\"", &loads)
}

async fn stream(node: &Node, model: &str) -> TestClient {
    let body = json!({
        "model": model,
        "stream": true,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    let mut client = node.client().await;
    let path = "/v1/chat/completions";
    client.post(ALLOWED, path, &body.to_string()).await;
    client
}

#[tokio::test]
async fn a_wait_for_a_load_is_in_the_head_the_event_and_the_trace_and_a_ready_model_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let models = [slow("m", 1, "", "")];
    let node = Node::start(&(accounts("") + &host(dir.path(), &models))).await;
    let first = ask_as(&node, ALLOWED, "m").await;
    assert_eq!(first.status, 200, "{}", first.text());
    let waited: u64 = first
        .header("x-infergate-load-ms")
        .unwrap()
        .parse()
        .unwrap();
    assert!((900..60_000).contains(&waited), "{waited} ms");
    let event = node.event_of(&first).await;
    let instance = becomes(&node, "m", "ready").await["instance"].clone();
    assert_eq!(event["container_id"], instance, "{event}");
    assert_eq!(event["cold_start"], true);
    assert_eq!(event["load_wait_ms"], waited);
    assert!(event["queuing_time_ms"].as_u64().unwrap() >= waited);
    let trace = node.explain(first.header("x-request-id").unwrap()).await;
    let step = &trace["steps"][0];
    assert_eq!(step["load"]["slot"], "cold", "{trace}");
    assert!(step["load"]["expected_in_ms"].is_u64(), "{trace}");
    assert_eq!(trace["steps"][1]["instance"], instance, "{trace}");
    assert!(trace["load_wait_ms"].as_f64().unwrap() >= waited as f64);

    let second = ask_as(&node, ALLOWED, "m").await;
    assert_eq!(second.header("x-infergate-load-ms"), None);
    let event = node.event_of(&second).await;
    assert_eq!(event["container_id"], instance);
    assert_eq!(
        (&event["cold_start"], &event["load_wait_ms"]),
        (&false.into(), &0.into())
    );
    let trace = node.explain(second.header("x-request-id").unwrap()).await;
    assert!(trace["steps"][0]["load"].is_null(), "{trace}");
}

#[tokio::test]
async fn a_trace_tells_the_place_among_the_models_that_wait_and_what_is_ahead() {
    let dir = tempfile::tempdir().unwrap();
    // The card is pinned, so that no other model is ever chosen.
    let models = [
        model("pinned", 20_000, "", ", pin: true"),
        model("first", 8000, "", ""),
        model("second", 8000, "", ""),
    ];
    let node = Node::start(&(accounts("") + &host(dir.path(), &models))).await;
    becomes(&node, "pinned", "ready").await;
    becomes(&node, "second", "cold").await;
    let rejects = format!("{ALLOWED}x-infergate-queue: reject\r\n");
    // Refused ones count, and weigh more the longer they are remembered.
    for _ in 0..4 {
        ask_as(&node, &rejects, "first").await;
    }
    let waiting = stream(&node, "first").await;
    let seen = eventually("the second one has its place", async || {
        let asked = ask_as(&node, &rejects, "second").await;
        let trace = node.explain(asked.header("x-request-id").unwrap()).await;
        let load = trace["steps"][0]["load"].clone();
        (load["place"] == 2).then_some(load)
    })
    .await;
    assert_eq!(seen["ahead"], json!(["first"]), "{seen}");
    assert_eq!(seen["reason"], "protected", "{seen}");
    assert!(seen["debt_per_load_sec"].as_f64().unwrap() > 0.0, "{seen}");
    let asked = ask_as(&node, &rejects, "first").await;
    let id = asked.header("x-request-id").unwrap();
    let load = node.explain(id).await["steps"][0]["load"].clone();
    assert_eq!((&load["place"], &load["ahead"]), (&json!(1), &json!([])));
    drop(waiting);
}

#[tokio::test]
async fn refusals_of_every_kind_get_a_model_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        model("late", 1000, "", ""),
        model("rejecting", 1000, "", ""),
        model("full", 1000, "", ", queue: { capacity: 0 }"),
    ];
    let node = Node::start(&(accounts("") + &host(dir.path(), &models))).await;
    for (name, header) in [
        ("late", "x-infergate-timeout-ms: 50\r\n"),
        ("rejecting", "x-infergate-queue: reject\r\n"),
        ("full", ""),
    ] {
        // The load is estimated by then.
        becomes(&node, name, "cold").await;
        let refused = ask_as(&node, &format!("{ALLOWED}{header}"), name).await;
        assert_eq!(refused.status, 429, "{name}: {}", refused.text());
        assert!(refused.header("retry-after").is_some(), "{name}");
        let event = node.event_of(&refused).await;
        assert_eq!(event["cold_start"], true, "{event}");
        assert_eq!(
            (&event["load_wait_ms"], &event["attempts"]),
            (&0.into(), &0.into())
        );
        assert!(event["container_id"].is_null(), "{event}");
        becomes(&node, name, "ready").await;
    }
}

#[tokio::test]
async fn streams_hear_of_the_load_and_of_their_place_and_pay_for_neither() {
    let dir = tempfile::tempdir().unwrap();
    let heartbeat = ", queue_heartbeat_secs: 1";
    let models = [
        slow("comments", 3, "", heartbeat),
        slow(
            "silent",
            3,
            "",
            &format!("{heartbeat}, loading_state: none"),
        ),
        slow("thinking", 4, "", ", loading_state: reasoning"),
        slow("busy", 1, ", parallel: 1", heartbeat)
            .replace("\"--ttft-ms\", \"1\"", "\"--ttft-ms\", \"4000\""),
    ];
    let node = Node::start(&(accounts("") + &host(dir.path(), &models))).await;

    let mut comments = stream(&node, "comments").await;
    comments.saw(": loading, 1 s of about ").await;
    let answer = comments.response().await;
    assert_eq!(
        answer.events().last().unwrap(),
        "[DONE]",
        "{}",
        answer.text()
    );
    // Its head was out before the load had ended.
    assert_eq!(answer.header("x-infergate-load-ms"), None);

    let answer = stream(&node, "silent").await.response().await;
    assert!(!answer.text().contains(": loading"), "{}", answer.text());
    assert!(answer.header("x-infergate-load-ms").is_some());

    let answer = stream(&node, "thinking").await.response().await;
    let first: Value = serde_json::from_str(&answer.events()[0]).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    let delta = &first["choices"][0]["delta"];
    let line = delta["reasoning_content"].as_str().unwrap();
    assert!(line.starts_with("loading, 2 s"), "{first}");
    let cold = node.event_of(&answer).await;
    let warm = stream(&node, "thinking").await.response().await;
    assert!(
        !warm.text().contains("reasoning_content"),
        "{}",
        warm.text()
    );
    let warm = node.event_of(&warm).await;
    assert_eq!(cold["metrics"], warm["metrics"], "{cold}");
    assert_eq!(cold["cold_start"], true, "{cold}");

    let first = stream(&node, "busy").await;
    becomes(&node, "busy", "ready").await;
    let mut second = stream(&node, "busy").await;
    second.saw(": waiting, position 1\n\n").await;
    drop(first);
    assert_eq!(second.response().await.events().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn a_cold_model_is_left_for_a_ready_one_unless_it_is_pinned_and_else_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let failing = "  - { id: failing, task: text-generation, backend: openai, \
                   endpoints: [{ url: \"http://127.0.0.1:1\", max_concurrent_requests: 1 }] }\n";
    let models = [
        slow("left", 1, "", ", fallbacks: [cold, warm]"),
        slow("pinned", 1, "", ", fallbacks: [warm], pin_primary: true"),
        slow("alone", 1, "", ", fallbacks: [cold]"),
        slow("returning", 1, "", ", fallbacks: [cold, failing]"),
        slow("onward", 1, "", ", fallbacks: [gone, cold]"),
        slow("cold", 1, "", ""),
        model("warm", 1000, "", ""),
        failing.to_owned(),
        failing.replace("failing", "gone"),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "warm").await;
    becomes(&node, "warm", "ready").await;

    let answer = ask_as(&node, "", "left").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("warm"));
    assert_eq!(answer.header("x-infergate-load-ms"), None);
    let trace = node.explain(answer.header("x-request-id").unwrap()).await;
    let step = &trace["steps"][1];
    assert_eq!(
        (&step["to"], &step["cause"]),
        (&"warm".into(), &"cold".into())
    );
    let series = "infergate_fallbacks_total{model=\"left\",reason=\"cold\"}";
    assert_eq!(node.metric(series).await, Some(1.0));
    // It counted as demand.
    becomes(&node, "left", "ready").await;
    let answer = ask_as(&node, "", "left").await;
    assert_eq!(
        (answer.status, answer.header("x-infergate-model")),
        (200, None)
    );

    for name in ["pinned", "alone", "returning", "onward"] {
        let answer = ask_as(&node, "", name).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.header("x-infergate-model"), None, "{name}");
        assert!(answer.header("x-infergate-load-ms").is_some(), "{name}");
    }
    assert_eq!(slot(&node, "cold").await["loads"], 0);
}
