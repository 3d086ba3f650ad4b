//! Inference events: every request leaves exactly one line in the event file, with every field of the contract.

mod file;
mod socket;

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, accounts, chat, eventually, one_model,
};

/// Asserts that every field of the contract is there with its type, and nothing else of a name we
/// do not know.
fn assert_contract(event: &Value) {
    type Check = fn(&Value) -> bool;
    let text: Check = Value::is_string;
    let text_or_null: Check = |v| v.is_string() || v.is_null();
    let count: Check = Value::is_u64;
    let count_or_null: Check = |v| v.is_u64() || v.is_null();
    let number_or_null: Check = |v| v.is_number() || v.is_null();
    let yes_or_no: Check = Value::is_boolean;
    let list: Check = Value::is_array;
    let map: Check = Value::is_object;
    let map_or_null: Check = |v| v.is_object() || v.is_null();
    let contract: [(&str, Check); 39] = [
        ("time", text),
        ("request_id", text),
        ("account_id", text_or_null),
        ("client_address", text_or_null),
        ("client_id", text_or_null),
        ("client_request_id", text_or_null),
        ("model_id", text_or_null),
        ("asked_model_id", text_or_null),
        ("face", text),
        ("node", text),
        ("site", text),
        ("status", count),
        ("error_code", text_or_null),
        ("reason", text_or_null),
        ("outcome", text),
        ("streamed", yes_or_no),
        ("queued", yes_or_no),
        ("request_time_ms", count),
        ("queuing_time_ms", count),
        ("inference_time_ms", count),
        ("time_to_first_token_ms", count_or_null),
        ("metrics", map),
        ("metrics_source", text),
        ("comparison", map_or_null),
        ("neurons", number_or_null),
        ("priced_by", text_or_null),
        ("attempts", count),
        ("upstream", text_or_null),
        ("path", list),
        ("local_queue_size", count),
        ("source_site", text),
        ("container_id", text_or_null),
        ("cold_start", yes_or_no),
        ("load_wait_ms", count),
        ("flags", map),
        ("request_source", text),
        ("plugins", list),
        ("trace_id", text_or_null),
        ("sample_interval", count),
    ];
    let fields: &Map<String, Value> = event.as_object().unwrap();
    for (name, is_right) in contract {
        let value = fields
            .get(name)
            .unwrap_or_else(|| panic!("no {name}: {event}"));
        assert!(is_right(value), "{name}: {event}");
    }
    assert_eq!(fields.len(), contract.len(), "{event}");
    for flag in [
        "streamed",
        "beta",
        "external_endpoint",
        "queued_in_site",
        "unix_socket",
        "billing_fallback",
    ] {
        assert!(event["flags"][flag].is_boolean(), "{flag}: {event}");
    }
    let outcomes = [
        "completed",
        "refused",
        "cut-by-client",
        "cut-by-backend",
        "cut-by-deadline",
        "failed",
    ];
    assert!(
        outcomes.contains(&event["outcome"].as_str().unwrap()),
        "{event}"
    );
    let time = event["time"].as_str().unwrap();
    assert!(
        time.len() >= 20 && time.ends_with('Z') && time.contains('T'),
        "{time}"
    );
    let within = |part: &str| event[part].as_u64() <= event["request_time_ms"].as_u64();
    assert!(
        within("queuing_time_ms") && within("inference_time_ms"),
        "{event}"
    );
}

fn configured(server: std::net::SocketAddr) -> String {
    format!(
        "node: {{ id: n1, site: s1 }}\n{}{}",
        accounts(", requests_per_minute: 1000"),
        one_model(server, 2, "")
    )
}

const KEY: &str = "Authorization: Bearer key-a\r\n";

#[tokio::test]
async fn a_completed_request_is_recorded_with_what_it_used() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&configured(server.address)).await;
    for streamed in [false, true] {
        let more = format!(r#","stream":{streamed},"x_client_id":"end-user-7""#);
        let answer = node.posting(KEY, &more).await.answer().await;
        assert_eq!(answer.status, 200);
        let event = node.event_of(&answer).await;
        assert_contract(&event);
        assert_eq!(event["outcome"], "completed");
        assert_eq!(
            (&event["account_id"], &event["client_id"]),
            (&"a".into(), &"end-user-7".into())
        );
        assert_eq!(
            (&event["model_id"], &event["face"]),
            (&"m".into(), &"openai".into())
        );
        assert_eq!(
            (&event["node"], &event["site"]),
            (&"n1".into(), &"s1".into())
        );
        assert_eq!(event["path"], serde_json::json!(["s1/n1"]));
        assert_eq!(
            (&event["source_site"], &event["request_source"]),
            (&"s1".into(), &"rest".into())
        );
        assert_eq!(
            (&event["status"], &event["attempts"]),
            (&200.into(), &1.into())
        );
        assert_eq!(event["upstream"], format!("http://{}", server.address));
        assert_eq!(
            (&event["streamed"], &event["flags"]["streamed"]),
            (&streamed.into(), &streamed.into())
        );
        assert_eq!(event["metrics_source"], "reported");
        assert!(event["metrics"]["input_tokens"].as_u64().unwrap() > 0);
        assert!(event["metrics"]["output_tokens"].as_u64().unwrap() > 0);
        assert!(event["time_to_first_token_ms"].is_u64());
        assert_eq!(
            (&event["neurons"], &event["error_code"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(
            (&event["queued"], &event["local_queue_size"]),
            (&false.into(), &0.into())
        );
    }
}

#[tokio::test]
async fn what_comes_without_an_account_is_counted_and_never_written() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&configured(server.address)).await;
    for _ in 0..5 {
        let wrong_key = "Authorization: Bearer wrong\r\n";
        let chat = chat("m", "");
        let refused = node.post_as(wrong_key, "/v1/chat/completions", &chat).await;
        assert_eq!(refused.status, 401);
    }
    let served = node
        .post_as(KEY, "/v1/chat/completions", &chat("m", ""))
        .await;
    assert_eq!(served.status, 200);
    // Events are written in their order: those of the strangers would stand before it.
    let event = node.event_of(&served).await;
    assert_eq!(event["account_id"], "a");
    assert_eq!(node.events(1).await.len(), 1);
    let metrics = node.get("/metrics").await.text();
    let counted = metrics.lines().find(|line| {
        line.starts_with("infergate_refusals_total") && line.contains("invalid_api_key")
    });
    assert!(
        counted.is_some_and(|line| line.ends_with(" 5")),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_refused_request_is_recorded_with_our_number_and_what_was_known_of_it() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&configured(server.address)).await;
    let chat_path = "/v1/chat/completions";
    let long_id = format!(r#","x_client_id":"{}""#, "x".repeat(65));
    for (headers, path, body, status, code, account, model) in [
        (
            KEY,
            chat_path,
            chat("nobody", ""),
            404,
            "5007",
            "a".into(),
            Value::Null,
        ),
        (
            KEY,
            "/ai/run/nobody",
            r#"{"prompt":"x"}"#.into(),
            400,
            "5007",
            "a".into(),
            Value::Null,
        ),
        (
            KEY,
            "/v1/nothing",
            chat("m", ""),
            404,
            "7003",
            "a".into(),
            Value::Null,
        ),
        (
            KEY,
            chat_path,
            "{".into(),
            400,
            "5006",
            "a".into(),
            Value::Null,
        ),
        (
            KEY,
            chat_path,
            chat("m", &long_id),
            400,
            "5006",
            "a".into(),
            Value::Null,
        ),
    ] {
        let answer = node.post_as(headers, path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
        let event = node.event_of(&answer).await;
        assert_contract(&event);
        assert_eq!(event["outcome"], "refused", "{event}");
        assert_eq!(
            (&event["status"], &event["error_code"]),
            (&status.into(), &code.into())
        );
        assert_eq!(
            (&event["account_id"], &event["model_id"]),
            (&account, &model),
            "{event}"
        );
        assert_eq!(
            (&event["attempts"], &event["upstream"]),
            (&0.into(), &Value::Null)
        );
        assert_eq!(event["metrics"], serde_json::json!({}));
        assert_eq!(event["metrics_source"], "none");
        assert_eq!(event["inference_time_ms"], 0);
    }
    assert_eq!(server.count("served").await, 0);
}

#[tokio::test]
async fn a_request_that_waited_is_recorded_with_its_place_and_its_wait() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let first = node.posting("", "").await;
    node.settles(1, 1).await;
    let second = node.posting("", "").await;
    node.settles(1, 2).await;
    let mut events = Vec::new();
    for (count, posted) in [holder, first, second].into_iter().enumerate() {
        eventually("it is at the server", async || {
            (server.requests().len() == count + 1).then_some(())
        })
        .await;
        server.next();
        let answer = posted.answer().await;
        events.push(node.event_of(&answer).await);
    }
    events.iter().for_each(assert_contract);
    let field = |name: &str| events.iter().map(|e| e[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("queued"), [false, true, true]);
    assert_eq!(field("local_queue_size"), [0, 0, 1]);
    assert_eq!(events[0]["queuing_time_ms"], 0);
    assert_eq!(events[2]["flags"]["queued_in_site"], true);
}

#[tokio::test]
async fn exactly_one_event_is_left_by_every_request_of_a_mixed_crowd() {
    let server = SimulatedServer::fast().await;
    let queue = "    queue: { capacity: 1000 }\n";
    let node = Node::start(&one_model(server.address, 4, queue)).await;
    let mut answered = HashSet::new();
    let mut left = 0;
    for round in 0..60 {
        let fault = |fault: &str| format!(r#","x_sim_fault":"{fault}""#);
        let leaver = match round % 10 {
            0 => {
                node.settles(0, 0).await;
                let leaver = node.posting("", &fault("stall")).await;
                node.settles(1, 0).await;
                Some(leaver)
            }
            _ => None,
        };
        let mut posted = vec![
            node.posting("", "").await,
            node.posting("", r#","stream":true"#).await,
            node.posting("", r#","x_priority":77"#).await,
            node.posting("", &fault("status=400")).await,
        ];
        if round % 10 == 0 {
            posted.push(node.posting("", &fault("status=503")).await);
            posted.push(
                node.posting("", &(fault("reset-mid-stream") + r#","stream":true"#))
                    .await,
            );
        }
        if let Some(leaver) = leaver {
            leaver.0.reset();
            left += 1;
        }
        for posted in posted {
            let answer = posted.answer().await;
            assert!(answered.insert(answer.header("x-request-id").unwrap().to_owned()));
        }
    }
    let all = answered.len() + left;
    node.settles(0, 0).await;
    let mut node = node;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(0));
    let events = node.events(all).await;
    events.iter().for_each(assert_contract);
    assert_eq!(events.len(), all);
    let id = |event: &Value| event["request_id"].as_str().unwrap().to_owned();
    let ids: HashSet<String> = events.iter().map(id).collect();
    assert_eq!(ids.len(), all);
    assert!(answered.is_subset(&ids));
}

#[tokio::test]
async fn requests_events_and_metrics_tell_the_same_number() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 4, "")).await;
    for _ in 0..10 {
        node.posting("", "").await.answer().await;
        node.post("/v1/chat/completions", &chat("nobody", "")).await;
    }
    assert_eq!(node.events(20).await.len(), 20);
    let text = node.get("/metrics").await.text();
    let requests: f64 = text
        .lines()
        .filter(|line| line.starts_with("infergate_requests_total{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum();
    assert_eq!(requests, 20.0);
    // A line is in the file a moment before it is counted.
    let counts = eventually("all lines are counted", async || {
        let counts = node.state().await["events"].clone();
        (counts["written"] == 20).then_some(counts)
    })
    .await;
    assert_eq!(
        (&counts["emitted"], &counts["dropped"]),
        (&20.into(), &0.into())
    );
}

#[tokio::test]
async fn a_connection_without_a_request_leaves_no_event() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    TestClient::connect(node.clients).await.close();
    TestClient::connect(node.clients).await.reset();
    let mut garbage = node.client().await;
    garbage.send("nonsense\r\n\r\n").await;
    assert_eq!(garbage.response().await.status, 400);
    let answer = node.posting("", "").await.answer().await;
    let events = node.events(1).await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0]["request_id"].as_str(),
        answer.header("x-request-id")
    );
}
