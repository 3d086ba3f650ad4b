//! HTTP/2 of clients: requests on streams, their ends, and what a client may not do with them.

use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{
    Authority, Http2Client, LIMIT, Node, SimulatedServer, TestClient, chat, chat_request,
    eventually, handshake, one_model,
};

/// A gateway that speaks HTTP/2 in plain text, with `permits` of model `m`.
async fn clear(server: &SimulatedServer, permits: u32, more: &str) -> Node {
    let models = one_model(server.address, permits, "");
    Node::start(&format!("  listener: http2: clear\n{more}{models}")).await
}

async fn connect(node: &Node) -> Http2Client {
    Http2Client::over(TcpStream::connect(node.clients).await.unwrap()).await
}

#[tokio::test]
async fn many_requests_of_one_connection_get_their_own_answers() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = SimulatedServer::fast().await;
    let keys = authority.certify("localhost").write(dir.path(), "own");
    let models = one_model(server.address, 8, "");
    let node = Node::start(&format!("  listener: tls: {{ {keys} }}\n{models}")).await;
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let offered = ["h2", "http/1.1"];
    let tls = handshake(tcp, "localhost", &authority, None, &offered)
        .await
        .unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let client = Http2Client::over(tls).await;
    // More than there are permits. All are read at a time: what is not read takes from the window of all.
    let mut answers = JoinSet::new();
    for number in 0..24 {
        let request = Request::post("https://localhost/v1/chat/completions")
            .header("content-type", "application/json")
            .header("x-client-request-id", format!("client-{number}"))
            .body(())
            .unwrap();
        let more = match number % 2 {
            0 => "",
            _ => r#","stream":true"#,
        };
        let sent = client.send(request, &chat("m", more)).await;
        answers.spawn(async move { (number, sent.whole().await) });
    }
    while let Some(answer) = answers.join_next().await {
        let (number, answer) = answer.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.header("date").is_some() && answer.header("connection").is_none());
        match number % 2 {
            0 => assert_eq!(answer.json()["object"], "chat.completion"),
            _ => assert!(
                answer.text().ends_with("data: [DONE]\n\n"),
                "{}",
                answer.text()
            ),
        }
        let event = node.event_of(&answer).await;
        assert_eq!(event["client_request_id"], format!("client-{number}"));
        assert_eq!(event["outcome"], "completed");
    }
    node.settles(0, 0).await;
}

#[tokio::test]
async fn both_protocols_are_spoken_at_a_clear_listener() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 8, "").await;
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    // Shorter than the preface of HTTP/2 is.
    let mut short = TestClient::connect(node.clients).await;
    short.send("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(short.response().await.status, 400);
    let client = connect(&node).await;
    assert_eq!(client.chat("").await.status, 200);
    let large = format!(r#","user":"{}""#, "x".repeat(1 << 20));
    assert_eq!(large_chat(&client, &large).await, 200);
    let off = one_model(server.address, 8, "");
    node.reload(&format!("  listener: http2: off\n{off}")).await;
    let mut refused = TestClient::connect(node.clients).await;
    refused.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(refused.response().await.status, 400);
}

/// Sends a body larger than any window, in the pieces that the windows allow.
async fn large_chat(client: &Http2Client, more: &str) -> u16 {
    let body = chat("m", more);
    let mut sent = client.begin(chat_request()).await;
    let mut rest = Bytes::from(body);
    while !rest.is_empty() {
        sent.body.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|cx| sent.body.poll_capacity(cx)).await;
        let room = room.expect("the stream lives").unwrap();
        let piece = rest.split_to(room.min(rest.len()));
        sent.body.send_data(piece, rest.is_empty()).unwrap();
    }
    sent.whole().await.status
}

#[tokio::test]
async fn a_stream_that_is_reset_gives_its_permit_back() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 1, "").await;
    let client = connect(&node).await;
    let stalls = r#","stream":true,"max_tokens":8,"x_sim_fault":"stall-mid-stream""#;
    let working = client.send(chat_request(), &chat("m", stalls)).await;
    let mut working = working.head().await.unwrap();
    working.part().await.unwrap().unwrap();
    // Behind it one waits.
    let mut waiting = client.send(chat_request(), &chat("m", "")).await;
    node.settles(1, 1).await;
    waiting.body.send_reset(h2::Reason::CANCEL);
    node.settles(1, 0).await;
    drop(working);
    node.settles(0, 0).await;
    eventually("the server sees it", async || {
        (server.count("cancelled").await == 1).then_some(())
    })
    .await;
    // The connection serves on.
    assert_eq!(client.chat("").await.status, 200);
    let events = node.events(3).await;
    let outcomes: Vec<&str> = events
        .iter()
        .filter_map(|event| event["outcome"].as_str())
        .collect();
    assert!(outcomes.contains(&"cut-by-client"), "{outcomes:?}");
}

#[tokio::test]
async fn a_connection_that_breaks_gives_all_permits_back() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 4, "").await;
    let client = connect(&node).await;
    let stalls = r#","stream":true,"max_tokens":8,"x_sim_fault":"stall-mid-stream""#;
    let mut working = Vec::new();
    for _ in 0..6 {
        working.push(client.send(chat_request(), &chat("m", stalls)).await);
    }
    node.settles(4, 2).await;
    drop((client, working));
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_server_that_breaks_off_resets_the_stream_and_no_other() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 4, "").await;
    let client = connect(&node).await;
    let breaks = r#","stream":true,"max_tokens":8,"x_sim_fault":"reset-mid-stream""#;
    let cut = client.chat(breaks).await;
    // An error event ends it where the dialect has one; else the stream is reset.
    assert!(
        cut.broken || cut.text().contains("\"error\""),
        "{}",
        cut.text()
    );
    assert_eq!(client.chat("").await.status, 200);
}

#[tokio::test]
async fn errors_are_told_in_the_dialect_and_unread_bodies_are_not_waited_for() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 4, "limits: { request_body_mib: 1 }\n").await;
    let client = connect(&node).await;
    let unknown = client
        .send(chat_request(), &chat("no-such-model", ""))
        .await
        .whole()
        .await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"]["code"], "model_not_found");
    // Announced as too large, and never sent.
    let large = Request::post("https://localhost/v1/chat/completions")
        .header("content-length", (2 << 20).to_string())
        .body(())
        .unwrap();
    let refused = client.begin(large).await.whole().await;
    assert_eq!(refused.status, 413);
    let two_hosts = Request::post("https://localhost/v1/chat/completions")
        .header("host", "other")
        .body(())
        .unwrap();
    assert_eq!(client.send(two_hosts, "{}").await.whole().await.status, 400);
    let head = Request::head("https://localhost/v1/models")
        .body(())
        .unwrap();
    let bodiless = client.send(head, "").await.whole().await;
    assert!(bodiless.body.is_empty());
    assert_eq!(client.chat("").await.status, 200);
}

#[tokio::test]
async fn a_drain_says_goodbye_and_finishes_what_is_at_work() {
    let server = SimulatedServer::taking(300).await;
    let mut node = clear(&server, 4, "").await;
    let mut client = connect(&node).await;
    let mut answers = JoinSet::new();
    for _ in 0..4 {
        let sent = client.send(chat_request(), &chat("m", "")).await;
        answers.spawn(sent.whole());
    }
    node.settles(4, 0).await;
    node.signal("TERM");
    while let Some(answer) = answers.join_next().await {
        assert_eq!(answer.unwrap().status, 200);
    }
    client.ended().await.unwrap();
    assert!(node.ended().await.success());
}

#[tokio::test]
async fn the_last_answer_leaves_before_the_process_ends() {
    let server = SimulatedServer::taking(50).await;
    for _ in 0..8 {
        let mut node = clear(&server, 4, "").await;
        let client = connect(&node).await;
        let sent = client.send(chat_request(), &chat("m", "")).await;
        node.settles(1, 0).await;
        node.signal("TERM");
        assert_eq!(sent.whole().await.status, 200);
        assert!(node.ended().await.success());
    }
}

#[tokio::test]
async fn a_connection_without_requests_ends_in_peace() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 4, "timeouts: { keepalive_secs: 1 }\n").await;
    let mut client = connect(&node).await;
    assert_eq!(client.chat("").await.status, 200);
    client.ended().await.unwrap();
}

#[tokio::test]
async fn a_header_block_without_an_end_keeps_its_connection_no_longer_than_one_at_rest() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 1, "timeouts: { keepalive_secs: 1 }\n").await;
    let mut client = TcpStream::connect(node.clients).await.unwrap();
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    // A field of one byte, and no flag END_HEADERS.
    let headers = b"\0\0\x01\x01\0\0\0\0\x01\x82";
    let begin = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], settings, headers].concat();
    client.write_all(&begin).await.unwrap();
    let mut rest = Vec::new();
    // A reset where the connection ends with unread bytes.
    let _ = timeout(LIMIT, client.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn resets_by_the_hundred_start_no_work_and_end_the_connection() {
    let server = SimulatedServer::taking(50).await;
    let node = clear(&server, 2, "").await;
    let mut client = connect(&node).await;
    let mut sent = 0;
    while sent < 2_000 {
        let Some(mut request) = client.try_send(chat_request(), &chat("m", "")).await else {
            break;
        };
        request.body.send_reset(h2::Reason::CANCEL);
        sent += 1;
    }
    let ended = client.ended().await;
    assert!(ended.is_err() || sent == 2_000, "{ended:?} after {sent}");
    node.settles(0, 0).await;
    let other = connect(&node).await;
    assert_eq!(other.chat("").await.status, 200);
    let reached: u64 = server.count("served").await + server.count("cancelled").await;
    assert!(reached <= 300, "{reached} requests reached the server");
}

#[tokio::test]
async fn a_reader_that_opens_no_window_holds_no_memory_and_is_cut_off() {
    let server = SimulatedServer::fast().await;
    let node = clear(&server, 1, "timeouts: { stream_idle_secs: 1 }\n").await;
    let client = connect(&node).await;
    // More than the window takes, and nothing is read.
    let long = r#","stream":true,"max_tokens":4000"#;
    let stuck = client.send(chat_request(), &chat("m", long)).await;
    let stuck = stuck.head().await.unwrap();
    node.settles(0, 0).await;
    drop(stuck);
    assert_eq!(client.chat("").await.status, 200);
}
