//! Named tasks over models on one simulated card: a warm candidate goes first, and says how long it stays.

use serde_json::Value;

use crate::support::gpu_host::{ask_as, becomes, host, model, serve, slot};
use crate::support::{Node, TestResponse};

fn served_by(answer: &TestResponse) -> &str {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.header("x-infergate-model").unwrap()
}

#[tokio::test]
async fn a_warm_candidate_goes_before_a_cold_first_one_which_is_loaded_for_the_next_request() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("large", 16_000, "", ""), model("small", 7000, "", "")];
    let tasks = "tasks:\n  - { id: chat, candidates: [large, small] }\n  \
                 - { id: careful, candidates: [large, small], pin_primary: true }\n";
    let node = Node::start(&format!("{}{tasks}", host(dir.path(), &models))).await;
    serve(&node, "small").await;
    becomes(&node, "small", "ready").await;
    let first = ask_as(&node, "", "chat").await;
    assert_eq!(served_by(&first), "small");
    let event = node.event_of(&first).await;
    assert_eq!(
        (&event["model_id"], &event["asked_model_id"]),
        (&"small".into(), &"chat".into())
    );
    // Nothing has asked for it by name.
    becomes(&node, "large", "ready").await;
    assert_eq!(served_by(&ask_as(&node, "", "chat").await), "large");
    assert_eq!(served_by(&ask_as(&node, "", "careful").await), "large");
}

#[tokio::test]
async fn a_pinned_task_waits_for_its_first_candidate() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("large", 16_000, "", ""), model("small", 7000, "", "")];
    let task = "tasks: [{ id: careful, candidates: [large, small], pin_primary: true }]\n";
    let node = Node::start(&format!("{}{task}", host(dir.path(), &models))).await;
    serve(&node, "small").await;
    becomes(&node, "small", "ready").await;
    assert_eq!(served_by(&ask_as(&node, "", "careful").await), "large");
}

#[tokio::test]
async fn the_model_that_served_a_task_stays_for_as_long_as_the_task_says() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        model("stays", 7000, "", ", keep_alive_secs: 1"),
        model("leaves", 7000, "", ""),
    ];
    let tasks = "tasks:\n  - { id: once, candidates: [leaves], keep_alive_secs: 1 }\n  \
                 - { id: again, candidates: [stays], keep_alive_secs: -1 }\n";
    let node = Node::start(&format!("{}{tasks}", host(dir.path(), &models))).await;
    assert_eq!(served_by(&ask_as(&node, "", "again").await), "stays");
    let kept: Value = becomes(&node, "stays", "ready").await;
    assert_eq!(served_by(&ask_as(&node, "", "once").await), "leaves");
    becomes(&node, "leaves", "cold").await;
    // Its own second has passed by now, and its process is the same.
    let now = slot(&node, "stays").await;
    assert_eq!(
        (&now["state"], &now["pid"]),
        (&"ready".into(), &kept["pid"])
    );
    // A request of its own is followed by its own time.
    serve(&node, "stays").await;
    becomes(&node, "stays", "cold").await;
}

#[tokio::test]
async fn the_budget_of_a_task_covers_the_load() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("slow", 7000, "", "").replace(
        "\"--tokens-per-sec\"",
        "\"--load-secs\", \"20\", \"--tokens-per-sec\"",
    )];
    let task = "tasks: [{ id: brief, candidates: [slow], budget_secs: 2 }]\n";
    let node = Node::start(&format!("{}{task}", host(dir.path(), &models))).await;
    let answer = ask_as(&node, "", "brief").await;
    assert!([408, 429].contains(&answer.status), "{}", answer.text());
    assert_ne!(slot(&node, "slow").await["state"], "ready");
}
