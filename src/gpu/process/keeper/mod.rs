//! Keeper of an instance: this binary, run a second time, as the parent of a model server and of all that it starts.
//!
//! Decides nothing about models. The keeper owns the process group, the output and the end: whatever happens to the
//! gateway, no process of the instance outlives it by more than the configured times. A single thread without a runtime, so that
//! its memory stays small and the parent-death signal follows the right thread.

mod child;
mod client;
mod ending;
mod output;
mod service;

pub use service::keep;
