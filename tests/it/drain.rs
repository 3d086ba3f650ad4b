//! The end of a process: readiness fails first, what runs is finished, and nobody waits longer
//! than needed.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::{
    ANSWER, Authority, LIMIT, Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestClient, chat,
    chunk, eventually, handshake, one_model,
};

/// Longer than any test here takes: whoever waits for it fails.
const NEVER_SECS: u64 = 600;

fn with_timeouts(server: std::net::SocketAddr, delay: u64, timeout: u64) -> String {
    format!(
        "timeouts: {{ drain_delay_secs: {delay}, drain_timeout_secs: {timeout} }}\n{}",
        one_model(server, 2, "")
    )
}

async fn until_draining(node: &Node) {
    eventually("readiness fails", async || {
        let ready = node.get("/readyz").await;
        (ready.status == 503).then(|| assert!(ready.text().contains("draining")))
    })
    .await;
}

async fn until_refused(node: &Node) {
    eventually("nobody accepts any more", async || {
        TestClient::try_get(node.clients, "/v1/models")
            .await
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_idle_node_exits_with_0_at_once() {
    let server = SimulatedServer::fast().await;
    for signal in ["TERM", "INT"] {
        let mut node = Node::start(&with_timeouts(server.address, 0, NEVER_SECS)).await;
        assert_eq!(
            node.post("/v1/chat/completions", &chat("m", ""))
                .await
                .status,
            200
        );
        node.signal(signal);
        assert_eq!(node.ended().await.code(), Some(0));
        // Its event was on the way and is not lost.
        assert_eq!(node.events(1).await.len(), 1);
    }
}

#[tokio::test]
async fn during_the_delay_readiness_fails_but_requests_are_served_and_told_to_go_elsewhere_next() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&with_timeouts(server.address, NEVER_SECS, NEVER_SECS)).await;
    let mut kept = node.client().await;
    kept.post("", "/v1/chat/completions", &chat("m", "")).await;
    let before = kept.response().await;
    assert_ne!(before.header("connection"), Some("close"));
    node.signal("TERM");
    until_draining(&node).await;
    assert_eq!(node.get("/healthz").await.status, 200);
    assert_eq!(node.state().await["node"]["draining"], true);
    kept.post("", "/v1/chat/completions", &chat("m", "")).await;
    let on_a_kept_connection = kept.response().await;
    assert_eq!(on_a_kept_connection.status, 200);
    assert_eq!(on_a_kept_connection.header("connection"), Some("close"));
    assert!(kept.closes_within(LIMIT).await);
    let on_a_new_one = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(on_a_new_one.status, 200);
    assert_eq!(on_a_new_one.header("connection"), Some("close"));
}

#[tokio::test]
async fn after_the_delay_an_idle_node_exits_with_0() {
    let server = SimulatedServer::fast().await;
    let mut node = Node::start(&with_timeouts(server.address, 1, NEVER_SECS)).await;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(0));
}

#[tokio::test]
async fn what_runs_is_finished_and_then_the_process_ends() {
    let delta = |text: &str| {
        chunk(&format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n"
        ))
    };
    let first = format!("{STREAM_HEAD}{}", delta("one"));
    let rest = format!("{}{}0\r\n\r\n", delta("two"), chunk("data: [DONE]\n\n"));
    let server = ScriptedServer::new(&[&first, &rest]).await;
    let mut node = Node::start(&with_timeouts(server.address, 0, NEVER_SECS)).await;
    let mut client = node.posting("", r#","stream":true"#).await.0;
    client.saw("one").await;
    node.signal("TERM");
    until_refused(&node).await;
    assert!(node.is_running());
    server.next();
    let answer = client.response().await;
    assert!(!answer.broken);
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    assert_eq!(node.ended().await.code(), Some(0));
    assert_eq!(node.events(1).await[0]["outcome"], "completed");
}

#[tokio::test]
async fn a_request_that_waits_in_the_queue_is_finished_too() {
    let server = ScriptedServer::held().await;
    let config = format!(
        "timeouts: {{ drain_timeout_secs: {NEVER_SECS} }}\n{}",
        one_model(server.address, 1, "")
    );
    let mut node = Node::start(&config).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    let waiter = node.posting("", "").await;
    node.settles(1, 1).await;
    node.signal("TERM");
    until_refused(&node).await;
    for (count, posted) in [(1, holder), (2, waiter)] {
        eventually("it is at the server", async || {
            (server.requests().len() == count).then_some(())
        })
        .await;
        server.next();
        assert_eq!(posted.answer().await.text(), ANSWER);
    }
    assert_eq!(node.ended().await.code(), Some(0));
    let events = node.events(2).await;
    let served = events.iter().filter(|event| event["model_id"] == "m");
    assert!(served.clone().all(|event| event["outcome"] == "completed"));
    assert_eq!(served.count(), 2);
}

#[tokio::test]
async fn what_does_not_end_by_itself_is_cut_at_the_timeout() {
    let server = ScriptedServer::held().await;
    let mut node = Node::start(&with_timeouts(server.address, 0, 1)).await;
    let mut stuck = node.posting("", "").await.0;
    node.settles(1, 0).await;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(0));
    assert!(stuck.closes_within(LIMIT).await);
    assert!(
        node.log().contains("drain timeout passed"),
        "{}",
        node.log()
    );
    let event = node.events(1).await.remove(0);
    assert_eq!(
        (&event["outcome"], &event["status"]),
        (&"failed".into(), &0.into())
    );
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once_with_1() {
    let server = ScriptedServer::held().await;
    let mut node = Node::start(&with_timeouts(server.address, NEVER_SECS, NEVER_SECS)).await;
    let _stuck = node.posting("", "").await;
    node.settles(1, 0).await;
    node.signal("TERM");
    until_draining(&node).await;
    assert!(node.is_running());
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(1));
}

#[tokio::test]
async fn idle_kept_connections_do_not_hold_the_process_up() {
    let server = SimulatedServer::fast().await;
    let mut node = Node::start(&with_timeouts(server.address, 0, NEVER_SECS)).await;
    let mut used = node.client().await;
    used.post("", "/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(used.response().await.status, 200);
    let mut unused = node.client().await;
    node.signal("TERM");
    assert!(used.closes_within(LIMIT).await);
    assert!(unused.closes_within(LIMIT).await);
    assert_eq!(node.ended().await.code(), Some(0));
}

/// A node whose listener has these keys, and whose clients have a minute for what comes before a request.
async fn patient(listener: &str, server: &SimulatedServer) -> Node {
    let limits = "limits: { header_timeout_secs: 600, handshake_timeout_secs: 60 }\n";
    let rest = with_timeouts(server.address, 0, NEVER_SECS);
    Node::start(&format!("  listener: {listener}\n{limits}{rest}")).await
}

/// Ends a node with one more connection than its metrics have seen, and asks that nobody waits for that one.
async fn ends_in_spite_of_it(mut node: Node) {
    let accepted = "infergate_connections_accepted_total";
    eventually("it is accepted", async || {
        (node.metric(accepted).await? >= 1.0).then_some(())
    })
    .await;
    let began = Instant::now();
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn connections_that_do_not_come_to_a_request_do_not_hold_the_process_up() {
    let server = SimulatedServer::fast().await;
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let tls = format!("tls: {{ {keys} }}");
    for (listener, begin) in [
        (&*tls, &b""[..]),
        (&tls, b"\x16\x03\x01"),
        ("http2: clear", b""),
        ("http2: clear", b"PRI * HTTP/2.0\r\n"),
        ("proxy_protocol: required", b""),
    ] {
        let node = patient(listener, &server).await;
        let mut silent = TcpStream::connect(node.clients).await.unwrap();
        silent.write_all(begin).await.unwrap();
        ends_in_spite_of_it(node).await;
    }
    let node = patient(&tls, &server).await;
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let _silent = handshake(tcp, "localhost", &authority, None, &["h2"]).await;
    ends_in_spite_of_it(node).await;
}

#[tokio::test]
async fn the_delay_is_not_sat_through_by_a_node_that_a_second_signal_ends() {
    let server = SimulatedServer::fast().await;
    let mut node = Node::start(&with_timeouts(server.address, NEVER_SECS, NEVER_SECS)).await;
    node.signal("INT");
    until_draining(&node).await;
    node.signal("TERM");
    assert_eq!(node.ended().await.code(), Some(1));
}
