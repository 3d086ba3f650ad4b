//! Tasks whose result is one text under one name: translation, summarization, image-to-text.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::input::TaskInput;
use super::result::{TaskResult, text_under};
use super::values::TaskError;
use crate::json::{member, to_json_string};

/// Common names of a text, besides the names of each task.
const TEXTS: [&str; 5] = [
    "text",
    "generated_text",
    "response",
    "output_text",
    "output",
];

pub(super) fn prepare_translation(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("text")?;
    input.require("target_lang")?;
    input.report("input_characters", input.characters("text") as f64);
    Ok(())
}

pub(super) fn prepare_summarization(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    input.require("input_text")?;
    input.report("input_characters", input.characters("input_text") as f64);
    Ok(())
}

pub(super) fn finish_translation(json: &str) -> Result<TaskResult, String> {
    finish(json, ["translated_text", "translation_text", "translation"])
}

pub(super) fn finish_summarization(json: &str) -> Result<TaskResult, String> {
    finish(json, ["summary", "summary_text", "abstract"])
}

pub(super) fn finish_image_to_text(json: &str) -> Result<TaskResult, String> {
    finish(json, ["description", "caption", "alt_text"])
}

/// Result of one text; the first of `own` is the documented name.
fn finish(json: &str, own: [&str; 3]) -> Result<TaskResult, String> {
    let names: Vec<&str> = own.into_iter().chain(TEXTS).collect();
    let text = text_under(json, &names).ok_or("there is no text in the answer")?;
    let body = format!("{{{}:{}}}", to_json_string(own[0]), to_json_string(&text));
    Ok(TaskResult::new(body)
        .with("output_characters", text.chars().count() as f64)
        .with_usage(member(json, "usage")))
}
