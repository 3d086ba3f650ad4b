//! A request that another node serves is answered, told and billed as if it had been served here.

use serde_json::{Value, json};

use super::{edge_before, knows_what_serves, member, serving};
use crate::support::{Fleet, Node, Response, Server, accounts, chat, endpoint, eventually, model};

const CHAT: &str = "/v1/chat/completions";

async fn ask(node: &Node, more: &str) -> Response {
    node.post(CHAT, &chat("m", more)).await
}

/// The story of an answer, once it is there.
async fn story(node: &Node, answer: &Response) -> Value {
    let id = answer.header("x-request-id").unwrap().to_owned();
    eventually("the story of a request", async || {
        let told = node.get(&format!("/explain/{id}")).await;
        (told.status == 200).then(|| told.json())
    })
    .await
}

fn step<'a>(story: &'a Value, kind: &str) -> &'a Value {
    let steps = story["steps"].as_array().unwrap();
    let found = steps.iter().find(|step| step["step"] == kind);
    found.unwrap_or_else(|| panic!("a {kind} in {story:#}"))
}

#[tokio::test]
async fn a_node_without_servers_serves_through_another_and_the_event_is_told_once() {
    let server = Server::fast().await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let event = gpu.event_of(&answer).await;
    assert_eq!(event["node"], "gpu0");
    assert_eq!(event["site"], "ams");
    assert_eq!(event["source_site"], "fra");
    assert_eq!(event["path"], json!(["fra/edge", "ams/gpu0"]));
    assert_eq!(event["attempts"], 1);
    assert_eq!(event["account_id"], "anonymous");
    let streamed = ask(edge, r#","stream":true"#).await;
    assert!(streamed.is_event_stream());
    assert!(streamed.text().contains("[DONE]"), "{}", streamed.text());
    assert_eq!(gpu.event_of(&streamed).await["outcome"], "completed");
    gpu.idle().await;
    let told_twice = std::fs::read_to_string(edge.events_path()).unwrap_or_default();
    assert_eq!(told_twice, "");
    let forwards = r#"infergate_forwards_total{model="m",result="answered"}"#;
    assert_eq!(edge.metric(forwards).await, Some(2.0));
}

#[tokio::test]
async fn what_a_full_node_cannot_take_goes_next_door_and_the_story_tells_all_of_it() {
    let (slow, fast) = (Server::taking(60_000).await, Server::fast().await);
    let a = member("a", "fra", &serving(&[&slow], 1));
    let b = member("b", "fra", &serving(&[&fast], 2));
    let fleet = Fleet::start(&[a, b]).await;
    let (here, there) = (&fleet.nodes[0], &fleet.nodes[1]);
    knows_what_serves(here, "b").await;
    let _held = here.posting("", "").await;
    here.settles(1, 0).await;
    let answer = ask(here, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        there.event_of(&answer).await["path"],
        json!(["fra/a", "fra/b"])
    );

    let told = story(here, &answer).await;
    assert_eq!(step(&told, "admission")["said"], "queued", "{told:#}");
    assert_eq!(step(&told, "admission")["ended"], "left-for-another-node");
    let look = step(&told, "look");
    assert_eq!(
        (&look["wants"], &look["chosen"]),
        (&json!("permit"), &json!("b"))
    );
    assert_eq!(look["nodes"][0]["node"], "b");
    let forward = step(&told, "forward");
    assert_eq!(
        (&forward["node"], &forward["result"]),
        (&json!("b"), &json!("answered"))
    );
    let elsewhere = &told["nodes"]["b"];
    assert_eq!(elsewhere["forwarded_by"], "a", "{told:#}");
    assert_eq!(step(elsewhere, "admission")["said"], "leased");
    assert_eq!(step(elsewhere, "try")["result"], "answered");
}

#[tokio::test]
async fn who_waits_here_goes_as_soon_as_another_node_has_a_permit() {
    let (slow, other) = (Server::taking(60_000).await, Server::taking(1_000).await);
    let a = member("a", "fra", &serving(&[&slow], 1));
    let b = member("b", "fra", &serving(&[&other], 1));
    let fleet = Fleet::start(&[a, b]).await;
    let (here, there) = (&fleet.nodes[0], &fleet.nodes[1]);
    knows_what_serves(here, "b").await;
    let _held = here.posting("", "").await;
    here.settles(1, 0).await;
    let busy = there.posting("", "").await;
    there.settles(1, 0).await;
    eventually("it is known that the other one is busy", async || {
        let waiting = here.posting("", "").await;
        // Sent there and back, or told before: either way it waits here then.
        here.settles(1, 1).await;
        Some(waiting)
    })
    .await
    .0
    .close();
    let waiting = here.posting("", "").await;
    assert_eq!(busy.answer().await.status, 200);
    let answer = waiting.answer().await;
    let told = story(here, &answer).await;
    assert_eq!(answer.status, 200, "{told:#}");
    assert_eq!(
        there.event_of(&answer).await["path"],
        json!(["fra/a", "fra/b"])
    );
}

#[tokio::test]
async fn where_no_node_has_room_the_client_is_told_3040_and_the_event_is_of_the_node_it_asked() {
    let server = Server::taking(60_000).await;
    let no_line = serving(&[&server], 1).replace(
        "    endpoints:",
        "    queue: { capacity: 0, total_capacity: 0 }\n    endpoints:",
    );
    let members = [
        member("edge", "fra", super::SERVING_NOTHING),
        member("gpu0", "ams", &no_line),
    ];
    let fleet = Fleet::start(&members).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    knows_what_serves(edge, "gpu0").await;
    let _held = edge.posting("", "").await;
    gpu.settles(1, 0).await;
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "out_of_capacity");
    let event = edge.event_of(&answer).await;
    assert_eq!(
        (&event["error_code"], &event["attempts"]),
        (&json!("3040"), &json!(0))
    );
    assert_eq!(
        std::fs::read_to_string(gpu.events_path()).unwrap_or_default(),
        ""
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_felt_at_the_node_that_works_for_it() {
    let server = Server::taking(60_000).await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let leaving = edge.posting("", r#","stream":true"#).await;
    gpu.settles(1, 0).await;
    leaving.0.close();
    gpu.settles(0, 0).await;
    let event = edge.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-client");
    assert_eq!(
        std::fs::read_to_string(gpu.events_path()).unwrap_or_default(),
        ""
    );
}

#[tokio::test]
async fn the_deadline_is_one_over_both_hops_and_told_by_the_node_that_works() {
    let server = Server::taking(60_000).await;
    let fleet = edge_before(&[&server], 2).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let answer = edge
        .post_as("x-infergate-timeout-ms: 400\r\n", CHAT, &chat("m", ""))
        .await;
    assert_eq!(answer.status, 408, "{}", answer.text());
    gpu.settles(0, 0).await;
    let event = gpu.event_of(&answer).await;
    assert_eq!(event["outcome"], "cut-by-deadline");
    assert!(event["request_time_ms"].as_f64().unwrap() <= 60_000.0);
}

#[tokio::test]
async fn servers_that_fail_at_one_node_are_made_up_for_by_another() {
    let (bad, good) = (Server::fast().await, Server::fast().await);
    bad.fault(r#"{"fault":"status=503"}"#).await;
    let fleet = edge_before(&[&bad, &good], 4).await;
    let edge = &fleet.nodes[0];
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(ask(edge, "").await);
    }
    let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200; 8]);
    for answer in &answers {
        assert_eq!(fleet.nodes[2].event_of(answer).await["node"], "gpu1");
    }
}

#[tokio::test]
async fn large_bodies_other_faces_and_refusals_of_servers_pass_through_both_nodes() {
    let server = Server::fast().await;
    let fleet = edge_before(&[&server], 4).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    let long = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
        "x".repeat(1_000_000)
    );
    assert_eq!(edge.post(CHAT, &long).await.status, 200);
    let prompt = r#"{"prompt":"hi"}"#;
    let answer = edge.post("/ai/run/m", prompt).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["success"], true);
    let streamed = edge
        .post("/ai/run/m", r#"{"prompt":"hi","stream":true}"#)
        .await;
    assert!(streamed.text().contains("[DONE]"), "{}", streamed.text());
    server.fault(r#"{"fault":"status=400"}"#).await;
    let refused = ask(edge, "").await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    let event = gpu.event_of(&refused).await;
    assert_eq!(event["outcome"], "completed", "the server has answered");
}

#[tokio::test]
async fn neurons_are_priced_where_they_are_made_and_count_where_the_account_asks() {
    let server = Server::fast().await;
    let priced = |rest: &str| {
        let tariff = "    tariff: { cost_per_infer: 10.0, coefficients: {} }\n";
        let rest = rest.replace(
            "    backend: openai\n",
            &format!("    backend: openai\n{tariff}"),
        );
        format!("{}{rest}", accounts(", neurons_per_day: 25"))
    };
    let edge =
        "models:\n  - id: m\n    task: text-generation\n    backend: openai\n    endpoints: []\n";
    let fleet = Fleet::start(&[
        member("edge", "fra", &priced(edge)),
        member("gpu0", "ams", &priced(&serving(&[&server], 4))),
    ])
    .await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    knows_what_serves(edge, "gpu0").await;
    let key = "authorization: Bearer key-a\r\n";
    let first = edge
        .post_as(key, CHAT, &chat("m", r#","stream":true"#))
        .await;
    assert!(first.text().contains("[DONE]"), "{}", first.text());
    let event = gpu.event_of(&first).await;
    assert_eq!(
        (&event["account_id"], &event["neurons"]),
        (&json!("a"), &json!(10.0))
    );
    let mut served = 1;
    let refused = eventually("the day is used up", async || {
        let answer = edge.post_as(key, CHAT, &chat("m", "")).await;
        served += i32::from(answer.status == 200);
        (answer.status == 429).then_some(answer)
    })
    .await;
    assert_eq!(refused.json()["error"]["code"], "insufficient_quota");
    // What is priced elsewhere is heard of a moment later; nothing is free for longer.
    assert!(
        served < 200,
        "{served} served of a day of 25 neurons at 10 each"
    );
    let other = "authorization: Bearer key-b\r\n";
    assert_eq!(edge.post_as(other, CHAT, &chat("m", "")).await.status, 200);
}

#[tokio::test]
async fn a_ladder_goes_on_at_nodes_that_had_no_room_for_the_model_above() {
    let (slow, fast) = (Server::taking(60_000).await, Server::fast().await);
    let no_line = "    queue: { capacity: 0, total_capacity: 0 }\n";
    let nothing = |id: &str, more: &str| {
        format!(
            "  - id: {id}\n    task: text-generation\n    backend: openai\n{more}    endpoints: []\n"
        )
    };
    let edge = format!(
        "models:\n{}{}",
        nothing("m", "    ladder: [n]\n"),
        nothing("n", "")
    );
    let gpu = format!(
        "models:\n{}{}",
        model("m", &[endpoint(slow.address, 1)], no_line),
        model("n", &[endpoint(fast.address, 1)], no_line)
    );
    let fleet = Fleet::start(&[member("edge", "fra", &edge), member("gpu0", "ams", &gpu)]).await;
    let (edge, gpu) = (&fleet.nodes[0], &fleet.nodes[1]);
    eventually("both models are known", async || {
        let state = edge.state().await;
        (state["nodes"][0]["models"] == 2).then_some(())
    })
    .await;
    let _held = edge.posting("", "").await;
    gpu.settles(1, 0).await;
    let answer = ask(edge, "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-infergate-model"), Some("n"));
    let event = gpu.event_of(&answer).await;
    assert_eq!(
        (&event["model_id"], &event["asked_model_id"]),
        (&json!("n"), &json!("m"))
    );
}
