//! Answers as model servers send them, cut anywhere, and what the client gets.

use bytes::{Bytes, BytesMut};
use infergate_core::Refusal;
use infergate_core::api::{ApiDialect, Call, Operation, body, sse};
use infergate_core::billing::{TextCount, Usage};
use infergate_core::model::Task;

use super::body_kind::{EVENT_STREAM, JSON};
use super::bounds::RESPONSE_BYTES_MAX;
use super::*;
use crate::upstream::backend;

mod pass;
mod passed;
mod posted;
mod reference;
mod run;
mod tensors;

fn chat(members: &str) -> Call {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{members}}}"#);
    body::parse(ApiDialect::OpenAi, Operation::Chat, None, Bytes::from(body)).unwrap()
}

fn run_call(json: &str) -> Call {
    let body = Bytes::copy_from_slice(json.as_bytes());
    body::parse(
        ApiDialect::WorkersAi,
        Operation::Run,
        Some("@cf/m".into()),
        body,
    )
    .unwrap()
}

fn answer_of(kind: &str, call: &Call) -> ResponseTransformer {
    backend(kind).unwrap().decoder(call, Task::TextGeneration)
}

const STREAM: &str = r#","stream":true"#;
const STREAM_WITH_USAGE: &str = r#","stream":true,"stream_options":{"include_usage":true}"#;
const EVENTS: Option<&str> = Some("text/event-stream; charset=utf-8");
const OBJECT: Option<&str> = Some("application/json");

/// Outcome of a response: the client's bytes and everything the pipeline may query.
#[derive(Debug, PartialEq)]
struct Got {
    text: String,
    result: Result<(), ResponseError>,
    usage: Option<Usage>,
    done: bool,
    token: bool,
}

fn relay<'a>(
    mut answer: ResponseTransformer,
    kind: Option<&'a str>,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Got {
    answer.begin(200, |name| {
        kind.filter(|_| name == "content-type").map(str::as_bytes)
    });
    let mut sent = BytesMut::new();
    let mut result = Ok(());
    for chunk in chunks {
        let mut out = BytesMut::new();
        let pushed = answer.push(chunk, &mut out);
        match pushed {
            Ok(PushOutput::First(len)) => {
                assert!(out.is_empty() && len > 0);
                sent.extend_from_slice(&chunk[..len]);
            }
            Ok(PushOutput::Out) => sent.extend_from_slice(&out),
            Err(error) => {
                sent.extend_from_slice(&out);
                result = Err(error);
                break;
            }
        }
    }
    result = result.and_then(|()| answer.finish(&mut sent));
    if result.is_err() {
        answer.abort(&mut sent, &Refusal::UpstreamFailed);
    }
    Got {
        text: String::from_utf8(sent.to_vec()).unwrap(),
        result,
        usage: answer.usage(),
        done: answer.is_done(),
        token: answer.has_token(),
    }
}

/// Relays `bytes` whole, cut in two at every place and byte by byte, and insists on one outcome.
fn relay_cut_anywhere(
    answer: impl Fn() -> ResponseTransformer,
    kind: Option<&str>,
    bytes: &str,
) -> Got {
    let bytes = bytes.as_bytes();
    let whole = relay(answer(), kind, [bytes]);
    for cut in 0..=bytes.len() {
        let got = relay(answer(), kind, [&bytes[..cut], &bytes[cut..]]);
        assert_eq!(got, whole, "cut at {cut}");
    }
    assert_eq!(
        relay(answer(), kind, bytes.chunks(1)),
        whole,
        "byte by byte"
    );
    whole
}

fn tokens(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage {
        input_tokens,
        output_tokens,
        ..Usage::default()
    }
}

/// vLLM's stream: role first, usage null in chunks, an extra chunk with the usage.
const VLLM_TEXT: &str = concat!(
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hé \"usage\""},"logprobs":null,"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"llo\n"},"finish_reason":"stop"}],"usage":null}"#,
    "\n\n",
);
const VLLM_USAGE: &str = concat!(
    r#"data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#,
    "\n\n",
);
const DONE: &str = "data: [DONE]\n\n";

/// llama.cpp's stream: the first content is null, timings beside the usage.
const LLAMA: &str = concat!(
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"c","model":"tiny.gguf","system_fingerprint":"b1","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"�"}}],"created":1,"id":"c","model":"tiny.gguf","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[{"finish_reason":"length","index":0,"delta":{}}],"created":1,"id":"c","model":"tiny.gguf","object":"chat.completion.chunk"}"#,
    "\n\n",
    r#"data: {"choices":[],"created":1,"id":"c","model":"tiny.gguf","object":"chat.completion.chunk","usage":{"completion_tokens":1,"prompt_tokens":11,"total_tokens":12},"timings":{"prompt_n":11,"prompt_ms":3.5,"predicted_n":1,"predicted_per_second":1e999}}"#,
    "\n\n",
    "data: [DONE]\n\n",
);

/// A whole completion, usage before choices.
const COMPLETION: &str = r#"{"id":"c","object":"chat.completion","usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9},"created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"h\u00e9","tool_calls":[]},"logprobs":null,"finish_reason":"stop"}]}"#;

#[test]
fn a_response_is_settled_with_its_end_mark_and_not_before() {
    let mut answer = answer_of("openai", &chat(STREAM));
    answer.begin(200, |name| {
        EVENTS.filter(|_| name == "content-type").map(str::as_bytes)
    });
    let mut out = BytesMut::new();
    for (event, is_settled) in [
        (
            &b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"[..],
            false,
        ),
        (
            b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n",
            false,
        ),
        (b"data: [DONE]\n\n", true),
    ] {
        assert!(answer.push(event, &mut out).is_ok());
        assert_eq!(answer.is_settled(), is_settled);
    }
    assert_eq!(answer.usage().unwrap().output_tokens, 1);
}
