//! A stream converted event by event into the pieces of a Workers AI `run`.
//!
//! The backend's shapes are a [`FormatDecoder`]'s. Tool calls arrive in fragments and are put together, up
//! to [`TOOL_CALLS_MAX`] and [`TOOL_BYTES_MAX`], for the last piece.

use bytes::BytesMut;
use infergate_core::api::Call;
use infergate_core::api::open_inference::ReportedCosts;
use infergate_core::api::sse::{self, EventSplitter};
use infergate_core::api::workers_ai::{
    self, EmbeddingsResult, RequestedToolCall, write_delta, write_embeddings, write_final_delta,
};
use infergate_core::billing::Usage;
use serde_json::value::RawValue;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect,
    end_of_events, expects_events, json_value, without_bom,
};
use super::error::ResponseError;
use super::reported_metrics::usage_of_costs;
use super::stats::{ResponseStats, StreamEnd};

/// Tool calls of one answer; models ask for a handful, OpenAI allows 128 tools.
pub(super) const TOOL_CALLS_MAX: usize = 128;

/// Bytes of all tool calls of one answer. Arguments are written token by token: a megabyte is
/// hours of them.
pub(super) const TOOL_BYTES_MAX: usize = 1 << 20;

/// Converts a whole response. Takes the usage known before and returns it with what the body adds.
pub(in crate::upstream) type DecodeJson = fn(
    body: &[u8],
    known: Option<Usage>,
    out: &mut BytesMut,
) -> Result<Option<Usage>, ResponseError>;

/// Decoder of the responses of one kind of backend.
#[derive(Debug)]
pub(in crate::upstream) struct FormatDecoder {
    /// Reads a response that is no stream.
    pub(in crate::upstream) json: DecodeJson,
    /// Reads the data of one event.
    pub(in crate::upstream) event: fn(data: &[u8]) -> Result<Delta<'_>, ResponseError>,
    /// Header that carries the prompt tokens, when the body does not.
    pub(in crate::upstream) input_tokens_header: Option<&'static str>,
}

/// Addition of one event.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Delta<'a> {
    /// Text, as JSON.
    pub(in crate::upstream) text: Option<&'a RawValue>,
    /// Reasoning before it, as JSON.
    pub(in crate::upstream) reasoning: Option<&'a RawValue>,
    /// Fragments of tool calls.
    pub(in crate::upstream) tool_calls: Vec<ToolFragment>,
    /// Usage so far.
    pub(in crate::upstream) usage: Option<Usage>,
    /// Costs of this event.
    pub(in crate::upstream) costs: ReportedCosts,
    /// The text has come to its end.
    pub(in crate::upstream) finished: bool,
    /// The stream ends with this event, without an end mark.
    pub(in crate::upstream) last: bool,
}

/// A part of the tool call number `index`.
#[derive(Debug, Default)]
pub(in crate::upstream) struct ToolFragment {
    pub(in crate::upstream) index: usize,
    pub(in crate::upstream) call: RequestedToolCall,
}

/// Tool calls being put together.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    pub(super) calls: Vec<RequestedToolCall>,
    bytes: usize,
}

impl ToolCalls {
    pub(super) fn add(&mut self, fragment: ToolFragment) -> Result<(), ResponseError> {
        let ToolFragment { index, call } = fragment;
        self.bytes +=
            call.id.as_ref().map_or(0, String::len) + call.name.len() + call.arguments.len();
        if index >= TOOL_CALLS_MAX || self.bytes > TOOL_BYTES_MAX {
            return Err(ResponseError::ResponseTooLong);
        }
        if self.calls.len() <= index {
            self.calls.resize(index + 1, RequestedToolCall::default());
        }
        let whole = &mut self.calls[index];
        whole.id = call.id.or(whole.id.take());
        whole.name.push_str(&call.name);
        whole.arguments.push_str(&call.arguments);
        Ok(())
    }
}

/// The stream so far.
#[derive(Debug)]
pub(super) struct ConvertedEvents {
    reader: &'static FormatDecoder,
    splitter: EventSplitter,
    tool_calls: ToolCalls,
}

impl ConvertedEvents {
    pub(super) fn new(reader: &'static FormatDecoder) -> ConvertedEvents {
        ConvertedEvents {
            reader,
            // What is converted has to be read whole.
            splitter: EventSplitter::with_limit(RESPONSE_BYTES_MAX),
            tool_calls: ToolCalls::default(),
        }
    }

    pub(super) fn held(&self) -> &[u8] {
        self.splitter.held()
    }

    pub(super) fn push(
        &mut self,
        chunk: &[u8],
        seen: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        let ConvertedEvents {
            reader,
            splitter,
            tool_calls,
        } = self;
        let mut converted = Ok(());
        let split = splitter.push(chunk, &mut |event| {
            if converted.is_ok() && seen.end == StreamEnd::Open {
                converted = convert(event, reader, tool_calls, seen, out);
            }
        });
        converted?;
        split.map_err(|_| ResponseError::EventTooLong)
    }
}

fn convert(
    event: &[u8],
    reader: &FormatDecoder,
    tool_calls: &mut ToolCalls,
    seen: &mut ResponseStats,
    out: &mut BytesMut,
) -> Result<(), ResponseError> {
    let Some(data) = sse::data(event) else {
        if event.starts_with(b":") {
            // A comment is a sign of life for this client too.
            out.extend_from_slice(event);
        }
        return Ok(());
    };
    let mut last = sse::is_done(&data);
    if !last {
        let piece = (reader.event)(&data)?;
        let written = |text: &&RawValue| text.get().len() > "\"\"".len();
        let text = piece.text.filter(written);
        let reasoning = piece.reasoning.filter(written);
        seen.token |= text.is_some() || reasoning.is_some() || !piece.tool_calls.is_empty();
        for generated in [reasoning, text].into_iter().flatten() {
            seen.generated(generated);
        }
        if text.is_some() || reasoning.is_some() {
            write_delta(text, reasoning, out);
        }
        for fragment in piece.tool_calls {
            seen.text.push(&fragment.call.name);
            seen.text.push(&fragment.call.arguments);
            tool_calls.add(fragment)?;
        }
        seen.report(piece.usage);
        seen.costs.add_all(&piece.costs);
        seen.choice(0, piece.finished);
        last = piece.last;
    }
    if last {
        let usage = Usage::join(seen.usage, usage_of_costs(&seen.costs));
        let usage = usage.map(Usage::to_openai);
        write_final_delta(&tool_calls.calls, usage.as_deref(), out);
        seen.end = StreamEnd::Complete;
    }
    Ok(())
}

/// Decoder of responses that become a Workers AI `run`'s.
pub struct ConvertingDecoder {
    format: &'static FormatDecoder,
    body: ConvertedBody,
    /// Events are expected, where the head does not say.
    expects_events: bool,
}

enum ConvertedBody {
    Json(BytesMut),
    Events(ConvertedEvents),
}

/// Choices that a `run` has.
const RUN_CHOICES: u32 = 1;

impl ConvertingDecoder {
    /// A decoder of the response to `call`, which has this format.
    pub fn decoder(call: &Call, format: &'static FormatDecoder) -> Box<dyn ResponseDecoder> {
        Box::new(ConvertingDecoder {
            format,
            body: ConvertedBody::Json(BytesMut::new()),
            expects_events: expects_events(call),
        })
    }
}

impl ResponseDecoder for ConvertingDecoder {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        if let Some(name) = self.format.input_tokens_header {
            cx.stats.usage = (head.header)(name).and_then(Usage::from_input_header);
        }
        let (body, mode) = match head.kind.or_expected(self.expects_events) {
            BodyKind::Events => {
                let events = ConvertedEvents::new(self.format);
                (ConvertedBody::Events(events), BodyMode::Events)
            }
            _ => (ConvertedBody::Json(BytesMut::new()), BodyMode::Collected),
        };
        self.body = body;
        Body {
            mode,
            keeps_content_type: false,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        match &mut self.body {
            ConvertedBody::Json(body) => collect(chunk, body, cx.stats),
            ConvertedBody::Events(events) => {
                events.push(chunk, cx.stats, out)?;
                Ok(PushOutput::Out)
            }
        }
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &mut self.body {
            ConvertedBody::Json(body) => {
                let mut converted = BytesMut::new();
                let known = cx.stats.usage;
                cx.stats.usage = (self.format.json)(without_bom(body), known, &mut converted)?;
                let result = workers_ai::result_of(&converted).ok_or(ResponseError::Malformed)?;
                cx.stats.keep_whole(result);
                match cx.shape("application/json", result)? {
                    Some(result) => workers_ai::write_result(json_value(&result)?, out),
                    None => out.unsplit(converted),
                }
                Ok(())
            }
            ConvertedBody::Events(events) => {
                let held = events.held();
                let is_blank = held.trim_ascii().is_empty();
                let is_whole = is_blank && cx.stats.is_finished(RUN_CHOICES);
                let end = end_of_events(held, is_whole)?;
                events.push(end, cx.stats, out)
            }
        }
    }
}

/// The event reader of responses that are never streamed.
pub(in crate::upstream) fn no_events(_data: &[u8]) -> Result<Delta<'_>, ResponseError> {
    Err(ResponseError::Malformed)
}

/// Writes vectors, each a JSON array of as many numbers.
pub(in crate::upstream) fn write_rows(
    rows: &[&RawValue],
    out: &mut BytesMut,
) -> Result<(), ResponseError> {
    let mut dimensions = None;
    for row in rows {
        let length = row_length(row.get()).ok_or(ResponseError::Malformed)?;
        if *dimensions.get_or_insert(length) != length {
            return Err(ResponseError::Malformed);
        }
    }
    write_embeddings(
        &EmbeddingsResult {
            dimensions: dimensions.unwrap_or(0),
            rows,
        },
        out,
    );
    Ok(())
}

/// Numbers in a flat JSON array.
fn row_length(json: &str) -> Option<usize> {
    let inner = json.strip_prefix('[')?.strip_suffix(']')?;
    if inner.contains(['[', '{', '"']) {
        return None;
    }
    let commas = memchr::memchr_iter(b',', inner.as_bytes()).count();
    Some(if inner.trim().is_empty() {
        0
    } else {
        commas + 1
    })
}
