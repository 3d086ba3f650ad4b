//! Two processes and one `state_dir`: the second is refused, or goes on where the first one ends.

use std::process::Command;

use crate::billing::a_day_with_time_left;
use crate::support::{
    Node, ScriptedServer, accounts, chat, endpoint, eventually, free_address, model,
};

const CHAT: &str = "/v1/chat/completions";
const KEY: &str = "Authorization: Bearer key-a\r\n";

/// An account with ten neurons a day, a model for six and one for nothing.
fn config(state: &std::path::Path, server: &ScriptedServer) -> String {
    let priced = |id: &str, neurons: u32| {
        let tariff = format!("    tariff: {{ cost_per_infer: {neurons} }}\n");
        model(id, &[endpoint(server.address, 4)], &tariff)
    };
    format!(
        "state_dir: \"{}\"\n{}models:\n{}{}",
        state.display(),
        accounts(", neurons_per_day: 10"),
        priced("m", 6),
        priced("free", 0)
    )
}

async fn start_is_refused(node: &Node) -> bool {
    let headers = format!("{KEY}x-infergate-timeout-ms: 1000\r\n");
    let answer = node.post_as(&headers, CHAT, &chat("free", "")).await;
    answer.json()["error"]["code"] == "insufficient_quota"
}

#[tokio::test]
async fn a_second_process_on_a_state_dir_does_not_start_and_says_why() {
    let (dir, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let first = Node::start(&config(dir.path(), &server)).await;
    let text = std::fs::read_to_string(first.config_path()).unwrap();
    let text = text.replace(&first.clients.to_string(), &free_address().to_string());
    let text = text.replace(&first.admin.to_string(), &free_address().to_string());
    let beside = first.dir().join("second.yaml");
    std::fs::write(&beside, text).unwrap();
    let run = move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_infergate"));
        command.args(["serve", "--config"]).arg(beside).output()
    };
    let second = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let why = String::from_utf8_lossy(&second.stderr);
    let expected = format!(
        "state_dir: {} is in use by another process: give each its own",
        dir.path().display()
    );
    assert!(why.contains(&expected), "{why}");
    assert_eq!(first.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn what_a_process_that_drains_still_counts_is_added_to_the_day_of_the_one_that_follows() {
    a_day_with_time_left().await;
    let (dir, server) = (tempfile::tempdir().unwrap(), ScriptedServer::held().await);
    let config = config(dir.path(), &server);
    let mut first = Node::start(&config).await;
    let mut slow = first.client().await;
    slow.post(KEY, CHAT, &chat("m", "")).await;
    first.settles(1, 0).await;
    first.signal("TERM");
    eventually("the first one drains", async || {
        (first.get("/readyz").await.status == 503).then_some(())
    })
    .await;

    let mut second = Node::start(&config).await;
    let mut own = second.client().await;
    own.post(KEY, CHAT, &chat("m", "")).await;
    second.settles(1, 0).await;
    server.next();
    server.next();
    assert_eq!(slow.response().await.status, 200);
    assert_eq!(own.response().await.status, 200);
    drop((slow, own));
    assert!(first.ended().await.success());
    // Six here and six there: the day of ten is used up.
    eventually("what the first one counted last counts", async || {
        start_is_refused(&second).await.then_some(())
    })
    .await;
    second.signal("TERM");
    assert!(second.ended().await.success());
    second.start_again().await;
    assert!(start_is_refused(&second).await);
}
