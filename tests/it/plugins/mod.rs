//! Plugins: what the shipped guests promise, against the host that runs them.

mod dialects;
mod differential;
mod estimates;
pub mod fixtures;
mod reload;
