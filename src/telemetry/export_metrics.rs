//! Metrics of the export by OTLP: requests exported and dropped, and export calls that failed.
//!
//! Counted by the export queue; a scrape reads.

use prometheus::{IntCounter, IntCounterVec};

use super::otlp::ExportCounts;

/// Counters of the export.
pub(super) struct ExportMetrics {
    exported: IntCounter,
    /// By cause.
    dropped: IntCounterVec,
    failures: IntCounter,
}

impl ExportMetrics {
    /// Makes the counters with functions that register them.
    pub fn new(
        counter: impl Fn(&'static str, &'static str) -> IntCounter,
        by_label: impl Fn(&'static str, &'static str, &str) -> IntCounterVec,
    ) -> ExportMetrics {
        ExportMetrics {
            exported: counter(
                "infergate_traces_exported_total",
                "recorded requests that the collector took",
            ),
            dropped: by_label(
                "infergate_traces_dropped_total",
                "recorded requests that were not exported, by cause",
                "cause",
            ),
            failures: counter(
                "infergate_trace_export_failures_total",
                "calls of the collector that failed",
            ),
        }
    }

    /// Takes over the counts; `raise` brings a counter up to one.
    pub fn set(&self, counts: ExportCounts, raise: impl Fn(&IntCounter, u64)) {
        raise(&self.exported, counts.exported);
        raise(&self.failures, counts.failures);
        for (cause, dropped) in [
            ("overrun", counts.dropped_overrun),
            ("failed", counts.dropped_failed),
        ] {
            raise(&self.dropped.with_label_values(&[cause]), dropped);
        }
    }
}
