//! Ports of models that others have, checks of servers that work, and control groups.
//!
//! Processes are real; only the card is simulated.

use std::net::SocketAddr;
use std::path::Path;

use infergate::parts::process::own_group;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::gpu_host::{
    ask_as, becomes, card_is_free, host, model, order, serve, signal, slot,
};
use crate::support::{Node, TestClient, chat, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");

/// A model whose server is started by a shell script; `SERVE` in it is the server.
fn scripted(script: &str) -> String {
    let server = format!(
        "exec {INFERGATE} simulate --address 127.0.0.1:{{port}} --ttft-ms 1 --tokens-per-sec 0"
    );
    let script = json!(script.replace("SERVE", &server));
    format!(
        "  - {{ id: m, task: text-generation, backend: openai, vram: {{ mib: 100 }}, \
         process: {{ command: [\"sh\", \"-c\", {script}] }} }}\n"
    )
}

/// A model whose first starts find their port taken.
fn unlucky(dir: &Path, starts: u32) -> String {
    let file = dir.join("starts");
    let file = file.display();
    scripted(&format!(
        "echo x >> {file}; if [ $(wc -l < {file}) -le {starts} ]; then \
         echo bind: address already in use; exit 1; fi; SERVE"
    ))
}

fn starts(dir: &Path) -> usize {
    let text = std::fs::read_to_string(dir.join("starts")).unwrap();
    text.lines().count()
}

#[tokio::test]
async fn a_port_that_is_taken_leads_to_another_and_is_no_crash() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[unlucky(dir.path(), 5)])).await;
    serve(&node, "m").await;
    assert_eq!(starts(dir.path()), 6);
    let shown = becomes(&node, "m", "ready").await;
    assert_eq!(
        (&shown["loads"], &shown["problem"]),
        (&1.into(), &Value::Null)
    );
    assert!(!node.log().contains("a model failed"));
    eventually("the keeper has the one lease", async || {
        let listed = node.get("/gpu/leases").await.json();
        let [lease] = &listed["leases"].as_array()?[..] else {
            return None;
        };
        let is_live = lease["name"] == "m#0" && lease["process"] == "alive";
        let is_handed_over = lease["pid"] != node.pid();
        (is_live && is_handed_over && lease["devices"][0]["mib"] == 100).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ports_that_are_always_taken_are_a_failure_after_five_others() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[unlucky(dir.path(), 999)])).await;
    order(&node, "m", "load").await;
    eventually("the load has failed", async || {
        node.log().contains("address_in_use").then_some(())
    })
    .await;
    assert_eq!(starts(dir.path()), 6);
}

#[tokio::test]
async fn no_request_goes_to_a_stranger_that_has_the_port_of_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let (next, first) = (dir.path().join("next"), dir.path().join("first"));
    let (next, first) = (next.display(), first.display());
    // The first server does not listen at its port.
    let script = format!(
        "[ ! -e {first} ] || SERVE; echo {{port}} > {next}; mv {next} {first}; exec sleep 600"
    );
    let node = Node::start(&host(dir.path(), &[scripted(&script)])).await;
    order(&node, "m", "load").await;
    let first = dir.path().join("first");
    let port: u16 = eventually("the first process has a port", async || {
        std::fs::read_to_string(&first).ok()?.trim().parse().ok()
    })
    .await;
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::select! {
        _ = listener.accept() => panic!("something connects to the stranger"),
        () = serve(&node, "m") => {}
    }
    let shown = becomes(&node, "m", "ready").await;
    assert_ne!(shown["port"], port);
    assert!(
        !node.log().contains("a model failed"),
        "a stolen port is no crash"
    );
}

fn address_of(server: &Value) -> SocketAddr {
    let port = server["port"].as_u64().unwrap();
    format!("127.0.0.1:{port}").parse().unwrap()
}

/// Waits until a simulated server works on a request.
async fn works(server: &Value) {
    let address = address_of(server);
    eventually("the server works on a request", async || {
        let request = "GET /sim/stats HTTP/1.1\r\nhost: sim\r\n\r\n".to_owned();
        let stats: Value = TestClient::exchange(address, request).await.json();
        (stats["current"] == 1).then_some(())
    })
    .await;
}

/// Makes the routes of a simulated server fail, those of its health included.
async fn break_health(server: &Value) {
    let address = address_of(server);
    let fault = json!({ "fault": "status=500", "health": true }).to_string();
    let request = format!(
        "PUT /sim/fault HTTP/1.1\r\nhost: sim\r\ncontent-length: {}\r\n\r\n{fault}",
        fault.len()
    );
    assert_eq!(TestClient::exchange(address, request).await.status, 200);
}

#[tokio::test]
async fn a_server_that_works_is_not_restarted_for_bad_probes_and_an_idle_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 8000, "", "").replace("\"0\"", "\"20\"");
    let node = Node::start(&host(dir.path(), &[slow])).await;
    serve(&node, "m").await;
    let before = becomes(&node, "m", "ready").await;
    let mut client = node.client().await;
    // As long as a busy server may go without progress, and longer.
    let stream = ", \"stream\": true, \"max_tokens\": 300, \"ignore_eos\": true";
    client
        .post("", "/v1/chat/completions", &chat("m", stream))
        .await;
    client.saw("data:").await;
    break_health(&before).await;
    let answer = client.response().await;
    assert!(answer.text().contains("[DONE]"), "{}", answer.text());
    assert_eq!(slot(&node, "m").await["pid"], before["pid"]);
    eventually("the idle server was restarted", async || {
        let shown = slot(&node, "m").await;
        (shown["pid"] != before["pid"] || shown["state"] != "ready").then_some(())
    })
    .await;
    assert!(node.log().contains("unresponsive"));
    serve(&node, "m").await;
}

#[tokio::test]
async fn a_long_load_is_no_time_without_progress_for_the_first_request() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 8000, "", "").replace(
        "\"--ttft-ms\", \"1\"",
        "\"--load-secs\", \"6\", \"--ttft-ms\", \"8000\"",
    );
    let node = Node::start(&host(dir.path(), &[slow])).await;
    // Its first check fails 11 s after the start of the process, 5 s after the request has come.
    let (answer, ()) = tokio::join!(ask_as(&node, "", "m"), async {
        let ready = becomes(&node, "m", "ready").await;
        works(&ready).await;
        break_health(&ready).await;
    });
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(slot(&node, "m").await["loads"], 1);
}

#[tokio::test]
async fn a_busy_server_without_progress_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let slow = model("m", 8000, "", "").replace("\"0\"", "\"20\"");
    let node = Node::start(&host(dir.path(), &[slow])).await;
    serve(&node, "m").await;
    let before = becomes(&node, "m", "ready").await;
    let mut client = node.client().await;
    let stream = ", \"stream\": true, \"max_tokens\": 9000, \"ignore_eos\": true";
    client
        .post("", "/v1/chat/completions", &chat("m", stream))
        .await;
    client.saw("data:").await;
    signal(&before, "-STOP");
    let answer = client.response().await;
    assert!(!answer.text().contains("[DONE]"), "the stream was cut");
    assert!(node.log().contains("unresponsive"));
    let again = ask_as(&node, "", "m").await;
    assert_eq!(again.status, 200, "{}", again.text());
}

#[tokio::test]
async fn each_instance_has_a_control_group_unless_they_are_off() {
    if own_group().is_none() {
        println!("skipped: control groups of version 2 cannot be made here");
        return;
    }
    let group_of = |shown: &Value| {
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", shown["pid"])).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("0::"));
        line.unwrap().to_owned()
    };
    let dir = tempfile::tempdir().unwrap();
    let models = [model("m", 100, ", limits: { memory_mib: 4096 }", "")];
    let text = host(dir.path(), &models);
    let node = Node::start(&text).await;
    serve(&node, "m").await;
    let shown = becomes(&node, "m", "ready").await;
    let group = group_of(&shown);
    assert!(group.contains("/infergate-m#0-"), "{group}");
    order(&node, "m", "unload").await;
    card_is_free(dir.path()).await;
    drop(node);
    let off = text.replacen("gpu:\n", "gpu:\n  cgroup: off\n", 1);
    let node = Node::start(&off).await;
    serve(&node, "m").await;
    let shown = becomes(&node, "m", "ready").await;
    assert!(!group_of(&shown).contains("infergate-m#0"));
}
