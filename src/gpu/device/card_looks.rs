//! Looks at the cards of a driver, each on a thread of its own: a card that hangs holds up no other one.
//!
//! Knows no driver: a look is a function, which may block for ever. A card has one look under way, and each of at most
//! 256 cards one thread, which ends with the value or after its look.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use infergate_core::Millis;

use crate::telemetry::host_time;

/// Time for a card to be looked at. Readings of the others wait for as long, once.
const LOOK_WAIT: Millis = Millis::from_secs(1);
/// Cards that are looked at: as many as a host may have.
const CARDS_MAX: usize = 256;

/// Threads of the cards, with the answers of their latest looks.
pub(super) struct CardLooks<T> {
    look: Arc<dyn Fn(u32) -> T + Send + Sync>,
    cards: RefCell<BTreeMap<u32, CardThread<T>>>,
}

/// Thread of a card.
struct CardThread<T> {
    asks: SyncSender<()>,
    answers: Receiver<T>,
    /// A look is under way.
    is_asked: bool,
}

impl<T: Send + 'static> CardLooks<T> {
    pub fn new(look: impl Fn(u32) -> T + Send + Sync + 'static) -> CardLooks<T> {
        CardLooks {
            look: Arc::new(look),
            cards: RefCell::default(),
        }
    }

    /// Returns whether a card has not answered yet: its thread hangs for as long.
    pub fn is_waiting(&self) -> bool {
        self.cards.borrow().values().any(|card| card.is_asked)
    }

    /// Looks at cards, all at once; none for a card that does not answer. An answer that was late comes with the next
    /// call.
    pub fn look_at(&self, indexes: impl Iterator<Item = u32>) -> Vec<(u32, Option<T>)> {
        let mut cards = self.cards.borrow_mut();
        let mut asked = Vec::new();
        for index in indexes.take(CARDS_MAX) {
            if !cards.contains_key(&index)
                && let Some(card) = CardThread::start(index, &self.look)
            {
                cards.insert(index, card);
            }
            let was_asked = cards.get(&index).is_some_and(|card| card.is_asked);
            if let Some(card) = cards.get_mut(&index).filter(|card| !card.is_asked) {
                card.is_asked = card.asks.try_send(()).is_ok();
            }
            asked.push((index, was_asked));
        }
        let begin = host_time();
        let answers = asked.into_iter().map(|(index, was_asked)| {
            let wait = match was_asked {
                true => Millis::ZERO,
                false => Millis(LOOK_WAIT.0.saturating_sub(host_time().since(begin).0)),
            };
            let card = cards.get_mut(&index).filter(|card| card.is_asked);
            (index, card.and_then(|card| card.answer(wait)))
        });
        answers.collect()
    }
}

impl<T: Send + 'static> CardThread<T> {
    fn start(index: u32, look: &Arc<dyn Fn(u32) -> T + Send + Sync>) -> Option<CardThread<T>> {
        let (asks, asked) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let look = Arc::clone(look);
        let builder = thread::Builder::new().name("gpu-card".to_owned());
        let started =
            builder.spawn(
                move || {
                    while asked.recv().is_ok() && answer.send(look(index)).is_ok() {}
                },
            );
        if let Err(error) = started {
            tracing::warn!(index, %error, "a card cannot be looked at");
            return None;
        }
        Some(CardThread {
            asks,
            answers,
            is_asked: false,
        })
    }

    fn answer(&mut self, wait: Millis) -> Option<T> {
        let answer = self.answers.recv_timeout(Duration::from_millis(wait.0));
        self.is_asked = answer.is_err();
        answer.ok()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::{Condvar, Mutex};

    use super::*;

    #[test]
    fn a_card_that_hangs_is_late_alone_and_answers_once_it_goes_on() {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let opened = Arc::clone(&gate);
        let looks = CardLooks::new(move |index| {
            if index == 1 {
                let (is_open, changed) = &*opened;
                changed.wait_while(&mut is_open.lock(), |is_open| !*is_open);
            }
            index * 10
        });
        for _ in 0..3 {
            let answers = looks.look_at(0..3);
            assert_eq!(answers, [(0, Some(0)), (1, None), (2, Some(20))]);
            assert!(looks.is_waiting());
        }
        *gate.0.lock() = true;
        gate.1.notify_all();
        while looks.look_at(1..2) == [(1, None)] {
            thread::yield_now();
        }
        assert_eq!(looks.look_at(1..2), [(1, Some(10))]);
        assert!(!looks.is_waiting());
    }
}
