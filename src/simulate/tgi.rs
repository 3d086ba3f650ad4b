//! Text Generation Inference's own responses: generate, its stream, and info. Its OpenAI routes are
//! in `openai`.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Value, json};

use super::body::{EventScript, EventTail};
use super::config::Config;
use super::identity::FINGERPRINT;
use super::text::{Finish, SimulatedText};

fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "eos_token",
        Finish::Length => "length",
    }
}

/// Response to `/generate`; in a list when the request came to `/`.
pub(super) fn generate(
    text: &SimulatedText,
    prompt_tokens: u64,
    details: bool,
    list: bool,
) -> Bytes {
    let mut answer = json!({ "generated_text": text.as_str() });
    if details {
        answer["details"] = json!({
            "finish_reason": finish_reason(text.finish),
            "generated_tokens": text.tokens(),
            "input_length": prompt_tokens,
            "seed": null,
            "prefill": [],
            "tokens": [],
        });
    }
    match list {
        true => json!([answer]).to_string().into(),
        false => answer.to_string().into(),
    }
}

/// Response to `/generate_stream`: the last token's event carries the whole text and the counts,
/// and no `[DONE]` follows.
pub(super) fn stream(text: SimulatedText, prompt_tokens: u64) -> EventScript {
    let streamed = text.tokens().saturating_sub(1);
    let last = match text.tokens() {
        0 => "",
        count => text.token(count - 1),
    };
    let closing = json!({
        "index": text.tokens().max(1),
        "token": { "id": 2, "text": last, "logprob": -0.5, "special": text.tokens() == 0 },
        "generated_text": text.as_str(),
        "details": {
            "finish_reason": finish_reason(text.finish),
            "generated_tokens": text.tokens(),
            "input_length": prompt_tokens,
            "seed": null,
        },
    });
    EventScript {
        opening: None,
        before: Bytes::from_static(br#"data:{"token":{"id":1,"text":"#),
        after: Bytes::from_static(
            br#","logprob":-0.5,"special":false},"generated_text":null,"details":null,"index":"#,
        ),
        tail: EventTail::Number,
        streamed,
        closing: VecDeque::from([Bytes::from(format!("data:{closing}\n\n"))]),
        text,
    }
}

/// Response to `/info`.
pub(super) fn info(config: &Config) -> Value {
    json!({
        "model_id": config.answered_model(None),
        "model_sha": null,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": config.concurrency,
        "max_best_of": 1,
        "max_stop_sequences": 4,
        "max_input_tokens": 131_071,
        "max_total_tokens": 131_072,
        "router": FINGERPRINT,
        "version": env!("CARGO_PKG_VERSION"),
        "sha": null,
        "docker_label": null,
    })
}
