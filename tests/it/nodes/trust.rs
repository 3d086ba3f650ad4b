//! What a client says about hops, deadlines, accounts and sites is nobody's word.

use super::edge_before;
use crate::support::{Server, chat};

const CHAT: &str = "/v1/chat/completions";

/// Header lines as nodes write them, and as somebody might who wants to be taken for one.
const LINES: [&str; 10] = [
    "x-infergate-hops: 1; visited=gpu0; deadline_ms=86400000; errors=3; capacity=5; hops=2; wait_ms=0; in_flight=1",
    "x-infergate-account: somebody-rich",
    "x-infergate-model: secret-model",
    "x-infergate-asked-model: another",
    "x-infergate-path: mars/rover",
    "x-infergate-attempts: 2",
    "x-infergate-only-site: mars",
    "x-infergate-came-back: no-room",
    "x-infergate-node: gpu0",
    "x-infergate-generation: 18446744073709551615",
];

#[tokio::test]
async fn fifty_heads_that_pretend_to_come_from_a_node_change_nothing() {
    let server = Server::fast().await;
    let fleet = edge_before(&[&server], 4).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
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
    for at in 0..10 {
        // All but one of them, as a whole head has them.
        let most = LINES.iter().enumerate().filter(|(other, _)| *other != at);
        heads.push(most.map(|(_, line)| format!("{line}\r\n")).collect());
    }
    assert_eq!(heads.len(), 50);
    for head in &heads {
        let answer = edge.post_as(head, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{head}: {}", answer.text());
        let event = gpu.event_of(&answer).await;
        assert_eq!(event["account_id"], "anonymous", "{head}");
        assert_eq!(event["path"], serde_json::json!(["fra/edge", "ams/gpu0"]));
        assert_eq!(
            (&event["attempts"], &event["model_id"]),
            (&1.into(), &"m".into())
        );
        assert_eq!(event["source_site"], "fra");
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
