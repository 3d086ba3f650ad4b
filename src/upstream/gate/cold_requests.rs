//! Results of requests that came while nothing served their model, and who is woken for such a request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::telemetry::gpu_metrics::ColdCounts;

/// Word from gates to the owner of their slots: some model that nothing serves has been asked for.
#[derive(Debug, Default)]
pub struct ColdSignal {
    /// Wakes the owner.
    pub changed: Notify,
}

/// Requests of a model that nothing served when they came.
#[derive(Default)]
pub(super) struct ColdRequests {
    /// Owner of the slots; none for a model without slots.
    signal: OnceLock<Arc<ColdSignal>>,
    /// Results, in the order of [`ColdResult`].
    counts: [AtomicU64; 3],
}

impl ColdRequests {
    /// Owner of the slots, to be woken for such a request.
    pub fn signal(&self) -> Option<&Arc<ColdSignal>> {
        self.signal.get()
    }

    /// Sets who is woken. The first one stays.
    pub fn set_signal(&self, signal: Arc<ColdSignal>) {
        let _ = self.signal.set(signal);
    }

    /// Returns the results since the start.
    pub fn counts(&self) -> ColdCounts {
        let count = |result: ColdResult| self.counts[result as usize].load(Ordering::Relaxed);
        ColdCounts {
            served: count(ColdResult::Served),
            refused: count(ColdResult::Refused),
            left: count(ColdResult::Left),
        }
    }

    pub fn record(&self, result: ColdResult) {
        self.counts[result as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Result of a request that came while nothing served its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColdResult {
    /// A permit was granted.
    Served,
    /// A refusal was returned.
    Refused,
    /// The client left, or the time was over.
    Left,
}
