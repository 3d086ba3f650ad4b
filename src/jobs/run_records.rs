//! Records that a run leaves for operators: its attempt and its counts.
//!
//! Nothing is decided by them.

use std::sync::Arc;

use infergate_core::job::{ReleaseCause, TakenJob, WriteResult};
use infergate_core::trace_context::TraceId;

use super::run::RunContext;

impl RunContext {
    /// Records the server and the trace of a run.
    pub(super) fn note_attempt(
        &self,
        taken: &TakenJob,
        endpoint: Option<&Arc<str>>,
        trace: Option<TraceId>,
    ) {
        let run = (taken.definition.id, taken.progress.epoch);
        self.attempts.note(run, endpoint, trace);
    }

    /// Records the result of a run, and whether the job ends with it.
    pub(super) fn end_attempt(&self, taken: &TakenJob, result: (&'static str, bool)) {
        let run = (taken.definition.id, taken.progress.epoch);
        self.attempts.end(run, result, self.clock.now());
    }

    /// Counts the first start of a job.
    pub(super) fn count_start(&self, taken: &TakenJob) {
        let definition = &taken.definition;
        if taken.progress.epoch == 1 {
            let started = taken.progress.started.unwrap_or(definition.created);
            let delay = started.since(definition.created).0;
            let metrics = self.shared.metrics.jobs();
            metrics.record_start(&definition.model, definition.deployable.as_str(), delay);
        }
    }

    pub(super) fn count_release(&self, cause: ReleaseCause, result: WriteResult) {
        let metrics = self.shared.metrics.jobs();
        match result {
            WriteResult::Done => metrics.record_released(cause.name(), 1),
            WriteResult::Stale => metrics.record_refused_write("release"),
            WriteResult::Already => {}
        }
    }
}
