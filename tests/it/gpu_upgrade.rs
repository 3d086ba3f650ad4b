//! A gateway with models on a card that is replaced by another process while it serves.
//!
//! Processes, leases and memory are real; only the card is simulated.

use std::path::Path;

use serde_json::Value;

use crate::support::gpu_host::{
    becomes, card_is_free, gpu, host, model, order, pages_held, serve, slot,
};
use crate::support::{Node, TestClient, chat, eventually};
use crate::upgrade::{command, upgrade, upgrade_with, with_state};

const CHAT: &str = "/v1/chat/completions";

/// Model whose answers take seconds when they are long: 30 tokens a second.
fn slow(id: &str, mib: u64, process: &str) -> String {
    model(id, mib, process, "").replace("\"0\"", "\"30\"")
}

/// Begins a stream of so many tokens.
async fn stream(node: &Node, model: &str, tokens: u32) -> TestClient {
    let more = format!(", \"stream\": true, \"max_tokens\": {tokens}, \"ignore_eos\": true");
    let mut client = node.client().await;
    client.post("", CHAT, &chat(model, &more)).await;
    client.saw("data:").await;
    client
}

async fn ends_well(mut client: TestClient) {
    let answer = client.response().await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());
}

fn identity(slot: &Value) -> [&Value; 4] {
    ["pid", "port", "instance", "leases"].map(|key| &slot[key])
}

fn loads(slot: &Value) -> (&Value, &Value) {
    (&slot["loads"], &slot["adopted"])
}

fn config(dir: &Path, models: &[String]) -> String {
    with_state(&dir.join("state"), &host(dir, models))
}

async fn start(dir: &Path, models: &[String]) -> Node {
    std::fs::create_dir(dir.join("state")).unwrap();
    Node::start(&config(dir, models)).await
}

#[tokio::test]
async fn models_are_the_successors_without_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let models = [slow("m", 8000, ""), model("acme/n-1", 6000, "", "")];
    let mut node = start(dir.path(), &models).await;
    serve(&node, "acme/n-1").await;
    let running = stream(&node, "m", 120).await;
    let before = [slot(&node, "m").await, slot(&node, "acme/n-1").await];
    let first = upgrade(&node).await;
    for former in &before {
        let name = former["model"].as_str().unwrap();
        let present = becomes(&node, name, "ready").await;
        assert_eq!(identity(&present), identity(former));
        assert_eq!(loads(&present), (&0.into(), &1.into()));
    }
    serve(&node, "acme/n-1").await;
    ends_well(running).await;
    assert!(node.ended().await.success());
    // The processes have lost one of two life lines, and the next gateway is as good.
    let _second = upgrade(&node).await;
    first.ended().await;
    serve(&node, "m").await;
    let present = becomes(&node, "m", "ready").await;
    assert_eq!(identity(&present), identity(&before[0]));
    eventually("the leases are on the card", async || {
        (gpu(&node).await["devices"][0]["leased_mib"] == 14_000).then_some(())
    })
    .await;
    for name in ["acme%2Fn-1", "m"] {
        order(&node, name, "unload").await;
    }
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_model_does_not_leave_under_a_request_of_the_former_process() {
    let dir = tempfile::tempdir().unwrap();
    let models = [slow("m", 20_000, ""), model("n", 20_000, "", "")];
    let mut node = start(dir.path(), &models).await;
    let running = stream(&node, "m", 240).await;
    let _successor = upgrade(&node).await;
    becomes(&node, "m", "ready").await;
    // The card has room for one.
    let mut other = node.client().await;
    other.post("", CHAT, &chat("n", "")).await;
    order(&node, "m", "unload").await;
    becomes(&node, "m", "draining").await;
    assert!(node.is_running(), "its stream goes on");
    ends_well(running).await;
    assert_eq!(other.response().await.status, 200);
    assert!(node.ended().await.success());
    order(&node, "n", "unload").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_request_in_the_former_process_has_its_model_loaded_by_the_successor() {
    let dir = tempfile::tempdir().unwrap();
    let models = [slow("m", 8000, ""), model("n", 6000, "", "")];
    let mut node = start(dir.path(), &models).await;
    let running = stream(&node, "m", 300).await;
    // A connection of the former process, whose request comes when another one serves.
    let mut late = node.client().await;
    late.post("", CHAT, &chat("m", ", \"max_tokens\": 1")).await;
    assert_eq!(late.response().await.status, 200);
    let mut late = node.client().await;
    let _successor = upgrade(&node).await;
    late.post("", CHAT, &chat("n", "")).await;
    let answer = late.response().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(node.is_running(), "it has served it");
    assert_eq!(slot(&node, "n").await["loads"], 1);
    ends_well(running).await;
    assert!(node.ended().await.success());
    for name in ["m", "n"] {
        order(&node, name, "unload").await;
    }
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_model_with_new_settings_ends_after_the_requests_of_the_former_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = start(dir.path(), &[slow("m", 20_000, "")]).await;
    let running = stream(&node, "m", 240).await;
    let before = slot(&node, "m").await;
    let changed = [slow("m", 20_000, ", context: 4096")];
    // A file that the former process does not read.
    let file = dir.path().join("next.yaml");
    std::fs::write(&file, node.config_text(&config(dir.path(), &changed))).unwrap();
    let _successor = upgrade_with(file).await;
    let mut other = node.client().await;
    other
        .post("", CHAT, &chat("m", ", \"max_tokens\": 1"))
        .await;
    ends_well(running).await;
    assert_eq!(other.response().await.status, 200);
    assert!(node.ended().await.success());
    let after = becomes(&node, "m", "ready").await;
    assert_ne!(after["instance"], before["instance"]);
    assert_eq!(loads(&after), (&1.into(), &0.into()));
    order(&node, "m", "unload").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_successor_that_fails_in_its_turn_leaves_the_host_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 8000, "", ""), model("n", 6000, "", "")];
    let mut node = start(dir.path(), &models).await;
    serve(&node, "m").await;
    let before = slot(&node, "m").await;
    // An address that another program has: the successor learns of it in its turn.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let good = std::fs::read_to_string(node.config_path()).unwrap();
    let (admin, other) = (node.admin.to_string(), taken.local_addr().unwrap());
    std::fs::write(node.config_path(), good.replace(&admin, &other.to_string())).unwrap();
    let refused = command(&node).await;
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{words}");
    assert!(words.contains("cannot listen"), "{words}");
    std::fs::write(node.config_path(), good).unwrap();
    // It loads and unloads as before.
    serve(&node, "n").await;
    assert_eq!(identity(&slot(&node, "m").await), identity(&before));
    order(&node, "n", "unload").await;
    becomes(&node, "n", "cold").await;
    node.signal("TERM");
    assert!(node.ended().await.success());
    assert_eq!(pages_held(dir.path()), 0);
}
