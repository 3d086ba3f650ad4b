//! Generated text: `{response, tool_calls?, usage?}`, for text generation and for image and text to
//! text. Input is passed to the server unchanged.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::result::TaskResult;
use crate::json::{
    Members, member, parse_list, parse_number, parse_object, parse_string, to_json_string,
};

/// Tool calls of one response; OpenAI allows 128 tools.
pub(super) const TOOL_CALLS_MAX: usize = 128;

/// Names of texts in responses.
const TEXTS: [&str; 5] = [
    "response",
    "generated_text",
    "text",
    "output_text",
    "output",
];

/// A function call requested by the model, or a fragment of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolCall {
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) arguments: String,
}

/// Content of a response or of an event.
#[derive(Debug, Default)]
pub(super) struct GeneratedContent {
    /// JSON; mostly a string.
    pub(super) text: Option<String>,
    /// With their indices, where they come in fragments.
    pub(super) tool_calls: Vec<(usize, ToolCall)>,
    /// A JSON object.
    pub(super) usage: Option<String>,
    /// The tool calls are complete.
    pub(super) finished: bool,
}

/// Result of a whole response.
pub(super) fn finish(json: &str) -> Result<TaskResult, String> {
    let content = read(json).ok_or("there is no text in the answer")?;
    if content.text.is_none() && content.tool_calls.is_empty() {
        return Err("there is no text in the answer".to_owned());
    }
    let calls: Vec<ToolCall> = content
        .tool_calls
        .into_iter()
        .map(|(_, call)| call)
        .collect();
    let usage = content.usage.as_deref();
    let characters = content.text.as_deref().and_then(parse_string);
    let characters = characters.map_or(0, |text| text.chars().count());
    let body = write(content.text.as_deref().unwrap_or("null"), &calls, usage);
    Ok(TaskResult::new(body)
        .with("output_characters", characters as f64)
        .with_usage(usage))
}

/// Reads a response, or the data of an event; none when its format is unknown.
pub(super) fn read(json: &str) -> Option<GeneratedContent> {
    if let Some(all) = parse_list(json) {
        return read_object(&parse_object(all.first()?)?);
    }
    if parse_string(json).is_some() {
        return Some(GeneratedContent {
            text: Some(json.to_owned()),
            ..GeneratedContent::default()
        });
    }
    read_object(&parse_object(json)?)
}

fn read_object(members: &Members<'_>) -> Option<GeneratedContent> {
    let usage = members.get("usage").filter(|usage| usage.starts_with('{'));
    let usage = usage.map(|usage| usage.replace(['\n', '\r'], " "));
    let mut content = if let Some(choices) = members.get("choices").and_then(parse_list) {
        // With no choice at all it is the usage after the last one.
        let over = GeneratedContent {
            finished: choices.is_empty(),
            ..GeneratedContent::default()
        };
        // Read once: it is most of the response, and each look at a piece of text goes through all of it.
        let mut choices = choices
            .into_iter()
            .map(|one| parse_object(one).unwrap_or_default());
        let first = choices.find(|choice| choice.get("index").is_none_or(|index| index == "0"));
        first.map_or(over, |choice| read_choice(&choice))
    } else if let Some(token) = members.get("token").and_then(parse_object) {
        // Text Generation Inference: special tokens are not text.
        let is_text = token.get("special") != Some("true");
        GeneratedContent {
            text: token.get("text").filter(|_| is_text).and_then(as_text),
            finished: members.get("details").is_some(),
            ..GeneratedContent::default()
        }
    } else {
        GeneratedContent {
            text: members.first_of(&TEXTS).and_then(as_text),
            tool_calls: tool_calls(members.get("tool_calls")),
            finished: true,
            usage: None,
        }
    };
    let known = ["choices", "token", "usage", "tool_calls"];
    if content.text.is_none() && known.iter().all(|name| members.get(name).is_none()) {
        return None;
    }
    content.usage = usage.or_else(|| details(members.get("details")?));
    Some(content)
}

/// TGI's `details` as a usage object.
fn details(json: &str) -> Option<String> {
    let count = |name| {
        member(json, name)
            .and_then(parse_number)
            .filter(|count| *count >= 0.0)
    };
    let (input, output) = (
        count("input_length").unwrap_or(0.0),
        count("generated_tokens")?,
    );
    Some(format!(
        r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}"#,
        input + output
    ))
}

fn read_choice(choice: &Members<'_>) -> GeneratedContent {
    let message = choice.first_of(&["delta", "message"]);
    let message = message.and_then(parse_object).unwrap_or_default();
    let content = message.get("content").or(choice.get("text"));
    GeneratedContent {
        text: content.and_then(as_text),
        tool_calls: tool_calls(message.get("tool_calls")),
        finished: choice.get("finish_reason").is_some(),
        usage: None,
    }
}

/// A value as the text of a result, in JSON: a list of texts, or of parts with texts, is put
/// together; what is structured stays.
fn as_text(json: &str) -> Option<String> {
    let Some(parts) = parse_list(json) else {
        return Some(json.to_owned());
    };
    let part = |part: &str| {
        let own = member(part, "text");
        parse_string(own.unwrap_or(part)).map(|text| text.into_owned())
    };
    let texts: Option<Vec<String>> = parts.into_iter().map(part).collect();
    Some(texts.map_or_else(|| json.to_owned(), |texts| to_json_string(&texts.concat())))
}

/// OpenAI's `{index?, id?, function: {name, arguments}}`, or `{name, arguments}`.
fn tool_calls(json: Option<&str>) -> Vec<(usize, ToolCall)> {
    let all = json.and_then(parse_list).unwrap_or_default();
    let call = |(at, json): (usize, &str)| {
        let function = member(json, "function").unwrap_or(json);
        let string = |json: &str| parse_string(json).map(|text| text.into_owned());
        let arguments = member(function, "arguments");
        let index = member(json, "index").and_then(|index| index.parse().ok());
        let call = ToolCall {
            id: member(json, "id").and_then(string),
            name: member(function, "name")
                .and_then(string)
                .unwrap_or_default(),
            arguments: arguments
                .map(|json| string(json).unwrap_or_else(|| json.to_owned()))
                .unwrap_or_default(),
        };
        (index.unwrap_or(at), call)
    };
    all.into_iter()
        .take(TOOL_CALLS_MAX)
        .enumerate()
        .map(call)
        .collect()
}

/// The result, or one piece of it.
pub(super) fn write(text: &str, calls: &[ToolCall], usage: Option<&str>) -> String {
    let mut body = format!(r#"{{"response":{text}"#);
    if !calls.is_empty() {
        let calls: Vec<String> = calls.iter().map(write_call).collect();
        body += &format!(r#","tool_calls":[{}]"#, calls.join(","));
    }
    if let Some(usage) = usage {
        body += &format!(r#","usage":{usage}"#);
    }
    body.push('}');
    body
}

fn write_call(call: &ToolCall) -> String {
    let id = call.id.as_deref();
    let id = id.map_or(String::new(), |id| {
        format!(r#""id":{},"#, to_json_string(id))
    });
    // Arguments that are no object are still shown: the caller may know what the model meant.
    // Line breaks in JSON stand between tokens only, and an event has one line.
    let arguments = match parse_object(call.arguments.trim()) {
        Some(_) => call.arguments.trim().replace(['\n', '\r'], " "),
        None => to_json_string(&call.arguments),
    };
    format!(
        r#"{{{id}"name":{},"arguments":{arguments}}}"#,
        to_json_string(&call.name)
    )
}
