//! The cloud-fallback guard: a flag that is set while it runs and outlasts any end of the process.

use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{BUSY, ask};
use crate::support::{
    Authority, Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, TlsFront, endpoint,
    eventually, model,
};

/// Model `m` on a server that is busy, above `cloud`, which is somebody else's.
fn over_the_cloud(first: &ScriptedServer, front: &TlsFront, ca: &str, permits: u32) -> String {
    let cloud = format!(
        "url: \"https://{}\", max_concurrent_requests: {permits}, api_key: sk-1, ca_file: \"{ca}\"",
        front.address
    );
    format!(
        "models:\n{}{}",
        model(
            "m",
            &[endpoint(first.address, 1)],
            "    fallbacks: [cloud]\n"
        ),
        model("cloud", &[cloud], "")
    )
}

async fn put(node: &Node, body: &str) -> TestResponse {
    let length = body.len();
    let head = format!("PUT /config/runtime HTTP/1.1\r\nHost: a\r\nContent-Length: {length}");
    TestClient::exchange(node.admin, format!("{head}\r\n\r\n{body}")).await
}

#[tokio::test]
async fn the_guard_bars_fallbacks_to_the_cloud_and_nothing_else_and_outlasts_kill_nine() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let (first, cloud) = (
        ScriptedServer::new(&[BUSY]).await,
        SimulatedServer::fast().await,
    );
    let front = TlsFront::start(&authority.certify("127.0.0.1"), cloud.address).await;
    let config = over_the_cloud(&first, &front, &authority.write(dir.path()), 4);
    let state = format!("state_dir: \"{}\"\n", dir.path().join("state").display());
    let config = format!("{state}{config}");
    let mut node = Node::start(&config).await;
    assert_eq!(
        node.get("/config/runtime").await.json(),
        json!({ "allow_cloud_fallback": true })
    );
    let answer = ask(&node).await;
    assert_eq!(
        answer.header("x-infergate-model"),
        Some("cloud"),
        "{}",
        answer.text()
    );
    assert_eq!(
        node.event_of(&answer).await["flags"]["external_endpoint"],
        true
    );

    let barred = json!({ "allow_cloud_fallback": false });
    let set = put(&node, &barred.to_string()).await;
    assert_eq!((set.status, set.json()), (200, barred.clone()));
    node.signal("KILL");
    node.ended().await;
    let file = dir.path().join("state/runtime.json");
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let mut node = Node::start(&config).await;
    assert_eq!(node.get("/config/runtime").await.json(), barred);
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    // Who asks for the cloud means it.
    let own = node
        .post("/v1/chat/completions", &crate::support::chat("cloud", ""))
        .await;
    assert_eq!(
        (own.status, own.header("x-infergate-model")),
        (200, None),
        "{}",
        own.text()
    );
    // A reload of the file changes nothing about it, and a restart in good order neither.
    assert_eq!(node.post_reload().await.status, 200);
    node.signal("TERM");
    assert!(node.ended().await.success());
    let node = Node::start(&config).await;
    assert_eq!(node.get("/config/runtime").await.json(), barred);
    assert_eq!(
        put(&node, r#"{"allow_cloud_fallback":true}"#).await.status,
        200
    );
    assert_eq!(ask(&node).await.header("x-infergate-model"), Some("cloud"));
}

#[tokio::test]
async fn a_damaged_file_of_flags_stops_the_start_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("runtime.json"), "{\"allow").unwrap();
    let address = crate::support::free_address();
    let config = dir.path().join("infergate.yaml");
    let text = format!(
        "listen: {{ clients: [{{ address: \"{address}\" }}], admin: {{ address: \"{}\" }} }}\n\
         state_dir: \"{}\"\n",
        crate::support::free_address(),
        dir.path().display()
    );
    std::fs::write(&config, text).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["serve", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(printed.contains("runtime.json is damaged"), "{printed}");
}

#[tokio::test]
async fn a_request_that_waits_for_the_cloud_is_not_sent_there_once_the_guard_is_down() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let (first, cloud) = (
        ScriptedServer::new(&[BUSY]).await,
        ScriptedServer::held().await,
    );
    let front = TlsFront::start(&authority.certify("127.0.0.1"), cloud.address).await;
    let config = over_the_cloud(&first, &front, &authority.write(dir.path()), 1);
    let node = Node::start(&config).await;
    let holder = node.posting("", "").await;
    eventually("it has the cloud's permit", async || {
        (cloud.open() == 1).then_some(())
    })
    .await;
    let waiting = node.posting("", "").await;
    eventually("the other waits for it", async || {
        (node.queue_depth().await == 1).then_some(())
    })
    .await;
    let barred = json!({ "allow_cloud_fallback": false });
    assert_eq!(put(&node, &barred.to_string()).await.status, 200);
    cloud.next();
    assert_eq!(
        holder.answer().await.status,
        200,
        "what is under way goes on"
    );
    // It hears what the model said that it asked for.
    let answer = waiting.answer().await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(cloud.requests().len(), 1);
    let event = node.event_of(&answer).await;
    assert_eq!(
        (&event["model_id"], &event["attempts"]),
        (&"m".into(), &1.into())
    );
    node.settles(0, 0).await;
}
