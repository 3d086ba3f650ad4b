//! Runs that are left at their servers: the queue from the requests that leave them to the task that cancels them.
//!
//! Nothing is sent here. A run carries its permit, which is released when the run is dropped.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use infergate_core::admission::PermitId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::target::Target;
use crate::telemetry::Clock;

/// Runs that wait for their first cancel. A thousand clients that leave at once are a fourth of it; the permits of
/// further ones are released at once.
const WAITING_MAX: usize = 4096;

/// Run of a request at a server that does not end it with the connection.
pub(super) struct RunAtServer {
    /// Path of the run, below which its cancel is.
    pub(super) path: String,
    /// The queue it goes to when nobody waits for it any more.
    pub(super) queue: Arc<LeftWorkQueue>,
}

/// Runs of one model's requests, by their permits; as many as there are permits.
#[derive(Default)]
pub(super) struct OpenRuns {
    /// Number of them: a model without any pays one look at it.
    count: AtomicUsize,
    /// Held to begin or end one.
    open: Mutex<HashMap<PermitId, RunAtServer>>,
}

impl OpenRuns {
    /// Begins the run of a permit.
    pub(super) fn begin(&self, permit: PermitId, run: RunAtServer) {
        let mut open = self.open.lock();
        open.insert(permit, run);
        self.count.store(open.len(), Ordering::Relaxed);
    }

    /// Ends the run of a permit and returns it, where it has one.
    pub(super) fn end(&self, permit: PermitId) -> Option<RunAtServer> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut open = self.open.lock();
        let run = open.remove(&permit);
        self.count.store(open.len(), Ordering::Relaxed);
        run
    }
}

/// Run that was left at its server.
pub(super) struct LeftRun {
    /// Server of the run.
    pub(super) target: Arc<Target>,
    /// Path of the run, below which its cancel is.
    pub(super) path: String,
    /// Clock of its model's gate.
    pub(super) clock: Clock,
    /// Guard of its permit.
    pub(super) _permit: Box<dyn Send>,
}

/// Runs that were left, until somebody cancels them.
#[derive(Default)]
pub struct LeftWorkQueue {
    /// Held to add or take one.
    waiting: Mutex<VecDeque<LeftRun>>,
    added: Notify,
}

impl LeftWorkQueue {
    /// Adds a run.
    pub(super) fn add(&self, run: LeftRun) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            // The drop of a permit may serve others.
            drop(waiting);
            tracing::warn!(
                url = &*run.target.url,
                "too many runs to cancel at once: the server may be busy for longer than its permit"
            );
            return;
        }
        waiting.push_back(run);
        drop(waiting);
        self.added.notify_one();
    }

    /// Waits for the next run and takes it.
    pub(super) async fn next(&self) -> LeftRun {
        loop {
            if let Some(left) = self.waiting.lock().pop_front() {
                return left;
            }
            self.added.notified().await;
        }
    }

    /// Takes all runs that wait.
    pub(super) fn take_all(&self) -> VecDeque<LeftRun> {
        std::mem::take(&mut *self.waiting.lock())
    }
}
