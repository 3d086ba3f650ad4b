//! Metrics of what a process does for its durable jobs by itself: duties, jumps of the clock, workers that are gone.
//!
//! Not the duties. `/state` shows the same counts, so that both agree.

use prometheus::core::Collector;
use prometheus::{Gauge, GaugeVec, IntCounter, IntCounterVec, Opts, Registry};

/// Duty of the process that has the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobDuty {
    /// Ends jobs whose deadline, lifetime, timeout or grace is over.
    Deadlines,
    /// Queues released jobs that are due.
    Releases,
    /// Ends jobs that were not started in time.
    Retention,
    /// Removes ended jobs whose time is over.
    Garbage,
    /// Queues the running jobs of dead processes again.
    Orphans,
    /// Ends queued jobs of models that are not served any more.
    Unserved,
    /// Removes the files of inputs whose jobs are gone.
    InputFiles,
}

impl JobDuty {
    /// Every duty, in the order of `/state`.
    pub const ALL: [JobDuty; 7] = [
        JobDuty::Deadlines,
        JobDuty::Releases,
        JobDuty::Retention,
        JobDuty::Garbage,
        JobDuty::Orphans,
        JobDuty::Unserved,
        JobDuty::InputFiles,
    ];

    /// Returns the name in metrics and `/state`.
    pub const fn name(self) -> &'static str {
        match self {
            JobDuty::Deadlines => "deadlines",
            JobDuty::Releases => "releases",
            JobDuty::Retention => "retention",
            JobDuty::Garbage => "garbage",
            JobDuty::Orphans => "orphans",
            JobDuty::Unserved => "unserved",
            JobDuty::InputFiles => "input_files",
        }
    }
}

/// Counts of one duty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyCounts {
    /// The duty.
    pub duty: JobDuty,
    /// Runs that succeeded.
    pub runs: u64,
    /// Jobs or files that it changed.
    pub items: u64,
    /// Moment of the last run that succeeded, seconds since 1970; none before there was one.
    pub last_success_secs: Option<f64>,
}

struct DutySeries {
    runs: IntCounter,
    items: IntCounter,
    last_success: Gauge,
}

/// Metrics of the duties of a process.
pub struct DutyMetrics {
    /// Series in the order of [`JobDuty::ALL`].
    duties: [DutySeries; JobDuty::ALL.len()],
    clock_jumps: IntCounter,
    workers_lost: IntCounter,
}

impl DutyMetrics {
    pub(super) fn new(registry: &Registry) -> DutyMetrics {
        let counters = |name, help| {
            let made = IntCounterVec::new(Opts::new(name, help), &["duty"]);
            register(registry, made)
        };
        let runs = counters(
            "infergate_jobs_duty_runs_total",
            "runs of duties for jobs that succeeded",
        );
        let items = counters(
            "infergate_jobs_duty_items_total",
            "jobs or files that a duty changed",
        );
        let last = Opts::new(
            "infergate_jobs_duty_last_success_seconds",
            "moment of the last run that succeeded, seconds since 1970; 0 before there was one",
        );
        let last = register(registry, GaugeVec::new(last, &["duty"]));
        let counter = |name, help| register(registry, IntCounter::new(name, help));
        DutyMetrics {
            duties: JobDuty::ALL.map(|duty| DutySeries {
                runs: runs.with_label_values(&[duty.name()]),
                items: items.with_label_values(&[duty.name()]),
                last_success: last.with_label_values(&[duty.name()]),
            }),
            clock_jumps: counter(
                "infergate_jobs_clock_jumps_total",
                "jumps of the wall clock against the time of the store",
            ),
            workers_lost: counter(
                "infergate_jobs_workers_lost_total",
                "processes that ended with running jobs",
            ),
        }
    }

    /// Records a run of a duty that succeeded at a moment, milliseconds since 1970.
    pub fn record_run(&self, duty: JobDuty, items: usize, at_ms: u64) {
        let series = &self.duties[duty as usize];
        series.runs.inc();
        series.items.inc_by(items as u64);
        series.last_success.set(at_ms as f64 / 1e3);
    }

    /// Records a jump of the wall clock.
    pub fn record_clock_jump(&self) {
        self.clock_jumps.inc();
    }

    /// Records processes that ended with running jobs.
    pub fn record_workers_lost(&self, count: usize) {
        self.workers_lost.inc_by(count as u64);
    }

    /// Returns the counts of every duty.
    pub fn counts(&self) -> [DutyCounts; JobDuty::ALL.len()] {
        JobDuty::ALL.map(|duty| {
            let series = &self.duties[duty as usize];
            let last = series.last_success.get();
            DutyCounts {
                duty,
                runs: series.runs.get(),
                items: series.items.get(),
                last_success_secs: (last > 0.0).then_some(last),
            }
        })
    }
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> C {
    let collector = collector.expect("names and labels are well-formed constants");
    registry
        .register(Box::new(collector.clone()))
        .expect("each name is registered once, in a registry made for it");
    collector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duties_are_counted_where_all_names_are_in_their_order() {
        let registry = Registry::new();
        let metrics = DutyMetrics::new(&registry);
        for (at, duty) in JobDuty::ALL.into_iter().enumerate() {
            assert_eq!(duty as usize, at);
            metrics.record_run(duty, at, 1500);
        }
        metrics.record_run(JobDuty::Garbage, 2, 2500);
        let counts = metrics.counts()[JobDuty::Garbage as usize];
        let expected = DutyCounts {
            duty: JobDuty::Garbage,
            runs: 2,
            items: 5,
            last_success_secs: Some(2.5),
        };
        assert_eq!(counts, expected);
        let fresh = DutyMetrics::new(&Registry::new()).counts()[0];
        assert_eq!((fresh.runs, fresh.last_success_secs), (0, None));
    }
}
