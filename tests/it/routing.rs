//! Routing policies: where requests go when a model says more than tier and load.

use serde_json::Value;

use crate::support::{Node, SimulatedServer, chat, endpoint, eventually, model};
use infergate::simulate;

async fn with_pace(ttft_ms: u64) -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        ttft_ms,
        concurrency: 64,
        ..simulate::Config::instant()
    })
    .await
}

fn over(servers: &[&SimulatedServer], policy: &str) -> String {
    let endpoints: Vec<String> = servers.iter().map(|s| endpoint(s.address, 64)).collect();
    format!(
        "models:\n{}",
        model(
            "m",
            &endpoints,
            &format!("    plugins: {{ routing: {policy} }}\n")
        )
    )
}

/// URL of the endpoint that a chat with this text was sent to.
async fn went(node: &Node, text: &str) -> String {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
    let answer = node.post("/v1/chat/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = node.event_of(&answer).await;
    event["upstream"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_latency_policy_sends_to_the_server_that_answers_first() {
    let (slow, fast) = (with_pace(500).await, with_pace(1).await);
    let node = Node::start(&over(&[&slow, &fast], "latency")).await;
    // Both are measured by tier and load; from then on the table says where to go.
    eventually("six requests in a row go to the fast one", async || {
        for _ in 0..6 {
            if !went(&node, "hi").await.contains(&fast.address.to_string()) {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_job_goes_where_the_policy_sends_it_although_its_permit_came_first() {
    let servers = [with_pace(1).await, with_pace(1).await, with_pace(1).await];
    let endpoints = servers.each_ref().map(|it| endpoint(it.address, 64));
    let more = "    plugins: { routing: affinity }\n";
    let model = model("acme/m", &endpoints, more);
    let node = Node::start(&format!("jobs: {{}}\nmodels:\n{model}")).await;
    let mut jobs = 0;
    for conversation in 0..4 {
        let beginning = format!("{conversation} ").repeat(2000);
        let mut first = None;
        for turn in 0..5 {
            let prompt = format!("{beginning} turn {turn}");
            let input = serde_json::json!({ "input": { "prompt": prompt } }).to_string();
            let path = "/v1/models/acme/m/predictions";
            let created = node.post_as("prefer: wait=30\r\n", path, &input).await;
            assert_eq!(created.json()["status"], "succeeded", "{}", created.text());
            jobs += 1;
            let event = node.events(jobs).await.remove(jobs - 1);
            let first = first.get_or_insert_with(|| event["upstream"].clone());
            assert_eq!(event["upstream"], *first, "{conversation}, turn {turn}");
        }
    }
    node.idle().await;
}

#[tokio::test]
async fn the_affinity_policy_keeps_a_prompt_where_its_beginning_was() {
    let servers = [with_pace(1).await, with_pace(1).await, with_pace(1).await];
    let node = Node::start(&over(&servers.each_ref(), "affinity")).await;
    let mut places = std::collections::BTreeSet::new();
    for conversation in 0..64 {
        // Where one goes first is drawn by lot: a few may meet at one place, and all never do.
        if conversation >= 8 && places.len() > 1 {
            break;
        }
        let beginning = format!("{conversation} ").repeat(2000);
        let first = went(&node, &beginning).await;
        for turn in 0..4 {
            let again = went(&node, &format!("{beginning} turn {turn}")).await;
            assert_eq!(again, first, "conversation {conversation}, turn {turn}");
        }
        places.insert(first);
    }
    assert!(places.len() > 1, "conversations are spread: {places:?}");
}

#[tokio::test]
async fn a_policy_that_is_not_known_is_named_with_those_that_are() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&over(&[&server], "random")).await;
    let answer = node.reload(&over(&[&server], "latancy")).await;
    assert_eq!(answer.status, 422);
    let problems = answer.json()["problems"].clone();
    let reported = problems[0]["message"].as_str().unwrap();
    assert!(reported.contains("latency"), "{reported}");
    assert_eq!(problems[0]["path"], "models[0].plugins.routing");
    let again = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(again.status, 200);
}

#[tokio::test]
async fn a_site_may_be_named_by_those_who_may() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "{}{}",
        crate::support::accounts(", may_force_site: true"),
        over(&[&server], "forced-site")
    );
    let node = Node::start(&config).await;
    let ask = async |key: &str, site: &str| {
        let headers = format!("Authorization: Bearer {key}\r\nx-infergate-site: {site}\r\n");
        let path = "/v1/chat/completions";
        node.post_as(&headers, path, &chat("m", "")).await
    };
    let known = node.state().await["node"]["site"].clone();
    assert_eq!(ask("key-a", known.as_str().unwrap()).await.status, 200);
    let refused = ask("key-a", "nowhere").await;
    assert_eq!(refused.status, 400);
    let error: Value = refused.json();
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("known")
    );
    // Of those who may not, the header is dropped like every other of ours.
    assert_eq!(ask("key-b", "nowhere").await.status, 200);
}
