//! State that all connections of one simulator share.
//!
//! Not the state of a connection, which stands in `connection.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::cog_runs::CogRuns;
use super::concurrency::ConcurrencyLimit;
use super::config::Config;
use super::fault::Faults;
use super::loopback::Loopback;
use super::stats::Stats;

/// State that all connections of one simulator share.
pub(super) struct SimulatorState {
    pub(super) config: Config,
    pub(super) stats: Arc<Stats>,
    pub(super) gate: ConcurrencyLimit,
    pub(super) faults: Faults,
    pub(super) started: Instant,
    pub(super) started_unix_secs: u64,
    pub(super) ordinal: AtomicU64,
    /// The memory of the server is taken, or none is configured.
    pub(super) has_vram: AtomicBool,
    /// The server has been sent to sleep.
    pub(super) is_asleep: watch::Sender<bool>,
    /// Counts how often memory was given up or taken.
    pub(super) vram_settled: watch::Sender<u64>,
    /// A request has been worked on.
    pub(super) work_started: Notify,
    /// Weights of the latest request. Held for a comparison.
    pub(super) weights: Mutex<Option<String>>,
    /// Reports of work that goes on after its responses.
    pub(super) loopback: Arc<Loopback>,
    /// Runs of the cog dialect.
    pub(super) runs: CogRuns,
}
