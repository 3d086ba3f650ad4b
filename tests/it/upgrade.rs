//! A gateway that is replaced by another process while it serves.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;

use crate::billing::a_day_with_time_left;
use crate::support::{
    Http2Client, Node, ScriptedServer, accounts, chat, chat_request, endpoint, eventually, model,
    one_model,
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "Authorization: Bearer key-a\r\n";

/// Process that has followed a node's, killed with the value.
pub struct Successor(u32);

impl Successor {
    /// Number of the process.
    pub fn pid(&self) -> u32 {
        self.0
    }

    /// Waits for its end, as one that is no child of this process.
    pub async fn ended(&self) {
        eventually("it has ended", async || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0));
            let is_alive = stat.is_ok_and(|stat| !stat.contains(") Z "));
            (!is_alive).then_some(())
        })
        .await;
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        // Already ended, in tests that end it.
        let _ = Command::new("kill")
            .args(["-KILL", &self.0.to_string()])
            .output();
    }
}

/// Runs the command for a node.
pub async fn command(node: &Node) -> Output {
    command_with(node.config_path()).await
}

async fn command_with(config: PathBuf) -> Output {
    let run = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.args(["upgrade", "--config"]).arg(config).output()
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

pub async fn upgrade(node: &Node) -> Successor {
    upgrade_with(node.config_path()).await
}

/// The same with a file of its own for the successor.
pub async fn upgrade_with(config: PathBuf) -> Successor {
    let done = command_with(config).await;
    let words = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{words} {done:?}");
    let (_, rest) = words.split_once("process ").unwrap();
    let (pid, _) = rest.split_once(' ').unwrap();
    Successor(pid.parse().unwrap())
}

/// `state_dir` is there at the start, so that a successor can be asked for.
pub fn with_state(state: &std::path::Path, rest: &str) -> String {
    format!("{rest}state_dir: \"{}\"\n", state.display())
}

async fn queue_depth(node: &Node) -> Option<Value> {
    let state = node.state().await;
    state.pointer("/models/0/queue/depth").cloned()
}

#[tokio::test]
async fn a_request_of_the_former_process_ends_there_and_its_permit_is_the_next_ones() {
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let config = with_state(state.path(), &one_model(server.address, 1, ""));
    let mut node = Node::start(&config).await;
    let mut first = node.client().await;
    first.post("", CHAT, &chat("m", "")).await;
    node.settles(1, 0).await;
    let _successor = upgrade(&node).await;
    // The only permit is in use in the other process.
    let mut second = node.client().await;
    second.post("", CHAT, &chat("m", "")).await;
    eventually("the second one waits", async || {
        (queue_depth(&node).await? == 1).then_some(())
    })
    .await;
    assert_eq!(server.requests().len(), 1);
    assert!(node.is_running(), "it has a request");
    server.next();
    assert_eq!(first.response().await.status, 200);
    assert!(node.ended().await.success());
    server.has_received(2).await;
    server.next();
    assert_eq!(second.response().await.status, 200);
}

#[tokio::test]
async fn a_request_that_waits_in_the_former_process_is_served_before_later_ones() {
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let config = with_state(state.path(), &one_model(server.address, 1, ""));
    let node = Node::start(&config).await;
    let (mut running, mut waiting) = (node.client().await, node.client().await);
    running.post("", CHAT, &chat("m", "")).await;
    node.settles(1, 0).await;
    let earlier = chat("m", r#","user":"earlier""#);
    waiting.post("", CHAT, &earlier).await;
    node.settles(1, 1).await;
    let _successor = upgrade(&node).await;
    let mut later = node.client().await;
    later.post("", CHAT, &chat("m", r#","user":"later""#)).await;
    eventually("the later one waits", async || {
        (queue_depth(&node).await? == 1).then_some(())
    })
    .await;
    for (client, count) in [(&mut running, 2), (&mut waiting, 3)] {
        server.next();
        assert_eq!(client.response().await.status, 200);
        server.has_received(count).await;
    }
    let requests = server.requests();
    assert!(requests[1].contains("earlier") && requests[2].contains("later"));
    server.next();
    assert_eq!(later.response().await.status, 200);
}

#[tokio::test]
async fn a_connection_of_http2_is_asked_to_leave_and_its_request_ends() {
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let models = one_model(server.address, 2, "");
    let config = with_state(state.path(), &format!("  listener: http2: clear\n{models}"));
    let mut node = Node::start(&config).await;
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let mut client = Http2Client::over(tcp).await;
    let request = client.send(chat_request(), &chat("m", "")).await;
    node.settles(1, 0).await;
    let _successor = upgrade(&node).await;
    server.next();
    assert_eq!(request.whole().await.status, 200);
    client.ended().await.unwrap();
    assert!(node.ended().await.success());
}

#[tokio::test]
async fn the_day_of_an_account_goes_on_in_the_next_process() {
    a_day_with_time_left().await;
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let tariff = "    tariff: { cost_per_infer: 6 }\n";
    let models = model("m", &[endpoint(server.address, 4)], tariff);
    let rest = format!("{}models:\n{models}", accounts(", neurons_per_day: 10"));
    let mut node = Node::start(&with_state(state.path(), &rest)).await;
    let mut running = node.client().await;
    running.post(KEY, CHAT, &chat("m", "")).await;
    server.has_received(1).await;
    let mut second = node.client().await;
    second.post(KEY, CHAT, &chat("m", "")).await;
    server.has_received(2).await;
    server.next();
    assert_eq!(running.response().await.status, 200);
    let _successor = upgrade(&node).await;
    // One that began before ends in the former process, which tells of it when it has ended.
    server.next();
    assert_eq!(second.response().await.status, 200);
    assert!(node.ended().await.success());
    eventually("the day is used up", async || {
        let headers = format!("{KEY}x-infergate-timeout-ms: 1000\r\n");
        let answer = node.post_as(&headers, CHAT, &chat("m", "")).await;
        (answer.json()["error"]["code"] == "insufficient_quota").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_successor_that_cannot_serve_changes_nothing_and_the_command_says_why() {
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let config = with_state(state.path(), &one_model(server.address, 1, ""));
    let mut node = Node::start(&config).await;
    let good = std::fs::read_to_string(node.config_path()).unwrap();
    // The key is known to the reader of the command, and its value not to the successor.
    let broken = good.replace("max_concurrent_requests: 1", "max_concurrent_requests: 0");
    assert_ne!(good, broken);
    std::fs::write(node.config_path(), broken).unwrap();
    let refused = command(&node).await;
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8_lossy(&refused.stderr);
    assert!(words.contains("max_concurrent_requests"), "{words}");
    assert!(node.is_running());
    std::fs::write(node.config_path(), good).unwrap();
    // Without a gateway there is nobody to ask.
    node.signal("TERM");
    node.ended().await;
    let refused = command(&node).await;
    let words = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(words.contains("no gateway can be asked"), "{words}");
}

#[tokio::test]
async fn a_command_that_leaves_ends_its_successor() {
    let (state, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let config = with_state(state.path(), &one_model(server.address, 1, ""));
    let mut node = Node::start(&config).await;
    let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["upgrade", "--config"])
        .arg(node.config_path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the successor is started", async || {
        node.log().contains("a successor is started").then_some(())
    })
    .await;
    command.kill().unwrap();
    command.wait().unwrap();
    eventually("the upgrade has failed", async || {
        node.log().contains("the command has left").then_some(())
    })
    .await;
    assert!(node.is_running());
    // The next one is not in its way.
    let _successor = tokio::time::timeout(Duration::from_secs(60), upgrade(&node));
    let _successor = _successor.await.unwrap();
    assert!(node.ended().await.success());
}
