//! Durable jobs: work that outlives its request. Stores, worker, notifications.
//!
//! Not a second pipeline: a job is a stored request, and its run is the request pipeline's with another receiver.
//! Callers submit, read, list and cancel through [`Jobs`]; nothing else of the module is theirs.

mod deployables;
mod embedded;
mod ends;
mod events;
mod output;
mod receiver;
mod request;
mod run;
mod signals;
mod store;
mod store_clock;
mod worker;

pub use signals::JobSignals;
