//! Admission: permits at endpoints, queues in front of them, and the three outcomes
//! `Leased | Queued | Full`. Each model has an [`AdmissionQueue`].
//!
//! Neither waking nor timing happens here. The shell keeps each admission queue in a mutex, calls it
//! with `now` and `random`, and delivers the returned [`WaiterUpdates`]. A call takes well under a microsecond
//! and is O(1) amortised, O(log accounts) under `token-fair`. Exceptions are [`AdmissionQueue::state`] and
//! [`AdmissionQueue::configure`].
//!
//! ```text
//! slab  ←  queue  ←  discipline  ←  fifo, priority, accounts ← fair, token_fair
//! permit_class, service_time  ←  class_share  ←  permits
//! server  ←  endpoints, permit_request, permits, class_share, discipline  ←  admission_queue
//! cooldown  ←  permit_request
//! server  ←  permits_elsewhere
//! rate, handshake_rate, bodies and work_table stand alone
//! ```
//!
//! Four promises are asserted by [`AdmissionQueue::check`] and the property tests:
//!
//! - an endpoint never gets a permit above its limit;
//! - a waiter gets exactly one outcome;
//! - no permit is free while a waiter could use it;
//! - no waiter is overtaken except as the model's algorithm and the shares of the classes prescribe.
//!
//! Known in the source system as the endpoint group with its permit manager and model request queue.

mod accounts;
mod admission_queue;
pub mod bodies;
mod class_share;
mod cooldown;
mod discipline;
mod disciplines;
mod endpoint_id;
mod endpoints;
mod fair;
mod fifo;
mod handshake_rate;
mod order;
mod permit_class;
mod permit_request;
mod permits;
mod permits_elsewhere;
mod priority;
mod queue;
pub mod rate;
pub use handshake_rate::HandshakeRate;
mod server;
mod service_time;
mod slab;
mod state;
mod token_fair;
mod work_table;

pub use admission_queue::{AdmissionQueue, Readiness, RequestCounts, WaitingRequest};
pub use cooldown::{ClientCooldown, DemandClient, LoadCooldowns, LoadProgress};
pub use endpoint_id::EndpointId;
pub use order::EndpointOrder;
pub use permit_class::{ClassChoice, ClassTurn, PermitClass};
pub use permit_request::{
    AdmissionOutcome, Grant, PermitId, PermitRequest, QueueTicket, WaiterUpdates,
};
pub use permits_elsewhere::PermitsElsewhere;
pub use server::{GateId, Handoff, ServerMembership, ServerPermits};
pub use state::{AdmissionGauges, AdmissionState, EndpointState};
pub use work_table::{WorkTable, reconnect_pause};

#[cfg(test)]
mod tests;
