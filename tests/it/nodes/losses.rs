//! Nodes that die, drain and come back under requests.

use super::{edge_before, knows_what_serves};
use crate::support::{Server, chat, eventually};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_request_without_a_byte_is_saved_when_the_node_that_has_it_dies() {
    let (slow, fast) = (Server::taking(60_000).await, Server::fast().await);
    let mut fleet = edge_before(&[&slow, &fast], 4).await;
    // Of two nodes with free permits either may be asked: some are held by the slow one.
    let mut held = Vec::new();
    while fleet.nodes[1].permits_used().await < 2 {
        held.push(fleet.nodes[0].posting("", "").await);
        tokio::task::yield_now().await;
    }
    fleet.nodes[1].signal("KILL");
    for posted in held {
        let answer = posted.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        fleet.nodes[2].event_of(&answer).await;
    }
    fleet.nodes[1].ended().await;
    eventually("the lost node is known to be gone", async || {
        let state = fleet.nodes[0].state().await;
        let others = state["nodes"].as_array()?.clone();
        let gone = others
            .iter()
            .any(|other| other["id"] == "gpu0" && other["gone"] == true);
        gone.then_some(())
    })
    .await;
    let after = fleet.nodes[0].post(CHAT, &chat("m", "")).await;
    assert_eq!(after.status, 200);
}

#[tokio::test]
async fn a_stream_whose_node_dies_ends_with_an_error_event_and_its_own_event() {
    let server = Server::start(infergate::simulate::Config {
        ttft_ms: 0,
        tokens_per_sec: 2.0,
        ..Default::default()
    })
    .await;
    let mut fleet = edge_before(&[&server], 4).await;
    let mut client = fleet.nodes[0].posting("", r#","stream":true"#).await.0;
    client.saw("data: ").await;
    fleet.nodes[1].signal("KILL");
    let answer = client.response().await;
    assert!(
        answer.text().contains("upstream_failed"),
        "{}",
        answer.text()
    );
    assert!(!answer.text().contains("[DONE]"));
    let event = fleet.nodes[0].event_of(&answer).await;
    assert_eq!(event["outcome"], "cut-by-backend");
    assert!(event["neurons"].is_null());
    fleet.nodes[1].ended().await;
}

#[tokio::test]
async fn a_node_that_drains_gets_nothing_new_finishes_what_it_has_and_comes_back() {
    let (one, other) = (Server::taking(300).await, Server::fast().await);
    let mut fleet = edge_before(&[&one, &other], 4).await;
    let mut held = Vec::new();
    while fleet.nodes[1].permits_used().await == 0 {
        held.push(fleet.nodes[0].posting("", "").await);
    }
    fleet.nodes[1].signal("TERM");
    for _ in 0..20 {
        let answer = fleet.nodes[0].post(CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    for posted in held {
        assert_eq!(posted.answer().await.status, 200);
    }
    assert!(fleet.nodes[1].ended().await.success());
    fleet.nodes[1].start_again().await;
    knows_what_serves(&fleet.nodes[0], "gpu0").await;
    eventually("the node that came back serves", async || {
        let answer = fleet.nodes[0].post(CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let events = std::fs::read_to_string(fleet.nodes[1].events_path()).ok()?;
        let id = answer.header("x-request-id")?;
        events.contains(id).then_some(())
    })
    .await;
}
