//! Limits that end a WebSocket: silence, duration, the account's day, and the end of the process.

use super::*;
use crate::support::accounts;

#[tokio::test]
async fn a_silent_connection_is_closed_and_one_with_pings_is_not() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(
        server.address,
        4,
        "    websocket_idle_secs: 1\n",
    ))
    .await;
    let mut silent = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(0).await;
    assert_eq!(
        silent.closed().await,
        (1001, "idle for too long".to_owned())
    );
    let mut received = socket.until_gone().await;
    let (first, payload) = crate::support::websocket::take_frame(&mut received).unwrap();
    assert_eq!(
        (first, payload),
        (0x88, close_payload(1001, "idle for too long"))
    );
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(
        (&event["outcome"], &event["reason"]),
        (&"completed".into(), &"idle".into())
    );
    assert!(
        event["metrics"]["connection_secs"].as_f64().unwrap() >= 1.0,
        "{event}"
    );

    let mut alive = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(1).await;
    // Longer than the idle time, a ping each 50 ms.
    let mut pauses = tokio::time::interval(std::time::Duration::from_millis(50));
    for pings in 1..=50 {
        pauses.tick().await;
        alive.send(masked(0x89, b"")).await;
        socket.until_received(6 * pings).await;
    }
    socket.send(&plain(0x81, b"still here"));
    assert_eq!(alive.text().await, "still here");
}

#[tokio::test]
async fn a_connection_lasts_no_longer_than_it_may() {
    let server = simulated().await;
    let more = "    max_connection_duration_secs: 1\n    websocket_idle_secs: 30\n";
    let node = Node::start(&one_socket(server.address, 4, more)).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let closed = client.closed().await;
    assert_eq!(closed, (1001, "open for as long as it may be".to_owned()));
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(
        (&event["outcome"], &event["reason"]),
        (&"completed".into(), &"duration".into())
    );
    node.idle().await;
}

#[tokio::test]
async fn a_day_that_is_used_up_by_the_connection_itself_or_by_others_closes_it_with_1008() {
    let server = simulated().await;
    let account = accounts(", neurons_per_day: 1000");
    let tariff = "    tariff: { cost_per_infer: 1, coefficients: { bytes_in: 1 } }\n";
    let node = Node::start(&(account + &one_socket(server.address, 4, tariff))).await;
    let key = "Authorization: Bearer key-a\r\n";
    let mut first = WebSocketClient::open(node.clients, PATH, key)
        .await
        .unwrap();
    let mut other = WebSocketClient::open(node.clients, PATH, key)
        .await
        .unwrap();
    other.send_text("x").await;
    assert_eq!(other.text().await, "x");
    first.send(masked(0x82, &[1; 2000])).await;
    assert_eq!(first.frame().await.unwrap().1.len(), 2000);
    let (code, reason) = first.closed().await;
    assert_eq!(code, 1008);
    assert!(reason.contains("used up"), "{reason}");
    assert_eq!(other.closed().await.0, 1008);
    let events = node.events(2).await;
    assert!(
        events.iter().all(|event| event["reason"] == "quota"),
        "{events:?}"
    );
    let neurons: f64 = events
        .iter()
        .map(|event| event["neurons"].as_f64().unwrap())
        .sum();
    assert_eq!(neurons, 2.0 + 2008.0 + 7.0);
    node.idle().await;
}

#[tokio::test]
async fn a_drain_waits_for_connections_until_its_end_and_closes_them_then() {
    let server = simulated().await;
    let timeouts = "timeouts: { drain_delay_secs: 0, drain_timeout_secs: 2 }\n";
    let config = format!("{timeouts}{}", one_socket(server.address, 4, ""));
    let mut node = Node::start(&config).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let mut leaving = WebSocketClient::connect(node.clients, PATH).await;
    node.signal("TERM");
    eventually("nobody is accepted any more", async || {
        TcpStream::connect(node.clients)
            .await
            .is_err()
            .then_some(())
    })
    .await;
    client.send_text("during the drain").await;
    assert_eq!(client.text().await, "during the drain");
    leaving.send_close(1000, "").await;
    assert_eq!(leaving.closed().await.0, 1000);
    assert_eq!(
        client.closed().await,
        (1001, "this node is shutting down".to_owned())
    );
    assert_eq!(node.ended().await.code(), Some(0));
    let events = node.events(2).await;
    let mut reasons: Vec<_> = events
        .iter()
        .map(|event| event["reason"].to_string())
        .collect();
    reasons.sort();
    assert_eq!(reasons, ["\"drain\"", "null"]);
}

#[tokio::test]
async fn a_connection_that_a_second_signal_drops_is_billed_for_what_it_has_used() {
    let server = simulated().await;
    let tariff = "    tariff: { cost_per_infer: 1, coefficients: { bytes_in: 1 } }\n";
    let timeouts = "timeouts: { drain_delay_secs: 0, drain_timeout_secs: 600 }\n";
    let config = format!("{timeouts}{}", one_socket(server.address, 4, tariff));
    let mut node = Node::start(&config).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    client.send_text("hello").await;
    assert_eq!(client.text().await, "hello");
    node.signal("TERM");
    eventually("nobody is accepted any more", async || {
        TcpStream::connect(node.clients)
            .await
            .is_err()
            .then_some(())
    })
    .await;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(1));
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(event["neurons"], 12.0, "{event}");
    let secs = event["metrics"]["connection_secs"].as_f64();
    assert!(secs.is_some_and(|secs| secs > 0.0), "{event}");
}

#[tokio::test]
async fn a_drain_ends_at_once_when_the_last_connection_does() {
    let server = simulated().await;
    let timeouts = "timeouts: { drain_delay_secs: 0, drain_timeout_secs: 600 }\n";
    let config = format!("{timeouts}{}", one_socket(server.address, 4, ""));
    let mut node = Node::start(&config).await;
    let client = WebSocketClient::connect(node.clients, PATH).await;
    node.signal("TERM");
    drop(client);
    assert_eq!(node.ended().await.code(), Some(0));
}
