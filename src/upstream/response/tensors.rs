//! Responses of the Open Inference Protocol: the result of a task, or tensors for a client that asked for them.
//!
//! Costs are summed on the way and taken out. JSON is collected, up to [`RESPONSE_BYTES_MAX`]; tensors in binary pass as
//! they come, and none of them is held. Forms are the core's.

use std::collections::VecDeque;

use bytes::BytesMut;
use infergate_core::api::open_inference::{
    JSON_BYTES_HEADER, MalformedAnswer, TensorSpan, TensorUse, edit_answer, generated_piece,
    task_result,
};
use infergate_core::api::workers_ai;
use infergate_core::billing::Usage;
use serde_json::value::RawValue;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::convert::{ConvertedEvents, Delta, FormatDecoder};
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect,
    end_of_events, json_value, without_bom,
};
use super::error::ResponseError;
use super::reported_metrics::usage_of_costs;
use super::stats::ResponseStats;

const JSON: &str = "application/json";

impl From<MalformedAnswer> for ResponseError {
    fn from(_: MalformedAnswer) -> ResponseError {
        ResponseError::Malformed
    }
}

/// Events of `generate_stream`.
static GENERATED: FormatDecoder = FormatDecoder {
    json: |_, _, _| Err(ResponseError::Malformed),
    event: read_event,
    input_tokens_header: None,
};

fn read_event(data: &[u8]) -> Result<Delta<'_>, ResponseError> {
    // The model broke off after its 200.
    let piece = generated_piece(data).map_err(|_| ResponseError::BackendFailed)?;
    let text = piece.text.filter(|text| text.starts_with('"'));
    let text: Option<&RawValue> = text.and_then(|text| serde_json::from_str(text).ok());
    Ok(Delta {
        text,
        costs: piece.costs,
        // A stream has no mark at its end: with its last byte it is whole.
        finished: true,
        ..Delta::default()
    })
}

/// Decoder of the answer to a task's payload.
pub struct TensorResult {
    is_generated: bool,
    body: ResultBody,
}

enum ResultBody {
    Json(BytesMut),
    Events(ConvertedEvents),
}

impl TensorResult {
    /// A decoder of the answer to `generate` where `is_generated`, else to `infer`.
    pub fn decoder(is_generated: bool) -> Box<dyn ResponseDecoder> {
        Box::new(TensorResult {
            is_generated,
            body: ResultBody::Json(BytesMut::new()),
        })
    }
}

impl ResponseDecoder for TensorResult {
    fn head(&mut self, head: &DecoderHead<'_, '_>, _: &mut DecoderContext<'_>) -> Body {
        let (body, mode) = match head.kind {
            BodyKind::Events if self.is_generated => {
                let events = ConvertedEvents::new(&GENERATED);
                (ResultBody::Events(events), BodyMode::Events)
            }
            _ => (ResultBody::Json(BytesMut::new()), BodyMode::Collected),
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
            ResultBody::Json(body) => collect(chunk, body, cx.stats),
            ResultBody::Events(events) => {
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
            ResultBody::Events(events) => {
                let held = events.held();
                let is_whole = held.trim_ascii().is_empty();
                let end = end_of_events(held, is_whole)?;
                events.push(end, cx.stats, out)
            }
            ResultBody::Json(body) => {
                let body = without_bom(body);
                let (answer, costs) = match self.is_generated {
                    true => {
                        let piece = generated_piece(body)?;
                        let text = piece.text.ok_or(ResponseError::Malformed)?;
                        let usage = usage_of_costs(&piece.costs).map(Usage::to_openai);
                        let usage = usage.map_or(String::new(), |it| format!(r#","usage":{it}"#));
                        let answer = format!(r#"{{"response":{text}{usage}}}"#);
                        (answer.into_bytes(), piece.costs)
                    }
                    false => task_result(body)?,
                };
                cx.stats.costs.add_all(&costs);
                let shaped = cx.shape(JSON, &answer)?;
                let result = json_value(shaped.as_deref().unwrap_or(&answer))?;
                cx.stats.keep_whole(result);
                workers_ai::write_result(result, out);
                Ok(())
            }
        }
    }
}

/// Decoder of the answer to a client's own tensors.
pub struct TensorAnswer {
    /// Name of the model for the client.
    model: String,
    /// Outputs that the client named; empty for all.
    outputs: Vec<String>,
    body: AnswerBody,
}

enum AnswerBody {
    Json(BytesMut),
    /// The JSON before tensors, of so many bytes.
    Head {
        length: usize,
        held: BytesMut,
    },
    /// Tensors that are still to come.
    Tensors(VecDeque<TensorSpan>),
}

impl TensorAnswer {
    /// A decoder of the answer to a client that called the model `model` and named these outputs.
    pub fn decoder(model: &str, outputs: &[String]) -> Box<dyn ResponseDecoder> {
        Box::new(TensorAnswer {
            model: model.to_owned(),
            outputs: outputs.to_vec(),
            body: AnswerBody::Json(BytesMut::new()),
        })
    }

    /// Takes the JSON before the tensors; returns the rest of the chunk once it is whole.
    fn push_head<'c>(
        &mut self,
        chunk: &'c [u8],
        stats: &mut ResponseStats,
        out: &mut BytesMut,
    ) -> Result<&'c [u8], ResponseError> {
        let AnswerBody::Head { length, held } = &mut self.body else {
            return Ok(chunk);
        };
        if *length > RESPONSE_BYTES_MAX {
            return Err(ResponseError::ResponseTooLong);
        }
        let missing = (*length - held.len()).min(chunk.len());
        held.extend_from_slice(&chunk[..missing]);
        if held.len() == *length {
            let edit = edit_answer(held, &self.model, &self.outputs)?;
            stats.costs.add_all(&edit.costs);
            stats.tensor_json_bytes = Some(edit.json.len());
            out.extend_from_slice(&edit.json);
            self.body = AnswerBody::Tensors(edit.spans.into());
        }
        Ok(&chunk[missing..])
    }
}

impl ResponseDecoder for TensorAnswer {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        let length = (head.header)(JSON_BYTES_HEADER).and_then(|value| {
            let text = std::str::from_utf8(value).ok()?;
            text.trim().parse().ok()
        });
        cx.stats.tensor_json_bytes = None;
        let (body, mode) = match length {
            Some(length) => {
                let held = BytesMut::new();
                (AnswerBody::Head { length, held }, BodyMode::Tensors)
            }
            None => (AnswerBody::Json(BytesMut::new()), BodyMode::Collected),
        };
        self.body = body;
        Body {
            mode,
            keeps_content_type: true,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        cx.stats.token = true;
        if let AnswerBody::Json(body) = &mut self.body {
            return collect(chunk, body, cx.stats);
        }
        let rest = self.push_head(chunk, cx.stats, out)?;
        let AnswerBody::Tensors(spans) = &mut self.body else {
            return Ok(PushOutput::Out);
        };
        let is_untouched = rest.len() == chunk.len();
        push_tensors(rest, is_untouched, spans, cx.stats, out)
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &mut self.body {
            AnswerBody::Json(body) => {
                let edit = edit_answer(without_bom(body), &self.model, &self.outputs)?;
                if !edit.spans.is_empty() {
                    return Err(ResponseError::Malformed);
                }
                cx.stats.costs.add_all(&edit.costs);
                out.extend_from_slice(&edit.json);
                Ok(())
            }
            AnswerBody::Head { .. } => Err(ResponseError::EndedEarly),
            AnswerBody::Tensors(spans) => {
                end_spans(spans, cx.stats);
                match spans.is_empty() {
                    true => Ok(()),
                    false => Err(ResponseError::EndedEarly),
                }
            }
        }
    }
}

/// Passes, drops or sums the next bytes of tensors. A chunk that is part of one tensor for the client passes without a
/// copy where it `is_untouched`.
fn push_tensors(
    bytes: &[u8],
    is_untouched: bool,
    spans: &mut VecDeque<TensorSpan>,
    stats: &mut ResponseStats,
    out: &mut BytesMut,
) -> Result<PushOutput, ResponseError> {
    end_spans(spans, stats);
    let mut rest = bytes;
    while !rest.is_empty() {
        let span = spans.front_mut().ok_or(ResponseError::Malformed)?;
        let left = usize::try_from(span.bytes).unwrap_or(usize::MAX);
        let (taken, after) = rest.split_at(left.min(rest.len()));
        span.bytes -= taken.len() as u64;
        match &mut span.purpose {
            TensorUse::Pass if is_untouched && taken.len() == bytes.len() => {
                return Ok(PushOutput::First(bytes.len()));
            }
            TensorUse::Pass => out.extend_from_slice(taken),
            TensorUse::Drop => {}
            TensorUse::Cost(sum) => sum.push(taken),
        }
        rest = after;
        end_spans(spans, stats);
    }
    Ok(PushOutput::Out)
}

/// Takes off the tensors that are whole, and records their costs.
fn end_spans(spans: &mut VecDeque<TensorSpan>, stats: &mut ResponseStats) {
    while let Some(span) = spans.pop_front_if(|span| span.bytes == 0) {
        if let TensorUse::Cost(sum) = span.purpose {
            sum.finish(&mut stats.costs);
        }
    }
}
