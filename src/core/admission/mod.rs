//! Who may enter: permits at endpoints, lines in front of them, and the three outcomes
//! `Leased | Queued | Full`. One [`Turnstile`] per model.
//!
//! It does not wake anybody, nor watch a clock: the shell keeps each turnstile in a mutex, calls it
//! with `now` and `dice`, and acts on the [`Wakes`] it gets back. Every call but
//! [`Turnstile::state`] and [`Turnstile::configure`] is O(1) amortised (O(log accounts) under
//! `token-fair`) and takes well under a microsecond.
//!
//! ```text
//! slab  ←  line  ←  discipline  ←  fifo, priority, accounts ← fair, token_fair
//! server  ←  endpoints, ask, permits, meter, discipline  ←  turnstile           rate stands alone
//! ```
//!
//! Four promises, asserted by [`Turnstile::check`] and the property tests: an endpoint never gets a
//! permit above its limit; a waiter is answered exactly once; no permit is free while somebody
//! waits who could use it; nobody is overtaken but as the model's algorithm says. Known in the
//! source system as the endpoint group with its permit manager and model request queue.

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
