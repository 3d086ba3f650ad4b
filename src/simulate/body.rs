//! Response bodies: whole, or event by event at their own pace. The content of events is elsewhere.
//!
//! Each event is handed over alone, and the next one only after hyper has had a chance to flush.
//! Every event is thus a write of its own, as from a real server. The slot is given back before the
//! last byte goes out; dropping the body earlier is a client that left.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::BoxStream;
use http::header::HeaderValue;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep_until};

use super::concurrency::WorkSlot;
use super::connection::{ConnectionCut, FaultableConnection};
use super::fault::Fault;
use super::pace::TokenPace;
use super::text::SimulatedText;
use super::usage::usage;

/// The body of any response.
pub(super) enum SimulatorBody {
    Whole(Bytes),
    Events(Box<PacedEvents>),
    Torn(TruncatedBody),
    /// Reports, for as long as the connection is open.
    Reports(BoxStream<'static, Bytes>),
}

/// A whole response.
pub(super) struct TaskOutput {
    pub(super) content_type: HeaderValue,
    pub(super) body: Bytes,
    pub(super) tokens: u32,
    /// Bytes of JSON before tensors in binary.
    pub(super) json_bytes: Option<usize>,
}

/// An answer before its time.
pub(super) enum SimulatedAnswer {
    Whole(TaskOutput),
    Events(EventScript),
}

/// The words of a stream: how each event is written.
pub(super) struct EventScript {
    /// Goes with the first token, as an event of its own.
    pub(super) opening: Option<Bytes>,
    /// Before and after the token's text as a JSON string.
    pub(super) before: Bytes,
    pub(super) after: Bytes,
    /// End of the event, after `after`.
    pub(super) tail: EventTail,
    pub(super) text: SimulatedText,
    /// Tokens written by `before` and `after`; a last one may be part of `closing`.
    pub(super) streamed: u32,
    /// Follow the last token at once.
    pub(super) closing: VecDeque<Bytes>,
}

/// End of a token's event.
pub(super) enum EventTail {
    /// The event has no further bytes.
    None,
    /// The token's number, from 1, and a closing brace.
    Number,
    /// Usage so far, and a closing brace.
    UsageSoFar { prompt_tokens: u64 },
    /// Usage since the event before, and a closing brace.
    UsageSince { prompt_tokens: u64 },
}

impl EventTail {
    /// After token `index`, counted from 0.
    fn write(&self, index: u32, event: &mut BytesMut) {
        let so_far = u64::from(index) + 1;
        let json = match *self {
            EventTail::None => return,
            EventTail::Number => so_far.to_string(),
            EventTail::UsageSoFar { prompt_tokens } => usage(prompt_tokens, so_far),
            EventTail::UsageSince { prompt_tokens } if index == 0 => usage(prompt_tokens, 1),
            EventTail::UsageSince { .. } => usage(0, 1),
        };
        event.put_slice(json.as_bytes());
        event.put_slice(b"}\n\n");
    }
}

impl EventScript {
    fn token(&self, index: u32) -> Bytes {
        let text = self.text.token(index);
        let mut event =
            BytesMut::with_capacity(self.before.len() + self.after.len() + text.len() + 32);
        event.put_slice(&self.before);
        let mut writer = event.writer();
        serde_json::to_writer(&mut writer, text).expect("a string serializes into memory");
        let mut event = writer.into_inner();
        event.put_slice(&self.after);
        self.tail.write(index, &mut event);
        event.freeze()
    }
}

/// A stream of events, paced.
pub(super) struct PacedEvents {
    script: EventScript,
    pace: TokenPace,
    slot: Option<WorkSlot>,
    fault: Option<Fault>,
    wire: Arc<FaultableConnection>,
    /// Tokens sent.
    sent: u32,
    timer: Option<Pin<Box<Sleep>>>,
    /// Let hyper flush the last event before the next.
    flush: bool,
}

impl PacedEvents {
    pub(super) fn new(
        script: EventScript,
        pace: TokenPace,
        slot: WorkSlot,
        fault: Option<Fault>,
        wire: Arc<FaultableConnection>,
    ) -> PacedEvents {
        let slot = Some(slot);
        PacedEvents {
            script,
            pace,
            slot,
            fault,
            wire,
            sent: 0,
            timer: None,
            flush: false,
        }
    }

    /// True when the next event must wait; arranges the wake-up.
    fn too_early(&mut self, cx: &mut Context<'_>) -> bool {
        // What closes the stream is due with the last token.
        let index = self.sent.min(self.script.text.tokens().saturating_sub(1));
        let Some(due) = self.pace.due(index) else {
            return false;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() != due {
            timer.as_mut().reset(due);
        }
        timer.as_mut().poll(cx).is_pending()
    }

    fn next_event(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.script.opening.take() {
            return Some(opening);
        }
        if self.sent < self.script.streamed {
            self.sent += 1;
            return Some(self.script.token(self.sent - 1));
        }
        let event = self.script.closing.pop_front();
        if self.script.closing.is_empty()
            && let Some(slot) = self.slot.take()
        {
            slot.finish(u64::from(self.script.text.tokens()));
        }
        event
    }
}

impl Body for SimulatorBody {
    type Data = Bytes;
    type Error = ConnectionCut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionCut>>> {
        match self.get_mut() {
            SimulatorBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            SimulatorBody::Whole(bytes) => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            SimulatorBody::Events(events) => events.poll_event(cx),
            SimulatorBody::Torn(torn) => torn.poll_half(cx),
            SimulatorBody::Reports(reports) => {
                let next = reports.as_mut().poll_next(cx);
                next.map(|report| Some(Ok(Frame::data(report?))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            SimulatorBody::Whole(bytes) => bytes.is_empty(),
            SimulatorBody::Events(events) => events.slot.is_none(),
            SimulatorBody::Torn(_) | SimulatorBody::Reports(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            SimulatorBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            SimulatorBody::Events(_) | SimulatorBody::Reports(_) => SizeHint::default(),
            SimulatorBody::Torn(torn) => SizeHint::with_exact(torn.announced),
        }
    }
}

impl PacedEvents {
    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionCut>>> {
        if std::mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let halfway = self.sent >= self.script.streamed.div_ceil(2);
        match self.fault {
            Some(Fault::ResetMidStream) if halfway => {
                if let Some(slot) = self.slot.take() {
                    slot.finish_faulted();
                }
                return Poll::Ready(Some(Err(self.wire.reset())));
            }
            // Nothing wakes this body again but the client's leaving.
            Some(Fault::StallMidStream) if halfway => return Poll::Pending,
            _ => {}
        }
        if self.too_early(cx) {
            return Poll::Pending;
        }
        self.flush = true;
        Poll::Ready(self.next_event().map(|event| Ok(Frame::data(event))))
    }
}

/// Half of a whole response, then a reset connection.
pub(super) struct TruncatedBody {
    half: Bytes,
    announced: u64,
    wire: Arc<FaultableConnection>,
    flush: bool,
}

impl TruncatedBody {
    pub(super) fn new(whole: &[u8], wire: Arc<FaultableConnection>) -> TruncatedBody {
        let half = Bytes::copy_from_slice(&whole[..whole.len() / 2]);
        TruncatedBody {
            half,
            announced: whole.len() as u64,
            wire,
            flush: false,
        }
    }

    fn poll_half(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionCut>>> {
        if std::mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.half.is_empty() {
            return Poll::Ready(Some(Err(self.wire.reset())));
        }
        self.flush = true;
        Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.half)))))
    }
}
