//! Cog behind the gateway: outputs and their bills, failures in a 200, health by the body, and permits of runs that
//! go on without their clients.
//!
//! The simulated server ends a run when it is canceled and not when its client leaves, as Cog 0.16.

use std::net::SocketAddr;
use std::sync::Arc;

use infergate::simulate::{self, CostMetric, Dialect, Task};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{
    HandledServer, Node, Reaction, SimulatedServer, TestClient, TestResponse, endpoint, eventually,
    json_answer,
};

const TARIFF: &str = "    tariff: { cost_per_infer: 0.5, coefficients: { input_tokens: 0.25, \
                      output_tokens: 2, steps: 0.125 } }\n";
const PREDICTIONS: &str = "/v1/models/acme/m/predictions";

fn config(concurrency: usize) -> simulate::Config {
    simulate::Config {
        dialect: Dialect::Cog,
        output_tokens: 3,
        concurrency,
        ..simulate::Config::instant()
    }
}

async fn server(concurrency: usize) -> SimulatedServer {
    SimulatedServer::start(config(concurrency)).await
}

/// An endpoint that is checked each second.
fn checked(address: SocketAddr, permits: u32) -> String {
    format!(
        "{}, health: {{ interval_secs: 1 }}",
        endpoint(address, permits)
    )
}

fn model(task: &str, endpoints: &[String], more: &str) -> String {
    let endpoints: String = endpoints
        .iter()
        .map(|e| format!("      - {{ {e} }}\n"))
        .collect();
    format!(
        "models:\n  - id: acme/m\n    task: {task}\n    backend: cog\n{more}    endpoints:\n{endpoints}"
    )
}

async fn node_of(task: &str, server: &SimulatedServer, permits: u32, more: &str) -> Node {
    Node::start(&model(task, &[checked(server.address, permits)], more)).await
}

async fn run(node: &Node, input: Value) -> TestResponse {
    node.post("/ai/run/acme/m", &input.to_string()).await
}

/// A client whose run has begun at the server.
async fn working(node: &Node, server: &SimulatedServer, input: Value) -> TestClient {
    let before = server.count("current").await;
    let mut client = node.client().await;
    client.post("", "/ai/run/acme/m", &input.to_string()).await;
    eventually("the server works", async || {
        (server.count("current").await == before + 1).then_some(())
    })
    .await;
    client
}

fn stalled() -> Value {
    json!({ "x_sim_fault": "stall" })
}

async fn endpoint_state(node: &Node) -> Value {
    node.state().await["models"][0]["endpoints"][0].clone()
}

async fn health_becomes(node: &Node, expected: &str) -> Value {
    eventually(expected, async || {
        let endpoint = endpoint_state(node).await;
        (endpoint["health"] == expected).then_some(endpoint)
    })
    .await
}

#[tokio::test]
async fn the_output_is_the_answer_and_the_metrics_of_the_run_are_billed() {
    let cost_metrics = vec![CostMetric {
        name: "steps".to_owned(),
        value: 4.0,
    }];
    let server = SimulatedServer::start(simulate::Config {
        cost_metrics,
        ..config(2)
    })
    .await;
    let node = node_of("dumb-pipe", &server, 2, TARIFF).await;
    let answer = run(&node, json!({ "a": [1, { "b": null }] })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["result"], json!({ "a": [1, { "b": null }] }));
    assert_eq!(answer.header("cf-ai-neurons"), Some("1"));
    let event = node.event_of(&answer).await;
    let predict_secs = &event["metrics"]["predict_secs"];
    assert!(predict_secs.is_number(), "{event}");
    node.idle().await;
}

#[tokio::test]
async fn texts_in_pieces_are_whole_or_events_and_tokens_are_counted_by_the_server() {
    let server = server(2).await;
    let node = node_of("text-generation", &server, 2, TARIFF).await;
    let prompt = "echo: a b c";
    let by_hand = 0.5 + 0.25 * prompt.len().div_ceil(4) as f64 + 2.0 * 3.0;
    let whole = run(&node, json!({ "prompt": prompt })).await;
    assert_eq!(
        whole.json()["result"]["response"],
        "a b c",
        "{}",
        whole.text()
    );
    assert_eq!(node.event_of(&whole).await["neurons"], by_hand);
    let streamed = run(&node, json!({ "prompt": prompt, "stream": true })).await;
    assert!(streamed.is_event_stream(), "{}", streamed.text());
    let events = streamed.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let text: String = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|event| event["response"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "a b c");
    assert_eq!(node.event_of(&streamed).await["neurons"], by_hand);
}

#[tokio::test]
async fn tasks_with_media_get_them_out_of_the_output() {
    let server = SimulatedServer::start(simulate::Config {
        task: Some(Task::TextToImage),
        ..config(2)
    })
    .await;
    let node = node_of("text-to-image", &server, 2, "").await;
    let answer = run(&node, json!({ "prompt": "a" })).await;
    let image = &answer.json()["result"]["image"];
    assert!(
        image.as_str().unwrap().starts_with("iVBOR"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_failure_of_the_model_is_told_once_costs_nothing_and_leaves_the_server_well() {
    let (first, second) = (server(2).await, server(2).await);
    let endpoints = [checked(first.address, 2), checked(second.address, 2)];
    let node = Node::start(&model("dumb-pipe", &endpoints, TARIFF)).await;
    for _ in 0..6 {
        let answer = run(&node, json!({ "x_sim_fault": "model-fails" })).await;
        assert_eq!(answer.status, 500, "{}", answer.text());
        assert_eq!(answer.header("x-should-retry"), Some("false"));
        let error = &answer.json()["errors"][0];
        assert_eq!(error["code"], 3050);
        let text = error["message"].as_str().unwrap();
        assert!(text.contains("ValueError: simulated failure"), "{text}");
        let event = node.event_of(&answer).await;
        assert_eq!(event["outcome"], "failed", "{event}");
        assert_eq!(event["neurons"].as_f64().unwrap_or(0.0), 0.0, "{event}");
        assert_eq!(event["attempts"], 1, "{event}");
    }
    let faulted = first.count("faulted").await + second.count("faulted").await;
    assert_eq!(faulted, 6, "none is repeated");
    for endpoint in node.state().await["models"][0]["endpoints"]
        .as_array()
        .unwrap()
    {
        assert_eq!(endpoint["health"], "healthy", "{endpoint}");
    }
    node.idle().await;
}

#[tokio::test]
async fn a_canceled_run_in_a_200_is_no_success() {
    let body = r#"{"id":"x","status":"canceled","output":"half"}"#;
    let scripted = HandledServer::by(move |_| Reaction::Answer(json_answer(body))).await;
    let own = "health: { path: /ok, interval_secs: 60 }";
    let at = format!("{}, {own}", endpoint(scripted.address, 1));
    let node = Node::start(&model("dumb-pipe", &[at], "")).await;
    let answer = run(&node, json!({})).await;
    assert_eq!(answer.status, 500, "{}", answer.text());
    assert!(!answer.text().contains("half"), "{}", answer.text());
}

#[tokio::test]
async fn input_that_the_model_refuses_is_the_clients_error_with_its_place() {
    let detail =
        r#"{"detail":[{"loc":["body","input","n"],"msg":"Input should be a number","type":"x"}]}"#;
    let answer = format!(
        "HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{detail}",
        detail.len()
    );
    let paths = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&paths);
    let scripted = HandledServer::by(move |request| {
        seen.lock().push(request.to_owned());
        Reaction::Answer(answer.clone())
    })
    .await;
    let own = "health: { path: /ok, interval_secs: 60 }";
    let at = format!("{}, {own}", endpoint(scripted.address, 1));
    let node = Node::start(&model("dumb-pipe", &[at], "")).await;
    let answer = run(&node, json!({ "n": "x" })).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    let message = answer.json()["errors"][0]["message"].clone();
    assert_eq!(message, "input.n: Input should be a number");
    let request = paths.lock()[0].clone();
    let id = answer.header("x-request-id").unwrap();
    assert!(
        request.starts_with(&format!("PUT /predictions/{id} HTTP/1.1\r\n")),
        "{request}"
    );
    assert!(request.ends_with(r#"{"input":{"n":"x"}}"#), "{request}");
    let list = run(&node, json!([1])).await;
    assert_eq!(list.status, 400, "{}", list.text());
    node.idle().await;
}

#[tokio::test]
async fn clients_beyond_the_permits_wait_and_never_meet_a_full_server() {
    let server = SimulatedServer::start(simulate::Config {
        ttft_ms: 5,
        ..config(2)
    })
    .await;
    let node = node_of("dumb-pipe", &server, 2, "    queue: { capacity: 64 }\n").await;
    let mut clients = JoinSet::new();
    for at in 0..24 {
        let address = node.clients;
        clients.spawn(async move {
            let mut client = TestClient::connect(address).await;
            client
                .post("", "/ai/run/acme/m", &json!({ "at": at }).to_string())
                .await;
            let answer = client.response().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["result"]["at"], at);
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    assert_eq!(server.count("refused").await, 0);
    assert_eq!(server.count("high_water").await, 2);
    node.idle().await;
}

#[tokio::test]
async fn a_slot_that_is_free_a_moment_after_the_answer_costs_no_request() {
    let asked = Arc::new(Mutex::new(0));
    let count = Arc::clone(&asked);
    let scripted = HandledServer::by(move |_| {
        *count.lock() += 1;
        match *count.lock() {
            1 | 2 => Reaction::Answer(
                "HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                    .to_owned(),
            ),
            _ => Reaction::Answer(json_answer(r#"{"status":"succeeded","output":7}"#)),
        }
    })
    .await;
    let own = "health: { path: /ok, interval_secs: 60 }";
    let at = format!("{}, {own}", endpoint(scripted.address, 1));
    let node = Node::start(&model("dumb-pipe", &[at], "")).await;
    let answer = run(&node, json!({})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["result"], 7);
    assert_eq!(node.event_of(&answer).await["attempts"], 1);
    assert_eq!(*asked.lock(), 3);
    node.idle().await;
}

#[tokio::test]
async fn a_server_at_capacity_is_not_sick_and_another_one_is_asked() {
    let (full, free) = (server(1).await, server(1).await);
    // Work of another client of the server.
    let mut other = TestClient::connect(full.address).await;
    let body = json!({ "input": stalled() }).to_string();
    let length = body.len();
    other
        .send(format!(
            "PUT /predictions/other HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .await;
    eventually("the server is full", async || {
        (full.count("current").await == 1).then_some(())
    })
    .await;
    let endpoints = [
        format!("{}, priority: 1", checked(full.address, 4)),
        format!("{}, priority: 2", checked(free.address, 1)),
    ];
    let node = Node::start(&model("dumb-pipe", &endpoints, "")).await;
    for _ in 0..8 {
        assert_eq!(run(&node, json!({})).await.status, 200);
    }
    assert!(full.count("refused").await > 0);
    assert_eq!(free.count("served").await, 8);
    assert_eq!(endpoint_state(&node).await["health"], "healthy");
    let alone = model("dumb-pipe", &[checked(full.address, 4)], "");
    assert_eq!(node.reload(&alone).await.status, 200);
    let refused = run(&node, json!({})).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.json()["errors"][0]["code"], 3040);
    node.idle().await;
}

#[tokio::test]
async fn a_run_without_its_client_keeps_its_permit_until_a_cancel_has_ended_it() {
    // The server loses the first cancels of each run, which takes three seconds.
    let server = SimulatedServer::start(simulate::Config {
        lost_cancels: 8,
        ..config(1)
    })
    .await;
    let node = node_of("dumb-pipe", &server, 1, "").await;
    for round in 1..=2 {
        working(&node, &server, stalled()).await.close();
        let event = node.events(2 * round - 1).await.pop().unwrap();
        assert_eq!(event["outcome"], "cut-by-client", "{event}");
        assert_eq!(node.permits_used().await, 1, "the server still works");
        // Waits for the permit, and finds the slot free.
        let next = run(&node, json!({})).await;
        assert_eq!(next.status, 200, "{}", next.text());
        assert_eq!(server.count("cancelled").await, round as u64);
        node.idle().await;
        node.events(2 * round).await;
    }
    assert_eq!(server.count("refused").await, 0);
}

#[tokio::test]
async fn a_deadline_cancels_the_run() {
    let server = server(1).await;
    let node = node_of("dumb-pipe", &server, 1, "    timeout_secs: 1\n").await;
    let late = run(&node, stalled()).await;
    assert_eq!(late.status, 408, "{}", late.text());
    node.idle().await;
    assert_eq!(
        (
            server.count("cancelled").await,
            server.count("current").await
        ),
        (1, 0)
    );
}

#[tokio::test]
async fn health_is_the_state_in_the_body() {
    let server = server(1).await;
    let node = node_of("dumb-pipe", &server, 1, "").await;
    assert_eq!(run(&node, json!({})).await.status, 200);
    for (fault, word) in [("setup-failed", "setup failed"), ("unhealthy", "unhealthy")] {
        server
            .fault(&json!({ "fault": fault, "health": true }).to_string())
            .await;
        let down = health_becomes(&node, "down").await;
        let cause = down["last_error"]["cause"].as_str().unwrap();
        assert_eq!(cause, format!("health check: {word}"));
        let logs = down["setup_logs"].as_str();
        let has_logs = logs.is_some_and(|logs| logs.contains("no weights"));
        assert_eq!(has_logs, fault == "setup-failed", "{down}");
        server.fault(r#"{"fault":null}"#).await;
        let well = health_becomes(&node, "healthy").await;
        assert!(well.get("setup_logs").is_none(), "{well}");
        assert_eq!(run(&node, json!({})).await.status, 200);
    }
    // No free slot is as good a state as any.
    let held = working(&node, &server, stalled()).await;
    assert_eq!(endpoint_state(&node).await["health"], "healthy");
    held.close();
    node.idle().await;
}

#[tokio::test]
async fn a_server_that_loads_gets_no_requests_until_it_is_ready() {
    let server = SimulatedServer::start(simulate::Config {
        loading_secs: 10,
        ..config(1)
    })
    .await;
    let node = node_of("dumb-pipe", &server, 1, "").await;
    let loading = health_becomes(&node, "down").await;
    assert_eq!(loading["last_error"]["cause"], "health check: loading");
    assert_eq!(loading["setup_logs"], "reading weights\n");
    health_becomes(&node, "healthy").await;
    assert_eq!(run(&node, json!({})).await.status, 200);
    assert_eq!(server.count("served").await, 1);
}

#[tokio::test]
async fn a_worker_that_crashes_is_the_servers_failure_and_the_endpoint_goes_down() {
    let (crashing, well) = (server(1).await, server(1).await);
    let endpoints = [
        format!("{}, priority: 1", checked(crashing.address, 1)),
        format!("{}, priority: 2", checked(well.address, 1)),
    ];
    let node = Node::start(&model("dumb-pipe", &endpoints, "")).await;
    let lost = run(&node, json!({ "x_sim_fault": "worker-crash" })).await;
    assert_eq!(lost.status, 502, "{}", lost.text());
    assert_eq!(lost.header("x-should-retry"), Some("false"));
    health_becomes(&node, "down").await;
    assert_eq!(run(&node, json!({})).await.status, 200);
    assert_eq!(well.count("served").await, 1);
}

#[tokio::test]
async fn a_server_that_starts_again_serves_again() {
    let first = server(1).await;
    let address = first.address;
    let node = node_of("dumb-pipe", &first, 1, "").await;
    let cut = working(&node, &first, stalled()).await;
    drop(first);
    // Its run is gone with it, and holds no permit.
    node.idle().await;
    drop(cut);
    health_becomes(&node, "down").await;
    let _second = SimulatedServer::start_at(address, config(1)).await;
    health_becomes(&node, "healthy").await;
    assert_eq!(run(&node, json!({})).await.status, 200);
    node.idle().await;
}

async fn shown(node: &Node, id: &str) -> Value {
    let mut client = node.client().await;
    let request = format!("GET /v1/predictions/{id} HTTP/1.1\r\nhost: h\r\n\r\n");
    client.send(request).await;
    client.response().await.json()
}

async fn ended(node: &Node, input: Value) -> Value {
    let body = json!({ "input": input }).to_string();
    let created = node.post(PREDICTIONS, &body).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let id = created.json()["id"].as_str().unwrap().to_owned();
    eventually("the job ends", async || {
        let object = shown(node, &id).await;
        object["completed_at"].is_string().then_some(object)
    })
    .await
}

#[tokio::test]
async fn jobs_end_as_their_predictions_do() {
    let server = server(1).await;
    let config = model("dumb-pipe", &[checked(server.address, 1)], TARIFF);
    let node = Node::start(&format!("jobs: {{}}\n{config}")).await;
    let done = ended(&node, json!({ "a": 1 })).await;
    assert_eq!(
        (&done["status"], &done["output"]),
        (&json!("succeeded"), &json!({ "a": 1 }))
    );
    let failed = ended(&node, json!({ "x_sim_fault": "model-fails" })).await;
    assert_eq!(failed["status"], "failed");
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("ValueError: simulated failure"), "{error}");
    let events = node.events(2).await;
    assert_eq!(
        (&events[1]["outcome"], &events[1]["neurons"]),
        (&json!("failed"), &json!(0.0))
    );
    assert_eq!(server.count("faulted").await, 1, "it ran once");
    node.idle().await;
}

#[tokio::test]
async fn a_canceled_job_cancels_its_run() {
    let server = SimulatedServer::start(simulate::Config {
        lost_cancels: 1,
        ..config(1)
    })
    .await;
    let config = model("dumb-pipe", &[checked(server.address, 1)], "");
    let node = Node::start(&format!("jobs: {{}}\n{config}")).await;
    let body = json!({ "input": stalled() }).to_string();
    let created = node.post(PREDICTIONS, &body).await.json();
    eventually("the server works", async || {
        (server.count("current").await == 1).then_some(())
    })
    .await;
    let path = format!("/v1/predictions/{}/cancel", created["id"].as_str().unwrap());
    let canceled = node.post(&path, "").await;
    assert_eq!(canceled.json()["status"], "canceled", "{}", canceled.text());
    let next = ended(&node, json!({ "a": 1 })).await;
    assert_eq!(next["status"], "succeeded");
    assert_eq!(server.count("cancelled").await, 1);
    assert_eq!(server.count("refused").await, 0);
    node.idle().await;
}
