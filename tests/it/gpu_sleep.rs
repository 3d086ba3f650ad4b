//! Sleep of simulated servers on a simulated card: a wake instead of a load, leases that shrink and grow.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::gpu_host::{
    ask_as, becomes, card_is_free, gpu, host, host_with, ledger, model, pages_held, serve, signal,
    slot,
};
use crate::support::{Node, eventually};

/// A server that keeps 500 MiB while it sleeps: of pages of 93 MiB, 558.
const SLEEPER: &str = ", sleep: 1";
const REST_MIB: u64 = 558;

fn sleeper(id: &str, mib: u64, process: &str, more: &str) -> String {
    let model = model(id, mib, process, more);
    model.replace("\"--ttft-ms\"", "\"--asleep-mib\", \"500\", \"--ttft-ms\"")
}

fn lease_mib(slot: &Value) -> u64 {
    slot["leases"][0]["mib"].as_u64().unwrap_or(0)
}

/// Leases in the file of the ledger, MiB.
fn ledger_mib(dir: &Path) -> Vec<u64> {
    let ledger = ledger(dir);
    let leases = ledger["leases"].as_array().unwrap().iter();
    leases.map(|lease| lease["mib"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn an_idle_model_sleeps_with_a_small_lease_and_wakes_instead_of_loading() {
    let dir = tempfile::tempdir().unwrap();
    let models = [sleeper("m", 8000, SLEEPER, ", keep_alive_secs: 1")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    let awake = becomes(&node, "m", "ready").await;
    assert_eq!(lease_mib(&awake), 8000);
    let asleep = becomes(&node, "m", "asleep").await;
    assert_eq!(asleep["pid"], awake["pid"]);
    let rest = lease_mib(&asleep);
    assert!((REST_MIB..REST_MIB + 100).contains(&rest), "{asleep}");
    eventually("the ledger has the rest", async || {
        (ledger_mib(dir.path()) == [rest]).then_some(())
    })
    .await;
    assert_eq!(pages_held(dir.path()), 6);
    let state = node.state().await;
    assert_eq!(state["models"][0]["endpoints"][0]["slot"], "asleep");
    eventually("the memory is free for others", async || {
        let device = gpu(&node).await["devices"][0].clone();
        (device["free_mib"].as_u64() > Some(23_000)).then_some(())
    })
    .await;
    serve(&node, "m").await;
    let again = slot(&node, "m").await;
    assert_eq!(again["instance"], awake["instance"]);
    assert_eq!((&again["loads"], &again["wakes"]), (&1.into(), &1.into()));
    eventually("the lease has grown", async || {
        (ledger_mib(dir.path()) == [8000]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn models_that_sleep_take_turns_without_a_load() {
    let dir = tempfile::tempdir().unwrap();
    let models = ["a", "b"].map(|id| sleeper(id, 14_000, ", sleep: 2", ""));
    let mut node = Node::start(&host(dir.path(), &models)).await;
    for name in ["a", "b", "a", "b", "a"] {
        serve(&node, name).await;
        assert!(ledger_mib(dir.path()).iter().sum::<u64>() <= 24_000);
    }
    for (name, wakes) in [("a", 2), ("b", 1)] {
        let slot = slot(&node, name).await;
        assert_eq!((&slot["loads"], &slot["wakes"]), (&1.into(), &wakes.into()));
    }
    node.signal("TERM");
    node.ended().await;
    card_is_free(dir.path()).await;
}

#[tokio::test]
async fn weights_go_to_memory_of_the_host_only_within_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let models = [
        sleeper("weights", 4000, SLEEPER, ", keep_alive_secs: 1"),
        sleeper("dropped", 4000, ", sleep: 2", ", keep_alive_secs: 1"),
    ];
    let reserve = "  reserve: { ram: 100000000 }\n";
    let node = Node::start(&host_with(dir.path(), reserve, &models)).await;
    for (name, state) in [("weights", "cold"), ("dropped", "asleep")] {
        serve(&node, name).await;
        becomes(&node, name, state).await;
    }
    let log = node.log();
    assert!(
        log.contains("the host has no memory for its weights"),
        "{log}"
    );
    serve(&node, "weights").await;
    assert_eq!(slot(&node, "weights").await["loads"], 2);
}

#[tokio::test]
async fn a_sleeping_process_that_is_killed_is_loaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let models = [sleeper("m", 8000, SLEEPER, ", keep_alive_secs: 1")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    let asleep = becomes(&node, "m", "asleep").await;
    signal(&asleep, "-KILL");
    eventually("nothing is leased", async || {
        ledger_mib(dir.path()).is_empty().then_some(())
    })
    .await;
    assert_eq!(ask_as(&node, "", "m").await.status, 200);
    assert_eq!(slot(&node, "m").await["loads"], 2);
}

/// The command line of vLLM, served by the simulator. It can sleep only where it was started so.
const VLLM: &str = r#"#!/bin/sh
sleepable=
while [ $# -gt 0 ]; do
  case "$1" in
    --port) port=$2 ;;
    --max-num-seqs) permits=$2 ;;
    --enable-sleep-mode) [ "$VLLM_SERVER_DEV_MODE" = 1 ] && sleepable="--sleepable --asleep-mib 500" ;;
  esac
  shift
done
exec "$INFERGATE" simulate --address "127.0.0.1:$port" --concurrency "$permits" --ttft-ms 1 --tokens-per-sec 0 \
  --vram-card "$CARDS/$CUDA_VISIBLE_DEVICES" --vram-mib 8000 $sleepable
"#;

#[tokio::test]
async fn the_preset_of_vllm_starts_a_server_that_sleeps_and_wakes_by_its_routes() {
    let dir = tempfile::tempdir().unwrap();
    let (bin, cards) = (dir.path().join("bin"), dir.path().join("cards"));
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("vllm"), VLLM).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(bin.join("vllm"), executable).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let models = [1, 2].map(|level| {
        format!(
            "  - {{ id: m{level}, task: text-generation, backend: vllm, vram: {{ mib: 8100 }}, keep_alive_secs: 1, \
             process: {{ preset: vllm, model_path: {}, sleep: {level}, environment: {{ PATH: \"{path}\", \
             INFERGATE: \"{}\", CARDS: \"{}\" }} }} }}\n",
            dir.path().display(),
            env!("CARGO_BIN_EXE_infergate"),
            cards.display()
        )
    });
    let node = Node::start(&host(dir.path(), &models)).await;
    for name in ["m1", "m2"] {
        serve(&node, name).await;
        let asleep = becomes(&node, name, "asleep").await;
        serve(&node, name).await;
        let again = slot(&node, name).await;
        assert_eq!(
            (&again["pid"], &again["wakes"]),
            (&asleep["pid"], &1.into())
        );
    }
}
