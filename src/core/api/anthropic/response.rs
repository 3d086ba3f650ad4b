//! OpenAI chat completions, whole and streamed, translated to messages and their events.
//!
//! Not the decoding of other protocols: backends hand over the OpenAI shape. Only the first choice is
//! read. Reasoning is left out; while a model reasons, the client gets pings. Texts stay raw JSON. State
//! per stream: the open content block, the tool calls begun, and the latest usage.

use std::borrow::Cow;

use bytes::BytesMut;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::dialect::{NotTranslatable, ResponseTranslator};
use crate::api::json::{self, Object, is_string};
use crate::api::prompt::BYTES_PER_TOKEN;
use crate::api::sse::{self, EventSplitter};

/// Sign of life, as this API gives it.
pub(super) const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// Events of reasoning between two pings: at 50 tokens a second a ping every two seconds.
const REASONING_EVENTS_PER_PING: u32 = 100;

/// Tool calls of one answer; models make a handful.
const TOOL_CALLS_MAX: usize = 128;

/// A completion, or a chunk of one.
#[derive(Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<Vec<ChatChoice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
    /// The stop sequence that ended the text, as vLLM reports it; a number for a token.
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    /// The same, as SGLang reports it.
    #[serde(borrow)]
    matched_stop: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<ChatMessage<'a>>,
    #[serde(borrow)]
    delta: Option<ChatMessage<'a>>,
}

#[derive(Default, Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ChatToolCall<'a>>>,
}

#[derive(Deserialize)]
struct ChatToolCall<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    function: Option<ChatFunction<'a>>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Usage in the OpenAI shape.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct ChatUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl ChatUsage {
    fn read(raw: Option<&RawValue>) -> Option<ChatUsage> {
        serde_json::from_str(raw?.get()).ok()
    }

    /// Writes it in this API's shape, in which cached tokens are not among the input tokens.
    fn write(&self, input_estimate: u64, output_estimate: u64, object: &mut Object<'_>) {
        let prompt = self.prompt_tokens.unwrap_or(input_estimate);
        let details = self.prompt_tokens_details.unwrap_or_default();
        let cached = details.cached_tokens.unwrap_or(0).min(prompt);
        let output = self.completion_tokens.unwrap_or(output_estimate);
        let mut usage = object.object("usage");
        usage.member("input_tokens", &(prompt - cached).to_string());
        usage.member("cache_creation_input_tokens", "0");
        usage.member("cache_read_input_tokens", &cached.to_string());
        usage.member("output_tokens", &output.to_string());
    }
}

/// Reason for the end of the text.
#[derive(Debug, Default)]
struct StopState {
    /// Reason in this API's words; none while the text goes on.
    reason: Option<&'static str>,
    /// JSON string of the stop sequence, where the server reports it.
    sequence: Option<String>,
}

impl StopState {
    /// Reads the reason of a choice; none while the text goes on.
    ///
    /// # Errors
    /// The server gave the text up, for which this API has no reason.
    fn read(
        choice: &ChatChoice<'_>,
        has_tools: bool,
    ) -> Result<Option<StopState>, NotTranslatable> {
        let Some(finish_reason) = choice.finish_reason.as_deref() else {
            return Ok(None);
        };
        let stops = [choice.stop_reason, choice.matched_stop];
        let sequence = stops.into_iter().flatten().find(|text| is_string(text));
        let reason = match finish_reason {
            "abort" | "error" => return Err(NotTranslatable),
            "length" => "max_tokens",
            "content_filter" => "refusal",
            _ if has_tools => "tool_use",
            _ if sequence.is_some() => "stop_sequence",
            _ => "end_turn",
        };
        let sequence = sequence.filter(|_| reason == "stop_sequence");
        Ok(Some(StopState {
            reason: Some(reason),
            sequence: sequence.map(|text| text.get().to_owned()),
        }))
    }

    fn write(&self, object: &mut Object<'_>) {
        match self.reason {
            Some(reason) => object.text("stop_reason", reason),
            None => object.member("stop_reason", "null"),
        }
        object.member("stop_sequence", self.sequence.as_deref().unwrap_or("null"));
    }
}

/// The block that a stream is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenBlock {
    Text,
    /// Number of the tool call.
    Tool(usize),
}

/// Translator of one response.
#[derive(Debug)]
pub(super) struct Translator {
    input_estimate: u64,
    has_started: bool,
    open: Option<OpenBlock>,
    /// Blocks begun.
    blocks: usize,
    /// Index of the block of each tool call begun.
    tools: Vec<Option<usize>>,
    reasoning_events: u32,
    stop: StopState,
    usage: ChatUsage,
}

impl Translator {
    /// Creates one for a request of about this many input tokens.
    pub(super) fn new(input_estimate: u64) -> Translator {
        Translator {
            input_estimate,
            has_started: false,
            open: None,
            blocks: 0,
            tools: Vec::new(),
            reasoning_events: 0,
            stop: StopState::default(),
            usage: ChatUsage::default(),
        }
    }

    fn chunk(&mut self, data: &[u8], out: &mut BytesMut) -> Result<(), NotTranslatable> {
        let chunk: ChatChunk<'_> = serde_json::from_slice(data).map_err(|_| NotTranslatable)?;
        if !self.has_started {
            self.start(&chunk, out);
        }
        if let Some(usage) = ChatUsage::read(chunk.usage) {
            self.usage = usage;
        }
        let Some(choice) = first(chunk.choices) else {
            return Ok(());
        };
        let message = choice.delta.as_ref().or(choice.message.as_ref());
        let text = message.and_then(text_of);
        let calls = message.and_then(|message| message.tool_calls.as_deref());
        let calls = calls.unwrap_or_default();
        if let Some(text) = text {
            self.text(text, out);
        }
        for (at, call) in calls.iter().enumerate() {
            self.tool(call.index.unwrap_or(at), call, out)?;
        }
        if let Some(stop) = StopState::read(&choice, !self.tools.is_empty())? {
            self.stop = stop;
        } else if text.is_none() && calls.is_empty() {
            if self
                .reasoning_events
                .is_multiple_of(REASONING_EVENTS_PER_PING)
            {
                out.extend_from_slice(PING);
            }
            self.reasoning_events += 1;
        }
        Ok(())
    }

    fn start(&mut self, chunk: &ChatChunk<'_>, out: &mut BytesMut) {
        self.has_started = true;
        event("message_start", out, |data| {
            let mut message = data.object("message");
            head(chunk, &mut message);
            drop(message.list("content"));
            StopState::default().write(&mut message);
            ChatUsage::default().write(self.input_estimate, 0, &mut message);
        });
    }

    fn text(&mut self, text: &RawValue, out: &mut BytesMut) {
        if self.open != Some(OpenBlock::Text) {
            self.close(out);
            self.open(OpenBlock::Text, out, |block| {
                block.member("type", r#""text""#);
                block.member("text", r#""""#);
            });
        }
        let index = self.blocks - 1;
        delta(index, "text_delta", ("text", text), out);
    }

    fn tool(
        &mut self,
        number: usize,
        call: &ChatToolCall<'_>,
        out: &mut BytesMut,
    ) -> Result<(), NotTranslatable> {
        if number >= TOOL_CALLS_MAX {
            return Err(NotTranslatable);
        }
        if self.tools.len() <= number {
            self.tools.resize(number + 1, None);
        }
        let function = call.function.as_ref();
        let index = match self.tools[number] {
            Some(index) => index,
            None => {
                self.close(out);
                let name = function.and_then(|function| function.name);
                self.open(OpenBlock::Tool(number), out, |block| {
                    tool_head(number, call.id, name, block);
                    drop(block.object("input"));
                });
                self.tools[number] = Some(self.blocks - 1);
                self.blocks - 1
            }
        };
        let arguments = function.and_then(|function| function.arguments);
        match arguments {
            Some(text) if is_string(text) && text.get() != r#""""# => {
                delta(index, "input_json_delta", ("partial_json", text), out);
            }
            // Some servers put the object itself.
            Some(object) if object.get().starts_with('{') => {
                let text = serde_json::value::to_raw_value(object.get());
                let text = text.map_err(|_| NotTranslatable)?;
                delta(index, "input_json_delta", ("partial_json", &text), out);
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, block: OpenBlock, out: &mut BytesMut, write: impl FnOnce(&mut Object<'_>)) {
        self.open = Some(block);
        event("content_block_start", out, |data| {
            data.member("index", &self.blocks.to_string());
            write(&mut data.object("content_block"));
        });
        self.blocks += 1;
    }

    fn close(&mut self, out: &mut BytesMut) {
        if self.open.take().is_some() {
            event("content_block_stop", out, |data| {
                data.member("index", &(self.blocks - 1).to_string());
            });
        }
    }

    fn end(&mut self, output_estimate: u64, out: &mut BytesMut) {
        if !self.has_started {
            let empty = ChatChunk {
                id: None,
                model: None,
                choices: None,
                usage: None,
            };
            self.start(&empty, out);
        }
        self.close(out);
        event("message_delta", out, |data| {
            self.stop.write(&mut data.object("delta"));
            self.usage.write(self.input_estimate, output_estimate, data);
        });
        event("message_stop", out, |_| {});
    }
}

impl ResponseTranslator for Translator {
    fn whole(&mut self, body: &[u8], out: &mut BytesMut) -> Result<(), NotTranslatable> {
        let completion: ChatChunk<'_> =
            serde_json::from_slice(body).map_err(|_| NotTranslatable)?;
        let mut written = Object::with_capacity(body.len() + 256);
        head(&completion, &mut written);
        let usage = ChatUsage::read(completion.usage).unwrap_or_default();
        let choice = first(completion.choices).ok_or(NotTranslatable)?;
        let message = choice.message.as_ref().or(choice.delta.as_ref());
        let calls = message.and_then(|message| message.tool_calls.as_deref());
        let calls = calls.unwrap_or_default();
        let mut content = written.list("content");
        if let Some(text) = message.and_then(text_of) {
            let mut block = content.object();
            block.member("type", r#""text""#);
            block.member("text", text.get());
        }
        for (at, call) in calls.iter().enumerate() {
            let function = call.function.as_ref();
            let mut block = content.object();
            let name = function.and_then(|function| function.name);
            tool_head(at, call.id, name, &mut block);
            let arguments = function.and_then(|function| function.arguments);
            block.member("input", &input(arguments));
        }
        drop(content);
        let stop = StopState::read(&choice, !calls.is_empty())?.unwrap_or_default();
        stop.write(&mut written);
        let functions = calls.iter().filter_map(|call| call.function.as_ref());
        let parts = functions.flat_map(|function| [function.name, function.arguments]);
        let parts = parts.chain([message.and_then(text_of)]).flatten();
        let generated_bytes: usize = parts.map(|part| part.get().len()).sum();
        let output_estimate = (generated_bytes as u64).div_ceil(BYTES_PER_TOKEN);
        usage.write(self.input_estimate, output_estimate, &mut written);
        out.extend_from_slice(&written.end());
        Ok(())
    }

    fn events(
        &mut self,
        events: &[u8],
        output_estimate: u64,
        out: &mut BytesMut,
    ) -> Result<(), NotTranslatable> {
        let mut splitter = EventSplitter::with_limit(usize::MAX);
        let mut translated = Ok(());
        // Without a bound there is nothing to go wrong with.
        let _ = splitter.push(events, &mut |event| {
            if translated.is_err() {
                return;
            }
            match sse::data(event) {
                Some(data) if sse::is_done(&data) => self.end(output_estimate, out),
                Some(data) => translated = self.chunk(&data, out),
                None if event.starts_with(b":") => out.extend_from_slice(PING),
                None => {}
            }
        });
        translated
    }
}

/// The first choice.
fn first(choices: Option<Vec<ChatChoice<'_>>>) -> Option<ChatChoice<'_>> {
    let is_first = |choice: &ChatChoice<'_>| choice.index.is_none_or(|index| index.get() == "0");
    choices.into_iter().flatten().find(is_first)
}

/// Text of a message that is not empty; a refusal is its text.
fn text_of<'a>(message: &ChatMessage<'a>) -> Option<&'a RawValue> {
    let is_text = |raw: &&RawValue| is_string(raw) && raw.get() != r#""""#;
    let content = message.content.filter(is_text);
    content.or(message.refusal.filter(is_text))
}

/// Writes the members that a message begins with.
fn head(chunk: &ChatChunk<'_>, message: &mut Object<'_>) {
    let id = chunk
        .id
        .filter(|id| is_string(id))
        .map_or("0", json::unquoted);
    message.member("id", &format!("\"msg_{id}\""));
    message.member("type", r#""message""#);
    message.member("role", r#""assistant""#);
    let model = chunk.model.filter(|model| is_string(model));
    message.member("model", model.map_or(r#""""#, RawValue::get));
}

/// Writes type, id and name of a tool call.
fn tool_head(
    number: usize,
    id: Option<&RawValue>,
    name: Option<&RawValue>,
    block: &mut Object<'_>,
) {
    block.member("type", r#""tool_use""#);
    match id.filter(|id| is_string(id) && id.get() != r#""""#) {
        Some(id) => block.member("id", id.get()),
        None => block.text("id", &format!("toolu_{number}")),
    }
    let name = name.filter(|name| is_string(name));
    block.member("name", name.map_or(r#""""#, RawValue::get));
}

/// Returns the input of a tool, which is an object in this API. Arguments that are none stand in a member
/// `arguments`: the client may know what the model meant.
fn input(arguments: Option<&RawValue>) -> String {
    let Some(arguments) = arguments else {
        return "{}".to_owned();
    };
    // A string by the specification; some servers put the object itself.
    let text: Cow<'_, str> = match is_string(arguments) {
        true => serde_json::from_str(arguments.get()).unwrap_or_default(),
        false => Cow::Borrowed(arguments.get()),
    };
    match serde_json::from_str::<&RawValue>(&text) {
        Ok(json) if json.get().starts_with('{') => json.get().to_owned(),
        _ if text.trim().is_empty() => "{}".to_owned(),
        _ => {
            let mut object = Object::with_capacity(text.len() + 32);
            object.text("arguments", &text);
            String::from_utf8(object.end()).unwrap_or_default()
        }
    }
}

/// Appends an event, which names its type twice.
fn event(kind: &str, out: &mut BytesMut, write: impl FnOnce(&mut Object<'_>)) {
    let mut data = Object::with_capacity(256);
    data.text("type", kind);
    write(&mut data);
    named_event(kind, &data.end(), out);
}

/// Appends an event of this type with this data.
pub(super) fn named_event(kind: &str, data: &[u8], out: &mut BytesMut) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\n");
    sse::event(data, out);
}

fn delta(index: usize, kind: &str, (name, text): (&str, &RawValue), out: &mut BytesMut) {
    event("content_block_delta", out, |data| {
        data.member("index", &index.to_string());
        let mut delta = data.object("delta");
        delta.text("type", kind);
        delta.member(name, text.get());
    });
}
