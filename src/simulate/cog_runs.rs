//! Runs that the cog dialect knows, beside those who wait for them.
//!
//! No answer is made here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Runs under way, by name.
#[derive(Default)]
pub(super) struct CogRuns {
    /// Held to begin, cancel or end one.
    pub(super) open: Mutex<HashMap<String, OpenRun>>,
    /// The worker has crashed.
    pub(super) is_unhealthy: AtomicBool,
}

/// Run under way.
pub(super) struct OpenRun {
    /// Ends it.
    pub(super) canceled: Arc<Notify>,
    /// Cancels that have no effect.
    pub(super) cancels_to_lose: u32,
}
