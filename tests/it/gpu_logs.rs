//! Output of a model's process: followed over the admin listener and by `infergate logs`, to the end of the process.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::gpu_host::{becomes, host, host_with, model, serve, signal, slot};
use crate::support::{Node, TestClient, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");

/// A model whose server says which life it is, and writes what comes through a pipe.
fn talking(dir: &Path) -> String {
    let (script, card) = (dir.join("server.sh"), dir.join("cards/sim0"));
    let text = format!(
        "#!/bin/sh\necho life $$\ncat {} &\nexec {INFERGATE} simulate --address \"127.0.0.1:$1\" --vram-card {} \
         --vram-mib 5000 --ttft-ms 1 --tokens-per-sec 0\n",
        dir.join("words").display(),
        card.display(),
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!(
        "  - {{ id: m, task: text-generation, backend: openai, vram: {{ mib: 5000 }}, \
         process: {{ command: [\"{}\", \"{{port}}\"] }} }}\n",
        script.display()
    )
}

/// The pipe whose lines the server writes to its output.
fn pipe(dir: &Path) -> PathBuf {
    let path = dir.join("words");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    path
}

fn path_of(slot: &Value) -> String {
    let instance = slot["instance"].as_str().unwrap().replace('#', "%23");
    format!("/gpu/instances/{instance}/logs")
}

async fn followed(node: &Node, path: &str) -> TestClient {
    let mut client = TestClient::connect(node.admin).await;
    let request = format!("GET {path}?tail=100&follow=1 HTTP/1.1\r\nHost: h\r\n\r\n");
    client.send(request).await;
    client
}

#[tokio::test]
async fn a_followed_log_goes_on_over_the_end_of_the_ring_and_ends_with_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let words = pipe(dir.path());
    let more = "  logs: { keep_mib: 1 }\n";
    let node = Node::start(&host_with(dir.path(), more, &[talking(dir.path())])).await;
    serve(&node, "m").await;
    let slot = becomes(&node, "m", "ready").await;
    let mut client = followed(&node, &path_of(&slot)).await;
    client.saw("data: life ").await;
    // More than the ring holds, in pieces that a follower keeps up with.
    let mut written = OpenOptions::new().write(true).open(&words).unwrap();
    for round in 0..12 {
        let text = format!("{}\n", "x".repeat(1000)).repeat(100) + &format!("round {round}\n");
        written.write_all(text.as_bytes()).unwrap();
        client.saw(&format!("data: round {round}\n\n")).await;
    }
    // In one piece: where the line is, the rest without an end has been read too.
    written.write_all(b"last line\nand words").unwrap();
    client.saw("data: last line\n\n").await;
    signal(&slot, "-KILL");
    let answer = client.response().await;
    assert!(answer.is_event_stream(), "{:?}", answer.headers);
    let text = answer.text();
    assert!(
        text.ends_with("event: ended\ndata: the process has ended\n\n"),
        "{}",
        &text[text.len() - 200..]
    );
    assert!(text.contains("data: and words\n\n"));
    assert!(!text.contains("event: missed"));
    let rounds = answer
        .events()
        .iter()
        .filter(|it| it.starts_with("round "))
        .count();
    assert_eq!(rounds, 12);
    // It can be read to its end afterwards too.
    let again = followed(&node, &path_of(&slot)).await.response().await;
    assert!(again.text().contains("data: round 11\n\n"));
    assert!(
        again
            .text()
            .ends_with("event: ended\ndata: the process has ended\n\n")
    );
    let unknown = node
        .get("/gpu/instances/m%230-00c0ffee/logs?follow=1")
        .await;
    assert_eq!(unknown.status, 404, "{}", unknown.text());
}

#[tokio::test]
async fn followers_are_bounded_and_one_that_leaves_gives_its_place_back() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[model("m", 8000, "", "")])).await;
    serve(&node, "m").await;
    let path = path_of(&becomes(&node, "m", "ready").await);
    let mut clients = Vec::new();
    for _ in 0..32 {
        let mut client = followed(&node, &path).await;
        client.saw(": follows").await;
        clients.push(client);
    }
    let refused = followed(&node, &path).await.response().await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("32 logs are followed"));
    clients.pop();
    let begin = tokio::time::Instant::now();
    let mut next = eventually("the place is free", async || {
        let mut client = followed(&node, &path).await;
        client.saw("\r\n\r\n").await;
        let head = String::from_utf8_lossy(client.pending()).into_owned();
        head.starts_with("HTTP/1.1 200").then_some(client)
    })
    .await;
    // Long before the next comment of a quiet log.
    assert!(begin.elapsed() < std::time::Duration::from_secs(10));
    next.saw(": follows").await;
}

fn logs(node: &Node, more: &[&str]) -> Command {
    let mut logs = Command::new(INFERGATE);
    logs.args(["logs", "--admin", &node.admin.to_string()]);
    logs.args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    logs
}

async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn the_command_shows_and_follows_the_present_process_and_shows_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let _words = pipe(dir.path());
    let node = Node::start(&host(dir.path(), &[talking(dir.path())])).await;
    becomes(&node, "m", "cold").await;
    let none = output(logs(&node, &["m"])).await;
    assert_eq!(none.status.code(), Some(1));
    serve(&node, "m").await;
    let first = becomes(&node, "m", "ready").await;
    let shown = output(logs(&node, &["m"])).await;
    assert_eq!(shown.status.code(), Some(0));
    let life = stdout(&shown).lines().next().unwrap().to_owned();
    assert!(life.starts_with("life "), "{life}");

    let mut following: Child = logs(&node, &["m", "-f", "--slot", "0"]).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    let seen = tokio::task::spawn_blocking(move || {
        let line = lines.next().unwrap().unwrap();
        (line, lines)
    });
    let (line, lines) = seen.await.unwrap();
    assert_eq!(line, life);
    signal(&first, "-KILL");
    let ended = tokio::task::spawn_blocking(move || {
        lines.for_each(drop);
        following.wait_with_output().unwrap()
    });
    let ended = ended.await.unwrap();
    assert_eq!(ended.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the process has ended"));

    eventually("another process serves", async || {
        let present = slot(&node, "m").await;
        if present["state"] == "cold" {
            serve(&node, "m").await;
        }
        (present["state"] == "ready" && present["instance"] != first["instance"]).then_some(())
    })
    .await;
    let before = output(logs(&node, &["m", "--previous"])).await;
    assert_eq!(stdout(&before).lines().next(), Some(&*life));
    let now = output(logs(&node, &["m"])).await;
    assert_ne!(stdout(&now).lines().next(), Some(&*life));
    let unknown = output(logs(&node, &["other"])).await;
    assert_eq!(unknown.status.code(), Some(1));
}
