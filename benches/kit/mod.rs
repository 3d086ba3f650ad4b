//! Shared parts of the two bench programs: processes, figures from /proc, HTTP bytes, and a gateway in a folder.
//! Not a library of the product: nothing here is compiled into `infergate`.
//!
//! Durations are `Duration`, CPU is in nanoseconds, memory in KiB, latencies in microseconds.
//! Called by `benches/proxy.rs` and `benches/accept.rs`.

pub mod cluster;
pub mod figures;
pub mod gateway;
pub mod process;
pub mod procfs;
pub mod request;
pub mod wire;

/// Errors end a bench with one line; nobody matches on them.
pub type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
