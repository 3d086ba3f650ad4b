//! State that the handle of the embedded store shares with its threads.
//!
//! Neither the table nor the file: those are the owner's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use infergate_core::Millis;
use infergate_core::job::{EndReason, JobOutcome, WorkerId};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::jobs::deployments::DeploymentDirectory;
use crate::jobs::queue_history::QueueHistories;
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{EndRenderer, StoreError, StoreStats};
use crate::jobs::store_clock::StoreClock;
use crate::telemetry::job_metrics::{EndedJob, JobMetrics};

/// Settings that a reload may change.
#[derive(Debug, Default)]
pub struct EmbeddedSettings {
    /// Time that ended jobs are kept, milliseconds.
    pub keep_ms: AtomicU64,
    /// Pages that the file may have, as if the disk were full beyond them; 0 for no bound.
    #[cfg(test)]
    pub pages_max: AtomicU64,
}

impl EmbeddedSettings {
    /// Time that ended jobs are kept.
    pub fn keep(&self) -> Millis {
        Millis(self.keep_ms.load(Ordering::Relaxed))
    }
}

/// State that the threads share with the handle.
pub(super) struct OwnerShared {
    /// Path of the file.
    pub path: PathBuf,
    pub clock: StoreClock,
    pub settings: Arc<EmbeddedSettings>,
    pub signals: Arc<JobSignals>,
    pub renderer: Arc<dyn EndRenderer>,
    /// Reason for which nothing is stored; none while all is well. Held for one copy.
    pub problem: Mutex<Option<Arc<str>>>,
    /// Another process has taken the store over: events and webhooks are its to deliver.
    pub is_handed_over: AtomicBool,
    /// Workers of the process that let go of the store for this one, while it lives. Held for one copy.
    pub predecessors: Mutex<Vec<WorkerId>>,
    /// Connections of that process so far.
    pub predecessor_connections: AtomicU64,
    pub metrics: Arc<JobMetrics>,
    /// Deployments that accounts have made, as they are committed.
    pub deployments: Arc<DeploymentDirectory>,
    /// Counts as they were lately. Held for one copy.
    pub levels: Mutex<Arc<StoreStats>>,
    /// Counts of the last two minutes. Held for one sample or one copy.
    pub histories: Mutex<QueueHistories>,
}

impl OwnerShared {
    /// Counts ends that are committed.
    pub fn count_ends(&self, outcomes: &[JobOutcome]) {
        for outcome in outcomes {
            let definition = &outcome.definition;
            let taken = outcome.progress.taken.filter(|_| outcome.by_worker);
            self.metrics.record_end(EndedJob {
                model: &definition.model,
                deployable: definition.deployable.as_str(),
                kind: definition.kind.name(),
                status: outcome.state.name(),
                reason: outcome.reason.map(EndReason::code),
                run_ms: taken.map(|taken| outcome.ended.since(taken).0),
            });
        }
    }
}

/// Way back to a caller, who may have left.
pub(super) struct Reply<T>(pub oneshot::Sender<Result<T, StoreError>>);

impl<T> Reply<T> {
    pub fn send(self, answer: Result<T, StoreError>) {
        let _ = self.0.send(answer);
    }
}
