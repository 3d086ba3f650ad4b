//! Plugins: what the shipped guests promise, against the host that runs them.

mod differential;
mod faces;
mod reload;
mod shelf;
