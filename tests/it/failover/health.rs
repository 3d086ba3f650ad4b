//! Traffic by health: ejection of endpoints after failed requests, and health checks.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{ask, endpoint_state, first_then, until_health};
use crate::support::{
    DeafServer, Node, RefusingServer, ScriptedServer, SimulatedServer, TestResponse, accounts,
    endpoint, eventually, model, one_model,
};

const KEY_A: &str = "Authorization: Bearer key-a\r\n";
const KEY_B: &str = "Authorization: Bearer key-b\r\n";

async fn ask_as(node: &Node, key: &str) -> TestResponse {
    node.posting(key, "").await.answer().await
}

#[tokio::test]
async fn a_callers_mistakes_eject_nobody_and_the_servers_words_reach_the_caller() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    first.fault(r#"{"fault":"status=400"}"#).await;
    let node = Node::start(&first_then(first.address, second.address)).await;
    for _ in 0..30 {
        let answer = ask(&node).await;
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"]["message"].is_string());
    }
    assert_eq!(
        endpoint_state(&node, first.address).await["health"],
        "healthy"
    );
    assert_eq!(second.count("served").await, 0);
    let event = node.events(30).await.remove(0);
    assert_eq!(
        (&event["attempts"], &event["status"]),
        (&1.into(), &400.into())
    );
    assert_eq!(
        (&event["error_code"], &event["outcome"]),
        (&"5006".into(), &"completed".into())
    );
}

#[tokio::test]
async fn a_server_that_fails_too_often_is_ejected_and_back_after_its_time() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let config = accounts("") + &first_then(first.address, second.address);
    let node = Node::start(&config).await;
    first.fault(r#"{"fault":"status=500"}"#).await;
    eventually("the first is ejected", async || {
        for key in [KEY_A, KEY_B] {
            ask_as(&node, key).await;
        }
        let state = endpoint_state(&node, first.address).await;
        (state["health"] == "ejected").then(|| assert!(state["ejected_until"].is_string()))
    })
    .await;
    first.fault(r#"{"fault":null}"#).await;
    let mut passed_over = 0;
    loop {
        assert_eq!(ask_as(&node, KEY_A).await.status, 200);
        let served = first.count("served").await;
        if endpoint_state(&node, first.address).await["health"] != "ejected" {
            break;
        }
        assert_eq!(served, 0, "nothing goes there while it is ejected");
        passed_over += 1;
    }
    assert!(passed_over > 0);
    eventually("the first serves again", async || {
        assert_eq!(ask_as(&node, KEY_A).await.status, 200);
        (first.count("served").await > 0).then_some(())
    })
    .await;
    until_health(&node, first.address, "healthy").await;
    let state = endpoint_state(&node, first.address).await;
    assert_eq!(state["ejected_until"], Value::Null);
}

#[tokio::test]
async fn the_last_server_is_never_ejected() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    server.fault(r#"{"fault":"status=500"}"#).await;
    for _ in 0..30 {
        assert_eq!(ask(&node).await.status, 500);
    }
    assert_eq!(
        endpoint_state(&node, server.address).await["health"],
        "degraded"
    );
    server.fault(r#"{"fault":null}"#).await;
    assert_eq!(ask(&node).await.status, 200);
    until_health(&node, server.address, "healthy").await;
    let events = node.events(31).await;
    assert_eq!(
        (&events[0]["status"], &events[0]["outcome"]),
        (&500.into(), &"failed".into())
    );
    assert_eq!(events[0]["error_code"], "3050");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_down_by_its_checks_and_healthy_soon_after_it_comes() {
    let (gone, other) = (RefusingServer::new(), SimulatedServer::fast().await);
    let address = gone.address;
    let node = Node::start(&first_then(address, other.address)).await;
    until_health(&node, address, "down").await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 200);
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    let down = format!(
        r#"infergate_endpoint_health{{endpoint="http://{address}",health="down",model="m"}}"#
    );
    assert_eq!(node.metric(&down).await, Some(1.0));
    let server = gone.serve();
    until_health(&node, address, "healthy").await;
    assert_eq!(node.metric(&down).await, Some(0.0));
    assert_eq!(ask(&node).await.status, 200);
    assert_eq!(server.count("served").await, 1);
}

#[tokio::test]
async fn a_server_that_takes_no_new_connection_is_not_back_by_those_that_it_keeps() {
    let server = DeafServer::new().await;
    let checked = format!(
        "{}, health: {{ interval_secs: 1 }}",
        endpoint(server.address, 4)
    );
    let node = Node::start(&format!("models:\n{}", model("m", &[checked], ""))).await;
    until_health(&node, server.address, "healthy").await;
    let asked = node.posting("", "").await;
    eventually("the request is there", async || {
        (server.held() == 1).then_some(())
    })
    .await;
    server.set_deaf(true);
    until_health(&node, server.address, "down").await;
    // Its connection is kept from here on, and would carry checks.
    server.answer_one();
    assert_eq!(asked.answer().await.status, 200);
    let before = server.closed();
    eventually("it is checked by new connections", async || {
        (server.closed() >= before + 4).then_some(())
    })
    .await;
    let state = endpoint_state(&node, server.address).await;
    assert_eq!(state["health"], "down");
    server.set_deaf(false);
    until_health(&node, server.address, "healthy").await;
}

#[tokio::test]
async fn with_every_server_down_requests_are_told_so_after_the_models_wait_and_not_at_their_deadline()
 {
    let gone = RefusingServer::new();
    let queue = "    queue: { capacity: 16, when_unhealthy_wait_secs: 1 }\n";
    let endpoints = [endpoint(gone.address, 2)];
    let node = Node::start(&format!("models:\n{}", model("m", &endpoints, queue))).await;
    until_health(&node, gone.address, "down").await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "no_healthy_endpoint");
    assert!(answer.header("retry-after").is_some());
    let event = node.event_of(&answer).await;
    assert_eq!(event["error_code"], "3053");
    assert_eq!(event["outcome"], "refused");
    // The queue counts whole milliseconds from the one in which the request came.
    assert!(event["queuing_time_ms"].as_u64().unwrap() >= 999, "{event}");
    let state = endpoint_state(&node, gone.address).await;
    assert_eq!(state["last_error"]["cause"], "health check: refused");
    assert!(state["since"].is_string(), "{state}");
    assert!(
        node.log().contains("health check: refused"),
        "{}",
        node.log()
    );
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_server_that_is_loading_its_model_gets_no_traffic_yet() {
    let loading = SimulatedServer::start(infergate::simulate::Config {
        dialect: infergate::simulate::Dialect::Tgi,
        ..infergate::simulate::Config::instant()
    })
    .await;
    loading
        .fault(r#"{"fault":"status=503","health":true}"#)
        .await;
    let queue = "    queue: { when_unhealthy_wait_secs: 60 }\n";
    let spec = model("m", &[endpoint(loading.address, 2)], queue);
    let spec = spec.replace("backend: openai", "backend: tgi");
    let node = Node::start(&format!("models:\n{spec}")).await;
    until_health(&node, loading.address, "down").await;
    let early = node.posting("", "").await;
    node.settles(0, 1).await;
    loading.fault(r#"{"fault":null}"#).await;
    assert_eq!(early.answer().await.status, 200);
    until_health(&node, loading.address, "healthy").await;
    assert_eq!(loading.count("served").await, 1);
}

#[tokio::test]
async fn a_callers_short_deadlines_eject_nobody() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    let node = Node::start(&first_then(first.address, second.address)).await;
    // Four at a time, which is what the first takes.
    for _ in 0..2 {
        let mut hasty = Vec::new();
        for _ in 0..4 {
            hasty.push(node.posting("X-Infergate-Timeout-Ms: 2000\r\n", "").await);
        }
        for posted in hasty {
            let answer = posted.answer().await;
            assert_eq!(answer.status, 408, "{}", answer.text());
        }
        node.settles(0, 0).await;
    }
    let state = endpoint_state(&node, first.address).await;
    assert_eq!(state["health"], "healthy");
    let timed_out = r#"infergate_upstream_attempts_total{model="m",result="timed-out"}"#;
    assert_eq!(node.metric(timed_out).await, Some(8.0));
    assert_eq!(second.count("served").await, 0);
}

#[tokio::test]
async fn a_server_that_stays_silent_for_a_models_whole_time_is_ejected() {
    let (first, second) = (ScriptedServer::held().await, SimulatedServer::fast().await);
    // Half of it may go by before the server has the request.
    let rules = "timeouts: { model_floor_secs: 3, ceiling_secs: 3 }\n";
    let config = first_then(first.address, second.address);
    let node = Node::start(&(rules.to_owned() + &accounts("") + &config)).await;
    let mut silent = Vec::new();
    for key in [KEY_A, KEY_B, KEY_A, KEY_B] {
        silent.push(node.posting(key, "").await);
    }
    for posted in silent {
        assert_eq!(posted.answer().await.status, 408);
    }
    assert_eq!(
        endpoint_state(&node, first.address).await["health"],
        "degraded"
    );
    assert_eq!(ask_as(&node, KEY_A).await.status, 408);
    assert_eq!(
        endpoint_state(&node, first.address).await["health"],
        "ejected"
    );
    assert_eq!(ask_as(&node, KEY_A).await.status, 200);
    for (health, count) in [("healthy", 5.0), ("degraded", 1.0), ("ejected", 0.0)] {
        let series = format!(r#"infergate_endpoint_requests_total{{model="m",health="{health}"}}"#);
        assert_eq!(node.metric(&series).await, Some(count), "{health}");
    }
}

#[tokio::test]
async fn one_accounts_failures_alone_eject_nothing_that_it_began_to_use_just_now() {
    let (first, second) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    first.fault(r#"{"fault":"status=500"}"#).await;
    let node = Node::start(&first_then(first.address, second.address)).await;
    let started = Instant::now();
    let mut failures = 0;
    eventually("the first is ejected", async || {
        failures += u32::from(ask(&node).await.status == 500);
        let state = endpoint_state(&node, first.address).await;
        (state["health"] == "ejected").then_some(())
    })
    .await;
    assert!(started.elapsed() >= Duration::from_secs(10));
    assert!(failures >= 5, "{failures}");
}

#[tokio::test]
async fn with_every_server_silent_requests_wait_no_longer_than_for_one_to_come_back() {
    let server = ScriptedServer::held().await;
    let more = "    first_byte_timeout_secs: 1\n    queue: { capacity: 16, when_unhealthy_wait_secs: 1 }\n";
    let node = Node::start(&(accounts("") + &one_model(server.address, 1, more))).await;
    let mut posted = Vec::new();
    for _ in 0..6 {
        for key in [KEY_A, KEY_B] {
            posted.push(node.posting(key, "").await);
        }
    }
    let mut statuses = Vec::new();
    for posted in posted {
        let answer = posted.answer().await;
        statuses.push(answer.status);
        if answer.status == 503 {
            assert_eq!(answer.json()["error"]["code"], "no_healthy_endpoint");
        }
    }
    let count = |status| statuses.iter().filter(|&&is| is == status).count();
    // One permit, held for a second by each: the fifth failure in a row settles it.
    assert_eq!((count(504), count(503)), (5, 7), "{statuses:?}");
}
