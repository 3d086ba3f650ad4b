//! Durable jobs over a disk with faults: syncs of the store hang or fail, in the gateway's own process.
//!
//! The library of the faults is preloaded; the store and its file are real.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, chat, endpoint, eventually,
    model,
};

const PREDICTIONS: &str = "/v1/models/acme/m/predictions";
const INPUT: &str = r#"{"input":{"prompt":"hello"}}"#;

/// The library, and the file that says what becomes of syncs.
struct SyncFaults {
    dir: tempfile::TempDir,
}

impl SyncFaults {
    fn build() -> SyncFaults {
        let dir = tempfile::tempdir().unwrap();
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(dir.path().join("sync_fault.so"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/it/sync_fault.c"
            ))
            .arg("-ldl")
            .status();
        assert!(built.unwrap().success());
        SyncFaults { dir }
    }

    fn control(&self) -> PathBuf {
        self.dir.path().join("control")
    }

    fn set(&self, word: &str) {
        let next = self.dir.path().join("next");
        std::fs::write(&next, word).unwrap();
        std::fs::rename(next, self.control()).unwrap();
    }

    fn is_spent(&self) -> bool {
        !self.control().exists()
    }

    async fn node(&self, server: std::net::SocketAddr) -> Node {
        let text = |path: PathBuf| path.display().to_string();
        let library = text(self.dir.path().join("sync_fault.so"));
        let environment = [
            ("LD_PRELOAD".to_owned(), library),
            ("SYNC_FAULT".to_owned(), text(self.control())),
        ];
        let model = model("acme/m", &[endpoint(server, 1)], "");
        Node::start_in(&format!("jobs: {{}}\nmodels:\n{model}"), &environment).await
    }
}

async fn show(node: &Node, id: &str) -> TestResponse {
    TestClient::try_get(node.clients, &format!("/v1/predictions/{id}"))
        .await
        .unwrap()
}

async fn succeeds(node: &Node, id: &str) {
    eventually("the job succeeds", async || {
        let object = show(node, id).await.json();
        (object["status"] == "succeeded").then_some(())
    })
    .await;
}

fn id_of(created: &TestResponse) -> String {
    assert_eq!(created.status, 201, "{}", created.text());
    let object: Value = created.json();
    object["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_disk_that_hangs_keeps_no_permit_from_live_requests_and_the_job_runs_after_it() {
    let server = ScriptedServer::held().await;
    let faults = SyncFaults::build();
    let node = faults.node(server.address).await;
    let post = async || {
        let mut client = node.client().await;
        client
            .post("", "/v1/chat/completions", &chat("acme/m", ""))
            .await;
        client
    };
    let mut first = post().await;
    eventually("the first request has the permit", async || {
        (node.permits_used().await == 1).then_some(())
    })
    .await;
    let id = id_of(&node.post(PREDICTIONS, INPUT).await);
    eventually("the job waits for the permit", async || {
        (node.queue_depth().await == 1).then_some(())
    })
    .await;
    faults.set("hold");
    server.next();
    assert_eq!(first.response().await.status, 200);
    eventually("the permit is the job's, whose take hangs", async || {
        (node.queue_depth().await == 0).then_some(())
    })
    .await;
    let mut second = post().await;
    // Answered while the disk hangs.
    server.next();
    assert_eq!(second.response().await.status, 200);
    assert_eq!(show(&node, &id).await.json()["status"], "starting");
    faults.set("");
    server.next();
    succeeds(&node, &id).await;
    node.idle().await;
}

#[tokio::test]
async fn a_job_that_came_too_late_for_its_permit_is_canceled_while_it_waits_for_another() {
    let server = ScriptedServer::held().await;
    let faults = SyncFaults::build();
    let node = faults.node(server.address).await;
    let post = async || {
        let mut client = node.client().await;
        let body = chat("acme/m", "");
        client.post("", "/v1/chat/completions", &body).await;
        client
    };
    let mut first = post().await;
    node.settles(1, 0).await;
    let id = id_of(&node.post(PREDICTIONS, INPUT).await);
    node.settles(1, 1).await;
    faults.set("hold");
    server.next();
    assert_eq!(first.response().await.status, 200);
    let mut second = post().await;
    eventually("the second one has the permit", async || {
        (server.requests().len() == 2).then_some(())
    })
    .await;
    faults.set("");
    eventually("the job is taken", async || {
        let object = show(&node, &id).await.json();
        (object["status"] == "processing").then_some(())
    })
    .await;
    let path = format!("/v1/predictions/{id}/cancel");
    let canceled = node.post(&path, "").await.json();
    assert_eq!(canceled["status"], "canceled", "{canceled}");
    server.next();
    assert_eq!(second.response().await.status, 200);
    node.idle().await;
    assert_eq!(server.requests().len(), 2, "the job has never run");
}

#[tokio::test]
async fn a_create_whose_commit_fails_once_is_known_all_the_same_and_its_job_runs_once() {
    let server = SimulatedServer::fast().await;
    let faults = SyncFaults::build();
    let node = faults.node(server.address).await;
    // Of the create, whose input has the word: a failed sync of a checkpoint would change nothing.
    faults.set("fail");
    let id = id_of(&node.post(PREDICTIONS, INPUT).await);
    assert!(faults.is_spent());
    succeeds(&node, &id).await;
    let log = node.log();
    assert!(log.contains("the store of jobs failed"), "{log}");
    assert!(log.contains("the store of jobs is open"), "{log}");
    let errors = r#"infergate_store_errors_total{store="embedded",kind="timeout"}"#;
    assert!(node.metric(errors).await.is_some_and(|count| count >= 1.0));
    let memory = eventually("the memory of the store is measured", async || {
        node.metric(r#"infergate_store_memory_ratio{store="embedded"}"#)
            .await
    });
    assert!((0.0..0.1).contains(&memory.await));
    let events = node.events(1).await;
    assert_eq!(events[0]["event_id"], format!("{id}:1"));
}
