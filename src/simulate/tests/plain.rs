//! The http dialect: every task's result, and what is told about its bill.

use super::*;
use crate::simulate::{CostMetric, StreamUsage, Task};

/// Status, head and body bytes of a `POST`.
async fn post(sim: &RunningSimulator, headers: &str, body: &[u8]) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(sim.address).await.unwrap();
    let length = body.len();
    let head = format!(
        "POST /run HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("no hang")
        .unwrap();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    (head, bytes[end + 4..].to_vec())
}

async fn result(sim: &RunningSimulator, task: &str, body: Value) -> Value {
    let headers = format!("x-sim-task: {task}\r\nx-sim-answer: json\r\n");
    let (head, answer) = post(sim, &headers, body.to_string().as_bytes()).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{task}: {head}");
    assert!(head.contains("content-type: application/json"), "{task}");
    serde_json::from_slice(&answer).unwrap()
}

#[tokio::test]
async fn every_task_is_answered_in_its_documented_shape() {
    let sim = start(fast(Dialect::Http)).await;
    let text = result(&sim, "text-generation", json!({ "prompt": "echo: a b" })).await;
    assert_eq!(text["response"], "a b");
    assert_eq!(text["usage"]["completion_tokens"], 2);
    let seen = json!({ "image": [1], "messages": [{ "role": "user", "content": "echo: c" }] });
    let seen = result(&sim, "image-text-to-text", seen).await;
    assert_eq!(seen["response"], "c");
    let labels = result(&sim, "text-classification", json!({ "text": "x" })).await;
    let total: f64 = labels
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["score"].as_f64().unwrap())
        .sum();
    assert_eq!((&labels[0]["label"], total), (&json!("POSITIVE"), 1.0));
    let rows = result(&sim, "text-embeddings", json!({ "text": ["a", "b"] })).await;
    assert_eq!(rows["shape"], json!([2, 3]));
    assert_eq!(rows["data"][1].as_array().unwrap().len(), 3);
    let rows = result(&sim, "multimodal-embeddings", json!({ "image": "aGk=" })).await;
    assert_eq!(rows["shape"], json!([1, 3]));
    let transcript = result(
        &sim,
        "automatic-speech-recognition",
        json!({ "audio": [1, 2] }),
    )
    .await;
    assert_eq!(transcript["word_count"], 4);
    assert_eq!(transcript["words"][3]["end"], 2.0);
    assert!(
        transcript["vtt"]
            .as_str()
            .unwrap()
            .starts_with("WEBVTT\n\n00:00.000 --> 00:02.000\n")
    );
    let labels = result(&sim, "image-classification", json!({ "image": [1] })).await;
    assert!(labels[0]["label"].is_string() && labels[0]["score"].is_f64());
    let boxes = result(&sim, "object-detection", json!({ "image": [1] })).await;
    assert!(boxes[0]["box"]["xmax"].is_u64(), "{boxes}");
    let found = result(&sim, "image-to-text", json!({ "image": [1] })).await;
    assert!(found["description"].is_string());
    let translated = result(
        &sim,
        "translation",
        json!({ "text": "echo: x", "target_lang": "fr" }),
    );
    assert_eq!(translated.await["translated_text"], "x");
    let long = json!({ "input_text": "a long text", "max_length": 2 });
    let summary = result(&sim, "summarization", long).await["summary"].clone();
    assert_eq!(summary.as_str().unwrap().split(' ').count(), 2);
    let picture = result(&sim, "text-to-image", json!({ "prompt": "x" })).await;
    assert!(
        picture["image"]
            .as_str()
            .unwrap()
            .starts_with("iVBORw0KGgo")
    );
    let sound = result(&sim, "text-to-speech", json!({ "text": "x" })).await;
    assert!(sound["audio"].as_str().unwrap().starts_with("UklGR"));
}

#[tokio::test]
async fn images_and_sounds_come_as_bytes_and_a_pipe_gives_back_what_it_got() {
    let sim = start(fast(Dialect::Http)).await;
    let body = json!({ "prompt": "x", "width": 16, "height": 8 }).to_string();
    let (head, png) = post(&sim, "x-sim-task: text-to-image\r\n", body.as_bytes()).await;
    assert!(head.contains("content-type: image/png"), "{head}");
    assert_eq!(&png[16..24], [0, 0, 0, 16, 0, 0, 0, 8]);
    let (head, wav) = post(
        &sim,
        "x-sim-task: text-to-speech\r\n",
        b"{\"text\":\"a b\"}",
    )
    .await;
    assert!(head.contains("content-type: audio/wav"), "{head}");
    assert_eq!(wav.len(), 44 + 2 * 800 * 2);
    let bytes: Vec<u8> = (0..=255).collect();
    let kind = "content-type: x/y; z=1\r\n";
    let (head, back) = post(&sim, &format!("x-sim-task: dumb-pipe\r\n{kind}"), &bytes).await;
    assert!(head.contains("content-type: x/y; z=1"), "{head}");
    assert_eq!(back, bytes);
}

#[tokio::test]
async fn without_a_word_on_the_task_the_payload_decides() {
    let sim = start(fast(Dialect::Http)).await;
    for (body, member) in [
        (
            json!({ "text": "a", "target_lang": "fr" }),
            "translated_text",
        ),
        (json!({ "input_text": "a" }), "summary"),
        (
            json!({ "messages": [{ "role": "user", "content": "a" }] }),
            "response",
        ),
        (json!({ "image": [1], "prompt": "a" }), "response"),
        (json!({ "audio": [1] }), "vtt"),
        (json!({ "text": "a" }), "shape"),
        (json!({ "anything": "a" }), "anything"),
    ] {
        let answer = sim.post("/any/path", body.clone()).await.json();
        assert!(answer.get(member).is_some(), "{body}: {answer}");
    }
    let fixed = start(Config {
        task: Some(Task::ObjectDetection),
        ..fast(Dialect::Http)
    })
    .await;
    assert!(fixed.post("/", json!({ "text": "a" })).await.json()[0]["box"].is_object());
    let wrong = fixed
        .ask("POST", "/", "x-sim-task: cooking\r\n", &json!({}))
        .await;
    assert_eq!(wrong.status, 400);
    assert_eq!(fixed.get("/health").await.status, 200);
    assert_eq!(fixed.get("/other").await.status, 404);
}

#[tokio::test]
async fn faults_of_one_request_come_in_its_payload_too() {
    let sim = start(fast(Dialect::Http)).await;
    let body = json!({ "text": "a", "x_sim_fault": "status=503" });
    let reply = sim.post("/", body).await;
    assert_eq!(
        (reply.status, reply.json()),
        (503, json!({ "error": "simulated fault" }))
    );
    let torn = json!({ "text": "a", "x_sim_fault": "reset-mid-stream" });
    let (_, broken) = sim.raw("/", "", &torn).await;
    assert!(broken);
}

/// The completion and prompt tokens of every usage object of a stream, in order.
fn reports(reply: &SimulatorReply) -> Vec<(u64, u64)> {
    let events = reply.events();
    let parsed = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let usage = parsed.filter_map(|event| event.get("usage").filter(|u| u.is_object()).cloned());
    usage
        .map(|u| {
            (
                u["completion_tokens"].as_u64().unwrap(),
                u["prompt_tokens"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[tokio::test]
async fn usage_on_a_stream_stands_where_it_was_asked_to() {
    for (mode, expected) in [
        (StreamUsage::Last, vec![(2, 9)]),
        (StreamUsage::Cumulative, vec![(1, 9), (2, 9), (2, 9)]),
        (StreamUsage::Incremental, vec![(1, 9), (1, 0)]),
    ] {
        for (dialect, path) in [(Dialect::Http, "/run"), (Dialect::Openai, CHAT)] {
            let sim = start(Config {
                stream_usage: mode,
                prompt_tokens: Some(9),
                ..fast(dialect)
            })
            .await;
            let mut body = chat_stream("echo: a b");
            body["stream_options"] = json!({ "include_usage": true });
            let reply = sim.post(path, body).await;
            assert_eq!(reports(&reply), expected, "{mode:?} {dialect:?}");
            assert_eq!(reply.events().last(), Some(&"[DONE]"));
        }
    }
}

#[tokio::test]
async fn the_bill_stands_in_headers_of_answers_only() {
    let metric = |name: &str, value| CostMetric {
        name: name.into(),
        value,
    };
    let sim = start(Config {
        neurons: Some(2.5),
        cost_metrics: vec![metric("image_steps", 4.0), metric("tiles", 1.5)],
        ..fast(Dialect::Http)
    })
    .await;
    let reply = sim.post("/", json!({ "text": "a" })).await;
    for line in [
        "cf-ai-neurons: 2.5",
        "cf-ai-cost-metric-name-1: image_steps",
        "cf-ai-cost-metric-value-1: 4",
        "cf-ai-cost-metric-name-2: tiles",
        "cf-ai-cost-metric-value-2: 1.5",
    ] {
        assert!(reply.head.contains(line), "{line}: {}", reply.head);
    }
    let refused = sim
        .ask("POST", "/", "x-sim-fault: status=500\r\n", &json!({}))
        .await;
    assert!(!refused.head.contains("cf-ai-"));
}
