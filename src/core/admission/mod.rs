//! Admission: permits at endpoints, queues in front of them, and the three outcomes
//! `Leased | Queued | Full`. One [`Turnstile`] per model.
//!
//! Neither waking nor timing happens here. The shell keeps each admission queue in a mutex, calls it
//! with `now` and `random`, and delivers the returned [`Wakes`]. A call takes well under a microsecond
//! and is O(1) amortised, O(log accounts) under `token-fair`. Exceptions are [`Turnstile::state`] and
//! [`Turnstile::configure`].
//!
//! ```text
//! slab  ←  queue  ←  discipline  ←  fifo, priority, accounts ← fair, token_fair
//! server  ←  endpoints, permit_request, permits, service_time, discipline  ←  admission_queue
//! rate and bodies stand alone
//! ```
//!
//! Four promises are asserted by [`Turnstile::check`] and the property tests:
//!
//! - an endpoint never gets a permit above its limit;
//! - a waiter gets exactly one outcome;
//! - no permit is free while a waiter could use it;
//! - no waiter is overtaken except as the model's algorithm prescribes.
//!
//! Known in the source system as the endpoint group with its permit manager and model request queue.

mod accounts;
mod ask;
pub mod bodies;
mod discipline;
mod endpoints;
mod fair;
mod fifo;
mod line;
mod meter;
mod order;
mod permits;
mod priority;
pub mod rate;
mod server;
mod slab;
mod state;
mod token_fair;
mod turnstile;

pub use ask::{Ask, Grant, Outcome, PermitId, Ticket, Wakes};
pub use endpoints::EndpointId;
pub use order::Order;
pub use server::{GateId, Handoff, Membership, ServerPermits};
pub use state::{EndpointState, Gauges, State};
pub use turnstile::Turnstile;

#[cfg(test)]
mod tests;
