//! What a client says about hops, deadlines, accounts and sites is nobody's word.

use serde_json::json;

use super::{SERVING_NOTHING, knows_what_serves, member};
use crate::support::{ANSWER, Fleet, Scripted, chat, endpoint, json_answer, model};

const CHAT: &str = "/v1/chat/completions";

/// Header lines that are read on requests of nodes, and the one that is on those of accounts with a
/// right, as somebody might write them who wants to be taken for one.
const LINES: [&str; 11] = [
    "x-infergate-hops: 1; visited=gpu0; deadline_ms=86400000; errors=3; capacity=5; hops=2; wait_ms=0; in_flight=1",
    "x-infergate-account: somebody-rich",
    "x-infergate-model: secret-model",
    "x-infergate-asked-model: another",
    "x-infergate-path: mars/rover",
    "x-infergate-attempts: 2",
    "x-infergate-elapsed-us: 3600000000",
    "x-infergate-queued-us: 1800000000",
    "x-infergate-only-site: mars",
    "x-infergate-site: mars",
    "x-infergate-node: gpu0",
];

/// For model servers: what the gateway alone may say to them.
const TO_SERVERS: &str = "cf-ai-neurons: 1\r\ncf_ai_account: rich\r\nX_Infergate-Seen: 1\r\n";

fn heads() -> Vec<String> {
    let upper = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        format!("{}: {value}", name.to_uppercase())
    };
    let folded = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap();
        format!("{}: {value}", name.replace('-', "_"))
    };
    let mut heads: Vec<String> = Vec::new();
    for line in LINES {
        heads.push(format!("{line}\r\n"));
        heads.push(format!("{line}\r\n{line}\r\n"));
        heads.push(format!("{}\r\n", upper(line)));
        heads.push(format!("{}\r\n", folded(line)));
    }
    for at in 0..6 {
        // All but one of them, as a whole head has them.
        let most = LINES.iter().enumerate().filter(|(other, _)| *other != at);
        let most: String = most.map(|(_, line)| format!("{line}\r\n")).collect();
        heads.push(most + TO_SERVERS);
    }
    assert_eq!(heads.len(), 50);
    heads
}

#[tokio::test]
async fn fifty_heads_that_pretend_to_come_from_a_node_change_nothing() {
    let server = Scripted::new(&[&json_answer(ANSWER)]).await;
    let model = model("m", &[endpoint(server.address, 4)], "");
    let fleet = Fleet::start(&[
        member("edge", "fra", SERVING_NOTHING),
        member("gpu0", "ams", &format!("models:\n{model}")),
    ])
    .await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    knows_what_serves(edge, "gpu0").await;
    for head in &heads() {
        for (asked, site, path) in [
            (edge, "fra", json!(["fra/edge", "ams/gpu0"])),
            (gpu, "ams", json!(["ams/gpu0"])),
        ] {
            let answer = asked.post_as(head, CHAT, &chat("m", "")).await;
            assert_eq!(answer.status, 200, "{head}: {}", answer.text());
            let event = gpu.event_of(&answer).await;
            assert_eq!(event["account_id"], "anonymous", "{head}");
            assert_eq!(event["path"], path, "{head}");
            assert_eq!(
                (&event["attempts"], &event["model_id"]),
                (&json!(1), &json!("m"))
            );
            assert_eq!(event["source_site"], site);
            let counted_ms = event["request_time_ms"].as_f64().unwrap();
            assert!(counted_ms < 1_800_000.0, "{head}: {event:#}");
        }
    }
    let received = server.requests();
    assert_eq!(received.len(), 100);
    for line in received.iter().flat_map(|request| request.lines()) {
        let name = line.split(':').next().unwrap_or_default();
        let name = name.to_ascii_lowercase().replace('_', "-");
        let is_internal = ["x-infergate-", "cf-ai-"]
            .iter()
            .any(|of| name.starts_with(of));
        assert!(!is_internal, "a model server was told {line:?}");
    }
    // Forwarding is not for the clients' listener, whoever asks.
    for path in ["/peer/ping", "/peer/draining", "/peer/explain/x"] {
        let answer = edge.post(path, "{}").await;
        assert!(
            matches!(answer.status, 401 | 404),
            "{path}: {}",
            answer.status
        );
    }
    assert_eq!(edge.state().await["node"]["draining"], false);
}
