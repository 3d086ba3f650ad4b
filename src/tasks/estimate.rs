//! The gateway's own usage estimate, from the bodies: for models whose figures are not trusted, and for
//! servers that report none.
//!
//! Known in the source as Director's estimates. Without a tokenizer: a text has
//! max(words × 4/3, UTF-8 bytes ÷ 4) tokens, rounded down for each text. Words alone would count a
//! page of Chinese or of minified code as one. Input texts stand under keys that contain `prompt`, as in
//! the source, and under the other keys of our APIs: `messages`, `text`, `input`, `input_text`, `tools`,
//! `functions`. An image or a sound beside them is `FILE_TOKENS`. An output that is a list of strings
//! is one text, as a streaming model's is. Unlike in the source, the content of images is checked. Total
//! on any bytes, one pass, no tree; bodies are bounded by the caller.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;

use crate::json::{
    Members, member, parse_list, parse_object, parse_string, parse_value, scan_members, sum_of_list,
};

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

/// UTF-8 bytes of a token, at most; also in the gateway's estimate of prompts.
const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of an image or a sound that a language model reads; also in the gateway's estimate of prompts.
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
    let counted = count_output(output);
    [
        ("input_tokens", input_tokens(input)),
        ("output_tokens", counted.tokens),
        ("output_images", counted.images),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(name, count)| (name.to_owned(), count as f64))
    .collect()
}

fn text_tokens(json: &str) -> u64 {
    parse_string(json).map_or(0, |text| tokens(&text))
}

fn input_tokens(body: &[u8]) -> u64 {
    let Some(members) = Members::parse(body) else {
        return 0;
    };
    let of = |(name, json): (&str, &str)| match name {
        "messages" => sum_of_list(json, message_tokens),
        "text" | "input" | "input_text" | "text_input" => texts_tokens(json),
        "tools" | "functions" => json_tokens(json),
        name if name.contains("prompt") => texts_tokens(json),
        _ => 0,
    };
    let texts: u64 = members.iter().map(of).sum();
    // An image alone is what another task works on; beside a text a language model reads it.
    let image = members.get("image").filter(|_| texts > 0);
    texts + image.map_or(0, file_tokens)
}

/// An image under its own key: base64, an address, or bytes.
fn file_tokens(json: &str) -> u64 {
    match json {
        "\"\"" | "[]" => 0,
        _ => FILE_TOKENS,
    }
}

/// Tokens of a structured value, which is a text to the model; null is nothing.
fn json_tokens(json: &str) -> u64 {
    match json {
        "null" => 0,
        json => tokens(json),
    }
}

/// A text, a list of texts, or a list of tokens.
fn texts_tokens(json: &str) -> u64 {
    let each = |json: &str| match json.as_bytes().first() {
        Some(b'"') => text_tokens(json),
        Some(b'0'..=b'9') => 1,
        Some(b'[') => sum_of_list(json, |_| 1),
        _ => 0,
    };
    match json.as_bytes().first() {
        Some(b'"') => text_tokens(json),
        _ => sum_of_list(json, each),
    }
}

/// A message's content, as a text or as parts, and its tool calls.
fn message_tokens(message: &str) -> u64 {
    let Some(members) = parse_object(message) else {
        return 0;
    };
    let calls = ["tool_calls", "function_call"];
    let calls = calls.iter().filter_map(|name| members.get(name));
    let call_tokens: u64 = calls.map(json_tokens).sum();
    let Some(content) = members.get("content") else {
        return call_tokens;
    };
    let content_tokens = match content.starts_with('[') {
        true => sum_of_list(content, part_tokens),
        false => text_tokens(content),
    };
    content_tokens + call_tokens
}

/// A part with a text, or with an image or a sound.
fn part_tokens(part: &str) -> u64 {
    let Some(part) = parse_object(part) else {
        return 0;
    };
    let is_file = ["image_url", "input_audio", "image"]
        .iter()
        .any(|name| part.get_raw(name).is_some());
    part.get("text").map_or(0, text_tokens) + if is_file { FILE_TOKENS } else { 0 }
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
    let Ok(text) = core::str::from_utf8(body) else {
        return OutputCount::default();
    };
    match parse_value(text) {
        Some(json) => count_value(unwrap_envelope(json)),
        None => OutputCount::tokens(tokens(text)),
    }
}

/// Content of the envelope of Workers AI or of Cog.
fn unwrap_envelope(json: &str) -> &str {
    let (mut has_success, mut result, mut output) = (false, None, None);
    let scanned = scan_members(json, |name, value| {
        match &*name {
            "success" => has_success = true,
            "result" => result = Some(value.get()),
            "output" => output = Some(value.get()),
            _ => {}
        }
        Ok(())
    });
    if scanned.is_err() {
        return json;
    }
    result.filter(|_| has_success).or(output).unwrap_or(json)
}

fn count_value(json: &str) -> OutputCount {
    if let Some(text) = parse_string(json) {
        return count_text(&text);
    }
    if let Some(all) = parse_list(json) {
        return count_list(&all);
    }
    parse_object(json).map_or_else(OutputCount::default, |members| count_members(&members))
}

fn count_text(text: &str) -> OutputCount {
    if is_file(text) {
        return OutputCount::images(1);
    }
    OutputCount::tokens(tokens(text))
}

fn count_list(all: &[&str]) -> OutputCount {
    let texts: Vec<_> = all.iter().filter_map(|json| parse_string(json)).collect();
    if !texts.is_empty() && texts.len() == all.len() {
        let count = texts.len() as u64;
        if texts.iter().all(|text| is_file(text)) {
            return OutputCount::images(count);
        }
        return OutputCount::tokens(tokens(&texts.concat()));
    }
    let each = all.iter().filter_map(|json| parse_object(json));
    OutputCount::tokens(each.map(|members| count_members(&members).tokens).sum())
}

fn count_members(members: &Members<'_>) -> OutputCount {
    let text = OUTPUT_TEXTS.iter().find_map(|name| members.get_raw(name));
    let text_tokens = text.map_or(0, |json| {
        // A structured response is text to the model that wrote it.
        parse_string(json).map_or_else(|| json_tokens(json), |text| tokens(&text))
    });
    let choices = members.get("choices").and_then(parse_list);
    let choices = choices.unwrap_or_default().into_iter();
    let one = members.get("image").and_then(parse_string);
    let many = members.get("images").and_then(parse_list);
    let images = many.map_or(u64::from(one.is_some_and(|one| !one.is_empty())), |many| {
        many.len() as u64
    });
    OutputCount {
        tokens: text_tokens + choices.map(choice_tokens).sum::<u64>(),
        images: images + openai_images(members),
    }
}

fn choice_tokens(choice: &str) -> u64 {
    let Some(choice) = parse_object(choice) else {
        return 0;
    };
    let message = choice.get("message").and_then(parse_object);
    let message = message.unwrap_or_default();
    let texts = [
        choice.get("text"),
        message.get("content"),
        message.get("reasoning_content"),
        message.get("reasoning"),
        message.get("refusal"),
    ];
    let texts = texts.into_iter().flatten().map(text_tokens);
    let sound = message.get("audio").and_then(parse_object);
    let calls = message.get("tool_calls").map_or(0, |calls| {
        sum_of_list(calls, |call| {
            member(call, "function").map_or(0, call_tokens)
        })
    });
    let call = message.get("function_call");
    texts.sum::<u64>()
        + sound.map_or(0, |sound| sound_tokens(&sound))
        + calls
        + call.map_or(0, call_tokens)
}

/// `{name, arguments}`
fn call_tokens(function: &str) -> u64 {
    let function = parse_object(function).unwrap_or_default();
    let parts = ["name", "arguments"].iter();
    parts
        .filter_map(|name| function.get(name))
        .map(text_tokens)
        .sum()
}

/// `{data, transcript}`
fn sound_tokens(sound: &Members<'_>) -> u64 {
    let data = sound.get("data").and_then(parse_string);
    let mut count = TextCount::default();
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        count.push_sound(data.len() as u64);
    }
    count.tokens() + sound.get("transcript").map_or(0, text_tokens)
}

/// `data: [{b64_json | url}]`
fn openai_images(members: &Members<'_>) -> u64 {
    let data = members.get("data").and_then(parse_list);
    let has = |one: &Members<'_>, name| one.get_raw(name).is_some();
    let is_image =
        |one: &&str| parse_object(one).is_some_and(|one| has(&one, "b64_json") || has(&one, "url"));
    data.unwrap_or_default()
        .into_iter()
        .filter(is_image)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_a_request_to_generate_counts() {
        let tokens = |body: &str| estimate(body.as_bytes(), b"")[0].1;
        let named = tokens(r#"{"text_input":"a prompt of some length"}"#);
        assert!(named > 0.0);
        // An empty one hides no other.
        let hidden = tokens(r#"{"text_input":"","prompt":"a prompt of some length"}"#);
        assert_eq!(hidden, named);
    }
}
