//! A node whose process is followed by another one: to the others it stays the same node.

use infergate::parts::Clock;
use infergate_core::Millis;
use tempfile::TempDir;

use super::member;
use crate::support::{
    Cluster, Node, ScriptedServer, SimulatedServer, TestClient, chat, endpoint, eventually, model,
};
use crate::upgrade::{upgrade, with_state};

const CHAT: &str = "/v1/chat/completions";
/// Longer than the silence after which a node that is lost has lost a request.
const SILENCE: Millis = Millis::from_secs(4);

/// A node without servers, `edge`, before one with two: `m` answers at once, `slow` when it is told to.
struct Fixture {
    fleet: Cluster,
    slow: ScriptedServer,
    _fast: SimulatedServer,
    _states: [TempDir; 2],
}

impl Fixture {
    async fn start() -> Fixture {
        let states = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (fast, slow) = (SimulatedServer::fast().await, ScriptedServer::held().await);
        let models = |servers: [Vec<String>; 2]| {
            let [fast, slow] = servers;
            format!(
                "models:\n{}{}",
                model("m", &fast, ""),
                model("slow", &slow, "")
            )
        };
        let nothing = "models:\n\
             \x20 - { id: m, task: text-generation, backend: openai, endpoints: [] }\n\
             \x20 - { id: slow, task: text-generation, backend: openai, endpoints: [] }\n";
        let serving = models([
            vec![endpoint(fast.address, 4)],
            vec![endpoint(slow.address, 4)],
        ]);
        let fleet = Cluster::start(&[
            member("edge", "fra", &with_state(states[0].path(), nothing)),
            member("gpu", "ams", &with_state(states[1].path(), &serving)),
        ])
        .await;
        eventually("what the other node serves is known", async || {
            let other = other(&fleet.nodes[0]).await;
            (other["models"] == 2 && other["proven"] == true).then_some(())
        })
        .await;
        Fixture {
            fleet,
            slow,
            _fast: fast,
            _states: states,
        }
    }

    /// A request at the slow server, by way of both nodes.
    async fn waiting(&self) -> TestClient {
        let mut client = self.fleet.nodes[0].client().await;
        client.post("", CHAT, &chat("slow", "")).await;
        eventually("it is at the server", async || {
            (self.slow.requests().len() == 1).then_some(())
        })
        .await;
        client
    }
}

/// The other node, as this one sees it.
async fn other(node: &Node) -> serde_json::Value {
    node.state().await["nodes"][0].clone()
}

#[tokio::test]
async fn a_node_with_servers_answers_what_it_was_sent_before_and_after_its_upgrade() {
    let mut at = Fixture::start().await;
    let generation = other(&at.fleet.nodes[0]).await["generation"].clone();
    assert!(generation.is_u64(), "{generation}");
    let mut waiting = at.waiting().await;
    let _successor = upgrade(&at.fleet.nodes[1]).await;
    let clock = Clock::start();
    let begin = clock.now();
    while clock.now().since(begin) < SILENCE {
        let answer = at.fleet.nodes[0].posting("", "").await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    at.slow.next();
    assert_eq!(waiting.response().await.status, 200);
    assert!(at.fleet.nodes[1].ended().await.success());
    let seen = other(&at.fleet.nodes[0]).await;
    assert_eq!(seen["generation"], generation);
    let log = at.fleet.nodes[0].log();
    assert!(
        !log.contains("node lost") && !log.contains("node restarted"),
        "{log}"
    );
    assert!(
        !at.fleet.nodes[1].log().contains("has the same node.id"),
        "{}",
        at.fleet.nodes[1].log()
    );
}

#[tokio::test]
async fn a_node_that_forwards_serves_on_through_two_upgrades() {
    let mut at = Fixture::start().await;
    let generation = other(&at.fleet.nodes[1]).await["generation"].clone();
    let mut waiting = at.waiting().await;
    let successor = upgrade(&at.fleet.nodes[0]).await;
    for _ in 0..2 {
        let answer = at.fleet.nodes[0].posting("", "").await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    at.slow.next();
    assert_eq!(waiting.response().await.status, 200);
    assert!(at.fleet.nodes[0].ended().await.success());
    let _second = upgrade(&at.fleet.nodes[0]).await;
    let answer = at.fleet.nodes[0].posting("", "").await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    successor.ended().await;
    assert_eq!(other(&at.fleet.nodes[1]).await["generation"], generation);
}
