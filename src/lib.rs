//! Infergate: one binary in front of GPU containers.
//!
//! This crate is the shell: rooms that do I/O around the decisions of `infergate_core`. A room may
//! import only those to its left; `tests/tidy.rs` holds them to it.
//!
//! ```text
//! telemetry ← plugin ← upstream ← peer ← proxy ← config ← admin ← app ← cli ← main
//!                                             simulate ← app
//! ```
//!
//! The request's walk is [`proxy`]; what it never does: decide (the core does), know who configured
//! it (`config` does), start a task (`app` does).

pub mod admin;
pub mod app;
pub mod cli;
pub mod config;
pub mod peer;
pub mod plugin;
pub mod proxy;
pub mod simulate;
pub mod telemetry;
pub mod upstream;
