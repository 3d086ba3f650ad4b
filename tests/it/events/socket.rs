//! The socket beside the event file: shares, reloads, and a receiver that is away.

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;
use tokio::time::timeout;

use crate::support::{LIMIT, Node, SimulatedServer, eventually, one_model};

#[tokio::test]
async fn a_receiver_gets_the_lines_of_the_file_and_a_reload_follows_its_address() {
    let server = SimulatedServer::fast().await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (first, second) = (at("a"), at("b"));
    let listener = UnixListener::bind(&first).unwrap();
    let file = at("events.jsonl");
    let config = |socket: &std::path::Path| {
        format!(
            "events: {{ file: {{ path: \"{}\" }}, unix_socket: {{ path: \"{}\" }} }}\n{}",
            file.display(),
            socket.display(),
            one_model(server.address, 4, "    tariff: { cost_per_infer: 2.5 }\n")
        )
    };
    let node = Node::start(&config(&first)).await;
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    let (stream, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut lines = BufReader::new(stream).lines();
    let line = timeout(LIMIT, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let written = eventually("the line is in the file", async || {
        let text = std::fs::read_to_string(&file).ok()?;
        text.lines().next().map(str::to_owned)
    })
    .await;
    assert_eq!(line, written);
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["neurons"], 2.5);
    assert_eq!(event["sample_interval"], 1);

    // Nobody listens at the other one yet: the gateway serves, and the line waits.
    assert_eq!(node.reload(&config(&second)).await.status, 200);
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    eventually("the reason is shown", async || {
        let counts = node.state().await["events"]["unix_socket"].clone();
        counts["last_error"].is_string().then_some(())
    })
    .await;
    let listener = UnixListener::bind(&second).unwrap();
    let (stream, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert!(
        timeout(LIMIT, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .is_some()
    );
    let sent = "infergate_event_socket_lines_total{result=\"sent\"}";
    eventually("both are counted", async || {
        (node.metric(sent).await? == 2.0).then_some(())
    })
    .await;
    assert_eq!(node.state().await["events"]["unix_socket"]["dropped"], 0);
}
