//! Most urgent first; among equals those whose model is warm; among those in arrival order.
//!
//! Without ageing: while urgent requests keep arriving, others wait until their deadline. An account's
//! `max_priority` limits the use of urgent levels. Twenty queues with one bound for all, O(1). Called by
//! the admission queue.

use super::discipline::{Discipline, QueueEstimate, Waiters, count_live};
use super::permit_request::PermitRequest;
use super::queue::Queue;
use super::slab::SlotKey;

/// The least urgent priority.
const PRIORITY_MAX: u8 = 9;

/// Ten priorities, each warm or not.
const LEVELS: usize = 2 * (PRIORITY_MAX as usize + 1);

/// A line for each level, level 0 first.
#[derive(Default)]
pub(super) struct Priority {
    levels: [Queue; LEVELS],
    /// Waiters that are bounded elsewhere.
    outside: usize,
    /// Bit `n` is set while level `n` has waiters.
    occupied: u32,
}

fn level(request: &PermitRequest) -> usize {
    2 * usize::from(request.priority.min(PRIORITY_MAX)) + usize::from(!request.is_warm)
}

impl Priority {
    fn remove(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let request = &waiters[place].request;
        let level = level(request);
        self.outside -= usize::from(request.is_bounded_elsewhere);
        self.levels[level].remove(waiters, place);
        if self.levels[level].is_empty() {
            self.occupied &= !(1 << level);
        }
    }
}

impl Discipline for Priority {
    fn estimate(&self, request: &PermitRequest) -> QueueEstimate {
        let own = level(request);
        let not_after = if request.is_retry { own } else { own + 1 };
        QueueEstimate {
            queue_depth: self.levels.iter().map(Queue::len).sum::<usize>() - self.outside,
            grants_ahead: self.levels[..not_after].iter().map(Queue::len).sum(),
            account_queue: None,
        }
    }

    fn join(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let request = &waiters[place].request;
        let (level, resume) = (level(request), request.is_retry);
        self.outside += usize::from(request.is_bounded_elsewhere);
        self.occupied |= 1 << level;
        if resume {
            self.levels[level].push_front(waiters, place);
        } else {
            self.levels[level].push_back(waiters, place);
        }
    }

    fn next(&self) -> Option<SlotKey> {
        let first = self.occupied.trailing_zeros() as usize;
        self.levels.get(first)?.head()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        if let Some(place) = self.next() {
            self.remove(waiters, place);
        }
    }

    fn cancel(&mut self, waiters: &mut Waiters, place: SlotKey) {
        self.remove(waiters, place);
    }

    fn check(&self, waiters: &Waiters) {
        let mut waiting = 0;
        for (number, line) in self.levels.iter().enumerate() {
            line.check(waiters);
            assert!(
                line.iter(waiters)
                    .all(|place| level(&waiters[place].request) == number)
            );
            assert_eq!(
                line.is_empty(),
                self.occupied & (1 << number) == 0,
                "bits match lines"
            );
            waiting += line.len();
        }
        assert_eq!(waiting, count_live(waiters), "every waiter is in line");
    }
}
