//! Decoder of the responses of one protocol: the trait that backends implement.
//!
//! Bytes in, bytes out, without socket or clock. A decoder sees the head first, then each chunk of the body,
//! then the end; an error ends it. Errors, billing and the model's task are [`ResponseTransformer`]'s.
//!
//! [`ResponseTransformer`]: super::ResponseTransformer

use bytes::{Bytes, BytesMut};
use infergate_core::api::scan::MemberScanner;
use infergate_core::api::{Call, Operation, sse};
use infergate_core::billing::Usage;
use serde_json::value::RawValue;

use super::body_kind::BodyKind;
use super::bounds::RESPONSE_BYTES_MAX;
use super::error::ResponseError;
use super::model_name::ModelNameRewriter;
use super::stats::ResponseStats;
use super::task_transform::TaskTransform;

/// Bytes to send to the client after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum PushOutput {
    /// So many of the first bytes of the chunk, unchanged; no byte was appended to `out`.
    First(usize),
    /// The bytes appended to `out`, if any.
    Out,
}

/// Form in which the body of a response reaches the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Unread, as it comes.
    Bytes,
    /// JSON of the client's own dialect, as it comes; held where the model's name in it is replaced.
    Json {
        /// Every byte passes unchanged.
        is_unchanged: bool,
    },
    /// Event by event.
    Events,
    /// At the end, as one result.
    Collected,
    /// Piece by piece, without some tensors.
    Tensors,
}

/// Decision of a decoder on a body, from the head of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    /// Form in which it reaches the client.
    pub mode: BodyMode,
    /// The client gets the server's own content type.
    pub keeps_content_type: bool,
}

/// Head of a 2xx response, as far as decoders read it.
pub struct DecoderHead<'a, 'h> {
    /// Content type; empty without one.
    pub content_type: &'h [u8],
    /// Kind of the body by it.
    pub kind: BodyKind,
    /// Looks a header up by its lower-case name.
    pub header: &'a dyn Fn(&'static str) -> Option<&'h [u8]>,
}

/// State of a response beside its decoder.
pub struct DecoderContext<'a> {
    /// Facts learned from the bytes.
    pub stats: &'a mut ResponseStats,
    /// The model's task, where it has one.
    pub task: Option<&'a mut TaskTransform>,
    /// The transformer translates what the decoder yields into the client's dialect.
    pub is_translated: bool,
    /// Status of the head.
    pub status: u16,
}

impl DecoderContext<'_> {
    /// Returns whether the task changes whole responses.
    pub fn shapes_results(&self) -> bool {
        let task = self.task.as_deref();
        task.is_some_and(TaskTransform::shapes_answer)
    }

    /// The result as the task makes it of `body`; none where it leaves it as it is.
    pub fn shape(
        &mut self,
        content_type: &str,
        body: &[u8],
    ) -> Result<Option<Bytes>, ResponseError> {
        match self.task.as_deref_mut() {
            Some(task) => task.result(self.status, content_type, body),
            None => Ok(None),
        }
    }
}

/// Decoder of the responses of one protocol, made anew for each response.
pub trait ResponseDecoder: Send {
    /// Decides by the head how the body is read.
    fn head(&mut self, head: &DecoderHead<'_, '_>, cx: &mut DecoderContext<'_>) -> Body;

    /// Reads a chunk of the body. After an error, `out` holds what came before it.
    fn push(
        &mut self,
        chunk: &[u8],
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<PushOutput, ResponseError>;

    /// The body has ended in good order: appends what is left, or returns what the response lacks.
    fn finish(
        &mut self,
        cx: &mut DecoderContext<'_>,
        out: &mut BytesMut,
    ) -> Result<(), ResponseError>;

    /// Puts another name of the model into responses; ignored where they carry none.
    fn rename_model(&mut self, _name: ModelNameRewriter) {}
}

/// Text that ends a complete stream of events: the rest of an end mark that the server left without
/// its blank line, or the mark itself. `held` is the incomplete event; `is_whole` says whether a stream
/// without the mark is complete.
pub(super) fn end_of_events(held: &[u8], is_whole: bool) -> Result<&'static [u8], ResponseError> {
    // Some servers close right after the end mark, without its blank line.
    let is_done = sse::data(held).is_some_and(|data| sse::is_done(&data));
    match held {
        // A line end of its own first: the mark may lack even that.
        _ if is_done => Ok(b"\n\n"),
        _ if !is_whole => Err(ResponseError::EndedEarly),
        b"" => Ok(b"data: [DONE]\n\n"),
        _ => Ok(b"\n\ndata: [DONE]\n\n"),
    }
}

/// The body without the byte order mark that some servers put before it.
pub(super) fn without_bom(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}

/// Adds a chunk to a body that is collected, up to [`RESPONSE_BYTES_MAX`].
pub(super) fn collect(
    chunk: &[u8],
    body: &mut BytesMut,
    stats: &mut ResponseStats,
) -> Result<PushOutput, ResponseError> {
    if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
        return Err(ResponseError::ResponseTooLong);
    }
    stats.token = true;
    body.extend_from_slice(chunk);
    Ok(PushOutput::Out)
}

/// Returns whether `call` expects events: embeddings have no streamed form.
pub(super) fn expects_events(call: &Call) -> bool {
    call.stream && call.operation != Operation::Embeddings
}

/// A single JSON value, without the space around it.
pub(super) fn json_value(bytes: &[u8]) -> Result<&[u8], ResponseError> {
    let value: &RawValue = serde_json::from_slice(bytes).map_err(|_| ResponseError::Malformed)?;
    Ok(value.get().as_bytes())
}

/// Tokens in the top-level `usage` of a whole response.
pub(super) fn usage_in(body: &[u8]) -> Option<Usage> {
    let mut scan = MemberScanner::new("usage");
    scan.push(body).and_then(Usage::from_openai)
}
