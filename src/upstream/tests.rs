//! Requests as each kind of model server gets them.

use std::borrow::Cow;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::{ApiDialect, Call, Operation, body};
use infergate_core::model::{BackendKind, Task};
use serde_json::{Value, json};

use super::{UpstreamRequest, backend};

fn openai_call(operation: Operation, json: Value) -> Call {
    body::parse(
        ApiDialect::OpenAi,
        operation,
        None,
        Bytes::from(json.to_string()),
    )
    .unwrap()
}

fn run(json: Value) -> Call {
    let body = Bytes::from(json.to_string());
    body::parse(
        ApiDialect::WorkersAi,
        Operation::Run,
        Some("@cf/m".into()),
        body,
    )
    .unwrap()
}

fn shape(kind: BackendKind, call: &Call, task: Task) -> Result<UpstreamRequest, Refusal> {
    backend(kind).unwrap().encode(call, task, "served")
}

/// Path, body and whether it streams.
fn shaped(kind: BackendKind, call: &Call, task: Task) -> (&'static str, Value, bool) {
    let shaped = shape(kind, call, task).unwrap();
    let Cow::Borrowed(path) = shaped.path else {
        panic!("{kind:?} has paths of its own")
    };
    (
        path,
        serde_json::from_slice(&shaped.body).unwrap(),
        shaped.streams,
    )
}

const TEXT: [BackendKind; 3] = [
    BackendKind::Openai,
    BackendKind::Tgi,
    BackendKind::LlamaServer,
];

#[test]
fn openai_calls_pass_with_the_model_renamed_and_usage_asked() {
    let call = openai_call(
        Operation::Chat,
        json!({ "model": "m", "messages": [], "new_field": 1, "x_priority": 2, "stream": true }),
    );
    for kind in TEXT {
        let (path, body, streams) = shaped(kind, &call, Task::TextGeneration);
        assert_eq!((path, streams), ("/v1/chat/completions", true));
        assert_eq!(
            body,
            json!({ "model": "served", "messages": [], "new_field": 1, "stream": true, "stream_options": { "include_usage": true } }),
        );
    }
    let call = openai_call(
        Operation::Completions,
        json!({ "model": "m", "prompt": "a" }),
    );
    for kind in TEXT {
        let (path, body, streams) = shaped(kind, &call, Task::TextGeneration);
        assert_eq!((path, streams), ("/v1/completions", false));
        assert_eq!(body, json!({ "model": "served", "prompt": "a" }));
    }
    let call = openai_call(
        Operation::Embeddings,
        json!({ "model": "m", "input": "a", "encoding_format": "base64" }),
    );
    for kind in [
        BackendKind::Openai,
        BackendKind::Tei,
        BackendKind::LlamaServer,
    ] {
        let (path, body, _) = shaped(kind, &call, Task::TextEmbeddings);
        assert_eq!(path, "/v1/embeddings");
        assert_eq!(
            body,
            json!({ "model": "served", "input": "a", "encoding_format": "base64" })
        );
    }
}

#[test]
fn what_a_model_or_its_server_cannot_do_is_refused_in_words() {
    let chat = openai_call(Operation::Chat, json!({ "model": "m", "messages": [] }));
    let embed = openai_call(Operation::Embeddings, json!({ "model": "m", "input": "a" }));
    let text = run(json!({ "text": "a" }));
    for (kind, call, task, words) in [
        (
            BackendKind::Openai,
            &chat,
            Task::TextEmbeddings,
            "does not generate text",
        ),
        (
            BackendKind::Openai,
            &embed,
            Task::TextGeneration,
            "does not make embeddings",
        ),
        (
            BackendKind::Tei,
            &chat,
            Task::TextGeneration,
            "cannot generate text",
        ),
        (
            BackendKind::Tgi,
            &embed,
            Task::TextEmbeddings,
            "cannot make embeddings",
        ),
        (
            BackendKind::Tgi,
            &text,
            Task::TextEmbeddings,
            "cannot make embeddings",
        ),
        (
            BackendKind::Openai,
            &text,
            Task::TextGeneration,
            "`prompt` or `messages`",
        ),
    ] {
        match shape(kind, call, task) {
            Err(Refusal::BadRequest { message, .. }) => {
                assert!(message.contains(words), "{message}")
            }
            other => panic!("{kind:?}: {other:?}"),
        }
    }
}

#[test]
fn a_prompt_becomes_one_user_message_and_messages_stay() {
    let prompt =
        run(json!({ "prompt": "a", "max_tokens": 5, "repetition_penalty": 1.5, "stream": true }));
    let message = json!([{ "role": "user", "content": "a" }]);
    let expected = json!({
        "model": "served", "messages": message, "max_tokens": 5, "repetition_penalty": 1.5,
        "stream": true, "stream_options": { "include_usage": true },
    });
    assert_eq!(
        shaped(BackendKind::Openai, &prompt, Task::TextGeneration),
        ("/v1/chat/completions", expected, true),
    );
    let (_, body, _) = shaped(BackendKind::LlamaServer, &prompt, Task::TextGeneration);
    assert_eq!(
        (&body["repeat_penalty"], &body["repetition_penalty"]),
        (&json!(1.5), &Value::Null)
    );
    let messages = run(json!({ "messages": message, "x_client_id": "c", "zzz": null }));
    for kind in TEXT {
        assert_eq!(
            shaped(kind, &messages, Task::TextGeneration),
            (
                "/v1/chat/completions",
                json!({ "model": "served", "messages": message }),
                false
            ),
        );
    }
}

#[test]
fn a_raw_prompt_gets_no_template() {
    let call = run(json!({ "prompt": "<s>a", "raw": true }));
    assert_eq!(
        shaped(BackendKind::Openai, &call, Task::TextGeneration),
        (
            "/v1/completions",
            json!({ "model": "served", "prompt": "<s>a" }),
            false
        ),
    );
}

#[test]
fn tools_and_schemas_are_put_into_the_openai_shape() {
    let function = json!({ "name": "f", "parameters": {} });
    let tool = json!({ "type": "function", "function": function });
    let schema = json!({ "type": "object" });
    let call = run(json!({
        "prompt": "a", "tools": [function, tool],
        "response_format": { "type": "json_schema", "json_schema": schema },
    }));
    let (_, body, _) = shaped(BackendKind::Openai, &call, Task::TextGeneration);
    assert_eq!(body["tools"], json!([tool, tool]));
    let openai =
        json!({ "type": "json_schema", "json_schema": { "name": "response", "schema": schema } });
    assert_eq!(body["response_format"], openai);
    let call = run(json!({ "prompt": "a", "response_format": openai }));
    let (_, body, _) = shaped(BackendKind::Openai, &call, Task::TextGeneration);
    assert_eq!(body["response_format"], openai);
}

#[test]
fn tgi_takes_a_prompt_with_its_own_names_and_without_what_it_refuses() {
    let call = run(json!({
        "prompt": "a", "max_tokens": 5, "temperature": 0, "top_p": 1, "top_k": 0, "seed": 7,
        "stop": "x", "lora": "l", "typical_p": 0.5,
    }));
    assert_eq!(
        shaped(BackendKind::Tgi, &call, Task::TextGeneration),
        (
            "/generate",
            json!({ "inputs": "a", "parameters": {
                "max_new_tokens": 5, "seed": 7, "stop": ["x"], "adapter_id": "l", "typical_p": 0.5,
                "details": true,
            } }),
            false,
        ),
    );
    let call = run(
        json!({ "prompt": "a", "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "stream": true }),
    );
    assert_eq!(
        shaped(BackendKind::Tgi, &call, Task::TextGeneration),
        (
            "/generate_stream",
            json!({ "inputs": "a", "parameters": {
                "temperature": 0.5, "top_p": 0.9, "stop": ["x"], "details": true,
            } }),
            true,
        ),
    );
}

#[test]
fn texts_become_the_input_of_each_embeddings_server() {
    let call = run(json!({ "text": "a", "encoding_format": "base64", "stream": true }));
    for kind in [BackendKind::Openai, BackendKind::LlamaServer] {
        assert_eq!(
            shaped(kind, &call, Task::TextEmbeddings),
            (
                "/v1/embeddings",
                json!({ "model": "served", "input": ["a"], "encoding_format": "float" }),
                false,
            ),
        );
    }
    let call = run(json!({ "text": ["a", "b"], "truncate": true }));
    assert_eq!(
        shaped(BackendKind::Tei, &call, Task::TextEmbeddings),
        (
            "/embed",
            json!({ "inputs": ["a", "b"], "truncate": true }),
            false
        ),
    );
}

#[test]
fn a_server_is_healthy_when_its_probe_path_answers_200() {
    for (kind, name, path) in [
        (BackendKind::Openai, "openai", "/v1/models"),
        (BackendKind::Tgi, "tgi", "/health"),
        (BackendKind::Tei, "tei", "/health"),
        (BackendKind::LlamaServer, "llama-server", "/health"),
    ] {
        let backend = backend(kind).unwrap();
        let probe = backend.probe();
        assert_eq!((backend.name(), probe.path), (name, path));
        assert!(
            (probe.healthy)(200, b"") && !(probe.healthy)(503, b"{}") && !(probe.healthy)(401, b"")
        );
    }
    assert!(backend(BackendKind::Triton).is_none());
}
