//! Answers to a client's own `generate` and `generate_stream`: whole, or event by event.
//!
//! Members pass as they are but for costs, which are summed and taken out, and the model's name, which is the client's.
//! A stream has no mark at its end. Forms are the core's.

use bytes::BytesMut;
use infergate_core::api::open_inference::{EditedPiece, GeneratedPiece, edit_generated};
use infergate_core::api::sse::{self, EventSplitter};
use serde_json::value::RawValue;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect, without_bom,
};
use super::error::ResponseError;
use super::stats::ResponseStats;

/// Decoder of the answer to a client's own request to generate.
pub struct GeneratedAnswer {
    /// Name of the model for the client.
    model: String,
    body: GeneratedBody,
}

enum GeneratedBody {
    Json(BytesMut),
    Events(EventSplitter),
}

impl GeneratedAnswer {
    /// A decoder of the answer to a client that called the model `model`.
    pub fn decoder(model: &str) -> Box<dyn ResponseDecoder> {
        Box::new(GeneratedAnswer {
            model: model.to_owned(),
            body: GeneratedBody::Json(BytesMut::new()),
        })
    }
}

impl ResponseDecoder for GeneratedAnswer {
    fn head(&mut self, head: &DecoderHead<'_, '_>, _: &mut DecoderContext<'_>) -> Body {
        let (body, mode) = match head.kind {
            BodyKind::Events => {
                let events = EventSplitter::with_limit(RESPONSE_BYTES_MAX);
                (GeneratedBody::Events(events), BodyMode::Events)
            }
            _ => (GeneratedBody::Json(BytesMut::new()), BodyMode::Collected),
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
        let GeneratedAnswer { model, body } = self;
        let events = match body {
            GeneratedBody::Json(body) => return collect(chunk, body, cx.stats),
            GeneratedBody::Events(events) => events,
        };
        let mut passed = Ok(());
        let split = events.push(chunk, &mut |event| {
            if passed.is_ok() {
                passed = pass_event(event, model, cx.stats, out);
            }
        });
        passed?;
        split.map_err(|_| ResponseError::EventTooLong)?;
        Ok(PushOutput::Out)
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &self.body {
            GeneratedBody::Events(events) if events.held().trim_ascii().is_empty() => Ok(()),
            GeneratedBody::Events(_) => Err(ResponseError::EndedEarly),
            GeneratedBody::Json(body) => {
                let EditedPiece { json, piece } = edit_generated(without_bom(body), &self.model)?;
                cx.stats.costs.add_all(&piece.costs);
                for text in texts(&piece) {
                    cx.stats.generated(text);
                }
                out.extend_from_slice(&json);
                Ok(())
            }
        }
    }
}

fn pass_event(
    event: &[u8],
    model: &str,
    stats: &mut ResponseStats,
    out: &mut BytesMut,
) -> Result<(), ResponseError> {
    let Some(data) = sse::data(event) else {
        // A comment is a sign of life for this client too.
        if event.starts_with(b":") {
            out.extend_from_slice(event);
        }
        return Ok(());
    };
    // The model broke off after its 200.
    let edited = edit_generated(&data, model).map_err(|_| ResponseError::BackendFailed)?;
    stats.costs.add_all(&edited.piece.costs);
    for text in texts(&edited.piece) {
        stats.token |= text.get().len() > "\"\"".len();
        stats.generated(text);
    }
    sse::event(&edited.json, out);
    Ok(())
}

/// Texts of a piece: one, or those of a batch.
fn texts<'a>(piece: &GeneratedPiece<'a>) -> Vec<&'a RawValue> {
    let text = piece.text.unwrap_or("null");
    let list: Result<Vec<&RawValue>, _> = serde_json::from_str(text);
    list.or_else(|_| serde_json::from_str(text).map(|text| vec![text]))
        .unwrap_or_default()
}
