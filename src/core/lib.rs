//! The decisions of Infergate, without I/O: everything here is a function of its arguments.
//!
//! Not a runtime: there is no clock, no socket, no file and no randomness in this crate. `now` is
//! a [`Millis`] and a random number is an argument, so that the same code runs under tokio in
//! production and under a seeded loop in `tests/sim`.
//!
//! ```text
//! time, network, id, deadline, refusal, trace_context, client_address, websocket  ←  model
//!   ←  api, admission, routing, job, vram, billing, task
//!                                           (these do not see each other)
//! ```

pub mod admission;
pub mod api;
pub mod billing;
pub mod client_address;
pub mod deadline;
pub mod id;
pub mod job;
pub mod model;
pub mod network;
pub mod refusal;
pub mod routing;
pub mod task;
pub mod time;
pub mod trace_context;
pub mod vram;
pub mod websocket;

pub use id::{AccountId, ModelId};
pub use refusal::Refusal;
pub use time::Millis;
