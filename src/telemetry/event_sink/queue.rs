//! Queue between requests and the writer of their events.
//!
//! Not a channel: the writer takes all that waits at once, and room for events is kept from one turn to the
//! next. A push wakes the writer only where that rests, so a busy gateway pays no system call for an event. The
//! bound is the sink's. Called by [`EventSink`](super::EventSink) and its writer.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::StoreResult;
use crate::telemetry::event::InferenceEvent;

/// Events that room is kept for: an interval of them at 20,000 requests a second, half a megabyte.
const EVENTS_KEPT: usize = 1024;

/// Event, or its line as it was rendered before.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are events, which must not cost an allocation each"
)]
pub(super) enum EventContent {
    /// To be rendered.
    Event(InferenceEvent),
    /// Rendered, newline included.
    Line(Bytes),
}

/// Event on its way to the file.
pub(super) struct QueuedEvent {
    pub content: EventContent,
    /// Completes when the event is on the disk or lost.
    pub stored: Option<oneshot::Sender<StoreResult>>,
}

/// Result of a push.
pub(super) enum PushResult {
    /// Waits for the writer, which has to be woken.
    QueuedFirst,
    /// Waits for the writer, which comes by itself.
    Queued,
    /// Dropped: the queue is full.
    Full(Option<oneshot::Sender<StoreResult>>),
    /// Dropped: the writer has ended.
    Closed(Option<oneshot::Sender<StoreResult>>),
}

/// The queue.
pub(super) struct EventQueue {
    events_max: usize,
    /// Held by requests for one push, by the writer for one swap.
    state: Mutex<WaitingEvents>,
}

#[derive(Default)]
struct WaitingEvents {
    events: Vec<QueuedEvent>,
    /// The writer sleeps until it is woken.
    is_resting: bool,
    is_closed: bool,
}

impl EventQueue {
    pub fn new(events_max: usize) -> EventQueue {
        EventQueue {
            events_max,
            state: Mutex::default(),
        }
    }

    #[inline]
    pub fn push(
        &self,
        content: EventContent,
        stored: Option<oneshot::Sender<StoreResult>>,
    ) -> PushResult {
        let mut state = self.state.lock();
        if state.is_closed {
            return PushResult::Closed(stored);
        }
        if state.events.len() >= self.events_max {
            return PushResult::Full(stored);
        }
        state.events.push(QueuedEvent { content, stored });
        match std::mem::replace(&mut state.is_resting, false) {
            true => PushResult::QueuedFirst,
            false => PushResult::Queued,
        }
    }

    /// Swaps what waits for the empty `taken`.
    pub fn take(&self, taken: &mut Vec<QueuedEvent>) {
        debug_assert!(taken.is_empty(), "what was taken is written first");
        taken.shrink_to(EVENTS_KEPT);
        std::mem::swap(&mut self.state.lock().events, taken);
    }

    /// Lets the writer rest until a push wakes it; false where events wait already.
    pub fn begin_rest(&self) -> bool {
        let mut state = self.state.lock();
        state.is_resting = state.events.is_empty();
        state.is_resting
    }

    #[cfg(test)]
    pub fn is_writer_at_rest(&self) -> bool {
        self.state.lock().is_resting
    }

    /// Accepts no more events; those that wait stay.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::event::sample_event;

    fn push(queue: &EventQueue) -> PushResult {
        queue.push(EventContent::Event(sample_event("r")), None)
    }

    #[test]
    fn only_the_first_event_after_a_rest_wakes_the_writer() {
        let queue = EventQueue::new(8);
        assert!(
            matches!(push(&queue), PushResult::Queued),
            "the writer comes by itself"
        );
        assert!(!queue.begin_rest(), "an event waits");
        let mut taken = Vec::new();
        queue.take(&mut taken);
        assert_eq!(taken.len(), 1);
        assert!(queue.begin_rest());
        assert!(matches!(push(&queue), PushResult::QueuedFirst));
        assert!(matches!(push(&queue), PushResult::Queued));
    }

    #[test]
    fn a_full_and_a_closed_queue_hand_the_waiter_back() {
        let queue = EventQueue::new(1);
        push(&queue);
        let (stored, _receiver) = oneshot::channel();
        let full = queue.push(EventContent::Event(sample_event("r")), Some(stored));
        assert!(matches!(full, PushResult::Full(Some(_))));
        queue.close();
        assert!(matches!(push(&queue), PushResult::Closed(None)));
        let mut taken = Vec::new();
        queue.take(&mut taken);
        assert_eq!(taken.len(), 1, "what waits is still written");
    }

    #[test]
    fn room_beyond_the_usual_is_given_back() {
        let queue = EventQueue::new(EVENTS_KEPT * 2);
        for _ in 0..EVENTS_KEPT * 2 {
            push(&queue);
        }
        let mut taken = Vec::new();
        queue.take(&mut taken);
        taken.clear();
        queue.take(&mut taken);
        queue.take(&mut taken);
        assert!(taken.capacity() <= EVENTS_KEPT);
    }
}
