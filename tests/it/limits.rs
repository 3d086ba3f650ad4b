//! Sizes and counts a client cannot exceed, and what fits within them arrives whole.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::time::Instant;

use crate::support::{
    A_WHILE, LIMIT, Node, ScriptedServer, SimulatedServer, TestClient, accounts, chat, eventually,
    json_answer, model_of, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const MIB: usize = 1 << 20;

/// A chat of exactly `length` bytes in which no two places look alike.
fn chat_of(length: usize) -> String {
    let empty = chat("m", r#","pad":"""#);
    let mut pad = String::with_capacity(length);
    let mut number = 0_u64;
    while pad.len() < length - empty.len() {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        pad += &format!("{number:x}.");
    }
    pad.truncate(length - empty.len());
    let body = chat("m", &format!(r#","pad":"{pad}""#));
    assert_eq!(body.len(), length);
    body
}

/// The body in chunks of odd sizes.
fn in_chunks(body: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + 1024);
    let mut rest = body;
    let mut size = 1;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(size.min(rest.len()));
        out.extend(format!("{:x}\r\n{piece}\r\n", piece.len()).bytes());
        rest = after;
        size = size * 7 % 262_139 + 1;
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn chunked_head() -> String {
    format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
}

/// Waits until the memory of all bodies is given back, which is after the last byte of the answer.
async fn no_body_is_held(node: &Node) {
    eventually("no body is held", async || {
        (node.metric("infergate_buffered_body_bytes").await? == 0.0).then_some(())
    })
    .await;
}

fn body_of(request: &str) -> &str {
    request.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn bodies_of_any_length_arrive_whole_announced_or_in_chunks() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let mut sent = 0;
    for length in [65_535, 65_536, 65_537, 300_000, 20 * MIB] {
        let body = chat_of(length);
        let answer = node.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{length}: {}", answer.text());
        let chunked = [chunked_head().as_bytes(), &in_chunks(&body)].concat();
        assert_eq!(
            TestClient::exchange(node.clients, chunked).await.status,
            200,
            "{length} in chunks"
        );
        sent += 2;
        let requests = backend.requests();
        assert_eq!(requests.len(), sent);
        for request in &requests[sent - 2..] {
            assert!(
                body_of(request) == body,
                "{length}: the backend saw another body"
            );
            assert!(request.contains(&format!("content-length: {length}\r\n")));
        }
    }
}

#[tokio::test]
async fn a_body_that_has_to_be_edited_arrives_whole_too() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let body = chat_of(70_000);
    let with_ours = format!(r#"{{"x_priority":5,{}"#, &body[1..]);
    assert_eq!(node.post(CHAT, &with_ours).await.status, 200);
    assert!(body_of(&backend.requests()[0]) == body);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_announced_or_in_chunks() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let limits = "limits: { request_body_mib: 1 }\n";
    let node = Node::start(&format!("{limits}{}", one_model(backend.address, 1, ""))).await;
    let fits = chat_of(MIB);
    assert_eq!(node.post(CHAT, &fits).await.status, 200);
    let fits = [chunked_head().as_bytes(), &in_chunks(&fits)].concat();
    assert_eq!(TestClient::exchange(node.clients, fits).await.status, 200);
    let over = chat_of(MIB + 1);
    let answer = node.post(CHAT, &over).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["code"], "request_too_large");
    let over = [chunked_head().as_bytes(), &in_chunks(&over)].concat();
    let answer = TestClient::exchange(node.clients, over).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.header("connection"), Some("close"));
    assert_eq!(backend.requests().len(), 2);
}

#[tokio::test]
async fn bodies_over_the_budget_of_all_are_refused_before_they_are_read() {
    let backend = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let limits = "limits: { request_body_mib: 2, buffered_bodies_mib: 3 }\n";
    let node = Node::start(&format!("{limits}{}", one_model(backend.address, 1, ""))).await;
    let body = chat_of(2 * MIB);
    let mut first = node.client().await;
    first.post("", CHAT, &body).await;
    eventually("the first is held", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    // Only the head: the answer comes without the body.
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        2 * MIB
    );
    let refused = TestClient::exchange(node.clients, head).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    assert!(refused.header("retry-after").is_some());
    assert_eq!(node.events(1).await[0]["error_code"], "3051");
    backend.next();
    assert_eq!(first.response().await.status, 200);
    // What was held is given back.
    no_body_is_held(&node).await;
    let mut again = node.client().await;
    again.post("", CHAT, &body).await;
    eventually("there is room again", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    backend.next();
    assert_eq!(again.response().await.status, 200);
}

#[tokio::test]
async fn a_body_that_stops_coming_is_refused_after_the_idle_time() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let timeouts = "timeouts: { request_body_idle_secs: 1 }\n";
    let node = Node::start(&format!("{timeouts}{}", one_model(backend.address, 1, ""))).await;
    let head = |framing: &str| format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n");
    for start in [
        head("Content-Length: 100"),
        head("Content-Length: 100") + "{\"model\"",
        head("Transfer-Encoding: chunked"),
        head("Transfer-Encoding: chunked") + "5\r\n{\"mod",
        head("Content-Length: 100\r\nExpect: 100-continue"),
    ] {
        let mut client = node.client().await;
        client.send(&start).await;
        if start.contains("Expect") {
            assert_eq!(client.interim().await, 100);
        }
        let answer = client.response().await;
        assert_eq!(answer.status, 408, "{start}");
        assert_eq!(answer.json()["error"]["code"], "request_timeout");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    for event in node.events(5).await {
        assert_eq!(event["error_code"], "3007");
        assert_eq!(event["outcome"], "refused");
    }
}

#[tokio::test]
async fn a_body_that_keeps_coming_is_not_cut_by_the_idle_time() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let timeouts = "timeouts: { request_body_idle_secs: 3 }\n";
    let node = Node::start(&format!("{timeouts}{}", one_model(backend.address, 1, ""))).await;
    // Ten times as fast as it must be, in all pieces.
    let body = chat_of(36_000);
    let mut client = node.client().await;
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    client.send(head).await;
    for piece in body.as_bytes().chunks(body.len() / 12) {
        assert!(!client.closes_within(A_WHILE).await);
        client.send(piece).await;
    }
    assert_eq!(client.response().await.status, 200);
    assert_eq!(body_of(&backend.requests()[0]), body);
    let event = node.events(1).await.remove(0);
    let whole = event["request_time_ms"].as_u64().unwrap();
    assert!(whole >= 3000, "longer than the idle time in all: {event}");
}

#[tokio::test]
async fn a_client_that_leaves_while_it_sends_is_told_apart_from_a_slow_one() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let node = Node::start(&one_model(backend.address, 1, "")).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{{");
    for leave in [TestClient::close, TestClient::reset] {
        let mut client = node.client().await;
        client.send(&head).await;
        eventually("its body is awaited", async || {
            (node.metric("infergate_buffered_body_bytes").await? >= 1.0).then_some(())
        })
        .await;
        leave(client);
        no_body_is_held(&node).await;
    }
    for event in node.events(2).await {
        assert_eq!(event["outcome"], "cut-by-client", "{event}");
        assert_eq!(event["status"], 0, "{event}");
    }
}

#[tokio::test]
async fn a_client_has_as_many_connections_as_it_may() {
    let server = SimulatedServer::fast().await;
    let limits = "limits: { connections_per_client: 3 }\n";
    let node = Node::start(&format!("{limits}{}", one_model(server.address, 1, ""))).await;
    let ask = async |client: &mut TestClient| {
        client.post("", CHAT, &chat("m", "")).await;
        client.response().await.status
    };
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut client = node.client().await;
        assert_eq!(ask(&mut client).await, 200);
        open.push(client);
    }
    let mut over = node.client().await;
    let refused = over.response().await;
    assert_eq!((refused.status, refused.broken), (503, false));
    assert_eq!(refused.json()["error"]["code"], "overloaded");
    assert!(over.closes_within(LIMIT).await);
    // Another address has its own count, and a connection that ends makes room.
    let mut other = TestClient::connect_from(Ipv4Addr::new(127, 0, 0, 2), node.clients).await;
    assert_eq!(ask(&mut other).await, 200);
    open.pop();
    eventually("there is room again", async || {
        let mut client = node.client().await;
        (ask(&mut client).await == 200).then_some(())
    })
    .await;
    let metrics = node.get("/metrics").await.text();
    let refused = metrics
        .lines()
        .find(|line| line.contains("refused") && line.contains("per-client-limit"))
        .unwrap_or_else(|| panic!("{metrics}"));
    assert!(!refused.ends_with(" 0"), "{refused}");
}

#[tokio::test]
async fn slow_readers_of_long_answers_cost_little_memory() {
    const READERS: usize = 20;
    const ANSWER: usize = 20_000_000;
    let text = format!(r#"{{"text":"{}","usage":null}}"#, "a".repeat(ANSWER - 25));
    let answer = json_answer(&text);
    let backend = ScriptedServer::new(&[&answer]).await;
    // A slow machine may take its time to read it all.
    let mut config = String::from("timeouts: { model_floor_secs: 240 }\nmodels:\n");
    config += &model_of("m", "text-generation", "openai", backend.address)
        .replace("max_concurrent_requests: 2", "max_concurrent_requests: 20");
    let node = Node::start(&config).await;
    // What a first request allocates for good is not theirs.
    let mut first = node.client().await;
    first.post("", CHAT, &chat("m", "")).await;
    assert_eq!(first.response().await.body.len(), text.len());
    let before = node.resident_bytes();
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut client = node.client().await;
        client.post("", CHAT, &chat("m", "")).await;
        client.saw("HTTP/1.1 200 OK").await;
        readers.push(client);
    }
    let mut grown = 0;
    let mut sample = || grown = grown.max(node.resident_bytes().saturating_sub(before));
    // A megabyte each in turn, so that all of them stay in the middle of their answers.
    for _ in 0..3 {
        for reader in &mut readers {
            assert!(reader.discard(MIB).await >= MIB);
            sample();
        }
    }
    assert_eq!(
        node.permits_used().await,
        READERS as u64,
        "none is at its end"
    );
    // What all readers together are kept, and a little for each.
    const KEPT_FOR_ALL_BYTES: u64 = 64 << 20;
    assert!(
        grown < KEPT_FOR_ALL_BYTES + READERS as u64 * 3_000_000,
        "grown by {grown}"
    );
    drop(readers);
    node.idle().await;
}

/// The beginning of an upload of 8 MiB by the account of `key`.
fn upload_head(key: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n",
        8 * MIB
    )
}

#[tokio::test]
async fn uploads_that_announce_much_and_send_little_take_nothing_from_others() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let limits = "limits: { request_body_mib: 8, buffered_bodies_mib: 32 }\n";
    let config = format!(
        "{limits}{}{}",
        accounts(""),
        one_model(backend.address, 1, "")
    );
    let node = Node::start(&config).await;
    let mut uploads = Vec::new();
    for _ in 0..16 {
        let mut client = node.client().await;
        client.send(upload_head("key-a") + "{").await;
        uploads.push(client);
    }
    eventually("all of them have begun", async || {
        (node.metric("infergate_buffered_body_bytes").await? == 16.0).then_some(())
    })
    .await;
    let other = "Authorization: Bearer key-b\r\n";
    assert_eq!(
        node.post_as(other, CHAT, &chat_of(8 * MIB)).await.status,
        200
    );
}

#[tokio::test]
async fn an_account_that_fills_its_part_with_bytes_leaves_others_theirs() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let limits = "limits: { request_body_mib: 8, buffered_bodies_mib: 32 }\n";
    let config = format!(
        "{limits}{}{}",
        accounts(""),
        one_model(backend.address, 1, "")
    );
    let node = Node::start(&config).await;
    let mut uploads = Vec::new();
    for _ in 0..5 {
        let mut client = node.client().await;
        client
            .send(upload_head("key-a") + &" ".repeat(8 * MIB - 1))
            .await;
        uploads.push(client);
    }
    // Three fit beside what is kept for others.
    eventually("its part is full", async || {
        (node.metric("infergate_buffered_body_bytes").await? >= 24e6).then_some(())
    })
    .await;
    let other = "Authorization: Bearer key-b\r\n";
    assert_eq!(
        node.post_as(other, CHAT, &chat_of(8 * MIB)).await.status,
        200
    );
    drop(uploads);
    no_body_is_held(&node).await;
}

#[tokio::test]
async fn a_body_that_drips_is_refused_though_it_never_stops() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let timeouts = "timeouts: { request_body_idle_secs: 2 }\n";
    let node = Node::start(&format!("{timeouts}{}", one_model(backend.address, 1, ""))).await;
    let mut client = node.client().await;
    client
        .send(format!(
            "POST {CHAT} HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n\r\n"
        ))
        .await;
    while !client.closes_within(A_WHILE).await {
        client.send(" ").await;
    }
    let answer = client.response().await;
    assert_eq!(answer.status, 408);
    assert_eq!(answer.json()["error"]["code"], "request_timeout");
}

#[tokio::test]
async fn a_body_whose_framing_drips_is_as_silent_as_one_that_stops() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let timeouts = "timeouts: { request_body_idle_secs: 2 }\n";
    let node = Node::start(&format!("{timeouts}{}", one_model(backend.address, 1, ""))).await;
    for begin in ["1;", "1\r\n{\r\n1;", "1\r\n{\r\n0\r\nx: "] {
        let mut client = node.client().await;
        client
            .send(format!(
                "POST {CHAT} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{begin}"
            ))
            .await;
        let began = Instant::now();
        while !client.closes_within(A_WHILE).await {
            client.send("a").await;
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{begin:?} drips on"
            );
        }
        assert_eq!(client.response().await.status, 408, "{begin:?}");
    }
    assert_eq!(backend.requests().len(), 0);
}

#[tokio::test]
async fn who_cannot_be_served_is_refused_before_the_body_is_asked_for() {
    let backend = ScriptedServer::new(&[&json_answer("{}")]).await;
    let more = ", requests_per_minute: 1";
    let config = format!("{}{}", accounts(more), one_model(backend.address, 1, ""));
    let node = Node::start(&config).await;
    let ask = async |path: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer key-a\r\n\
             Expect: 100-continue\r\nContent-Length: 20000000\r\n\r\n"
        );
        TestClient::exchange(node.clients, head).await.status
    };
    assert_eq!(ask("/ai/run/nowhere").await, 400);
    // A body that is not JSON is one of the account's requests.
    let key = "Authorization: Bearer key-a\r\n";
    assert_eq!(node.post_as(key, CHAT, "{").await.status, 400);
    assert_eq!(node.post_as(key, CHAT, "{").await.status, 429);
    assert_eq!(ask(CHAT).await, 429);
    assert_eq!(ask("/ai/run/m").await, 429);
    assert_eq!(backend.requests().len(), 0);
}

#[tokio::test]
async fn all_clients_together_have_as_many_connections_as_they_may() {
    let server = SimulatedServer::fast().await;
    let limits = "limits: { connections: 2 }\n";
    let node = Node::start(&format!("{limits}{}", one_model(server.address, 1, ""))).await;
    let mut open = Vec::new();
    for last in [2, 3] {
        let mut client =
            TestClient::connect_from(Ipv4Addr::new(127, 0, 0, last), node.clients).await;
        client.post("", CHAT, &chat("m", "")).await;
        assert_eq!(client.response().await.status, 200);
        open.push(client);
    }
    let mut over = node.client().await;
    assert_eq!(over.response().await.status, 503);
    drop(open);
    eventually("there is room again", async || {
        (node.post(CHAT, &chat("m", "")).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn heads_without_an_end_cost_their_limit_at_most_and_are_answered_there() {
    const STRANGERS: usize = 200;
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let before = node.resident_bytes();
    let endless = format!(
        "GET /v1/models HTTP/1.1\r\nHost: h\r\nx-a: {}",
        "a".repeat(MIB)
    );
    let mut strangers = Vec::new();
    for _ in 0..STRANGERS {
        let mut client = node.client().await;
        client.send(&endless).await;
        strangers.push(client);
    }
    for stranger in &mut strangers {
        assert_eq!(stranger.response().await.status, 431);
    }
    let grown = node.resident_bytes().saturating_sub(before);
    assert!(grown < 40_000_000, "grown by {grown}");
}

#[tokio::test]
async fn a_task_has_a_limit_a_minute_of_its_own_which_the_refusal_names() {
    let server = SimulatedServer::fast().await;
    let limits = ", requests_per_minute: 100, requests_per_minute_by_task: { text-generation: 2 }";
    let models = format!(
        "models:\n{}{}",
        crate::support::model_of("m", "text-generation", "openai", server.address),
        crate::support::model_of("e", "text-embeddings", "openai", server.address),
    );
    let node = Node::start(&format!("{}{models}", accounts(limits))).await;
    let key = "Authorization: Bearer key-a\r\n";
    let ask = async || {
        node.post_as(key, "/v1/chat/completions", &chat("m", ""))
            .await
    };
    for _ in 0..2 {
        assert_eq!(ask().await.status, 200);
    }
    let refused = ask().await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "rate_limit_exceeded");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("text-generation")
    );
    let retry_after: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&retry_after), "{retry_after}");
    // It took nothing of the limit of all.
    let left = refused.header("x-ratelimit-remaining-requests").unwrap();
    assert!(left.parse::<u32>().unwrap() >= 98, "{left}");
    assert_eq!(node.event_of(&refused).await["error_code"], "971");
    let trace = node.explain(refused.header("x-request-id").unwrap()).await;
    assert_eq!(trace["refusal"]["cause"], "task-rate-limited");
    assert_eq!(trace["refusal"]["message"], error["message"]);
    // Another task, and another account.
    let body = r#"{"model":"e","input":"x"}"#;
    assert_eq!(node.post_as(key, "/v1/embeddings", body).await.status, 200);
    let other = "Authorization: Bearer key-b\r\n";
    let body = chat("m", "");
    let other = node.post_as(other, "/v1/chat/completions", &body).await;
    assert_eq!(other.status, 200);
}
