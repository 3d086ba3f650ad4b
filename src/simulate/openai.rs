//! The OpenAI answers, as vLLM and llama-server write them: chat, completions, embeddings, models.
//!
//! Usage on a stream follows the contract of `stream_options.include_usage`: asked for, every
//! chunk carries `"usage":null` and one more chunk with empty `choices` carries the counts; not
//! asked for, there is no usage at all.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Value, json};

use super::FINGERPRINT;
use super::body::Script;
use super::embedding::{base64, vector};
use super::request::EmbeddingAsk;
use super::text::{Finish, Text};

/// What every object of one answer carries.
pub(super) struct Head<'a> {
    /// Number of the request: makes the id.
    pub(super) ordinal: u64,
    pub(super) created_secs: u64,
    pub(super) model: &'a str,
    pub(super) prompt_tokens: u64,
}

/// What one dialect of OpenAI does differently from another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavor {
    /// The first delta's content is an empty string.
    Vllm,
    /// The first delta's content is null; the usage chunk carries `timings`.
    LlamaServer,
}

pub(super) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string serializes")
}

impl Head<'_> {
    /// `{"id":…,"object":…,…,` up to the next member.
    fn members(&self, id: &str, object: &str) -> String {
        format!(
            r#"{{"id":"{id}-sim-{}","object":"{object}","created":{},"model":{},"system_fingerprint":"{FINGERPRINT}","#,
            self.ordinal,
            self.created_secs,
            quoted(self.model),
        )
    }

    fn usage(&self, text: &Text) -> String {
        let (prompt, output) = (self.prompt_tokens, u64::from(text.tokens()));
        format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{output},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":0}}}}"#,
            prompt + output
        )
    }
}

/// A whole chat completion.
pub(super) fn chat(head: &Head<'_>, text: &Text) -> Bytes {
    format!(
        r#"{}"choices":[{{"index":0,"message":{{"role":"assistant","content":{}}},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}}"#,
        head.members("chatcmpl", "chat.completion"),
        quoted(text.as_str()),
        finish_reason(text.finish),
        head.usage(text),
    )
    .into()
}

/// A whole text completion.
pub(super) fn completion(head: &Head<'_>, text: &Text) -> Bytes {
    format!(
        r#"{}"choices":[{{"index":0,"text":{},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}}"#,
        head.members("cmpl", "text_completion"),
        quoted(text.as_str()),
        finish_reason(text.finish),
        head.usage(text),
    )
    .into()
}

/// The end of a chunk, after its choices.
fn chunk_end(include_usage: bool) -> &'static str {
    if include_usage {
        "],\"usage\":null}\n\n"
    } else {
        "]}\n\n"
    }
}

/// A chat completion as events.
pub(super) fn chat_stream(
    head: &Head<'_>,
    text: Text,
    include_usage: bool,
    flavor: Flavor,
) -> Script {
    let start = format!(
        "data: {}",
        head.members("chatcmpl", "chat.completion.chunk")
    );
    let end = chunk_end(include_usage);
    let first_content = match flavor {
        Flavor::Vllm => r#""""#,
        Flavor::LlamaServer => "null",
    };
    let opening = format!(
        r#"{start}"choices":[{{"index":0,"delta":{{"role":"assistant","content":{first_content}}},"logprobs":null,"finish_reason":null}}{end}"#
    );
    let finish = format!(
        r#"{start}"choices":[{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"{}"}}{end}"#,
        finish_reason(text.finish)
    );
    Script {
        opening: Some(opening.into()),
        before: format!(r#"{start}"choices":[{{"index":0,"delta":{{"content":"#).into(),
        after: format!(r#"}},"logprobs":null,"finish_reason":null}}{end}"#).into(),
        numbered: false,
        streamed: text.tokens(),
        closing: closing(head, &text, &start, finish, include_usage, flavor),
        text,
    }
}

/// A text completion as events.
pub(super) fn completion_stream(
    head: &Head<'_>,
    text: Text,
    include_usage: bool,
    flavor: Flavor,
) -> Script {
    let start = format!("data: {}", head.members("cmpl", "text_completion"));
    let end = chunk_end(include_usage);
    let finish = format!(
        r#"{start}"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"{}"}}{end}"#,
        finish_reason(text.finish)
    );
    Script {
        opening: None,
        before: format!(r#"{start}"choices":[{{"index":0,"text":"#).into(),
        after: format!(r#","logprobs":null,"finish_reason":null}}{end}"#).into(),
        numbered: false,
        streamed: text.tokens(),
        closing: closing(head, &text, &start, finish, include_usage, flavor),
        text,
    }
}

fn closing(
    head: &Head<'_>,
    text: &Text,
    start: &str,
    finish: String,
    include_usage: bool,
    flavor: Flavor,
) -> VecDeque<Bytes> {
    let mut closing = VecDeque::from([Bytes::from(finish)]);
    if include_usage {
        let timings = match flavor {
            Flavor::Vllm => String::new(),
            Flavor::LlamaServer => format!(
                r#","timings":{{"prompt_n":{},"predicted_n":{}}}"#,
                head.prompt_tokens,
                text.tokens()
            ),
        };
        let usage = head.usage(text);
        closing.push_back(format!("{start}\"choices\":[],\"usage\":{usage}{timings}}}\n\n").into());
    }
    closing.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    closing
}

/// A list of embeddings.
pub(super) fn embeddings(head: &Head<'_>, ask: &EmbeddingAsk, seed: u64, dims: usize) -> Bytes {
    let dims = ask.dimensions.unwrap_or(dims).min(dims);
    let one = |(index, input): (usize, &String)| {
        let vector = vector(seed, input, dims);
        let embedding = match ask.base64 {
            true => Value::String(base64(&vector)),
            false => json!(vector),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    let data: Vec<Value> = ask.inputs.iter().enumerate().map(one).collect();
    json!({
        "id": format!("embd-sim-{}", head.ordinal),
        "object": "list",
        "created": head.created_secs,
        "model": head.model,
        "system_fingerprint": FINGERPRINT,
        "data": data,
        "usage": { "prompt_tokens": head.prompt_tokens, "total_tokens": head.prompt_tokens },
    })
    .to_string()
    .into()
}

/// One entry of the models list.
pub(super) fn model(name: &str, created_secs: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created_secs, "owned_by": FINGERPRINT })
}

/// The models list.
pub(super) fn models(name: &str, created_secs: u64) -> Value {
    json!({ "object": "list", "data": [model(name, created_secs)] })
}
