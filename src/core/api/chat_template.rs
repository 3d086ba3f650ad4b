//! Chat templates that the gateway renders itself: messages as one prompt, and a completion as a chat response.
//!
//! For servers whose own template is missing or wrong. Messages stay text: a space breaks up markers of the template in
//! them, and control tokens of any. So a message neither ends its turn nor begins another one. Tools, pictures and
//! probabilities of tokens have no form here and are refused.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
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

/// Beginnings of the control tokens of most models: a server's tokenizer gives them their meaning also where the
/// template has no use for them.
const CONTROL_TOKENS: [&str; 3] = ["<|", "<s>", "</s>"];

impl ChatTemplate {
    /// Texts that the template gives a meaning, beside [`CONTROL_TOKENS`].
    fn markers(self) -> &'static [&'static str] {
        match self {
            ChatTemplate::Server | ChatTemplate::Raw | ChatTemplate::Chatml => &[],
            ChatTemplate::Llama2 => &["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"],
            ChatTemplate::Alpaca => &["### Instruction:", "### Response:"],
            ChatTemplate::Vicuna => &["USER:", "ASSISTANT:"],
            ChatTemplate::Mistral => &["[INST]", "[/INST]"],
        }
    }

    /// Texts that no message may have.
    fn broken(self) -> impl Iterator<Item = &'static str> + Clone {
        CONTROL_TOKENS
            .into_iter()
            .chain(self.markers().iter().copied())
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
        let markers = self.broken();
        if !markers.clone().any(|marker| text.contains(marker)) {
            return text.to_owned();
        }
        let mut plain = String::with_capacity(text.len() + 16);
        for letter in text.chars() {
            plain.push(letter);
            if markers.clone().any(|marker| plain.ends_with(marker)) {
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

#[derive(Deserialize)]
#[serde(untagged)]
enum Stops<'a> {
    One(#[serde(borrow)] Cow<'a, str>),
    Many(#[serde(borrow)] Vec<Cow<'a, str>>),
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
/// Members of a chat request that a completion does not have, or has in another form.
const DROPPED: [&str; 13] = [
    "messages",
    "prompt",
    "stop",
    "tools",
    "functions",
    "tool_choice",
    "function_call",
    "parallel_tool_calls",
    "logprobs",
    "top_logprobs",
    "audio",
    "chat_template_kwargs",
    MAX_COMPLETION_TOKENS,
];
const MAX_TOKENS: &str = "max_tokens";
/// The present name of the limit in a chat request; it wins over the former one.
const MAX_COMPLETION_TOKENS: &str = "max_completion_tokens";

type Members<'a> = BTreeMap<Cow<'a, str>, Cow<'a, RawValue>>;

/// Returns a chat request as the completion request that means the same by `template`. Members that are not rendered are
/// copied as they are. Without a limit of its own the request has `"max_tokens": null`. Where none is named, some servers
/// end a completion after 16 tokens.
///
/// # Errors
/// A member that the template has no form for.
pub fn completion_request(template: ChatTemplate, chat: &[u8]) -> Result<Vec<u8>, Refusal> {
    let unread = |_| refused(String::new(), "the body is no chat request");
    let mut members: Members<'_> = serde_json::from_slice(chat).map_err(unread)?;
    for name in NOT_RENDERED {
        if members
            .get(name)
            .is_some_and(|value| !NOTHING.contains(&value.get()))
        {
            let message = format!("`{name}` has no form in the chat template of this model");
            return Err(refused(format!("/{name}"), &message));
        }
    }
    let turns = turns(template, members.get("messages").map(|value| &**value))?;
    let stops = stops(template, members.get("stop").map(|value| &**value))?;
    let stops = (!stops.is_empty()).then(|| raw(&stops)).transpose()?;
    let limit = [MAX_COMPLETION_TOKENS, MAX_TOKENS]
        .into_iter()
        .filter_map(|name| members.get(name))
        .find(|value| value.get() != "null");
    let limit = limit.cloned().unwrap_or(Cow::Borrowed(RawValue::NULL));
    members.retain(|name, _| !DROPPED.contains(&&**name));
    members.insert(MAX_TOKENS.into(), limit);
    if let Some(stops) = stops {
        members.insert("stop".into(), Cow::Owned(stops));
    }
    members.insert("prompt".into(), Cow::Owned(raw(&template.render(&turns))?));
    serde_json::to_vec(&members).map_err(|_| Refusal::Internal)
}

fn raw(value: &impl Serialize) -> Result<Box<RawValue>, Refusal> {
    to_raw_value(value).map_err(|_| Refusal::Internal)
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
fn stops<'a>(
    template: ChatTemplate,
    own: Option<&'a RawValue>,
) -> Result<Vec<Cow<'a, str>>, Refusal> {
    let mut stops = match own.map(RawValue::get) {
        None | Some("null") => Vec::new(),
        Some(own) => match serde_json::from_str(own) {
            Ok(Stops::One(one)) => vec![one],
            Ok(Stops::Many(list)) => list,
            Err(_) => {
                let why = "must be a text or a list of texts";
                return Err(refused("/stop".to_owned(), why));
            }
        },
    };
    for stop in template.stops() {
        if !stops.iter().any(|own| own == stop) {
            stops.push((*stop).into());
        }
    }
    Ok(stops)
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
    let mut members: Members<'_> = serde_json::from_slice(chat).ok()?;
    let own = members.get(ARGUMENTS).map(|own| own.get());
    let own = own.filter(|own| *own != "null").unwrap_or("{}");
    let mut arguments: serde_json::Map<String, Value> = serde_json::from_str(own).ok()?;
    if arguments.contains_key("enable_thinking") {
        return None;
    }
    arguments.insert("enable_thinking".to_owned(), thinks.into());
    let arguments = to_raw_value(&arguments).ok()?;
    members.insert(ARGUMENTS.into(), Cow::Owned(arguments));
    serde_json::to_vec(&members).ok()
}

#[cfg(test)]
mod tests;
