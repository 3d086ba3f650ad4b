//! The OpenAI APIs whose bodies pass: images, speech, transcriptions, responses and reranks, whole and streamed, with what
//! each is billed by.

use std::net::SocketAddr;

use infergate::simulate::{self, Dialect};
use serde_json::{Value, json};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestClient, TestResponse, chunk, eventually,
    json_answer, model_of,
};

const IMAGES: &str = "/v1/images/generations";
const SPEECH: &str = "/v1/audio/speech";
const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const RESPONSES: &str = "/v1/responses";
const RERANK: &str = "/v1/rerank";

/// A model for each API.
const MODELS: [(&str, &str); 5] = [
    ("pictures", "text-to-image"),
    ("voice", "text-to-speech"),
    ("ears", "automatic-speech-recognition"),
    ("text", "text-generation"),
    ("ranks", "text-classification"),
];

const TARIFF: &str = "    tariff: { coefficients: { output_images: 10, image_steps: 1, input_characters: 0.5, \
                      audio_seconds: 2 } }\n";
const TOKENS: &str = "    tariff: { coefficients: { input_tokens: 0.25, output_tokens: 1 } }\n";

async fn server(dialect: Dialect) -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        dialect,
        output_tokens: 3,
        ..simulate::Config::instant()
    })
    .await
}

fn models(backend: &str, address: SocketAddr) -> String {
    let model = |(id, task): (&str, &str)| {
        let tariff = match id {
            "text" | "ranks" => TOKENS,
            _ => TARIFF,
        };
        model_of(id, task, backend, address) + tariff
    };
    format!("models:\n{}", MODELS.map(model).concat())
}

/// A gateway with all models in front of one server, and the server.
async fn studio(backend: &str, dialect: Dialect) -> (Node, SimulatedServer) {
    let server = server(dialect).await;
    (Node::start(&models(backend, server.address)).await, server)
}

/// A gateway with one model in front of a server that a test scripts.
async fn scripted(task: &str, more: &str, pieces: &[&str]) -> (Node, ScriptedServer) {
    let server = ScriptedServer::closing(pieces).await;
    let model = model_of("m", task, "openai", server.address);
    (
        Node::start(&format!("models:\n{model}{more}")).await,
        server,
    )
}

/// The answer, and its event.
async fn ask(node: &Node, path: &str, body: &Value) -> (TestResponse, Value) {
    let answer = node.post(path, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    assert!(!answer.broken, "{path}");
    let event = node.event_of(&answer).await;
    assert_eq!(event["outcome"], "completed", "{event}");
    (answer, event)
}

/// A tone of so many seconds: 16-bit mono at 8,192 Hz, whose header is text for scripted servers up to one second.
fn sound(seconds: u32) -> Vec<u8> {
    let data = seconds * 16_384;
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(8_192_u32.to_le_bytes());
    file.extend(16_384_u32.to_le_bytes());
    file.extend([2, 0, 16, 0]);
    file.extend(b"data");
    file.extend(data.to_le_bytes());
    file.resize(file.len() + data as usize, 0);
    file
}

/// A form as client libraries send it, the file last.
fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body = String::new();
    for (name, value) in fields {
        body +=
            &format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    body += "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
             Content-Type: audio/x-wav\r\n\r\n";
    [body.as_bytes(), file, b"\r\n--b--\r\n"].concat()
}

async fn send_form(node: &Node, path: &str, body: &[u8]) -> TestResponse {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut client = node.client().await;
    client.send([head.as_bytes(), body].concat()).await;
    client.response().await
}

#[tokio::test]
async fn images_are_answered_in_both_forms_and_as_partial_images() {
    for (backend, dialect) in [("openai", Dialect::Openai), ("http", Dialect::Http)] {
        let (node, _server) = studio(backend, dialect).await;
        let request = |more: Value| {
            let mut body = json!({ "model": "pictures", "prompt": "a cat", "n": 2, "size": "64x32", "steps": 4 });
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let (answer, event) = ask(&node, IMAGES, &request(json!({}))).await;
        let data = answer.json()["data"].clone();
        assert_eq!(data.as_array().unwrap().len(), 2, "{backend}");
        assert!(
            data[0]["b64_json"]
                .as_str()
                .unwrap()
                .starts_with("iVBORw0KGgo")
        );
        let metrics = &event["metrics"];
        assert_eq!(metrics["output_images"], 2.0, "{event}");
        assert_eq!(
            (&metrics["image_steps"], &metrics["input_characters"]),
            (&json!(8), &json!(5))
        );
        // 2 images, 8 steps and 5 characters.
        assert_eq!(event["neurons"], 20.0 + 8.0 + 2.5, "{event}");

        let (answer, event) =
            ask(&node, IMAGES, &request(json!({ "response_format": "url" }))).await;
        assert!(
            answer.json()["data"][1]["url"]
                .as_str()
                .unwrap()
                .starts_with("https://")
        );
        assert_eq!(event["metrics"]["output_images"], 2.0, "{event}");

        let stream = request(json!({ "n": 1, "stream": true, "partial_images": 2 }));
        let (answer, event) = ask(&node, IMAGES, &stream).await;
        assert!(answer.is_event_stream(), "{backend}");
        let kinds: Vec<String> = answer
            .events()
            .iter()
            .map(|event| {
                let event: Value = serde_json::from_str(event).unwrap();
                event["type"].as_str().unwrap().to_owned()
            })
            .collect();
        let partial = "image_generation.partial_image";
        assert_eq!(kinds, [partial, partial, "image_generation.completed"]);
        assert_eq!(event["metrics"]["output_images"], 1.0, "{event}");
        assert_eq!(event["flags"]["streamed"], true);
    }
}

#[tokio::test]
async fn an_image_larger_than_an_event_that_is_held_passes_in_pieces() {
    let (node, _server) = studio("openai", Dialect::Openai).await;
    let body = json!({ "model": "pictures", "prompt": "x", "size": "1500x1500", "stream": true });
    let (answer, event) = ask(&node, IMAGES, &body).await;
    assert!(answer.body.len() > 2 << 20, "{}", answer.body.len());
    let image: Value = serde_json::from_str(&answer.events()[0]).unwrap();
    assert_eq!(image["type"], "image_generation.completed");
    assert_eq!(event["metrics"]["output_images"], 1.0, "{event}");
    assert_eq!(event["metrics"]["output_tokens"], 100, "{event}");
}

#[tokio::test]
async fn speech_is_bytes_or_events() {
    let (node, _server) = studio("openai", Dialect::Openai).await;
    let body = json!({ "model": "voice", "input": "one two three", "voice": "alloy" });
    let (answer, event) = ask(&node, SPEECH, &body).await;
    assert_eq!(answer.header("content-type"), Some("audio/wav"));
    assert_eq!(answer.body.len(), 44 + 3 * 800 * 2);
    assert_eq!(event["metrics"]["input_characters"], 13.0, "{event}");
    assert_eq!(event["neurons"], 6.5, "{event}");
    let body =
        json!({ "model": "voice", "input": "one two", "voice": "alloy", "stream_format": "sse" });
    let (answer, event) = ask(&node, SPEECH, &body).await;
    let last: Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
    assert_eq!(last["type"], "speech.audio.done");
    assert_eq!(event["metrics"]["input_tokens"], 2, "{event}");
    assert_eq!(event["metrics"]["input_characters"], 7.0, "{event}");
}

#[tokio::test]
async fn a_transcription_is_billed_by_the_seconds_of_its_sound() {
    for (backend, dialect) in [("openai", Dialect::Openai), ("http", Dialect::Http)] {
        let (node, _server) = studio(backend, dialect).await;
        let fields = [("model", "ears"), ("prompt", "echo: good morning")];
        for path in [TRANSCRIPTIONS, "/v1/audio/translations"] {
            let answer = send_form(&node, path, &form(&fields, &sound(3))).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["text"], "good morning");
            let event = node.event_of(&answer).await;
            assert_eq!(event["metrics"]["audio_seconds"], 3.0, "{event}");
            assert_eq!(
                (&event["metrics_source"], &event["neurons"]),
                (&json!("reported"), &json!(6.0))
            );
        }
        let text = [&fields[..], &[("response_format", "text")]].concat();
        let answer = send_form(&node, TRANSCRIPTIONS, &form(&text, &sound(2))).await;
        assert_eq!(answer.text(), "good morning\n");
        let event = node.event_of(&answer).await;
        assert_eq!(
            event["metrics"]["audio_seconds"], 2.0,
            "by the header: {event}"
        );
        let stream = [&fields[..], &[("stream", "true")]].concat();
        let answer = send_form(&node, TRANSCRIPTIONS, &form(&stream, &sound(1))).await;
        assert!(answer.is_event_stream());
        let last: Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
        assert_eq!(
            (&last["type"], &last["text"]),
            (&json!("transcript.text.done"), &json!("good morning"))
        );
        let event = node.event_of(&answer).await;
        assert_eq!(event["metrics"]["audio_seconds"], 1.0, "{event}");
        // A file of a kind that tells no duration: by its size, and marked so.
        let none = [&text[..], &[("no_usage", "true")]].concat();
        let answer = send_form(&node, TRANSCRIPTIONS, &form(&none, &vec![7; 16_000])).await;
        let event = node.event_of(&answer).await;
        assert_eq!(event["metrics"]["audio_seconds"], 2.0, "{event}");
        assert_eq!(event["metrics_source"], "estimated", "{event}");
    }
}

#[tokio::test]
async fn a_file_of_25_mb_passes_whole() {
    let (node, server) = studio("openai", Dialect::Openai).await;
    let file = vec![9; 25 << 20];
    let fields = [("model", "ears"), ("prompt", "echo: long")];
    let answer = send_form(&node, TRANSCRIPTIONS, &form(&fields, &file)).await;
    assert_eq!(answer.json()["text"], "long", "{}", answer.text());
    assert_eq!(server.count("served").await, 1);
}

#[tokio::test]
async fn a_form_reaches_the_server_as_it_came_but_for_the_models_name() {
    let (node, server) = scripted(
        "automatic-speech-recognition",
        "",
        &[&json_answer(r#"{"text":"hi","duration":4.5}"#)],
    )
    .await;
    node.reload(&format!(
        "models:\n{}{TARIFF}",
        model_of(
            "m",
            "automatic-speech-recognition",
            "openai",
            server.address
        )
        .replace(
            "max_concurrent_requests",
            "backend_model: whisper-1, max_concurrent_requests"
        )
    ))
    .await;
    let fields = [("model", "m"), ("temperature", "0")];
    let answer = send_form(&node, TRANSCRIPTIONS, &form(&fields, b"abc")).await;
    assert_eq!(answer.json()["text"], "hi");
    let request = server.requests().pop().unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/audio/transcriptions "), "{head}");
    assert!(head.contains("multipart/form-data; boundary=b"), "{head}");
    let expected = form(&[("model", "whisper-1"), ("temperature", "0")], b"abc");
    assert_eq!(body.as_bytes(), expected);
    let event = node.event_of(&answer).await;
    assert_eq!(
        (&event["metrics"]["audio_seconds"], &event["neurons"]),
        (&json!(4.5), &json!(9.0))
    );
}

#[tokio::test]
async fn responses_are_answered_whole_and_as_a_stream() {
    for (backend, dialect) in [
        ("openai", Dialect::Openai),
        ("llama-server", Dialect::LlamaServer),
        ("http", Dialect::Http),
    ] {
        let server = server(dialect).await;
        let node = Node::start(&format!(
            "models:\n{}{TOKENS}",
            model_of("text", "text-generation", backend, server.address)
        ))
        .await;
        let body = json!({ "model": "text", "input": "echo: a b c" });
        let (answer, event) = ask(&node, RESPONSES, &body).await;
        let answer = answer.json();
        assert_eq!(
            answer["output"][0]["content"][0]["text"], "a b c",
            "{backend}: {answer}"
        );
        assert_eq!(event["metrics"]["output_tokens"], 3, "{event}");
        assert_eq!(
            (&event["metrics_source"], &event["neurons"]),
            (&json!("reported"), &json!(0.25 * 3.0 + 3.0))
        );
        let body = json!({ "model": "text", "input": [{ "role": "user", "content": "echo: a b" }], "stream": true });
        let (answer, event) = ask(&node, RESPONSES, &body).await;
        let text = answer.text();
        assert!(text.starts_with("event: response.created\n"), "{text}");
        assert!(!text.contains("stream_options"), "{text}");
        assert!(
            answer
                .events()
                .last()
                .unwrap()
                .contains("response.completed")
        );
        assert_eq!(event["metrics"]["output_tokens"], 2, "{event}");
        assert_eq!(event["metrics_source"], "reported", "{event}");
        // Nothing is free where the server tells nothing.
        for stream in [false, true] {
            let body = json!({ "model": "text", "input": "echo: a b c", "stream": stream, "no_usage": true });
            let (_, event) = ask(&node, RESPONSES, &body).await;
            assert_eq!(event["metrics_source"], "estimated", "{event}");
            assert!(
                event["metrics"]["output_tokens"].as_u64().unwrap() >= 1,
                "{event}"
            );
            assert!(
                event["metrics"]["input_tokens"].as_u64().unwrap() >= 1,
                "{event}"
            );
        }
    }
}

#[tokio::test]
async fn documents_are_ranked_by_every_kind_of_server_that_can() {
    for (backend, dialect) in [
        ("openai", Dialect::Openai),
        ("tei", Dialect::Tei),
        ("llama-server", Dialect::LlamaServer),
    ] {
        let server = server(dialect).await;
        let node = Node::start(&format!(
            "models:\n{}{TOKENS}",
            model_of("ranks", "text-classification", backend, server.address)
        ))
        .await;
        let body = json!({ "model": "ranks", "query": "warm gate", "top_n": 2, "return_documents": true,
                           "documents": ["a cold door", "a warm gate", { "text": "a gate" }] });
        let (answer, event) = ask(&node, RERANK, &body).await;
        let results = answer.json()["results"].clone();
        let order: Vec<u64> = results
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["index"].as_u64().unwrap())
            .collect();
        assert_eq!(order, [1, 2], "{backend}: {results}");
        assert_eq!(results[0]["relevance_score"], 1.0, "{backend}");
        assert_eq!(results[0]["document"]["text"], "a warm gate", "{backend}");
        assert!(
            event["metrics"]["input_tokens"].as_u64().unwrap() > 0,
            "{event}"
        );
        assert_eq!(event["metrics"]["output_tokens"], Value::Null, "{event}");
        assert!(event["neurons"].as_f64().unwrap() > 0.0, "{event}");
    }
}

#[tokio::test]
async fn a_model_of_another_task_and_a_server_without_the_api_are_refused_in_words() {
    let (node, _server) = studio("openai", Dialect::Openai).await;
    let refused = |answer: TestResponse, words: &str| {
        assert_eq!(answer.status, 400, "{}", answer.text());
        let error = answer.json()["error"].clone();
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("invalid_request_error"), &json!("/model"))
        );
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    };
    for (path, body, words) in [
        (
            IMAGES,
            json!({ "model": "voice", "prompt": "x" }),
            "makes no images",
        ),
        (
            SPEECH,
            json!({ "model": "text", "input": "x" }),
            "makes no speech",
        ),
        (
            RESPONSES,
            json!({ "model": "pictures", "input": "x" }),
            "does not generate text",
        ),
        (
            RERANK,
            json!({ "model": "text", "query": "x", "documents": ["y"] }),
            "ranks no documents",
        ),
        (
            "/v1/chat/completions",
            json!({ "model": "voice", "messages": [] }),
            "does not generate text",
        ),
    ] {
        refused(node.post(path, &body.to_string()).await, words);
    }
    let answer = send_form(&node, TRANSCRIPTIONS, &form(&[("model", "text")], b"x")).await;
    refused(answer, "does not write speech down");
    let answer = node.post(TRANSCRIPTIONS, "{}").await;
    assert!(
        answer.text().contains("no multipart form"),
        "{}",
        answer.text()
    );
    let tgi = server(Dialect::Tgi).await;
    let node = Node::start(&format!(
        "models:\n{}",
        model_of("m", "text-generation", "tgi", tgi.address)
    ))
    .await;
    let answer = node.post(RESPONSES, r#"{"model":"m","input":"x"}"#).await;
    refused(answer, "a server without /v1/responses");
}

#[tokio::test]
async fn a_stream_that_breaks_off_or_fails_ends_with_an_error_event() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"hello\"}\n\n";
    let failed = "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"secret path\"}}}\n\n";
    for end in ["", failed] {
        let (node, _server) =
            scripted("text-generation", TOKENS, &[&format!("{head}{delta}{end}")]).await;
        let answer = node
            .post(RESPONSES, r#"{"model":"m","input":"x","stream":true}"#)
            .await;
        let events = answer.events();
        assert!(events[0].contains("hello"), "{events:?}");
        let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
        assert!(last["error"]["message"].is_string(), "{last}");
        assert!(!answer.text().contains("secret"), "{}", answer.text());
        let event = node.event_of(&answer).await;
        assert_eq!(event["outcome"], "cut-by-backend", "{event}");
    }
}

#[tokio::test]
async fn a_failing_server_is_a_server_error_and_costs_nothing() {
    let (node, server) = studio("openai", Dialect::Openai).await;
    server.fault(r#"{"fault":"status=500"}"#).await;
    for (path, body) in [
        (IMAGES, json!({ "model": "pictures", "prompt": "x" })),
        (SPEECH, json!({ "model": "voice", "input": "x" })),
        (RESPONSES, json!({ "model": "text", "input": "x" })),
    ] {
        let answer = node.post(path, &body.to_string()).await;
        assert!(answer.status >= 500, "{path}: {}", answer.status);
        assert!(answer.json()["error"]["type"].is_string());
        let event = node.event_of(&answer).await;
        assert_eq!(event["neurons"], Value::Null, "{event}");
    }
    let answer = send_form(
        &node,
        TRANSCRIPTIONS,
        &form(&[("model", "ears")], &sound(1)),
    )
    .await;
    assert!(answer.status >= 500, "{}", answer.status);
}

#[tokio::test]
async fn a_client_that_leaves_pays_for_its_input_and_frees_the_permit() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: audio/mpeg\r\nTransfer-Encoding: chunked\r\n\r\n";
    let server = ScriptedServer::new(&[&format!("{head}{}", chunk("sound")), &chunk("more")]).await;
    let model = model_of("m", "text-to-speech", "openai", server.address);
    let node = Node::start(&format!("models:\n{model}{TARIFF}")).await;
    let mut client = TestClient::connect(node.clients).await;
    client
        .post("", SPEECH, r#"{"model":"m","input":"four"}"#)
        .await;
    client.discard(1).await;
    drop(client);
    let event = node.events(1).await.remove(0);
    assert_eq!(event["outcome"], "cut-by-client", "{event}");
    assert_eq!(
        (&event["metrics"]["input_characters"], &event["neurons"]),
        (&json!(4), &json!(2.0))
    );
    node.idle().await;
    eventually("the server saw it", async || {
        (server.gone() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_a_server_reports_goes_before_the_gateways_count_unless_it_is_not_trusted() {
    let answer = json_answer(r#"{"text":"hi","usage":{"type":"duration","seconds":60}}"#);
    let file = form(&[("model", "m")], &sound(1));
    for (trust, seconds) in [("trust", 60.0), ("estimate", 1.0)] {
        let more = format!("    metrics_trust: {trust}\n{TARIFF}");
        let (node, _server) = scripted("automatic-speech-recognition", &more, &[&answer]).await;
        let answer = send_form(&node, TRANSCRIPTIONS, &file).await;
        let event = node.event_of(&answer).await;
        assert_eq!(
            event["metrics"]["audio_seconds"], seconds,
            "{trust}: {event}"
        );
        assert_eq!(event["neurons"], seconds * 2.0, "{trust}: {event}");
    }
}
