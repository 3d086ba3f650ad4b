//! All 14 tasks through the gateway, on models behind plain HTTP: results, refusals, odd inputs,
//! bytes, streams.

mod bytes;
mod dialects;
mod inputs;
mod large;
mod payloads;
mod photos;
mod streams;

use infergate::simulate::{self, Dialect, Task};
use serde_json::{Value, json};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, chat, json_answer, model_of,
    one_model,
};

/// The tasks by their slugs.
const TASKS: [(&str, Task); 14] = [
    ("text-generation", Task::TextGeneration),
    ("text-classification", Task::TextClassification),
    ("text-embeddings", Task::TextEmbeddings),
    ("text-to-image", Task::TextToImage),
    ("text-to-speech", Task::TextToSpeech),
    (
        "automatic-speech-recognition",
        Task::AutomaticSpeechRecognition,
    ),
    ("image-classification", Task::ImageClassification),
    ("image-to-text", Task::ImageToText),
    ("image-text-to-text", Task::ImageTextToText),
    ("object-detection", Task::ObjectDetection),
    ("translation", Task::Translation),
    ("summarization", Task::Summarization),
    ("multimodal-embeddings", Task::MultimodalEmbeddings),
    ("dumb-pipe", Task::DumbPipe),
];

/// A gateway with a model for every task, each called by its task's slug, and their servers.
struct TaskServers {
    node: Node,
    _servers: Vec<SimulatedServer>,
}

impl TaskServers {
    async fn start() -> TaskServers {
        let mut models = String::new();
        let mut servers = Vec::new();
        for (slug, task) in TASKS {
            let server = SimulatedServer::start(config(task)).await;
            models += &model_of(slug, slug, "http", server.address);
            servers.push(server);
        }
        TaskServers {
            node: Node::start(&format!("models:\n{models}")).await,
            _servers: servers,
        }
    }

    /// `run` with a JSON body.
    async fn run(&self, task: &str, body: Value) -> TestResponse {
        run(
            &self.node,
            task,
            "application/json",
            body.to_string().as_bytes(),
        )
        .await
    }

    /// The result in the envelope of a good answer.
    async fn result(&self, task: &str, body: Value) -> Value {
        let answer = self.run(task, body).await;
        result_of(task, &answer)
    }
}

fn config(task: Task) -> simulate::Config {
    simulate::Config {
        dialect: Dialect::Http,
        task: Some(task),
        output_tokens: 3,
        embedding_dims: 4,
        ..simulate::Config::instant()
    }
}

/// A gateway whose one model `m` does `task` on `server`.
async fn node_on(task: &str, server: &ScriptedServer, more: &str) -> Node {
    let model = model_of("m", task, "http", server.address);
    Node::start(&format!("models:\n{model}{more}")).await
}

/// `run` of a model with any body.
async fn run(node: &Node, model: &str, content_type: &str, body: &[u8]) -> TestResponse {
    let head = format!(
        "POST /ai/run/{model} HTTP/1.1\r\nHost: h\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut client = node.client().await;
    client.send([head.as_bytes(), body].concat()).await;
    client.response().await
}

/// The result in the envelope of a good answer.
fn result_of(task: &str, answer: &TestResponse) -> Value {
    assert_eq!(answer.status, 200, "{task}: {}", answer.text());
    assert_eq!(
        answer.header("content-type"),
        Some("application/json"),
        "{task}"
    );
    let body = answer.json();
    assert_eq!(body["success"], true, "{task}");
    assert_eq!(
        (&body["errors"], &body["messages"]),
        (&json!([]), &json!([])),
        "{task}"
    );
    body["result"].clone()
}

/// A refusal of input: 5006 with the place and a reason.
fn assert_wrong_at(answer: &TestResponse, pointer: &str, what: &str) {
    let text = answer.text();
    assert_eq!(answer.status, 400, "{what}: {text}");
    let body = answer.json();
    assert_eq!(
        (&body["success"], &body["result"]),
        (&json!(false), &Value::Null),
        "{what}"
    );
    assert_eq!(body["errors"][0]["code"], 5006, "{what}: {text}");
    let message = body["errors"][0]["message"].as_str().unwrap();
    match pointer {
        "" => assert!(!message.starts_with('/'), "{what}: {message}"),
        _ => assert!(
            message.starts_with(&format!("{pointer}: ")),
            "{what}: {message}"
        ),
    }
}

/// An answer for [`Scripted`] with any content type.
fn typed_answer(content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn every_task_gives_its_documented_result() {
    let hall = TaskServers::start().await;
    let text = hall
        .result("text-generation", json!({ "prompt": "echo: a b" }))
        .await;
    assert_eq!(text["response"], "a b");
    assert_eq!(text["usage"]["completion_tokens"], 2);
    let labels = hall
        .result("text-classification", json!({ "text": "fine" }))
        .await;
    assert_eq!(labels[0]["label"], "POSITIVE");
    assert!(labels[0]["score"].is_f64());
    let rows = hall
        .result("text-embeddings", json!({ "text": ["a", "b"] }))
        .await;
    assert_eq!(rows["shape"], json!([2, 4]));
    assert_eq!(rows["data"][1].as_array().unwrap().len(), 4);
    let received = hall
        .result(
            "automatic-speech-recognition",
            json!({ "audio": [1, 2, 3] }),
        )
        .await;
    assert_eq!(received["word_count"], 3);
    assert_eq!(received["words"].as_array().unwrap().len(), 3);
    assert!(received["text"].is_string() && received["vtt"].is_string());
    let labels = hall
        .result("image-classification", json!({ "image": [1, 2] }))
        .await;
    assert!(labels[0]["label"].is_string() && labels[0]["score"].is_f64());
    let described = hall
        .result("image-to-text", json!({ "image": [1, 2] }))
        .await;
    assert!(described["description"].is_string());
    let seen = json!({ "image": [1], "prompt": "echo: seen" });
    let seen = hall.result("image-text-to-text", seen).await;
    assert_eq!(seen["response"], "seen");
    let boxes = hall
        .result("object-detection", json!({ "image": [1, 2] }))
        .await;
    assert!(boxes[0]["box"]["xmin"].is_number() && boxes[0]["box"]["ymax"].is_number());
    let text = json!({ "text": "echo: oui", "source_lang": "en", "target_lang": "fr" });
    assert_eq!(
        hall.result("translation", text).await["translated_text"],
        "oui"
    );
    let long = json!({ "input_text": "echo: brief" });
    assert_eq!(hall.result("summarization", long).await["summary"], "brief");
    let rows = hall
        .result("multimodal-embeddings", json!({ "text": "a" }))
        .await;
    assert_eq!(rows["shape"], json!([1, 4]));
    for event in hall.node.events(11).await {
        assert_eq!(
            (&event["outcome"], &event["face"]),
            (&json!("completed"), &json!("workers-ai"))
        );
    }
}
