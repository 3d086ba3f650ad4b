//! Most urgent first; among equals those whose model is warm; among those in arrival order.
//!
//! Without ageing: while urgent requests keep arriving, others wait until their deadline. An account's
//! `max_priority` limits the use of urgent levels. Twenty queues with one bound for all, O(1). Called by
//! the admission queue.

use super::ask::Ask;
use super::discipline::{Discipline, Prospect, Waiters};
use super::line::Line;
use super::slab::Place;

/// The least urgent priority.
const PRIORITY_MAX: u8 = 9;

/// Ten priorities, each warm or not.
const LEVELS: usize = 2 * (PRIORITY_MAX as usize + 1);

/// A line for each level, level 0 first.
#[derive(Default)]
pub(super) struct Priority {
    levels: [Line; LEVELS],
    /// Bit `n` is set while level `n` has waiters.
    occupied: u32,
}

fn level(ask: &Ask) -> usize {
    2 * usize::from(ask.priority.min(PRIORITY_MAX)) + usize::from(!ask.warm)
}

impl Priority {
    fn remove(&mut self, waiters: &mut Waiters, place: Place) {
        let level = level(&waiters[place].ask);
        self.levels[level].remove(waiters, place);
        if self.levels[level].is_empty() {
            self.occupied &= !(1 << level);
        }
    }
}

impl Discipline for Priority {
    fn prospect(&self, ask: &Ask, _waiters: &Waiters) -> Prospect {
        let own = level(ask);
        let not_after = if ask.resume { own } else { own + 1 };
        Prospect {
            line_depth: self.levels.iter().map(Line::len).sum(),
            grants_ahead: self.levels[..not_after].iter().map(Line::len).sum(),
            account_line: None,
        }
    }

    fn join(&mut self, waiters: &mut Waiters, place: Place) {
        let ask = &waiters[place].ask;
        let (level, resume) = (level(ask), ask.resume);
        self.occupied |= 1 << level;
        if resume {
            self.levels[level].push_front(waiters, place);
        } else {
            self.levels[level].push_back(waiters, place);
        }
    }

    fn next(&self) -> Option<Place> {
        let first = self.occupied.trailing_zeros() as usize;
        self.levels.get(first)?.head()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        if let Some(place) = self.next() {
            self.remove(waiters, place);
        }
    }

    fn leave(&mut self, waiters: &mut Waiters, place: Place) {
        self.remove(waiters, place);
    }

    fn check(&self, waiters: &Waiters) {
        let mut waiting = 0;
        for (number, line) in self.levels.iter().enumerate() {
            line.check(waiters);
            assert!(
                line.iter(waiters)
                    .all(|place| level(&waiters[place].ask) == number)
            );
            assert_eq!(
                line.is_empty(),
                self.occupied & (1 << number) == 0,
                "bits match lines"
            );
            waiting += line.len();
        }
        assert_eq!(waiting, waiters.len(), "every waiter is in line");
    }
}
