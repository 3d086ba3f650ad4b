//! Permits in use and waits of one model by the class of the requests: live ones and durable ones.
//!
//! Decides nothing: whose turn it is, the admission queue knows.

use infergate_core::admission::PermitClass;
use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, HistogramVec, IntGauge, IntGaugeVec, Opts, Registry};

/// Metrics of one model by class, in the order of [`PermitClass::ALL`].
pub(super) struct ClassMetrics {
    used: [IntGauge; PermitClass::ALL.len()],
    wait: [Histogram; PermitClass::ALL.len()],
}

impl ClassMetrics {
    pub(super) fn new(registry: &Registry, wait_buckets: &[f64]) -> ClassMetrics {
        let used = Opts::new(
            "infergate_permits_used_by_class",
            "permits in use, by the class of the requests that hold them",
        );
        let used = IntGaugeVec::new(used, &["class"])
            .expect("the name and labels are well-formed constants");
        let wait = HistogramOpts::new(
            "infergate_class_wait_seconds",
            "waiting for a permit, of requests that waited, by their class",
        );
        let wait = HistogramVec::new(wait.buckets(wait_buckets.to_vec()), &["class"])
            .expect("the name is well-formed and the buckets ascend");
        for family in [
            Box::new(used.clone()) as Box<dyn Collector>,
            Box::new(wait.clone()),
        ] {
            registry
                .register(family)
                .expect("each name is registered once, in a registry made for it");
        }
        ClassMetrics {
            used: PermitClass::ALL.map(|class| used.with_label_values(&[class.name()])),
            wait: PermitClass::ALL.map(|class| wait.with_label_values(&[class.name()])),
        }
    }

    /// Counts a finished wait.
    pub(super) fn observe_wait(&self, class: PermitClass, waited_us: u64) {
        // `PermitClass::ALL` is in the order of the enum, a test holds it to that.
        self.wait[class as usize].observe(waited_us as f64 / 1e6);
    }

    /// Sets the permits in use, of which durable requests hold `durable`.
    pub(super) fn set(&self, used: u32, durable: u32) {
        let live = used.saturating_sub(durable);
        self.used[PermitClass::Live as usize].set(live.into());
        self.used[PermitClass::Durable as usize].set(durable.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_the_order_of_their_enum() {
        let mut all = PermitClass::ALL.iter().enumerate();
        assert!(all.all(|(at, class)| *class as usize == at));
    }
}
