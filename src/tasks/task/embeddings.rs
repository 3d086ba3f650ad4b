//! Embeddings of texts, and of texts and images: `{shape, data}`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::input::{TaskInput, rejection};
use super::result::TaskResult;
use super::values::TaskError;
use crate::json::{member, parse_list, parse_number, parse_object};

/// Names of vectors in responses.
const ROWS: [&str; 5] = ["data", "embeddings", "embedding", "vectors", "output"];

/// Multimodal embeddings.
pub(super) fn prepare_multimodal(input: &mut TaskInput<'_>) -> Result<(), TaskError> {
    if !input.has("text") && !input.has("image") {
        let message = "`text` or `image` is required";
        return Err(rejection("invalid_input", "", message));
    }
    let images = input.convert_files("image")?;
    input.report("input_images", images as f64);
    input.report("input_characters", input.characters("text") as f64);
    Ok(())
}

/// Rows of equal length, whatever they are called.
pub(super) fn finish(json: &str) -> Result<TaskResult, String> {
    let rows = rows(json).ok_or("there are no vectors in the answer")?;
    let mut length = None;
    for row in &rows {
        let this = row_length(row).ok_or("a vector in the answer is no list of numbers")?;
        if *length.get_or_insert(this) != this {
            return Err("the vectors in the answer differ in length".to_owned());
        }
    }
    let shape = format!("[{},{}]", rows.len(), length.unwrap_or(0));
    let body = format!(r#"{{"shape":{shape},"data":[{}]}}"#, rows.join(","));
    Ok(TaskResult::new(body).with_usage(member(json, "usage")))
}

fn rows(json: &str) -> Option<Vec<&str>> {
    let all = match parse_list(json) {
        Some(all) => all,
        None => parse_list(ROWS.iter().find_map(|name| member(json, name))?)?,
    };
    match all.first() {
        // One vector alone.
        Some(first) if !first.starts_with(['[', '{']) => Some(vec![
            ROWS.iter()
                .find_map(|name| member(json, name))
                .unwrap_or(json),
        ]),
        Some(first) if first.starts_with('{') => in_order(&all),
        _ => Some(all),
    }
}

/// OpenAI's `[{embedding, index}]`, which may come in any order.
fn in_order<'a>(all: &[&'a str]) -> Option<Vec<&'a str>> {
    let mut rows: Vec<(f64, &'a str)> = Vec::with_capacity(all.len());
    for (at, one) in all.iter().enumerate() {
        let index = parse_object(one)?.get("index").and_then(parse_number);
        rows.push((index.unwrap_or(at as f64), member(one, "embedding")?));
    }
    rows.sort_by(|one, other| one.0.total_cmp(&other.0));
    Some(rows.into_iter().map(|(_, row)| row).collect())
}

/// Number of numbers in a row; none when it has anything else.
fn row_length(json: &str) -> Option<usize> {
    let numbers: Vec<f64> = serde_json::from_str(json).ok()?;
    numbers
        .iter()
        .all(|number| number.is_finite())
        .then_some(numbers.len())
}
