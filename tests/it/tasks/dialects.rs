//! Text models on both faces, and what a plain HTTP server has on neither.

use super::*;
use crate::support::chat;

#[tokio::test]
async fn a_plain_server_has_no_openai_interface_and_says_so() {
    let hall = TaskServers::start().await;
    for (path, body) in [
        ("/v1/chat/completions", chat("text-generation", "")),
        (
            "/v1/completions",
            r#"{"model":"text-generation","prompt":"a"}"#.to_owned(),
        ),
        (
            "/v1/embeddings",
            r#"{"model":"text-embeddings","input":"a"}"#.to_owned(),
        ),
        ("/v1/chat/completions", chat("translation", "")),
    ] {
        let answer = hall.node.post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!("/model"), &json!("invalid_value"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("/ai/run/"), "{message}");
    }
}

#[tokio::test]
async fn a_model_of_any_task_is_run_by_every_path_of_the_face() {
    let hall = TaskServers::start().await;
    for path in [
        "/ai/run/translation",
        "/client/v4/accounts/anonymous/ai/run/translation",
    ] {
        let body = r#"{"text":"echo: x","target_lang":"fr"}"#;
        let answer = hall.node.post(path, body).await;
        assert_eq!(result_of(path, &answer)["translated_text"], "x");
    }
    // The model of the path is looked at before the body is.
    for (model, body, code) in [
        ("translation", "not json", 5006),
        ("no-such-model", "not json", 5007),
        ("no-such-model", "{}", 5007),
    ] {
        let answer = hall.node.post(&format!("/ai/run/{model}"), body).await;
        let found = &answer.json()["errors"][0]["code"];
        assert_eq!(found, code, "{}", answer.text());
    }
}

#[tokio::test]
async fn a_native_text_model_takes_bytes_for_what_they_are() {
    let server = SimulatedServer::fast().await;
    let model = model_of("m", "text-generation", "openai", server.address);
    let node = Node::start(&format!("models:\n{model}")).await;
    let answer = run(&node, "m", "image/png", b"\x89PNG").await;
    assert_wrong_at(&answer, "", "an image for a text model");
    let answer = run(&node, "m", "multipart/form-data; boundary=x", b"--x").await;
    assert_wrong_at(&answer, "", "parts for a text model");
    let answer = run(
        &node,
        "m",
        "multipart/form-data; boundary=x",
        br#"{"prompt":"a"}"#,
    )
    .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn a_task_that_is_configured_checks_both_faces_of_a_native_text_model() {
    let server = SimulatedServer::fast().await;
    let model = model_of("m", "text-generation", "openai", server.address);
    let plugins = "    plugins: { task: text-generation }\n";
    let node = Node::start(&format!("models:\n{model}{plugins}")).await;
    let wrong = r#","max_tokens":"many""#;
    let answer = node.post("/v1/chat/completions", &chat("m", wrong)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let wrong = r#","temperature":77"#;
    let answer = node.post("/v1/chat/completions", &chat("m", wrong)).await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    let error = &answer.json()["error"];
    let reported = (&error["param"], &error["code"], &error["type"]);
    assert_eq!(
        reported,
        (
            &json!("/temperature"),
            &json!("invalid_value"),
            &json!("invalid_request_error")
        )
    );
    let answer = node
        .post("/ai/run/m", r#"{"prompt":"a","temperature":77}"#)
        .await;
    assert_wrong_at(&answer, "/temperature", "run");
    for _ in 0..2 {
        let answer = node
            .post("/v1/chat/completions", &chat("m", r#","x_priority":3"#))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = node.post("/ai/run/m", r#"{"prompt":"echo: a"}"#).await;
        assert_eq!(result_of("m", &answer)["response"], "a");
    }
}
