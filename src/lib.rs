//! Infergate: one binary in front of GPU containers.
//!
//! The crate is the shell: modules that do I/O around the decisions of `infergate_core`. A module may
//! import only those to its left; `tests/tidy.rs` holds them to it.
//!
//! ```text
//! telemetry ← tls ← plugin ← upstream ← peer ← trace ← state ← pipeline ← downstream
//!                      downstream ← config ← admin ← app ← cli ← main
//!                                       simulate ← app
//! ```
//!
//! The request pipeline is [`pipeline`]. Decisions are the core's, configuration is `config`'s,
//! and tasks are started by `app`.

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod downstream;
mod files;
pub mod peer;
pub mod pipeline;
pub mod plugin;
pub mod simulate;
pub mod state;
pub mod telemetry;
pub mod tls;
pub mod trace;
pub mod upstream;
