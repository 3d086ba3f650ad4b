//! A backend's answer on its way to the client: passed on, or converted to another dialect.
//!
//! It is bytes in, bytes out: no socket, no clock, no status. Per answer it holds at most one
//! event of [`sse::EVENT_BYTES_MAX`] or, where a whole answer is converted, [`ANSWER_BYTES_MAX`].
//! The walk calls [`Answer::begin`] once with the 2xx head, [`Answer::push`] for each chunk, then
//! [`Answer::finish`] — or [`Answer::abort`], which is also what follows any error.

mod failure;
mod openai;
mod pass;
mod run;
#[cfg(test)]
mod tests;

use bytes::BytesMut;
use infergate_core::Refusal;
use infergate_core::api::scan::TopLevel;
use infergate_core::api::{Call, Face, Operation, sse};
use infergate_core::billing::Usage;

pub use failure::{client_error_body, error_event};
pub(super) use openai::{OPENAI_EMBEDDINGS, OPENAI_TEXT};
pub(super) use run::{Piece, Reader, no_events, write_rows};

/// The longest answer that is collected to be converted: 100 vectors of 4,096 dimensions, written
/// with all digits, are 9 MB.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

const EVENT_STREAM: &[u8] = b"text/event-stream";
const JSON: &[u8] = b"application/json";

/// Why an answer that began well cannot be passed on to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// An event grew over its bound.
    #[error("the backend sent an event over {} bytes", sse::EVENT_BYTES_MAX)]
    EventTooLong,
    /// An answer to be converted grew over its bound.
    #[error("the backend's answer is over {ANSWER_BYTES_MAX} bytes")]
    AnswerTooLong,
    /// Not the shape this kind of backend answers with.
    #[error("the backend's answer has an unexpected shape")]
    Malformed,
    /// The stream closed in good order but without its end mark.
    #[error("the backend's stream ended without its end mark")]
    EndedEarly,
    /// The backend reported a failure of its own after its 200.
    #[error("the backend reported a failure in its answer")]
    BackendFailed,
}

impl From<AnswerError> for Refusal {
    fn from(_: AnswerError) -> Refusal {
        Refusal::UpstreamFailed
    }
}

/// What to send to the client after a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// The chunk itself, unchanged; nothing was appended to `out`.
    Whole,
    /// What was appended to `out`, which may be nothing.
    Out,
}

/// What has been learned from the bytes that went by.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    usage: Option<Usage>,
    token: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// The client has everything.
    Complete,
    /// The client has been told that there is no more.
    Broken,
}

/// One answer being read.
#[derive(Debug)]
pub struct Answer {
    face: Face,
    /// How it is converted; without one it passes unchanged.
    reader: Option<&'static Reader>,
    /// The usage chunk was asked for by the gateway, so the client must not see it.
    hides_usage: bool,
    form: Form,
    seen: Seen,
}

#[derive(Debug)]
enum Form {
    PassJson(TopLevel),
    PassEvents(pass::Events),
    RunJson(BytesMut),
    RunEvents(run::Events),
}

impl Answer {
    /// An answer in the client's own dialect.
    pub(super) fn pass(call: &Call) -> Answer {
        Answer::new(call, None)
    }

    /// An answer converted for the Workers AI face.
    pub(super) fn run(call: &Call, reader: &'static Reader) -> Answer {
        Answer::new(call, Some(reader))
    }

    fn new(call: &Call, reader: Option<&'static Reader>) -> Answer {
        // Until the head says what it is; embeddings have no streamed form.
        let streams = call.stream && call.operation != Operation::Embeddings;
        Answer {
            face: call.face,
            reader,
            hides_usage: call.stream && !call.usage_asked,
            form: form(reader, streams),
            seen: Seen::default(),
        }
    }

    /// The head has arrived: settles by its content type, not by what was asked, how the body is
    /// read. `header` looks one up by its lower-case name.
    pub fn begin<'h>(&mut self, header: impl Fn(&'static str) -> Option<&'h [u8]>) {
        let streams = match header("content-type") {
            Some(kind) if has_prefix(kind, EVENT_STREAM) => true,
            Some(kind) if has_prefix(kind, JSON) => false,
            _ => self.is_stream(),
        };
        self.form = form(self.reader, streams);
        if let Some(name) = self.reader.and_then(|reader| reader.input_tokens_header) {
            self.seen.usage = header(name).and_then(Usage::from_input_header);
        }
    }

    /// What the client is told: the backend's own where the bytes are the backend's.
    pub fn content_type<'h>(&self, upstream: Option<&'h [u8]>) -> &'h [u8] {
        match upstream {
            Some(kind) if self.reader.is_none() => kind,
            _ if self.is_stream() => EVENT_STREAM,
            _ => JSON,
        }
    }

    /// The client gets events.
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::PassEvents(_) | Form::RunEvents(_))
    }

    /// Every byte passes unchanged, so the backend's `Content-Length` holds for the client too.
    pub fn passes_length(&self) -> bool {
        matches!(self.form, Form::PassJson(_))
    }

    /// [`Answer::finish`] will append nothing and find nothing missing.
    pub fn ends_silently(&self) -> bool {
        matches!(self.form, Form::PassJson(_)) || self.seen.end == End::Complete
    }

    /// Nothing reaches the client before [`Answer::finish`]: until then a failure can still be
    /// answered with a status, and the length is known before the head is sent.
    pub fn collects(&self) -> bool {
        matches!(self.form, Form::RunJson(_))
    }

    /// Reads a chunk. After an error, `out` holds what came before it and is still to be sent,
    /// followed by what [`Answer::abort`] appends.
    pub fn push(&mut self, chunk: &[u8], out: &mut BytesMut) -> Result<Push, AnswerError> {
        if chunk.is_empty() || self.seen.end != End::Open {
            // Past its end mark a stream has nothing for the client.
            return Ok(Push::Out);
        }
        match &mut self.form {
            Form::PassJson(scan) => {
                self.seen.token = true;
                scan.push(chunk);
                Ok(Push::Whole)
            }
            Form::PassEvents(events) => events.push(chunk, self.hides_usage, &mut self.seen, out),
            Form::RunJson(body) => {
                if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                    return Err(AnswerError::AnswerTooLong);
                }
                self.seen.token = true;
                body.extend_from_slice(chunk);
                Ok(Push::Out)
            }
            Form::RunEvents(events) => {
                events.push(chunk, &mut self.seen, out)?;
                Ok(Push::Out)
            }
        }
    }

    /// The backend has ended its answer in good order: appends what was collected, or says what
    /// the answer lacks.
    pub fn finish(&mut self, out: &mut BytesMut) -> Result<(), AnswerError> {
        if self.seen.end == End::Complete {
            return Ok(());
        }
        match &mut self.form {
            Form::PassJson(_) => {}
            Form::RunJson(body) => {
                let Some(reader) = self.reader else {
                    return Err(AnswerError::Malformed);
                };
                let before = out.len();
                let known = self.seen.usage;
                self.seen.usage =
                    (reader.json)(body, known, out).inspect_err(|_| out.truncate(before))?;
            }
            Form::PassEvents(_) | Form::RunEvents(_) => {
                // Some servers close right after the end mark, without its blank line.
                let held = match &self.form {
                    Form::PassEvents(events) => events.held(),
                    Form::RunEvents(events) => events.held(),
                    _ => b"",
                };
                if !sse::data(held).is_some_and(|data| sse::is_done(&data)) {
                    return Err(AnswerError::EndedEarly);
                }
                // A line end of its own first: the mark may lack even that.
                let _ = self.push(b"\n\n", out)?;
            }
        }
        self.seen.end = End::Complete;
        Ok(())
    }

    /// The answer breaks off: a half-received event is dropped and, on a stream, an error event in
    /// the client's dialect is appended, never an end mark. Any other answer can only be cut.
    pub fn abort(&mut self, out: &mut BytesMut, refusal: &Refusal) {
        if self.is_stream() && self.seen.end == End::Open {
            error_event(self.face, refusal, out);
        }
        if self.seen.end == End::Open {
            self.seen.end = End::Broken;
        }
    }

    /// Tokens the backend has reported so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.form {
            Form::PassJson(scan) => scan.value().and_then(Usage::from_openai),
            _ => self.seen.usage,
        }
    }

    /// The client has everything: one that closes now has not left early.
    pub fn done_seen(&self) -> bool {
        self.seen.end == End::Complete
    }

    /// The first generated text has come.
    pub fn token_seen(&self) -> bool {
        self.seen.token
    }
}

fn form(reader: Option<&'static Reader>, streams: bool) -> Form {
    match (reader, streams) {
        (None, false) => Form::PassJson(TopLevel::new("usage")),
        (None, true) => Form::PassEvents(pass::Events::default()),
        (Some(_), false) => Form::RunJson(BytesMut::new()),
        (Some(reader), true) => Form::RunEvents(run::Events::new(reader)),
    }
}

fn has_prefix(value: &[u8], prefix: &[u8]) -> bool {
    value
        .get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
