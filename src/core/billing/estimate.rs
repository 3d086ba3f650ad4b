//! The gateway's own count, from the bodies: for models whose figures are not believed, and for
//! servers that report none.
//!
//! Known in the source as Director's estimates. It has no tokenizer: a text has as many tokens as
//! words × 4/3, rounded down for each text. Input texts stand under keys that contain `prompt`,
//! as in the source, and under the other keys of our faces (`messages`, `text`, `input`,
//! `input_text`). An output that is a list of strings has a token for each, as a streaming model's
//! has. Unlike the source it looks at what it counts as an image. Total on any bytes, one pass, no
//! tree; bodies are bounded by the caller.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Texts of an answer, by the names that servers and our faces give them.
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

/// First bytes of PNG, JPEG, GIF and (after a length) WebP.
const IMAGE_MARKS: [&[u8]; 4] = [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF"];

/// Characters from which on a word of base64 is taken for a file, not for a text.
const BASE64_FILE_MIN: usize = 256;

/// Words, told piece by piece: one that is cut by the end of a piece counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WordCount {
    words: u64,
    in_word: bool,
}

impl WordCount {
    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str) {
        for character in piece.chars() {
            let in_word = !character.is_whitespace();
            self.words += u64::from(in_word && !self.in_word);
            self.in_word = in_word;
        }
    }

    /// Words so far.
    pub fn words(self) -> u64 {
        self.words
    }

    /// Tokens so far, about.
    pub fn tokens(self) -> u64 {
        tokens_of_words(self.words)
    }
}

/// Words × 4/3, rounded down.
pub fn tokens_of_words(words: u64) -> u64 {
    words.saturating_mul(4) / 3
}

/// What the bodies of a request come to: `input_tokens`, `output_tokens`, `output_images`. What was
/// not found is not there.
pub fn estimate(input: &[u8], output: &[u8]) -> Vec<(String, f64)> {
    let found = of_output(output);
    [
        ("input_tokens", input_tokens(input)),
        ("output_tokens", found.tokens),
        ("output_images", found.images),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| (name.to_owned(), count as f64))
    .collect()
}

type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

fn members(raw: &RawValue) -> Option<Members<'_>> {
    serde_json::from_str(raw.get()).ok()
}

fn list(raw: &RawValue) -> Option<Vec<&RawValue>> {
    raw.get().starts_with('[').then_some(())?;
    serde_json::from_str(raw.get()).ok()
}

/// The text of a JSON string.
fn text(raw: &RawValue) -> Option<String> {
    raw.get().starts_with('"').then_some(())?;
    serde_json::from_str(raw.get()).ok()
}

fn tokens(text: &str) -> u64 {
    tokens_of_words(text.split_whitespace().count() as u64)
}

fn input_tokens(body: &[u8]) -> u64 {
    let Ok(members) = serde_json::from_slice::<Members<'_>>(body) else {
        return 0;
    };
    let of = |(name, value): (&Cow<'_, str>, &&RawValue)| match &**name {
        "messages" => list(value).map_or(0, |all| all.into_iter().map(message_tokens).sum()),
        "text" | "input" | "input_text" => texts_tokens(value),
        name if name.contains("prompt") => texts_tokens(value),
        _ => 0,
    };
    members.iter().map(of).sum()
}

/// A text, a list of texts, or a list of what are tokens already.
fn texts_tokens(value: &RawValue) -> u64 {
    if let Some(text) = text(value) {
        return tokens(&text);
    }
    let each = |value: &RawValue| match value.get().as_bytes().first() {
        Some(b'"') => text(value).map_or(0, |text| tokens(&text)),
        Some(b'0'..=b'9') => 1,
        Some(b'[') => list(value).map_or(0, |tokens| tokens.len() as u64),
        _ => 0,
    };
    list(value).map_or(0, |all| all.into_iter().map(each).sum())
}

/// A message's content: a text, or parts with texts.
fn message_tokens(message: &RawValue) -> u64 {
    let Some(content) = members(message).and_then(|members| members.get("content").copied()) else {
        return 0;
    };
    let part = |part: &RawValue| members(part).and_then(|part| text(part.get("text")?));
    match list(content) {
        Some(parts) => parts
            .into_iter()
            .filter_map(part)
            .map(|text| tokens(&text))
            .sum(),
        None => text(content).map_or(0, |text| tokens(&text)),
    }
}

/// What was counted in an output.
#[derive(Clone, Copy, Default)]
struct Found {
    tokens: u64,
    images: u64,
}

impl Found {
    fn tokens(tokens: u64) -> Found {
        Found { tokens, images: 0 }
    }

    fn images(images: u64) -> Found {
        Found { tokens: 0, images }
    }
}

fn of_output(body: &[u8]) -> Found {
    let image = IMAGE_MARKS.iter().any(|mark| body.starts_with(mark));
    // RIFF is the container of sound too.
    let sound = body.starts_with(b"RIFF") && body.get(8..12) != Some(b"WEBP");
    if image {
        return Found::images(u64::from(!sound));
    }
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(value) => of_value(unwrapped(value)),
        Err(_) => Found::tokens(std::str::from_utf8(body).map_or(0, tokens)),
    }
}

/// Out of the envelope, and out of Cog's.
fn unwrapped(value: &RawValue) -> &RawValue {
    let Some(members) = members(value) else {
        return value;
    };
    match (
        members.get("success"),
        members.get("result"),
        members.get("output"),
    ) {
        (Some(_), Some(result), _) => result,
        (_, _, Some(output)) => output,
        _ => value,
    }
}

fn of_value(value: &RawValue) -> Found {
    if let Some(text) = text(value) {
        return of_text(&text);
    }
    if let Some(all) = list(value) {
        return of_list(&all);
    }
    members(value).map_or_else(Found::default, |members| of_members(&members))
}

fn of_text(text: &str) -> Found {
    if is_file(text) {
        return Found::images(1);
    }
    Found::tokens(tokens(text))
}

fn of_list(all: &[&RawValue]) -> Found {
    let texts: Vec<String> = all.iter().filter_map(|value| text(value)).collect();
    if !texts.is_empty() && texts.len() == all.len() {
        let count = texts.len() as u64;
        if texts.iter().all(|text| is_file(text)) {
            return Found::images(count);
        }
        return Found::tokens(count);
    }
    let each = all.iter().filter_map(|value| members(value));
    Found::tokens(each.map(|members| of_members(&members).tokens).sum())
}

fn of_members(members: &Members<'_>) -> Found {
    let named = |name: &&str| members.get(*name);
    let said = OUTPUT_TEXTS.iter().find_map(named).map_or(0, |value| {
        // A structured response is text to the model that wrote it.
        text(value).map_or_else(|| tokens(null_as_nothing(value)), |text| tokens(&text))
    });
    let choices = members.get("choices").and_then(|choices| list(choices));
    let chosen: u64 = choices
        .unwrap_or_default()
        .into_iter()
        .map(choice_tokens)
        .sum();
    let one = members.get("image").and_then(|image| text(image));
    let many = members.get("images").and_then(|images| list(images));
    let images = many.map_or(u64::from(one.is_some_and(|one| !one.is_empty())), |many| {
        many.len() as u64
    });
    Found {
        tokens: said + chosen,
        images: images + openai_images(members),
    }
}

fn null_as_nothing(value: &RawValue) -> &str {
    match value.get() {
        "null" => "",
        json => json,
    }
}

fn choice_tokens(choice: &RawValue) -> u64 {
    let Some(choice) = members(choice) else {
        return 0;
    };
    let message = choice.get("message").and_then(|message| members(message));
    let message = message.unwrap_or_default();
    let texts = [
        choice.get("text"),
        message.get("content"),
        message.get("reasoning_content"),
    ];
    let texts = texts.into_iter().flatten().filter_map(|value| text(value));
    texts.map(|text| tokens(&text)).sum()
}

/// `data: [{b64_json | url}]`
fn openai_images(members: &Members<'_>) -> u64 {
    let data = members.get("data").and_then(|data| list(data));
    let is_image = |one: &&RawValue| {
        one.get().starts_with('{')
            && self::members(one)
                .is_some_and(|one| one.contains_key("b64_json") || one.contains_key("url"))
    };
    data.unwrap_or_default()
        .iter()
        .filter(|one| is_image(one))
        .count() as u64
}

/// A data URI, an address, or a long word of base64.
fn is_file(text: &str) -> bool {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(&byte);
    let is_word = !text.contains(char::is_whitespace);
    let is_address = ["data:image/", "http://", "https://"]
        .iter()
        .any(|start| text.starts_with(start));
    is_word && (is_address || text.len() >= BASE64_FILE_MIN && text.bytes().all(is_base64))
}
