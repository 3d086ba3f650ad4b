//! The OpenAI APIs beside chat, completions and embeddings: images, speech, transcriptions, responses and reranks.
//!
//! Pictures and sounds are those of [`media`](super::media), texts those of [`text`](super::text); scores count the words
//! that a document has in common with the query. Usage is told as OpenAI does. `no_usage` in a body leaves it out.

use std::collections::VecDeque;

use bytes::Bytes;
use http::header::HeaderValue;
use infergate_core::api::form::Form;
use infergate_core::api::passed::PassedApi;
use infergate_core::api::wav;
use serde_json::{Value, json};

use super::body::{EventScript, EventTail, SimulatedAnswer, TaskOutput};
use super::config::{Config, Dialect};
use super::embedding::base64_of;
use super::identity::FINGERPRINT;
use super::media::{png, wav as tone};
use super::text::{SimulatedText, TextLength, hash};

/// Side of a picture without a given size.
const SIDE_DEFAULT: u32 = 64;
/// Pictures of one request: OpenAI's own limit.
const IMAGES_MAX: u64 = 10;
/// Documents of one request.
const DOCUMENTS_MAX: usize = 1_000;
/// Tokens of a picture.
const IMAGE_TOKENS: u64 = 100;

/// A request of one of these APIs.
#[derive(Debug)]
pub(super) struct PassedRequest {
    api: PassedApi,
    /// The body, or the fields of the form.
    json: Value,
    /// The sound of a form.
    file: Bytes,
    seed: u64,
}

/// Reads a request and the fault it carries.
pub(super) fn read(
    api: PassedApi,
    content_type: &str,
    body: &Bytes,
) -> Result<(PassedRequest, Option<String>), String> {
    let (json, file) = match api {
        PassedApi::Transcriptions | PassedApi::Translations => read_form(content_type, body)?,
        _ => {
            let json: Value =
                serde_json::from_slice(body).map_err(|error| format!("invalid body: {error}"))?;
            (json, Bytes::new())
        }
    };
    let fault = json["x_sim_fault"].as_str().map(str::to_owned);
    let request = PassedRequest {
        api,
        seed: hash(body),
        json,
        file,
    };
    Ok((request, fault))
}

fn read_form(content_type: &str, body: &Bytes) -> Result<(Value, Bytes), String> {
    let form = Form::read(content_type, body)?;
    let file = form.file("file").ok_or("file: missing")?;
    let names = [
        "model",
        "prompt",
        "response_format",
        "stream",
        "x_sim_fault",
        "no_usage",
    ];
    let mut json = json!({});
    for name in names {
        if let Ok(Some(range)) = form.field(name) {
            json[name] = String::from_utf8_lossy(&body[range]).into();
        }
    }
    Ok((json, body.slice(file)))
}

impl PassedRequest {
    pub(super) fn model(&self) -> Option<&str> {
        self.json["model"].as_str()
    }

    fn text(&self, name: &str) -> &str {
        self.json[name].as_str().unwrap_or_default()
    }

    fn is_set(&self, name: &str) -> bool {
        matches!(&self.json[name], Value::Bool(true))
            || matches!(&self.json[name], Value::String(text) if text.eq_ignore_ascii_case("true"))
    }

    fn model_name<'a>(&'a self, config: &'a Config) -> &'a str {
        config.answered_model(self.model())
    }

    fn input_tokens(&self, config: &Config, text: &str) -> u64 {
        let counted = (text.len() as u64).div_ceil(4).max(1);
        config.prompt_tokens.map_or(counted, u64::from)
    }

    /// Puts the usage where it is told.
    fn with_usage(&self, mut answer: Value, usage: Value) -> Value {
        if !self.is_set("no_usage") {
            answer["usage"] = usage;
        }
        answer
    }

    /// The answer to request `ordinal`.
    pub(super) fn answer(&self, config: &Config, ordinal: u64) -> SimulatedAnswer {
        match self.api {
            PassedApi::Images => self.images(config),
            PassedApi::Speech => self.speech(config),
            PassedApi::Transcriptions | PassedApi::Translations => self.transcript(config),
            PassedApi::Responses => self.response(config, ordinal),
            PassedApi::Rerank => SimulatedAnswer::Whole(whole(self.ranks(config), 0)),
        }
    }

    fn images(&self, config: &Config) -> SimulatedAnswer {
        let count = self.json["n"].as_u64().unwrap_or(1).clamp(1, IMAGES_MAX);
        let (width, height) = self.text("size").split_once('x').unwrap_or_default();
        let side = |text: &str| text.parse().unwrap_or(SIDE_DEFAULT);
        let picture = |at: u64| {
            base64_of(&png(
                config.seed ^ self.seed ^ at,
                side(width),
                side(height),
            ))
        };
        let input = self.input_tokens(config, self.text("prompt"));
        let usage = |images: u64| {
            let output = images * IMAGE_TOKENS;
            json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output,
                    "input_tokens_details": { "text_tokens": input, "image_tokens": 0 } })
        };
        if self.is_set("stream") {
            let mut events = VecDeque::new();
            for part in 0..self.json["partial_images"].as_u64().unwrap_or(0).min(3) {
                let kind = "image_generation.partial_image";
                let image = json!({ "type": kind, "b64_json": picture(part + 1), "partial_image_index": part });
                events.push_back(named_event(&image));
            }
            let last = json!({ "type": "image_generation.completed", "b64_json": picture(0) });
            events.push_back(named_event(&self.with_usage(last, usage(1))));
            return SimulatedAnswer::Events(fixed(events));
        }
        let image = |at: u64| match self.text("response_format") {
            "url" => json!({ "url": format!("https://images.invalid/{FINGERPRINT}-{at}.png") }),
            _ => json!({ "b64_json": picture(at) }),
        };
        let data: Vec<Value> = (0..count).map(image).collect();
        let answer = self.with_usage(
            json!({ "created": 1_700_000_000, "data": data }),
            usage(count),
        );
        SimulatedAnswer::Whole(whole(answer, 0))
    }

    fn speech(&self, config: &Config) -> SimulatedAnswer {
        let input = self.text("input");
        let sound = tone(
            config.seed ^ self.seed,
            input.split_whitespace().count() as u32,
        );
        if self.text("stream_format") != "sse" {
            return SimulatedAnswer::Whole(TaskOutput {
                content_type: HeaderValue::from_static("audio/wav"),
                body: sound.into(),
                tokens: 0,
                json_bytes: None,
            });
        }
        let half = sound.len() / 2;
        let mut events: VecDeque<Bytes> = [&sound[..half], &sound[half..]]
            .map(|part| event(&json!({ "type": "speech.audio.delta", "audio": base64_of(part) })))
            .into();
        let (input, output) = (self.input_tokens(config, input), sound.len() as u64 / 1_600);
        let usage = json!({ "input_tokens": input, "output_tokens": output, "total_tokens": input + output });
        events.push_back(event(
            &self.with_usage(json!({ "type": "speech.audio.done" }), usage),
        ));
        SimulatedAnswer::Events(fixed(events))
    }

    fn transcript(&self, config: &Config) -> SimulatedAnswer {
        let words = match self.text("prompt") {
            "" => format!("{:016x}", hash(&self.file)),
            prompt => prompt.to_owned(),
        };
        let text = simulated(config, &words, None);
        let seconds = wav::seconds(&self.file, self.file.len());
        let usage = match seconds {
            Some(seconds) => json!({ "type": "duration", "seconds": seconds }),
            None => {
                json!({ "type": "tokens", "input_tokens": 10, "output_tokens": text.tokens(), "total_tokens": 10 + text.tokens() })
            }
        };
        if self.is_set("stream") {
            let last = json!({ "type": "transcript.text.done", "text": text.as_str() });
            let closing = [event(&self.with_usage(last, usage))].into();
            let before = r#"data: {"type":"transcript.text.delta","delta":"#;
            return SimulatedAnswer::Events(script(None, before.into(), text, closing));
        }
        let words = text.as_str();
        let body = match self.text("response_format") {
            "text" => plain(format!("{words}\n")),
            "srt" => plain(format!("1\n00:00:00,000 --> 00:00:01,000\n{words}\n")),
            "vtt" => plain(format!("WEBVTT\n\n00:00.000 --> 00:01.000\n{words}\n")),
            "verbose_json" => {
                let answer = json!({ "task": "transcribe", "language": "english", "duration": seconds.unwrap_or(1.0),
                                     "text": words, "segments": [] });
                whole(answer, text.tokens())
            }
            _ => whole(
                self.with_usage(json!({ "text": words }), usage),
                text.tokens(),
            ),
        };
        SimulatedAnswer::Whole(body)
    }

    fn response(&self, config: &Config, ordinal: u64) -> SimulatedAnswer {
        let input = match &self.json["input"] {
            Value::String(text) => text.clone(),
            Value::Array(items) => items.iter().rev().find_map(content_of).unwrap_or_default(),
            _ => String::new(),
        };
        let max = self.json["max_output_tokens"]
            .as_u64()
            .map(|tokens| tokens as u32);
        let text = simulated(config, &input, max);
        let id = format!("resp-sim-{ordinal}");
        let item = format!("msg-sim-{ordinal}");
        let (prompt, output) = (self.input_tokens(config, &input), u64::from(text.tokens()));
        let usage = json!({ "input_tokens": prompt, "input_tokens_details": { "cached_tokens": 0 },
                            "output_tokens": output, "output_tokens_details": { "reasoning_tokens": 0 },
                            "total_tokens": prompt + output });
        let object = |status: &str, output: Value| {
            json!({ "id": id, "object": "response", "created_at": 1_700_000_000, "status": status, "error": null,
                    "incomplete_details": null, "instructions": null, "metadata": {}, "model": self.model_name(config),
                    "output": output, "parallel_tool_calls": true, "temperature": 1.0, "tool_choice": "auto",
                    "tools": [], "top_p": 1.0 })
        };
        let message = json!([{ "type": "message", "id": item, "status": "completed", "role": "assistant",
            "content": [{ "type": "output_text", "text": text.as_str(), "annotations": [] }] }]);
        let completed = self.with_usage(object("completed", message), usage);
        if !self.is_set("stream") {
            return SimulatedAnswer::Whole(whole(completed, text.tokens()));
        }
        let created = json!({ "type": "response.created", "sequence_number": 0, "response": object("in_progress", json!([])) });
        let before = format!(
            "event: response.output_text.delta\ndata: {{\"type\":\"response.output_text.delta\",\"sequence_number\":1,\
             \"item_id\":\"{item}\",\"output_index\":0,\"content_index\":0,\"logprobs\":[],\"delta\":"
        );
        let last =
            json!({ "type": "response.completed", "sequence_number": 2, "response": completed });
        let closing = [named_event(&last)].into();
        SimulatedAnswer::Events(script(
            Some(named_event(&created)),
            before.into(),
            text,
            closing,
        ))
    }

    fn ranks(&self, config: &Config) -> Value {
        let query = self.text("query");
        let documents = self.json["documents"]
            .as_array()
            .or(self.json["texts"].as_array());
        let texts: Vec<&str> = documents
            .into_iter()
            .flatten()
            .take(DOCUMENTS_MAX)
            .map(|one| one.as_str().or(one["text"].as_str()).unwrap_or_default())
            .collect();
        let mut ranks: Vec<(usize, f64)> = texts
            .iter()
            .map(|text| score(query, text))
            .enumerate()
            .collect();
        ranks.sort_by(|one, other| other.1.total_cmp(&one.1));
        if config.dialect == Dialect::Tei {
            let with_text = self.is_set("return_text");
            let rank = |(index, score): &(usize, f64)| match with_text {
                true => json!({ "index": index, "score": score, "text": texts[*index] }),
                false => json!({ "index": index, "score": score }),
            };
            return ranks.iter().map(rank).collect();
        }
        let top = self.json["top_n"]
            .as_u64()
            .map_or(usize::MAX, |top| top as usize);
        let rank = |(index, score): &(usize, f64)| json!({ "index": index, "document": { "text": texts[*index] }, "relevance_score": score });
        let results: Vec<Value> = ranks.iter().take(top).map(rank).collect();
        let tokens = self.input_tokens(config, &[query, &texts.concat()].concat());
        let answer =
            json!({ "id": "rerank-sim", "model": self.model_name(config), "results": results });
        self.with_usage(answer, json!({ "total_tokens": tokens }))
    }
}

/// Share of the words of `query` that stand in `text`.
fn score(query: &str, text: &str) -> f64 {
    let words: Vec<&str> = query.split_whitespace().collect();
    let found = words.iter().filter(|word| text.contains(**word)).count();
    found as f64 / words.len().max(1) as f64
}

/// Text of an item of a conversation.
fn content_of(item: &Value) -> Option<String> {
    match &item["content"] {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(
            parts
                .iter()
                .filter_map(|part| part["text"].as_str())
                .collect(),
        ),
        _ => None,
    }
}

fn simulated(config: &Config, prompt: &str, max: Option<u32>) -> SimulatedText {
    let length = TextLength {
        natural: config.output_tokens,
        max,
        ignore_end: false,
    };
    SimulatedText::answer(config.seed, prompt, length)
}

fn event(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}

fn named_event(data: &Value) -> Bytes {
    let kind = data["type"].as_str().unwrap_or_default();
    format!("event: {kind}\ndata: {data}\n\n").into()
}

/// A stream of events that are no words.
fn fixed(events: VecDeque<Bytes>) -> EventScript {
    let nothing = TextLength {
        natural: 0,
        max: None,
        ignore_end: false,
    };
    script(
        None,
        Bytes::new(),
        SimulatedText::answer(0, "", nothing),
        events,
    )
}

fn script(
    opening: Option<Bytes>,
    before: Bytes,
    text: SimulatedText,
    closing: VecDeque<Bytes>,
) -> EventScript {
    EventScript {
        opening,
        before,
        after: Bytes::from_static(b"}\n\n"),
        tail: EventTail::None,
        streamed: text.tokens(),
        closing,
        text,
    }
}

fn whole(answer: Value, tokens: u32) -> TaskOutput {
    TaskOutput {
        content_type: HeaderValue::from_static("application/json"),
        body: answer.to_string().into(),
        tokens,
        json_bytes: None,
    }
}

fn plain(text: String) -> TaskOutput {
    TaskOutput {
        content_type: HeaderValue::from_static("text/plain; charset=utf-8"),
        body: text.into(),
        tokens: 0,
        json_bytes: None,
    }
}
