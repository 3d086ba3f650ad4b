//! Plugins: what the shipped guests promise, against the host that runs them.

mod differential;
mod estimates;
mod faces;
mod reload;
pub mod shelf;
