//! Servers with the OpenAI paths: any that the table has no row for.
//!
//! Extensions are not interpreted: OpenAI calls pass as they came, and a Workers AI `run` becomes
//! the chat or embeddings request that means the same. `llama-server` and TGI's chat share this
//! shape.

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::api::passed::PassedApi;
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::workers_ai::{GenerationInput, TextEmbeddings, TextGeneration};
use infergate_core::model::{Payload, Task};
use serde_json::value::RawValue;

use super::descriptor::{
    AdapterForm, Backend, BackendOperation, Probe, UpstreamRequest, accepts, answers_200,
};
use super::json_object::{JsonObject, list, quoted};
use crate::upstream::response::{
    ConvertingDecoder, OPENAI_EMBEDDINGS, OPENAI_TEXT, PassedAnswer, Passthrough, ResponseDecoder,
};

/// The row of servers with the OpenAI paths, and the base of similar backends.
pub(super) const OPENAI: Backend = Backend {
    name: "openai",
    about: "Any server with the OpenAI paths",
    tasks: &[
        Task::TextGeneration,
        Task::TextEmbeddings,
        Task::TextToImage,
        Task::TextToSpeech,
        Task::AutomaticSpeechRecognition,
        Task::TextClassification,
    ],
    payload: Payload::Protocol,
    paths: &["/v1/chat/completions", "/v1/completions", "/v1/embeddings"],
    passed: PassedApi::ALL,
    accepts,
    encode: |call, task, model| encode(call, task, model, |name| name),
    response_decoder: decoder,
    adapter_form: Some(AdapterForm::MODEL),
    probe: Probe {
        // The one path that every server of this kind has.
        path: "/v1/models",
        is_healthy: answers_200,
        metrics: None,
        report: None,
    },
};

/// Encodes any call. `rename` gives the server's own name of a Workers AI parameter.
pub(super) fn encode(
    call: &Call,
    task: Task,
    backend_model: &str,
    rename: fn(&str) -> &str,
) -> Result<UpstreamRequest, Refusal> {
    let operation = BackendOperation::from_call(call, task)?;
    match operation {
        BackendOperation::Chat
        | BackendOperation::Completions
        | BackendOperation::Embeddings
        | BackendOperation::Passed(_) => Ok(operation.pass(call, backend_model)),
        BackendOperation::RunGeneration => {
            let generation = TextGeneration::parse(&call.body)?;
            Ok(encode_generation(call, &generation, backend_model, rename))
        }
        BackendOperation::RunEmbeddings => {
            let embeddings = TextEmbeddings::parse(&call.body)?;
            Ok(UpstreamRequest {
                path: operation.openai_path().into(),
                body: embeddings_body(&embeddings, backend_model).into(),
                content_type: None,
                streams: false,
            })
        }
    }
}

/// The decoder of the response to any call.
fn decoder(call: &Call, task: Task) -> Box<dyn ResponseDecoder> {
    match BackendOperation::from_call(call, task) {
        Ok(BackendOperation::RunGeneration) => ConvertingDecoder::decoder(call, &OPENAI_TEXT),
        Ok(BackendOperation::RunEmbeddings) => ConvertingDecoder::decoder(call, &OPENAI_EMBEDDINGS),
        Ok(BackendOperation::Passed(api)) => PassedAnswer::decoder(call, api),
        _ => Passthrough::decoder(call),
    }
}

/// A Workers AI text generation as chat, or as a plain completion when the caller has applied the
/// chat template itself.
pub(super) fn encode_generation(
    call: &Call,
    generation: &TextGeneration<'_>,
    backend_model: &str,
    rename: fn(&str) -> &str,
) -> UpstreamRequest {
    // The body grows by the names put around a prompt and for streams, not by its content.
    let mut object = JsonObject::with_capacity(call.body.len() + backend_model.len() + 256);
    object.member("model", &quoted(backend_model));
    let path = match generation.input {
        GenerationInput::Messages(messages) => {
            object.member("messages", messages.get());
            "/v1/chat/completions"
        }
        GenerationInput::Prompt { text, raw: false } => {
            object.member(
                "messages",
                &format!(r#"[{{"role":"user","content":{}}}]"#, text.get()),
            );
            "/v1/chat/completions"
        }
        GenerationInput::Prompt { text, raw: true } => {
            object.member("prompt", text.get());
            "/v1/completions"
        }
    };
    for (name, value) in &generation.parameters {
        match &**name {
            "tools" => object.member(name, &tools(value)),
            "response_format" => object.member(name, &response_format(value)),
            name => object.member(rename(name), value.get()),
        }
    }
    if call.stream {
        object.member("stream", "true");
        object.member("stream_options", call.stream_options_json());
    }
    UpstreamRequest {
        path: path.into(),
        body: object.finish().into(),
        content_type: None,
        streams: call.stream,
    }
}

fn embeddings_body(embeddings: &TextEmbeddings<'_>, backend_model: &str) -> String {
    let texts = list(embeddings.texts.iter().map(|text| text.get()));
    let mut object = JsonObject::with_capacity(texts.len() + backend_model.len() + 128);
    object.member("model", &quoted(backend_model));
    object.member("input", &texts);
    for (name, value) in &embeddings.parameters {
        if name != "encoding_format" {
            object.member(name, value.get());
        }
    }
    // The result is lists of numbers.
    object.member("encoding_format", "\"float\"");
    object.finish()
}

/// Workers AI also takes a bare `{name, description, parameters}` for a function.
fn tools(raw: &RawValue) -> String {
    let tools: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
    let wrapped: Vec<String> = tools
        .iter()
        .map(|tool| match member(tool.get(), "function") {
            Some(_) => tool.get().to_owned(),
            None => format!(r#"{{"type":"function","function":{}}}"#, tool.get()),
        })
        .collect();
    list(wrapped.iter().map(String::as_str))
}

/// Workers AI puts the schema itself where OpenAI has `{name, schema}`.
fn response_format(raw: &RawValue) -> String {
    match member(raw.get(), "json_schema") {
        Some(schema) if member(&schema, "schema").is_none() => format!(
            r#"{{"type":"json_schema","json_schema":{{"name":"response","schema":{schema}}}}}"#
        ),
        _ => raw.get().to_owned(),
    }
}

fn member(json: &str, name: &'static str) -> Option<String> {
    let mut scan = MemberScanner::new(name);
    let value = scan.push(json.as_bytes())?;
    Some(String::from_utf8_lossy(value).into_owned())
}
