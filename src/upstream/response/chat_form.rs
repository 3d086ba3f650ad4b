//! Completions read as the chat responses that their clients asked for.
//!
//! For models whose chat template the gateway renders. The decoder behind it reads a chat response, as if the server had
//! written one. A whole response is held until complete, up to [`RESPONSE_BYTES_MAX`]; a longer one is an error.

use bytes::BytesMut;
use infergate_core::api::chat_template::{ChatChunks, chat_response};
use infergate_core::api::sse::{self, EventSplitter};

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::decoder::{Body, BodyMode, DecoderContext, DecoderHead, PushOutput, ResponseDecoder};
use super::error::ResponseError;
use super::model_name::ModelNameRewriter;

/// Decoder of completions for a decoder of chat responses.
pub struct ChatFormDecoder {
    inner: Box<dyn ResponseDecoder>,
    body: CompletionBody,
    /// Events are expected, where the head does not say.
    expects_events: bool,
}

enum CompletionBody {
    Whole(BytesMut),
    Events(EventSplitter, ChatChunks),
    /// Neither: the decoder behind sees it as it is.
    Other,
}

impl ChatFormDecoder {
    /// Puts the decoder before `inner`.
    pub fn before(inner: Box<dyn ResponseDecoder>, expects_events: bool) -> Box<ChatFormDecoder> {
        Box::new(ChatFormDecoder {
            inner,
            body: CompletionBody::Other,
            expects_events,
        })
    }
}

/// Gives bytes to the decoder behind, whose client gets them in `out`.
fn pass(
    inner: &mut dyn ResponseDecoder,
    bytes: &[u8],
    cx: &mut DecoderContext<'_>,
    out: &mut BytesMut,
) -> Result<(), ResponseError> {
    if let PushOutput::First(length) = inner.push(bytes, cx, out)? {
        out.extend_from_slice(&bytes[..length]);
    }
    Ok(())
}

impl ResponseDecoder for ChatFormDecoder {
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body {
        let mut body = self.inner.head(head, cx);
        self.body = match head.kind.or_expected(self.expects_events) {
            BodyKind::Events => {
                let splitter = EventSplitter::with_limit(RESPONSE_BYTES_MAX);
                CompletionBody::Events(splitter, ChatChunks::default())
            }
            _ if body.mode == BodyMode::Bytes => CompletionBody::Other,
            _ => CompletionBody::Whole(BytesMut::new()),
        };
        if let BodyMode::Json { is_unchanged } = &mut body.mode {
            *is_unchanged = false;
        }
        body
    }

    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError> {
        match &mut self.body {
            CompletionBody::Other => self.inner.push(chunk, cx, out),
            CompletionBody::Whole(body) => {
                if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                    return Err(ResponseError::ResponseTooLong);
                }
                body.extend_from_slice(chunk);
                Ok(PushOutput::Out)
            }
            CompletionBody::Events(splitter, chunks) => {
                let mut events = BytesMut::new();
                let split = splitter.push(chunk, &mut |event| {
                    let data = sse::data(event);
                    match data.and_then(|data| chunks.convert(&data)) {
                        Some(data) => sse::event(&data, &mut events),
                        None => events.extend_from_slice(event),
                    }
                });
                pass(&mut *self.inner, &events, cx, out)?;
                split.map_err(|_| ResponseError::EventTooLong)?;
                Ok(PushOutput::Out)
            }
        }
    }

    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError> {
        let rest = match &mut self.body {
            CompletionBody::Other => None,
            CompletionBody::Whole(body) => {
                // What is no completion is for the decoder behind to judge.
                let body = std::mem::take(body);
                let response = chat_response(&body);
                Some(response.unwrap_or_else(|| body.to_vec()))
            }
            CompletionBody::Events(splitter, _) => Some(splitter.held().to_vec()),
        };
        if let Some(rest) = rest {
            pass(&mut *self.inner, &rest, cx, out)?;
        }
        self.inner.finish(cx, out)
    }

    fn rename_model(&mut self, name: ModelNameRewriter) {
        self.inner.rename_model(name);
    }
}
