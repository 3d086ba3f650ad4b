//! HTTP/1 as it comes off the wire: what two readers could understand differently is refused
//! before a backend hears of it, and what is merely unusual is served.

mod cases;

use std::time::Duration;

use tokio::task::JoinSet;

use cases::{BODY, CHAT, chunked, post, refused, served, whole_chunk, with};

use crate::support::{
    A_WHILE, Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, accounts, chat,
    eventually, json_answer, one_model,
};

/// Long against what the drips below, and a request in two pieces, take on a slow machine.
const IMPATIENT: &str =
    "limits: { header_timeout_secs: 3 }\ntimeouts: { request_body_idle_secs: 3 }\n";
/// The same with bodies, and a head may take its time.
const IMPATIENT_WITH_BODIES: &str =
    "limits: { header_timeout_secs: 600 }\ntimeouts: { request_body_idle_secs: 3 }\n";
/// Longer than the shorter of them.
const A_LONG_WHILE: Duration = Duration::from_secs(4);

#[tokio::test]
async fn what_two_readers_could_understand_differently_never_reaches_a_backend() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let model = one_model(backend.address, 1, "");
    let node = Node::start(&format!("{IMPATIENT_WITH_BODIES}{model}")).await;
    let cases = refused();
    assert!(cases.len() >= 40);
    let mut answers = JoinSet::new();
    for (name, bytes, expected) in cases {
        let clients = node.clients;
        answers.spawn(async move { (name, expected, TestClient::exchange(clients, bytes).await) });
    }
    let mut wrong = Vec::new();
    while let Some(answer) = answers.join_next().await {
        let (name, expected, answer) = answer.unwrap();
        if !expected.contains(&answer.status) {
            wrong.push(format!("{name}: {} {}", answer.status, answer.text()));
        } else if !is_complete_refusal(&answer) {
            wrong.push(format!("{name}: {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(backend.requests(), [""; 0]);
}

/// A whole answer with an id and a body in the dialect.
fn is_complete_refusal(answer: &TestResponse) -> bool {
    !answer.broken
        && answer
            .header("x-request-id")
            .is_some_and(|id| id.len() == 32)
        && answer.json()["error"]["code"].is_string()
}

#[tokio::test]
async fn what_is_unusual_but_clear_is_served() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let cases = served();
    let count = cases.len();
    for (name, bytes) in cases {
        let answer = TestClient::exchange(node.clients, bytes).await;
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
    let requests = backend.requests();
    assert_eq!(requests.len(), count);
    assert!(requests.iter().all(|request| request.ends_with(BODY)));
}

#[tokio::test]
async fn a_framing_error_on_a_workers_ai_path_is_told_in_its_envelope() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let request = "POST /ai/run/m HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 3\r\n\r\n{}\n";
    let answer = TestClient::exchange(node.clients, request).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["errors"][0]["code"], 3003);
    assert_eq!(answer.json()["success"], false);
}

#[tokio::test]
async fn nothing_after_a_badly_framed_request_is_read_as_another_one() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let smuggled = [
        post(
            "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        with(""),
    ]
    .concat();
    let mut client = node.client().await;
    client.send(smuggled).await;
    assert_eq!(client.response().await.status, 400);
    assert!(client.closes_within(crate::support::LIMIT).await);
    assert_eq!(client.pending(), b"");
    assert_eq!(backend.requests(), [""; 0]);
}

#[tokio::test]
async fn a_dripping_header_is_ended_by_the_time_it_takes_in_all() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&format!("{IMPATIENT}{}", one_model(server.address, 1, ""))).await;
    let mut client = node.client().await;
    client.send(format!("POST {CHAT} HTTP/1.1\r\nX-A: ")).await;
    // Never silent for long: only a limit on the whole ends this.
    let mut drips = 0;
    while !client.closes_within(A_WHILE).await {
        client.send("a").await;
        drips += 1;
        assert!(drips < 100, "still open");
    }
    assert!(drips >= 2, "closed before its time");
    assert_eq!(client.response().await.status, 408);
}

#[tokio::test]
async fn an_idle_connection_outlives_the_header_timer_and_serves_the_next_request() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&format!("{IMPATIENT}{}", one_model(server.address, 1, ""))).await;
    let mut client = node.client().await;
    let fresh = node.client().await;
    client.post("", CHAT, &chat("m", "")).await;
    assert_eq!(client.response().await.status, 200);
    // Longer than the header timer; neither connection is closed meanwhile.
    let mut waiting = fresh;
    assert!(!waiting.closes_within(A_LONG_WHILE).await);
    for client in [&mut client, &mut waiting] {
        client.post("", CHAT, &chat("m", "")).await;
        assert_eq!(client.response().await.status, 200);
    }
}

#[tokio::test]
async fn a_pipelined_pair_is_answered_in_order() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut client = node.client().await;
    let models = "GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n".as_bytes();
    let three = [&with("")[..], models, &chunked(&whole_chunk())[..], models].concat();
    client.send(three).await;
    // The simulator refuses an empty conversation: a status of its own.
    for status in [400, 200, 400, 200] {
        assert_eq!(client.response().await.status, status);
    }
}

#[tokio::test]
async fn a_pipelined_request_is_not_a_departure_while_the_first_is_queued() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut holder = node.client().await;
    holder.send(with("")).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let mut client = node.client().await;
    client.send(with("")).await;
    eventually("one waits", async || {
        (node.queue_depth().await == 1).then_some(())
    })
    .await;
    client
        .send("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
        .await;
    // Still waiting a while after.
    assert!(!client.closes_within(A_WHILE).await);
    assert_eq!(node.queue_depth().await, 1);
    backend.next();
    assert_eq!(holder.response().await.status, 200);
    eventually("it is its turn", async || {
        (backend.requests().len() == 2).then_some(())
    })
    .await;
    backend.next();
    assert_eq!(client.response().await.text(), "{}");
    assert_eq!(client.response().await.json()["object"], "list");
}

#[tokio::test]
async fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&format!(
        "{}{}",
        accounts(""),
        one_model(server.address, 1, "")
    ))
    .await;
    let body = chat("m", "");
    let head = |key: &str| {
        format!(
            "POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
             Expect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
    };
    let mut client = node.client().await;
    client.send(head("key-a")).await;
    assert_eq!(client.interim().await, 100);
    client.send(&body).await;
    assert_eq!(client.response().await.status, 200);
    // And one that is refused is not asked for its body first.
    let mut client = node.client().await;
    client.send(head("wrong")).await;
    let refused = client.response().await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("connection"), Some("close"));
}

#[tokio::test]
async fn an_http_1_0_client_is_served_and_its_connection_closed() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (more, connection) in [
        ("", "close"),
        (r#","stream":true"#, "close"),
        (r#","stream":true"#, "keep-alive"),
    ] {
        let body = chat("m", more);
        let mut client = node.client().await;
        client
            .send(format!(
                "POST {CHAT} HTTP/1.0\r\nHost: h\r\nExpect: 100-continue\r\n\
                 Connection: {connection}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ))
            .await;
        let answer = client.response().await;
        assert_eq!(answer.status, 200, "{more}");
        // Whoever reads up to the close is not told that the connection stays.
        assert_eq!(answer.header("connection"), Some("close"), "{more}");
        assert_eq!(answer.header("transfer-encoding"), None, "{more}");
        assert!(!answer.broken);
        assert!(client.closes_within(crate::support::LIMIT).await);
        match more {
            "" => assert_eq!(answer.json()["object"], "chat.completion"),
            _ => assert_eq!(answer.events().last().unwrap(), "[DONE]"),
        }
    }
}

#[tokio::test]
async fn an_early_refusal_is_readable_by_a_client_that_still_sends() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let config = format!(
        "{}limits: {{ request_body_mib: 1 }}\n{}",
        accounts(", requests_per_minute: 1"),
        one_model(backend.address, 1, "")
    );
    let node = Node::start(&config).await;
    let five_mb = vec![b'x'; 5_000_000];
    for (key, status) in [("key-a", 413), ("wrong", 401)] {
        let mut client = node.client().await;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\
             Content-Length: {}\r\n\r\n",
            five_mb.len()
        );
        // The whole of it in one go, as clients do that read only after they have written.
        client.send([head.as_bytes(), &five_mb].concat()).await;
        let answer = client.response().await;
        assert_eq!(answer.status, status, "{}", answer.text());
        assert!(is_complete_refusal(&answer));
    }
}

#[tokio::test]
async fn a_chunk_line_that_two_readers_could_end_at_two_places_is_refused() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    // A reader that ended the line at the bare line feed would see chunks of other sizes.
    let body = format!("{:x};a\n3\r\n{BODY}\r\n0\r\n\r\n", BODY.len());
    let mut client = TestClient::connect(node.clients).await;
    client.send([chunked(&body), with("")].concat()).await;
    assert_eq!(client.response().await.status, 400);
    assert!(client.closes_within(crate::support::LIMIT).await);
    assert_eq!(client.pending(), b"");
    assert_eq!(backend.requests(), [""; 0]);
}

#[tokio::test]
async fn what_stands_in_a_chunk_extension_reaches_no_server() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let body = format!("{:x};a=\"3\"\r\n{BODY}\r\n0;b\r\n\r\n", BODY.len());
    let mut client = TestClient::connect(node.clients).await;
    client.send([chunked(&body), with("")].concat()).await;
    for _ in 0..2 {
        assert_eq!(client.response().await.status, 200);
    }
    let requests = backend.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, BODY);
        assert!(!head.to_ascii_lowercase().contains("chunked"), "{head}");
    }
}
