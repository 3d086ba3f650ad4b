//! The server's slots: how many requests it works on at once, and what happens above. Not the
//! gateway's permits: this is the limit a real model server has of its own.
//!
//! A [`WorkSlot`] and a place in the queue are guards, so that a client that leaves releases both at
//! once: hyper drops the request's future or body with the connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::config::OverLimit;
use super::loopback::EndReport;
use super::stats::Stats;

/// Requests that may wait for a slot. Real servers have no bound here; this one keeps a runaway
/// load test from eating the machine, and is far above what any test offers.
const MAX_WAITING: u64 = 65_536;

/// The slots and the line before them.
pub(super) struct ConcurrencyLimit {
    slots: Arc<Semaphore>,
    over_limit: OverLimit,
    stats: Arc<Stats>,
}

/// No slot, and no waiting for one.
#[derive(Debug)]
pub(super) struct Full;

impl ConcurrencyLimit {
    pub(super) fn new(
        concurrency: usize,
        over_limit: OverLimit,
        stats: Arc<Stats>,
    ) -> ConcurrencyLimit {
        ConcurrencyLimit {
            slots: Arc::new(Semaphore::new(concurrency)),
            over_limit,
            stats,
        }
    }

    /// A slot, after waiting in line for it when the server queues.
    pub(super) async fn acquire(&self) -> Result<WorkSlot, Full> {
        if let Ok(permit) = Arc::clone(&self.slots).try_acquire_owned() {
            return Ok(self.slot(permit));
        }
        let line_is_full = self.stats.waiting.load(Relaxed) >= MAX_WAITING;
        if self.over_limit == OverLimit::Refuse || line_is_full {
            self.stats.refused.fetch_add(1, Relaxed);
            return Err(Full);
        }
        let mut place = WaitingPlace::take(&self.stats);
        let permit = Arc::clone(&self.slots)
            .acquire_owned()
            .await
            .expect("the semaphore is never closed: nothing calls close");
        place.admitted = true;
        drop(place);
        Ok(self.slot(permit))
    }

    fn slot(&self, permit: OwnedSemaphorePermit) -> WorkSlot {
        let current = self.stats.current.fetch_add(1, Relaxed) + 1;
        self.stats.high_water.fetch_max(current, Relaxed);
        WorkSlot {
            stats: Arc::clone(&self.stats),
            end: WorkOutcome::Cancelled,
            report: None,
            permit: Some(permit),
        }
    }
}

/// A place in the line: counted while it is held, and as cancelled when it is dropped unadmitted.
struct WaitingPlace {
    stats: Arc<Stats>,
    admitted: bool,
}

impl WaitingPlace {
    fn take(stats: &Arc<Stats>) -> WaitingPlace {
        let waiting = stats.waiting.fetch_add(1, Relaxed) + 1;
        stats.waiting_high_water.fetch_max(waiting, Relaxed);
        WaitingPlace {
            stats: Arc::clone(stats),
            admitted: false,
        }
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.stats.waiting.fetch_sub(1, Relaxed);
        if !self.admitted {
            self.stats.cancelled.fetch_add(1, Relaxed);
        }
    }
}

/// Outcome of the work in a slot.
enum WorkOutcome {
    /// The client left: the outcome unless another was set before the drop.
    Cancelled,
    Served {
        output_tokens: u64,
    },
    Faulted,
}

/// A request being worked on.
pub(super) struct WorkSlot {
    stats: Arc<Stats>,
    end: WorkOutcome,
    /// Report of the end of the work, where it may come after the response.
    report: Option<EndReport>,
    /// Dropped after the count was lowered, so `current` never passes the limit.
    permit: Option<OwnedSemaphorePermit>,
}

impl WorkSlot {
    /// The end of the work will be reported.
    pub(super) fn with_report(mut self, report: EndReport) -> WorkSlot {
        self.report = Some(report);
        self
    }

    /// The last byte is ready: the slot is free before the client can see it, unless its work goes on.
    pub(super) fn finish(mut self, output_tokens: u64) {
        self.end = WorkOutcome::Served { output_tokens };
        if let Some(report) = self.report.take() {
            report.finish_later(self);
        }
    }

    /// The work ends in a fault of our own making.
    pub(super) fn finish_faulted(mut self) {
        self.end = WorkOutcome::Faulted;
    }
}

impl Drop for WorkSlot {
    fn drop(&mut self) {
        self.stats.current.fetch_sub(1, Relaxed);
        match self.end {
            WorkOutcome::Cancelled => {
                self.stats.cancelled.fetch_add(1, Relaxed);
            }
            WorkOutcome::Served { output_tokens } => {
                self.stats.served.fetch_add(1, Relaxed);
                self.stats.output_tokens.fetch_add(output_tokens, Relaxed);
            }
            // Counted when the fault was drawn.
            WorkOutcome::Faulted => {}
        }
        drop(self.permit.take());
        if let Some(report) = self.report.take() {
            report.fail();
        }
    }
}
