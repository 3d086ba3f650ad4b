//! Arrival order, one queue for all accounts.
//!
//! Not fair: an account with many requests gets most permits. Its bound is therefore global.
//! O(1). Called by the admission queue. Known in the source system as the FIFO queue.

use super::discipline::{Discipline, QueueEstimate, Waiters, count_live};
use super::permit_request::PermitRequest;
use super::queue::Queue;
use super::slab::SlotKey;

/// A single queue.
#[derive(Default)]
pub(super) struct Fifo {
    waiting: Queue,
    /// Waiters that are bounded elsewhere.
    outside: usize,
}

impl Fifo {
    fn remove(&mut self, waiters: &mut Waiters, place: SlotKey) {
        self.waiting.remove(waiters, place);
        self.outside -= usize::from(waiters[place].request.is_bounded_elsewhere);
    }
}

impl Discipline for Fifo {
    fn estimate(&self, request: &PermitRequest) -> QueueEstimate {
        let line_depth = self.waiting.len();
        QueueEstimate {
            queue_depth: line_depth - self.outside,
            grants_ahead: if request.is_retry { 0 } else { line_depth },
            account_queue: None,
        }
    }

    fn join(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let request = &waiters[place].request;
        self.outside += usize::from(request.is_bounded_elsewhere);
        if request.is_retry {
            self.waiting.push_front(waiters, place);
        } else {
            self.waiting.push_back(waiters, place);
        }
    }

    fn next(&self) -> Option<SlotKey> {
        self.waiting.head()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        if let Some(place) = self.waiting.head() {
            self.remove(waiters, place);
        }
    }

    fn cancel(&mut self, waiters: &mut Waiters, place: SlotKey) {
        self.remove(waiters, place);
    }

    fn check(&self, waiters: &Waiters) {
        self.waiting.check(waiters);
        assert_eq!(
            self.waiting.len(),
            count_live(waiters),
            "every waiter is in line"
        );
    }
}
