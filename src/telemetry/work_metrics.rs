//! Metrics of work that goes on at servers after its responses.
//!
//! Set from [`WorkLevels`] at each scrape.

use prometheus::core::Collector;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// Work at a server after its responses, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct WorkLevels {
    /// The stream of its reports is open.
    pub is_reporting: bool,
    /// Permits held for it.
    pub detached: u64,
    /// Works of which no report had come by the end of their lease.
    pub expired: u64,
}

/// Work that goes on at servers after its responses, by endpoint.
pub(super) struct WorkGauges {
    reporting: IntGaugeVec,
    detached: IntGaugeVec,
    lost: IntCounterVec,
}

impl WorkGauges {
    pub(super) fn new(registry: &Registry) -> WorkGauges {
        const LABELS: &[&str] = &["endpoint"];
        let gauges = |name: &str, help: &str| {
            let gauges = IntGaugeVec::new(Opts::new(name, help), LABELS)
                .expect("the name and labels are well-formed constants");
            registered(registry, gauges)
        };
        let lost = Opts::new(
            "infergate_work_reports_lost_total",
            "works of which no report had come by the end of their lease",
        );
        let lost = IntCounterVec::new(lost, LABELS)
            .expect("the name and labels are well-formed constants");
        WorkGauges {
            reporting: gauges(
                "infergate_work_reports_open",
                "1 while the server's stream of reports is open",
            ),
            detached: gauges(
                "infergate_detached_permits",
                "permits held for work after its response",
            ),
            lost: registered(registry, lost),
        }
    }

    pub(super) fn reset(&self) {
        self.reporting.reset();
        self.detached.reset();
        self.lost.reset();
    }

    pub(super) fn set(&self, url: &str, work: &WorkLevels) {
        let label = &[url];
        let reporting = self.reporting.with_label_values(label);
        reporting.set(work.is_reporting.into());
        let detached = i64::try_from(work.detached).unwrap_or(i64::MAX);
        self.detached.with_label_values(label).set(detached);
        self.lost.with_label_values(label).inc_by(work.expired);
    }
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> C {
    registry
        .register(Box::new(collector.clone()))
        .expect("each name is registered once, in a registry made for it");
    collector
}
