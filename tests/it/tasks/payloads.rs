//! Payloads posted to a plain HTTP server, and the part of its response that reaches the client.

use super::*;
use crate::support::json_answer;

/// Head and JSON body of the only request.
fn posted(server: &ScriptedServer) -> (String, Value) {
    let requests = server.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    let (head, body) = requests[0].split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn the_payload_is_the_input_without_what_only_the_gateway_reads() {
    let server = ScriptedServer::new(&[&json_answer(r#"{"response":"a"}"#)]).await;
    let node = node_on("text-generation", &server, "").await;
    let body = json!({
        "prompt": "hi", "temperature": 0.5, "x_priority": 1, "x_client_id": "c",
        "options": { "rejectIfBusy": true }, "unknown": [1],
    });
    let answer = run(&node, "m", "text/plain", body.to_string().as_bytes()).await;
    assert_eq!(result_of("m", &answer)["response"], "a");
    let (head, body) = posted(&server);
    assert!(head.starts_with("POST /run HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\ncontent-type: application/json"),
        "{head}"
    );
    assert_eq!(
        body,
        json!({ "prompt": "hi", "temperature": 0.5, "unknown": [1] })
    );
    assert_eq!(node.event_of(&answer).await["client_id"], "c");
}

#[tokio::test]
async fn an_endpoints_own_path_goes_before_the_tasks() {
    let server = ScriptedServer::new(&[&json_answer(r#"{"summary":"a"}"#)]).await;
    let url = format!("http://{}/models/v2/", server.address);
    let node = Node::start(&format!(
        "models:\n  - id: m\n    task: summarization\n    backend: http\n    endpoints:\n      \
         - {{ url: \"{url}\", max_concurrent_requests: 1, api_key: k }}\n"
    ))
    .await;
    let answer = run(&node, "m", "application/json", br#"{"input_text":"x"}"#).await;
    assert_eq!(result_of("m", &answer)["summary"], "a");
    let (head, _) = posted(&server);
    assert!(
        head.starts_with("POST /models/v2/run HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("authorization: Bearer k"), "{head}");
}

#[tokio::test]
async fn answers_in_other_servers_words_become_the_documented_result() {
    for (task, input, answer, expected) in [
        (
            "translation",
            json!({ "text": "a", "target_lang": "fr" }),
            r#"[{"translation_text":"b"}]"#,
            json!({ "translated_text": "b" }),
        ),
        (
            "summarization",
            json!({ "input_text": "a" }),
            r#"[{"summary_text":"b"}]"#,
            json!({ "summary": "b" }),
        ),
        (
            "text-classification",
            json!({ "text": "a" }),
            r#"[[{"label":"x","score":1}]]"#,
            json!([{ "label": "x", "score": 1 }]),
        ),
        (
            "text-embeddings",
            json!({ "text": "a" }),
            "[[1,2]]",
            json!({ "shape": [1, 2], "data": [[1, 2]] }),
        ),
        (
            "text-to-image",
            json!({ "prompt": "a" }),
            r#"{"image":"aGk="}"#,
            json!({ "image": "aGk=" }),
        ),
        (
            "text-to-speech",
            json!({ "text": "a" }),
            r#"{"audio":"aGk="}"#,
            json!({ "audio": "aGk=" }),
        ),
    ] {
        let server = ScriptedServer::new(&[&json_answer(answer)]).await;
        let node = node_on(task, &server, "").await;
        let got = run(&node, "m", "application/json", input.to_string().as_bytes()).await;
        assert_eq!(result_of(task, &got), expected, "{task}");
    }
}

#[tokio::test]
async fn an_answer_in_plain_text_is_a_result_where_the_task_makes_one_of_it() {
    let server =
        ScriptedServer::new(&[&typed_answer("text/plain; charset=utf-8", "said so")]).await;
    let node = node_on("automatic-speech-recognition", &server, "").await;
    let answer = run(&node, "m", "audio/wav", b"RIFF").await;
    let result = result_of("m", &answer);
    assert_eq!(
        (&result["text"], &result["word_count"]),
        (&json!("said so"), &json!(2))
    );
}

#[tokio::test]
async fn an_answer_that_is_none_of_the_task_is_a_bad_gateway() {
    for answer in ["{\"nothing\":1}", "not json", "", "[{\"label\":\"x\"}]"] {
        let server = ScriptedServer::new(&[&json_answer(answer)]).await;
        let node = node_on("image-classification", &server, "").await;
        let got = run(&node, "m", "image/png", b"x").await;
        assert_eq!(got.status, 502, "{answer}: {}", got.text());
        assert_eq!(got.json()["success"], false, "{answer}");
        assert_eq!(node.event_of(&got).await["outcome"], "failed", "{answer}");
    }
}

#[tokio::test]
async fn a_servers_own_refusal_is_told_in_the_envelope() {
    let refusal = r#"{"error":"the picture is too dark"}"#;
    let length = refusal.len();
    let answer = format!(
        "HTTP/1.1 422 X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{refusal}"
    );
    let server = ScriptedServer::new(&[&answer]).await;
    let node = node_on("image-classification", &server, "").await;
    let got = run(&node, "m", "image/png", b"x").await;
    assert_eq!(got.status, 422);
    assert_eq!(
        got.json()["errors"],
        json!([{ "code": 5006, "message": "the picture is too dark" }])
    );
}

#[tokio::test]
async fn billing_headers_of_a_server_stay_behind_the_gateway() {
    let server = SimulatedServer::start(simulate::Config {
        neurons: Some(2.5),
        cost_metrics: vec![simulate::CostMetric {
            name: "image_steps".into(),
            value: 4.0,
        }],
        ..config(Task::TextClassification)
    })
    .await;
    let model = model_of("m", "text-classification", "http", server.address);
    let node = Node::start(&format!("models:\n{model}")).await;
    let answer = run(&node, "m", "application/json", br#"{"text":"x"}"#).await;
    result_of("m", &answer);
    let theirs = answer
        .headers
        .iter()
        .find(|(name, _)| name.starts_with("cf-ai-cost"));
    assert_eq!(theirs, None);
}

#[tokio::test]
async fn a_server_without_a_health_route_is_well_as_long_as_it_answers() {
    let server = SimulatedServer::start(config(Task::Translation)).await;
    // Below a path that the simulator does not know, its health route answers 404.
    let node = Node::start(&format!(
        "models:\n  - id: m\n    task: translation\n    backend: http\n    endpoints:\n      \
         - {{ url: \"http://{}/deep\", max_concurrent_requests: 1 }}\n",
        server.address
    ))
    .await;
    crate::support::eventually("probed and well", async || {
        let state = node.state().await;
        let health = &state["models"][0]["endpoints"][0]["health"];
        (health == "healthy").then_some(())
    })
    .await;
    let answer = run(
        &node,
        "m",
        "application/json",
        br#"{"text":"x","target_lang":"fr"}"#,
    )
    .await;
    result_of("m", &answer);
}
