//! Servers that work on after their responses: permits are held until the server reports the end, or to the end of a lease.

use std::net::SocketAddr;

use infergate::simulate::{Config, Dialect, OverLimit};

use crate::support::websocket::WebSocketClient;
use crate::support::{
    KeepAliveServer, Node, SimulatedServer, TestClient, TestResponse, chat, endpoint, eventually,
    model,
};
use crate::upgrade::{upgrade, with_state};

/// Longer than any test takes.
const LONG_SECS: u64 = 3600;

/// The line of the log once the reports of a server are heard.
const FOLLOWED: &str = "a model server reports the end of its work";

/// An endpoint that reports the end of its work.
fn reporting(address: SocketAddr, permits: u32, lease_secs: u64) -> String {
    let loopback = format!("loopback: {{ path: /loopback, lease_secs: {lease_secs} }}");
    format!("{}, {loopback}", endpoint(address, permits))
}

fn one_reporting(address: SocketAddr, permits: u32, lease_secs: u64) -> String {
    let endpoint = reporting(address, permits, lease_secs);
    format!("models:\n{}", model("m", &[endpoint], ""))
}

/// Waits until the reports of servers were heard so many times.
async fn until_followed(node: &Node, times: usize) {
    eventually("reports are followed", async || {
        (node.log().matches(FOLLOWED).count() >= times).then_some(())
    })
    .await;
}

/// Lets a simulated server send a report.
async fn report(server: SocketAddr, event: &str, request: &str) {
    let body = format!(r#"{{"event":"{event}","request_id":"{request}"}}"#);
    let length = body.len();
    let put =
        format!("PUT /sim/report HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\n\r\n{body}");
    let answer = TestClient::exchange(server, put).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// The same, with metrics.
async fn report_metrics(server: SocketAddr, event: &str, request: &str, metrics: &str) {
    let more = format!(r#"{request}","metrics":{metrics},"event":"{event}"#);
    let body = format!(r#"{{"request_id":"{more}"}}"#);
    let length = body.len();
    let put =
        format!("PUT /sim/report HTTP/1.1\r\nHost: s\r\nContent-Length: {length}\r\n\r\n{body}");
    let answer = TestClient::exchange(server, put).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

async fn ask(node: &Node) -> TestResponse {
    let answer = node.posting("", "").await.answer().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer
}

fn id_of(answer: &TestResponse) -> String {
    answer.header("x-request-id").unwrap().to_owned()
}

#[tokio::test]
async fn each_of_the_four_events_releases_the_permit_of_its_request_once() {
    let server = SimulatedServer::start(Config::instant()).await;
    let node = Node::start(&one_reporting(server.address, 2, LONG_SECS)).await;
    until_followed(&node, 1).await;
    for event in [
        "InferenceSuccess",
        "InferenceError",
        "WebsocketFinished",
        "GpuFree",
    ] {
        let (first, second) = (ask(&node).await, ask(&node).await);
        // Both have been answered, and both are worked on.
        node.events(2).await;
        node.settles(2, 0).await;
        report(server.address, "InferenceStarted", &id_of(&first)).await;
        for _ in 0..3 {
            report(server.address, event, &id_of(&first)).await;
        }
        node.settles(1, 0).await;
        report(server.address, event, &id_of(&second)).await;
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn a_permit_is_held_until_its_server_is_free_and_the_next_request_waits_so_long() {
    let server = SimulatedServer::start(Config {
        concurrency: 1,
        over_limit: OverLimit::Refuse,
        finish_ms: Some(2000),
        ..Config::instant()
    })
    .await;
    let node = Node::start(&one_reporting(server.address, 1, LONG_SECS)).await;
    until_followed(&node, 1).await;
    for stream in [r#","stream":true"#, ""] {
        let answer = node.posting("", stream).await.answer().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    node.settles(0, 0).await;
    let stats = server.stats().await;
    assert_eq!(
        (&stats["served"], &stats["refused"]),
        (&2.into(), &0.into())
    );
    let events = node.events(2).await;
    let queued = [&events[0], &events[1]].map(|event| event["queued"] == true);
    assert_eq!(queued, [false, true], "{events:?}");
}

#[tokio::test]
async fn the_end_of_a_websocket_is_reported_too() {
    let server = SimulatedServer::start(Config {
        dialect: Dialect::Http,
        finish_ms: Some(500),
        ..Config::instant()
    })
    .await;
    let endpoint = reporting(server.address, 1, LONG_SECS);
    let node = Node::start(&format!(
        "models:\n  - id: ws\n    task: dumb-pipe\n    backend: http\n    endpoints:\n      - {{ {endpoint} }}\n"
    ))
    .await;
    until_followed(&node, 1).await;
    for _ in 0..2 {
        let mut client = WebSocketClient::connect(node.clients, "/ai/run/ws").await;
        client.send_text("hi").await;
        assert_eq!(client.text().await, "hi");
        client.send_close(1000, "").await;
        node.settles(0, 0).await;
    }
    assert_eq!(server.count("served").await, 2);
}

#[tokio::test]
async fn what_is_reported_of_a_finished_websocket_is_in_its_event_and_its_price() {
    let server = SimulatedServer::start(Config {
        dialect: Dialect::Http,
        ..Config::instant()
    })
    .await;
    let endpoint = reporting(server.address, 1, LONG_SECS);
    let tariff = "    tariff: { cost_per_infer: 1, coefficients: { audio_seconds: 2 } }\n";
    let node = Node::start(&format!(
        "models:\n  - id: ws\n    task: dumb-pipe\n    backend: http\n    endpoints:\n      - {{ {endpoint} }}\n{tariff}"
    ))
    .await;
    until_followed(&node, 1).await;
    // Behind the end of the connection, and before it.
    for (round, is_late) in [true, false].into_iter().enumerate() {
        let mut client = WebSocketClient::connect(node.clients, "/ai/run/ws").await;
        let id = client.head.split("x-request-id: ").nth(1).unwrap();
        let id = id.split("\r\n").next().unwrap().to_owned();
        let finished = async || {
            report(server.address, "GpuFree", &id).await;
            let metrics = r#"{"audio_seconds":2.5,"frames":40,"none":"x"}"#;
            report_metrics(server.address, "WebsocketFinished", &id, metrics).await;
        };
        if !is_late {
            finished().await;
        }
        client.send_close(1000, "").await;
        assert_eq!(client.closed().await.0, 1000);
        assert_eq!(client.frame().await, None, "it is closed");
        if is_late {
            eventually("its permit is held", async || {
                let state = node.state().await;
                let work = &state["models"][0]["endpoints"][0]["work"];
                (work["detached"] == 1).then_some(())
            })
            .await;
            finished().await;
        }
        let event = node.events(round + 1).await.pop().unwrap();
        assert_eq!(event["metrics"]["audio_seconds"], 2.5, "{event}");
        assert_eq!(event["metrics"]["frames"], 40, "{event}");
        assert!(event["metrics"]["none"].is_null(), "{event}");
        assert_eq!(event["neurons"], 6.0, "{event}");
        node.settles(0, 0).await;
    }
}

#[tokio::test]
async fn a_lost_event_releases_the_permit_at_the_end_of_its_lease() {
    let server = SimulatedServer::start(Config::instant()).await;
    let node = Node::start(&one_reporting(server.address, 1, 3)).await;
    until_followed(&node, 1).await;
    let asked_at = tokio::time::Instant::now();
    let lost = ask(&node).await;
    node.settles(1, 0).await;
    let work = async || node.state().await["models"][0]["endpoints"][0]["work"].clone();
    let held = serde_json::json!({ "reports": true, "detached": 1, "lost_reports": 0 });
    eventually("its permit is held", async || {
        (work().await == held).then_some(())
    })
    .await;
    // The next one waits for the lease.
    ask(&node).await;
    let url = format!("http://{}", server.address);
    let series = |name: &str| format!("infergate_{name}{{endpoint=\"{}\",model=\"m\"}}", url);
    for (name, value) in [("work_reports_open", 1.0), ("work_reports_lost_total", 1.0)] {
        eventually(name, async || {
            (node.metric(&series(name)).await >= Some(value)).then_some(())
        })
        .await;
    }
    assert!(
        asked_at.elapsed().as_secs() >= 3,
        "{:?}",
        asked_at.elapsed()
    );
    eventually("a line says so", async || {
        let log = node.log();
        log.contains("has not reported the end of its work")
            .then_some(())
    })
    .await;
    // A report that comes late takes no other permit.
    report(server.address, "InferenceSuccess", &id_of(&lost)).await;
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_stream_that_breaks_is_opened_again_and_permits_stay_held_meanwhile() {
    let place = KeepAliveServer::new();
    let server = place.serve();
    let node = Node::start(&one_reporting(place.address, 2, LONG_SECS)).await;
    until_followed(&node, 1).await;
    let first = ask(&node).await;
    node.settles(1, 0).await;
    drop(server);
    eventually("the break is told", async || {
        let log = node.log();
        log.contains("does not report the end of its work")
            .then_some(())
    })
    .await;
    node.settles(1, 0).await;
    let server = place.serve();
    until_followed(&node, 2).await;
    report(server.address, "GpuFree", &id_of(&first)).await;
    node.settles(0, 0).await;
    let second = eventually("the server serves again", async || {
        let answer = node.posting("", "").await.answer().await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    node.settles(1, 0).await;
    report(server.address, "InferenceSuccess", &id_of(&second)).await;
    node.settles(0, 0).await;
}

#[tokio::test]
async fn a_reload_that_removes_the_endpoint_releases_its_permits_and_one_that_keeps_it_does_not() {
    let (first, second) = (
        SimulatedServer::start(Config::instant()).await,
        SimulatedServer::start(Config::instant()).await,
    );
    let node = Node::start(&one_reporting(first.address, 1, LONG_SECS)).await;
    until_followed(&node, 1).await;
    let held = ask(&node).await;
    node.settles(1, 0).await;
    let kept = format!("{}, priority: 1", reporting(first.address, 1, LONG_SECS));
    let kept = format!("models:\n{}", model("m", &[kept], ""));
    assert_eq!(node.reload(&kept).await.status, 200);
    until_followed(&node, 2).await;
    node.settles(1, 0).await;
    report(first.address, "InferenceSuccess", &id_of(&held)).await;
    node.settles(0, 0).await;

    ask(&node).await;
    node.settles(1, 0).await;
    let other = one_reporting(second.address, 1, LONG_SECS);
    assert_eq!(node.reload(&other).await.status, 200);
    until_followed(&node, 3).await;
    // Its permits come back to the endpoint, which is there again.
    assert_eq!(node.reload(&kept).await.status, 200);
    node.settles(0, 0).await;
    ask(&node).await;
}

#[tokio::test]
async fn work_that_a_server_refuses_holds_no_permit_and_work_that_a_client_leaves_does() {
    let server = SimulatedServer::start(Config::instant()).await;
    let node = Node::start(&one_reporting(server.address, 1, LONG_SECS)).await;
    until_followed(&node, 1).await;
    for status in [400, 429, 500] {
        let fault = format!(r#","x_sim_fault":"status={status}""#);
        let answer = node.posting("", &fault).await.answer().await;
        assert_eq!(answer.status, status, "{}", answer.text());
        node.settles(0, 0).await;
    }
    let mut client = node.client().await;
    let body = chat("m", r#","x_sim_fault":"stall""#);
    client.post("", "/v1/chat/completions", &body).await;
    eventually("it is worked on", async || {
        (server.count("current").await == 1).then_some(())
    })
    .await;
    client.close();
    let event = node.events(4).await.pop().unwrap();
    assert_eq!(event["outcome"], "cut-by-client", "{event}");
    node.settles(1, 0).await;
    let id = event["request_id"].as_str().unwrap();
    report(server.address, "InferenceError", id).await;
    node.settles(0, 0).await;
}

#[tokio::test]
async fn work_of_a_former_process_keeps_its_permit_from_the_next_one_until_it_is_reported() {
    let server = SimulatedServer::start(Config::instant()).await;
    let state = tempfile::tempdir().unwrap();
    let config = with_state(state.path(), &one_reporting(server.address, 1, LONG_SECS));
    let mut node = Node::start(&config).await;
    until_followed(&node, 1).await;
    let first = ask(&node).await;
    node.settles(1, 0).await;
    let _successor = upgrade(&node).await;
    let second = node.posting("", "").await;
    eventually("the second one waits in the next process", async || {
        let state = node.state().await;
        let depth = state.pointer("/models/0/queue/depth").cloned();
        (depth? == 1).then_some(())
    })
    .await;
    eventually("the former process has nothing else to do", async || {
        node.log().contains("work that was left").then_some(())
    })
    .await;
    assert!(node.is_running());
    assert_eq!(server.stats().await["served"], 1);
    report(server.address, "GpuFree", &id_of(&first)).await;
    assert_eq!(second.answer().await.status, 200);
    assert!(node.ended().await.success());
}
