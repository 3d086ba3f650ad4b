//! Requests as each kind of model server gets them.

use std::borrow::Cow;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::{ApiDialect, Call, Operation, body};
use infergate_core::model::{BackendName, Payload, Task};
use serde_json::{Value, json};

use super::{BACKENDS, UpstreamRequest, backend};

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

fn shape(kind: &str, call: &Call, task: Task) -> Result<UpstreamRequest, Refusal> {
    backend(kind).unwrap().encode(call, task, "served")
}

/// Path, body and whether it streams.
fn shaped(kind: &str, call: &Call, task: Task) -> (&'static str, Value, bool) {
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

const TEXT: [&str; 3] = ["openai", "tgi", "llama-server"];

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
    for kind in ["openai", "tei", "llama-server"] {
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
            "openai",
            &chat,
            Task::TextEmbeddings,
            "does not generate text",
        ),
        (
            "openai",
            &embed,
            Task::TextGeneration,
            "does not make embeddings",
        ),
        ("tei", &chat, Task::TextGeneration, "cannot generate text"),
        (
            "tgi",
            &embed,
            Task::TextEmbeddings,
            "cannot make embeddings",
        ),
        ("tgi", &text, Task::TextEmbeddings, "cannot make embeddings"),
        (
            "openai",
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
        shaped("openai", &prompt, Task::TextGeneration),
        ("/v1/chat/completions", expected, true),
    );
    let (_, body, _) = shaped("llama-server", &prompt, Task::TextGeneration);
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
        shaped("openai", &call, Task::TextGeneration),
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
    let (_, body, _) = shaped("openai", &call, Task::TextGeneration);
    assert_eq!(body["tools"], json!([tool, tool]));
    let openai =
        json!({ "type": "json_schema", "json_schema": { "name": "response", "schema": schema } });
    assert_eq!(body["response_format"], openai);
    let call = run(json!({ "prompt": "a", "response_format": openai }));
    let (_, body, _) = shaped("openai", &call, Task::TextGeneration);
    assert_eq!(body["response_format"], openai);
}

#[test]
fn tgi_takes_a_prompt_with_its_own_names_and_without_what_it_refuses() {
    let call = run(json!({
        "prompt": "a", "max_tokens": 5, "temperature": 0, "top_p": 1, "top_k": 0, "seed": 7,
        "stop": "x", "lora": "l", "typical_p": 0.5,
    }));
    assert_eq!(
        shaped("tgi", &call, Task::TextGeneration),
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
        shaped("tgi", &call, Task::TextGeneration),
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
    for kind in ["openai", "llama-server"] {
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
        shaped("tei", &call, Task::TextEmbeddings),
        (
            "/embed",
            json!({ "inputs": ["a", "b"], "truncate": true }),
            false
        ),
    );
}

#[test]
fn an_adapter_takes_the_name_of_the_model_at_servers_that_have_it_as_one() {
    for (kind, expected) in [
        ("openai", "a"),
        ("vllm", "a"),
        ("sglang", "a"),
        ("tgi", "a"),
        ("http", "m"),
        ("triton", "m"),
        ("cog", "m"),
        ("llama-server", "m"),
        ("tei", "m"),
    ] {
        let backend = backend(kind).unwrap();
        assert_eq!(backend.served_name("m", Some("a")), expected, "{kind}");
        assert_eq!(backend.served_name("m", None), "m", "{kind}");
    }
}

#[test]
fn a_server_is_healthy_when_its_probe_path_answers_200() {
    for (kind, name, path) in [
        ("openai", "openai", "/v1/models"),
        ("tgi", "tgi", "/health"),
        ("tei", "tei", "/health"),
        ("llama-server", "llama-server", "/health"),
    ] {
        let backend = backend(kind).unwrap();
        let probe = backend.probe;
        assert_eq!((backend.name, probe.path), (name, path));
        assert!(
            (probe.is_healthy)(200, b"")
                && !(probe.is_healthy)(503, b"{}")
                && !(probe.is_healthy)(401, b"")
        );
    }
}

#[test]
fn the_table_has_a_row_a_name_and_the_core_knows_the_origin_of_each_payload() {
    for (at, row) in BACKENDS.iter().enumerate() {
        let found = BACKENDS.iter().position(|other| other.name == row.name);
        assert_eq!(found, Some(at), "{}", row.name);
        let name = BackendName::from(row.name);
        assert_eq!(name.payload(), row.payload, "{}", row.name);
        assert!(
            !row.tasks.is_empty() && !row.about.is_empty(),
            "{}",
            row.name
        );
    }
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/backends.md");
const BEGIN: &str = "<!-- backends: made from the descriptors -->\n";
const END: &str = "<!-- end of backends -->\n";

/// `INFERGATE_BLESS=1 cargo test --lib backends` writes the table anew.
#[test]
fn the_page_has_the_table_that_the_descriptors_make() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the opening mark");
    let (table, after) = rest.split_once(END).expect("the closing mark");
    let made = table_of_backends();
    if std::env::var_os("INFERGATE_BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
    } else {
        assert_eq!(table, made, "docs/backends.md: run with INFERGATE_BLESS=1");
    }
}

fn table_of_backends() -> String {
    let mut table = String::from(
        "\n| `backend` | for | tasks | posted paths | health check | metrics |\n|---|---|---|---|---|---|\n",
    );
    for row in BACKENDS {
        let quoted = |texts: &[&str]| {
            let quoted: Vec<String> = texts.iter().map(|text| format!("`{text}`")).collect();
            quoted.join(", ")
        };
        let tasks: Vec<&str> = row.tasks.iter().map(|task| task.slug()).collect();
        let tasks = match row.payload {
            Payload::Task => "all".to_owned(),
            Payload::Protocol => quoted(&tasks),
        };
        let paths = match row.paths {
            [] => "as the task says".to_owned(),
            paths => quoted(paths),
        };
        let metrics = row.probe.metrics.map(|page| format!("`{}`", page.path));
        table += &format!(
            "| `{}` | {} | {tasks} | {paths} | `GET {}` | {} |\n",
            row.name,
            row.about,
            row.probe.path,
            metrics.as_deref().unwrap_or("none")
        );
    }
    table + "\n"
}
