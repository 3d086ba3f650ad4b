//! The admin listener as operators and their tools know it: paths, methods, statuses and names.

use std::io::Write;
use std::process::{Command, Stdio};

use futures_util::future::join_all;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::{
    Node, RefusingServer, SimulatedServer, TestClient, TestResponse, accounts, chat, endpoint,
    eventually, model, one_model,
};

async fn request(node: &Node, method: &str, path: &str) -> TestResponse {
    let mut client = TestClient::connect(node.admin).await;
    let length = if method == "GET" {
        ""
    } else {
        "Content-Length: 0\r\n"
    };
    let close = "Connection: close\r\n";
    client
        .send(format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{close}{length}\r\n"
        ))
        .await;
    client.response().await
}

#[tokio::test]
async fn a_connection_too_many_is_counted_and_warned_of_once() {
    const OPEN_MAX: usize = 256;
    const TOO_MANY: usize = 44;
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let opened = (0..OPEN_MAX + TOO_MANY).map(|_| TcpStream::connect(node.admin));
    let open = join_all(opened).await;
    let warning = "a connection to the operators' listener is closed";
    eventually("the log says so", async || {
        node.log().contains(warning).then_some(())
    })
    .await;
    drop(open);
    let refused = "infergate_connections_refused_total{reason=\"admin-limit\"}";
    eventually("they are counted", async || {
        let page = TestClient::try_get(node.admin, "/metrics").await?.text();
        let line = page.lines().find_map(|line| line.strip_prefix(refused))?;
        (line.trim().parse::<f64>().unwrap() >= TOO_MANY as f64).then_some(())
    })
    .await;
    assert_eq!(node.log().matches(warning).count(), 1);
}

#[tokio::test]
async fn every_path_takes_its_method_and_says_so_to_the_others() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for (path, takes, status, kind) in [
        ("/", "GET", 200, "text/plain"),
        ("/healthz", "GET", 200, "text/plain"),
        ("/readyz", "GET", 200, "text/plain"),
        ("/metrics", "GET", 200, "text/plain"),
        ("/dashboard", "GET", 200, "text/html"),
        ("/state", "GET", 200, "application/json"),
        ("/accounts", "GET", 200, "application/json"),
        ("/reload", "POST", 200, "application/json"),
        ("/explain", "GET", 200, "application/json"),
        ("/explain/0123", "GET", 404, "application/json"),
    ] {
        let answer = request(&node, takes, path).await;
        assert_eq!(answer.status, status, "{path}");
        assert!(
            answer.header("content-type").unwrap().starts_with(kind),
            "{path}"
        );
        for other in ["GET", "POST", "PUT", "DELETE"] {
            if other != takes {
                let refused = request(&node, other, path).await;
                assert_eq!(refused.status, 405, "{other} {path}");
                assert_eq!(refused.header("allow"), Some(takes));
            }
        }
    }
    assert_eq!(request(&node, "GET", "/nothing").await.status, 404);
    // Nothing of it is reachable for clients.
    for path in [
        "/state",
        "/metrics",
        "/healthz",
        "/explain",
        "/dashboard",
        "/accounts",
    ] {
        let answer = TestClient::try_get(node.clients, path).await.unwrap();
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[tokio::test]
async fn operators_have_as_many_connections_as_they_may_and_the_next_is_closed() {
    const CONNECTIONS_MAX: usize = 256;
    let node = Node::start("models: []\n").await;
    let ask = async || {
        let mut client = TestClient::connect(node.admin).await;
        client
            .send("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            .await;
        (client.response().await.status == 200).then_some(client)
    };
    let mut open = Vec::new();
    while let Some(client) = ask().await {
        open.push(client);
        assert!(open.len() <= CONNECTIONS_MAX, "there is no bound");
    }
    // Questions of the start may be open beside them.
    assert!(open.len() > CONNECTIONS_MAX / 2, "{}", open.len());
    drop(open);
    eventually("there is room again", async || ask().await.map(drop)).await;
}

#[tokio::test]
async fn state_has_the_fields_of_the_contract() {
    let (server, gone) = (SimulatedServer::fast().await, RefusingServer::new());
    let models = format!(
        "node: {{ id: a1, site: fra }}\nmodels:\n{}{}",
        model("\"@cf/meta/m\"", &[endpoint(server.address, 4)], ""),
        model(
            "n",
            &[endpoint(gone.address, 3)],
            "    queue: { algorithm: fifo, capacity: 5 }\n"
        ),
    );
    let node = Node::start(&models).await;
    let state = node.state().await;
    assert_eq!(
        (&state["node"]["id"], &state["node"]["site"]),
        (&"a1".into(), &"fra".into())
    );
    assert_eq!(state["node"]["draining"], false);
    assert_eq!(state["node"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(state["node"]["started_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(state["config"]["generation"], 1);
    assert!(
        state["config"]["loaded_at"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert_eq!(state["config"]["last_reload_error"], Value::Null);
    assert_eq!(
        (&state["plugins"], &state["nodes"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    let [first, second] = state["models"].as_array().unwrap().as_slice() else {
        panic!("{state}");
    };
    assert_eq!(
        (&first["id"], &second["id"]),
        (&"@cf/meta/m".into(), &"n".into())
    );
    let queue = serde_json::json!({
        "algorithm": "fair", "depth": 0, "capacity": 8, "expected_wait_ms": 0, "accounts": {}
    });
    assert_eq!(first["queue"], queue);
    assert_eq!(
        (&second["queue"]["algorithm"], &second["queue"]["capacity"]),
        (&"fifo".into(), &15.into())
    );
    let endpoint = serde_json::json!({
        "url": format!("http://{}", server.address),
        "source": "config",
        "health": "healthy",
        "permits": { "used": 0, "limit": 4 },
        "ejected_until": null,
        "since": first["endpoints"][0]["since"],
        "last_error": null,
    });
    assert!(endpoint["since"].is_string(), "{endpoint}");
    assert_eq!(first["endpoints"], serde_json::json!([endpoint]));
    eventually("the other one is down", async || {
        let state = node.state().await;
        (state["models"][1]["endpoints"][0]["health"] == "down").then_some(())
    })
    .await;
}

#[tokio::test]
async fn accounts_are_listed_with_their_use_of_the_day_the_largest_first() {
    let server = SimulatedServer::fast().await;
    let tariff = "    tariff: { cost_per_infer: 6 }\n";
    let config = accounts("") + &one_model(server.address, 2, tariff);
    let limited = config.replacen("id: b,", "id: b, neurons_per_day: 100,", 1);
    let node = Node::start(&limited).await;
    for key in ["key-a", "key-b", "key-b"] {
        let key = format!("Authorization: Bearer {key}\r\n");
        let answer = node
            .post_as(&key, "/v1/chat/completions", &chat("m", ""))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let expected = serde_json::json!({
        "accounts": [
            { "id": "b", "neurons_used_today": 12.0, "neurons_per_day": 100, "waiting": 0 },
            { "id": "a", "neurons_used_today": null, "neurons_per_day": null, "waiting": 0 },
        ],
        "left_out": 0,
    });
    // A request is priced a moment after its answer.
    eventually("the use of the day is counted", async || {
        (node.get("/accounts").await.json() == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_browser_gets_the_page_and_its_policy_at_the_root() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let ask = async |accept: &str| {
        let mut client = TestClient::connect(node.admin).await;
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n");
        client.send(head).await;
        client.response().await
    };
    let page = ask("text/html,application/xhtml+xml,*/*;q=0.8").await;
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    let list = ask("*/*").await;
    assert!(list.text().contains("GET  /dashboard"), "{}", list.text());
    assert_eq!(list.header("content-security-policy"), None);
}

#[tokio::test]
async fn a_connection_serves_one_question_after_the_other() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let mut scraper = TestClient::connect(node.admin).await;
    for path in ["/metrics", "/state", "/healthz", "/metrics"] {
        scraper
            .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .await;
        let answer = scraper.response().await;
        assert_eq!((answer.status, answer.broken), (200, false), "{path}");
    }
}

#[tokio::test]
async fn metrics_are_well_formed_and_count_what_happened() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    for _ in 0..3 {
        assert_eq!(node.posting("", "").await.answer().await.status, 200);
    }
    node.post("/v1/chat/completions", &chat("nobody", "")).await;
    node.events(4).await;
    // A line is in the file a moment before it is counted.
    eventually("all lines are counted", async || {
        (node.metric("infergate_events_written_total").await? == 4.0).then_some(())
    })
    .await;
    for (series, value) in [
        (
            r#"infergate_requests_total{face="openai",model="m",outcome="completed"}"#,
            3.0,
        ),
        (
            r#"infergate_requests_total{face="openai",model="(none)",outcome="refused"}"#,
            1.0,
        ),
        (
            r#"infergate_refusals_total{model="(none)",reason="model_not_found"}"#,
            1.0,
        ),
        (
            r#"infergate_upstream_attempts_total{model="m",result="answered"}"#,
            3.0,
        ),
        (
            r#"infergate_time_to_first_token_seconds_count{model="m"}"#,
            3.0,
        ),
        (r#"infergate_queue_wait_seconds_count{model="m"}"#, 3.0),
        (r#"infergate_permits_used{model="m"}"#, 0.0),
        (r#"infergate_permits_limit{model="m"}"#, 2.0),
        (r#"infergate_queue_depth{model="m"}"#, 0.0),
        ("infergate_config_generation", 1.0),
    ] {
        assert_eq!(node.metric(series).await, Some(value), "{series}");
    }
    assert!(node.metric("process_resident_memory_bytes").await.unwrap() > 1e6);
    let answer = node.get("/metrics").await;
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    check_with_promtool(&answer.body);
}

/// Checks the metrics with promtool, where that is installed.
fn check_with_promtool(metrics: &[u8]) {
    let child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("skipped: promtool is not on PATH");
        return;
    };
    child.stdin.take().unwrap().write_all(metrics).unwrap();
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}");
    assert_eq!(printed, "");
}

#[tokio::test]
async fn the_five_minute_window_sees_what_a_scrape_would_miss() {
    let server = SimulatedServer::fast().await;
    let held = crate::support::ScriptedServer::held().await;
    let models = format!(
        "models:\n{}{}",
        model("idle", &[endpoint(server.address, 3)], ""),
        model("m", &[endpoint(held.address, 1)], "")
    );
    let node = Node::start(&models).await;
    let holder = node.posting("", "").await;
    node.settles(1, 0).await;
    eventually("a full moment is in the window", async || {
        let full = node.metric(r#"infergate_full_fraction{model="m"}"#).await?;
        (full > 0.0).then_some(())
    })
    .await;
    held.next();
    assert_eq!(holder.answer().await.status, 200);
    node.settles(0, 0).await;
    // The load is gone from the gauges and still in the window.
    assert_eq!(
        node.metric(r#"infergate_permits_used{model="m"}"#).await,
        Some(0.0)
    );
    for name in ["infergate_full_fraction", "infergate_mean_used_permits"] {
        let value = node
            .metric(&format!("{name}{{model=\"m\"}}"))
            .await
            .unwrap();
        assert!(value > 0.0 && value <= 1.0, "{name} {value}");
        assert_eq!(
            node.metric(&format!("{name}{{model=\"idle\"}}")).await,
            Some(0.0)
        );
    }
    assert_eq!(
        node.metric(r#"infergate_total_permits{model="idle"}"#)
            .await,
        Some(3.0)
    );
}

#[tokio::test]
async fn the_series_of_a_model_go_with_the_model() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    assert_eq!(node.posting("", "").await.answer().await.status, 200);
    let other = format!(
        "models:\n{}",
        model("n", &[endpoint(server.address, 1)], "")
    );
    assert_eq!(node.reload(&other).await.status, 200);
    let text = node.get("/metrics").await.text();
    assert!(text.contains(r#"model="n""#));
    assert!(!text.contains(r#"model="m""#), "{text}");
}
