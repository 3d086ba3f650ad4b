//! Prices as `neurons` does, and counts for itself what a model is not trusted to report. Known in the
//! source as Director's estimates.
//!
//! There is no tokenizer: a text has max(words × 4/3, UTF-8 bytes ÷ 4) tokens, rounded down. Input texts
//! stand under keys that contain `prompt`, and under `messages`, `text`, `input`, `input_text`, `tools`,
//! `functions`; an image or a sound beside them is 1,024 tokens. An output that is a list of strings is
//! one text. Images of an output are counted by their marks, data URIs, addresses or long base64. One
//! pass over each body, no tree. No settings.

use std::collections::BTreeMap;

use infergate_sdk::{
    Billing, BillingError, Charge, Estimator, Plugin, Quantity, Settings, Tariff, Usage,
    export_estimator, price,
};
use serde_json::value::RawValue;

/// Texts of an answer, by the names that servers and the gateway's faces give them.
const OUTPUT_TEXTS: [&str; 12] = [
    "response",
    "text",
    "generated_text",
    "output_text",
    "translated_text",
    "translation_text",
    "translation",
    "summary",
    "summary_text",
    "description",
    "caption",
    "transcription",
];
/// Tokens of an image or a sound that a language model reads.
const FILE_TOKENS: u64 = 1024;
/// Bytes of base64 that one token of generated sound comes to.
const SOUND_BYTES_PER_TOKEN: u64 = 3200;
/// Characters from which on a word of base64 is taken for a file.
const BASE64_FILE_MIN: usize = 256;

type Object<'a> = BTreeMap<String, &'a RawValue>;

#[derive(Clone, Copy, Default)]
struct Counts {
    tokens: u64,
    images: u64,
}

struct Estimates;

impl Plugin for Estimates {
    fn configure(_: &mut Settings) -> Estimates {
        Estimates
    }
}

impl Billing for Estimates {
    fn price(&self, tariff: Tariff, usage: Usage) -> Result<Charge, BillingError> {
        Ok(price::linear(tariff, &usage, 1.0))
    }
}

impl Estimator for Estimates {
    fn estimate(
        &self,
        input: Vec<u8>,
        output: Vec<u8>,
        _state: Vec<u8>,
    ) -> Result<Vec<Quantity>, String> {
        let made = of_output(&output);
        let counts = [
            ("input_tokens", of_input(&input)),
            ("output_tokens", made.tokens),
            ("output_images", made.images),
        ];
        let found = counts.into_iter().filter(|(_, count)| *count > 0);
        Ok(found.map(|(name, n)| (name.into(), n as f64)).collect())
    }
}

fn tokens(text: &str) -> u64 {
    let by_words = text.split_whitespace().count() as u64 * 4 / 3;
    by_words.max(text.len() as u64 / 4)
}

fn object(value: &RawValue) -> Object<'_> {
    serde_json::from_str(value.get()).unwrap_or_default()
}

fn list(value: &RawValue) -> Option<Vec<&RawValue>> {
    let is_list = value.get().starts_with('[');
    is_list.then(|| serde_json::from_str(value.get()).ok())?
}

fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

fn text_tokens(value: &RawValue) -> u64 {
    text(value).map_or(0, |text| tokens(&text))
}

fn json_tokens(value: &RawValue) -> u64 {
    match value.get() {
        "null" => 0,
        json => tokens(json),
    }
}

fn items_of(value: &RawValue) -> impl Iterator<Item = &RawValue> {
    list(value).into_iter().flatten()
}

fn of_input(body: &[u8]) -> u64 {
    let members: Object<'_> = serde_json::from_slice(body).unwrap_or_default();
    let of_member = |(key, value): (&String, &&RawValue)| match key.as_str() {
        "messages" => items_of(value).map(of_message).sum(),
        "text" | "input" | "input_text" => of_texts(value),
        "tools" | "functions" => json_tokens(value),
        key if key.contains("prompt") => of_texts(value),
        _ => 0,
    };
    let texts: u64 = members.iter().map(of_member).sum();
    match members.get("image").map(|image| image.get()) {
        None | Some("null" | "\"\"" | "[]") => texts,
        Some(_) if texts > 0 => texts + FILE_TOKENS,
        Some(_) => texts,
    }
}

/// A text, a list of texts, or a list of what are tokens already.
fn of_texts(value: &RawValue) -> u64 {
    let of_item = |item: &RawValue| match item.get().as_bytes()[0] {
        b'0'..=b'9' => 1,
        b'[' => items_of(item).count() as u64,
        _ => text_tokens(item),
    };
    text_tokens(value) + items_of(value).map(of_item).sum::<u64>()
}

/// A message's content, a text or parts, and the calls of tools that were made in it.
fn of_message(message: &RawValue) -> u64 {
    let members = object(message);
    let called = ["tool_calls", "function_call"].into_iter();
    let called = called.filter_map(|name| members.get(name));
    let called: u64 = called.map(|calls| json_tokens(calls)).sum();
    let said = members
        .get("content")
        .map_or(0, |content| match list(content) {
            Some(parts) => parts.into_iter().map(of_part).sum(),
            None => text_tokens(content),
        });
    said + called
}

/// A part with a text, or with an image or a sound.
fn of_part(part: &RawValue) -> u64 {
    let part = object(part);
    let mut files = ["image_url", "input_audio", "image"].into_iter();
    let file = match files.any(|name| part.contains_key(name)) {
        true => FILE_TOKENS,
        false => 0,
    };
    file + part.get("text").map_or(0, |text| text_tokens(text))
}

fn of_output(body: &[u8]) -> Counts {
    let (tokens_of_text, none) = (|text: &str| tokens(text), Counts::default());
    // RIFF is the container of sound too.
    if body.starts_with(b"RIFF") {
        let images = u64::from(body.get(8..12) == Some(b"WEBP"));
        return Counts { images, ..none };
    }
    let marks: [&[u8]; 3] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8"];
    if marks.iter().any(|mark| body.starts_with(mark)) {
        return Counts { images: 1, ..none };
    }
    let Ok(value) = serde_json::from_slice::<&RawValue>(body) else {
        let tokens = std::str::from_utf8(body).map_or(0, tokens_of_text);
        return Counts { tokens, ..none };
    };
    // Out of the envelope, and out of Cog's.
    let members = object(value);
    let inner = match (members.get("success"), members.get("result")) {
        (Some(_), Some(result)) => Some(result),
        _ => members.get("output"),
    };
    of_value(inner.unwrap_or(&value))
}

fn of_value(value: &RawValue) -> Counts {
    let none = Counts::default();
    if let Some(all) = list(value) {
        return of_list(&all);
    }
    match text(value) {
        Some(text) if is_file(&text) => Counts { images: 1, ..none },
        Some(text) => Counts {
            tokens: tokens(&text),
            ..none
        },
        None => of_object(&object(value)),
    }
}

fn of_list(all: &[&RawValue]) -> Counts {
    let texts: Option<Vec<String>> = all.iter().map(|value| text(value)).collect();
    let (count, none) = (all.len() as u64, Counts::default());
    match texts {
        Some(texts) if count > 0 => match texts.iter().all(|text| is_file(text)) {
            true => Counts {
                images: count,
                ..none
            },
            false => Counts {
                tokens: tokens(&texts.concat()),
                ..none
            },
        },
        _ => Counts {
            tokens: all.iter().map(|one| of_object(&object(one)).tokens).sum(),
            ..none
        },
    }
}

fn of_object(members: &Object<'_>) -> Counts {
    let first = OUTPUT_TEXTS.iter().find_map(|name| members.get(*name));
    // A structured response is text to the model that wrote it.
    let said = first.map_or(0, |value| match (value.get(), text(value)) {
        ("null", _) => 0,
        (_, Some(text)) => tokens(&text),
        (json, None) => tokens(json),
    });
    let items = |name: &str| members.get(name).and_then(|value| list(value));
    let chosen = items("choices").into_iter().flatten().map(of_choice);
    let images = match items("images") {
        Some(images) => images.len() as u64,
        None => members.get("image").map_or(0, |image| {
            u64::from(text(image).is_some_and(|image| !image.is_empty()))
        }),
    };
    let files = items("data").into_iter().flatten().map(object);
    let files = files.filter(|one| one.contains_key("b64_json") || one.contains_key("url"));
    Counts {
        tokens: said + chosen.sum::<u64>(),
        images: images + files.count() as u64,
    }
}

fn of_choice(choice: &RawValue) -> u64 {
    let choice = object(choice);
    let message = choice
        .get("message")
        .map_or_else(Object::new, |m| object(m));
    let texts = [
        choice.get("text"),
        message.get("content"),
        message.get("reasoning_content"),
        message.get("reasoning"),
        message.get("refusal"),
    ];
    let texts = texts.into_iter().flatten();
    let calls = message.get("tool_calls").into_iter();
    let called = calls
        .flat_map(|calls| items_of(calls))
        .map(object)
        .filter_map(|call| call.get("function").copied())
        .chain(message.get("function_call").copied());
    texts.map(|text| text_tokens(text)).sum::<u64>()
        + called.map(of_called).sum::<u64>()
        + message.get("audio").map_or(0, |sound| of_sound(sound))
}

/// `{name, arguments}`
fn of_called(function: &RawValue) -> u64 {
    let function = object(function);
    let parts = ["name", "arguments"].into_iter();
    let parts = parts.filter_map(|name| function.get(name));
    parts.map(|part| text_tokens(part)).sum()
}

/// `{data, transcript}`
fn of_sound(sound: &RawValue) -> u64 {
    let sound = object(sound);
    let data = sound.get("data").and_then(|data| text(data));
    let data = data.filter(|data| !data.is_empty());
    let made = data.map_or(0, |data| (data.len() as u64 / SOUND_BYTES_PER_TOKEN).max(1));
    made + sound.get("transcript").map_or(0, |said| text_tokens(said))
}

/// A data URI, an address, or a long word of base64.
fn is_file(text: &str) -> bool {
    let starts = ["data:image/", "http://", "https://"];
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    !text.contains(char::is_whitespace)
        && (starts.iter().any(|start| text.starts_with(start))
            || text.len() >= BASE64_FILE_MIN && text.bytes().all(is_base64))
}

export_estimator!(Estimates);
