//! Nodes that die, drain and come back under requests.

use super::{SERVING_NOTHING, edge_before, member, wait_until_serving_known};
use crate::support::{
    Cluster, Node, ScriptedServer, SimulatedServer, accounts, chat, endpoint, eventually, model,
};

const CHAT: &str = "/v1/chat/completions";

/// Waits until `node` sees that gpu0 is there, and drains or does not.
async fn sees_gpu0(node: &Node, draining: bool) {
    eventually("gpu0 is seen so", async || {
        let state = node.state().await;
        let gpu0 = state["nodes"].as_array()?.iter();
        let gpu0 = gpu0.into_iter().find(|other| other["id"] == "gpu0")?;
        let is_so = gpu0["draining"] == draining && gpu0["gone"] == false && gpu0["models"] == 1;
        let is_so = is_so && (draining || gpu0["proven"] == true);
        is_so.then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_a_node_that_dies_requests_it_had_begun_end_with_502_and_are_begun_nowhere_else() {
    let (slow, fast) = (
        SimulatedServer::taking(60_000).await,
        SimulatedServer::fast().await,
    );
    let mut fleet = edge_before(&[&slow, &fast], 4).await;
    // Of two nodes with free permits either may be asked: some are held by the slow one.
    let mut held = Vec::new();
    let mut started = 0;
    while started < 2 {
        held.push(fleet.nodes[0].posting("", "").await);
        // One by one, so that no queue fills up.
        started = eventually("the request is held or served", async || {
            let started = fleet.nodes[1].permits_used().await;
            (started + fast.count("served").await >= held.len() as u64).then_some(started)
        })
        .await;
    }
    let asked = held.len() as u64;
    fleet.nodes[1].signal("KILL");
    let (mut served, mut ended) = (0, 0);
    for posted in held {
        let answer = posted.answer().await;
        match answer.status {
            200 => {
                fleet.nodes[2].event_of(&answer).await;
                served += 1;
            }
            502 => {
                assert_eq!(fleet.nodes[0].event_of(&answer).await["outcome"], "failed");
                ended += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    assert!(ended >= 2, "{ended} had started");
    assert_eq!(served + ended, asked);
    assert_eq!(fast.count("served").await, served, "none was started twice");
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
    let server = SimulatedServer::start(infergate::simulate::Config {
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
    let (one, other) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let accounts = accounts(", may_force_site: true");
    let serving = |address| {
        let model = model("m", &[endpoint(address, 4)], "");
        format!("{accounts}models:\n{model}")
    };
    let members = [
        member("edge", "fra", &format!("{accounts}{SERVING_NOTHING}")),
        member("gpu0", "one", &serving(one.address)),
        member("gpu1", "other", &serving(other.address)),
    ];
    let mut fleet = Cluster::start(&members).await;
    let only_gpu0 = "authorization: Bearer key-a\r\nx-infergate-site: one\r\n";
    let anywhere = "authorization: Bearer key-b\r\n";
    for name in ["gpu0", "gpu1"] {
        wait_until_serving_known(&fleet.nodes[0], name).await;
    }
    let held = fleet.nodes[0].posting(only_gpu0, "").await;
    fleet.nodes[1].settles(1, 0).await;
    fleet.nodes[1].signal("TERM");
    sees_gpu0(&fleet.nodes[0], true).await;
    for _ in 0..8 {
        let answer = fleet.nodes[0].post_as(anywhere, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        fleet.nodes[2].event_of(&answer).await;
    }
    one.next();
    let finished = held.answer().await;
    assert_eq!(finished.status, 200, "{}", finished.text());
    assert!(fleet.nodes[1].ended().await.success());
    // It has had one request, and nothing that came after it drained.
    assert_eq!(one.requests().len(), 1);
    let events = fleet.nodes[1].events(1).await;
    assert_eq!(events.len(), 1);
    assert_eq!(
        events[0]["request_id"].as_str(),
        finished.header("x-request-id")
    );

    fleet.nodes[1].start_again().await;
    sees_gpu0(&fleet.nodes[0], false).await;
    one.next();
    // Its free permits come with its reports: a late one on a busy machine has it skipped for a moment.
    let answer = eventually("the node that came back serves", async || {
        let request = chat("m", "");
        let answer = fleet.nodes[0].post_as(only_gpu0, CHAT, &request).await;
        let is_known = answer.status != 429;
        is_known.then_some(answer)
    })
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    fleet.nodes[1].event_of(&answer).await;
}
