//! Remains of processes: those that a former gateway has left are ended or returned, logs that are old are removed.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use crate::gpu::process::{
    InstanceId, InstanceRecord, LogBounds, OrphanDecision, read_record, remove_former, sweep,
};
use crate::telemetry::gpu_metrics::GpuMetrics;

/// Logs of former processes that are kept: of a crash loop in a night, or of some lives of each of many models.
const FORMER_LOGS: LogBounds = LogBounds {
    count: 256,
    age: Duration::from_secs(14 * 86_400),
};

/// Ends processes that nothing has any more, but for those whose keepers wait for a gateway and that `decision` spares,
/// and those of `own`, which this gateway has.
/// Returns the records of the latter; those that a predecessor which lives has are among them.
pub(super) fn sweep_orphans(
    (directory, own): (&Path, &BTreeSet<InstanceId>),
    (decision, has_predecessor): (OrphanDecision, bool),
    metrics: &GpuMetrics,
) -> Vec<InstanceRecord> {
    match sweep(directory, own, |_| decision) {
        Ok(report) => {
            metrics.record_orphans(report.killed.values().sum());
            for (instance, killed) in &report.killed {
                tracing::warn!(%instance, killed, "processes without a keeper were ended");
            }
            for instance in &report.stopped {
                tracing::info!(%instance, "a process of a former gateway was ended");
            }
            for failure in &report.failures {
                tracing::warn!("sweep: {failure}");
            }
            let mut adoptable = report.adoptable;
            if has_predecessor {
                // One that has ended meanwhile has no record.
                let records = report.held.iter().map(|it| read_record(directory, it));
                adoptable.extend(records.filter_map(Result::ok));
            }
            adoptable
        }
        Err(error) => {
            tracing::warn!(%error, "processes of a former gateway cannot be looked for");
            Vec::new()
        }
    }
}

/// Removes the logs of former processes beyond their bounds.
pub(super) fn remove_old_logs(directory: &Path, present: &BTreeSet<InstanceId>) {
    match remove_former(directory, present, FORMER_LOGS) {
        // The first process makes the directory.
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!(%error, "old logs of models cannot be removed");
        }
        _ => {}
    }
}
