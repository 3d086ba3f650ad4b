//! The event file: when a line is in it, what becomes of it, and what never stands in it.

use serde_json::Value;

use super::assert_contract;
use crate::support::{Node, SimulatedServer, endpoint, eventually, model, one_model};

#[tokio::test]
async fn with_durability_before_last_byte_the_line_is_in_the_file_when_the_answer_is() {
    let server = SimulatedServer::fast().await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let node = Node::start(&format!(
        "events: {{ file: {{ path: \"{}\" }}, durability: before-last-byte }}\n{}",
        path.display(),
        one_model(server.address, 4, "")
    ))
    .await;
    for stream in [false, true] {
        for _ in 0..5 {
            let posted = node.posting("", &format!(r#","stream":{stream}"#)).await;
            let answer = posted.answer().await;
            assert_eq!(answer.status, 200);
            let text = std::fs::read_to_string(&path).unwrap();
            let id = answer.header("x-request-id").unwrap();
            assert_eq!(text.matches(id).count(), 1, "stream {stream}");
        }
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 10);
    for line in text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_contract(&event);
        assert_eq!(
            (&event["outcome"], &event["status"]),
            (&"completed".into(), &200.into())
        );
        assert!(event["time_to_first_token_ms"].is_u64(), "{event}");
        assert!(event["metrics"]["output_tokens"].is_u64(), "{event}");
    }
}

#[tokio::test]
async fn no_key_and_no_body_stands_in_a_log_an_event_a_metric_or_an_answer() {
    const CANARIES: [&str; 5] = [
        "canary-client-key",
        "canary-server-key",
        "canary-cookie",
        "canary-prompt",
        "canary-answer",
    ];
    let server = SimulatedServer::fast().await;
    let hash = {
        use sha2::{Digest, Sha256};
        hex::encode(Sha256::digest("canary-client-key"))
    };
    let api_key = "api_key: canary-server-key";
    let node = Node::start(&format!(
        "log: {{ level: \"trace,pingora_core=trace,pingora_pool=trace,pingora_http=trace\" }}\n\
         accounts: [ {{ id: a, api_keys_sha256: [\"{hash}\"] }} ]\nmodels:\n{}{}",
        model(
            "m",
            &[format!("{}, {api_key}", endpoint(server.address, 2))],
            ""
        ),
        // Found down before it is asked, it must not make anybody wait.
        model(
            "dead",
            &[format!("url: \"http://127.0.0.1:1\", {api_key}")],
            "    queue: { when_unhealthy: refuse }\n"
        ),
    ))
    .await;
    let headers = "Authorization: Bearer canary-client-key\r\nCookie: c=canary-cookie\r\n";
    let body = |model: &str, more: &str| {
        format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"canary-prompt echo:canary-answer"}}]{more}}}"#
        )
    };
    let path = "/v1/chat/completions";
    let good = node.post_as(headers, path, &body("m", "")).await;
    assert!(good.text().contains("canary-answer"), "{}", good.text());
    let mut answers = Vec::new();
    for (headers, body) in [
        (
            headers,
            body("m", r#","stream":true,"x_sim_fault":"reset-mid-stream""#),
        ),
        (headers, body("m", r#","x_sim_fault":"status=500""#)),
        (headers, body("m", r#","x_sim_fault":"status=503""#)),
        (headers, body("dead", "")),
        (headers, body("nobody", "")),
        (headers, body("m", ",")),
        (headers, body("m", r#","x_priority":"canary-prompt""#)),
        ("x-api-key: canary-client-keys\r\n", body("m", "")),
        ("Authorization: Basic canary-client-key\r\n", body("m", "")),
    ] {
        let answer = node.post_as(headers, path, &body).await;
        answers.push(answer.text().replace("canary-answer", "its own"));
    }
    // Two of them came without an account.
    let events = node.events(8).await;
    let events: String = events.iter().map(Value::to_string).collect();
    let (state, metrics) = (
        node.get("/state").await.text(),
        node.get("/metrics").await.text(),
    );
    let log = node.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "{log}");
    for canary in CANARIES {
        let answers = answers.join("\n");
        for (place, text) in [
            ("log", &log),
            ("events", &events),
            ("state", &state),
            ("metrics", &metrics),
            ("answers", &answers),
        ] {
            let found = text.lines().find(|line| line.contains(canary));
            assert_eq!(found, None, "{canary} in {place}");
        }
    }
}

#[tokio::test]
async fn an_event_file_that_is_moved_away_is_made_anew() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    node.posting("", "").await.answer().await;
    node.events(1).await;
    let moved = node.dir().join("moved.jsonl");
    std::fs::rename(node.events_path(), &moved).unwrap();
    let answer = node.posting("", "").await.answer().await;
    let events = node.events(1).await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0]["request_id"].as_str(),
        answer.header("x-request-id")
    );
    assert_eq!(std::fs::read_to_string(moved).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn a_full_disk_drops_events_counts_them_and_serves_on() {
    let server = SimulatedServer::fast().await;
    for durability in ["buffered", "before-last-byte"] {
        let node = Node::start(&format!(
            "events: {{ file: {{ path: /dev/full }}, durability: {durability} }}\n{}",
            one_model(server.address, 2, "")
        ))
        .await;
        for _ in 0..5 {
            assert_eq!(node.posting("", "").await.answer().await.status, 200);
        }
        let counts = eventually("the drops are counted", async || {
            let counts = node.state().await["events"].clone();
            (counts["dropped_write_failed"] == 5).then_some(counts)
        })
        .await;
        assert!(counts["last_error"].is_string(), "{counts}");
        assert_eq!(counts["written"], 0);
        let dropped = r#"infergate_events_dropped_total{cause="write-failed"}"#;
        assert_eq!(node.metric(dropped).await, Some(5.0));
        assert_eq!(node.get("/readyz").await.status, 200);
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_its_event_goes_to_the_disk_harms_nobody() {
    let server = SimulatedServer::fast().await;
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let node = Node::start(&format!(
        "events: {{ file: {{ path: \"{}\" }}, durability: before-last-byte }}\n{}",
        pipe.display(),
        one_model(server.address, 1, "")
    ))
    .await;
    let client = node.posting("", "").await.0;
    eventually("the event is on its way", async || {
        (node.state().await["events"]["emitted"] == 1).then_some(())
    })
    .await;
    client.reset();
    // A pipe takes nothing until somebody reads it.
    let reading = std::fs::File::open(&pipe).unwrap();
    node.settles(0, 0).await;
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200);
    assert!(!node.log().contains("panicked"), "{}", node.log());
    drop(reading);
}
