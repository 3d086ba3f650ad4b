//! Client disconnects: the backend connection is closed, permit and queue slot are released.
//! The inference event names the client as the cause.

use serde_json::Value;

use crate::support::{
    Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestClient, chat, chunk, eventually,
    json_answer, one_model,
};

/// Form of a client's disconnect.
#[derive(Clone, Copy, Debug)]
enum Disconnect {
    Fin,
    Reset,
}

const DISCONNECTS: [Disconnect; 2] = [Disconnect::Fin, Disconnect::Reset];

fn leave(client: TestClient, goodbye: Disconnect) {
    match goodbye {
        Disconnect::Fin => client.close(),
        Disconnect::Reset => client.reset(),
    }
}

async fn chatting(node: &Node, more: &str) -> TestClient {
    node.posting("", more).await.0
}

/// The events so far, once there are `count`; the last of them must say that the client left.
async fn assert_left(node: &Node, count: usize) -> Value {
    let event = node.events(count).await.pop().unwrap();
    assert_eq!(event["outcome"], "cut-by-client", "{event}");
    assert_eq!(event["error_code"], "3008", "{event}");
    event
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_no_place_behind_and_reaches_no_server() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (round, goodbye) in DISCONNECTS.into_iter().enumerate() {
        let mut holder = chatting(&node, "").await;
        node.settles(1, 0).await;
        let waiter = chatting(&node, "").await;
        node.settles(1, 1).await;
        leave(waiter, goodbye);
        node.settles(1, 0).await;
        let event = assert_left(&node, 2 * round + 1).await;
        assert_eq!(
            (&event["queued"], &event["attempts"]),
            (&true.into(), &0.into())
        );
        assert_eq!(event["status"], 0, "{goodbye:?}");
        server.next();
        assert_eq!(holder.response().await.status, 200);
        node.events(2 * round + 2).await;
        assert_eq!(server.requests().len(), round + 1);
    }
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_reset_behind_a_pipelined_request_is_a_departure() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let _holder = chatting(&node, "").await;
    node.settles(1, 0).await;
    let mut waiter = chatting(&node, "").await;
    node.settles(1, 1).await;
    waiter
        .send("GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
        .await;
    waiter.reset();
    node.settles(1, 0).await;
    assert_left(&node, 1).await;
}

#[tokio::test]
async fn a_close_behind_a_stray_byte_is_a_departure() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (round, goodbye) in DISCONNECTS.into_iter().enumerate() {
        let mut client = chatting(&node, "").await;
        node.settles(1, 0).await;
        client.send("\r\n").await;
        leave(client, goodbye);
        node.settles(0, 0).await;
        assert_left(&node, round + 1).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_byte_stops_the_server() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (round, goodbye) in DISCONNECTS.into_iter().enumerate() {
        let client = chatting(&node, r#","stream":true"#).await;
        eventually("the server works", async || {
            (server.open() == 1).then_some(())
        })
        .await;
        leave(client, goodbye);
        eventually("the server is told", async || {
            (server.gone() == round + 1).then_some(())
        })
        .await;
        node.settles(0, 0).await;
        let event = assert_left(&node, round + 1).await;
        assert_eq!(
            (&event["status"], &event["attempts"]),
            (&0.into(), &1.into())
        );
        assert_eq!(event["time_to_first_token_ms"], Value::Null);
    }
}

#[tokio::test]
async fn a_client_that_leaves_mid_stream_stops_the_server() {
    let delta = r#"data: {"choices":[{"index":0,"delta":{"content":"one"}}]}"#;
    let first = format!("{STREAM_HEAD}{}", chunk(&format!("{delta}\n\n")));
    let server = ScriptedServer::new(&[&first, "never"]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (round, goodbye) in DISCONNECTS.into_iter().enumerate() {
        let mut client = chatting(&node, r#","stream":true"#).await;
        client.saw("one").await;
        leave(client, goodbye);
        eventually("the server is told", async || {
            (server.gone() == round + 1).then_some(())
        })
        .await;
        node.settles(0, 0).await;
        let event = assert_left(&node, round + 1).await;
        assert_eq!(
            (&event["status"], &event["streamed"]),
            (&200.into(), &true.into())
        );
        assert!(event["time_to_first_token_ms"].is_u64());
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_body_gives_the_memory_back() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (round, goodbye) in DISCONNECTS.into_iter().enumerate() {
        let mut client = node.client().await;
        client
            .send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n\r\n{")
            .await;
        eventually("the body is awaited", async || {
            (node.metric("infergate_buffered_body_bytes").await? >= 1.0).then_some(())
        })
        .await;
        leave(client, goodbye);
        let event = assert_left(&node, round + 1).await;
        assert_eq!(
            (&event["status"], &event["attempts"]),
            (&0.into(), &0.into())
        );
        eventually("no body is held", async || {
            (node.metric("infergate_buffered_body_bytes").await? == 0.0).then_some(())
        })
        .await;
    }
    assert_eq!(server.count("served").await, 0);
}

#[tokio::test]
async fn closing_the_sending_direction_is_leaving() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut holder = chatting(&node, "").await;
    node.settles(1, 0).await;
    let mut waiter = chatting(&node, "").await;
    node.settles(1, 1).await;
    waiter.half_close().await;
    node.settles(1, 0).await;
    assert_left(&node, 1).await;
    holder.half_close().await;
    eventually("the server is told", async || {
        (server.gone() == 1).then_some(())
    })
    .await;
    node.settles(0, 0).await;
    assert_left(&node, 2).await;
}

#[tokio::test]
async fn a_freed_permit_goes_to_the_next_in_line_at_once() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let holder = chatting(&node, "").await;
    node.settles(1, 0).await;
    let mut waiter = chatting(&node, "").await;
    node.settles(1, 1).await;
    holder.reset();
    // The server has let go of the first, so that its next answer is the second's.
    eventually("the next one is at the server", async || {
        (server.requests().len() == 2 && server.gone() == 1).then_some(())
    })
    .await;
    server.next();
    assert_eq!(waiter.response().await.status, 200);
}

#[tokio::test]
async fn what_a_server_has_made_for_a_client_that_left_is_on_its_event() {
    let with_usage = r#"data: {"choices":[{"index":0,"delta":{"content":"one"}}],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}"#;
    let first = format!("{STREAM_HEAD}{}", chunk(&format!("{with_usage}\n\n")));
    let server = ScriptedServer::new(&[&first, "never"]).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut client = chatting(&node, r#","stream":true"#).await;
    client.saw("one").await;
    client.reset();
    let event = assert_left(&node, 1).await;
    assert_eq!(event["metrics"]["output_tokens"], 1, "{event}");
    assert_eq!(event["metrics_source"], "reported");
}

#[tokio::test]
async fn fifty_clients_that_leave_at_once_leave_nothing_behind() {
    let server = ScriptedServer::new(&["", &json_answer("{}")]).await;
    let queue = "    queue: { algorithm: fifo, capacity: 100 }\n";
    let node = Node::start(&one_model(server.address, 10, queue)).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        clients.push(chatting(&node, "").await);
    }
    node.settles(10, 40).await;
    for (index, client) in clients.into_iter().enumerate() {
        leave(client, DISCONNECTS[index % 2]);
    }
    node.settles(0, 0).await;
    let events = node.events(50).await;
    assert!(
        events
            .iter()
            .all(|event| event["outcome"] == "cut-by-client")
    );
    eventually("no server works", async || {
        (server.open() == 0).then_some(())
    })
    .await;
    let other = node.post("/v1/models", &chat("m", "")).await;
    assert_eq!(other.status, 404);
}

#[tokio::test]
async fn attempts_that_a_client_left_are_counted_as_abandoned_and_say_nothing_about_the_server() {
    let server = ScriptedServer::held().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for round in 1..=8 {
        let client = chatting(&node, "").await;
        node.settles(1, 0).await;
        client.reset();
        node.events(round).await;
    }
    let abandoned = r#"infergate_upstream_attempts_total{model="m",result="abandoned"}"#;
    assert_eq!(node.metric(abandoned).await, Some(8.0));
    let state = node.state().await;
    assert_eq!(state["models"][0]["endpoints"][0]["health"], "healthy");
}
