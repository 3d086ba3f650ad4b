//! A frozen node: the process stands still while its kernel goes on acknowledging.
//!
//! No request waits for such a node for long. After it resumes, it starts no request that was given up.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{SERVING_NOTHING, edge_before, member, wait_until_serving_known};
use crate::support::{
    A_WHILE, Cluster, Node, ScriptedServer, SimulatedServer, chat, endpoint, eventually, model,
};

const CHAT: &str = "/v1/chat/completions";

/// Far above what is promised, for a busy machine, and far below every deadline.
const SOON: Duration = Duration::from_secs(30);

/// Forwards of `node` that its fleet has lost, on whatever way.
async fn lost_nodes_metric(node: &Node) -> f64 {
    let mut lost = 0.0;
    for result in ["lost", "connect-failed"] {
        let series = format!("infergate_forwards_total{{model=\"m\",result=\"{result}\"}}");
        lost += node.metric(&series).await.unwrap_or(0.0);
    }
    lost
}

/// Waits until `node` has looked at everything that was sent to it while it stood still.
async fn has_caught_up(edge: &Node, name: &str, node: &Node) {
    wait_until_serving_known(edge, name).await;
    node.settles(0, 0).await;
    // What it would begin it would begin by now.
    tokio::time::timeout(A_WHILE, node.settles(1, 0)).await.ok();
    node.settles(0, 0).await;
}

#[tokio::test]
async fn requests_sent_to_a_frozen_node_are_served_elsewhere_and_not_begun_when_it_wakes() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let fleet = edge_before(&[&first, &second], 16).await;
    let (edge, frozen) = (&fleet.nodes[0], &fleet.nodes[1]);
    // Connections to both are kept from here on.
    while first.count("served").await == 0 || second.count("served").await == 0 {
        assert_eq!(edge.post(CHAT, &chat("m", "")).await.status, 200);
    }
    let before = first.count("served").await + second.count("served").await;
    let at_first = first.count("served").await;
    frozen.freeze().await;
    let began = Instant::now();
    let body = chat("m", "");
    let asked = join_all((0..12).map(|_| edge.post(CHAT, &body))).await;
    for answer in &asked {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(
        lost_nodes_metric(edge).await >= 1.0,
        "some had been sent there"
    );
    frozen.signal("CONT");
    has_caught_up(edge, "gpu0", frozen).await;
    assert_eq!(
        first.count("served").await,
        at_first,
        "it begins none of them"
    );
    assert_eq!(second.count("served").await + at_first, before + 12);
}

#[tokio::test]
async fn of_a_node_that_freezes_what_it_had_begun_ends_and_what_was_in_line_is_served_elsewhere() {
    let servers = [ScriptedServer::held().await, ScriptedServer::held().await];
    let serving = |server: &ScriptedServer| {
        let endpoints = [endpoint(server.address, 1)];
        format!("models:\n{}", model("m", &endpoints, ""))
    };
    let members = [
        member("edge", "fra", SERVING_NOTHING),
        member("gpu0", "ams", &serving(&servers[0])),
        member("gpu1", "ams", &serving(&servers[1])),
    ];
    let fleet = Cluster::start(&members).await;
    let edge = &fleet.nodes[0];
    for name in ["gpu0", "gpu1"] {
        wait_until_serving_known(edge, name).await;
    }
    let started = [edge.posting("", "").await, edge.posting("", "").await];
    fleet.nodes[1].settles(1, 0).await;
    fleet.nodes[2].settles(1, 0).await;
    let in_line = edge.posting("", "").await;
    let at = eventually("a node has it in its line", async || {
        for at in [0, 1] {
            if fleet.nodes[1 + at].queue_depth().await == 1 {
                return Some(at);
            }
        }
        None
    })
    .await;
    let (frozen, other) = (&fleet.nodes[1 + at], &servers[1 - at]);
    frozen.freeze().await;
    let began = Instant::now();
    other.next();
    eventually("what was in line is at the other node", async || {
        (other.requests().len() == 2).then_some(())
    })
    .await;
    other.next();
    assert_eq!(in_line.answer().await.status, 200);
    let mut statuses = Vec::new();
    for posted in started {
        let answer = posted.answer().await;
        if answer.status == 502 {
            assert_eq!(answer.header("x-should-retry"), Some("false"));
            assert_eq!(edge.event_of(&answer).await["outcome"], "failed");
        }
        statuses.push(answer.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 502]);
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    frozen.signal("CONT");
    servers[at].next();
    has_caught_up(edge, ["gpu0", "gpu1"][at], frozen).await;
    assert_eq!(
        servers[at].requests().len(),
        1,
        "what was in line is not begun"
    );
}

#[tokio::test]
async fn a_stream_through_a_node_that_freezes_ends_with_an_error_event() {
    let server = SimulatedServer::start(infergate::simulate::Config {
        ttft_ms: 0,
        tokens_per_sec: 4.0,
        ..Default::default()
    })
    .await;
    let fleet = edge_before(&[&server], 4).await;
    let (edge, frozen) = (&fleet.nodes[0], &fleet.nodes[1]);
    let mut client = edge
        .posting("", r#","stream":true,"max_tokens":400"#)
        .await
        .0;
    client.saw("data: ").await;
    frozen.freeze().await;
    let began = Instant::now();
    let answer = client.response().await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert!(answer.text().contains("\"error\""), "{}", answer.text());
    assert!(!answer.text().contains("[DONE]"));
    assert_eq!(edge.event_of(&answer).await["outcome"], "cut-by-backend");
    frozen.signal("CONT");
    eventually("the woken node notices that nobody listens", async || {
        (frozen.permits_used().await == 0).then_some(())
    })
    .await;
}
