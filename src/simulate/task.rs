//! The http dialect: a model behind plain HTTP that is posted a task's payload and answers its
//! result, in the shapes of the Workers AI catalogue. Payloads are hardly checked: the gateway
//! does.
//!
//! Texts, labels, boxes and vectors belong to the seed and the input. Images and sounds are real
//! ones, of [`media`](super::media). `dumb-pipe` answers what it is sent.

use std::collections::VecDeque;

use bytes::Bytes;
use clap::ValueEnum;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use serde_json::{Value, json};

use super::body::{EventScript, EventTail, TaskOutput};
use super::config::{Config, StreamUsage, Task};
use super::dialect::Operation;
use super::embedding::{base64_of, vector};
use super::media::{png, wav};
use super::request::{self, SimulatorRequest};
use super::text::{SimulatedText, TextLength, hash};
use super::usage::usage;

/// A request's own word for the task, over the server's.
const TASK_HEADER: &str = "x-sim-task";
/// `json`: an image or a sound in base64 inside JSON.
const ANSWER_HEADER: &str = "x-sim-answer";
/// Side of a picture without a given size.
const SIDE_DEFAULT: u32 = 64;
const LABELS: [&str; 6] = ["cat", "dog", "bicycle", "cup", "tree", "keyboard"];

/// A payload posted to a model.
#[derive(Debug)]
pub(super) struct TaskRequest {
    task: Task,
    /// Null where the payload is not JSON.
    json: Value,
    raw: Bytes,
    content_type: HeaderValue,
    /// Media as JSON.
    in_json: bool,
}

/// Reads the work a payload asks for and the fault it carries; the error says what is wrong with
/// it.
pub(super) fn read(
    config: &Config,
    parts: &Parts,
    body: &Bytes,
) -> Result<(SimulatorRequest, Option<String>), String> {
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let task = match (header(TASK_HEADER), config.task) {
        (Some(slug), _) => {
            Task::from_str(slug, false).map_err(|_| format!("{TASK_HEADER}: no task {slug:?}"))?
        }
        (None, Some(task)) => task,
        (None, None) => guess(&json, header("content-type").unwrap_or("")),
    };
    if matches!(task, Task::TextGeneration | Task::ImageTextToText) {
        let operation = match json.get("messages") {
            Some(_) => Operation::Chat,
            None => Operation::Completion,
        };
        return request::read(operation, body);
    }
    let fault = json.get("x_sim_fault").or(json.get("x-sim-fault"));
    let fault = fault.and_then(Value::as_str).map(str::to_owned);
    let fallback = || HeaderValue::from_static("application/octet-stream");
    let content_type = parts.headers.get(CONTENT_TYPE).cloned();
    let ask = TaskRequest {
        task,
        json,
        raw: body.clone(),
        content_type: content_type.unwrap_or_else(fallback),
        in_json: header(ANSWER_HEADER) == Some("json"),
    };
    Ok((SimulatorRequest::Task(ask), fault))
}

/// The task a payload fits best.
pub(super) fn guess(json: &Value, content_type: &str) -> Task {
    let has = |key: &str| json.get(key).is_some();
    match () {
        () if has("target_lang") => Task::Translation,
        () if has("input_text") => Task::Summarization,
        () if has("image") && (has("prompt") || has("messages")) => Task::ImageTextToText,
        () if has("prompt") || has("messages") => Task::TextGeneration,
        () if has("audio") || content_type.starts_with("audio/") => {
            Task::AutomaticSpeechRecognition
        }
        () if has("image") || content_type.starts_with("image/") => Task::ImageClassification,
        () if has("text") => Task::TextEmbeddings,
        () => Task::DumbPipe,
    }
}

/// Response to text generation.
pub(super) fn generated(text: &SimulatedText, prompt_tokens: u64) -> Bytes {
    let usage = usage(prompt_tokens, u64::from(text.tokens()));
    let response = json!(text.as_str());
    format!(r#"{{"response":{response},"usage":{usage}}}"#).into()
}

/// The same as events.
pub(super) fn generated_stream(
    text: SimulatedText,
    prompt_tokens: u64,
    reports: StreamUsage,
) -> EventScript {
    let (after, tail) = match reports {
        StreamUsage::Last => ("}\n\n", EventTail::None),
        StreamUsage::Cumulative => (r#","usage":"#, EventTail::UsageSoFar { prompt_tokens }),
        StreamUsage::Incremental => (r#","usage":"#, EventTail::UsageSince { prompt_tokens }),
    };
    let mut closing = VecDeque::new();
    if reports != StreamUsage::Incremental {
        let usage = usage(prompt_tokens, u64::from(text.tokens()));
        closing.push_back(format!("data: {{\"response\":\"\",\"usage\":{usage}}}\n\n").into());
    }
    closing.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    EventScript {
        opening: None,
        before: Bytes::from_static(b"data: {\"response\":"),
        after: after.into(),
        tail,
        streamed: text.tokens(),
        closing,
        text,
    }
}

impl TaskRequest {
    /// A payload whose members came as tensors.
    pub(super) fn of_json(task: Task, json: Value) -> TaskRequest {
        TaskRequest {
            task,
            raw: json.to_string().into(),
            json,
            content_type: HeaderValue::from_static("application/json"),
            in_json: true,
        }
    }

    /// Weights that the server has to have loaded.
    pub(super) fn weights(&self) -> Option<&str> {
        self.json.get("replicate_weights").and_then(Value::as_str)
    }

    /// The whole response.
    pub(super) fn answer(&self, config: &Config) -> TaskOutput {
        let seed = config.seed ^ hash(&self.raw);
        match self.task {
            Task::DumbPipe => TaskOutput {
                content_type: self.content_type.clone(),
                body: self.raw.clone(),
                tokens: 0,
                json_bytes: None,
            },
            Task::TextToImage => {
                let side = |key: &str| self.json[key].as_u64().map_or(SIDE_DEFAULT, |n| n as u32);
                let picture = png(seed, side("width"), side("height"));
                self.media("image", "image/png", picture)
            }
            Task::TextToSpeech => {
                let output = self.text(&["text", "prompt"]);
                let sound = wav(seed, output.split_whitespace().count() as u32);
                self.media("audio", "audio/wav", sound)
            }
            Task::TextEmbeddings | Task::MultimodalEmbeddings => whole(self.embeddings(config), 0),
            Task::TextClassification => {
                let score = score(seed);
                let labels = json!([
                    { "label": "POSITIVE", "score": score },
                    { "label": "NEGATIVE", "score": 1.0 - score },
                ]);
                whole(labels, 0)
            }
            Task::ImageClassification => whole(labels(seed), 0),
            Task::ObjectDetection => whole(boxes(seed), 0),
            _ => self.words(config),
        }
    }

    /// Tasks whose result is a text.
    fn words(&self, config: &Config) -> TaskOutput {
        let asked = self.text(&["input_text", "text", "prompt"]);
        let prompt = match asked.is_empty() {
            true => format!("{:016x}", hash(&self.raw)),
            false => asked,
        };
        let length = TextLength {
            natural: config.output_tokens,
            max: self.json["max_length"].as_u64().map(|words| words as u32),
            ignore_end: false,
        };
        let text = SimulatedText::answer(config.seed, &prompt, length);
        let output = text.as_str();
        let result = match self.task {
            Task::AutomaticSpeechRecognition => transcription(&text),
            Task::Translation => json!({ "translated_text": output }),
            Task::Summarization => json!({ "summary": output }),
            _ => json!({ "description": output }),
        };
        whole(result, text.tokens())
    }

    /// The first of these members that is a text.
    fn text(&self, keys: &[&str]) -> String {
        let found = keys.iter().find_map(|key| self.json[*key].as_str());
        found.unwrap_or_default().to_owned()
    }

    fn embeddings(&self, config: &Config) -> Value {
        let texts: Vec<String> = match &self.json["text"] {
            Value::String(text) => vec![text.clone()],
            Value::Array(list) => list
                .iter()
                .map(|text| text.as_str().unwrap_or_default().to_owned())
                .collect(),
            _ => vec![format!("{:016x}", hash(&self.raw))],
        };
        let dims = config.embedding_dims;
        let rows: Vec<Vec<f32>> = texts
            .iter()
            .map(|text| vector(config.seed, text, dims))
            .collect();
        json!({ "shape": [rows.len(), dims], "data": rows })
    }

    fn media(&self, key: &str, content_type: &'static str, bytes: Vec<u8>) -> TaskOutput {
        if self.in_json {
            return whole(json!({ key: base64_of(&bytes) }), 0);
        }
        TaskOutput {
            content_type: HeaderValue::from_static(content_type),
            body: bytes.into(),
            tokens: 0,
            json_bytes: None,
        }
    }
}

fn whole(result: Value, tokens: u32) -> TaskOutput {
    TaskOutput {
        content_type: HeaderValue::from_static("application/json"),
        body: result.to_string().into(),
        tokens,
        json_bytes: None,
    }
}

/// From 0.5 to 1, with three digits.
fn score(seed: u64) -> f64 {
    0.5 + (seed % 500) as f64 / 1_000.0
}

fn labels(seed: u64) -> Value {
    let first = seed as usize % LABELS.len();
    let score = score(seed);
    let rest = (1.0 - score) / 2.0;
    let label = |offset: usize| LABELS[(first + offset) % LABELS.len()];
    json!([
        { "label": label(0), "score": score },
        { "label": label(1), "score": rest },
        { "label": label(2), "score": rest },
    ])
}

fn boxes(seed: u64) -> Value {
    let side = 10 + seed % 90;
    json!([
        { "label": LABELS[seed as usize % LABELS.len()], "score": score(seed),
          "box": { "xmin": 1, "ymin": 2, "xmax": 1 + side, "ymax": 2 + side } },
    ])
}

/// A word every half second.
fn transcription(text: &SimulatedText) -> Value {
    let words: Vec<Value> = (0..text.tokens())
        .map(|index| {
            let start = f64::from(index) / 2.0;
            json!({ "word": text.token(index).trim(), "start": start, "end": start + 0.5 })
        })
        .collect();
    let end_ms = u64::from(text.tokens()) * 500;
    let vtt = format!(
        "WEBVTT\n\n00:00.000 --> {:02}:{:02}.{:03}\n{}\n",
        end_ms / 60_000,
        end_ms / 1_000 % 60,
        end_ms % 1_000,
        text.as_str(),
    );
    json!({ "text": text.as_str(), "word_count": text.tokens(), "words": words, "vtt": vtt })
}
