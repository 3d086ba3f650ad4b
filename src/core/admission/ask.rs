//! What a request asks of the turnstile and what it is told.
//!
//! Nothing is decided here. These are the values that cross the door between shell and core.

use std::sync::Arc;

use super::endpoints::EndpointId;
use super::order::Order;
use super::server::Handoff;
use crate::{AccountId, Millis, Refusal};

/// The place of a request in line; the shell keeps its waker under it. Not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The right to have one request in flight at one endpoint. Not used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitId(pub u64);

/// A request at the turnstile.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Who pays, and whose share the permit comes from.
    pub account: AccountId,
    /// The account's share relative to the others; 0 counts as 1.
    pub weight: u32,
    /// 0 is first, 9 last, larger is 9. Only `priority` looks at it.
    pub priority: u8,
    /// The model or adapter is resident: first among its priority.
    pub warm: bool,
    /// Tokens charged at grant, corrected by [`Turnstile::correct_tokens`] at the end. Only
    /// `token-fair` looks at it.
    ///
    /// [`Turnstile::correct_tokens`]: super::Turnstile::correct_tokens
    pub tokens: u32,
    /// The moment by which the whole answer must be out.
    pub deadline: Millis,
    /// Refuse rather than wait.
    pub no_wait: bool,
    /// Endpoints tried already: taken only when no other one has a free permit. A handful at most.
    pub avoid: Vec<EndpointId>,
    /// Where it should go, by a routing policy; by tier and load without one.
    pub order: Option<Arc<Order>>,
    /// Another try of a request that was admitted: it joins at the head of its line and is not
    /// counted against the bounds of the queue. Its number is bounded by the permits.
    pub resume: bool,
    /// It has another model to go to: told at once when no endpoint is usable, also where the
    /// model's requests wait for one to come back.
    pub elsewhere: bool,
}

/// A permit, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// To be given back exactly once; a second time is ignored.
    pub permit: PermitId,
    /// Where it counts.
    pub endpoint: EndpointId,
    /// The waiter it is for; `None` when it was granted on asking.
    pub ticket: Option<Ticket>,
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Go on now.
    Leased(Grant),
    /// Wait for [`Wakes`] to name the ticket, or [`leave`](super::Turnstile::leave).
    Queued {
        /// Its place in line.
        ticket: Ticket,
        /// 1 is next. Exact for `fifo`; an estimate where others may come in between.
        position: usize,
        /// From now to the grant, as holds and permits are now.
        expected_wait: Millis,
    },
    /// Not admitted.
    Full(Refusal),
}

/// Waiters to be told something. Calls append to it; the shell empties it outside the lock.
#[derive(Debug, Default)]
pub struct Wakes {
    /// Waiters that got a permit, in the order of their grants.
    pub grants: Vec<Grant>,
    /// Waiters that will get none, and why.
    pub refusals: Vec<(Ticket, Refusal)>,
    /// Permits for requests that wait at the turnstiles they name.
    pub handoffs: Vec<Handoff>,
}
