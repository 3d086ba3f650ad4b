//! The OpenAI shapes of responses: chat, completions and embeddings, whole and in chunks.
//!
//! Members not named here are skipped unread, numbers of any size among them. Called for answers
//! that are converted, and for the few events of a passed stream that are looked into.

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::open_inference::ReportedCosts;
use infergate_core::api::workers_ai::{RequestedToolCall, TextResult, write_text};
use infergate_core::billing::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client_error::MESSAGE_BYTES_MAX;
use super::convert::{Delta, FormatDecoder, ToolCalls, ToolFragment, no_events, write_rows};
use super::error::ResponseError;
use super::stats::ResponseStats;

/// Chat and completions.
pub(in crate::upstream) static OPENAI_TEXT: FormatDecoder = FormatDecoder {
    json: text_json,
    event: text_event,
    input_tokens_header: None,
};

/// Embeddings.
pub(in crate::upstream) static OPENAI_EMBEDDINGS: FormatDecoder = FormatDecoder {
    json: embeddings_json,
    event: no_events,
    input_tokens_header: None,
};

/// A completion, or a chunk of one.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    /// A piece of the Workers AI dialect, as plain HTTP servers stream it.
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    /// Another word of theirs for it.
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    /// A third one.
    #[serde(borrow)]
    token: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    /// Reason for the end; none or null before.
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<ChatMessage<'a>>,
    #[serde(borrow)]
    delta: Option<ChatMessage<'a>>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
}

impl<'a> Choice<'a> {
    /// Its number; one without is the first.
    fn number(&self) -> u32 {
        let index = self.index.and_then(|index| index.get().parse().ok());
        index.unwrap_or(0)
    }

    fn message(&self) -> Option<&ChatMessage<'a>> {
        self.delta.as_ref().or(self.message.as_ref())
    }
}

/// Token as Text Generation Inference streams it.
#[derive(Deserialize)]
struct StreamToken<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning_content: Option<&'a RawValue>,
    #[serde(borrow)]
    reasoning: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_calls: Option<Vec<ToolDelta<'a>>>,
    /// Former name of `tool_calls`, before there were several.
    #[serde(borrow)]
    function_call: Option<FunctionDelta<'a>>,
}

impl<'a> ChatMessage<'a> {
    fn reasoning(&self) -> Option<&'a RawValue> {
        self.reasoning_content.or(self.reasoning)
    }

    /// Functions whose call is written, in whole or in parts.
    fn called(&self) -> impl Iterator<Item = &FunctionDelta<'a>> {
        let tools = self.tool_calls.iter().flatten();
        let tools = tools.filter_map(|tool| tool.function.as_ref());
        tools.chain(&self.function_call)
    }
}

/// A piece of generated sound.
#[derive(Deserialize)]
struct AudioDelta<'a> {
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    transcript: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ToolDelta<'a> {
    index: Option<usize>,
    id: Option<String>,
    #[serde(borrow)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Deserialize)]
struct FunctionDelta<'a> {
    name: Option<String>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Embeddings<'a> {
    #[serde(borrow)]
    data: Vec<Embedding<'a>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Embedding<'a> {
    index: Option<usize>,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

impl<'a> Chunk<'a> {
    /// Counts all that was generated: text, reasoning, sound or a call of a tool, in any choice. Tells
    /// whether there was anything.
    pub(super) fn count(&self, seen: &mut ResponseStats) -> bool {
        let mut has = false;
        self.each_text(|text| {
            has = true;
            seen.generated(text);
        });
        let choices = self.choices.iter().flatten();
        choices.for_each(|choice| seen.choice(choice.number(), choice.finish_reason.is_some()));
        let messages = self.choices.iter().flatten();
        for message in messages.filter_map(Choice::message) {
            has |= message.tool_calls.as_ref().is_some_and(|t| !t.is_empty());
            for function in message.called() {
                has = true;
                seen.text.push(function.name.as_deref().unwrap_or_default());
                if let Some(arguments) = function.arguments.filter(|raw| is_text(raw)) {
                    seen.generated(arguments);
                }
            }
            let sound = message.audio.map(RawValue::get);
            let sound = sound.and_then(|raw| serde_json::from_str::<AudioDelta<'a>>(raw).ok());
            let Some(AudioDelta { data, transcript }) = sound else {
                continue;
            };
            if let Some(data) = data.filter(|raw| is_text(raw)) {
                has = true;
                seen.text.push_sound(data.get().len() as u64 - 2);
            }
            if let Some(transcript_text) = transcript.filter(|raw| is_text(raw)) {
                has = true;
                seen.generated(transcript_text);
            }
        }
        has
    }

    /// Every text that was generated and is not empty, as JSON.
    fn each_text(&self, text: impl FnMut(&'a RawValue)) {
        let token = self.token.and_then(|token| {
            let token: StreamToken<'a> = serde_json::from_str(token.get()).ok()?;
            token.text.filter(|_| !token.special)
        });
        let chosen = self.choices.iter().flatten().flat_map(|choice| {
            let message = choice.message();
            let of = |part: fn(&ChatMessage<'a>) -> Option<&'a RawValue>| message.and_then(part);
            [
                choice.text,
                of(|message| message.content),
                of(|message| message.reasoning_content),
                of(|message| message.reasoning),
                of(|message| message.refusal),
            ]
        });
        [self.response, self.text, token]
            .into_iter()
            .chain(chosen)
            .flatten()
            .filter(|raw| is_text(raw))
            .for_each(text);
    }

    /// Text, reasoning and tool calls of the first choice; a `run` has one choice. A refusal is
    /// its text.
    fn first(self) -> FirstChoice<'a> {
        let is_first = |choice: &Choice<'_>| choice.index.is_none_or(|index| index.get() == "0");
        let Some(choice) = self.choices.into_iter().flatten().find(is_first) else {
            return FirstChoice::default();
        };
        let finished = choice.finish_reason.is_some();
        let Some(message) = choice.delta.or(choice.message) else {
            return FirstChoice {
                text: choice.text,
                finished,
                ..FirstChoice::default()
            };
        };
        let reasoning = message.reasoning().filter(|raw| is_text(raw));
        let called = message.function_call.map(|function| ToolDelta {
            index: None,
            id: None,
            function: Some(function),
        });
        let tools = message.tool_calls.unwrap_or_default();
        let tools = tools.into_iter().chain(called).enumerate();
        FirstChoice {
            text: message.content.or(message.refusal).or(choice.text),
            reasoning,
            finished,
            fragments: tools.map(|(at, tool)| tool.fragment(at)).collect(),
        }
    }

    fn usage(&self) -> Option<Usage> {
        Usage::from_openai(self.usage?.get().as_bytes())
    }
}

/// Additions of the first choice.
#[derive(Default)]
struct FirstChoice<'a> {
    text: Option<&'a RawValue>,
    reasoning: Option<&'a RawValue>,
    fragments: Vec<ToolFragment>,
    finished: bool,
}

/// A JSON string that is not empty.
fn is_text(raw: &RawValue) -> bool {
    raw.get().starts_with('"') && raw.get() != "\"\""
}

impl ToolDelta<'_> {
    /// `at` is its place in the list, which counts where it has no index.
    fn fragment(self, at: usize) -> ToolFragment {
        let function = self.function.unwrap_or(FunctionDelta {
            name: None,
            arguments: None,
        });
        // A string by the specification; some servers put the object itself.
        let arguments = function.arguments.map_or(String::new(), |raw| {
            serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned())
        });
        let call = RequestedToolCall {
            id: self.id,
            name: function.name.unwrap_or_default(),
            arguments,
        };
        ToolFragment {
            index: self.index.unwrap_or(at),
            call,
        }
    }
}

fn parse(json: &[u8]) -> Result<Chunk<'_>, ResponseError> {
    let chunk: Chunk<'_> = serde_json::from_slice(json).map_err(|_| ResponseError::Malformed)?;
    if chunk.error.is_some() {
        Err(ResponseError::BackendFailed)
    } else {
        Ok(chunk)
    }
}

/// Error for a server's own error in a stream. Its words reach the client only where it says that
/// the request is wrong; those of its own failures may name paths and addresses.
pub(super) fn failure(error: &RawValue) -> ResponseError {
    #[derive(Deserialize)]
    struct ErrorDetail<'a> {
        message: Option<String>,
        r#type: Option<String>,
        #[serde(borrow)]
        code: Option<&'a RawValue>,
    }
    let Ok(detail) = serde_json::from_str::<ErrorDetail<'_>>(error.get()) else {
        return ResponseError::BackendFailed;
    };
    let code = detail.code.map(|code| code.get().trim_matches('"'));
    let status = match code.and_then(|code| code.parse::<u16>().ok()) {
        Some(status) => Some(status).filter(|status| CALLERS_FAULTS.contains(status)),
        None => detail
            .r#type
            .filter(|kind| kind == CALLERS_FAULT)
            .map(|_| 400),
    };
    match (status, detail.message) {
        (Some(status), Some(mut message)) => {
            message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
            ResponseError::refused(Refusal::Rejected {
                status,
                pointer: String::new(),
                message,
            })
        }
        _ => ResponseError::BackendFailed,
    }
}

/// Statuses with which a server speaks of the request, and of nothing that its operator has set up.
const CALLERS_FAULTS: [u16; 3] = [400, 413, 422];

/// The type of an OpenAI error that speaks of the request.
const CALLERS_FAULT: &str = "invalid_request_error";

fn text_event(data: &[u8]) -> Result<Delta<'_>, ResponseError> {
    let chunk: Chunk<'_> = serde_json::from_slice(data).map_err(|_| ResponseError::Malformed)?;
    if let Some(error) = chunk.error {
        return Err(failure(error));
    }
    let usage = chunk.usage();
    let FirstChoice {
        text,
        reasoning,
        fragments: tool_calls,
        finished,
    } = chunk.first();
    Ok(Delta {
        finished,
        text,
        reasoning,
        tool_calls,
        usage,
        costs: ReportedCosts::default(),
        last: false,
    })
}

fn text_json(
    body: &[u8],
    known: Option<Usage>,
    out: &mut BytesMut,
) -> Result<Option<Usage>, ResponseError> {
    let completion = parse(body)?;
    if completion.choices.as_ref().is_none_or(Vec::is_empty) {
        return Err(ResponseError::Malformed);
    }
    let usage = Usage::join(known, completion.usage());
    let FirstChoice {
        text: response,
        reasoning,
        fragments,
        ..
    } = completion.first();
    let mut tools = ToolCalls::default();
    for fragment in fragments {
        tools.add(fragment)?;
    }
    let json = usage.map(Usage::to_openai);
    write_text(
        &TextResult {
            response,
            reasoning,
            tool_calls: &tools.calls,
            usage: json.as_deref(),
        },
        out,
    );
    Ok(usage)
}

fn embeddings_json(
    body: &[u8],
    known: Option<Usage>,
    out: &mut BytesMut,
) -> Result<Option<Usage>, ResponseError> {
    let mut embeddings: Embeddings<'_> =
        serde_json::from_slice(body).map_err(|_| ResponseError::Malformed)?;
    embeddings.data.sort_by_key(|embedding| embedding.index);
    let rows: Vec<&RawValue> = embeddings.data.iter().map(|row| row.embedding).collect();
    write_rows(&rows, out)?;
    let usage = embeddings
        .usage
        .and_then(|usage| Usage::from_openai(usage.get().as_bytes()));
    Ok(Usage::join(known, usage))
}
