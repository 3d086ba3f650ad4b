//! `infergate gpu trace`: a host is recorded, and its file is replayed with its own settings and with others.
//!
//! Processes, leases and loads are real; only the card is simulated.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::gpu_host::{host_with, serve};
use crate::support::{Node, eventually};

/// Requests of the recording, for two models in turn, of which the card holds one.
const REQUESTS: u64 = 6;

fn trace(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
    command.args(["gpu", "trace"]);
    command.args(arguments.split_whitespace());
    command.current_dir(folder).output().unwrap()
}

fn figures(folder: &Path, arguments: &str) -> Option<Value> {
    let shown = trace(folder, &format!("{arguments} --json"));
    let is_shown = shown.status.success();
    is_shown.then(|| serde_json::from_slice(&shown.stdout).unwrap())
}

fn model(id: &str) -> String {
    format!(
        "  - {{ id: {id}, task: text-generation, backend: openai, vram: {{ mib: 14000 }}, \
         process: {{ preset: simulate, arguments: [\"--ttft-ms\", \"1\", \"--load-secs\", \"2\"] }} }}\n"
    )
}

/// Records requests for two models in turn; the folder has the file.
async fn record(folder: &Path) -> Node {
    let more = format!(
        "  swap: {{ policy: lru }}\n  events: {{ file: {} }}\n",
        folder.join("lifecycle.jsonl").display()
    );
    let node = Node::start(&host_with(folder, &more, &[model("a"), model("b")])).await;
    for nth in 0..REQUESTS {
        serve(&node, if nth % 2 == 0 { "a" } else { "b" }).await;
    }
    node
}

#[tokio::test]
async fn a_recorded_host_and_its_replay_agree_and_another_card_is_answered_for() {
    let folder = tempfile::tempdir().unwrap();
    let _node = record(folder.path()).await;
    let shown = eventually("the file has all requests and loads", async || {
        let shown = figures(folder.path(), "lifecycle.jsonl")?;
        let recorded = &shown["recorded"];
        let is_whole = recorded["requests"] == REQUESTS && recorded["loads"] == REQUESTS;
        is_whole.then_some(shown)
    })
    .await;
    let recorded = &shown["recorded"];
    assert_eq!(recorded["swaps"], REQUESTS - 1, "{shown}");
    assert_eq!(recorded["evictions"], REQUESTS - 1, "{shown}");
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(number(&recorded["loading_secs"]) >= 2.0 * REQUESTS as f64);
    assert!(number(&recorded["mean_wait_secs"]) >= 1.0, "{shown}");
    assert!(number(&recorded["longest_wait_secs"]) >= 1.5, "{shown}");
    assert_eq!(recorded["p99_wait_secs"], Value::Null, "not recorded");
    let replayed = &shown["replays"][0];
    assert_eq!(
        (&replayed["policy"], &replayed["device_mib"]),
        (&json!("lru"), &Value::Null)
    );
    assert_eq!(replayed["requests"], REQUESTS);
    let loads = replayed["loads"].as_u64().unwrap();
    assert!(loads.abs_diff(REQUESTS) <= 1, "{shown}");
    let loading = number(&replayed["loading_secs"]) / number(&recorded["loading_secs"]);
    assert!((0.7..1.3).contains(&loading), "{shown}");
    let mean = number(&replayed["mean_wait_secs"]) / number(&recorded["mean_wait_secs"]);
    assert!((0.5..2.0).contains(&mean), "{shown}");
    assert_eq!(shown["replays"][1]["policy"], "turns");
    assert_eq!(shown["replays"].as_array().unwrap().len(), 2);
    // A card for both: each is loaded once.
    let large = figures(
        folder.path(),
        "lifecycle.jsonl --policy lru --device-mib 48000",
    )
    .unwrap();
    let large = &large["replays"][1];
    assert_eq!(
        (&large["loads"], &large["swaps"]),
        (&json!(2), &json!(0)),
        "{large}"
    );
    let table = trace(folder.path(), "lifecycle.jsonl --policy turns --turn 2,4,8");
    let table = String::from_utf8(table.stdout).unwrap();
    for row in [
        "recorded ",
        "replayed: lru ",
        "turns 2, patience 13 ",
        "turns 8, patience 13 ",
    ] {
        assert!(
            table.lines().any(|line| line.starts_with(row)),
            "{row} in\n{table}"
        );
    }
}

/// Lines of a day with one request, as a gateway writes them.
fn lines() -> Vec<String> {
    let swap = json!({
        "policy": "turns", "turn": 4, "patience": 13, "min_warm_ms": 0, "aging_ms": 25_000, "demand_memory_ms": 60_000,
        "loads_per_device": 1, "loads_per_host": 2,
    });
    let model = json!({
        "id": "a", "need_mib": 100, "context_mib": 0, "split": "never", "priority": 9, "replicas_min": 0,
        "replicas_max": 1, "parallel": 1, "keep_alive_ms": null, "expected_load_ms": 4000, "stored_bytes": 0,
        "asleep_mib": null, "pinned": false, "preload": false,
    });
    let device = json!({
        "id": "GPU-0", "index": 0, "kind": "gpu", "name": "card", "total_mib": 1000, "reserve_mib": 0, "outside_mib": 0,
    });
    let at = |second: u32| format!("2026-11-25T10:00:{second:02}.000Z");
    let host = json!({
        "at": at(1), "ms": 1000, "event": "models", "swap": swap, "models": [model], "devices": [device],
    });
    let demand = json!({
        "at": at(9), "ms": 9000, "event": "demand", "model": "a", "span_ms": 500, "arrivals": 1, "refused": 0,
        "accounts": 1, "priority": 5, "service_ms": 10, "waiting": 0, "waited_ms": 0, "longest_wait_ms": 0,
    });
    vec![host.to_string(), demand.to_string()]
}

#[test]
fn rotated_files_are_read_in_any_order_and_a_line_that_is_being_written_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let [host, demand] = lines().try_into().unwrap();
    write("e.jsonl.1", format!("{host}\n"));
    write("e.jsonl", format!("{demand}\n{{\"at\":\"2026-11-2"));
    let shown = figures(folder.path(), "e.jsonl e.jsonl.1").unwrap();
    assert_eq!(shown["replays"][0]["loads"], 1, "{shown}");
    assert_eq!(shown["replays"][0]["longest_wait_secs"], 4.0, "{shown}");
    assert_eq!(shown["demand_lines_left_out"], 0);
}

#[test]
fn what_cannot_be_replayed_is_named_with_its_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let [host, demand] = lines().try_into().unwrap();
    write("good", format!("{host}\n{demand}\n"));
    write("bad", format!("{host}\n{demand}\nno event\n"));
    write("long", format!("{host}\n{}\n", " ".repeat(9 << 20)));
    write("old", format!("{demand}\n"));
    write("idle", format!("{host}\n"));
    let turns: Vec<String> = (0..40).map(|turn| turn.to_string()).collect();
    let many = format!("good --turn {}", turns.join(","));
    for (arguments, why) in [
        ("absent", "absent: "),
        (".", "it is no regular file"),
        ("bad", "bad:3: no lifecycle event"),
        ("long", "long:2: the line is longer"),
        ("old", "no `models` line"),
        ("idle", "nothing was asked for"),
        (many.as_str(), "more than 32: give fewer values"),
    ] {
        let refused = trace(folder.path(), arguments);
        let text = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains(why) && text.lines().count() == 1, "{text}");
    }
}
