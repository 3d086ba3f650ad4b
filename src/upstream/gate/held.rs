//! Permits of runs that go on at their server when their requests have ended.
//!
//! Not the cancel of such runs. The permit goes to the queue with its run, and comes back with the run's end.

use std::sync::Arc;

use infergate_core::admission::PermitId;

use super::{AdmissionGate, Permit};
use crate::upstream::left_runs::{LeftRun, LeftWorkQueue, RunAtServer};

/// Permit of a run without its request; released by drop.
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
