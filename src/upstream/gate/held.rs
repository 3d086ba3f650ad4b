//! Permits of runs and work that go on at their server when their requests have ended.
//!
//! Neither the cancel of such runs nor the reports of such work. The permit of a run goes to the queue with it, and comes
//! back with its end. The permit of work goes to the open work of its server, and comes back by a report or with its lease.

use std::sync::Arc;

use infergate_core::admission::PermitId;

use super::{AdmissionGate, Permit};
use crate::upstream::left_runs::{LeftRun, LeftWorkQueue, RunAtServer};
use crate::upstream::open_work::ConnectionReport;

/// Permit of a run or of work without its request; released by drop.
struct HeldPermit {
    gate: Arc<AdmissionGate>,
    id: PermitId,
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        self.gate.release(self.id, self.gate.clock.now());
    }
}

impl Permit {
    /// Begins a run at this path of the server: until [`Permit::end_run`] a drop of the permit leaves it to `queue`.
    pub fn begin_run(&self, path: String, queue: &Arc<LeftWorkQueue>) {
        let queue = Arc::clone(queue);
        self.gate.runs.begin(self.id, RunAtServer { path, queue });
    }

    /// Ends the run: the server has answered, or was sent nothing.
    pub fn end_run(&self) {
        drop(self.gate.runs.end(self.id));
    }

    /// Begins the work of a request that is about to be sent, where the server reports the end of work. A drop of the
    /// permit holds it for the work until [`Permit::end_work`].
    pub fn begin_work(&mut self, request: &Arc<str>) {
        if let Some(open) = &self.target.work
            && open.begin(request)
        {
            self.work = Some(Arc::clone(request));
        }
    }

    /// Begins the work of a WebSocket as [`Permit::begin_work`] does. Returns its last report, where there will be one.
    pub fn begin_connection(&mut self, request: &Arc<str>) -> Option<ConnectionReport> {
        self.begin_work(request);
        let open = self.target.work.as_ref()?;
        Some(open.await_report(self.work.as_ref()?))
    }

    /// Ends the work: the server has not begun it.
    pub fn end_work(&mut self) {
        if let (Some(request), Some(open)) = (self.work.take(), &self.target.work) {
            open.cancel(&request);
        }
    }

    /// Holds the permit for the work that goes on. Returns whether there was some.
    pub(super) fn leave_work(&mut self) -> bool {
        let (Some(request), Some(open)) = (self.work.take(), &self.target.work) else {
            return false;
        };
        let gate = Arc::clone(&self.gate);
        let now = gate.clock.recent();
        open.detach(&request, Box::new(HeldPermit { gate, id: self.id }), now);
        true
    }

    /// Leaves the run to its queue. Returns whether there was one.
    pub(super) fn leave_run(&self) -> bool {
        let Some(run) = self.gate.runs.end(self.id) else {
            return false;
        };
        let gate = Arc::clone(&self.gate);
        run.queue.add(LeftRun {
            target: Arc::clone(&self.target),
            path: run.path,
            clock: gate.clock,
            _permit: Box::new(HeldPermit { gate, id: self.id }),
        });
        true
    }
}
