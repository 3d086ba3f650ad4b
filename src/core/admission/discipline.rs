//! What every queueing discipline can do, and which ones there are.
//!
//! A discipline decides order and nothing else: capacity, deadlines and permits are the
//! turnstile's. Waiters stand in one slab that all disciplines share; a discipline keeps
//! [`Line`](super::line::Line)s of their places. A new one is a file beside `fair.rs`, a variant of
//! `Algorithm` and a row in [`of`].

use super::ask::Ask;
use super::fair::Fair;
use super::fifo::Fifo;
use super::priority::Priority;
use super::slab::{Place, Slab};
use super::token_fair::TokenFair;
use crate::model::Algorithm;
use crate::{AccountId, Millis};

/// A request that waits.
pub(super) struct Waiter {
    pub ask: Ask,
    /// When it joined.
    pub joined: Millis,
    /// Where its account's line is, under disciplines that keep one per account: as the prospect
    /// said before it joined, then as the discipline sets it.
    pub account_line: Option<Place>,
}

/// All requests that wait for one model.
pub(super) type Waiters = Slab<Waiter>;

/// What one more request of an account would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prospect {
    /// Requests in the line it would join: what the line's capacity bounds.
    pub line_depth: usize,
    /// Grants expected before its own.
    pub grants_ahead: usize,
    /// Its account's line, where there is one: looked up once, for asking and joining.
    pub account_line: Option<Place>,
}

/// An order of service.
pub(super) trait Discipline: Send {
    /// What `ask` would find if it joined now.
    fn prospect(&self, ask: &Ask, waiters: &Waiters) -> Prospect;

    /// The waiter at `place`, which stands in no line and has just been told its prospect, joins:
    /// at the end of its line, or at the
    /// head of it when it resumes.
    fn join(&mut self, waiters: &mut Waiters, place: Place);

    /// Who gets the next permit.
    fn next(&self) -> Option<Place>;

    /// Weight of the accounts that wait, against that of other models at a shared server: of the
    /// next one alone where the order does not go by accounts.
    fn weight(&self, waiters: &Waiters) -> u64 {
        let next = self.next().map(|place| waiters[place].ask.weight);
        next.unwrap_or(1).max(1).into()
    }

    /// The next one gets its permit: leaves its line, and its account is charged.
    fn serve_next(&mut self, waiters: &mut Waiters);

    /// The waiter at `place` goes without a permit.
    fn leave(&mut self, waiters: &mut Waiters, place: Place);

    /// `ask` gets a permit without having waited, as nobody waits.
    fn serve_at_once(&mut self, _ask: &Ask) {}

    /// A request charged with `charged` tokens took `actual` ones.
    fn correct_tokens(&mut self, _account: &AccountId, _weight: u32, _charged: u64, _actual: u64) {}

    /// Asserts that lines and waiters agree.
    fn check(&self, waiters: &Waiters);
}

/// The discipline of an algorithm, with nobody waiting.
pub(super) fn of(algorithm: Algorithm) -> Box<dyn Discipline> {
    match algorithm {
        Algorithm::Fifo => Box::new(Fifo::default()),
        Algorithm::Fair => Box::new(Fair::new()),
        Algorithm::Priority => Box::new(Priority::default()),
        Algorithm::TokenFair => Box::new(TokenFair::new()),
    }
}
