//! The log when standard error is not read: lines are dropped and counted, requests go on.

use std::process::Stdio;

use crate::support::{Node, SimulatedServer, TestClient, chat, eventually, one_model};

#[tokio::test]
async fn a_standard_error_that_nobody_reads_stops_no_request() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "log: {{ level: debug }}\n{}",
        one_model(server.address, 1, "")
    );
    // The pipe holds 64 KiB; its other end stays open, unread, with the child.
    let node = Node::start_with_stderr(&config, Stdio::piped());
    eventually("it is ready", async || {
        let ready = TestClient::try_get(node.admin, "/readyz").await?;
        (ready.status == 200).then_some(())
    })
    .await;
    // A line each, of more than 60 bytes.
    for _ in 0..2_000 {
        assert_eq!(
            TestClient::exchange(node.clients, "GARBAGE\r\n\r\n")
                .await
                .status,
            400
        );
    }
    let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(answer.status, 200);
    let dropped = node.metric("infergate_log_lines_dropped_total").await;
    assert_eq!(dropped, Some(0.0), "they fit into the queue");
}
