//! Work that goes on at one server after its responses: the locked shell around its table, with permits as guards.
//!
//! Hears no reports itself. A permit is released by the drop of its guard, outside the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use infergate_core::Millis;
use infergate_core::admission::WorkTable;
use infergate_core::api::loopback::WorkReport;
use infergate_core::model::LoopbackSpec;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::telemetry::WarningLimit;

/// Metrics that a server reports of a work.
type MetricList = Vec<(String, f64)>;

/// Guard of a permit.
type PermitGuard = Box<dyn Send>;

/// Open work at one server, which reports the end of each.
pub(super) struct OpenWork {
    spec: LoopbackSpec,
    /// Held to begin, detach, report or end one.
    table: Mutex<WorkTable<PermitGuard>>,
    /// WebSockets whose last report is waited for: as many as have permits. Held to add, report or remove one.
    awaited: Mutex<HashMap<Arc<str>, oneshot::Sender<MetricList>>>,
    /// Warnings about reports that do not come.
    pub(super) warnings: WarningLimit,
    /// The stream of reports is open.
    is_reporting: AtomicBool,
    /// Works whose leases were over.
    expired: AtomicU64,
}

/// Last report about a WebSocket, awaited until the drop.
pub struct ConnectionReport {
    work: Arc<OpenWork>,
    request: Arc<str>,
    reported: oneshot::Receiver<MetricList>,
}

impl ConnectionReport {
    /// Returns the metrics that the server reports within `limit`. Waits for none where no reports can come.
    pub async fn metrics(&mut self, limit: Duration) -> Vec<(String, f64)> {
        if !self.work.is_reporting.load(Ordering::Relaxed) {
            return self.reported.try_recv().unwrap_or_default();
        }
        let reported = timeout(limit, &mut self.reported).await;
        reported.ok().and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for ConnectionReport {
    fn drop(&mut self) {
        self.work.awaited.lock().remove(&self.request);
    }
}

/// Open work at one server at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenWorkState {
    /// The stream of reports is open.
    pub is_reporting: bool,
    /// Permits held for work whose response has ended.
    pub detached: u64,
    /// Works of which no report had come by the end of their lease.
    pub expired: u64,
}

impl OpenWork {
    /// Creates the open work of an endpoint with these reports; there is none yet.
    pub(super) fn new(spec: &LoopbackSpec) -> Arc<OpenWork> {
        Arc::new(OpenWork {
            spec: spec.clone(),
            table: Mutex::default(),
            awaited: Mutex::default(),
            warnings: WarningLimit::default(),
            is_reporting: AtomicBool::new(false),
            expired: AtomicU64::new(0),
        })
    }

    /// Returns the reports as configured.
    pub(super) fn spec(&self) -> &LoopbackSpec {
        &self.spec
    }

    /// Returns whether the reports are those of `other`.
    pub(super) fn is_like(&self, other: &OpenWork) -> bool {
        self.spec == other.spec
    }

    /// Records whether the stream of reports is open.
    pub(super) fn set_reporting(&self, is_open: bool) {
        self.is_reporting.store(is_open, Ordering::Relaxed);
    }

    /// Returns the state for operators.
    pub(super) fn state(&self) -> OpenWorkState {
        OpenWorkState {
            is_reporting: self.is_reporting.load(Ordering::Relaxed),
            detached: self.table.lock().detached() as u64,
            expired: self.expired.load(Ordering::Relaxed),
        }
    }

    /// Begins the work of a request. Returns whether its permit may be detached.
    pub(super) fn begin(&self, request: &Arc<str>) -> bool {
        self.table.lock().begin(request)
    }

    /// Forgets work that the server has not begun.
    pub(super) fn cancel(&self, request: &str) {
        self.table.lock().cancel(request);
    }

    /// Holds the permit of work whose response has ended at `now`, until its end is reported or its lease is over.
    pub(super) fn detach(&self, request: &Arc<str>, permit: PermitGuard, now: Millis) {
        let lease = Millis::from_secs(self.spec.lease_secs);
        let free = self.table.lock().detach(request, permit, now, lease);
        drop(free);
    }

    /// Releases the permit of work that the server reports to have ended, and gives a WebSocket its metrics.
    pub(super) fn report(&self, report: WorkReport) {
        let free = self.table.lock().report(&report.request);
        drop(free);
        if report.is_final {
            let awaited = self.awaited.lock().remove(&*report.request);
            if let Some(awaited) = awaited {
                // The connection may have been given up meanwhile.
                let _ = awaited.send(report.metrics);
            }
        }
    }

    /// Awaits the last report about a WebSocket from now on.
    pub(super) fn await_report(self: &Arc<Self>, request: &Arc<str>) -> ConnectionReport {
        let (sender, reported) = oneshot::channel();
        self.awaited.lock().insert(Arc::clone(request), sender);
        ConnectionReport {
            work: Arc::clone(self),
            request: Arc::clone(request),
            reported,
        }
    }

    /// Releases the permits whose leases are over at `now`; returns their number.
    pub(super) fn expire(&self, now: Millis) -> usize {
        let expired = self.table.lock().expire(now);
        let count = expired.len();
        self.expired.fetch_add(count as u64, Ordering::Relaxed);
        count
    }

    /// Releases all permits: the endpoint has left the configuration.
    pub(super) fn close(&self) {
        let left = self.table.lock().close();
        drop(left);
    }
}
