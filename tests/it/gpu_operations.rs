//! Operation of managed models: restarts slot by slot, updates on disk, further slots, removal; real processes on simulated cards.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::gpu_host::{
    ask_as, becomes, gpu, host, model, pages_held, post_admin, serve, slot,
};
use crate::support::{Node, eventually};

#[tokio::test]
async fn a_drained_device_gets_no_load_and_pins_and_closed_devices_outlast_the_gateway() {
    let dir = tempfile::tempdir().unwrap();
    let one = "{ name: sim0, total_mib: 24000 }";
    let two = format!("{one}, {{ name: sim1, total_mib: 24000 }}");
    let text = host(dir.path(), &[model("m", 16_000, "", "")]).replace(one, &two);
    let mut node = Node::start(&text).await;
    serve(&node, "m").await;
    let device = |slot: &Value| slot["leases"][0]["device"].as_str().unwrap().to_owned();
    let first = device(&becomes(&node, "m", "ready").await);
    let path = |word: &str| format!("/gpu/devices/{first}/{word}");
    assert_eq!(post_admin(&node, &path("drain")).await.status, 200);
    becomes(&node, "m", "cold").await;
    serve(&node, "m").await;
    let second = device(&becomes(&node, "m", "ready").await);
    assert_ne!(second, first);
    assert_eq!(post_admin(&node, "/gpu/models/m/pin").await.status, 200);
    node.signal("TERM");
    node.ended().await;
    node.start_again().await;
    // Nothing asks for it: it is loaded because it is pinned.
    let again = becomes(&node, "m", "ready").await;
    assert_eq!(device(&again), second);
    let closed = async |node: &Node| {
        let report = gpu(node).await;
        let devices = report["devices"].as_array().unwrap().iter();
        let mut own = devices.filter(|device| device["id"] == *first);
        own.next().unwrap()["closed"].clone()
    };
    assert_eq!(closed(&node).await, "draining");
    assert_eq!(post_admin(&node, &path("cordon")).await.status, 200);
    assert_eq!(closed(&node).await, "cordoned");
    assert_eq!(post_admin(&node, &path("uncordon")).await.status, 200);
    assert_eq!(closed(&node).await, Value::Null);
    let unknown = post_admin(&node, "/gpu/devices/GPU-none/drain").await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
}

async fn slots(node: &Node, model: &str) -> Vec<Value> {
    let report = gpu(node).await;
    let slots = report["slots"].as_array().unwrap().iter();
    slots
        .filter(|slot| slot["model"] == model)
        .cloned()
        .collect()
}

fn ready_pids(slots: &[Value]) -> Vec<u64> {
    let ready = slots.iter().filter(|slot| slot["state"] == "ready");
    ready.filter_map(|slot| slot["pid"].as_u64()).collect()
}

/// A script that starts a simulated server, and its model.
fn scripted(dir: &Path, update: &str) -> (PathBuf, String) {
    let script = dir.join("server.sh");
    write_script(&script, 1);
    let card = dir.join("cards/sim0");
    let line = format!(
        "  - {{ id: m, task: text-generation, backend: openai, vram: {{ mib: 5000 }}, replicas: {{ min: 2, max: 2 }}, \
         process: {{ update: {update}, command: [\"{}\", \"{{port}}\", \"{}\"] }} }}\n",
        script.display(),
        card.display(),
    );
    (script, line)
}

/// Writes the script beside its place and moves it there, as installers do.
fn write_script(path: &Path, version: u32) {
    let text = format!(
        "#!/bin/sh\n# {version}\nexec {} simulate --address \"127.0.0.1:$1\" --vram-card \"$2\" --vram-mib 5000 --ttft-ms 1 --tokens-per-sec 0\n",
        env!("CARGO_BIN_EXE_infergate")
    );
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn a_program_that_changes_on_disk_is_named_and_restarted_where_the_model_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (script, line) = scripted(dir.path(), "manual");
    let node = Node::start(&host(dir.path(), std::slice::from_ref(&line))).await;
    let both_ready = async || {
        let pids = ready_pids(&slots(&node, "m").await);
        (pids.len() == 2).then_some(pids)
    };
    let before = eventually("both slots are ready", both_ready).await;
    write_script(&script, 2);
    eventually("the update is named", async || {
        let slots = slots(&node, "m").await;
        let mut updates = slots.iter().map(|slot| &slot["update_available"]);
        updates.all(|update| *update == true).then_some(())
    })
    .await;
    assert_eq!(ready_pids(&slots(&node, "m").await), before);
    // The key itself restarts nothing; what it allows does.
    let rolling = line.replace("update: manual", "update: rolling");
    assert_eq!(node.reload(&host(dir.path(), &[rolling])).await.status, 200);
    eventually("both processes are new, one after the other", async || {
        let pids = ready_pids(&slots(&node, "m").await);
        assert!(!pids.is_empty(), "a slot always serves");
        serve(&node, "m").await;
        let is_new = pids.len() == 2 && pids.iter().all(|pid| !before.contains(pid));
        is_new.then_some(())
    })
    .await;
    let shown = slots(&node, "m").await;
    assert!(shown.iter().all(|slot| slot["update_available"] == false));
}

#[tokio::test]
async fn an_order_may_wait_for_the_state_that_it_is_for() {
    let dir = tempfile::tempdir().unwrap();
    let slow = "\"--load-mib-per-sec\", \"16000\", \"--ttft-ms\"";
    let models = [
        model("m", 8000, "", "").replace("\"--ttft-ms\"", slow),
        model("huge", 99_000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models)).await;
    let reached = post_admin(&node, "/gpu/models/m/load?wait_secs=60").await;
    assert_eq!(
        (reached.status, &reached.json()["reached"]),
        (200, &json!(true))
    );
    let before = slot(&node, "m").await;
    assert_eq!(
        (&before["state"], &before["reason"]),
        (&json!("ready"), &json!("command"))
    );
    let reached = post_admin(&node, "/gpu/models/m/restart?wait_secs=60").await;
    assert_eq!(reached.status, 200, "{}", reached.text());
    let after = slot(&node, "m").await;
    assert_eq!(
        (&after["state"], &after["reason"]),
        (&json!("ready"), &json!("restart"))
    );
    assert_ne!(after["pid"], before["pid"]);
    let reached = post_admin(&node, "/gpu/models/m/unload?wait_secs=60").await;
    assert_eq!(reached.status, 200, "{}", reached.text());
    assert_eq!(slot(&node, "m").await["state"], "cold");
    assert_eq!(pages_held(dir.path()), 0);
    let late = post_admin(&node, "/gpu/models/huge/load?wait_secs=1").await;
    assert_eq!(late.status, 504, "{}", late.text());
}

#[tokio::test]
async fn waiting_requests_load_a_further_slot_which_leaves_when_it_is_not_needed() {
    let dir = tempfile::tempdir().unwrap();
    let line = model(
        "m",
        6000,
        ", parallel: 1",
        ", replicas: { max: 2 }, keep_alive_secs: 1, queue: { capacity: 100 }",
    );
    let line = line.replace("--ttft-ms\", \"1\"", "--ttft-ms\", \"400\"");
    let node = Node::start(&host(dir.path(), &[line])).await;
    serve(&node, "m").await;
    assert_eq!(ready_pids(&slots(&node, "m").await).len(), 1);
    let asked = (0..30).map(|_| ask_as(&node, "", "m"));
    let answered = futures_util::future::join_all(asked);
    let grown = eventually("a second slot serves", async || {
        let slots = slots(&node, "m").await;
        (ready_pids(&slots).len() == 2).then_some(slots)
    });
    let (responses, grown) = tokio::join!(answered, grown);
    assert_eq!(grown[1]["reason"], "growth");
    for response in responses {
        assert_eq!(response.status, 200, "{}", response.text());
    }
    eventually("all slots leave", async || {
        let slots = slots(&node, "m").await;
        slots
            .iter()
            .all(|slot| slot["state"] == "cold")
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_removed_model_finishes_its_answers_and_stops_and_may_come_back_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let other = model("other", 4000, "", "");
    let slow = model("m", 8000, "", "").replace(
        "\"--tokens-per-sec\", \"0\"",
        "\"--tokens-per-sec\", \"20\"",
    );
    let both = host(dir.path(), &[slow, other.clone()]);
    let node = Node::start(&both).await;
    serve(&node, "m").await;
    serve(&node, "other").await;
    let untouched = slot(&node, "other").await;
    let alone = host(dir.path(), &[other]);
    let long = json!({
        "model": "m", "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 40, "ignore_eos": true
    })
    .to_string();
    let mut answer = node.client().await;
    answer.post("", "/v1/chat/completions", &long).await;
    eventually("the answer runs", async || {
        (node.permits_used().await > 0).then_some(())
    })
    .await;
    assert_eq!(node.reload(&alone).await.status, 200);
    eventually("it drains", async || {
        let slots = slots(&node, "m").await;
        slots
            .iter()
            .any(|slot| slot["state"] == "draining")
            .then_some(())
    })
    .await;
    // It comes back with a queue of its own; the process of before still answers.
    assert_eq!(node.reload(&both).await.status, 200);
    assert_eq!(answer.response().await.status, 200);
    serve(&node, "m").await;
    assert_eq!(node.reload(&alone).await.status, 200);
    eventually("no slot of it is left", async || {
        slots(&node, "m").await.is_empty().then_some(())
    })
    .await;
    assert_eq!(
        becomes(&node, "other", "ready").await["pid"],
        untouched["pid"]
    );
}
