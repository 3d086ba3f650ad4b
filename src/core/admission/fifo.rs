//! Arrival order, one queue for all accounts.
//!
//! Not fair: an account with many requests gets most permits. Its bound is therefore global.
//! O(1). Called by the admission queue. Known in the source system as the FIFO queue.

use super::ask::Ask;
use super::discipline::{Discipline, Prospect, Waiters};
use super::line::Line;
use super::slab::Place;

/// A single queue.
#[derive(Default)]
pub(super) struct Fifo {
    waiting: Line,
}

impl Discipline for Fifo {
    fn prospect(&self, ask: &Ask, _waiters: &Waiters) -> Prospect {
        let line_depth = self.waiting.len();
        Prospect {
            line_depth,
            grants_ahead: if ask.resume { 0 } else { line_depth },
            account_line: None,
        }
    }

    fn join(&mut self, waiters: &mut Waiters, place: Place) {
        if waiters[place].ask.resume {
            self.waiting.push_front(waiters, place);
        } else {
            self.waiting.push_back(waiters, place);
        }
    }

    fn next(&self) -> Option<Place> {
        self.waiting.head()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        if let Some(place) = self.waiting.head() {
            self.waiting.remove(waiters, place);
        }
    }

    fn leave(&mut self, waiters: &mut Waiters, place: Place) {
        self.waiting.remove(waiters, place);
    }

    fn check(&self, waiters: &Waiters) {
        self.waiting.check(waiters);
        assert_eq!(self.waiting.len(), waiters.len(), "every waiter is in line");
    }
}
