//! The ledger of a host with one simulated card: claims of commands and of another gateway, damage, and none at all.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::gpu_host::{
    ask_as, becomes, gpu, host, ledger, ledger_path, model, serve, slot,
};
use crate::support::{Node, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");

/// A command with a lease, killed when it is dropped.
struct Job(Child);

impl Job {
    fn start(dir: &Path, vram: &str, priority: &str) -> Job {
        let mut lease = Command::new(INFERGATE);
        lease.args([
            "lease",
            "--vram",
            vram,
            "--priority",
            priority,
            "--wait",
            "60s",
        ]);
        lease.arg("--cards").arg(dir.join("cards"));
        lease.arg("--ledger").arg(dir.join("ledger"));
        lease.args(["--", "sh", "-c", "echo runs; exec cat"]);
        lease
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        Job(lease.spawn().unwrap())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a process has a lease.
async fn has_lease(dir: &Path, job: &Job) {
    eventually("the command has its lease", async || {
        let ledger = ledger(dir);
        let mut leases = ledger["leases"].as_array().unwrap().iter();
        let own = leases.any(|lease| lease["holder"]["pid"] == job.0.id());
        own.then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_idle_model_makes_room_for_a_command_and_comes_back_when_it_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[model("m", 16_000, "", "")])).await;
    serve(&node, "m").await;
    let job = Job::start(dir.path(), "12GiB", "0");
    has_lease(dir.path(), &job).await;
    becomes(&node, "m", "cold").await;
    let asked = ask_as(&node, "x-infergate-timeout-ms: 500\r\n", "m").await;
    assert_ne!(asked.status, 200, "the command keeps the card");
    drop(job);
    serve(&node, "m").await;
}

#[tokio::test]
async fn models_of_two_gateways_take_turns_on_one_card() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = [
        Node::start(&host(dir.path(), &[model("a", 16_000, "", "")])).await,
        Node::start(&host(dir.path(), &[model("b", 16_000, "", "")])).await,
    ];
    for (node, name) in [(&nodes[0], "a"), (&nodes[1], "b"), (&nodes[0], "a")] {
        serve(node, name).await;
        let leases = ledger(dir.path())["leases"].clone();
        assert_eq!(leases.as_array().unwrap().len(), 1, "{leases}");
    }
    assert_eq!(slot(&nodes[0], "a").await["loads"], 2);
    eventually("no claim is left", async || {
        ledger(dir.path())["claims"]
            .as_array()
            .unwrap()
            .is_empty()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_damaged_ledger_grants_nothing_is_named_and_ready_models_serve_on() {
    let dir = tempfile::tempdir().unwrap();
    let models = ["m", "other"].map(|id| model(id, 8000, "", ""));
    let node = Node::start(&host(dir.path(), &models)).await;
    serve(&node, "m").await;
    let path = ledger_path(dir.path());
    let text = std::fs::read(&path).unwrap();
    std::fs::write(&path, "{\"version\":1,").unwrap();
    eventually("the damage is shown", async || {
        let problem = gpu(&node).await["problem"].clone();
        problem.as_str()?.contains("not a ledger").then_some(())
    })
    .await;
    let mut former = 0;
    eventually("cards are looked at meanwhile", async || {
        let age = gpu(&node).await["devices"][0]["sample_age_ms"].as_u64()?;
        (age < std::mem::replace(&mut former, age)).then_some(())
    })
    .await;
    serve(&node, "m").await;
    let asked = ask_as(&node, "x-infergate-timeout-ms: 1000\r\n", "other").await;
    assert_ne!(asked.status, 200);
    assert!(node.log().contains("not a ledger"), "{}", node.log());
    std::fs::write(&path, text).unwrap();
    for name in ["other", "m"] {
        serve(&node, name).await;
    }
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn without_a_ledger_models_share_the_card_and_no_file_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let models = ["a", "b"].map(|id| model(id, 16_000, "", ""));
    let config = host(dir.path(), &models).replace("ledger: {", "ledger: { store: none,");
    let node = Node::start(&config).await;
    for name in ["a", "b", "a"] {
        serve(&node, name).await;
    }
    assert_eq!(gpu(&node).await["devices"][0]["leased_mib"], 16_000);
    assert!(!dir.path().join("ledger").exists());
}
