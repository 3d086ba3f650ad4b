//! Clients of models on one simulated card: how long a model stays, how often they may cause a load, and their demand.

use serde_json::{Value, json};

use crate::support::gpu_host::{becomes, host, model, order, serve, slot};
use crate::support::{Node, TestResponse, eventually};

const CHAT: &str = "/v1/chat/completions";

fn body(client: &str, model: &str) -> String {
    json!({ "model": model, "x_client_id": client, "messages": [{ "role": "user", "content": "hi" }] })
        .to_string()
}

async fn ask(node: &Node, headers: &str, client: &str, model: &str) -> TestResponse {
    node.post_as(headers, CHAT, &body(client, model)).await
}

/// Demand of a client, as `GET /gpu?clients` shows it: requests, those for a cold model, and loads.
async fn demand(node: &Node, client: &str) -> Option<[u64; 3]> {
    let shown = node.get("/gpu?clients").await;
    assert_eq!(shown.status, 200, "{}", shown.text());
    let report = shown.json();
    let mut clients = report["clients"].as_array().unwrap().iter();
    let own = clients.find(|it| it["client_id"] == client)?;
    assert_eq!(own["model"], "m", "{own}");
    assert!(own["last_seen_at"].is_string(), "{own}");
    let counts = ["requests", "cold_requests", "loads"];
    Some(counts.map(|name| own[name].as_u64().unwrap()))
}

async fn loads(node: &Node) -> Value {
    slot(node, "m").await["loads"].clone()
}

#[tokio::test]
async fn the_model_that_served_a_client_stays_for_as_long_as_its_profile_says() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 7000, "", "")];
    let more = "tasks: [{ id: chat, candidates: [m], keep_alive_secs: -1 }]\n\
                clients: [{ client_id: \"once*\", keep_alive_secs: 1 }]\n";
    let node = Node::start(&format!("{}{more}", host(dir.path(), &models))).await;
    for name in ["m", "chat"] {
        let answer = ask(&node, "", "once-1", name).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        becomes(&node, "m", "cold").await;
    }
}

#[tokio::test]
async fn demand_is_shown_by_client_and_model_and_only_where_a_client_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 7000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    assert_eq!(ask(&node, "", "first", "m").await.status, 200);
    assert_eq!(ask(&node, "", "first", "m").await.status, 200);
    assert_eq!(ask(&node, "", "second", "m").await.status, 200);
    serve(&node, "m").await;
    assert_eq!(demand(&node, "first").await, Some([2, 1, 1]));
    assert_eq!(demand(&node, "second").await, Some([1, 0, 0]));
    let all = node.get("/gpu?clients").await.json();
    assert_eq!(all["clients"].as_array().unwrap().len(), 2, "{all}");
    assert!(node.get("/gpu").await.json().get("clients").is_none());
}

#[tokio::test]
async fn a_client_causes_a_second_load_once_its_cooldown_is_over_and_is_served_by_the_load_of_others()
 {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 7000, "", "")];
    let rest = |clients: &str| format!("{}{clients}", host(dir.path(), &models));
    let cooldown = "clients: [{ client_id: \"tagger*\", cooldown_secs: 600000 }]\n";
    let node = Node::start(&rest(cooldown)).await;
    assert_eq!(ask(&node, "", "tagger-1", "m").await.status, 200);
    assert_eq!(demand(&node, "tagger-1").await, Some([1, 1, 1]));
    order(&node, "m", "unload").await;
    becomes(&node, "m", "cold").await;

    // Alone it waits for its whole time, and hears when to come again.
    let held = ask(&node, "x-infergate-timeout-ms: 4000\r\n", "tagger-2", "m").await;
    assert_eq!(held.status, 429, "{}", held.text());
    assert_eq!(held.header("retry-after"), Some("120"));
    let event = node.event_of(&held).await;
    assert_eq!(event["error_code"], "3040", "{event}");
    assert!(
        event["queuing_time_ms"].as_u64().unwrap() >= 3900,
        "{event}"
    );
    // One that does not wait does not count either.
    let busy = ask(&node, "x-infergate-queue: reject\r\n", "tagger-2", "m").await;
    assert_eq!(
        (busy.status, busy.header("retry-after")),
        (429, Some("120"))
    );
    assert_eq!(slot(&node, "m").await["state"], "cold");
    assert_eq!(loads(&node).await, 1);
    assert_eq!(demand(&node, "tagger-2").await, Some([2, 2, 0]));

    // The load of another client serves it.
    let mut waiting = node.client().await;
    waiting.post("", CHAT, &body("tagger-2", "m")).await;
    node.settles(0, 1).await;
    assert_eq!(ask(&node, "", "chat", "m").await.status, 200);
    assert_eq!(waiting.response().await.status, 200);
    assert_eq!(loads(&node).await, 2);
    assert_eq!(demand(&node, "chat").await, Some([1, 1, 1]));
    assert_eq!(demand(&node, "tagger-2").await, Some([3, 3, 0]));

    // Without a cooldown it causes a load again.
    order(&node, "m", "unload").await;
    becomes(&node, "m", "cold").await;
    assert_eq!(node.reload(&rest("")).await.status, 200);
    assert_eq!(ask(&node, "", "tagger-3", "m").await.status, 200);
    eventually("the load is counted", async || {
        (loads(&node).await == 3).then_some(())
    })
    .await;
}
