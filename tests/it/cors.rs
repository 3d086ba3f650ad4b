//! Web pages: which of them may call, and what their browsers are told.

use crate::support::{
    Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestClient, TestResponse, accounts, chat,
    chunk, one_model,
};

const CHAT: &str = "/v1/chat/completions";
const APP: &str = "Origin: https://app.example\r\n";
const EVIL: &str = "Origin: http://evil.example\r\n";
const LISTED: &str = "cors: { origins: [\"https://app.example\", \"http://localhost:3000\"] }\n";

async fn preflight(node: &Node, origin: &str) -> TestResponse {
    let head = format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nHost: h\r\n{origin}Access-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type,x-stainless-lang\r\n\r\n"
    );
    TestClient::exchange(node.clients, head).await
}

fn all<'a>(answer: &'a TestResponse, name: &str) -> Vec<&'a str> {
    let named = answer.headers.iter().filter(|(n, _)| n == name);
    named.map(|(_, value)| value.as_str()).collect()
}

#[tokio::test]
async fn a_listed_page_is_let_in_by_its_browser_before_any_key_is_sent() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "{}{LISTED}{}",
        accounts(""),
        one_model(server.address, 1, "")
    );
    let node = Node::start(&config).await;
    let granted = preflight(&node, APP).await;
    assert_eq!(granted.status, 204, "{}", granted.text());
    let is = |name, value| assert_eq!(all(&granted, name), [value], "{name}");
    is("access-control-allow-origin", "https://app.example");
    is("access-control-allow-methods", "GET, POST, PATCH, DELETE");
    is(
        "access-control-allow-headers",
        "authorization,content-type,x-stainless-lang",
    );
    is("access-control-max-age", "7200");
    let vary = all(&granted, "vary");
    assert_eq!(vary, ["origin", "access-control-request-headers"]);
    assert!(granted.body.is_empty());
    assert_eq!(granted.header("content-length"), None);

    let headers = format!("{APP}Authorization: Bearer key-a\r\n");
    let answer = node.post_as(&headers, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let allowed = all(&answer, "access-control-allow-origin");
    assert_eq!(allowed, ["https://app.example"]);
    assert_eq!(all(&answer, "vary"), ["origin"]);
    let exposed = answer.header("access-control-expose-headers").unwrap();
    for name in [
        "x-request-id",
        "x-ratelimit-remaining-requests",
        "retry-after",
    ] {
        assert!(exposed.contains(name), "{name}: {exposed}");
    }
    assert_eq!(node.events(1).await.len(), 1, "a preflight leaves no event");
}

#[tokio::test]
async fn a_preflight_leaves_the_connection_to_the_request_that_follows() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&format!("{LISTED}{}", one_model(server.address, 1, ""))).await;
    let mut client = TestClient::connect(node.clients).await;
    let head = format!(
        "OPTIONS {CHAT} HTTP/1.1\r\nHost: h\r\n{APP}Access-Control-Request-Method: POST\r\n\r\n"
    );
    client.send(&head).await;
    assert_eq!(client.response().await.status, 204);
    client.post(APP, CHAT, &chat("m", "")).await;
    assert_eq!(client.response().await.status, 200);
}

#[tokio::test]
async fn refusals_and_streams_can_be_read_by_a_listed_page() {
    let backend = ScriptedServer::new(&[&format!(
        "{STREAM_HEAD}{}{}0\r\n\r\n",
        chunk("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
        chunk("data: [DONE]\n\n")
    )])
    .await;
    let node = Node::start(&format!("{LISTED}{}", one_model(backend.address, 1, ""))).await;
    let answers = [
        node.post_as(APP, CHAT, &chat("m", ",\"stream\":true"))
            .await,
        node.post_as(APP, CHAT, &chat("unknown", "")).await,
        node.post_as(APP, CHAT, "{").await,
        node.post_as(APP, "/nowhere", "{}").await,
        node.post_as(&format!("{APP}Authorization: Bearer bad\r\n"), CHAT, "{}")
            .await,
        node.post_as(APP, "/v1/chat/completions#x", "{}").await,
    ];
    let statuses = answers.each_ref().map(|answer| answer.status);
    assert_eq!(statuses, [200, 404, 400, 404, 401, 400]);
    for answer in &answers {
        let allowed = all(answer, "access-control-allow-origin");
        assert_eq!(allowed, ["https://app.example"], "{}", answer.status);
    }
    let plain = node.post(CHAT, &chat("unknown", "")).await;
    assert_eq!(all(&plain, "access-control-allow-origin"), [""; 0]);
    assert_eq!(all(&plain, "vary"), ["origin"], "a cache keeps them apart");
}

#[tokio::test]
async fn every_page_may_call_where_the_operator_says_so() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "cors: {{ origins: [\"*\"] }}\n{}",
        one_model(server.address, 1, "")
    );
    let node = Node::start(&config).await;
    for origin in [EVIL, "Origin: null\r\n"] {
        let granted = preflight(&node, origin).await;
        assert_eq!(granted.status, 204);
        assert_eq!(all(&granted, "access-control-allow-origin"), ["*"]);
        let answer = node.post_as(origin, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(all(&answer, "access-control-allow-origin"), ["*"]);
    }
}

#[tokio::test]
async fn a_foreign_page_without_a_key_is_refused_in_its_dialect_and_one_with_a_key_is_not() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "anonymous: allow\n{}{}",
        accounts(""),
        one_model(server.address, 1, "")
    );
    let node = Node::start(&config).await;
    for origin in [
        EVIL,
        "Origin: null\r\n",
        "Origin: http://h:8080\r\n",
        "Origin: http://h.evil.example\r\n",
    ] {
        let refused = node.post_as(origin, CHAT, &chat("m", "")).await;
        assert_eq!(refused.status, 403, "{origin}");
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "origin_not_allowed");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("`cors.origins`"), "{message}");
        assert_eq!(all(&refused, "access-control-allow-origin"), [""; 0]);
        let refused = node.post_as(origin, "/ai/run/m", "{}").await;
        assert_eq!(refused.status, 403);
        assert_eq!(refused.json()["errors"][0]["code"], 3057);
        assert_eq!(preflight(&node, origin).await.status, 403);
    }
    assert_eq!(server.count("served").await, 0);
    let headers = format!("{EVIL}Authorization: Bearer key-a\r\n");
    let answer = node.post_as(&headers, CHAT, &chat("m", "")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(all(&answer, "access-control-allow-origin"), [""; 0]);
    for same in ["Origin: http://h\r\n", "Origin: https://H:443\r\n", ""] {
        let answer = node.post_as(same, CHAT, &chat("m", "")).await;
        assert_eq!(answer.status, 200, "{same} {}", answer.text());
    }
}
