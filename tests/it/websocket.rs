//! WebSockets: relayed frame by frame behind the steps of every request, and ended by whichever limit comes first.

mod corpus;
mod handshake;
mod limits;

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::future::join_all;
use infergate::simulate;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::websocket::{
    RecordingServer, WebSocketClient, accepting, close_payload, masked, plain,
};
use crate::support::{
    Authority, Node, SimulatedServer, TlsFront, accounts, endpoint, eventually,
    handshake as tls_handshake, model_of,
};

const PATH: &str = "/ai/run/ws";

/// Model `ws` of plain HTTP at an address, with further keys of the model.
fn one_socket(address: SocketAddr, permits: u32, more: &str) -> String {
    let endpoint = endpoint(address, permits);
    format!(
        "models:\n  - id: ws\n    task: dumb-pipe\n    backend: http\n    endpoints:\n      - {{ {endpoint} }}\n{more}"
    )
}

async fn simulated() -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        dialect: simulate::Dialect::Http,
        ..simulate::Config::instant()
    })
    .await
}

#[tokio::test]
async fn messages_pass_in_both_directions_and_one_event_has_what_they_used() {
    let server = SimulatedServer::start(simulate::Config {
        dialect: simulate::Dialect::Http,
        cost_metrics: vec![simulate::CostMetric {
            name: "sessions".into(),
            value: 2.0,
        }],
        ..simulate::Config::instant()
    })
    .await;
    let tariff =
        "    tariff: { cost_per_infer: 1, coefficients: { bytes_in: 0.5, sessions: 3 } }\n";
    let node = Node::start(&one_socket(server.address, 4, tariff)).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    assert!(client.head.contains("x-request-id: "), "{}", client.head);
    client.send_text("hello").await;
    assert_eq!(client.text().await, "hello");
    // Counted once it is open, which the client may see before.
    let open = "infergate_websockets{model=\"ws\"}";
    assert_eq!(node.metric(open).await, Some(1.0));
    client.send(masked(0x89, b"p")).await;
    assert_eq!(client.frame().await, Some((0x8a, b"p".to_vec())));
    let large = vec![7; 300_000];
    client.send(masked(0x82, &large)).await;
    assert_eq!(client.frame().await, Some((0x82, large.clone())));
    client.send_text("tokens:hi").await;
    client.text().await;
    client.send_close(1000, "").await;
    assert_eq!(client.closed().await.0, 1000);
    assert_eq!(client.frame().await, None);
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(
        (&event["status"], &event["outcome"]),
        (&101.into(), &"completed".into())
    );
    let metrics = &event["metrics"];
    let sent = 11 + 7 + (14 + large.len()) + 15 + 8;
    assert_eq!(metrics["bytes_in"].as_f64(), Some(sent as f64), "{event}");
    assert!(
        metrics["bytes_out"].as_f64().unwrap() > large.len() as f64,
        "{event}"
    );
    assert!(
        metrics["connection_secs"].as_f64().unwrap() > 0.0,
        "{event}"
    );
    assert_eq!(
        event["neurons"].as_f64(),
        Some(1.0 + sent as f64 / 2.0 + 6.0),
        "{event}"
    );
    assert!(event["time_to_first_token_ms"].is_number(), "{event}");
    let closed = "infergate_websockets_closed_total{model=\"ws\",reason=\"client\"}";
    assert_eq!(node.metric(closed).await, Some(1.0));
    eventually("it is counted no more", async || {
        (node.metric(open).await == Some(0.0)).then_some(())
    })
    .await;
    node.idle().await;
}

#[tokio::test]
async fn the_realtime_path_names_the_model_in_its_query_and_again_to_the_server() {
    let server = RecordingServer::start().await;
    let config = one_socket(server.address, 4, "").replace(
        "max_concurrent_requests: 4",
        "max_concurrent_requests: 4, backend_model: \"inner/name\"",
    );
    let node = Node::start(&format!("{}{config}", accounts(""))).await;
    let path = "/v1/realtime?intent=x&model=ws";
    let fields = "Authorization: Bearer key-a\r\nCookie: c\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\
                  Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.key-a\r\nUser-Agent: t\r\n";
    let _client = WebSocketClient::open(node.clients, path, fields)
        .await
        .unwrap();
    let head = server.socket(0).await.head.clone().to_ascii_lowercase();
    assert!(
        head.starts_with("get /v1/realtime?model=inner%2fname http/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("sec-websocket-protocol: realtime\r\n"),
        "{head}"
    );
    assert!(head.contains("user-agent: t\r\n"), "{head}");
    for hidden in [
        "authorization",
        "cookie",
        "insecure",
        "extensions",
        "content-",
        "x-forwarded",
    ] {
        assert!(!head.contains(hidden), "{hidden}: {head}");
    }
}

#[tokio::test]
async fn a_subprotocol_that_the_server_chooses_is_the_clients() {
    let server =
        RecordingServer::answering(|_| accepting("Sec-WebSocket-Protocol: b\r\nServer: s\r\n"));
    let server = server.await;
    let node = Node::start(&one_socket(server.address, 4, "")).await;
    let offer = "Sec-WebSocket-Protocol: a, b\r\n";
    let client = WebSocketClient::open(node.clients, PATH, offer)
        .await
        .unwrap();
    assert!(
        client.head.contains("sec-websocket-protocol: b\r\n"),
        "{}",
        client.head
    );
    assert!(!client.head.contains("server: s"), "{}", client.head);
}

#[tokio::test]
async fn both_sides_may_speak_tls() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let server = simulated().await;
    let front = TlsFront::start(&authority.certify("localhost"), server.address).await;
    let ca = authority.write(dir.path());
    let keys = authority.certify("a.example").write(dir.path(), "a");
    let endpoint = format!(
        "url: \"https://localhost:{}\", ca_file: \"{ca}\"",
        front.address.port()
    );
    let config = format!(
        "  listener: tls: {{ {keys} }}\nmodels:\n  - id: ws\n    task: dumb-pipe\n    backend: http\n    endpoints:\n      - {{ {endpoint} }}\n"
    );
    let node = Node::start(&config).await;
    let tcp = TcpStream::connect(node.clients).await.unwrap();
    let tls = tls_handshake(tcp, "a.example", &authority, None, &[])
        .await
        .unwrap();
    let early = masked(0x81, b"early");
    let mut client = WebSocketClient::over(tls, PATH, "", &early).await.unwrap();
    assert_eq!(client.text().await, "early");
    let large = vec![9; 1_000_000];
    client.send(masked(0x82, &large)).await;
    assert_eq!(client.frame().await, Some((0x82, large)));
    client.send_text("close:4321").await;
    assert_eq!(client.closed().await, (4321, "as asked".to_owned()));
    node.idle().await;
}

#[tokio::test]
async fn close_codes_pass_both_ways_and_data_passes_between_the_two_close_frames() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 4, "")).await;
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(0).await;
    client.send_close(4000, "client's own").await;
    let sent = masked(0x88, &close_payload(4000, "client's own"));
    assert_eq!(socket.until_received(sent.len()).await, sent);
    socket.send(&plain(0x81, b"last words"));
    socket.send(&plain(0x88, &close_payload(4001, "server's own")));
    assert_eq!(client.text().await, "last words");
    assert_eq!(client.closed().await, (4001, "server's own".to_owned()));
    assert_eq!(client.frame().await, None);
    socket.until_gone().await;

    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(1).await;
    socket.send(&plain(0x88, b""));
    assert_eq!(client.closed().await.0, 1005);
    client.send(masked(0x88, b"")).await;
    assert_eq!(socket.until_gone().await, masked(0x88, b""));
    let events = node.events(2).await;
    assert!(
        events.iter().all(|event| event["outcome"] == "completed"),
        "{events:?}"
    );
    assert!(
        events.iter().all(|event| event["reason"].is_null()),
        "{events:?}"
    );
}

#[tokio::test]
async fn the_permit_is_held_to_the_end_and_comes_back_with_each_kind_of_it() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 1, "")).await;
    for round in 0..5 {
        let mut client = WebSocketClient::connect(node.clients, PATH).await;
        let socket = server.socket(round).await;
        node.settles(1, 0).await;
        let refused =
            WebSocketClient::open(node.clients, PATH, "x-infergate-queue: reject\r\n").await;
        assert!(refused.is_err_and(|answer| answer.contains(" 429 ")));
        match round {
            0 => drop(client),
            1 => client.reset(),
            2 => {
                socket.close();
                assert_eq!(client.closed().await.0, 1011);
            }
            3 => {
                client.send(b"\xff\xff").await;
                assert_eq!(client.closed().await.0, 1002);
            }
            _ => {
                client.send_close(1000, "").await;
                socket.until_received(8).await;
                drop(client);
            }
        }
        node.idle().await;
        socket.until_gone().await;
    }
    let events = node.events(10).await;
    let opened = events.iter().filter(|event| event["status"] == 101);
    let ends: Vec<_> = opened
        .map(|event| (event["outcome"].clone(), event["reason"].clone()))
        .collect();
    let end =
        |outcome: &str, reason: Option<&str>| -> (Value, Value) { (outcome.into(), reason.into()) };
    assert_eq!(
        ends,
        [
            end("cut-by-client", Some("client_gone")),
            end("cut-by-client", Some("client_gone")),
            end("cut-by-backend", Some("server_gone")),
            end("cut-by-client", Some("client_fault")),
            end("completed", None),
        ]
    );
}

#[tokio::test]
async fn an_open_connection_is_paid_whoever_leaves_it_also_where_cut_requests_are_free() {
    let server = RecordingServer::start().await;
    let tariff =
        "    tariff: { cost_per_infer: 1, coefficients: { bytes_in: 1 }, charge_cut: none }\n";
    let node = Node::start(&one_socket(server.address, 4, tariff)).await;
    for round in 0..3 {
        let mut client = WebSocketClient::connect(node.clients, PATH).await;
        let socket = server.socket(round).await;
        client.send_text("hello").await;
        socket.until_received(11).await;
        match round {
            0 => drop(client),
            1 => client.reset(),
            _ => {
                socket.close();
                client.closed().await;
            }
        }
        let event = node.events(round + 1).await.pop().unwrap();
        assert_eq!(event["neurons"], 12.0, "{event}");
    }
}

#[tokio::test]
async fn a_server_hears_that_its_client_is_gone() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 1, "")).await;
    drop(WebSocketClient::connect(node.clients, PATH).await);
    let mut received = server.socket(0).await.until_gone().await;
    let (first, payload) = crate::support::websocket::take_frame(&mut received).unwrap();
    assert_eq!(
        (first, payload),
        (0x88, close_payload(1001, "client is gone"))
    );
}

#[tokio::test]
async fn a_client_that_takes_nothing_stops_the_server_and_gets_all_in_the_end() {
    const FRAMES: usize = 800;
    const FRAME_BYTES: usize = 64 * 1024;
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 1, "")).await;
    let before = node.resident_bytes();
    let mut client = WebSocketClient::connect(node.clients, PATH).await;
    let socket = server.socket(0).await;
    for number in 0..FRAMES {
        socket.send(&plain(0x82, &vec![number as u8; FRAME_BYTES]));
    }
    // The other direction goes on meanwhile.
    for text in ["a", "b"] {
        client.send_text(text).await;
    }
    socket.until_received(14).await;
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(
        grown < 16 << 20,
        "{grown} bytes for a client that reads nothing"
    );
    for number in 0..FRAMES {
        let (first, payload) = client.frame().await.unwrap();
        assert_eq!((first, payload.len()), (0x82, FRAME_BYTES));
        assert!(payload.iter().all(|byte| *byte == number as u8), "{number}");
    }
}

#[tokio::test]
async fn upgrades_to_an_instant_server_are_closed_by_nobody() {
    const AT_A_TIME: usize = 20;
    let upgrades = std::env::var("INFERGATE_UPGRADES");
    let upgrades: usize = upgrades.map_or(1000, |text| text.parse().unwrap());
    // The first frame comes in one segment with the 101.
    let answer = || [accepting("").as_bytes(), &plain(0x81, b"hello")[..]].concat();
    let server = RecordingServer::answering(move |_| answer()).await;
    let node = Arc::new(Node::start(&one_socket(server.address, 64, "")).await);
    for _ in 0..upgrades / AT_A_TIME {
        let clients = (0..AT_A_TIME).map(|_| async {
            let mut client = WebSocketClient::connect(node.clients, PATH).await;
            assert_eq!(client.text().await, "hello");
            client
        });
        // All are open, and the next ones only then.
        let mut clients = join_all(clients).await;
        for client in &mut clients {
            client.send_close(1000, "").await;
        }
    }
    assert_eq!(server.handshakes(), upgrades);
    let events = node.events(upgrades).await;
    assert!(events.iter().all(|event| event["status"] == 101));
    node.idle().await;
}

#[tokio::test]
async fn a_server_that_fails_behind_the_101_is_not_asked_again() {
    let server = simulated().await;
    let node = Node::start(&one_socket(server.address, 4, "")).await;
    let fault = "x-sim-fault: reset-mid-stream\r\n";
    let mut client = WebSocketClient::open(node.clients, PATH, fault)
        .await
        .unwrap();
    client.send_text("x").await;
    assert_eq!(
        client.closed().await,
        (1011, "the model server is gone".to_owned())
    );
    let event = node.events(1).await.pop().unwrap();
    assert_eq!(
        (&event["outcome"], &event["attempts"]),
        (&"cut-by-backend".into(), &1.into())
    );
    node.idle().await;
}

#[tokio::test]
async fn only_models_of_plain_http_whose_input_nobody_reads_take_a_websocket() {
    let server = simulated().await;
    let capped = one_socket(
        server.address,
        4,
        "    parameters: { max: { max_tokens: 5 } }\n",
    );
    let capped = capped.replace("dumb-pipe", "text-generation");
    let chat = model_of("chat", "text-generation", "openai", server.address);
    let config = capped.replace("max_concurrent_requests: 4", "max_concurrent_requests: 2") + &chat;
    let node = Node::start(&config).await;
    for (model, reason) in [
        ("ws", "because of its parameters"),
        ("chat", "takes no WebSocket"),
    ] {
        let path = format!("/ai/run/{model}");
        let refused = WebSocketClient::open(node.clients, &path, "").await;
        let answer = refused.err().unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") && answer.contains(reason),
            "{answer}"
        );
    }
    eventually("no connection is left", async || {
        (server.count("current").await == 0).then_some(())
    })
    .await;
}
