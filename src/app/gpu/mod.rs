//! The GPU host in the process: models loaded on demand, by processes of this gateway.
//!
//! Neither a decision, which is `infergate_core::vram`'s, nor a device or a process, which are `gpu`'s.

mod adoption;
mod askers;
mod demand;
mod driver;
mod ending;
mod figures;
mod file_book;
mod file_reads;
mod instance;
mod lease_controls;
mod leases;
mod ledger_queue;
mod lifecycle;
mod log_follower;
mod orphans;
mod outlets;
mod recorder;
mod reports;
mod settings;
mod sleep;
mod slot_run;
mod standing_orders;
mod start;
mod view;

pub use ending::{HostEnding, HostPredecessor};
pub use start::{GpuHost, has_host};
