//! Chat templates that the gateway renders itself: messages as one prompt, and a completion as a chat response.
//!
//! For servers whose own template is missing or wrong. Messages stay text: markers of the template in them are broken up
//! by a space, so that a message neither ends its turn nor begins another one. Tools, pictures and probabilities of
//! tokens have no form here and are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::Refusal;
use crate::model::ChatTemplate;

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
}

/// Message with a text that has no marker.
struct Turn {
    role: Role,
    text: String,
}

impl ChatTemplate {
    /// Texts that the template gives a meaning.
    fn markers(self) -> &'static [&'static str] {
        match self {
            ChatTemplate::Server | ChatTemplate::Raw => &[],
            ChatTemplate::Chatml => &["<|im_start|>", "<|im_end|>"],
            ChatTemplate::Llama2 => &["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<s>", "</s>"],
            ChatTemplate::Alpaca => &["### Instruction:", "### Response:"],
            ChatTemplate::Vicuna => &["USER:", "ASSISTANT:", "</s>"],
            ChatTemplate::Mistral => &["[INST]", "[/INST]", "<s>", "</s>"],
        }
    }

    /// Texts at which the server ends its turn.
    fn stops(self) -> &'static [&'static str] {
        match self {
            ChatTemplate::Server | ChatTemplate::Raw => &[],
            ChatTemplate::Chatml => &["<|im_end|>", "<|im_start|>"],
            ChatTemplate::Llama2 | ChatTemplate::Mistral => &["</s>", "[INST]"],
            ChatTemplate::Alpaca => &["### Instruction:"],
            ChatTemplate::Vicuna => &["</s>", "USER:"],
        }
    }

    /// Returns the text with a space in each marker.
    fn plain(self, text: &str) -> String {
        let markers = self.markers();
        if !markers.iter().any(|marker| text.contains(marker)) {
            return text.to_owned();
        }
        let mut plain = String::with_capacity(text.len() + 16);
        for letter in text.chars() {
            plain.push(letter);
            if markers.iter().any(|marker| plain.ends_with(marker)) {
                plain.pop();
                plain.push(' ');
                plain.push(letter);
            }
        }
        plain
    }

    /// Renders turns as a prompt that ends where the assistant goes on. A last turn of the assistant stays open.
    fn render(self, turns: &[Turn]) -> String {
        let room = turns.iter().map(|turn| turn.text.len() + 64).sum();
        let mut out = String::with_capacity(room);
        match self {
            ChatTemplate::Server | ChatTemplate::Raw => {
                let texts: Vec<&str> = turns.iter().map(|turn| &*turn.text).collect();
                out.push_str(&texts.join("\n"));
            }
            ChatTemplate::Chatml => render_chatml(turns, &mut out),
            ChatTemplate::Llama2 => render_inst(turns, ("<<SYS>>\n", "\n<</SYS>>\n\n"), &mut out),
            ChatTemplate::Mistral => render_inst(turns, ("", "\n\n"), &mut out),
            ChatTemplate::Alpaca => render_alpaca(turns, &mut out),
            ChatTemplate::Vicuna => render_vicuna(turns, &mut out),
        }
        out
    }
}

fn is_open(turns: &[Turn]) -> bool {
    turns
        .last()
        .is_some_and(|turn| turn.role == Role::Assistant)
}

fn render_chatml(turns: &[Turn], out: &mut String) {
    for (at, turn) in turns.iter().enumerate() {
        let role = match turn.role {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        out.extend(["<|im_start|>", role, "\n", &turn.text]);
        if at + 1 < turns.len() || !is_open(turns) {
            out.push_str("<|im_end|>\n");
        }
    }
    if !is_open(turns) {
        out.push_str("<|im_start|>assistant\n");
    }
}

/// The server puts the first `<s>` itself. Systems go into the next block of a user.
fn render_inst(turns: &[Turn], (begin, end): (&str, &str), out: &mut String) {
    let mut systems: Vec<&str> = Vec::new();
    let block = |systems: &mut Vec<&str>, text: &str, out: &mut String| {
        if !out.is_empty() {
            out.push_str("<s>");
        }
        out.push_str("[INST] ");
        if !systems.is_empty() {
            out.extend([begin, &systems.join("\n"), end]);
            systems.clear();
        }
        out.extend([text, " [/INST]"]);
    };
    for (at, turn) in turns.iter().enumerate() {
        match turn.role {
            Role::System => systems.push(&turn.text),
            Role::User => block(&mut systems, &turn.text, out),
            Role::Assistant => {
                if !systems.is_empty() || out.is_empty() {
                    block(&mut systems, "", out);
                }
                out.extend([" ", &turn.text]);
                if at + 1 < turns.len() {
                    out.push_str(" </s>");
                }
            }
        }
    }
    if !systems.is_empty() {
        block(&mut systems, "", out);
    }
}

fn render_alpaca(turns: &[Turn], out: &mut String) {
    for (at, turn) in turns.iter().enumerate() {
        out.push_str(match turn.role {
            Role::System => "",
            Role::User => "### Instruction:\n",
            Role::Assistant => "### Response:\n",
        });
        out.push_str(&turn.text);
        if at + 1 < turns.len() || !is_open(turns) {
            out.push_str("\n\n");
        }
    }
    if !is_open(turns) {
        out.push_str("### Response:\n");
    }
}

fn render_vicuna(turns: &[Turn], out: &mut String) {
    for (at, turn) in turns.iter().enumerate() {
        out.push_str(match turn.role {
            Role::System => "",
            Role::User => "USER: ",
            Role::Assistant => "ASSISTANT: ",
        });
        out.push_str(&turn.text);
        if at + 1 == turns.len() && is_open(turns) {
            return;
        }
        out.push_str(match turn.role {
            Role::System => "\n\n",
            Role::User => " ",
            Role::Assistant => "</s>",
        });
    }
    out.push_str("ASSISTANT:");
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

fn refused(pointer: String, message: &str) -> Refusal {
    Refusal::BadRequest {
        pointer,
        message: message.to_owned(),
    }
}

/// Members without a form in a completion, unless they ask for nothing.
const NOT_RENDERED: [&str; 5] = ["tools", "functions", "logprobs", "top_logprobs", "audio"];
/// Values that ask for nothing.
const NOTHING: [&str; 5] = ["null", "false", "0", "[]", "{}"];
/// Members of a chat request that a completion does not have.
const DROPPED: [&str; 10] = [
    "messages",
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "parallel_tool_calls",
    "logprobs",
    "top_logprobs",
    "audio",
    "chat_template_kwargs",
];

/// Returns a chat request as the completion request that means the same by `template`.
///
/// # Errors
/// A member that the template has no form for.
pub fn completion_request(template: ChatTemplate, chat: &[u8]) -> Result<Vec<u8>, Refusal> {
    let unread = |_| refused(String::new(), "the body is no chat request");
    let members: BTreeMap<Cow<'_, str>, &RawValue> =
        serde_json::from_slice(chat).map_err(unread)?;
    for name in NOT_RENDERED {
        if members
            .get(name)
            .is_some_and(|value| !NOTHING.contains(&value.get()))
        {
            let message = format!("`{name}` has no form in the chat template of this model");
            return Err(refused(format!("/{name}"), &message));
        }
    }
    let turns = turns(template, members.get("messages").copied())?;
    let mut request = serde_json::Map::new();
    let mut put = |name: &str, value: &RawValue| {
        request.insert(
            name.to_owned(),
            serde_json::from_str(value.get()).unwrap_or_default(),
        );
    };
    for (name, value) in &members {
        match &**name {
            name if DROPPED.contains(&name) => {}
            "max_completion_tokens" => put("max_tokens", value),
            name => put(name, value),
        }
    }
    let stops = stops(template, request.remove("stop"));
    if !stops.is_empty() {
        request.insert("stop".to_owned(), stops.into());
    }
    request.insert("prompt".to_owned(), template.render(&turns).into());
    serde_json::to_vec(&request).map_err(|_| Refusal::Internal)
}

fn turns(template: ChatTemplate, messages: Option<&RawValue>) -> Result<Vec<Turn>, Refusal> {
    let at = |index: usize, member: &str| format!("/messages/{index}/{member}");
    let unread = || {
        refused(
            "/messages".to_owned(),
            "`messages` must be a list of messages",
        )
    };
    let messages = messages.ok_or_else(unread)?;
    let messages: Vec<Message<'_>> = serde_json::from_str(messages.get()).map_err(|_| unread())?;
    let mut turns = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let role = match &*message.role {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => {
                let why = "this model's chat template has system, user and assistant alone";
                return Err(refused(at(index, "role"), why));
            }
        };
        if message
            .tool_calls
            .is_some_and(|calls| !NOTHING.contains(&calls.get()))
        {
            let why = "calls of tools have no form in the chat template of this model";
            return Err(refused(at(index, "tool_calls"), why));
        }
        let text = message.content.map_or(Some(String::new()), text_of);
        let why =
            "must be a text, or a list of texts: this model's chat template has no other form";
        let text = text.ok_or_else(|| refused(at(index, "content"), why))?;
        turns.push(Turn {
            role,
            text: template.plain(&text),
        });
    }
    Ok(turns)
}

/// Returns the text of a message; none where it has other parts.
fn text_of(content: &RawValue) -> Option<String> {
    if content.get() == "null" {
        return Some(String::new());
    }
    if let Ok(text) = serde_json::from_str(content.get()) {
        return Some(text);
    }
    let parts: Vec<Part<'_>> = serde_json::from_str(content.get()).ok()?;
    let texts = parts.iter().map(|part| match &*part.r#type {
        "text" => part.text.as_deref(),
        _ => None,
    });
    texts.collect()
}

/// Stop strings of the request, then those of the template.
fn stops(template: ChatTemplate, own: Option<Value>) -> Vec<Value> {
    let mut stops = match own {
        Some(Value::Array(list)) => list,
        None | Some(Value::Null) => Vec::new(),
        Some(one) => vec![one],
    };
    for stop in template.stops() {
        if !stops.iter().any(|own| own == stop) {
            stops.push((*stop).into());
        }
    }
    stops
}

/// Returns a whole completion as the chat response that means the same; none where it is no completion.
pub fn chat_response(completion: &[u8]) -> Option<Vec<u8>> {
    let mut response: serde_json::Map<String, Value> = serde_json::from_slice(completion).ok()?;
    for choice in response.get_mut("choices")?.as_array_mut()? {
        let choice = choice.as_object_mut()?;
        let text = choice.remove("text")?;
        choice.insert(
            "message".to_owned(),
            json!({ "role": "assistant", "content": text }),
        );
        choice.remove("logprobs");
    }
    response.insert("object".to_owned(), "chat.completion".into());
    serde_json::to_vec(&response).ok()
}

/// Choices of one stream whose beginning is remembered; further ones begin with each piece.
const CHOICES_MAX: usize = 128;

/// Stream of a completion, turned piece by piece into that of a chat.
#[derive(Debug, Default)]
pub struct ChatChunks {
    /// Choices that have begun.
    started: Vec<u64>,
}

impl ChatChunks {
    /// Returns the data of one event as a chat has it; none where it is no piece of a completion, and stays.
    pub fn convert(&mut self, data: &[u8]) -> Option<Vec<u8>> {
        let mut chunk: serde_json::Map<String, Value> = serde_json::from_slice(data).ok()?;
        for choice in chunk.get_mut("choices")?.as_array_mut()? {
            let choice = choice.as_object_mut()?;
            let text = choice.remove("text")?;
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            let mut delta = serde_json::Map::new();
            if !self.started.contains(&index) && self.started.len() < CHOICES_MAX {
                self.started.push(index);
                delta.insert("role".to_owned(), "assistant".into());
            }
            let is_end = choice
                .get("finish_reason")
                .is_some_and(|reason| !reason.is_null());
            if !is_end || text.as_str().is_some_and(|text| !text.is_empty()) {
                delta.insert("content".to_owned(), text);
            }
            choice.insert("delta".to_owned(), delta.into());
            choice.remove("logprobs");
        }
        chunk.insert("object".to_owned(), "chat.completion.chunk".into());
        serde_json::to_vec(&chunk).ok()
    }
}

/// Returns a chat request that asks the server's template to think, or not to; as it is where it says so itself.
pub fn with_thinking(chat: &[u8], thinks: bool) -> Option<Vec<u8>> {
    const ARGUMENTS: &str = "chat_template_kwargs";
    let mut members: BTreeMap<Cow<'_, str>, Cow<'_, RawValue>> =
        serde_json::from_slice(chat).ok()?;
    let own = members.get(ARGUMENTS).map(|own| own.get());
    let own = own.filter(|own| *own != "null").unwrap_or("{}");
    let mut arguments: serde_json::Map<String, Value> = serde_json::from_str(own).ok()?;
    if arguments.contains_key("enable_thinking") {
        return None;
    }
    arguments.insert("enable_thinking".to_owned(), thinks.into());
    let arguments = serde_json::value::to_raw_value(&arguments).ok()?;
    members.insert(ARGUMENTS.into(), Cow::Owned(arguments));
    serde_json::to_vec(&members).ok()
}

#[cfg(test)]
mod tests;
