//! Failures of a model server: what is tried again, where, how often, and what the client sees.

mod capacity;
mod health;
mod statuses;

use std::net::SocketAddr;

use serde_json::Value;
use tokio::task::JoinSet;

use crate::support::{
    KeepAliveServer, Node, STREAM_HEAD, ScriptedServer, SimulatedServer, TestClient, chat, chunk,
    endpoint, eventually, json_answer, model, one_model,
};

/// A model on two servers, the second of which is used only when the first cannot be.
fn first_then(first: SocketAddr, second: SocketAddr) -> String {
    let endpoints = [
        endpoint(first, 4),
        format!("{}, priority: 1", endpoint(second, 4)),
    ];
    format!("models:\n{}", model("m", &endpoints, ""))
}

async fn ask(node: &Node) -> crate::support::TestResponse {
    node.posting("", "").await.answer().await
}

/// The state of the endpoint at `address`.
async fn endpoint_state(node: &Node, address: SocketAddr) -> Value {
    let state = node.state().await;
    let endpoints = state["models"][0]["endpoints"].as_array().unwrap();
    let url = format!("http://{address}");
    let found = endpoints.iter().find(|e| e["url"] == *url);
    found.cloned().unwrap_or(Value::Null)
}

async fn until_health(node: &Node, address: SocketAddr, health: &str) {
    eventually(&format!("{address} is {health}"), async || {
        (endpoint_state(node, address).await["health"] == health).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_first_server_is_gone_succeeds_at_the_next() {
    let (place, second) = (KeepAliveServer::new(), SimulatedServer::fast().await);
    let first = place.serve();
    let node = Node::start(&first_then(first.address, second.address)).await;
    until_health(&node, first.address, "healthy").await;
    drop(first);
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = node.event_of(&answer).await;
    assert_eq!(event["attempts"], 2);
    assert_eq!(event["upstream"], format!("http://{}", second.address));
    assert_eq!(event["outcome"], "completed");
    assert_eq!(event["error_code"], Value::Null);
    for _ in 0..20 {
        assert_eq!(ask(&node).await.status, 200);
    }
    node.settles(0, 0).await;
    // And it is back once it is there again.
    let first = place.serve();
    eventually("the first serves again", async || {
        ask(&node).await;
        (first.count("served").await > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_answers_503_or_429_is_passed_over() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let node = Node::start(&first_then(first.address, second.address)).await;
    for status in [503, 429] {
        first
            .fault(&format!(r#"{{"fault":"status={status}","count":1}}"#))
            .await;
        let answer = ask(&node).await;
        assert_eq!(answer.status, 200, "{status}: {}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(event["attempts"], 2, "{status}");
        assert_eq!(event["upstream"], format!("http://{}", second.address));
    }
    assert_eq!(second.count("served").await, 2);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_lost_reused_connection_is_replaced_and_the_request_sent_again() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    assert_eq!(ask(&node).await.status, 200);
    // With its permit back, its connection is too.
    node.idle().await;
    let answer = eventually("a reset within a moment", async || {
        let reset = r#"{"fault":"reset-before-headers","count":1}"#;
        server.fault(reset).await;
        let answer = ask(&node).await;
        // On a very busy machine the reset comes too late to be that of an idle connection.
        (answer.status == 200).then_some(answer)
    })
    .await;
    // The connection was closed, not the request tried.
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    until_health(&node, server.address, "healthy").await;
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_fresh_connection_lost_before_the_head_is_not_sent_again_as_work_may_have_begun() {
    let (first, second) = (
        ScriptedServer::closing(&[""]).await,
        SimulatedServer::fast().await,
    );
    let node = Node::start(&first_then(first.address, second.address)).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "upstream_failed");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_eq!(answer.header("retry-after"), None);
    let event = node.event_of(&answer).await;
    assert_eq!(
        (&event["attempts"], &event["status"]),
        (&1.into(), &502.into())
    );
    assert_eq!(
        (&event["outcome"], &event["error_code"]),
        (&"failed".into(), &"3050".into())
    );
    assert_eq!(second.count("served").await, 0);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn nothing_is_tried_again_after_the_first_byte_of_a_stream() {
    let delta = r#"data: {"choices":[{"index":0,"delta":{"content":"begun"}}]}"#;
    let started = format!("{STREAM_HEAD}{}", chunk(&format!("{delta}\n\n")));
    let (first, second) = (
        ScriptedServer::closing(&[&started, ""]).await,
        SimulatedServer::fast().await,
    );
    let node = Node::start(&first_then(first.address, second.address)).await;
    let mut client = node.posting("", r#","stream":true"#).await.0;
    client.saw("begun").await;
    first.next();
    let answer = client.response().await;
    assert!(
        answer.text().contains("upstream_failed"),
        "{}",
        answer.text()
    );
    assert!(!answer.text().contains("[DONE]"));
    let event = node.events(1).await.remove(0);
    assert_eq!(event["attempts"], 1, "{event}");
    assert_eq!(event["outcome"], "cut-by-backend", "{event}");
    assert_eq!(event["error_code"], "3050");
    assert_eq!(second.count("served").await, 0);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn half_an_answer_is_neither_passed_off_as_a_whole_one_nor_asked_for_again() {
    let half = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
    let (first, second) = (
        ScriptedServer::closing(&[half]).await,
        SimulatedServer::fast().await,
    );
    let node = Node::start(&first_then(first.address, second.address)).await;
    let answer = ask(&node).await;
    // What had not been sent yet when the server broke off is an error of its own.
    assert!(answer.broken || answer.status == 502, "{}", answer.text());
    let event = node.events(1).await.remove(0);
    assert_eq!(
        (&event["attempts"], &event["error_code"]),
        (&1.into(), &"3050".into())
    );
    assert_ne!(event["outcome"], "completed");
    assert_eq!(second.count("served").await, 0);
    node.settles(0, 0).await;
}

#[tokio::test]
async fn with_every_server_gone_the_client_gets_502_and_three_tries_were_made_at_most() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let node = Node::start(&first_then(first.address, second.address)).await;
    until_health(&node, first.address, "healthy").await;
    drop((first, second));
    let answer = ask(&node).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(answer.json()["error"]["type"], "server_error");
    let event = node.event_of(&answer).await;
    assert_eq!(event["error_code"], "3050");
    assert_eq!(event["outcome"], "failed");
    let attempts = event["attempts"].as_u64().unwrap();
    assert!((2..=3).contains(&attempts), "{attempts}");
    node.settles(0, 0).await;
}

#[tokio::test]
async fn when_all_servers_fail_tries_grow_by_a_tenth_and_not_threefold() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    for server in [&first, &second] {
        server.fault(r#"{"fault":"status=503"}"#).await;
    }
    let node = Node::start(&first_then(first.address, second.address)).await;
    for _ in 0..200 {
        let answer = ask(&node).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
    }
    let events = node.events(200).await;
    let tries: Vec<u64> = events
        .iter()
        .map(|event| event["attempts"].as_u64().unwrap())
        .collect();
    let all: u64 = tries.iter().sum();
    assert!(
        tries.iter().all(|tries| (1..=3).contains(tries)),
        "{tries:?}"
    );
    // A tenth, and two more in every second.
    // A slow machine needs some tens of seconds for all.
    assert!((201..=350).contains(&all), "{all}");
    let faulted = first.count("faulted").await + second.count("faulted").await;
    assert_eq!(faulted, all);
}

#[tokio::test]
async fn servers_that_are_all_busy_are_out_of_capacity_and_not_broken() {
    let server = SimulatedServer::fast().await;
    server.fault(r#"{"fault":"status=429"}"#).await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    for _ in 0..10 {
        let answer = ask(&node).await;
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
        assert!(answer.header("retry-after").is_some());
        assert_eq!(node.event_of(&answer).await["error_code"], "3040");
    }
    assert_ne!(
        endpoint_state(&node, server.address).await["health"],
        "ejected"
    );
}

#[tokio::test]
async fn a_lower_tier_is_used_only_while_the_higher_one_is_full() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let endpoints = [
        endpoint(first.address, 1),
        format!("{}, priority: 1", endpoint(second.address, 4)),
    ];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    for round in 1..=3 {
        let holder = node.posting("", "").await;
        eventually("the first has it", async || {
            (first.requests().len() == round).then_some(())
        })
        .await;
        assert_eq!(ask(&node).await.status, 200);
        assert_eq!(second.count("served").await, round as u64);
        first.next();
        assert_eq!(holder.answer().await.status, 200);
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn a_server_may_be_named_by_its_host() {
    let server = SimulatedServer::fast().await;
    let url = format!("http://localhost:{}", server.address.port());
    let endpoints = [format!("url: \"{url}\", max_concurrent_requests: 2")];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(node.event_of(&answer).await["upstream"], url);
}

#[tokio::test]
async fn a_server_whose_name_does_not_resolve_is_passed_over() {
    let server = SimulatedServer::fast().await;
    let endpoints = [
        // A name no name server is asked for: an empty label.
        "url: \"http://nowhere..invalid:9001\", max_concurrent_requests: 2".to_owned(),
        format!("{}, priority: 1", endpoint(server.address, 2)),
    ];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    for _ in 0..5 {
        assert_eq!(ask(&node).await.status, 200);
    }
}

#[tokio::test]
async fn a_killed_server_costs_no_request_that_had_not_begun_there() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let endpoints = [endpoint(first.address, 8), endpoint(second.address, 8)];
    let queue = "    queue: { capacity: 20 }\n";
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, queue))).await;
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let address = node.clients;
        clients.spawn(async move {
            let mut client = TestClient::connect(address).await;
            let mut statuses = Vec::new();
            for _ in 0..100 {
                client
                    .post("", "/v1/chat/completions", &chat("m", ""))
                    .await;
                let answer = client.response().await;
                if answer.broken {
                    // One failure, not one for all that would come on this connection.
                    client = TestClient::connect(address).await;
                }
                statuses.push(if answer.broken { 0 } else { answer.status });
            }
            statuses
        });
    }
    eventually("the load has begun", async || {
        (first.count("served").await > 10).then_some(())
    })
    .await;
    drop(first);
    let statuses = clients.join_all().await.concat();
    let failed = statuses.iter().filter(|status| **status != 200).count();
    // Those whose answer the kill cut short, one a permit at most.
    assert!(failed <= 8, "{failed} of {}", statuses.len());
    node.settles(0, 0).await;
}

#[tokio::test]
async fn the_next_server_is_asked_for_its_own_name_of_the_model_with_its_own_key() {
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    let (first, second) = (
        ScriptedServer::new(&[busy]).await,
        ScriptedServer::new(&[&json_answer(crate::support::ANSWER)]).await,
    );
    let endpoints = [
        format!(
            "{}, backend_model: one, api_key: k1",
            endpoint(first.address, 1)
        ),
        format!(
            "{}, backend_model: two, api_key: k2, priority: 1",
            endpoint(second.address, 1)
        ),
    ];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, ""))).await;
    assert_eq!(ask(&node).await.status, 200);
    for (server, name, key) in [(&first, "one", "k1"), (&second, "two", "k2")] {
        let requests = server.requests();
        assert_eq!(requests.len(), 1);
        assert!(
            requests[0].contains(&format!(r#""model":"{name}""#)),
            "{}",
            requests[0]
        );
        let line = format!("authorization: bearer {key}\r\n");
        assert!(requests[0].to_ascii_lowercase().contains(&line));
    }
}
