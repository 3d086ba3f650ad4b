//! The task's part in a response: on the whole result, or on the events of a stream as they come.
//! Responses in the OpenAI dialect reach it where the operator has configured that.
//!
//! No server's shapes are read here: the input is a result or whole events. Events of one read are
//! one call of the task. Comments and the end mark are not the task's; they keep their place.

use bytes::{Bytes, BytesMut};
use infergate_core::api::ApiDialect;
use infergate_core::api::sse::{self, EventSplitter};
use infergate_core::task::{EventEdit, StreamEvent};

use super::bounds::RESPONSE_BYTES_MAX;
use super::error::ResponseError;
use crate::plugin::TaskSession;

/// The task of one request while its response passes.
pub struct TaskTransform {
    session: TaskSession,
    /// The task sees answers of this dialect.
    sees: bool,
    /// True while the task gets events and has not been given the end.
    streaming: bool,
}

/// A part of a stream between two calls of the task.
enum StreamPart<'a> {
    /// Not the task's.
    Other(&'a [u8]),
    /// The task's next event, as it came.
    Event(&'a [u8]),
}

impl TaskTransform {
    pub(super) fn new(mut session: TaskSession, dialect: ApiDialect) -> TaskTransform {
        TaskTransform {
            sees: session.select_dialect(dialect),
            session,
            streaming: false,
        }
    }

    pub(super) fn session(&self) -> &TaskSession {
        &self.session
    }

    /// The response's form is known.
    pub(super) fn begin(&mut self, is_stream: bool) {
        self.streaming = is_stream && self.shapes_events();
    }

    /// The task edits the events of this answer.
    pub(super) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// The task has something to do with events.
    pub(super) fn shapes_events(&self) -> bool {
        self.sees && self.session.shapes_events()
    }

    /// The task has something to do with a whole response.
    pub(super) fn shapes_answer(&self) -> bool {
        self.sees && self.session.shapes_answer()
    }

    /// The result as the task makes it of `body`; none where it has nothing to do.
    pub(super) fn result(
        &mut self,
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<Option<Bytes>, ResponseError> {
        if !self.shapes_answer() {
            return Ok(None);
        }
        let body = Bytes::copy_from_slice(body);
        let shaped = self.session.finish(status, content_type, body);
        shaped.map(Some).map_err(ResponseError::refused)
    }

    /// Appends to `out` what becomes of whole events. Before the end mark the task may add some.
    pub(super) fn events(&mut self, bytes: &[u8], out: &mut BytesMut) -> Result<(), ResponseError> {
        let mut rest = bytes;
        while let Some(done) = end_mark(rest) {
            let (before, after) = rest.split_at(done.start);
            self.batch(before, out)?;
            self.close(false, out)?;
            let (mark, after) = after.split_at(done.len());
            out.extend_from_slice(mark);
            rest = after;
        }
        self.batch(rest, out)
    }

    /// Passes the end to the task, once; `cut` when the stream broke off.
    pub(super) fn close(&mut self, cut: bool, out: &mut BytesMut) -> Result<(), ResponseError> {
        if !std::mem::take(&mut self.streaming) {
            return Ok(());
        }
        for added in self.session.close(cut).map_err(ResponseError::refused)? {
            if let EventEdit::Replace(event) = added {
                write(&event, out);
            }
        }
        Ok(())
    }

    fn batch(&mut self, bytes: &[u8], out: &mut BytesMut) -> Result<(), ResponseError> {
        let mut parts = Vec::new();
        let mut events = Vec::new();
        let mut at = 0;
        let mut splitter = EventSplitter::with_limit(RESPONSE_BYTES_MAX);
        let split = splitter.push(bytes, &mut |raw| {
            let raw = &bytes[at..at + raw.len()];
            at += raw.len();
            parts.push(match sse::data(raw) {
                Some(data) => {
                    events.push(StreamEvent {
                        name: sse::name(raw).map(str::to_owned),
                        data: data.into_owned(),
                    });
                    StreamPart::Event(raw)
                }
                None => StreamPart::Other(raw),
            });
        });
        split.map_err(|_| ResponseError::EventTooLong)?;
        let mut outs = match events.is_empty() {
            true => Vec::new(),
            false => self.session.push(events).map_err(ResponseError::refused)?,
        }
        .into_iter();
        for part in parts {
            match part {
                StreamPart::Other(raw) => out.extend_from_slice(raw),
                StreamPart::Event(raw) => match outs.next() {
                    Some(EventEdit::Keep) | None => out.extend_from_slice(raw),
                    Some(EventEdit::Drop) => {}
                    Some(EventEdit::Replace(event)) => write(&event, out),
                },
            }
        }
        Ok(())
    }
}

impl Drop for TaskTransform {
    fn drop(&mut self) {
        // Whoever drops a stream in the middle has cut it.
        let _ = self.close(true, &mut BytesMut::new());
    }
}

fn write(event: &StreamEvent, out: &mut BytesMut) {
    if let Some(name) = &event.name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\n");
    }
    sse::event(&event.data, out);
}

/// Range of the first end mark among whole events.
fn end_mark(bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut at = 0;
    let mut found = None;
    let mut splitter = EventSplitter::default();
    // Whole events of bounded size: there is nothing to go wrong with.
    let _ = splitter.push(bytes, &mut |raw| {
        if found.is_none() && sse::data(raw).is_some_and(|data| sse::is_done(&data)) {
            found = Some(at..at + raw.len());
        }
        at += raw.len();
    });
    found
}
