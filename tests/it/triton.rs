//! Triton behind the gateway: tasks as tensors, clients' own tensors in JSON and in binary, costs, pages about models.

use std::net::SocketAddr;

use infergate::simulate::{self, CostMetric, Dialect, OverLimit, Task};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, accounts, endpoint,
    eventually, model_of,
};

const TARIFF: &str = "    tariff: { cost_per_infer: 0.5, coefficients: { input_tokens: 0.25, steps: 0.125, \
                      output_tokens: 2 } }\n";
const JSON_BYTES: &str = "inference-header-content-length";

fn config() -> simulate::Config {
    simulate::Config {
        dialect: Dialect::Triton,
        output_tokens: 3,
        embedding_dims: 4,
        ..simulate::Config::instant()
    }
}

/// A server that reports costs of three shapes.
async fn metered() -> SimulatedServer {
    let metric = |name: &str, value| CostMetric {
        name: name.to_owned(),
        value,
    };
    let cost_metrics = vec![
        metric("input_tokens", 3.0),
        metric("steps", 2.5),
        metric("output_tokens", 4.0),
    ];
    SimulatedServer::start(simulate::Config {
        cost_metrics,
        ..config()
    })
    .await
}

/// 0.5 + 3 × 0.25 + 2.5 × 0.125 + 4 × 2.
const COST: f64 = 9.5625;

fn model(id: &str, task: &str, address: SocketAddr) -> String {
    model_of(id, task, "triton", address)
}

async fn node_of(task: &str, server: &SimulatedServer) -> Node {
    Node::start(&format!(
        "models:\n{}{TARIFF}",
        model("m", task, server.address)
    ))
    .await
}

async fn run(node: &Node, model: &str, body: Value) -> Value {
    let answer = node
        .post(&format!("/ai/run/{model}"), &body.to_string())
        .await;
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    answer.json()["result"].clone()
}

fn fp32(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A request in binary as tritonclient sends it: no content type.
async fn infer_binary(node: &Node, path: &str, json: &Value, tensors: &[u8]) -> TestResponse {
    let json = json.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: {}\r\nContent-Length: {}\r\n\r\n{json}",
        json.len(),
        json.len() + tensors.len()
    );
    let mut client = node.client().await;
    client.send([head.as_bytes(), tensors].concat()).await;
    client.response().await
}

fn binary_input(bytes: usize) -> Value {
    json!({ "name": "INPUT0", "shape": [1, bytes / 4], "datatype": "FP32",
            "parameters": { "binary_data_size": bytes } })
}

/// JSON and tensors of an answer in binary.
fn parts(answer: &TestResponse) -> (Value, &[u8]) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(!answer.broken);
    let length: usize = answer.header(JSON_BYTES).unwrap().parse().unwrap();
    let (json, tensors) = answer.body.split_at(length);
    (serde_json::from_slice(json).unwrap(), tensors)
}

fn json_input() -> Value {
    json!({ "name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.0] })
}

async fn get(node: &Node, key: &str, path: &str) -> TestResponse {
    let mut client = node.client().await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n{key}\r\n"))
        .await;
    client.response().await
}

const KEY_A: &str = "Authorization: Bearer key-a\r\n";
const KEY_B: &str = "Authorization: Bearer key-b\r\n";

#[tokio::test]
async fn every_task_with_a_json_input_is_served_by_tensors() {
    let tasks = [
        ("summarization", Task::Summarization),
        ("translation", Task::Translation),
        ("text-embeddings", Task::TextEmbeddings),
        ("text-classification", Task::TextClassification),
        ("object-detection", Task::ObjectDetection),
        ("text-to-image", Task::TextToImage),
        (
            "automatic-speech-recognition",
            Task::AutomaticSpeechRecognition,
        ),
        ("image-to-text", Task::ImageToText),
    ];
    let (mut models, mut servers) = (String::new(), Vec::new());
    for (slug, task) in tasks {
        let server = SimulatedServer::start(simulate::Config {
            task: Some(task),
            ..config()
        })
        .await;
        models += &model(slug, slug, server.address);
        servers.push(server);
    }
    let node = Node::start(&format!("models:\n{models}")).await;
    let summary = run(
        &node,
        "summarization",
        json!({ "input_text": "echo: brief" }),
    )
    .await;
    assert_eq!(summary, json!({ "summary": "brief" }));
    let text = json!({ "text": "echo: oui", "target_lang": "fr" });
    assert_eq!(
        run(&node, "translation", text).await,
        json!({ "translated_text": "oui" })
    );
    let rows = run(&node, "text-embeddings", json!({ "text": ["a", "b"] })).await;
    assert_eq!(rows["shape"], json!([2, 4]));
    let one = run(&node, "text-embeddings", json!({ "text": "a" })).await;
    assert_eq!(
        (&one["shape"], &one["data"][0]),
        (&json!([1, 4]), &rows["data"][0])
    );
    let labels = run(&node, "text-classification", json!({ "text": "fine" })).await;
    assert_eq!(labels[0]["label"], "POSITIVE");
    let boxes = run(&node, "object-detection", json!({ "image": [1, 2] })).await;
    assert!(boxes[0]["box"]["xmax"].is_number(), "{boxes}");
    let image = run(
        &node,
        "text-to-image",
        json!({ "prompt": "a", "width": 256, "height": 256 }),
    )
    .await;
    assert!(
        image["image"].as_str().unwrap().starts_with("iVBOR"),
        "{image}"
    );
    let words = run(
        &node,
        "automatic-speech-recognition",
        json!({ "audio": [1, 2, 3] }),
    )
    .await;
    assert!(words["text"].is_string(), "{words}");
    let seen = run(&node, "image-to-text", json!({ "image": [1, 2] })).await;
    assert!(seen["description"].is_string(), "{seen}");
}

#[tokio::test]
async fn text_is_generated_whole_and_as_events_and_billed_by_its_costs() {
    let server = SimulatedServer::start(config()).await;
    let node = node_of("text-generation", &server).await;
    let body = json!({ "prompt": "echo: a b c" });
    let whole = node.post("/ai/run/m", &body.to_string()).await;
    assert_eq!(
        whole.json()["result"]["response"],
        "a b c",
        "{}",
        whole.text()
    );
    let prompt_tokens = "echo: a b c".len().div_ceil(4) as f64;
    let by_hand = 0.5 + 0.25 * prompt_tokens + 2.0 * 3.0;
    assert_eq!(whole.header("cf-ai-neurons").unwrap().parse(), Ok(by_hand));
    assert!(!whole.text().contains("COST_METRIC"));
    let body = json!({ "prompt": "echo: a b c", "stream": true });
    let stream = node.post("/ai/run/m", &body.to_string()).await;
    assert!(stream.is_event_stream(), "{}", stream.text());
    let events = stream.events();
    let text: String = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|event| event["response"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(
        (text.as_str(), events.last().unwrap().as_str()),
        ("a b c", "[DONE]")
    );
    assert!(!stream.text().contains("COST_METRIC"));
    for answer in [whole, stream] {
        let event = node.event_of(&answer).await;
        assert_eq!(event["neurons"], by_hand, "{event}");
        assert_eq!(event["metrics"]["output_tokens"], 3, "{event}");
    }
    let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    let refused = node.post("/ai/run/m", &chat.to_string()).await;
    assert_eq!(
        (refused.status, refused.json()["errors"][0]["code"].as_u64()),
        (400, Some(5006))
    );
}

#[tokio::test]
async fn costs_of_every_shape_are_billed_and_never_shown() {
    let server = metered().await;
    let node = node_of("summarization", &server).await;
    let result = node.post("/ai/run/m", r#"{"input_text":"x"}"#).await;
    let all = json!({ "id": "7", "inputs": [json_input()] });
    let named = json!({ "inputs": [json_input()], "outputs": [{ "name": "OUTPUT0" }] });
    let path = "/v2/models/m/infer";
    let in_json = node.post(path, &all.to_string()).await;
    let by_name = node.post(path, &named.to_string()).await;
    let tensors = fp32(&[1.0, 2.0]);
    let named = json!({ "inputs": [binary_input(8)],
                        "outputs": [{ "name": "OUTPUT0", "parameters": { "binary_data": true } }] });
    let in_binary = infer_binary(&node, path, &named, &tensors).await;
    let output =
        json!({ "name": "OUTPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.0] });
    let expected = json!({ "model_name": "m", "model_version": "1", "outputs": [output] });
    assert_eq!(by_name.json(), expected);
    let mut with_id = expected;
    with_id["id"] = "7".into();
    assert_eq!(in_json.json(), with_id);
    let (json, bytes) = parts(&in_binary);
    assert_eq!(
        (json["outputs"].as_array().unwrap().len(), bytes),
        (1, &*tensors)
    );
    for answer in [result, in_json, by_name, in_binary] {
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(!answer.text().contains("COST_METRIC"), "{}", answer.text());
        assert_eq!(answer.header("cf-ai-neurons").unwrap().parse(), Ok(COST));
        let event = node.event_of(&answer).await;
        assert_eq!(event["neurons"], COST, "{event}");
        assert_eq!(event["metrics"]["steps"], 2.5, "{event}");
        assert_eq!(event["outcome"], "completed", "{event}");
    }
}

#[tokio::test]
async fn tensors_in_binary_pass_byte_for_byte() {
    let server = metered().await;
    let node = node_of("dumb-pipe", &server).await;
    let values: Vec<f32> = (0..1 << 20).map(|n| n as f32 / 7.0).collect();
    let tensors = fp32(&values);
    let body = json!({ "inputs": [binary_input(tensors.len())], "parameters": { "binary_data_output": true } });
    for path in ["/v2/models/m/infer", "/v2/models/m/versions/1/infer"] {
        let answer = infer_binary(&node, path, &body, &tensors).await;
        let (json, bytes) = parts(&answer);
        assert!(
            bytes == tensors,
            "{} bytes of {}",
            bytes.len(),
            tensors.len()
        );
        let size = &json["outputs"][0]["parameters"]["binary_data_size"];
        assert_eq!(*size, tensors.len());
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        let event = node.event_of(&answer).await;
        assert_eq!(
            (&event["neurons"], &event["face"]),
            (&json!(COST), &json!("open-inference"))
        );
    }
    let refused = node.post("/ai/run/m", "{}").await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn an_answer_in_binary_that_breaks_off_is_no_whole_one() {
    let json = r#"{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[4],"parameters":{"binary_data_size":16}}]}"#;
    for (length, tensors) in [
        (json.len(), "12345678"),
        (json.len(), "12345678123456789"),
        (json.len() - 1, ""),
    ] {
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: {length}\r\n\
             Content-Length: {}\r\n\r\n{json}{tensors}",
            json.len() + tensors.len()
        );
        let server = ScriptedServer::new(&[&answer]).await;
        let node = Node::start(&format!(
            "models:\n{}",
            model("m", "dumb-pipe", server.address)
        ))
        .await;
        let body = json!({ "inputs": [] });
        let got = node.post("/v2/models/m/infer", &body.to_string()).await;
        assert!(
            got.broken || got.status == 502,
            "{length}: {} {}",
            got.status,
            got.text()
        );
        assert_ne!(node.events(1).await[0]["outcome"], "completed");
    }
}

#[tokio::test]
async fn a_clients_own_generate_passes_whole_and_as_events_without_its_costs() {
    let server = SimulatedServer::start(config()).await;
    let text = format!(
        "{}models:\n{}{TARIFF}    allowed_accounts: [a]\n    finetunes: [{{ id: f, name: f }}]\n",
        accounts(""),
        model("m", "text-generation", server.address)
    );
    let node = Node::start(&text).await;
    let body = json!({ "text_input": "echo: a b c", "parameters": { "temperature": 0 } });
    let body = body.to_string();
    let prompt_tokens = "echo: a b c".len().div_ceil(4) as f64;
    let by_hand = 0.5 + 0.25 * prompt_tokens + 2.0 * 3.0;
    for path in ["/v2/models/m", "/v2/models/m/versions/1"] {
        let whole = node
            .post_as(KEY_A, &format!("{path}/generate"), &body)
            .await;
        assert_eq!(whole.status, 200, "{}", whole.text());
        let json = whole.json();
        assert_eq!(json["text_output"], "a b c", "{json}");
        assert_eq!(json["model_name"], "m", "{json}");
        let stream = format!("{path}/generate_stream");
        let stream = node.post_as(KEY_A, &stream, &body).await;
        assert!(stream.is_event_stream(), "{}", stream.text());
        let events: Vec<Value> = stream
            .events()
            .iter()
            .map(|event| serde_json::from_str(event).unwrap())
            .collect();
        let texts = events
            .iter()
            .filter_map(|event| event["text_output"].as_str());
        assert_eq!(texts.collect::<String>(), "a b c");
        assert!(events.iter().all(|event| event["model_name"] == "m"));
        for answer in [whole, stream] {
            assert!(!answer.text().contains("COST_METRIC"), "{}", answer.text());
            let event = node.event_of(&answer).await;
            assert_eq!(event["neurons"], by_hand, "{event}");
            assert_eq!(event["outcome"], "completed", "{event}");
        }
    }
    for (key, path, body, status) in [
        ("", "/v2/models/m/generate", &*body, 401),
        (KEY_B, "/v2/models/m/generate_stream", &*body, 404),
        (KEY_A, "/v2/models/none/generate", &*body, 404),
        (KEY_A, "/v2/models/m/generate", "[1]", 400),
        (KEY_A, "/v2/models/m/versions/9/generate", &*body, 404),
        (
            KEY_A,
            "/v2/models/m/generate",
            r#"{"text_input":"x","lora_name":"y"}"#,
            400,
        ),
        (
            KEY_A,
            "/v2/models/m/generate_stream",
            r#"{"text_input":"x","parameters":{"lora_name":"y"}}"#,
            400,
        ),
        (
            KEY_A,
            "/v2/models/m/generate",
            r#"{"text_input":"x","sampling_parameters":"{\"lora_name\":\"y\"}"}"#,
            400,
        ),
    ] {
        let refused = node.post_as(key, path, body).await;
        assert_eq!(refused.status, status, "{path} {body}: {}", refused.text());
        assert!(refused.json()["error"].is_string(), "{}", refused.text());
    }
    node.idle().await;
}

#[tokio::test]
async fn a_generated_stream_that_breaks_off_ends_with_an_error_of_the_protocol() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let piece = "data: {\"model_name\":\"x\",\"text_output\":\"one two three\"}\n\n";
    let failed = "data: {\"error\":\"secret words of the server\"}\n\n";
    for (last, outcome) in [(failed, false), ("data: {\"text", false), ("", true)] {
        let server = ScriptedServer::closing(&[&format!("{head}{piece}{last}")]).await;
        let price = "    tariff: { coefficients: { input_tokens: 1, output_tokens: 1000 } }\n";
        let node = Node::start(&format!(
            "models:\n{}{price}",
            model("m", "text-generation", server.address)
        ))
        .await;
        let body = json!({ "text_input": "four words in all" }).to_string();
        let answer = node.post("/v2/models/m/generate_stream", &body).await;
        let events = answer.events();
        assert_eq!(
            serde_json::from_str::<Value>(&events[0]).unwrap()["text_output"],
            "one two three"
        );
        assert!(!answer.text().contains("secret"), "{}", answer.text());
        let ends_with_error = events.last().unwrap().contains("\"error\":\"");
        assert_eq!(ends_with_error, !outcome, "{}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(event["outcome"] == "completed", outcome, "{event}");
        // The server reports nothing: both are estimated.
        assert!(event["neurons"].as_f64().unwrap() > 3000.0, "{event}");
    }
}

#[tokio::test]
async fn errors_have_the_form_of_the_protocol() {
    let server = metered().await;
    let node = node_of("summarization", &server).await;
    let path = "/v2/models/m/infer";
    let error = |answer: &TestResponse| answer.json()["error"].as_str().unwrap().to_owned();
    let post = async |path: &str, body: Value| node.post(path, &body.to_string()).await;
    let wrong_shape =
        json!({ "inputs": [{ "name": "x", "shape": [3], "datatype": "FP32", "data": [1] }] });
    let refused = post(path, wrong_shape).await;
    assert_eq!(
        (refused.status, error(&refused)),
        (400, "unexpected shape for input 'x'".into())
    );
    let refused = node.post(path, "{").await;
    assert_eq!(refused.status, 400);
    assert!(
        error(&refused).contains("not a JSON object"),
        "{}",
        refused.text()
    );
    let shared = json!({ "inputs": [{ "name": "x", "shape": [1], "datatype": "FP32",
                                      "parameters": { "shared_memory_region": "r" } }] });
    let refused = post(path, shared).await;
    assert_eq!(refused.status, 400);
    assert!(error(&refused).starts_with("/inputs/0/parameters/shared_memory_region: "));
    let refused = post("/v2/models/none/infer", json!({ "inputs": [] })).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    // A version is the client's word, and a model that the server does not know the operator's.
    let refused = post("/v2/models/m/versions/9/infer", json!({ "inputs": [] })).await;
    assert_eq!(
        (refused.status, error(&refused).contains("version 9")),
        (404, true)
    );
    for (status, seen) in [(500, 500), (503, 502), (404, 502)] {
        // Another gateway each time: this server is not used again at once.
        let node = node_of("summarization", &server).await;
        let body = json!({ "inputs": [json_input()], "x_sim_fault": format!("status={status}") });
        let failed = node.post(path, &body.to_string()).await;
        assert_eq!(failed.status, seen, "{status}: {}", failed.text());
        assert!(!error(&failed).contains("simulated"), "{}", failed.text());
    }
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
    let refused = node.post("/v1/chat/completions", chat).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

#[tokio::test]
async fn an_account_sees_pages_of_the_models_it_may_use_alone() {
    let server = metered().await;
    let named = |id: &str| {
        let endpoint = endpoint(server.address, 2);
        format!(
            "  - id: \"{id}\"\n    task: summarization\n    backend: triton\n    endpoints:\n      \
             - {{ {endpoint}, backend_model: served }}\n"
        )
    };
    let other = model_of("plain", "summarization", "http", server.address);
    let accounts = accounts(", models: [\"@cf/a/*\", plain]");
    let text = format!(
        "{accounts}models:\n{}{}{other}",
        named("@cf/a/one"),
        named("two")
    );
    let node = Node::start(&text).await;
    for path in ["/v2/health/live", "/v2/health/ready"] {
        assert_eq!(get(&node, "", path).await.status, 200, "{path}");
    }
    for path in [
        "/v2",
        "/v2/models/two",
        "/v2/models/two/ready",
        "/v2/models/two/stats",
    ] {
        let refused = get(&node, "", path).await;
        assert_eq!(refused.status, 401, "{path}");
        assert!(refused.json()["error"].is_string());
    }
    let index = async |key: &str, body: &str| {
        let answer = node.post_as(key, "/v2/repository/index", body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let names = answer.json().as_array().unwrap().clone();
        names
            .iter()
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    eventually("both models are ready", async || {
        (index(KEY_B, r#"{"ready":true}"#).await.len() == 2).then_some(())
    })
    .await;
    assert_eq!(index(KEY_A, "").await, ["@cf/a/one"]);
    assert_eq!(index(KEY_B, "").await, ["@cf/a/one", "two"]);
    for suffix in ["", "/config", "/stats", "/ready"] {
        let own = format!("/v2/models/%40cf%2Fa%2Fone{suffix}");
        let seen = get(&node, KEY_A, &own).await;
        assert_eq!(seen.status, 200, "{own}: {}", seen.text());
        assert!(
            !seen.text().contains("COST_METRIC") && !seen.text().contains("served"),
            "{}",
            seen.text()
        );
        if suffix != "/ready" {
            assert!(seen.text().contains("@cf/a/one"), "{}", seen.text());
        }
        for hidden in ["two", "plain", "none"] {
            let hidden = format!("/v2/models/{hidden}{suffix}");
            assert_eq!(get(&node, KEY_A, &hidden).await.status, 404, "{hidden}");
        }
    }
    let versioned = "/v2/models/@cf/a/one/versions/1/config";
    assert_eq!(get(&node, KEY_A, versioned).await.status, 200);
    let missing = get(&node, KEY_A, "/v2/models/@cf/a/one/versions/9").await;
    assert_eq!(missing.status, 400, "{}", missing.text());
    for order in ["load", "unload"] {
        let path = format!("/v2/repository/models/two/{order}");
        let refused = node.post_as(KEY_B, &path, "{}").await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(
            refused.json()["error"]
                .as_str()
                .unwrap()
                .contains("operator")
        );
        assert_eq!(node.post(&path, "{}").await.status, 401);
    }
    let body = json!({ "inputs": [json_input()] }).to_string();
    assert_eq!(
        node.post_as(KEY_A, "/v2/models/two/infer", &body)
            .await
            .status,
        403
    );
    assert_eq!(
        node.post_as(KEY_B, "/v2/models/two/infer", &body)
            .await
            .status,
        200
    );
    assert_eq!(
        node.post_as(KEY_A, "/v2/models/plain/infer", &body)
            .await
            .status,
        400
    );
    assert_eq!(server.count("served").await, 1);
}

#[tokio::test]
async fn a_model_that_is_not_loaded_at_its_server_is_not_ready() {
    let server = SimulatedServer::start(simulate::Config {
        model: Some("another".into()),
        ..config()
    })
    .await;
    let node = Node::start(&format!(
        "models:\n{}",
        model("m", "dumb-pipe", server.address)
    ))
    .await;
    eventually("the model is not ready", async || {
        let ready = get(&node, "", "/v2/models/m/ready").await;
        (ready.status == 503).then_some(())
    })
    .await;
    let health = &node.state().await["models"][0]["endpoints"][0]["last_error"];
    assert!(health.to_string().contains("400"), "{health}");
}

#[tokio::test]
async fn who_reads_or_sets_members_of_the_input_is_not_passed_by() {
    let server = metered().await;
    let limited = model("m", "summarization", server.address)
        + "    parameters: { max: { max_length: 10 } }\n";
    let checked =
        model("p", "summarization", server.address) + "    plugins: { task: summarization }\n";
    let node = Node::start(&format!("models:\n{limited}{checked}")).await;
    let body = json!({ "inputs": [json_input()] }).to_string();
    for name in ["m", "p"] {
        let refused = node.post(&format!("/v2/models/{name}/infer"), &body).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(
            refused.text().contains(&format!("/ai/run/{name}")),
            "{}",
            refused.text()
        );
        let generate = format!("/v2/models/{name}/generate");
        let refused = node.post(&generate, r#"{"text_input":"x"}"#).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains("takes no `generate`"));
        let answer = node
            .post(&format!("/ai/run/{name}"), r#"{"input_text":"x"}"#)
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_clients_than_permits_are_all_served_within_the_permits() {
    let server = SimulatedServer::start(simulate::Config {
        concurrency: 2,
        over_limit: OverLimit::Refuse,
        ttft_ms: 2,
        ..config()
    })
    .await;
    let model = model("m", "dumb-pipe", server.address);
    let queue = "    queue: { algorithm: fair, capacity: 32 }\n";
    let node = Node::start(&format!("models:\n{model}{queue}")).await;
    let address = node.clients;
    let mut clients = JoinSet::new();
    for _ in 0..24 {
        clients.spawn(async move {
            let body = json!({ "inputs": [json_input()] }).to_string();
            let mut client = TestClient::connect(address).await;
            for _ in 0..10 {
                client.post("", "/v2/models/m/infer", &body).await;
                let answer = client.response().await;
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    assert_eq!(server.count("refused").await, 0);
    assert_eq!(server.count("served").await, 240);
    assert!(server.count("high_water").await <= 2);
}
