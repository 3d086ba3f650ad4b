//! Calls of a plugin, captured while it serves and replayed by the tools.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{
    Node, SimulatedServer, TestClient, TestResponse, accounts, chat, eventually, flat_price,
    one_model, trapping_price,
};

async fn node_with(server: &SimulatedServer, component: &[u8]) -> (Node, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.wasm"), component).unwrap();
    let model = "    tariff: { cost_per_infer: 1 }\n    plugins: { billing: p }\n";
    let config = format!(
        "{}{}plugins:\n  - {{ name: p, world: billing-formula, file: {}/p.wasm, dev: true }}\n\
         state_dir: {}/state\n",
        accounts(""),
        one_model(server.address, 4, model),
        dir.path().display(),
        dir.path().display()
    );
    (Node::start(&config).await, dir)
}

async fn capture(node: &Node, path: &str) -> TestResponse {
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    TestClient::exchange(node.admin, head).await
}

async fn ask(node: &Node, key: &str) {
    let headers = format!("Authorization: Bearer {key}\r\n");
    let answer = node
        .post_as(&headers, "/v1/chat/completions", &chat("m", ""))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn lines(file: &Path, count: usize) -> Vec<Value> {
    let lines = eventually("the calls are in the file", async || {
        let text = std::fs::read_to_string(file).unwrap();
        (text.lines().count() == count && text.ends_with('\n')).then_some(text)
    })
    .await;
    let lines = lines.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn replay(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["plugin", "replay"])
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

#[tokio::test]
async fn calls_are_captured_on_request_and_replayed() {
    let server = SimulatedServer::fast().await;
    let (node, dir) = node_with(&server, &flat_price(2.5)).await;
    ask(&node, "key-a").await;
    assert!(
        !dir.path().join("state/captures").exists(),
        "off by default"
    );

    let started = capture(&node, "/plugins/p/capture?calls=3").await;
    assert_eq!(started.status, 200, "{}", started.text());
    assert_eq!(started.json()["calls"], 3);
    let file = Path::new(started.json()["file"].as_str().unwrap()).to_owned();
    assert!(file.starts_with(dir.path().join("state/captures")));
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(node.state().await["plugins"][0]["capturing"], 3);
    let twice = capture(&node, "/plugins/p/capture?calls=3").await;
    assert_eq!(twice.status, 409, "{}", twice.text());

    for key in ["key-a", "key-b", "key-a", "key-b", "key-a"] {
        ask(&node, key).await;
    }
    let calls = lines(&file, 3).await;
    let who: Vec<&Value> = calls
        .iter()
        .map(|call| &call["captured"]["account"])
        .collect();
    assert_eq!(who, [&json!("a"), &json!("b"), &json!("a")]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("key-"), "no header and no key: {text}");

    let component = dir.path().join("p.wasm");
    let (file, component) = (file.to_str().unwrap(), component.to_str().unwrap());
    let (code, printed) = replay(&[file, component]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains("3 calls as expected"), "{printed}");
    let (code, printed) = replay(&["--call", "2", "--json", file, component]);
    assert_eq!(code, 0, "{printed}");
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["answer"]["total"], 2.5);
    assert_eq!(replay(&["--call", "4", file, component]).0, 1);

    // It has ended: the next one may begin.
    eventually("another capture may begin", async || {
        let started = capture(&node, "/plugins/p/capture?calls=1").await;
        (started.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_failing_call_is_captured_with_how_it_failed() {
    let server = SimulatedServer::fast().await;
    let (node, dir) = node_with(&server, &trapping_price()).await;
    for (path, status) in [
        ("/plugins/q/capture?calls=1", 404),
        ("/plugins/p/capture?calls=0", 400),
        ("/plugins/p/capture?calls=1001", 400),
        ("/plugins/p/capture", 400),
    ] {
        assert_eq!(capture(&node, path).await.status, status, "{path}");
    }
    let started = capture(&node, "/plugins/p/capture?calls=1").await;
    let file = started.json()["file"].as_str().unwrap().to_owned();
    ask(&node, "key-a").await;
    let calls = lines(Path::new(&file), 1).await;
    assert_eq!(calls[0]["expect-error"]["class"], "trapped");
    let component = dir.path().join("p.wasm");
    let (code, printed) = replay(&[&file, component.to_str().unwrap()]);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("trapped") && printed.contains("as expected"),
        "{printed}"
    );
}
