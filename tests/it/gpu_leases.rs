//! Leases of the host through the admin listener: models and commands listed, and none freed while its holder lives.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::gpu_host::{becomes, host, model, serve};
use crate::support::{Node, TestClient, TestResponse, eventually};

const INFERGATE: &str = env!("CARGO_BIN_EXE_infergate");

/// A command that waits under a lease, killed when it is dropped.
struct LeasedCommand(Child);

impl LeasedCommand {
    fn start(dir: &Path) -> LeasedCommand {
        let mut lease = Command::new(INFERGATE);
        lease.arg("lease").arg("--cards").arg(dir.join("cards"));
        lease.arg("--ledger").arg(dir.join("ledger"));
        lease.args(["--vram", "1000MiB", "--name", "train", "--", "cat"]);
        // It reads until it is killed.
        LeasedCommand(lease.stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for LeasedCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn leases(node: &Node) -> Value {
    let listed = node.get("/gpu/leases").await;
    assert_eq!(listed.status, 200, "{}", listed.text());
    listed.json()
}

async fn delete(node: &Node, id: &Value) -> TestResponse {
    let path = format!("/gpu/leases/{}", id.as_str().unwrap());
    let request = format!("DELETE {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    TestClient::exchange(node.admin, request).await
}

#[tokio::test]
async fn leases_of_models_and_commands_are_listed_and_stay_while_their_holders_live() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&host(dir.path(), &[model("m", 8000, "", "")])).await;
    serve(&node, "m").await;
    let slot = becomes(&node, "m", "ready").await;
    let command = LeasedCommand::start(dir.path());
    let listed = eventually("both are listed", async || {
        let listed = leases(&node).await;
        let all = listed["leases"].as_array().unwrap();
        let are_held = all.iter().all(|it| it["devices"][0]["state"] == "held");
        (all.len() == 2 && are_held).then_some(listed)
    })
    .await;
    let (of_model, of_command) = (&listed["leases"][0], &listed["leases"][1]);
    assert_eq!(
        (&of_model["kind"], &of_model["name"], &of_model["model"]),
        (&json!("slot"), &json!("m#0"), &json!("m"))
    );
    assert_eq!(of_model["devices"][0]["device"], "sim0");
    assert_eq!(of_model["devices"][0]["mib"], slot["leases"][0]["mib"]);
    assert_eq!(
        (&of_command["kind"], &of_command["name"], &of_command["pid"]),
        (&json!("job"), &json!("train"), &json!(command.0.id()))
    );
    assert_eq!(of_command["process"], "alive");
    assert_eq!(listed["claims"], json!([]));
    let one = format!(
        "/gpu/leases/{}",
        of_model["devices"][0]["lease"].as_str().unwrap()
    );
    assert_eq!(node.get(&one).await.json()["id"], of_model["id"]);

    let refused = delete(&node, &of_model["id"]).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("infergate gpu unload m"));
    let refused = delete(&node, &of_command["devices"][0]["lease"]).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(refused.text().contains("end the process"));
    assert_eq!(leases(&node).await["leases"].as_array().unwrap().len(), 2);

    let gone = of_command["id"].clone();
    drop(command);
    // The gateway frees it by itself as soon as it sees that the process is gone.
    let freed = delete(&node, &gone).await;
    assert!(matches!(freed.status, 200 | 404), "{}", freed.text());
    let left = leases(&node).await;
    assert_eq!(left["leases"].as_array().unwrap().len(), 1, "{left}");
    let again = delete(&node, &gone).await;
    assert_eq!(again.status, 404, "{}", again.text());
    let posted = TestClient::exchange(
        node.admin,
        "POST /gpu/leases HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(posted.await.status, 405);
    serve(&node, "m").await;
}
