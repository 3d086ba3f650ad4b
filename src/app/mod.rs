//! The only place that builds the modules' objects, wires them, starts tasks and ends them.
//!
//! Requests are not decided about here. All background work is listed in `gateway.rs`: accept loops, prober,
//! ranker, discovery of endpoints and nodes, gossip, exporter, sampler, memory trimmer, quota keeper, capture writer
//! and the reload loop.

mod activation;
mod admin_thread;
mod allow_missing;
mod announce;
mod capture;
mod cluster;
mod cluster_part;
mod demo;
mod demo_gpu;
mod discover;
mod discovered;
mod export;
mod gateway;
mod gpu;
mod gpu_check;
mod heap;
mod housekeeping;
mod insight;
mod interim_config;
mod job_controls;
#[cfg(test)]
mod job_receiver;
mod job_transitions;
mod jobs;
mod listen;
mod listener_tls;
mod load;
mod membership_handover;
mod nodes;
mod plan;
mod quota_keeper;
mod ranking;
mod reload;
mod remote_counts;
mod runtime;
mod seeds;
mod serve;
mod service_manager;
mod signals;
mod state_dir;
mod state_lock;
mod trim;
mod upgrade;

pub use demo::{demo, simulate};
pub use demo_gpu::demo_gpu;
pub use load::{CheckedFile, check, check_allowing_missing};
pub use serve::serve;
pub use upgrade::upgrade;
