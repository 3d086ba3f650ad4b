//! Response edits of a task hold in every API dialect of its model, or the plugin is not loaded.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::fixtures::shipped;
use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestResponse, chat, json_answer, one_model,
};

/// A text model on an OpenAI server whose task counts the characters of answers, and its price.
fn config(server: SocketAddr, more: &str) -> String {
    let spec = shipped("text-generation", "task-schema-streaming");
    let model =
        "    tariff: { coefficients: { output_characters: 1 } }\n    plugins: { task: t }\n";
    format!(
        "{}plugins:\n  - {{ name: t, world: task-schema-streaming, file: \"{}\", dev: true, \
         limits: {{ deadline_ms: 500 }}{more} }}\n",
        one_model(server, 2, model),
        spec.file.display()
    )
}

fn neurons(answer: &TestResponse) -> f64 {
    let reported = answer.header("cf-ai-neurons");
    reported
        .unwrap_or_else(|| panic!("no price: {}", answer.text()))
        .parse()
        .unwrap()
}

/// Events of responses, in this order: lines of the file may stand in another.
async fn events_of<const N: usize>(node: &Node, responses: [&TestResponse; N]) -> Vec<Value> {
    let mut events = Vec::with_capacity(N);
    for response in responses {
        events.push(node.event_of(response).await);
    }
    events
}

/// The hooks that had a say on each request, in the order of `events`.
fn hooks(events: &[Value]) -> Vec<Vec<&str>> {
    let of = |event: &'_ Value| event["plugins"].as_array().cloned().unwrap_or_default();
    let names = ["prepare", "finish", "push", "close"];
    let reported = events.iter().map(of);
    reported
        .map(|uses| {
            let was_asked = |hook: &&str| uses.iter().any(|one| one["hook"] == **hook);
            names.into_iter().filter(was_asked).collect()
        })
        .collect()
}

#[tokio::test]
async fn a_task_that_shapes_answers_is_refused_until_the_operator_decides_about_openai_answers() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&one_model(server.address, 2, "")).await;
    let answer = node.reload(&config(server.address, "")).await;
    assert_eq!(answer.status, 422, "{}", answer.text());
    let problem = &answer.json()["problems"][0];
    assert_eq!(problem["path"], "plugins[0].openai_answers");
    let message = problem["message"].as_str().unwrap();
    assert!(message.contains("openai_answers: shape"), "{message}");
}

#[tokio::test]
async fn a_task_that_knows_openai_answers_edits_and_counts_them_as_it_does_results() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&config(server.address, ", openai_answers: shape")).await;
    let run = node.post("/ai/run/m", r#"{"prompt":"echo: abcd"}"#).await;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"echo: abcd"}]}"#;
    let whole = node.post("/v1/chat/completions", body).await;
    let streamed = body.replace("}]}", r#"}],"stream":true}"#);
    let streamed = node.post("/v1/chat/completions", &streamed).await;

    // This task brings every server's answer to one shape.
    assert_eq!(whole.json()["response"], "abcd", "{}", whole.text());
    assert_eq!(
        whole.header("content-length"),
        Some(&*whole.body.len().to_string())
    );
    assert!(
        streamed.text().contains(r#"{"response":"#),
        "{}",
        streamed.text()
    );
    assert!(streamed.text().ends_with("data: [DONE]\n\n"));
    assert_eq!((neurons(&run), neurons(&whole)), (4.0, 4.0));
    let events = events_of(&node, [&run, &whole, &streamed]).await;
    assert_eq!(
        hooks(&events),
        [vec!["finish"], vec!["finish"], vec!["push", "close"]]
    );
    let priced: Vec<&Value> = events.iter().map(|event| &event["neurons"]).collect();
    // In a stream this task counts what the server says of tokens, and nothing else.
    assert_eq!(priced[..2], [&json!(4.0), &json!(4.0)]);
}

#[tokio::test]
async fn a_task_that_lets_openai_answers_pass_neither_edits_nor_counts_them() {
    let server = SimulatedServer::fast().await;
    let node = Node::start(&config(server.address, ", openai_answers: pass")).await;
    let run = node.post("/ai/run/m", r#"{"prompt":"echo: abcd"}"#).await;
    assert_eq!(neurons(&run), 4.0);
    let whole = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(whole.json()["object"], "chat.completion");
    let streamed = chat("m", r#","stream":true"#);
    let streamed = node.post("/v1/chat/completions", &streamed).await;
    let events = events_of(&node, [&run, &whole, &streamed]).await;
    assert_eq!(hooks(&events), [vec!["finish"], vec![], vec![]]);
}

#[tokio::test]
async fn an_error_with_status_200_is_the_servers_failure_and_no_answer_to_shape() {
    let error = r#"{"error":{"message":"out of memory","type":"server_error"}}"#;
    let server = ScriptedServer::new(&[&json_answer(error)]).await;
    let node = Node::start(&config(server.address, ", openai_answers: shape")).await;
    let answer = node.post("/v1/chat/completions", &chat("m", "")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(!answer.text().contains("out of memory"));
    let events = node.events(1).await;
    assert_eq!(hooks(&events), [Vec::<&str>::new()]);
    assert_eq!(events[0]["neurons"], Value::Null);
}
