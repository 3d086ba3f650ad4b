//! Handshakes: what is refused before a server hears of it, and what a server may answer.

use super::*;
use crate::support::websocket::{KEY, upgrade_fields};
use crate::support::{TestClient, accounts, eventually};

fn without(name: &str) -> String {
    let fields = upgrade_fields();
    let kept = fields
        .split_inclusive("\r\n")
        .filter(|line| !line.starts_with(name));
    kept.collect()
}

/// Heads that open nothing, with the status that they get.
fn broken() -> Vec<(u16, String)> {
    let get = |fields: String| format!("GET {PATH} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
    let mut cases = vec![
        (426, get(without("Upgrade"))),
        (426, get(without("Upgrade") + "Upgrade: h2c\r\n")),
        (426, get(without("Upgrade") + "Upgrade: websockets\r\n")),
        (400, get(without("Connection"))),
        (
            400,
            get(without("Connection") + "Connection: keep-alive\r\n"),
        ),
        (426, get(without("Sec-WebSocket-Version"))),
        (400, get(without("Sec-WebSocket-Key"))),
        (
            400,
            get(upgrade_fields() + &format!("Sec-WebSocket-Key: {KEY}\r\n")),
        ),
        (400, get(upgrade_fields() + "Sec-WebSocket-Version: 13\r\n")),
        (400, get(upgrade_fields() + "Content-Length: 1\r\n") + "x"),
        (
            400,
            get(upgrade_fields() + "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
        ),
        (
            426,
            format!("GET {PATH} HTTP/1.0\r\nHost: h\r\n{}\r\n", upgrade_fields()),
        ),
        (
            400,
            format!("GET {PATH} HTTP/1.1\r\n{}\r\n", upgrade_fields()),
        ),
        (
            404,
            format!(
                "PUT {PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
        (
            404,
            format!(
                "OPTIONS {PATH} HTTP/1.1\r\nHost: h\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
        (
            404,
            format!(
                "POST /v1/realtime?model=ws HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
        (
            400,
            format!(
                "GET /v1/realtime HTTP/1.1\r\nHost: h\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
        (
            404,
            format!(
                "GET /v1/realtime?model=none HTTP/1.1\r\nHost: h\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
        (
            404,
            format!(
                "GET /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{}\r\n",
                upgrade_fields()
            ),
        ),
    ];
    for version in ["0", "8", "12", "14", "013", "x", "13, 8", ""] {
        let fields =
            without("Sec-WebSocket-Version") + &format!("Sec-WebSocket-Version: {version}\r\n");
        cases.push((426, get(fields)));
    }
    for key in [
        "",
        "x",
        "dGhlIHNhbXBsZSBub25jZQ=",
        "dGhlIHNhbXBsZSBub25jZQ",
        "dGhlIHNhbXBsZSBub25jZR==",
        "dGhlIHNhbXBsZSBub25jZQ==x",
        "dGhlIHNhbXBsZSBub25j-Q==",
        "dGhlIHNhbXBsZSBub25jZSE=",
        "dGhlIHNhbXBsZSBub25jZSBvZg==",
    ] {
        let fields = without("Sec-WebSocket-Key") + &format!("Sec-WebSocket-Key: {key}\r\n");
        cases.push((400, get(fields)));
    }
    for protocol in ["a b", "a, a", "a;b", "a/b", "\"a\"", "(a)"] {
        let fields = upgrade_fields() + &format!("Sec-WebSocket-Protocol: {protocol}\r\n");
        cases.push((400, get(fields)));
    }
    cases
}

#[tokio::test]
async fn a_broken_handshake_is_refused_and_reaches_no_server() {
    let server = RecordingServer::start().await;
    let node = Node::start(&one_socket(server.address, 4, "")).await;
    for (status, head) in broken() {
        let answer = TestClient::exchange(node.clients, &head).await;
        assert_eq!(answer.status, status, "{head}\n{}", answer.text());
        if status == 426 {
            assert_eq!(answer.header("sec-websocket-version"), Some("13"), "{head}");
            assert_eq!(answer.header("upgrade"), Some("websocket"), "{head}");
        }
    }
    assert_eq!(server.handshakes(), 0);
    node.idle().await;
}

#[tokio::test]
async fn key_model_and_quota_are_looked_at_before_the_101() {
    let server = RecordingServer::start().await;
    let account = accounts(", neurons_per_day: 10");
    let tariff = "    tariff: { cost_per_infer: 10 }\n";
    let node = Node::start(&(account + &one_socket(server.address, 4, tariff))).await;
    let ask = async |path: &str, key: &str| {
        let fields = format!("Authorization: Bearer {key}\r\n");
        let opened = WebSocketClient::open(node.clients, path, &fields).await;
        opened
            .map(|client| client.head.clone())
            .unwrap_or_else(|answer| answer)
    };
    assert!(ask(PATH, "none").await.starts_with("HTTP/1.1 401 "));
    let hidden = ask("/ai/run/none", "key-b").await;
    assert!(
        hidden.starts_with("HTTP/1.1 400 ") && hidden.contains("5007"),
        "{hidden}"
    );
    let unknown = ask("/v1/realtime?model=none", "key-b").await;
    assert!(unknown.contains("\"model_not_found\""), "{unknown}");
    assert_eq!(server.handshakes(), 0);
    assert!(ask(PATH, "key-a").await.starts_with("HTTP/1.1 101 "));
    node.idle().await;
    let spent = eventually("the day is used up", async || {
        let answer = ask("/v1/realtime?model=ws", "key-a").await;
        (!answer.starts_with("HTTP/1.1 101 ")).then_some(answer)
    });
    let spent = spent.await;
    assert!(
        spent.starts_with("HTTP/1.1 429 ") && spent.contains("insufficient_quota"),
        "{spent}"
    );
}

#[tokio::test]
async fn another_answer_than_101_is_relayed_or_refused_as_that_of_any_request() {
    for (answer, status, attempts_at) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok",
            200,
            "ok",
        ),
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\n{\"error\":\"no such session\"}",
            404,
            "no such session",
        ),
        (
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
            502,
            "3054",
        ),
        (
            "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
            429,
            "3040",
        ),
        (
            "HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n",
            502,
            "3050",
        ),
        (
            "HTTP/1.1 500 Failed\r\nContent-Length: 4\r\n\r\noops",
            500,
            "the model server failed",
        ),
    ] {
        let server = RecordingServer::answering(move |_| answer.to_owned()).await;
        let other = RecordingServer::start().await;
        let config = one_socket(server.address, 4, "")
            + &format!(
                "      - {{ {}, priority: 1 }}\n",
                endpoint(other.address, 4)
            );
        let node = Node::start(&config).await;
        let refused = WebSocketClient::open(node.clients, PATH, "Connection: close\r\n").await;
        let got = refused.err().unwrap_or_else(|| panic!("{answer}"));
        assert!(
            got.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}: {got}"
        );
        assert!(got.contains(attempts_at), "{answer}: {got}");
        assert_eq!(
            (server.handshakes(), other.handshakes()),
            (1, 0),
            "{answer}"
        );
        node.idle().await;
    }
}

#[tokio::test]
async fn a_101_that_does_not_fit_the_handshake_is_a_failure_of_the_server() {
    let fitting = accepting("");
    for answer in [
        fitting.replace("s3pPLMBi", "s3pPLMBj"),
        fitting.replace("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n", ""),
        fitting.replace("Upgrade: websocket", "Upgrade: h2c"),
        fitting.replace("Connection: Upgrade", "Connection: close"),
        accepting("Sec-WebSocket-Extensions: permessage-deflate\r\n"),
        accepting("Sec-WebSocket-Protocol: nobody-asked\r\n"),
    ] {
        let sent = answer.clone();
        let server = RecordingServer::answering(move |_| sent.clone()).await;
        let node = Node::start(&one_socket(server.address, 4, "")).await;
        let refused = WebSocketClient::open(node.clients, PATH, "").await.err();
        let got = refused.unwrap_or_else(|| panic!("{answer}"));
        assert!(got.starts_with("HTTP/1.1 502 "), "{answer}: {got}");
        assert_eq!(server.handshakes(), 1);
        eventually("the log says why", async || {
            node.log().contains("opens no WebSocket").then_some(())
        })
        .await;
        server.socket(0).await.until_gone().await;
        node.idle().await;
    }
}

#[tokio::test]
async fn a_server_that_was_not_reached_leaves_the_handshake_to_another_one() {
    let refusing = crate::support::RefusingServer::new();
    let server = RecordingServer::start().await;
    let config = one_socket(refusing.address, 4, "")
        + &format!(
            "      - {{ {}, priority: 1 }}\n",
            endpoint(server.address, 4)
        );
    let node = Node::start(&config).await;
    let _client = WebSocketClient::connect(node.clients, PATH).await;
    assert_eq!(server.handshakes(), 1);
}
