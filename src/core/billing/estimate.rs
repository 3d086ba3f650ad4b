//! The gateway's own usage estimate, from the bodies: for models whose figures are not trusted, and for
//! servers that report none.
//!
//! Known in the source as Director's estimates. Without a tokenizer: a text has
//! max(words × 4/3, UTF-8 bytes ÷ 4) tokens, rounded down for each text. Words alone would count a
//! page of Chinese or of minified code as one. Input texts stand under keys that contain `prompt`, as in
//! the source, and under the other keys of our APIs: `messages`, `text`, `input`, `input_text`, `tools`,
//! `functions`. An image or a sound beside them is [`FILE_TOKENS`]. An output that is a list of strings
//! is one text, as a streaming model's is. Unlike in the source, the content of images is checked. Total
//! on any bytes, one pass, no tree; bodies are bounded by the caller.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Texts of a response, by their names at servers and in our APIs.
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

/// Length from which on a word of base64 counts as a file, not as a text, in characters.
const BASE64_FILE_MIN: usize = 256;

/// UTF-8 bytes of a token, at most; as in `api::prompt`.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of an image or a sound that a language model reads; as in `api::prompt`.
const FILE_TOKENS: u64 = 1024;

/// Bytes of base64 that one token of generated sound comes to: 24 kHz of 16 bits are 64,000 a second,
/// of which OpenAI makes 20 tokens.
const SOUND_BYTES_PER_TOKEN: u64 = 3200;

/// Size of a text given piece by piece: a word that is cut by the end of a piece counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextCount {
    words: u64,
    in_word: bool,
    /// UTF-8.
    bytes: u64,
    /// Tokens that are no text.
    others: u64,
}

impl TextCount {
    /// Adds the next piece of the text.
    pub fn push(&mut self, piece: &str) {
        for character in piece.chars() {
            let in_word = !character.is_whitespace();
            self.words += u64::from(in_word && !self.in_word);
            self.in_word = in_word;
        }
        self.bytes += piece.len() as u64;
    }

    /// Adds generated sound, in bytes of base64: a token at least.
    pub fn push_sound(&mut self, base64_bytes: u64) {
        self.others += (base64_bytes / SOUND_BYTES_PER_TOKEN).max(1);
    }

    /// Words so far.
    pub fn words(self) -> u64 {
        self.words
    }

    /// Tokens so far, about: max(words × 4/3, bytes ÷ 4), rounded down.
    pub fn tokens(self) -> u64 {
        let by_words = self.words.saturating_mul(4) / 3;
        by_words.max(self.bytes / BYTES_PER_TOKEN) + self.others
    }
}

/// Tokens of a text, about: max(words × 4/3, bytes ÷ 4), rounded down.
fn tokens(text: &str) -> u64 {
    let mut count = TextCount::default();
    count.push(text);
    count.tokens()
}

/// Estimates `input_tokens`, `output_tokens` and `output_images` of a request from its bodies. Counts of 0
/// are absent.
pub fn estimate(input: &[u8], output: &[u8]) -> Vec<(String, f64)> {
    let found = count_output(output);
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

type MemberMap<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

fn members(raw: &RawValue) -> Option<MemberMap<'_>> {
    serde_json::from_str(raw.get()).ok()
}

fn list(raw: &RawValue) -> Option<Vec<&RawValue>> {
    raw.get().starts_with('[').then_some(())?;
    serde_json::from_str(raw.get()).ok()
}

/// Sum of `count` over the elements of a list, none of which is kept: a prompt may be millions of
/// tokens. A value that is no list has no elements.
fn sum(raw: &RawValue, count: impl Fn(&RawValue) -> u64) -> u64 {
    struct Sum<F>(F);
    impl<'de, F: Fn(&RawValue) -> u64> Visitor<'de> for Sum<F> {
        type Value = u64;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<u64, A::Error> {
            let mut sum = 0;
            while let Some(element) = list.next_element::<&RawValue>()? {
                sum += (self.0)(element);
            }
            Ok(sum)
        }
    }
    let mut json = serde_json::Deserializer::from_str(raw.get());
    json.deserialize_seq(Sum(count)).unwrap_or(0)
}

/// The text of a JSON string.
fn text(raw: &RawValue) -> Option<String> {
    raw.get().starts_with('"').then_some(())?;
    serde_json::from_str(raw.get()).ok()
}

fn text_tokens(raw: &RawValue) -> u64 {
    text(raw).map_or(0, |text| tokens(&text))
}

fn input_tokens(body: &[u8]) -> u64 {
    let Ok(members) = serde_json::from_slice::<MemberMap<'_>>(body) else {
        return 0;
    };
    let of = |(name, value): (&Cow<'_, str>, &&RawValue)| match &**name {
        "messages" => sum(value, message_tokens),
        "text" | "input" | "input_text" => texts_tokens(value),
        "tools" | "functions" => tokens(null_as_nothing(value)),
        name if name.contains("prompt") => texts_tokens(value),
        _ => 0,
    };
    let texts: u64 = members.iter().map(of).sum();
    // An image alone is what another task works on; beside a text a language model reads it.
    let image = members.get("image").filter(|_| texts > 0);
    texts + image.map_or(0, |image| file_tokens(image))
}

/// An image under its own key: base64, an address, or bytes.
fn file_tokens(value: &RawValue) -> u64 {
    match value.get() {
        "null" | "\"\"" | "[]" => 0,
        _ => FILE_TOKENS,
    }
}

/// A text, a list of texts, or a list of tokens.
fn texts_tokens(value: &RawValue) -> u64 {
    let each = |value: &RawValue| match value.get().as_bytes().first() {
        Some(b'"') => text_tokens(value),
        Some(b'0'..=b'9') => 1,
        Some(b'[') => sum(value, |_| 1),
        _ => 0,
    };
    match value.get().as_bytes().first() {
        Some(b'"') => text_tokens(value),
        _ => sum(value, each),
    }
}

/// A message's content, as a text or as parts, and its tool calls.
fn message_tokens(message: &RawValue) -> u64 {
    let Some(members) = members(message) else {
        return 0;
    };
    let called = ["tool_calls", "function_call"];
    let called = called.iter().filter_map(|name| members.get(*name));
    let called: u64 = called.map(|calls| tokens(null_as_nothing(calls))).sum();
    let Some(content) = members.get("content") else {
        return called;
    };
    let content_tokens = match content.get().starts_with('[') {
        true => sum(content, part_tokens),
        false => text_tokens(content),
    };
    content_tokens + called
}

/// A part with a text, or with an image or a sound.
fn part_tokens(part: &RawValue) -> u64 {
    let Some(part) = members(part) else {
        return 0;
    };
    let is_file = ["image_url", "input_audio", "image"]
        .iter()
        .any(|name| part.contains_key(*name));
    part.get("text").map_or(0, |text| text_tokens(text)) + if is_file { FILE_TOKENS } else { 0 }
}

/// Counts of an output.
#[derive(Clone, Copy, Default)]
struct OutputCount {
    tokens: u64,
    images: u64,
}

impl OutputCount {
    fn tokens(tokens: u64) -> OutputCount {
        OutputCount { tokens, images: 0 }
    }

    fn images(images: u64) -> OutputCount {
        OutputCount { tokens: 0, images }
    }
}

fn count_output(body: &[u8]) -> OutputCount {
    let image = IMAGE_MARKS.iter().any(|mark| body.starts_with(mark));
    // RIFF is the container of sound too.
    let sound = body.starts_with(b"RIFF") && body.get(8..12) != Some(b"WEBP");
    if image {
        return OutputCount::images(u64::from(!sound));
    }
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(value) => count_value(unwrap_envelope(value)),
        Err(_) => OutputCount::tokens(std::str::from_utf8(body).map_or(0, tokens)),
    }
}

/// Content of the envelope of Workers AI or of Cog.
fn unwrap_envelope(value: &RawValue) -> &RawValue {
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

fn count_value(value: &RawValue) -> OutputCount {
    if let Some(text) = text(value) {
        return count_text(&text);
    }
    if let Some(all) = list(value) {
        return count_list(&all);
    }
    members(value).map_or_else(OutputCount::default, |members| count_members(&members))
}

fn count_text(text: &str) -> OutputCount {
    if is_file(text) {
        return OutputCount::images(1);
    }
    OutputCount::tokens(tokens(text))
}

fn count_list(all: &[&RawValue]) -> OutputCount {
    let texts: Vec<String> = all.iter().filter_map(|value| text(value)).collect();
    if !texts.is_empty() && texts.len() == all.len() {
        let count = texts.len() as u64;
        if texts.iter().all(|text| is_file(text)) {
            return OutputCount::images(count);
        }
        return OutputCount::tokens(tokens(&texts.concat()));
    }
    let each = all.iter().filter_map(|value| members(value));
    OutputCount::tokens(each.map(|members| count_members(&members).tokens).sum())
}

fn count_members(members: &MemberMap<'_>) -> OutputCount {
    let named = |name: &&str| members.get(*name);
    let text_tokens = OUTPUT_TEXTS.iter().find_map(named).map_or(0, |value| {
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
    OutputCount {
        tokens: text_tokens + chosen,
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
        message.get("reasoning"),
        message.get("refusal"),
    ];
    let texts = texts.into_iter().flatten().map(|text| text_tokens(text));
    let sound = message.get("audio").and_then(|audio| members(audio));
    let calls = message.get("tool_calls").map_or(0, |calls| {
        sum(calls, |call| {
            let call = members(call).unwrap_or_default();
            call.get("function").map_or(0, |called| call_tokens(called))
        })
    });
    let called = message.get("function_call");
    texts.sum::<u64>()
        + sound.map_or(0, |sound| sound_tokens(&sound))
        + calls
        + called.map_or(0, |called| call_tokens(called))
}

/// `{name, arguments}`
fn call_tokens(function: &RawValue) -> u64 {
    let function = members(function).unwrap_or_default();
    let parts = ["name", "arguments"].iter();
    parts
        .filter_map(|name| function.get(*name))
        .map(|part| text_tokens(part))
        .sum()
}

/// `{data, transcript}`
fn sound_tokens(sound: &MemberMap<'_>) -> u64 {
    let data = sound.get("data").and_then(|data| text(data));
    let mut count = TextCount::default();
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        count.push_sound(data.len() as u64);
    }
    let transcript_tokens = sound.get("transcript").map_or(0, |said| text_tokens(said));
    count.tokens() + transcript_tokens
}

/// `data: [{b64_json | url}]`
fn openai_images(members: &MemberMap<'_>) -> u64 {
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
