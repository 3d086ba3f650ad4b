//! State that all connections of one simulator share.
//!
//! Not the state of a connection, which stands in `connection.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::concurrency::ConcurrencyLimit;
use super::config::Config;
use super::fault::Faults;
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
    /// Weights of the latest request. Held for a comparison.
    pub(super) weights: Mutex<Option<String>>,
}
