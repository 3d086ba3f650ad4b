//! The Workers AI face: one dialect over every kind of server, its envelope and its codes.

use infergate::simulate::{self, Dialect};
use serde_json::{Value, json};

use crate::support::{
    Node, ScriptedServer, SimulatedServer, TestResponse, accounts, chat, endpoint, eventually,
    json_answer, model, model_of,
};

const KEY: &str = "Authorization: Bearer key-a\r\n";
const LLAMA: &str = "@cf/meta/llama";

fn run_path(model: &str) -> String {
    format!("/client/v4/accounts/a/ai/run/{model}")
}

async fn server(dialect: Dialect) -> SimulatedServer {
    let config = simulate::Config {
        dialect,
        output_tokens: 3,
        embedding_dims: 4,
        ..simulate::Config::instant()
    };
    SimulatedServer::start(config).await
}

async fn one_text_model() -> (Node, SimulatedServer) {
    let server = server(Dialect::Openai).await;
    let models = model_of(LLAMA, "text-generation", "openai", server.address);
    (
        Node::start(&format!("{}models:\n{models}", accounts(""))).await,
        server,
    )
}

/// A refusal in the envelope that the official clients unwrap.
fn assert_refused(answer: &TestResponse, status: u16, code: u64) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{text}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("x-request-id").map(str::len), Some(32));
    let body = answer.json();
    assert_eq!(body["success"], false, "{text}");
    assert_eq!(body["result"], Value::Null, "{text}");
    assert_eq!(body["messages"], json!([]), "{text}");
    assert_eq!(body["errors"].as_array().unwrap().len(), 1, "{text}");
    assert_eq!(body["errors"][0]["code"], code, "{text}");
    assert!(!body["errors"][0]["message"].as_str().unwrap().is_empty());
}

#[tokio::test]
async fn a_model_is_the_same_with_plain_and_with_encoded_slashes_and_on_the_short_path() {
    let (node, _server) = one_text_model().await;
    for path in [
        run_path("@cf/meta/llama"),
        run_path("@cf%2Fmeta%2Fllama"),
        run_path("%40cf%2fmeta/llama"),
        "/ai/run/@cf/meta/llama".to_owned(),
        "/ai/run/@cf%2Fmeta%2Fllama".to_owned(),
    ] {
        let answer = node.post_as(KEY, &path, r#"{"prompt":"hi"}"#).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.header("x-request-id").is_some());
        assert!(answer.json()["result"]["response"].is_string());
    }
    for event in node.events(5).await {
        assert_eq!(event["model_id"], LLAMA);
        assert_eq!(event["face"], "workers-ai");
        assert_eq!(event["metrics"]["output_tokens"], 3);
    }
}

#[tokio::test]
async fn text_is_generated_from_a_prompt_and_from_messages_on_every_kind_of_server() {
    for (kind, dialect) in [
        ("openai", Dialect::Openai),
        ("tgi", Dialect::Tgi),
        ("llama-server", Dialect::LlamaServer),
    ] {
        let server = server(dialect).await;
        let models = model_of(LLAMA, "text-generation", kind, server.address);
        let node = Node::start(&format!("{}models:\n{models}", accounts(""))).await;
        for input in [
            r#""prompt":"hi""#,
            r#""messages":[{"role":"user","content":"hi"}]"#,
        ] {
            let answer = node
                .post_as(
                    KEY,
                    &run_path(LLAMA),
                    &format!("{{{input},\"max_tokens\":2}}"),
                )
                .await;
            assert_eq!(answer.status, 200, "{kind} {input}: {}", answer.text());
            let body = answer.json();
            assert_eq!(body["success"], true, "{kind} {input}");
            assert_eq!(body["errors"], json!([]), "{kind} {input}");
            assert!(
                body["result"]["response"].is_string(),
                "{kind} {input}: {body}"
            );
            assert_eq!(
                body["result"]["usage"]["completion_tokens"], 2,
                "{kind} {input}: {body}"
            );

            let answer = node
                .post_as(
                    KEY,
                    &run_path(LLAMA),
                    &format!("{{{input},\"stream\":true}}"),
                )
                .await;
            assert!(answer.is_event_stream(), "{kind} {input}");
            let events = answer.events();
            assert_eq!(
                events.last().map(String::as_str),
                Some("[DONE]"),
                "{kind} {input}"
            );
            let pieces: Vec<Value> = events[..events.len() - 1]
                .iter()
                .map(|event| serde_json::from_str(event).unwrap())
                .collect();
            assert!(
                pieces.iter().all(|piece| piece["response"].is_string()),
                "{kind} {pieces:?}"
            );
            let last = pieces.last().unwrap();
            assert_eq!(
                last["usage"]["completion_tokens"], 3,
                "{kind} {input}: {last}"
            );
            let text: String = pieces
                .iter()
                .map(|p| p["response"].as_str().unwrap())
                .collect();
            assert!(!text.is_empty(), "{kind} {input}");
        }
        for event in node.events(4).await {
            assert_eq!(event["metrics_source"], "reported", "{kind}: {event}");
        }
    }
}

#[tokio::test]
async fn a_stream_says_the_same_as_the_whole_answer() {
    let (node, _server) = one_text_model().await;
    let whole = node
        .post_as(KEY, &run_path(LLAMA), r#"{"prompt":"hi"}"#)
        .await
        .json();
    let stream = node
        .post_as(KEY, &run_path(LLAMA), r#"{"prompt":"hi","stream":true}"#)
        .await;
    let text: String = stream
        .events()
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .map(|piece| piece["response"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, whole["result"]["response"].as_str().unwrap());
}

#[tokio::test]
async fn embeddings_have_a_shape_and_rows_on_every_kind_of_server() {
    for (kind, dialect) in [
        ("openai", Dialect::Openai),
        ("tei", Dialect::Tei),
        ("llama-server", Dialect::LlamaServer),
    ] {
        let server = server(dialect).await;
        let models = model_of("@cf/baai/bge", "text-embeddings", kind, server.address);
        let node = Node::start(&format!("{}models:\n{models}", accounts(""))).await;
        let ask = async |body: &str| node.post_as(KEY, &run_path("@cf/baai/bge"), body).await;
        let two = ask(r#"{"text":["a","b"]}"#).await.json();
        assert_eq!(two["success"], true, "{kind}: {two}");
        assert_eq!(two["result"]["shape"], json!([2, 4]), "{kind}");
        let rows = two["result"]["data"].as_array().unwrap();
        assert!(
            rows.iter().all(|row| row.as_array().unwrap().len() == 4),
            "{kind}"
        );
        let one = ask(r#"{"text":"a"}"#).await.json();
        assert_eq!(one["result"]["shape"], json!([1, 4]), "{kind}");
        assert_eq!(one["result"]["data"][0], rows[0], "{kind}");
    }
}

#[tokio::test]
async fn tokens_of_an_embedding_are_read_from_the_header_where_the_body_has_none() {
    let vectors = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Compute-Tokens: 7\r\n\
                   Content-Length: 11\r\n\r\n[[0.5,1.5]]";
    let backend = ScriptedServer::new(&[vectors]).await;
    let models = model_of("@cf/baai/bge", "text-embeddings", "tei", backend.address);
    let node = Node::start(&format!("{}models:\n{models}", accounts(""))).await;
    let answer = node
        .post_as(
            KEY,
            &run_path("@cf/baai/bge"),
            r#"{"text":["a"],"pooling":"cls"}"#,
        )
        .await;
    assert_eq!(
        answer.json()["result"],
        json!({ "shape": [1, 2], "data": [[0.5, 1.5]] })
    );
    let request = backend.requests().remove(0);
    assert!(request.starts_with("POST /embed HTTP/1.1\r\n"));
    assert!(
        request.ends_with(r#"{"inputs":["a"],"pooling":"cls"}"#),
        "{request}"
    );
    assert_eq!(node.events(1).await[0]["metrics"]["input_tokens"], 7);
}

#[tokio::test]
async fn the_backend_sees_the_prompt_as_chat_and_the_callers_numbers_as_written() {
    let answer = json_answer(r#"{"choices":[{"message":{"content":"x"}}]}"#);
    let backend = ScriptedServer::new(&[&answer]).await;
    let with_name = format!("{}, backend_model: q4", endpoint(backend.address, 1));
    let config = format!("{}models:\n{}", accounts(""), model("m", &[with_name], ""));
    let node = Node::start(&config).await;
    let body = r#"{"prompt":"h\u00e9","temperature":0.70,"seed":12345678901234567890,"zzz":[1],
        "x_client_id":"u","x_priority":1,"model":"other","options":{"rejectIfBusy":false}}"#;
    let answer = node.post_as(KEY, "/ai/run/m", body).await;
    assert_eq!(answer.json()["result"]["response"], "x");
    let request = backend.requests().remove(0);
    assert!(request.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
    assert_eq!(
        request.split_once("\r\n\r\n").unwrap().1,
        r#"{"model":"q4","messages":[{"role":"user","content":"h\u00e9"}],"temperature":0.70,"seed":12345678901234567890,"zzz":[1]}"#
    );
}

#[tokio::test]
async fn every_refusal_has_its_status_and_code_in_the_envelope() {
    let server = server(Dialect::Openai).await;
    let config = format!(
        "{}limits: {{ request_body_mib: 1 }}\nmodels:\n{}{}",
        accounts(", models: [\"@cf/*\"]"),
        model_of(LLAMA, "text-generation", "openai", server.address),
        model_of("hidden", "text-generation", "openai", server.address),
    );
    let node = Node::start(&config).await;
    let prompt = r#"{"prompt":"hi"}"#;
    let run = async |more: &str, model: &str, body: &str| {
        node.post_as(&format!("{KEY}{more}"), &run_path(model), body)
            .await
    };
    assert_refused(&node.post(&run_path(LLAMA), prompt).await, 401, 10000);
    assert_refused(&run("", "hidden", prompt).await, 403, 5018);
    assert_refused(&run("", "nope", prompt).await, 400, 5007);
    for body in [
        "",
        "[]",
        "{}",
        r#"{"prompt":7}"#,
        r#"{"prompt":""}"#,
        r#"{"messages":[]}"#,
    ] {
        assert_refused(&run("", LLAMA, body).await, 400, 5006);
    }
    let output = run("", LLAMA, r#"{"messages":[1]}"#).await;
    let output = output.json()["errors"][0]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(output.starts_with("/messages/0: "), "{output}");
    let big = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(1 << 20));
    assert_refused(&run("", LLAMA, &big).await, 413, 3006);
    let broken = run("x-sim-fault: reset-before-headers\r\n", LLAMA, prompt).await;
    assert_refused(&broken, 502, 3050);
    let late = run(
        "x-sim-fault: stall\r\nx-infergate-timeout-ms: 50\r\n",
        LLAMA,
        prompt,
    )
    .await;
    assert_refused(&late, 408, 3007);
    assert_eq!(late.header("x-should-retry"), Some("false"));
    for path in [
        "/client/v4/accounts/a/ai/models/search",
        "/client/v4/user",
        "/ai/run/",
        "/ai/x",
    ] {
        assert_refused(&node.post_as(KEY, path, prompt).await, 404, 7003);
    }
}

#[tokio::test]
async fn a_backends_own_refusal_comes_in_the_envelope() {
    let (node, _server) = one_text_model().await;
    for (fault, code) in [
        ("status=422", 5006),
        ("status=400", 5006),
        ("status=500", 3050),
    ] {
        let header = format!("{KEY}x-sim-fault: {fault}\r\n");
        let answer = node
            .post_as(&header, &run_path(LLAMA), r#"{"prompt":"hi"}"#)
            .await;
        let status: u16 = fault.rsplit('=').next().unwrap().parse().unwrap();
        assert_refused(&answer, status, code);
    }
}

#[tokio::test]
async fn the_account_in_the_path_must_be_the_keys_own() {
    let (node, _server) = one_text_model().await;
    for account in ["b", "A", "a%20", "", "c"] {
        let path = format!("/client/v4/accounts/{account}/ai/run/{LLAMA}");
        let refused = node.post_as(KEY, &path, r#"{"prompt":"hi"}"#).await;
        assert_refused(&refused, 403, 5018);
    }
    let path = format!("/client/v4/accounts/%61/ai/run/{LLAMA}");
    assert_eq!(
        node.post_as(KEY, &path, r#"{"prompt":"hi"}"#).await.status,
        200
    );
}

#[tokio::test]
async fn a_request_that_will_not_wait_is_refused_at_once_while_others_queue() {
    let answer = json_answer(r#"{"choices":[{"message":{"content":"x"}}]}"#);
    let backend = ScriptedServer::new(&["", &answer]).await;
    let config = format!(
        "{}models:\n{}",
        accounts(""),
        model("m", &[endpoint(backend.address, 1)], "")
    );
    let node = Node::start(&config).await;
    let mut first = node.client().await;
    first.post(KEY, "/ai/run/m", r#"{"prompt":"hi"}"#).await;
    eventually("the permit is taken", async || {
        (backend.open() == 1).then_some(())
    })
    .await;
    let no_wait = r#"{"prompt":"hi","options":{"rejectIfBusy":true}}"#;
    let refused = node.post_as(KEY, "/ai/run/m", no_wait).await;
    assert_refused(&refused, 429, 3040);
    let message = refused.json()["errors"][0]["message"].clone();
    assert_eq!(message, "Capacity temporarily exceeded, please try again.");
    assert!(refused.header("retry-after").is_some());
    let header = format!("{KEY}x-infergate-queue: reject\r\n");
    assert_refused(
        &node
            .post_as(&header, "/ai/run/m", r#"{"prompt":"hi"}"#)
            .await,
        429,
        3040,
    );
    // The same option on the OpenAI paths of the account.
    let body = chat("m", r#","options":{"rejectIfBusy":true}"#);
    let refused = node
        .post_as(KEY, "/client/v4/accounts/a/ai/v1/chat/completions", &body)
        .await;
    assert_eq!(refused.json()["error"]["code"], "out_of_capacity");
    backend.next();
    assert_eq!(first.response().await.status, 200);
    node.idle().await;
    // With a free permit it is served like any other.
    let mut free = node.client().await;
    free.post(KEY, "/ai/run/m", no_wait).await;
    eventually("it is served", async || (backend.open() == 1).then_some(())).await;
    backend.next();
    assert_eq!(free.response().await.status, 200);
}

#[tokio::test]
async fn the_openai_paths_of_an_account_answer_in_the_openai_dialect() {
    let text = server(Dialect::Openai).await;
    let vectors = server(Dialect::Tei).await;
    let config = format!(
        "{}models:\n{}{}",
        accounts(""),
        model_of(LLAMA, "text-generation", "openai", text.address),
        model_of("@cf/baai/bge", "text-embeddings", "tei", vectors.address),
    );
    let node = Node::start(&config).await;
    let post = async |path: &str, body: &str| {
        node.post_as(KEY, &format!("/client/v4/accounts/a/ai/v1/{path}"), body)
            .await
            .json()
    };
    let answer = post("chat/completions", &chat(LLAMA, "")).await;
    assert_eq!(answer["object"], "chat.completion");
    let answer = post("embeddings", r#"{"model":"@cf/baai/bge","input":"a"}"#).await;
    assert_eq!(answer["object"], "list");
    let refused = post("chat/completions", &chat("nope", "")).await;
    assert_eq!(refused["error"]["code"], "model_not_found");
    for event in node.events(3).await {
        assert_eq!(event["face"], "openai");
        assert_eq!(event["account_id"], "a");
    }
}

#[tokio::test]
async fn a_queued_request_is_refused_in_words_that_say_so() {
    let (node, server) = one_text_model().await;
    let path = format!("{}?queueRequest=true", run_path(LLAMA));
    let by_query = node
        .post_as(KEY, &path, r#"{"requests":[{"prompt":"hi"}]}"#)
        .await;
    let in_body = r#"{"prompt":"hi","options":{"queueRequest":true}}"#;
    let by_option = node.post_as(KEY, &run_path(LLAMA), in_body).await;
    for refused in [by_query, by_option] {
        assert_refused(&refused, 400, 5006);
        assert!(
            refused.text().contains("queued requests are not available"),
            "{}",
            refused.text()
        );
    }
    assert_eq!(server.stats().await["served"], 0);
}
