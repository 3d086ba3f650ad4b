//! A plain HTTP server's answer on its way to the documented result.
//!
//! Servers say the same in many ways; the common ones are taken, and what is none of them is an
//! error that names what was missed. Errors are for the log: they do not repeat the answer.

use infergate_sdk::{Edit, Finished, Quantity, Response, TaskError, View};

use crate::json::{Members, list, member, number, object, quoted, quoted_plain, text};
use crate::{METRIC_MAX, base64, input};

/// A result, and what was counted in it.
#[derive(Debug, Default)]
pub struct Shaped {
    /// JSON.
    pub body: Vec<u8>,
    pub metrics: Vec<Quantity>,
}

impl Shaped {
    pub fn new(body: impl Into<Vec<u8>>) -> Shaped {
        Shaped {
            body: body.into(),
            metrics: Vec::new(),
        }
    }

    /// With a metric; nothing is not reported, nor what is beyond 2^53.
    pub fn with(mut self, name: &str, value: f64) -> Shaped {
        if value > 0.0 && value <= METRIC_MAX {
            self.metrics.push((name.to_owned(), value));
        }
        self
    }

    /// With the token counts of a `usage` object, where the answer has one.
    pub fn with_usage(self, usage: Option<&str>) -> Shaped {
        usage_metrics(usage)
            .into_iter()
            .fold(self, |shaped, (name, value)| shaped.with(&name, value))
    }
}

/// The result that `shape` makes of a server's answer. One that is not a success is kept as it is.
pub fn finish(
    response: &Response,
    shape: impl FnOnce(&str) -> Result<Shaped, String>,
) -> Result<Finished, TaskError> {
    if !(200..300).contains(&response.status) {
        return Ok(Finished::default());
    }
    let shaped = json_of(response).and_then(|json| shape(&json));
    let Shaped { body, metrics } = shaped.map_err(TaskError::Broken)?;
    Ok(Finished {
        edit: Edit::Replace(body),
        metrics,
    })
}

/// The JSON of a server's answer; a plain text is a JSON string.
fn json_of(response: &Response) -> Result<String, String> {
    let View::Whole(body) = &response.body else {
        return Err("the whole body is needed".to_owned());
    };
    let body = std::str::from_utf8(body).map_err(|_| "the answer is not UTF-8")?;
    if input::is_json(&response.content_type) {
        let whole: &serde_json::value::RawValue =
            serde_json::from_str(body).map_err(|_| "the answer is not JSON")?;
        return Ok(unwrapped(whole.get())?.to_owned());
    }
    if response.content_type.trim_start().starts_with("text/") {
        return Ok(quoted(body));
    }
    Err("the answer is neither JSON nor a text".to_owned())
}

/// Out of an envelope `{result, success}`, for servers that have one.
fn unwrapped(json: &str) -> Result<&str, String> {
    let Some(members) = object(json) else {
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

/// The text that stands in the answer: alone, first in a list, or under one of `names`.
pub fn text_under(json: &str, names: &[&str]) -> Option<String> {
    if let Some(all) = list(json) {
        let first = all.first()?;
        return text(first)
            .map(|text| text.into_owned())
            .or_else(|| text_in(&object(first)?, names));
    }
    match object(json) {
        Some(members) => text_in(&members, names),
        None => text(json).map(|text| text.into_owned()),
    }
}

fn text_in(members: &Members<'_>, names: &[&str]) -> Option<String> {
    let json = members.first(names)?;
    let first = match list(json) {
        Some(all) => all.first().copied()?,
        None => json,
    };
    text(first).map(|text| text.into_owned())
}

/// A result of one text under one name, the first of `own`; servers may use the others, or one of
/// those that any of them goes by.
pub fn single_text(json: &str, own: &[&str]) -> Result<Shaped, String> {
    const TEXTS: [&str; 5] = [
        "text",
        "generated_text",
        "response",
        "output_text",
        "output",
    ];
    let text = text_under(json, &[own, &TEXTS].concat()).ok_or("there is no text in the answer")?;
    let body = format!("{{{}:{}}}", quoted(own[0]), quoted(&text));
    Ok(Shaped::new(body)
        .with("output_characters", text.chars().count() as f64)
        .with_usage(member(json, "usage")))
}

/// Files in base64: one, or several, alone or under one of `names`.
pub fn files_under(json: &str, names: &[&str]) -> Option<Vec<String>> {
    let members = object(json);
    let json = match &members {
        Some(members) => members.first(names)?,
        None => json,
    };
    match list(json) {
        Some(all) => all.into_iter().map(file).collect(),
        None => Some(vec![file(json)?]),
    }
}

/// Base64, or an object that has it.
fn file(json: &str) -> Option<String> {
    let members = object(json);
    let json = match &members {
        Some(members) => members.first(&["b64_json", "base64", "data", "body"])?,
        None => json,
    };
    let text = text(json)?;
    Some(quoted_plain(&base64::read(&text)?.base64))
}

/// `prompt_tokens` or `input_tokens`, `completion_tokens` or `output_tokens`.
pub fn usage_metrics(usage: Option<&str>) -> Vec<Quantity> {
    let Some(usage) = usage.and_then(object) else {
        return Vec::new();
    };
    let sides = [
        ("input_tokens", ["prompt_tokens", "input_tokens"]),
        ("output_tokens", ["completion_tokens", "output_tokens"]),
    ];
    let count = |names: [&str; 2]| {
        names
            .iter()
            .find_map(|name| usage.get(name).and_then(number))
    };
    sides
        .into_iter()
        .filter_map(|(name, names)| {
            let count = count(names).filter(|n| *n > 0.0 && *n <= METRIC_MAX)?;
            Some((name.to_owned(), count))
        })
        .collect()
}

/// Seconds of sound, where the answer tells.
pub fn seconds(members: &Members<'_>) -> f64 {
    let info = members.get("transcription_info").and_then(object);
    let names = ["audio_seconds", "duration_seconds", "duration"];
    let told = members.first(&names).and_then(number);
    let told = told.or_else(|| info.as_ref()?.first(&names).and_then(number));
    told.unwrap_or(0.0).max(0.0)
}
