//! Task inputs: invalid ones are refused with the place of the problem, unusual valid ones are accepted.

use super::*;

#[tokio::test]
async fn what_a_task_needs_and_does_not_get_is_named() {
    let hall = TaskServers::start().await;
    for (task, body, pointer) in [
        ("text-generation", json!({}), "/prompt"),
        ("text-generation", json!({ "prompt": "" }), "/prompt"),
        ("text-generation", json!({ "prompt": 7 }), "/prompt"),
        ("text-generation", json!({ "prompt": null }), "/prompt"),
        ("text-generation", json!({ "messages": [] }), "/messages"),
        (
            "text-generation",
            json!({ "prompt": "a", "max_tokens": "many" }),
            "/max_tokens",
        ),
        ("text-classification", json!({}), "/text"),
        ("text-classification", json!({ "text": ["a"] }), "/text"),
        ("text-embeddings", json!({ "text": [] }), "/text"),
        ("text-embeddings", json!({ "text": null }), "/text"),
        ("text-embeddings", json!({ "text": ["a", 7] }), "/text/1"),
        ("text-to-image", json!({}), "/prompt"),
        (
            "text-to-image",
            json!({ "prompt": "a", "width": 1 }),
            "/width",
        ),
        (
            "text-to-image",
            json!({ "prompt": "a", "num_steps": 5.5 }),
            "/num_steps",
        ),
        ("text-to-speech", json!({}), "/text"),
        ("text-to-speech", json!({ "text": {} }), "/text"),
        ("text-to-speech", json!({ "prompt": null }), "/prompt"),
        ("automatic-speech-recognition", json!({}), "/audio"),
        (
            "automatic-speech-recognition",
            json!({ "audio": [] }),
            "/audio",
        ),
        (
            "automatic-speech-recognition",
            json!({ "audio": [1, 256] }),
            "/audio/1",
        ),
        (
            "automatic-speech-recognition",
            json!({ "audio": "not base64!" }),
            "/audio",
        ),
        ("image-classification", json!({ "image": 7 }), "/image"),
        (
            "image-classification",
            json!({ "image": [1, "2"] }),
            "/image/1",
        ),
        (
            "image-to-text",
            json!({ "image": [1], "prompt": 7 }),
            "/prompt",
        ),
        ("image-text-to-text", json!({}), "/messages"),
        (
            "image-text-to-text",
            json!({ "image": null, "prompt": "a" }),
            "/image",
        ),
        ("object-detection", json!({ "image": "" }), "/image"),
        ("translation", json!({ "text": "a" }), "/target_lang"),
        (
            "translation",
            json!({ "text": "a", "target_lang": 7 }),
            "/target_lang",
        ),
        ("summarization", json!({}), "/input_text"),
        (
            "summarization",
            json!({ "input_text": "a", "max_length": -1 }),
            "/max_length",
        ),
        ("multimodal-embeddings", json!({}), "/text"),
        ("multimodal-embeddings", json!({ "image": null }), "/image"),
        ("multimodal-embeddings", json!({ "image": {} }), "/image"),
    ] {
        let answer = hall.run(task, body.clone()).await;
        assert_wrong_at(&answer, pointer, &format!("{task} {body}"));
    }
}

#[tokio::test]
async fn a_body_that_is_not_what_it_must_be_is_refused_as_a_whole() {
    let hall = TaskServers::start().await;
    for task in [
        "text-generation",
        "translation",
        "text-to-image",
        "text-classification",
    ] {
        for body in [
            &b""[..],
            b"[]",
            b"7",
            b"{",
            b"\xff\xfe",
            b"{\"text\":\"\xff\"}",
            b"null",
        ] {
            let answer = run(&hall.node, task, "application/json", body).await;
            assert_wrong_at(&answer, "", &format!("{task} {body:?}"));
        }
    }
    for task in [
        "image-to-text",
        "automatic-speech-recognition",
        "translation",
    ] {
        let parts = b"--x\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\na\r\n--x--\r\n";
        let answer = run(&hall.node, task, "multipart/form-data; boundary=x", parts).await;
        assert_wrong_at(&answer, "", task);
        assert!(
            answer.text().contains("a body of parts is not taken"),
            "{}",
            answer.text()
        );
    }
    for task in ["image-to-text", "automatic-speech-recognition"] {
        let answer = run(&hall.node, task, "image/png", b"").await;
        assert_wrong_at(&answer, "", task);
    }
}

#[tokio::test]
async fn odd_inputs_that_are_right_are_taken() {
    let hall = TaskServers::start().await;
    let long = "wörd 世界 \u{1f600}\\n ".repeat(20_000);
    let image = "/+8=";
    for (task, body) in [
        ("text-generation", json!({ "prompt": long })),
        ("text-generation", json!({ "prompt": "\u{0}\u{ffff}" })),
        (
            "text-generation",
            json!({ "messages": [{ "role": "user", "content": "é" }] }),
        ),
        ("text-classification", json!({ "text": long })),
        ("text-embeddings", json!({ "text": "世界" })),
        (
            "translation",
            json!({ "text": "ß", "target_lang": "de", "unknown": { "a": [1] } }),
        ),
        (
            "summarization",
            json!({ "input_text": long, "max_length": null }),
        ),
        ("image-classification", json!({ "image": image })),
        (
            "image-classification",
            json!({ "image": format!("data:image/png;base64,{image}") }),
        ),
        ("image-classification", json!({ "image": [255.0, 0.0, 7] })),
        ("image-to-text", json!({ "image": image, "prompt": null })),
        ("object-detection", json!({ "image": vec![0; 100_000] })),
        ("automatic-speech-recognition", json!({ "audio": image })),
        ("multimodal-embeddings", json!({ "image": image })),
    ] {
        let what = body.to_string();
        let answer = hall.run(task, body).await;
        let shown = &what[..what.floor_char_boundary(80)];
        assert_eq!(answer.status, 200, "{task} {shown}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_body_may_be_as_long_as_the_limit_and_no_longer() {
    let server = SimulatedServer::start(config(Task::TextClassification)).await;
    let model = model_of("m", "text-classification", "http", server.address);
    let node = Node::start(&format!(
        "limits: {{ request_body_mib: 1 }}\nmodels:\n{model}"
    ))
    .await;
    let around = r#"{"text":""}"#.len();
    for (length, status) in [(1 << 20, 200), ((1 << 20) + 1, 413)] {
        let body = format!(r#"{{"text":"{}"}}"#, "x".repeat(length - around));
        let answer = run(&node, "m", "application/json", body.as_bytes()).await;
        assert_eq!(answer.status, status, "{length}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_refused_input_takes_no_permit_and_reaches_no_server() {
    let server = ScriptedServer::held().await;
    let node = node_on("translation", &server, "").await;
    let answer = run(&node, "m", "application/json", b"{}").await;
    assert_wrong_at(&answer, "/text", "no text");
    let event = node.event_of(&answer).await;
    assert_eq!(
        (&event["outcome"], &event["error_code"]),
        (&json!("refused"), &json!("5006"))
    );
    assert_eq!(
        (&event["attempts"], &event["inference_time_ms"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(server.requests(), Vec::<String>::new());
}
