//! The command line: what can be asked of the binary, and its exit codes.
//!
//! Nodes and simulators are built by `app` and `simulate`. 0 is good, 1 is problems found or a
//! forced stop, 2 is a configuration that does not load at start. `lease` has codes of its own.

mod admin;
mod command;
mod diff;
mod explain;
mod gpu;
mod gpu_estimate;
mod gpu_host;
mod gpu_leases;
mod gpu_presets;
mod gpu_sweep;
mod gpu_trace;
mod job_tables;
mod jobs;
mod key;
mod lease;
mod logs;
mod output;
pub(crate) mod plugin;
pub(crate) mod tooling;

pub use command::run;
