//! OpenAI responses, as vLLM and llama-server write them: chat, completions, embeddings, models.
//!
//! Usage on a stream follows the contract of `stream_options.include_usage`. On request every
//! chunk carries `"usage":null` and one more chunk with empty `choices` carries the counts;
//! otherwise there is no usage at all. [`StreamUsage`] puts counts into the chunks of tokens, as
//! vLLM's `continuous_usage_stats` does.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Value, json};

use super::body::{EventScript, EventTail};
use super::config::StreamUsage;
use super::embedding::{base64, vector};
use super::identity::FINGERPRINT;
use super::request::EmbeddingRequest;
use super::text::{Finish, SimulatedText};
use super::usage::usage;

/// Members that every object of one response carries.
pub(super) struct ResponseMembers<'a> {
    /// Number of the request: makes the id.
    pub(super) ordinal: u64,
    pub(super) created_secs: u64,
    pub(super) model: &'a str,
    pub(super) prompt_tokens: u64,
}

/// Differences between the OpenAI dialects of servers.
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

impl ResponseMembers<'_> {
    /// `{"id":…,"object":…,…,` up to the next member.
    fn members(&self, id: &str, object: &str) -> String {
        format!(
            r#"{{"id":"{id}-sim-{}","object":"{object}","created":{},"model":{},"system_fingerprint":"{FINGERPRINT}","#,
            self.ordinal,
            self.created_secs,
            quoted(self.model),
        )
    }

    fn usage(&self, text: &SimulatedText) -> String {
        usage(self.prompt_tokens, u64::from(text.tokens()))
    }
}

/// A whole chat completion.
pub(super) fn chat(head: &ResponseMembers<'_>, text: &SimulatedText) -> Bytes {
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
pub(super) fn completion(head: &ResponseMembers<'_>, text: &SimulatedText) -> Bytes {
    format!(
        r#"{}"choices":[{{"index":0,"text":{},"logprobs":null,"finish_reason":"{}"}}],"usage":{}}}"#,
        head.members("cmpl", "text_completion"),
        quoted(text.as_str()),
        finish_reason(text.finish),
        head.usage(text),
    )
    .into()
}

/// Style of a stream.
#[derive(Clone, Copy)]
pub(super) struct StreamStyle {
    pub(super) flavor: Flavor,
    /// Place of usage; none where it was not requested.
    pub(super) usage: Option<StreamUsage>,
}

impl StreamStyle {
    /// The end of a chunk, after its choices.
    fn chunk_end(self) -> &'static str {
        match self.usage {
            Some(_) => "],\"usage\":null}\n\n",
            None => "]}\n\n",
        }
    }

    /// The end of a chunk with a token, after its choices, and what follows it.
    fn token_end(self, prompt_tokens: u64) -> (&'static str, EventTail) {
        match self.usage {
            None | Some(StreamUsage::Last) => (self.chunk_end(), EventTail::None),
            Some(StreamUsage::Cumulative) => {
                ("],\"usage\":", EventTail::UsageSoFar { prompt_tokens })
            }
            Some(StreamUsage::Incremental) => {
                ("],\"usage\":", EventTail::UsageSince { prompt_tokens })
            }
        }
    }
}

/// A chat completion as events.
pub(super) fn chat_stream(
    head: &ResponseMembers<'_>,
    text: SimulatedText,
    style: StreamStyle,
) -> EventScript {
    let start = format!(
        "data: {}",
        head.members("chatcmpl", "chat.completion.chunk")
    );
    let end = style.chunk_end();
    let (token_end, tail) = style.token_end(head.prompt_tokens);
    let first_content = match style.flavor {
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
    EventScript {
        opening: Some(opening.into()),
        before: format!(r#"{start}"choices":[{{"index":0,"delta":{{"content":"#).into(),
        after: format!(r#"}},"logprobs":null,"finish_reason":null}}{token_end}"#).into(),
        tail,
        streamed: text.tokens(),
        closing: closing(head, &text, &start, finish, style),
        text,
    }
}

/// A text completion as events.
pub(super) fn completion_stream(
    head: &ResponseMembers<'_>,
    text: SimulatedText,
    style: StreamStyle,
) -> EventScript {
    let start = format!("data: {}", head.members("cmpl", "text_completion"));
    let end = style.chunk_end();
    let (token_end, tail) = style.token_end(head.prompt_tokens);
    let finish = format!(
        r#"{start}"choices":[{{"index":0,"text":"","logprobs":null,"finish_reason":"{}"}}{end}"#,
        finish_reason(text.finish)
    );
    EventScript {
        opening: None,
        before: format!(r#"{start}"choices":[{{"index":0,"text":"#).into(),
        after: format!(r#","logprobs":null,"finish_reason":null}}{token_end}"#).into(),
        tail,
        streamed: text.tokens(),
        closing: closing(head, &text, &start, finish, style),
        text,
    }
}

fn closing(
    head: &ResponseMembers<'_>,
    text: &SimulatedText,
    start: &str,
    finish: String,
    style: StreamStyle,
) -> VecDeque<Bytes> {
    let mut closing = VecDeque::from([Bytes::from(finish)]);
    if matches!(
        style.usage,
        Some(StreamUsage::Last | StreamUsage::Cumulative)
    ) {
        let timings = match style.flavor {
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
pub(super) fn embeddings(
    head: &ResponseMembers<'_>,
    ask: &EmbeddingRequest,
    seed: u64,
    dims: usize,
) -> Bytes {
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

/// An entry of the models list.
pub(super) fn model(name: &str, created_secs: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created_secs, "owned_by": FINGERPRINT })
}

/// The models list.
pub(super) fn models(name: &str, created_secs: u64) -> Value {
    json!({ "object": "list", "data": [model(name, created_secs)] })
}
