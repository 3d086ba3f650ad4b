//! Responses of plain HTTP servers: a result of the model's task, or bytes of no concern to the gateway.
//!
//! No protocol is read here: JSON is the result, and any other body is the client's as it is.

use bytes::BytesMut;
use infergate_core::api::workers_ai;

use super::body_kind::BodyKind;
use super::decoder::{
    Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder, collect, json_value,
    usage_in, without_bom,
};
use super::error::ResponseError;
use super::passthrough::PassedEvents;

/// Decoder of the response of a server that is posted the task's payload.
pub struct TaskResult {
    body: PostedBody,
}

enum PostedBody {
    Bytes,
    Events(PassedEvents),
    Collected {
        body: BytesMut,
        content_type: String,
    },
}

impl TaskResult {
    /// A decoder.
    pub fn decoder() -> Box<dyn ResponseDecoder> {
        let body = PostedBody::Bytes;
        Box::new(TaskResult { body })
    }
}

impl ResponseDecoder for TaskResult {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        let content_type = String::from_utf8_lossy(head.content_type).into_owned();
        let is_text = || {
            let kind = content_type.trim_start().to_ascii_lowercase();
            kind.starts_with("text/")
        };
        let is_collected = match head.kind {
            BodyKind::Json => true,
            BodyKind::Events => false,
            // A text is collected as JSON is where the task makes a result of it.
            BodyKind::Other => cx.shapes_results() && is_text(),
        };
        let (body, mode) = match head.kind {
            _ if is_collected => {
                let body = PostedBody::Collected {
                    body: BytesMut::new(),
                    content_type,
                };
                (body, BodyMode::Collected)
            }
            BodyKind::Events => {
                let events = PassedEvents::for_context(cx);
                (PostedBody::Events(events), BodyMode::Events)
            }
            _ => (PostedBody::Bytes, BodyMode::Bytes),
        };
        self.body = body;
        Body {
            mode,
            keeps_content_type: !is_collected,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        match &mut self.body {
            PostedBody::Bytes => Ok(pass(chunk, cx)),
            PostedBody::Events(events) => events.push(chunk, false, None, cx.stats, out),
            PostedBody::Collected { body, .. } => collect(chunk, body, cx.stats),
        }
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        match &mut self.body {
            PostedBody::Bytes => Ok(()),
            // Plain servers need not know the end mark; the end of the message is theirs.
            PostedBody::Events(events) => events.finish(true, false, None, cx.stats, out),
            PostedBody::Collected { body, content_type } => {
                let body = without_bom(body);
                cx.stats.usage = usage_in(body);
                let shaped = cx.shape(content_type, body)?;
                let result = json_value(shaped.as_deref().unwrap_or(body))?;
                cx.stats.keep_whole(result);
                workers_ai::write_result(result, out);
                Ok(())
            }
        }
    }
}

/// Decoder of responses that pass unread.
pub struct Opaque;

impl Opaque {
    /// A decoder.
    pub fn decoder() -> Box<dyn ResponseDecoder> {
        Box::new(Opaque)
    }
}

impl ResponseDecoder for Opaque {
    fn head(&mut self, _: &DecoderHead<'_, '_>, _: &mut DecoderContext<'_>) -> Body {
        Body {
            mode: BodyMode::Bytes,
            keeps_content_type: true,
        }
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        _: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        Ok(pass(chunk, cx))
    }

    fn finish(
        &mut self,
        _: &mut DecoderContext<'_>,
        _: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        Ok(())
    }
}

fn pass(chunk: &[u8], cx: &mut DecoderContext<'_>) -> PushOutput {
    cx.stats.token = true;
    cx.stats.keep(chunk);
    PushOutput::First(chunk.len())
}
