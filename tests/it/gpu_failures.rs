//! Failures of managed models and of what is around them, by the table of the design; real processes on simulated cards.
//!
//! Not those that have a file of their own. Drivers and lost cards are in `gpu_nvml.rs`, growing memory in `gpu_memory.rs`.
//! Stolen ports are in `gpu_ports.rs`, ends of keepers in `gpu_processes.rs`, other holders in `gpu_claims.rs` and `leases.rs`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use crate::support::gpu_host::{
    CARD_MIB, ask_as, becomes, command, gpu, host, host_with, ledger, ledger_path, model, order,
    post_admin, serve, signal, slot,
};
use crate::support::{Node, chat, eventually};

/// A simulated server that is no model of the gateway, and takes memory of the card.
struct OtherProgram(Child);

impl OtherProgram {
    fn start(dir: &Path, mib: u64) -> OtherProgram {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.args(["simulate", "--address", "127.0.0.1:0", "--vram-card"]);
        command.arg(dir.join("cards/sim0"));
        command.args(["--vram-mib", &mib.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        OtherProgram(command.spawn().unwrap())
    }
}

impl Drop for OtherProgram {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program whose process ends by no signal once it is held, as one that hangs in a call of its driver.
struct Holder {
    program: PathBuf,
    pid_file: PathBuf,
}

impl Holder {
    fn build(dir: &Path) -> Holder {
        let program = dir.join("held");
        let built = Command::new("cc")
            .args(["-O1", "-o"])
            .arg(&program)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/held.c"))
            .status();
        assert!(built.unwrap().success());
        let pid_file = dir.join("held.pid");
        Holder { program, pid_file }
    }

    /// A shell's words that start the process.
    fn start(&self) -> String {
        format!(
            "{} wait {}",
            self.program.display(),
            self.pid_file.display()
        )
    }

    /// Holds the process until the tracer is dropped.
    fn hold(&self) -> Tracer {
        let pid = std::fs::read_to_string(&self.pid_file).unwrap();
        let mut command = Command::new(&self.program);
        command.args(["trace", pid.trim()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut tracer = Tracer(command.spawn().unwrap());
        let mut line = String::new();
        let output = tracer.0.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "traced\n");
        tracer
    }
}

struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn models(node: &Node, id: &str) -> Value {
    let report = gpu(node).await;
    let models = report["models"].as_array().unwrap().iter();
    let mut found = models.filter(|model| model["model"] == id);
    found.next().cloned().unwrap_or(Value::Null)
}

async fn device(node: &Node, key: &str) -> u64 {
    gpu(node).await["devices"][0][key].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn a_model_that_crashes_in_a_request_is_back_soon_and_others_serve_on() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 6000, "", "").replace("\"0\"", "\"20\"");
    let models = [slow, model("other", 6000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "other").await;
    let other = becomes(&node, "other", "ready").await;
    let mut client = node.client().await;
    let stream = ", \"stream\": true, \"max_tokens\": 300, \"ignore_eos\": true";
    client
        .post("", "/v1/chat/completions", &chat("m", stream))
        .await;
    client.saw("data:").await;
    let crashed = becomes(&node, "m", "ready").await;
    signal(&crashed, "-KILL");
    serve(&node, "other").await;
    let answer = client.response().await;
    assert!(!answer.text().contains("[DONE]"), "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "cut-by-backend", "{event}");
    eventually("the crash is seen", async || {
        (slot(&node, "m").await["pid"] != crashed["pid"]).then_some(())
    })
    .await;
    serve(&node, "m").await;
    let again = becomes(&node, "m", "ready").await;
    assert_ne!(again["pid"], crashed["pid"]);
    assert_eq!(slot(&node, "other").await["pid"], other["pid"]);
}

#[tokio::test]
async fn a_crash_loop_ends_in_a_refusal_at_once_or_in_a_fallback_and_others_serve() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let argv = format!("[sh, -c, \"echo x >> {}; exit 3\"]", starts.display());
    let backed = command("backed", 1000, "[sh, -c, exit 3]", "");
    let models_text = [
        command("m", 1000, &argv, ""),
        backed.replace("task:", "fallbacks: [spare], task:"),
        model("spare", 1000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    serve(&node, "spare").await;
    let start = Instant::now();
    let has_fallback = async || {
        let answer = ask_as(&node, "", "backed").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-infergate-model"), Some("spare"));
    };
    eventually("the model is broken", async || {
        has_fallback().await;
        // Demand goes on; no refusal ends a backoff.
        let refused = ask_as(&node, "x-infergate-timeout-ms: 500\r\n", "m").await;
        assert!(
            [408, 429, 502].contains(&refused.status),
            "{}",
            refused.text()
        );
        (models(&node, "m").await["broken"] == true).then_some(())
    })
    .await;
    let count = std::fs::read_to_string(&starts).unwrap().lines().count();
    assert!(count >= 5, "{count} starts");
    assert!(
        count <= 6 || start.elapsed() > Duration::from_secs(60),
        "{count} starts"
    );
    let asked = Instant::now();
    let refused = ask_as(&node, "", "m").await;
    assert_eq!(refused.status, 502, "{}", refused.text());
    let event = node.event_of(&refused).await;
    assert_eq!(event["error_code"], "3050", "{event}");
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    eventually("the model with a fallback is broken", async || {
        has_fallback().await;
        (models(&node, "backed").await["broken"] == true).then_some(())
    })
    .await;
    has_fallback().await;
    serve(&node, "spare").await;
}

#[tokio::test]
async fn a_load_that_hangs_ends_at_its_timeout_and_its_room_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let hangs = model(
        "m",
        20_000,
        ", ready_timeout_secs: 1, stop_timeout_secs: 1",
        "",
    );
    let hangs = hangs.replace("\"--ttft-ms\"", "\"--load-secs\", \"500\", \"--ttft-ms\"");
    let models_text = [hangs, model("other", 20_000, "", "")];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    let refused = ask_as(&node, "x-infergate-timeout-ms: 3000\r\n", "m").await;
    assert!([408, 429].contains(&refused.status), "{}", refused.text());
    eventually("the load has failed", async || {
        (slot(&node, "m").await["state"] == "failed").then_some(())
    })
    .await;
    serve(&node, "other").await;
}

#[tokio::test]
async fn a_load_that_runs_out_of_memory_is_repeated_once_with_more_room() {
    let dir = tempfile::tempdir().unwrap();
    let card = dir.path().join("cards/sim0");
    // It takes 14 % more than it is said to, and beside `idle` the card has less.
    let argv = format!(
        "[\"{}\", simulate, --address, \"127.0.0.1:{{port}}\", --vram-card, \"{}\", --vram-mib, \"13600\", --ttft-ms, \"1\", --tokens-per-sec, \"0\"]",
        env!("CARGO_BIN_EXE_infergate"),
        card.display()
    );
    let models_text = [
        command("m", 12_000, &argv, ""),
        model("idle", 11_000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    serve(&node, "idle").await;
    serve(&node, "m").await;
    let shown = becomes(&node, "m", "ready").await;
    assert_eq!(shown["leases"][0]["mib"], 13_800, "{shown}");
    assert_eq!(slot(&node, "idle").await["state"], "cold");
    assert_eq!(models(&node, "m").await["broken"], false);
}

#[tokio::test]
async fn another_program_that_takes_the_card_is_left_alone_and_loads_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let models_text = [model("resident", 8000, "", ""), model("m", 12_000, "", "")];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    serve(&node, "resident").await;
    let resident = becomes(&node, "resident", "ready").await;
    let pinned = post_admin(&node, "/gpu/models/resident/pin").await;
    assert_eq!(pinned.status, 200);
    let mut other = OtherProgram::start(dir.path(), 10_000);
    eventually("its memory is seen", async || {
        (device(&node, "outside_mib").await >= 10_000).then_some(())
    })
    .await;
    let late = ask_as(&node, "x-infergate-timeout-ms: 1500\r\n", "m").await;
    assert!([408, 429].contains(&late.status), "{}", late.text());
    assert_eq!(slot(&node, "m").await["state"], "cold");
    serve(&node, "resident").await;
    assert_eq!(slot(&node, "resident").await["pid"], resident["pid"]);
    assert!(
        other.0.try_wait().unwrap().is_none(),
        "nothing is killed for a model"
    );
    drop(other);
    serve(&node, "m").await;
}

#[tokio::test]
async fn a_pinned_model_without_room_is_named_and_loaded_once_there_is_some() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[model("m", 16_000, "", "")])).await;
    let other = OtherProgram::start(dir.path(), 10_000);
    eventually("its memory is seen", async || {
        (device(&node, "outside_mib").await >= 10_000).then_some(())
    })
    .await;
    let pinned = post_admin(&node, "/gpu/models/m/pin").await;
    assert_eq!(pinned.status, 200);
    eventually("the want of room is shown", async || {
        models(&node, "m").await["pinned_without_room_ms"].as_u64()
    })
    .await;
    eventually("the log says so", async || {
        let log = node.log();
        log.contains("a pinned model has no room").then_some(())
    })
    .await;
    drop(other);
    becomes(&node, "m", "ready").await;
    let shown = models(&node, "m").await["pinned_without_room_ms"].clone();
    assert!(shown.is_null(), "{shown}");
}

#[tokio::test]
async fn a_ledger_that_cannot_be_written_grants_nothing_is_named_and_ready_models_serve_on() {
    let dir = tempfile::tempdir().unwrap();
    let models = ["m", "other"].map(|id| model(id, 8000, "", ""));
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    // Each state is written to a file of this name first, which the superuser cannot make either.
    let next = dir.path().join("ledger/next");
    std::fs::create_dir(&next).unwrap();
    let asked = ask_as(&node, "x-infergate-timeout-ms: 1000\r\n", "other").await;
    assert_ne!(asked.status, 200);
    eventually("the file is named", async || {
        let problem = gpu(&node).await["problem"].clone();
        problem.as_str()?.contains("ledger/next: ").then_some(())
    })
    .await;
    let log = node.log();
    // Not one for each model that is not loaded. Leases of one that has just become ready have a line of their own.
    let lines = log.matches("the ledger of device memory cannot be used");
    assert_eq!(lines.count(), 1, "{log}");
    serve(&node, "m").await;
    // Demand of the refused request tries again for a while, and is cold between two tries.
    let other = becomes(&node, "other", "cold").await;
    assert_eq!(other["loads"], 0, "{other}");
    std::fs::remove_dir(&next).unwrap();
    for name in ["other", "m"] {
        serve(&node, name).await;
    }
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn a_model_whose_file_is_missing_is_loaded_once_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let weights = dir.path().join("weights.gguf");
    let path = format!(", model_path: {}", weights.display());
    let models = [model("m", 8000, &path, ""), model("other", 8000, "", "")];
    let node = Node::start(&host(dir.path(), &models)).await;
    let asked = ask_as(&node, "x-infergate-timeout-ms: 1000\r\n", "m").await;
    assert_ne!(asked.status, 200);
    eventually("the missing file is named", async || {
        let problem = slot(&node, "m").await["problem"].clone();
        let is_named = problem.as_str()?.contains("weights.gguf is not there");
        is_named.then_some(())
    })
    .await;
    serve(&node, "other").await;
    std::fs::write(&weights, "weights").unwrap();
    serve(&node, "m").await;
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn leases_of_another_boot_hold_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let text = host(dir.path(), &[model("m", 16_000, "", "")]);
    let holder = Node::start(&text).await;
    serve(&holder, "m").await;
    let path = ledger_path(dir.path());
    let node = Node::start(&text.replace("id: m", "id: other")).await;
    let pinned = post_admin(&holder, "/gpu/models/m/pin").await;
    assert_eq!(pinned.status, 200);
    let timeout = "x-infergate-timeout-ms: 1000\r\n";
    assert_ne!(ask_as(&node, timeout, "other").await.status, 200);
    // The same ledger, written before the host was started.
    let mut former = ledger(dir.path());
    former["boot_id"] = "another".into();
    std::fs::write(&path, former.to_string()).unwrap();
    eventually("its leases are gone", async || {
        let leased = gpu(&node).await["devices"][0]["leased_mib"].as_u64()?;
        (leased == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn memory_that_comes_back_late_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 16_000, "", "").replace(
        "\"--ttft-ms\"",
        "\"--vram-release-ms\", \"600\", \"--ttft-ms\"",
    );
    let models_text = [slow, model("other", 16_000, "", "")];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    for name in ["m", "other", "m"] {
        serve(&node, name).await;
        let leased = device(&node, "leased_mib").await;
        assert!(leased <= CARD_MIB, "{leased}");
    }
    // A process that was started before its memory is free ends for lack of it.
    for (name, loads) in [("m", 2), ("other", 1)] {
        assert_eq!(slot(&node, name).await["loads"], loads, "{name}");
    }
    assert!(!node.log().contains("a model failed"), "{}", node.log());
}

#[tokio::test]
async fn clients_that_leave_during_a_load_get_no_permit_and_the_load_ends() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 16_000, "", "")
        .replace("\"--ttft-ms\"", "\"--load-secs\", \"1\", \"--ttft-ms\"");
    let node = Node::start(&host(dir.path(), &[slow])).await;
    let left = ask_as(&node, "x-infergate-timeout-ms: 5000\r\n", "m");
    // The connection is dropped in the middle of the load.
    tokio::select! {
        response = left => panic!("{}", response.text()),
        _ = becomes(&node, "m", "loading") => {}
    }
    becomes(&node, "m", "ready").await;
    node.settles(0, 0).await;
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn a_process_that_is_stuck_in_its_driver_keeps_its_lease_and_its_device_takes_no_load() {
    let dir = tempfile::tempdir().unwrap();
    let holder = Holder::build(dir.path());
    // The server has a worker, which is what hangs.
    let argv = format!(
        "[sh, -c, \"{} & exec {} simulate --address 127.0.0.1:{{port}} --ttft-ms 1 --tokens-per-sec 0\"]",
        holder.start(),
        env!("CARGO_BIN_EXE_infergate")
    );
    let models_text = [
        command("m", 8000, &argv, ", stop_timeout_secs: 1"),
        model("resident", 4000, "", ""),
        model("late", 4000, "", ""),
    ];
    let node = Node::start(&host(dir.path(), &models_text)).await;
    for name in ["m", "resident"] {
        serve(&node, name).await;
    }
    let resident = becomes(&node, "resident", "ready").await;
    let tracer = holder.hold();
    order(&node, "m", "unload").await;
    // 30 s after SIGKILL.
    eventually("the alarm is in the log", async || {
        let log = node.log();
        log.contains("processes of a model cannot be ended")
            .then_some(())
    })
    .await;
    let stuck = becomes(&node, "m", "stuck").await;
    assert_eq!(stuck["leases"][0]["mib"], 8000, "{stuck}");
    let timeout = "x-infergate-timeout-ms: 1500\r\n";
    for asked in ["late", "m"] {
        let refused = ask_as(&node, timeout, asked).await;
        assert!([408, 429].contains(&refused.status), "{}", refused.text());
    }
    assert_eq!(slot(&node, "late").await["state"], "cold");
    assert_eq!(models(&node, "late").await["why_not_loaded"], "no_device");
    serve(&node, "resident").await;
    assert_eq!(slot(&node, "resident").await["pid"], resident["pid"]);
    assert_eq!(
        ledger(dir.path())["leases"].as_array().unwrap().len(),
        2,
        "the lease stays"
    );
    drop(tracer);
    for asked in ["late", "m"] {
        serve(&node, asked).await;
    }
    assert_eq!(slot(&node, "resident").await["pid"], resident["pid"]);
}

#[tokio::test]
async fn a_reload_of_other_keys_in_a_load_a_drain_and_a_backoff_restarts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let argv = format!("[sh, -c, \"echo x >> {}; exit 3\"]", starts.display());
    let loads = model("loads", 4000, "", "")
        .replace("\"--ttft-ms\"", "\"--load-secs\", \"10\", \"--ttft-ms\"");
    let models_text = [
        loads,
        model("drains", 4000, "", "").replace("\"0\"", "\"20\""),
        command("fails", 4000, &argv, "").replace("task:", "pin: true, task:"),
    ];
    let parallel = "  load_parallel: { per_device: 4, per_host: 4 }\n";
    let text = host_with(dir.path(), parallel, &models_text);
    let node = Node::start(&text).await;
    let count = || std::fs::read_to_string(&starts).map_or(0, |it| it.lines().count());
    eventually("a backoff is near", async || (count() == 3).then_some(())).await;
    let mut client = node.client().await;
    let stream = ", \"stream\": true, \"max_tokens\": 300, \"ignore_eos\": true";
    client
        .post("", "/v1/chat/completions", &chat("drains", stream))
        .await;
    client.saw("data:").await;
    order(&node, "drains", "unload").await;
    let draining = becomes(&node, "drains", "draining").await;
    // The fourth one lasts 8 s.
    eventually("the backoff is long", async || (count() == 4).then_some(())).await;
    order(&node, "loads", "load").await;
    let loading = eventually("a process loads", async || {
        let shown = slot(&node, "loads").await;
        (shown["state"] == "loading" && shown["pid"].is_u64()).then_some(shown)
    })
    .await;
    eventually("the backoff is shown", async || {
        models(&node, "fails").await["backoff_ms"].as_u64()
    })
    .await;
    let other = text.replace("models:", "timeouts: { ceiling_secs: 500 }\nmodels:");
    assert_eq!(node.reload(&other).await.status, 200);
    assert!(models(&node, "fails").await["backoff_ms"].is_u64());
    assert_eq!(count(), 4, "the backoff goes on");
    assert_eq!(slot(&node, "drains").await["pid"], draining["pid"]);
    assert!(client.response().await.text().contains("[DONE]"));
    becomes(&node, "drains", "cold").await;
    let ready = becomes(&node, "loads", "ready").await;
    assert_eq!(
        (&ready["pid"], &ready["loads"]),
        (&loading["pid"], &1.into())
    );
}
