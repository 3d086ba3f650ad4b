//! The interface of a queue discipline.
//!
//! A discipline decides order and nothing else: capacity, deadlines and permits belong to the
//! admission queue. Waiters are stored in one slab that all disciplines share; a discipline keeps
//! [`Queue`](super::queue::Queue)s of their slots. A new one is a file beside `fair.rs`, a variant of
//! `Algorithm` and a row in `disciplines.rs`.

use super::permit_class::PermitClass;
use super::permit_request::PermitRequest;
use super::slab::{Slab, SlotKey};
use crate::{AccountId, Millis};

/// A request that waits.
pub(super) struct Waiter {
    pub request: PermitRequest,
    /// Moment at which it joined.
    pub joined: Millis,
    /// Slot of its account's queue, under disciplines that keep one per account: from the queue
    /// estimate before it joined, then as the discipline sets it.
    pub account_queue: Option<SlotKey>,
}

/// All requests that wait for one model: live ones, which the discipline orders, and durable ones.
pub(super) type Waiters = Slab<Waiter>;

/// Live waiters, counted one by one.
pub(super) fn count_live(waiters: &Waiters) -> usize {
    let classes = waiters.iter().map(|(_, waiter)| waiter.request.class);
    classes.filter(|&class| class == PermitClass::Live).count()
}

/// Queue estimate for one more request of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueEstimate {
    /// Requests in the queue it would join, which the account capacity bounds; without those that are bounded
    /// elsewhere.
    pub queue_depth: usize,
    /// Grants expected before its own.
    pub grants_ahead: usize,
    /// Queue of its account, where there is one: looked up once, for the estimate and for joining.
    pub account_queue: Option<SlotKey>,
}

/// An order of service.
pub(super) trait Discipline: Send {
    /// Returns the estimate for `request` if it joined now.
    fn estimate(&self, request: &PermitRequest) -> QueueEstimate;

    /// Adds the waiter at `place`, which is in no queue and whose estimate was just made: at the end of
    /// its queue, or at the head for a retry.
    fn join(&mut self, waiters: &mut Waiters, place: SlotKey);

    /// Returns the waiter that gets the next permit.
    fn next(&self) -> Option<SlotKey>;

    /// Returns the weight of the waiting accounts, against that of other models at a shared server; the weight
    /// of the next account alone where the order ignores accounts.
    fn weight(&self, waiters: &Waiters) -> u64 {
        let next = self.next().map(|place| waiters[place].request.weight);
        next.unwrap_or(1).max(1).into()
    }

    /// Removes the next waiter, which gets its permit, and charges its account.
    fn serve_next(&mut self, waiters: &mut Waiters);

    /// Removes the waiter at `place`, which gets no permit.
    fn cancel(&mut self, waiters: &mut Waiters, place: SlotKey);

    /// Charges `request`, which gets a permit at once while no request waits.
    fn charge_immediate(&mut self, _request: &PermitRequest) {}

    /// Corrects the charge of a request from `charged` to `actual` tokens.
    fn correct_tokens(&mut self, _account: &AccountId, _weight: u32, _charged: u64, _actual: u64) {}

    /// Asserts that queues and live waiters agree.
    fn check(&self, waiters: &Waiters);
}
