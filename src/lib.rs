//! Infergate: one binary in front of GPU containers.
//!
//! The crate is the shell: modules that do I/O around the decisions of `infergate_core`. A module may
//! import only those to its left; `tests/tidy.rs` holds them to it.
//!
//! ```text
//! http1, telemetry ← tls ← plugin ← upstream ← peer ← trace ← state ← pipeline ← files ← jobs, gpu
//!                jobs, gpu ← downstream ← config ← admin ← app ← cli ← main
//!                                       simulate ← app
//! ```
//!
//! The request pipeline is `pipeline`. Decisions are the core's, configuration is `config`'s,
//! and tasks are started by `app`.

mod admin;
mod app;
pub mod cli;
mod config;
mod downstream;
mod files;
mod gpu;
mod http1;
mod jobs;
mod peer;
mod pipeline;
mod plugin;
mod regular_file;
pub mod simulate;
mod state;
mod telemetry;
mod tls;
mod trace;
mod upstream;

#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
#[cfg(test)]
mod tests;

/// Parts that tests and benches drive without a gateway. All else is private, so that the compiler finds
/// what nothing uses.
pub mod parts {
    pub use crate::cli::tooling::encode::encode as encode_component;
    pub use crate::gpu::process;
    pub use crate::jobs::{
        EmbeddedSettings, EmbeddedStore, EndRecord, EndRenderer, JobSignals, JobStore,
        NewStoredJob, StoreClock, StoredEnd,
    };
    pub use crate::plugin::{
        Caller, Host, HostError, HostSettings, Outline, PluginSnapshot, PluginSpec, Schema,
        TaskInput, TaskSession, World, wit,
    };
    pub use crate::telemetry::clock::thread_micros;
    pub use crate::telemetry::{Clock, Metrics};
    pub use crate::trace::TRACES_KEPT;
}
