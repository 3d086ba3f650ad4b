//! Models on one simulated card: loaded on demand, evicted for others, restarted, and gone with their gateway.
//!
//! Processes, leases and memory are real; only the card is simulated.

use serde_json::Value;

use crate::support::gpu_host::{
    CARD_MIB, ask_as, becomes, card_is_free, command, gpu, host, host_with, model, order,
    pages_held, serve, signal, slot,
};
use crate::support::{Node, TestClient, eventually};

#[tokio::test]
async fn models_share_a_card_and_make_room_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        model("small", 7000, "", ""),
        model("middle", 11_000, "", ""),
        model("large", 16_000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    for name in ["small", "middle"] {
        assert_eq!(slot(&node, name).await["state"], "cold");
        serve(&node, name).await;
        becomes(&node, name, "ready").await;
    }
    // The card is full: one of them leaves.
    serve(&node, "large").await;
    becomes(&node, "large", "ready").await;
    let device = gpu(&node).await["devices"][0].clone();
    assert!(
        device["leased_mib"].as_u64().unwrap() <= CARD_MIB,
        "{device}"
    );
    assert_eq!(slot(&node, "middle").await["state"], "cold");
    let state = node.state().await;
    let endpoints = state["models"].as_array().unwrap().iter();
    let endpoints: Vec<&Value> = endpoints.map(|model| &model["endpoints"][0]).collect();
    assert_eq!(endpoints[1]["url"], "slot:middle#0");
    assert_eq!(endpoints[1]["slot"], "cold");
    assert!(endpoints[2]["slot"].is_null(), "{}", endpoints[2]);
    for name in ["middle", "small", "large", "middle"] {
        serve(&node, name).await;
    }
}

#[tokio::test]
async fn many_requests_for_a_model_that_is_not_loaded_are_one_load() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model(
        "m",
        8000,
        ", parallel: 8",
        ", queue: { capacity: 200 }",
    )];
    let node = Node::start(&host(dir.path(), &models)).await;
    let asked = (0..60).map(|_| ask_as(&node, "", "m"));
    let responses = futures_util::future::join_all(asked).await;
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn a_gateway_that_is_killed_leaves_no_process_and_the_next_one_begins_again() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 8000, "", "")];
    let mut node = Node::start(&host(dir.path(), &models)).await;
    for _ in 0..2 {
        serve(&node, "m").await;
        assert!(pages_held(dir.path()) > 0);
        node.signal("KILL");
        node.ended().await;
        card_is_free(dir.path()).await;
        node.start_again().await;
    }
    serve(&node, "m").await;
    node.signal("TERM");
    node.ended().await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn a_process_that_is_killed_is_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 8000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    let before = becomes(&node, "m", "ready").await;
    signal(&before, "-KILL");
    eventually("the slot has failed", async || {
        (slot(&node, "m").await["state"] != "ready").then_some(())
    })
    .await;
    serve(&node, "m").await;
    let after = becomes(&node, "m", "ready").await;
    assert_ne!(after["instance"], before["instance"]);
    assert_eq!(after["loads"], 2);
}

/// Process that holds the lease of a slot: the parent of its server.
fn keeper_of(slot: &Value) -> Value {
    let pid = slot["pid"].as_u64().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1);
    let parent: u64 = parent.unwrap().parse().unwrap();
    serde_json::json!({ "pid": parent })
}

#[tokio::test]
async fn a_keeper_that_is_killed_is_a_crash_of_its_model() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 8000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    let before = becomes(&node, "m", "ready").await;
    signal(&keeper_of(&before), "-KILL");
    eventually("the slot has failed", async || {
        (slot(&node, "m").await["pid"] != before["pid"]).then_some(())
    })
    .await;
    serve(&node, "m").await;
    let after = becomes(&node, "m", "ready").await;
    assert_eq!(after["loads"], 2, "{after}");
    order(&node, "m", "unload").await;
    becomes(&node, "m", "cold").await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn requests_right_after_a_crash_wait_for_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 8000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    for _ in 0..2 {
        serve(&node, "m").await;
        let before = becomes(&node, "m", "ready").await;
        signal(&before, "-KILL");
        // Its socket is closed a little before the gateway hears of its end. Until then the kernel takes connections, and
        // a request that went out on one may have begun.
        let address = format!("127.0.0.1:{}", before["port"]);
        eventually("its socket is closed", async || {
            tokio::net::TcpStream::connect(&address).await.err()
        })
        .await;
        let requests = (0..8).map(|_| ask_as(&node, "", "m"));
        for answer in futures_util::future::join_all(requests).await {
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
        let after = becomes(&node, "m", "ready").await;
        assert_ne!(after["instance"], before["instance"]);
    }
}

#[tokio::test]
async fn a_model_that_never_fits_or_never_starts_refuses_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let failing = "  - { id: failing, task: text-generation, backend: openai, vram: { mib: 100 }, \
                   process: { command: [\"sh\", \"-c\", \"echo no weights; exit 3\"] } }\n";
    let models = [
        model("huge", 99_000, "", ""),
        failing.to_owned(),
        model("m", 100, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    eventually("the huge model is refused", async || {
        let response = ask_as(&node, "x-infergate-timeout-ms: 5000\r\n", "huge").await;
        (response.status == 502).then_some(())
    })
    .await;
    let refused = ask_as(&node, "x-infergate-timeout-ms: 6000\r\n", "failing").await;
    assert!(
        [408, 429, 502].contains(&refused.status),
        "{}",
        refused.text()
    );
    let shown = slot(&node, "failing").await;
    assert!(
        shown["problem"].as_str().unwrap().contains("no weights"),
        "{shown}"
    );
    let instance = shown["instance"].as_str().unwrap().replace('#', "%23");
    let log = node.get(&format!("/gpu/instances/{instance}/logs")).await;
    assert_eq!(log.json()["log"], "no weights\n", "{}", log.text());
    // Others go on.
    serve(&node, "m").await;
}

#[tokio::test]
async fn an_idle_model_is_unloaded_and_orders_are_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        model("brief", 8000, "", ", keep_alive_secs: 1"),
        model("acme/m", 8000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "brief").await;
    becomes(&node, "brief", "cold").await;
    let post = async |path: &str| {
        let mut client = TestClient::connect(node.admin).await;
        client.post("", path, "").await;
        client.response().await.status
    };
    assert_eq!(post("/gpu/models/acme%2Fm/load").await, 200);
    becomes(&node, "acme/m", "ready").await;
    assert_eq!(post("/gpu/models/acme/m/unload").await, 200);
    becomes(&node, "acme/m", "cold").await;
    assert_eq!(post("/gpu/models/nobody/load").await, 404);
    assert_eq!(post("/gpu").await, 405);
}

#[tokio::test]
async fn memory_that_a_model_gives_back_is_the_next_ones_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // One that loads and uses no memory yet: so the watch over the ledger gives nothing back by itself.
    let loads = command("loads", 1000, "[sleep, \"300\"]", "");
    let models = [
        loads,
        model("stays", 8000, "", ""),
        model("first", 12_000, "", ""),
        model("second", 12_000, "", ""),
    ];
    let parallel = "  load_parallel: { per_device: 4, per_host: 4 }\n";
    let node = Node::start(&host_with(dir.path(), parallel, &models)).await;
    for name in ["stays", "first"] {
        serve(&node, name).await;
    }
    let stays = becomes(&node, "stays", "ready").await;
    order(&node, "loads", "load").await;
    becomes(&node, "loads", "loading").await;
    // Readings of the devices fall between the end of a lease and its way out of the ledger.
    for _ in 0..12 {
        for (leaves, comes) in [("first", "second"), ("second", "first")] {
            order(&node, leaves, "unload").await;
            becomes(&node, leaves, "cold").await;
            serve(&node, comes).await;
            assert_eq!(slot(&node, "stays").await["pid"], stays["pid"]);
        }
    }
}

#[tokio::test]
async fn a_reload_restarts_only_the_model_whose_process_changed() {
    let dir = tempfile::tempdir().unwrap();
    let with = |context: &str| {
        let models = [
            model("stays", 8000, "", ""),
            model("changes", 8000, context, ""),
        ];
        host(dir.path(), &models)
    };
    let node = Node::start(&with("")).await;
    for name in ["stays", "changes"] {
        serve(&node, name).await;
    }
    let before = [
        becomes(&node, "stays", "ready").await,
        becomes(&node, "changes", "ready").await,
    ];
    let unrelated = with("").replace("models:", "timeouts: { ceiling_secs: 500 }\nmodels:");
    assert_eq!(node.reload(&unrelated).await.status, 200);
    serve(&node, "stays").await;
    assert_eq!(slot(&node, "changes").await["pid"], before[1]["pid"]);
    assert_eq!(node.reload(&with(", context: 4096")).await.status, 200);
    eventually("the changed model has another process", async || {
        let shown = slot(&node, "changes").await;
        let is_new = shown["state"] == "ready" && shown["pid"] != before[1]["pid"];
        if !is_new {
            serve(&node, "changes").await;
        }
        is_new.then_some(())
    })
    .await;
    assert_eq!(slot(&node, "stays").await["pid"], before[0]["pid"]);
    // A model that the file has no more ends, and its memory is free.
    let rest = [model("stays", 8000, "", "")];
    let held = pages_held(dir.path());
    assert_eq!(node.reload(&host(dir.path(), &rest)).await.status, 200);
    eventually("the removed model's memory is free", async || {
        (pages_held(dir.path()) < held).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_order_before_the_estimates_are_made_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    for nth in 0..4000 {
        std::fs::write(files.join(format!("{nth}")), "").unwrap();
    }
    // The sizes of all these are asked for before the pool has a model.
    let path = format!(", model_path: {}", files.display());
    let mut models: Vec<String> = (0..20)
        .map(|nth| model(&format!("slow{nth}"), 100, &path, ""))
        .collect();
    models.push(model("m", 100, "", ""));
    let node = Node::start(&host(dir.path(), &models)).await;
    order(&node, "m", "load").await;
    becomes(&node, "m", "ready").await;
}
