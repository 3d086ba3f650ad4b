//! Backends that report their load: where requests go by a server's own page of metrics.

use serde_json::Value;

use crate::support::{ANSWER, Node, ScriptedServer, eventually, json_answer, model};

const VLLM_PAGE: &str = include_str!("../../src/upstream/backends/pages/vllm-v1.txt");
const SGLANG_PAGE: &str = include_str!("../../src/upstream/backends/pages/sglang-ranks.txt");

/// A page with these numbers at every series of a name.
fn changed(page: &str, names_and_numbers: &[(&str, u32)]) -> String {
    let line = |line: &str| {
        let change = names_and_numbers
            .iter()
            .find(|(name, _)| line.starts_with(&format!("{name}{{")));
        match (change, line.rsplit_once(' ')) {
            (Some((_, number)), Some((series, _))) => format!("{series} {number}.0\n"),
            _ => format!("{line}\n"),
        }
    };
    page.lines().map(line).collect()
}

/// vLLM's page with so many requests, and these adapters reported last.
fn vllm_page(running: u32, waiting: u32, adapters: &str) -> String {
    let requests = [
        ("vllm:num_requests_running", running),
        ("vllm:num_requests_waiting", waiting),
    ];
    changed(VLLM_PAGE, &requests)
        + &format!(
            "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"{adapters}\",waiting_lora_adapters=\"\"}} 1.78862646e+09\n"
        )
}

/// SGLang's page of two engines with so many requests each, and a cache that is not full.
fn sglang_page(running: u32, waiting: u32) -> String {
    let requests = [
        ("sglang:num_running_reqs", running),
        ("sglang:num_queue_reqs", waiting),
    ];
    changed(SGLANG_PAGE, &requests).replace(" 0.97\n", " 0.5\n")
}

async fn servers() -> [ScriptedServer; 2] {
    let answer = json_answer(ANSWER);
    [
        ScriptedServer::new(&[&answer]).await,
        ScriptedServer::new(&[&answer]).await,
    ]
}

async fn node_of(backend: &str, servers: &[ScriptedServer; 2]) -> Node {
    let endpoints = servers.each_ref().map(|server| {
        format!(
            "url: \"http://{}\", max_concurrent_requests: 8, health: {{ interval_secs: 1 }}",
            server.address
        )
    });
    // The names of servers are others than those of clients.
    let more = "    plugins: { routing: affinity }\n    finetunes: [{ id: of-sql, adapter: sql }, { id: of-chat, adapter: chat }]\n";
    let model = model("m", &endpoints, more);
    let model = model.replace("backend: openai", &format!("backend: {backend}"));
    Node::start(&format!("models:\n{model}")).await
}

async fn went(node: &Node, path: &str, body: &str) -> String {
    let answer = node.post(path, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = node.event_of(&answer).await;
    event["upstream"].as_str().unwrap_or_default().to_owned()
}

const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// Six chats in a row go to `server`.
async fn until_all_go_to(node: &Node, server: &ScriptedServer) {
    eventually("six chats in a row go to the idle server", async || {
        for _ in 0..6 {
            let upstream = went(node, "/v1/chat/completions", CHAT).await;
            if !upstream.contains(&server.address.to_string()) {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn requests_go_where_a_server_reports_no_queue_of_its_own() {
    for backend in ["vllm", "sglang"] {
        let servers = servers().await;
        let page = |waiting| match backend {
            "vllm" => vllm_page(8, waiting, ""),
            _ => sglang_page(8, waiting),
        };
        let idle = if backend == "vllm" {
            vllm_page(0, 0, "")
        } else {
            sglang_page(0, 0)
        };
        servers[0].set_page("/metrics", &page(30));
        servers[1].set_page("/metrics", &idle);
        let node = node_of(backend, &servers).await;
        until_all_go_to(&node, &servers[1]).await;
        servers[0].set_page("/metrics", &idle);
        servers[1].set_page("/metrics", &page(30));
        until_all_go_to(&node, &servers[0]).await;
        let probes = servers[0].probes();
        for path in ["/health", "/metrics"] {
            let asked = format!("GET {path} HTTP/1.1");
            assert!(
                probes.iter().any(|probe| probe.starts_with(&asked)),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn an_adapters_requests_go_where_a_server_reports_it() {
    let servers = servers().await;
    servers[0].set_page("/metrics", &vllm_page(0, 0, "chat"));
    servers[1].set_page("/metrics", &vllm_page(0, 0, "sql"));
    let node = node_of("vllm", &servers).await;
    eventually("each adapter's requests go to its server", async || {
        for (adapter, server) in [("sql", &servers[1]), ("chat", &servers[0])] {
            let body = format!(r#"{{"prompt":"hi","lora":"of-{adapter}"}}"#);
            let upstream = went(&node, "/ai/run/m", &body).await;
            if !upstream.contains(&server.address.to_string()) {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_page_counts_by_its_metrics_whatever_its_size_and_content_type() {
    let servers = servers().await;
    let padding = "vllm:e2e_request_latency_seconds_bucket{engine=\"0\",le=\"0.3\"} 0.0\n";
    let padded = |page: String, bytes: usize| {
        let times = (bytes - page.len()) / padding.len();
        padding.repeat(times) + &page
    };
    let busy = padded(vllm_page(8, 30, ""), 1 << 20);
    let idle = "Content-Type: application/json\r\n";
    servers[0].set_page("/metrics", &busy);
    servers[1].set_page_as("/metrics", idle, &vllm_page(0, 0, ""));
    let node = node_of("vllm", &servers).await;
    until_all_go_to(&node, &servers[1]).await;
    // Without its metrics, a server is one without load.
    servers[0].set_page_as(
        "/metrics",
        "Content-Type: text/html\r\n",
        "<html>Not Found</html>",
    );
    servers[1].set_page("/metrics", &busy);
    until_all_go_to(&node, &servers[0]).await;
}

#[tokio::test]
async fn a_page_that_is_none_makes_no_server_unhealthy() {
    let servers = servers().await;
    servers[0].set_page("/metrics", &"x".repeat(2 << 20));
    let node = node_of("vllm", &servers).await;
    eventually("both pages were asked for twice", async || {
        let asked = |server: &ScriptedServer| {
            let probes = server.probes();
            probes
                .iter()
                .filter(|probe| probe.starts_with("GET /metrics"))
                .count()
                >= 2
        };
        servers.iter().all(asked).then_some(())
    })
    .await;
    let state = node.state().await;
    for endpoint in state["models"][0]["endpoints"].as_array().unwrap() {
        assert_eq!(endpoint["health"], "healthy");
        assert_eq!(endpoint["last_error"], Value::Null);
    }
    assert!(
        went(&node, "/v1/chat/completions", CHAT)
            .await
            .contains("http")
    );
}
