//! The end of a gateway with models, and the next one that takes them over.
//!
//! Processes, leases and memory are real; only the card is simulated.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::gpu_host::{
    becomes, card_is_free, gpu, host, model, order, pages_held, serve, slot,
};
use crate::support::{Node, chat, eventually};

/// A host whose models are kept for the next gateway.
fn keeping(dir: &Path, models: &[String]) -> String {
    let keep = "gpu:\n  when_exiting: keep\n  orphan_grace_secs: 40\n";
    host(dir, models).replacen("gpu:\n", keep, 1)
}

fn is_alive(pid: &Value) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    status.is_ok_and(|status| !status.contains(") Z "))
}

fn signal(pid: &Value, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.unwrap().success());
}

#[tokio::test]
async fn a_restart_takes_models_over_without_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("acme/m-1", 8000, "", ""), model("n", 6000, "", "")];
    let mut node = Node::start(&keeping(dir.path(), &models)).await;
    serve(&node, "acme/m-1").await;
    serve(&node, "n").await;
    let before = [slot(&node, "acme/m-1").await, slot(&node, "n").await];
    for end in ["TERM", "KILL", "TERM"] {
        node.signal(end);
        node.ended().await;
        assert!(is_alive(&before[0]["pid"]), "models outlive their gateway");
        node.start_again().await;
        for former in &before {
            let name = former["model"].as_str().unwrap();
            serve(&node, name).await;
            let present = becomes(&node, name, "ready").await;
            for key in ["pid", "port", "instance", "leases"] {
                assert_eq!(present[key], former[key]);
            }
            assert_eq!(
                (&present["loads"], &present["adopted"]),
                (&0.into(), &1.into())
            );
        }
        eventually("the leases are on the card", async || {
            (gpu(&node).await["devices"][0]["leased_mib"] == 14_000).then_some(())
        })
        .await;
    }
    for name in ["acme%2Fm-1", "n"] {
        order(&node, name, "unload").await;
    }
    becomes(&node, "n", "cold").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_model_whose_settings_have_changed_is_stopped_and_loaded_anew() {
    let dir = tempfile::tempdir().unwrap();
    let with = |more: &str| keeping(dir.path(), &[model("m", 20_000, more, "")]);
    let mut node = Node::start(&with("")).await;
    serve(&node, "m").await;
    let before = slot(&node, "m").await;
    node.signal("TERM");
    node.ended().await;
    node.write_config(&with(", context: 4096"));
    node.start_again().await;
    // The card has no room for both.
    serve(&node, "m").await;
    let after = becomes(&node, "m", "ready").await;
    assert_ne!(after["instance"], before["instance"]);
    assert_eq!((&after["loads"], &after["adopted"]), (&1.into(), &0.into()));
    assert!(!is_alive(&before["pid"]));
    order(&node, "m", "unload").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_not_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 20_000, ", stop_timeout_secs: 1", "")];
    let mut node = Node::start(&keeping(dir.path(), &models)).await;
    serve(&node, "m").await;
    let before = slot(&node, "m").await;
    node.signal("KILL");
    node.ended().await;
    signal(&before["pid"], "-STOP");
    node.start_again().await;
    serve(&node, "m").await;
    let after = becomes(&node, "m", "ready").await;
    assert_ne!(after["instance"], before["instance"]);
    assert!(!is_alive(&before["pid"]));
    order(&node, "m", "unload").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_holds_up_no_load_of_the_next_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        model("hangs", 8000, ", stop_timeout_secs: 1", ""),
        model("other", 6000, "", ""),
    ];
    let mut node = Node::start(&keeping(dir.path(), &models)).await;
    serve(&node, "hangs").await;
    let before = slot(&node, "hangs").await;
    node.signal("KILL");
    node.ended().await;
    signal(&before["pid"], "-STOP");
    node.start_again().await;
    serve(&node, "other").await;
    assert!(is_alive(&before["pid"]), "its check has not ended");
    eventually("it has ended", async || {
        (!is_alive(&before["pid"])).then_some(())
    })
    .await;
    serve(&node, "hangs").await;
    for name in ["hangs", "other"] {
        order(&node, name, "unload").await;
    }
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn an_update_before_a_restart_is_shown_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("weights.gguf");
    std::fs::write(&weights, "first").unwrap();
    let path = format!(", model_path: {}", weights.display());
    let models = [model("m", 8000, &path, "")];
    let mut node = Node::start(&keeping(dir.path(), &models)).await;
    serve(&node, "m").await;
    let before = becomes(&node, "m", "ready").await;
    node.signal("TERM");
    node.ended().await;
    std::fs::write(&weights, "the second one").unwrap();
    node.start_again().await;
    eventually("the update is shown", async || {
        let present = slot(&node, "m").await;
        (present["update_available"] == true && present["pid"] == before["pid"]).then_some(())
    })
    .await;
    order(&node, "m", "unload").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn models_end_after_their_last_request_and_before_their_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 8000, "", "").replace("\"0\"", "\"30\"");
    let models = [
        slow,
        model("idle", 8000, "", ""),
        model("pinned", 4000, "", ", pin: true"),
    ];
    let mut node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "idle").await;
    becomes(&node, "pinned", "ready").await;
    let stream = ", \"stream\": true, \"max_tokens\": 90, \"ignore_eos\": true";
    let mut client = node.client().await;
    let body = chat("m", stream);
    client.post("", "/v1/chat/completions", &body).await;
    client.saw("data:").await;
    node.signal("TERM");
    becomes(&node, "idle", "cold").await;
    assert_eq!(slot(&node, "m").await["state"], "draining");
    assert_eq!(slot(&node, "pinned").await["state"], "ready");
    let answer = client.response().await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());
    assert!(node.ended().await.success());
    assert_eq!(pages_held(dir.path()), 0);
}

#[tokio::test]
async fn a_second_signal_kills_models_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let stubborn = model("m", 8000, ", stop_timeout_secs: 300", "");
    let stubborn = stubborn.replace("[\"--ttft-ms\"", "[\"--ignore-term\", \"--ttft-ms\"");
    let mut node = Node::start(&host(dir.path(), &[stubborn])).await;
    serve(&node, "m").await;
    let before = slot(&node, "m").await;
    node.signal("TERM");
    becomes(&node, "m", "stopping").await;
    assert!(is_alive(&before["pid"]), "it ignores SIGTERM");
    node.signal("TERM");
    assert!(!node.ended().await.success());
    assert!(!is_alive(&before["pid"]));
    assert_eq!(pages_held(dir.path()), 0);
}
