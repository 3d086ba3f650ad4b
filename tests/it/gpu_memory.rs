//! Memory that processes are seen to use on a simulated card: measured loads, out of memory, use above a lease.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::gpu_host::{becomes, gpu, host, ledger, model, serve, slot};
use crate::support::{Node, chat, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");
/// Memory of a page, MiB.
const PAGE_MIB: u64 = 93;

/// A model of `mib` by its configuration, whose server takes another amount.
fn taking(id: &str, mib: u64, takes_mib: u64, more: &str) -> String {
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: {mib} }}, process: {{ context: 2048, \
         command: [\"{INFERGATE}\", simulate, --address, \"{{host}}:{{port}}\", --vram-card, \"{{gpu_uuids}}\", \
         --vram-mib, \"{takes_mib}\", --ttft-ms, \"1\", --tokens-per-sec, \"0\"]{more} }} }}\n"
    )
}

fn lease_mib(slot: &Value) -> u64 {
    slot["leases"][0]["mib"].as_u64().unwrap_or(0)
}

async fn post(node: &Node, path: &str) {
    let mut client = crate::support::TestClient::connect(node.admin).await;
    client.post("", path, "").await;
    assert_eq!(client.response().await.status, 200);
}

fn lines_with(node: &Node, words: &str) -> usize {
    node.log()
        .lines()
        .filter(|line| line.contains(words))
        .count()
}

fn estimate(file: &Path, state: &Path) -> Value {
    let mut command = Command::new(INFERGATE);
    command.args(["gpu", "estimate", "--context", "2048", "--parallel", "4"]);
    command.args(["--json", "--state-dir"]);
    let shown = command.arg(state).arg(file).output().unwrap();
    serde_json::from_slice(&shown.stdout).unwrap()
}

#[tokio::test]
async fn a_load_is_measured_and_the_next_one_leases_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("weights.bin");
    std::fs::write(&weights, "none").unwrap();
    let path = format!(", model_path: {}", weights.display());
    let models = [taking("m", 4000, 5000, &path)];
    let mut node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    // 54 pages; 3 % and 64 MiB more.
    let (peak, need) = (54 * PAGE_MIB, 5237);
    let measured = async |node: &Node| {
        eventually("the load is measured", async || {
            let model = gpu(node).await["models"][0].clone();
            (model["estimate_source"] == "measured").then_some(model)
        })
        .await
    };
    let shown = measured(&node).await;
    assert_eq!(
        (&shown["estimate_mib"], &shown["measured_mib"]),
        (&need.into(), &need.into())
    );
    let warned = format!("manifest_mib=4000 peak_mib={peak}");
    assert_eq!(lines_with(&node, &warned), 1, "{}", node.log());
    let state = node.dir().join("state");
    let kept = std::fs::read(state.join("gpu/measured.json")).unwrap();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(
        (&kept["version"], &kept["entries"][0]["peaks_mib"][0]),
        (&1.into(), &peak.into())
    );
    let by_command = estimate(&weights, &state);
    assert_eq!(
        (&by_command["estimate_mib"], &by_command["source"]),
        (&need.into(), &"measured".into())
    );
    node.signal("TERM");
    node.ended().await;
    node.start_again().await;
    measured(&node).await;
    serve(&node, "m").await;
    assert_eq!(lease_mib(&slot(&node, "m").await), need);
    assert_eq!(lines_with(&node, "its lease has grown"), 0);
}

#[tokio::test]
async fn a_peak_is_kept_for_the_settings_that_its_process_has() {
    let dir = tempfile::tempdir().unwrap();
    let slow = taking("m", 9000, 5000, "").replace("\"0\"", "\"10\"");
    let config = |model| {
        let rest = host(dir.path(), &[model]);
        format!("timeouts: {{ model_floor_secs: 120 }}\n{rest}")
    };
    let node = Node::start(&config(slow.clone())).await;
    let mut client = node.client().await;
    // Longer than a load is measured for. The card has no room for a second process meanwhile.
    let stream = ", \"stream\": true, \"max_tokens\": 500, \"ignore_eos\": true";
    client
        .post(
            "x-infergate-timeout-ms: 60000\r\n",
            "/v1/chat/completions",
            &chat("m", stream),
        )
        .await;
    client.saw("data:").await;
    let other = slow.replace("context: 2048", "context: 4096");
    assert_eq!(node.reload(&config(other)).await.status, 200);
    eventually("the former process is measured", async || {
        (lines_with(&node, "the memory of a load was measured") == 1).then_some(())
    })
    .await;
    let file = node.dir().join("state/gpu/measured.json");
    let kept = eventually("the peak is kept", async || {
        serde_json::from_slice::<Value>(&std::fs::read(&file).ok()?).ok()
    })
    .await;
    let context = kept["entries"][0]["context"].as_u64();
    assert_eq!(context, Some(2048), "{kept}");
    let shown = gpu(&node).await["models"][0].clone();
    assert_eq!(shown["estimate_source"], "manifest", "{shown}");
}

#[tokio::test]
async fn a_load_that_runs_out_of_memory_is_repeated_at_once_with_more_and_others_make_room() {
    let dir = tempfile::tempdir().unwrap();
    let models = [model("a", 14_000, "", ""), taking("b", 9000, 10_500, "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "a").await;
    // Beside `a` there is room for 9,000 MiB, and for 10,350 there is none.
    serve(&node, "b").await;
    let loaded = becomes(&node, "b", "ready").await;
    assert!(lease_mib(&loaded) >= 10_350, "{loaded}");
    assert_eq!(slot(&node, "a").await["state"], "cold");
    assert_eq!(
        lines_with(&node, "failure=out_of_memory"),
        1,
        "{}",
        node.log()
    );
}

#[tokio::test]
async fn a_process_that_grows_gets_a_larger_lease_where_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let growing = model("m", 4000, "", "").replace(
        "\"--ttft-ms\"",
        "\"--vram-growth-mib\", \"2000\", \"--ttft-ms\"",
    );
    let node = Node::start(&host(dir.path(), &[growing])).await;
    serve(&node, "m").await;
    let pid = slot(&node, "m").await["pid"].clone();
    // A look in the middle of the growth may leave the last 5 %, which is no use over a lease.
    let enough_mib = 6000 * 95 / 100;
    let grown = eventually("the lease has grown", async || {
        let slot = slot(&node, "m").await;
        (lease_mib(&slot) >= enough_mib).then_some(slot)
    })
    .await;
    assert_eq!(grown["pid"], pid);
    eventually("nothing is over its lease", async || {
        let device = gpu(&node).await["devices"][0].clone();
        let leased = device["leased_mib"].as_u64() >= Some(enough_mib);
        (leased && device["over_lease_mib"] == 0).then_some(())
    })
    .await;
    // A second time where a look came in the middle of the growth.
    let grown = lines_with(&node, "its lease has grown");
    assert!((1..=2).contains(&grown), "{grown}");
    post(&node, "/gpu/models/m/unload").await;
    eventually("all is free", async || {
        let device = gpu(&node).await["devices"][0].clone();
        (device["leased_mib"] == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn without_room_for_a_larger_lease_the_device_is_closed_or_the_model_restarts() {
    for (policy, loads) in [("warn", 1), ("restart", 2)] {
        let dir = tempfile::tempdir().unwrap();
        let growing = model("m", 4000, "", "")
            .replace(
                "\"--ttft-ms\"",
                "\"--vram-growth-mib\", \"2000\", \"--ttft-ms\"",
            )
            .replace("mib: 4000", &format!("mib: 4000, over_lease: {policy}"));
        // It has leased more than it takes, so that the other can grow.
        let models = [taking("hoard", 19_500, 900, ""), growing];
        let node = Node::start(&host(dir.path(), &models)).await;
        for name in ["hoard", "m"] {
            serve(&node, name).await;
        }
        eventually("it is said", async || {
            (lines_with(&node, "no room for a larger lease") == 1).then_some(())
        })
        .await;
        eventually("what follows", async || {
            let device = gpu(&node).await["devices"][0].clone();
            let over = device["over_lease_mib"].as_u64().unwrap_or(0);
            let slot = slot(&node, "m").await;
            let is_as_meant = (over > 1900) == (policy == "warn");
            (is_as_meant && slot["loads"] == loads && slot["state"] == "ready").then_some(())
        })
        .await;
        assert_eq!(slot(&node, "hoard").await["state"], "ready");
    }
}

/// Memory of a process rises until then, so that what others use cannot be told from its lease.
#[tokio::test]
async fn a_lease_is_held_once_its_load_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let slow =
        model("m", 4000, "", "").replace("\"--ttft-ms\"", "\"--load-secs\", \"1\", \"--ttft-ms\"");
    let node = Node::start(&host(dir.path(), &[slow])).await;
    post(&node, "/gpu/models/m/load").await;
    becomes(&node, "m", "loading").await;
    let state = || ledger(dir.path())["leases"][0]["state"].clone();
    assert_eq!(state(), "granted");
    becomes(&node, "m", "ready").await;
    eventually("the lease is held", async || {
        (state() == "held").then_some(())
    })
    .await;
}
