//! Conversion of a plain HTTP server's response into the documented result.
//!
//! The common response formats are accepted; any other is an error that names the missing part. Errors
//! are for the log and do not repeat the response.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::input;
use super::values::{METRIC_MAX, TaskBody, TaskResponse};
use crate::base64;
use crate::json::{
    Members, member, parse_list, parse_number, parse_object, parse_string, parse_value,
    to_json_string, to_plain_json_string,
};

/// A result and the metrics counted in it.
#[derive(Debug, Default)]
pub(super) struct TaskResult {
    /// JSON.
    pub(super) body: Vec<u8>,
    pub(super) metrics: Vec<(String, f64)>,
}

impl TaskResult {
    pub(super) fn new(body: impl Into<Vec<u8>>) -> TaskResult {
        TaskResult {
            body: body.into(),
            metrics: Vec::new(),
        }
    }

    /// With a metric, unless it is 0 or beyond [`METRIC_MAX`].
    pub(super) fn with(mut self, name: &str, value: f64) -> TaskResult {
        if value > 0.0 && value <= METRIC_MAX {
            self.metrics.push((name.to_owned(), value));
        }
        self
    }

    /// With the token counts of a `usage` object, where the response has one.
    pub(super) fn with_usage(self, usage: Option<&str>) -> TaskResult {
        usage_metrics(usage)
            .into_iter()
            .fold(self, |shaped, (name, value)| shaped.with(&name, value))
    }
}

/// The JSON of a server's response; a plain text becomes a JSON string.
pub(super) fn response_json(response: &TaskResponse) -> Result<String, String> {
    let TaskBody::Whole(body) = &response.body else {
        return Err("the whole body is needed".to_owned());
    };
    let body = core::str::from_utf8(body).map_err(|_| "the answer is not UTF-8")?;
    if input::is_json(&response.content_type) {
        let whole = parse_value(body).ok_or("the answer is not JSON")?;
        return Ok(unwrap_envelope(whole)?.to_owned());
    }
    if response.content_type.trim_start().starts_with("text/") {
        return Ok(to_json_string(body));
    }
    Err("the answer is neither JSON nor a text".to_owned())
}

/// Content of an envelope `{result, success}`, for servers that have one.
fn unwrap_envelope(json: &str) -> Result<&str, String> {
    let Some(members) = parse_object(json) else {
        return Ok(json);
    };
    if members.get("error").is_some() {
        return Err("the answer is an error".to_owned());
    }
    if members.get("success").is_none() {
        return Ok(json);
    }
    Ok(member(json, "result").unwrap_or(json))
}

/// The text of the response: alone, first in a list, or under one of `names`.
pub(super) fn text_under(json: &str, names: &[&str]) -> Option<String> {
    if let Some(all) = parse_list(json) {
        let first = all.first()?;
        return parse_string(first)
            .map(|text| text.into_owned())
            .or_else(|| text_in(&parse_object(first)?, names));
    }
    match parse_object(json) {
        Some(members) => text_in(&members, names),
        None => parse_string(json).map(|text| text.into_owned()),
    }
}

fn text_in(members: &Members<'_>, names: &[&str]) -> Option<String> {
    let json = members.first_of(names)?;
    let first = match parse_list(json) {
        Some(all) => all.first().copied()?,
        None => json,
    };
    parse_string(first).map(|text| text.into_owned())
}

/// Files in base64: a single one or several, alone or under one of `names`.
pub(super) fn files_under(json: &str, names: &[&str]) -> Option<Vec<String>> {
    let members = parse_object(json);
    let json = match &members {
        Some(members) => members.first_of(names)?,
        None => json,
    };
    match parse_list(json) {
        Some(all) => all.into_iter().map(file).collect(),
        None => Some(vec![file(json)?]),
    }
}

/// Base64, or an object that has it.
fn file(json: &str) -> Option<String> {
    let members = parse_object(json);
    let json = match &members {
        Some(members) => members.first_of(&["b64_json", "base64", "data", "body"])?,
        None => json,
    };
    let text = parse_string(json)?;
    Some(to_plain_json_string(&base64::read(&text)?.base64))
}

/// `prompt_tokens` or `input_tokens`, `completion_tokens` or `output_tokens`.
pub(super) fn usage_metrics(usage: Option<&str>) -> Vec<(String, f64)> {
    let Some(usage) = usage.and_then(parse_object) else {
        return Vec::new();
    };
    let sides = [
        ("input_tokens", ["prompt_tokens", "input_tokens"]),
        ("output_tokens", ["completion_tokens", "output_tokens"]),
    ];
    let count = |names: [&str; 2]| {
        names
            .iter()
            .find_map(|name| usage.get(name).and_then(parse_number))
    };
    sides
        .into_iter()
        .filter_map(|(name, names)| {
            Some((
                name.to_owned(),
                count(names).filter(|n| *n > 0.0 && *n <= METRIC_MAX)?,
            ))
        })
        .collect()
}

/// Duration of the sound in seconds; 0 where the response does not report it.
pub(super) fn seconds(members: &Members<'_>) -> f64 {
    let info = members.get("transcription_info").and_then(parse_object);
    let names = ["audio_seconds", "duration_seconds", "duration"];
    let duration = members.first_of(&names).and_then(parse_number);
    let duration = duration.or_else(|| info.as_ref()?.first_of(&names).and_then(parse_number));
    duration.unwrap_or(0.0).max(0.0)
}
