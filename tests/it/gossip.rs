//! Nodes of a fleet as child processes: they find each other, tell each other how busy they are and
//! what accounts have used, and see each other go.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::billing::a_day_with_time_left;
use crate::discovery::{Consul, instance};
use crate::support::{
    ClusterCredentials, Node, SimulatedServer, accounts, chat, endpoint, eventually, free_address,
    model,
};

/// Waits until `is_so` holds for the entry that `node` shows of node `name`; returns the entry.
async fn wait_until_seen(node: &Node, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("{name} is seen so"), async || {
        let state = node.state().await;
        let nodes = state["nodes"].as_array().unwrap();
        let other = nodes.iter().find(|other| other["id"] == name)?;
        is_so(other).then(|| other.clone())
    })
    .await
}

fn seeds(seed: SocketAddr) -> String {
    format!("seeds: [\"{seed}\"]")
}

fn with_model(server: &SimulatedServer, more: &str) -> String {
    let model = model("m", &[endpoint(server.address, 4)], more);
    format!("models:\n{model}")
}

#[tokio::test]
async fn a_node_is_seen_to_come_to_drain_to_go_and_to_come_again() {
    let (fleet, server) = (ClusterCredentials::new(), SimulatedServer::fast().await);
    let (at_a, at_b) = (free_address(), free_address());
    let nothing = "models:\n  - { id: m, task: text-generation, backend: openai }\n";
    let a = fleet.start("a", at_a, "seeds: []", nothing).await;
    let served = with_model(&server, "");
    let b = fleet.start("b", at_b, &seeds(at_a), &served).await;
    let seen = wait_until_seen(&a, "b", |b| b["models"] == 1).await;
    assert_eq!(
        (&seen["site"], &seen["draining"], &seen["gone"]),
        (&json!("fra"), &json!(false), &json!(false))
    );
    assert!(seen["age_ms"].is_u64() && seen["rtt_ms"].is_f64());
    assert!(seen["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    // An edge node tells of no model that nobody wants.
    wait_until_seen(&b, "a", |a| a["models"] == 0).await;
    assert_eq!(
        a.metric(r#"infergate_nodes{state="live"}"#).await,
        Some(1.0)
    );

    // A request keeps it from ending before it was seen to drain.
    let slow = b.posting("", r#","x_sim_fault":"stall""#).await;
    b.settles(1, 0).await;
    b.signal("TERM");
    wait_until_seen(&a, "b", |b| b["draining"] == true).await;
    let event = |word: &str| format!("infergate_node_events_total{{event=\"{word}\"}}");
    eventually("the drain is told by gossip too", async || {
        (a.metric(&event("draining")).await == Some(1.0)).then_some(())
    })
    .await;
    drop(slow);
    drop(b);
    wait_until_seen(&a, "b", |b| b["gone"] == true).await;
    assert_eq!(
        a.metric(r#"infergate_nodes{state="lost"}"#).await,
        Some(1.0)
    );

    let b = fleet.start("b", at_b, &seeds(at_a), &served).await;
    let again = wait_until_seen(&a, "b", |b| b["gone"] == false).await;
    assert!(again["generation"].as_u64() > seen["generation"].as_u64());
    assert_eq!(again["draining"], false);
    wait_until_seen(&b, "a", |a| a["gone"] == false).await;
    // On a busy machine it may have been lost and returned more often: what is counted is what is told.
    // The log is written by a thread of its own, a moment later.
    let log = eventually("what is counted is told", async || {
        let log = a.log();
        for word in ["appeared", "draining", "lost", "restarted", "returned"] {
            let reported = log.matches(&format!("node {word}")).count();
            if a.metric(&event(word)).await != Some(reported as f64) {
                return None;
            }
        }
        Some(log)
    })
    .await;
    let reported = |word: &str| log.find(&format!("node {word}")).expect(word);
    assert!(reported("appeared") < reported("draining"));
    assert!(reported("appeared") < reported("lost") && reported("lost") < reported("restarted"));
}

#[tokio::test]
async fn nodes_that_start_before_consul_knows_any_join_when_it_does() {
    let (fleet, consul) = (ClusterCredentials::new(), Consul::start().await);
    consul.set_response(200, "[]");
    let asked = format!(
        "discovery: consul, consul: {{ url: \"http://{}\", service: gateway, datacenter: dc1 }}",
        consul.address
    );
    let (at_a, at_b) = (free_address(), free_address());
    let a = fleet.start("a", at_a, &asked, "").await;
    let b = fleet.start("b", at_b, &asked, "").await;
    eventually("both have asked", async || {
        (consul.asked.lock().len() >= 2).then_some(())
    })
    .await;
    assert_eq!(a.state().await["nodes"], json!([]));
    let head = consul.asked.lock()[0].clone();
    assert!(
        head.starts_with("GET /v1/health/service/gateway?passing=1&dc=dc1 "),
        "{head}"
    );
    consul.set_response(200, json!([instance(at_a), instance(at_b)]));
    wait_until_seen(&a, "b", |b| b["gone"] == false).await;
    wait_until_seen(&b, "a", |a| a["gone"] == false).await;
}

#[tokio::test]
async fn what_an_account_uses_at_one_node_counts_at_the_other() {
    a_day_with_time_left().await;
    let (fleet, server) = (ClusterCredentials::new(), SimulatedServer::fast().await);
    let (at_a, at_b) = (free_address(), free_address());
    // At b everything is free: nothing but what a tells can refuse anybody there.
    let rest = |neurons: u32| {
        let tariff = format!("    tariff: {{ cost_per_infer: {neurons} }}\n");
        let served = with_model(&server, &tariff);
        format!("{}{served}", accounts(", neurons_per_day: 10"))
    };
    let a = fleet.start("a", at_a, &seeds(at_b), &rest(6)).await;
    let b = fleet.start("b", at_b, &seeds(at_a), &rest(0)).await;
    wait_until_seen(&a, "b", |b| b["gone"] == false).await;
    let ask = async |node: &Node, key: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        node.post_as(&headers, "/v1/chat/completions", &chat("m", ""))
            .await
            .status
    };
    assert_eq!((ask(&a, "key-a").await, ask(&a, "key-a").await), (200, 200));
    eventually("the other node has heard", async || {
        (ask(&b, "key-a").await == 429).then_some(())
    })
    .await;
    assert_eq!(ask(&b, "key-b").await, 200);
    // What is used stays used, also when the node where it was is gone.
    drop(a);
    wait_until_seen(&b, "a", |a| a["gone"] == true).await;
    assert_eq!(ask(&b, "key-a").await, 429);
}

#[tokio::test]
async fn a_taken_gossip_address_is_an_error_at_start() {
    let fleet = ClusterCredentials::new();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("infergate.yaml");
    let listen = format!(
        "state_dir: \"{}\"\nlisten:\n  clients: [{{ address: \"{}\" }}]\n  admin: {{ address: \"{}\" }}\n",
        dir.path().join("state").display(),
        free_address(),
        free_address()
    );
    let node = fleet.config("a", "fra", at, "seeds: []");
    std::fs::write(&path, listen + &node).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_infergate"))
        .args(["serve", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(
        printed.contains(&format!("cannot gossip on {at}")),
        "{printed}"
    );
}

#[tokio::test]
async fn who_has_the_secret_and_no_certificate_gets_no_request_whatever_it_tells() {
    let (fleet, strangers) = (ClusterCredentials::new(), ClusterCredentials::new());
    let (server, theirs) = (SimulatedServer::fast().await, SimulatedServer::fast().await);
    let (at_a, at_b, at_stranger) = (free_address(), free_address(), free_address());
    let nothing = "models:\n  - { id: m, task: text-generation, backend: openai, endpoints: [] }\n";
    let a = fleet.start("a", at_a, "seeds: []", nothing).await;
    // The same secret, and a certificate of another authority.
    let serving = with_model(&theirs, "");
    let stranger = strangers
        .start("s", at_stranger, &seeds(at_a), &serving)
        .await;
    wait_until_seen(&a, "s", |s| s["models"] == 1 && s["proven"] == false).await;
    let headers = "x-infergate-queue: reject\r\n";
    let body = chat("m", "");
    let ask = async || a.post_as(headers, "/v1/chat/completions", &body).await;
    let refused = ask().await;
    assert_ne!(refused.status, 200);
    let trace = a.explain(refused.header("x-request-id").unwrap()).await;
    let trace = trace.to_string();
    assert!(trace.contains("\"skip_reason\":\"unproven\""), "{trace}");
    assert!(!trace.contains("\"forward\""), "{trace}");

    let b = fleet
        .start("b", at_b, &seeds(at_a), &with_model(&server, ""))
        .await;
    wait_until_seen(&a, "b", |b| b["models"] == 1 && b["proven"] == true).await;
    for _ in 0..10 {
        assert_eq!(ask().await.status, 200);
    }
    let served = (server.count("served").await, theirs.count("served").await);
    assert_eq!(served, (10, 0));
    drop((b, stranger));
}

#[tokio::test]
async fn requests_that_pass_at_one_node_count_against_the_minute_at_the_other() {
    count_at_both(", requests_per_minute: 3").await;
}

#[tokio::test]
async fn requests_of_a_task_that_pass_at_one_node_count_for_the_task_at_the_other() {
    count_at_both(", requests_per_minute_by_task: { text-generation: 3 }").await;
}

/// Uses up this limit of account `a` at one node and waits until the other one refuses.
async fn count_at_both(limits: &str) {
    let (fleet, server) = (ClusterCredentials::new(), SimulatedServer::fast().await);
    let (at_a, at_b) = (free_address(), free_address());
    let limited = accounts(limits);
    let served = format!("{limited}{}", with_model(&server, ""));
    // Nobody serves it: asking for it costs nothing, and shows how the account stands.
    let probe = "models:\n  - { id: n, task: text-generation, backend: openai, endpoints: [], \
                 queue: { when_unhealthy: refuse } }\n";
    let a = fleet.start("a", at_a, &seeds(at_b), &served).await;
    let b = fleet
        .start("b", at_b, &seeds(at_a), &format!("{limited}{probe}"))
        .await;
    wait_until_seen(&b, "a", |a| a["gone"] == false && a["proven"] == true).await;
    let ask = async |node: &Node, key: &str, model: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        let body = chat(model, "");
        let answer = node.post_as(&headers, "/v1/chat/completions", &body).await;
        (answer.status, answer.json()["error"]["code"].clone())
    };
    let limit = (429, json!("rate_limit_exceeded"));
    for _ in 0..3 {
        assert_eq!(ask(&a, "key-a", "m").await.0, 200);
    }
    assert_eq!(ask(&a, "key-a", "m").await, limit);
    let before = ask(&b, "key-b", "n").await;
    assert_ne!(before, limit);
    eventually("the other node has heard", async || {
        (ask(&b, "key-a", "n").await == limit).then_some(())
    })
    .await;
    assert_eq!(ask(&b, "key-b", "n").await, before);
}

#[tokio::test]
async fn nodes_that_are_configured_otherwise_say_so_until_a_reload_makes_them_alike() {
    let (fleet, server) = (ClusterCredentials::new(), SimulatedServer::fast().await);
    let (at_a, at_b) = (free_address(), free_address());
    let rest = |limit: u32, neurons: u32, alias: &str| {
        let more = format!("    tariff: {{ cost_per_infer: {neurons} }}\n    aliases: [{alias}]\n");
        let limit = accounts(&format!(", neurons_per_day: {limit}"));
        format!("{limit}{}", with_model(&server, &more))
    };
    let (one, other) = (rest(10, 1, "x"), rest(20, 2, "y"));
    let a = fleet.start("a", at_a, &seeds(at_b), &one).await;
    let b = fleet.start("b", at_b, &seeds(at_a), &other).await;
    let differing = json!(["accounts", "models", "tariffs"]);
    for (node, name) in [(&a, "b"), (&b, "a")] {
        wait_until_seen(node, name, |other| other["drift"] == differing).await;
        eventually("the difference is said and counted", async || {
            let printed = "differs=\"accounts, models, tariffs\"";
            let is_logged = node.log().lines().any(|line| {
                line.contains("WARN")
                    && line.contains(&format!("node={name}"))
                    && line.contains(printed)
            });
            for what in ["accounts", "models", "tariffs"] {
                let series = format!("infergate_nodes_drifted{{what=\"{what}\"}}");
                if node.metric(&series).await != Some(1.0) {
                    return None;
                }
            }
            is_logged.then_some(())
        })
        .await;
    }

    let text = std::fs::read_to_string(b.config_path()).unwrap();
    let alike = text.replace(&other, &one);
    assert_ne!(text, alike);
    std::fs::write(b.config_path(), alike).unwrap();
    assert_eq!(b.post_reload().await.status, 200);
    for (node, name) in [(&a, "b"), (&b, "a")] {
        wait_until_seen(node, name, |other| other["drift"] == json!([])).await;
        eventually("that they are alike is said and counted", async || {
            let tariffs = "infergate_nodes_drifted{what=\"tariffs\"}";
            let is_alike = node.metric(tariffs).await == Some(0.0);
            (is_alike && node.log().contains("configured like this one again")).then_some(())
        })
        .await;
    }
}
