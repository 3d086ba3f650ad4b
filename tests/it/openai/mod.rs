//! The OpenAI face: what is answered, by every kind of server that can.

mod passing;
mod refusals;

use infergate::simulate::{self, Dialect};
use serde_json::{Value, json};

use crate::support::{
    Node, SimulatedServer, TestClient, TestResponse, accounts, chat, endpoint, model, model_of,
    one_model,
};

const CHAT: &str = "/v1/chat/completions";

async fn server(dialect: Dialect) -> SimulatedServer {
    SimulatedServer::start(simulate::Config {
        dialect,
        output_tokens: 3,
        ..simulate::Config::instant()
    })
    .await
}

/// A gateway before one simulated server of every kind, a model for each thing that kind can do.
async fn every_kind() -> (Node, Vec<SimulatedServer>) {
    let kinds = [
        ("openai", Dialect::Openai, true, true),
        ("tgi", Dialect::Tgi, true, false),
        ("tei", Dialect::Tei, false, true),
        ("llama-server", Dialect::LlamaServer, true, true),
    ];
    let (mut servers, mut models) = (Vec::new(), String::from("models:\n"));
    for (kind, dialect, text, vectors) in kinds {
        let server = server(dialect).await;
        if text {
            models += &model_of(
                &format!("text/{kind}"),
                "text-generation",
                kind,
                server.address,
            );
        }
        if vectors {
            let id = format!("vectors/{kind}");
            models += &model_of(&id, "text-embeddings", kind, server.address);
        }
        servers.push(server);
    }
    (Node::start(&models).await, servers)
}

/// The refusal in the shape every OpenAI client reads: four keys, and an id to ask about.
fn assert_refused(answer: &TestResponse, status: u16, kind: &str, code: &str) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{text}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(
        answer.header("x-request-id").map(str::len),
        Some(32),
        "{text}"
    );
    let body = answer.json();
    let error = body["error"].as_object().unwrap();
    let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["code", "message", "param", "type"]);
    assert_eq!(error["type"], kind, "{text}");
    assert_eq!(error["code"], code, "{text}");
    assert!(!error["message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn chat_is_answered_by_every_kind_of_server_that_generates_text() {
    let (node, _servers) = every_kind().await;
    for kind in ["openai", "tgi", "llama-server"] {
        let model = format!("text/{kind}");
        let answer = node.post(CHAT, &chat(&model, "")).await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["object"], "chat.completion", "{kind}");
        assert!(
            body["choices"][0]["message"]["content"].is_string(),
            "{kind}"
        );
        assert_eq!(body["usage"]["completion_tokens"], 3, "{kind}");
        assert!(answer.header("x-request-id").is_some(), "{kind}");

        let answer = node.post(CHAT, &chat(&model, r#","stream":true"#)).await;
        assert!(answer.is_event_stream(), "{kind}");
        let events = answer.events();
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{kind}");
        let first: Value = serde_json::from_str(&events[0]).unwrap();
        assert_eq!(first["object"], "chat.completion.chunk", "{kind}");
    }
    for event in node.events(6).await {
        assert_eq!(event["metrics_source"], "reported", "{event}");
        assert_eq!(event["metrics"]["output_tokens"], 3, "{event}");
    }
}

#[tokio::test]
async fn completions_are_answered_whole_and_as_a_stream() {
    let (node, _servers) = every_kind().await;
    for kind in ["openai", "tgi", "llama-server"] {
        let body = format!(r#"{{"model":"text/{kind}","prompt":"once"}}"#);
        let answer = node.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
        assert_eq!(answer.json()["object"], "text_completion", "{kind}");
        let body = format!(r#"{{"model":"text/{kind}","prompt":"once","stream":true}}"#);
        let events = node.post("/v1/completions", &body).await.events();
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{kind}");
        assert!(
            !events.iter().any(|event| event.contains(r#""choices":[]"#)),
            "{kind}"
        );
    }
}

#[tokio::test]
async fn embeddings_are_answered_as_floats_and_as_base64() {
    let (node, _servers) = every_kind().await;
    for kind in ["openai", "tei", "llama-server"] {
        let ask = async |format: &str| {
            let body = format!(
                r#"{{"model":"vectors/{kind}","input":["a","b"],"encoding_format":"{format}"}}"#
            );
            node.post("/v1/embeddings", &body).await.json()
        };
        let floats = ask("float").await;
        assert_eq!(floats["object"], "list", "{kind}: {floats}");
        assert_eq!(floats["data"].as_array().unwrap().len(), 2, "{kind}");
        assert_eq!(floats["data"][1]["index"], 1, "{kind}");
        assert_eq!(
            floats["data"][0]["embedding"].as_array().unwrap().len(),
            768,
            "{kind}"
        );
        let packed = ask("base64").await;
        // 768 floats of four bytes.
        assert_eq!(
            packed["data"][0]["embedding"].as_str().unwrap().len(),
            4096,
            "{kind}"
        );
    }
    for event in node.events(6).await {
        assert_eq!(event["metrics_source"], "reported", "{event}");
    }
}

#[tokio::test]
async fn models_are_listed_and_found_by_an_id_with_a_slash_in_either_spelling() {
    let server = SimulatedServer::fast().await;
    let config = format!(
        "{}models:\n{}{}",
        accounts(", models: [\"@cf/*\"]"),
        model(
            "\"@cf/meta/llama\"",
            &[endpoint(server.address, 1)],
            "    aliases: [llama]\n"
        ),
        model("other", &[endpoint(server.address, 1)], ""),
    );
    let node = Node::start(&config).await;
    let get = async |path: &str, key: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n");
        TestClient::exchange(node.clients, request).await
    };
    let ids = |list: &Value| -> Vec<String> {
        let data = list["data"].as_array().unwrap();
        data.iter()
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect()
    };
    let list = get("/v1/models", "key-a").await;
    assert!(list.header("x-request-id").is_some());
    let list = list.json();
    assert_eq!(list["object"], "list");
    assert_eq!(ids(&list), ["@cf/meta/llama"]);
    for key in ["id", "object", "created", "owned_by"] {
        assert!(!list["data"][0][key].is_null(), "{key}");
    }
    assert_eq!(
        ids(&get("/v1/models", "key-b").await.json()),
        ["@cf/meta/llama", "other"]
    );
    for path in [
        "@cf/meta/llama",
        "@cf%2Fmeta%2Fllama",
        "%40cf%2fmeta%2fllama",
        "llama",
    ] {
        let found = get(&format!("/v1/models/{path}"), "key-a").await;
        assert_eq!(found.status, 200, "{path}");
        assert_eq!(found.json()["id"], "@cf/meta/llama", "{path}");
    }
    for hidden in ["other", "no-such"] {
        let refused = get(&format!("/v1/models/{hidden}"), "key-a").await;
        assert_refused(&refused, 404, "invalid_request_error", "model_not_found");
    }
}

#[tokio::test]
async fn usage_is_hidden_from_a_stream_whose_client_did_not_ask_and_billed_all_the_same() {
    let server = server(Dialect::Openai).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    for asked in [
        "",
        r#","stream_options":null"#,
        r#","stream_options":{}"#,
        r#","stream_options":{"include_usage":null}"#,
        r#","stream_options":{"include_usage":false}"#,
    ] {
        let answer = node
            .post(CHAT, &chat("m", &format!(r#","stream":true{asked}"#)))
            .await;
        let events = answer.events();
        assert_eq!(events.last().unwrap(), "[DONE]", "{asked}");
        for event in &events[..events.len() - 1] {
            let event: Value = serde_json::from_str(event).unwrap();
            assert_eq!(
                event["choices"].as_array().unwrap().len(),
                1,
                "{asked}: {event}"
            );
            assert!(event["usage"].is_null(), "{asked}: {event}");
        }
    }
    for event in node.events(5).await {
        assert_eq!(event["metrics_source"], "reported");
        assert_eq!(event["metrics"]["output_tokens"], 3);
    }
}

#[tokio::test]
async fn usage_is_kept_on_a_stream_whose_client_asked_for_it() {
    let server = server(Dialect::Openai).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let more = r#","stream":true,"stream_options":{"include_usage":true}"#;
    let events = node.post(CHAT, &chat("m", more)).await.events();
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 3);
    assert_eq!(events.last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn the_body_decides_on_streaming_and_accept_never_does() {
    let server = server(Dialect::Openai).await;
    let node = Node::start(&one_model(server.address, 1, "")).await;
    let whole = node
        .post_as("Accept: text/event-stream\r\n", CHAT, &chat("m", ""))
        .await;
    assert_eq!(whole.header("content-type"), Some("application/json"));
    assert_eq!(whole.json()["object"], "chat.completion");
    let stream = chat("m", r#","stream":true"#);
    let streamed = node
        .post_as("Accept: application/json\r\n", CHAT, &stream)
        .await;
    assert!(streamed.is_event_stream());
    assert_eq!(streamed.events().last().unwrap(), "[DONE]");
}

#[tokio::test]
async fn the_openai_paths_of_an_account_are_the_keys_own() {
    let server = server(Dialect::Openai).await;
    let node = Node::start(&format!(
        "{}{}",
        accounts(""),
        one_model(server.address, 1, "")
    ))
    .await;
    let key = "Authorization: Bearer key-a\r\n";
    let path = |account: &str| format!("/client/v4/accounts/{account}/ai{CHAT}");
    let answer = node.post_as(key, &path("a"), &chat("m", "")).await;
    assert_eq!(answer.json()["object"], "chat.completion");
    let refused = node.post_as(key, &path("b"), &chat("m", "")).await;
    assert_refused(&refused, 403, "permission_error", "model_not_allowed");
}
