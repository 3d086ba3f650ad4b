//! State of one node: identity, report age and reachability.
//!
//! Report age is the time since arrival plus the time in transit, over all relays. Transit needs no
//! common clock: the fastest report gives the clock offset, and the excess of any other report is
//! its delay.

use std::sync::Arc;

use super::failure_backoff::FailureBackoff;
use super::report::{NodeId, NodeReport};
use crate::Millis;

/// Part of a report's excess delay that counts as clock drift: a thousandth of drift is followed
/// within some seconds, a burst of slow reports hardly.
const DRIFT_DIVISOR: i64 = 256;

/// State of a node, apart from its models.
#[derive(Clone, Debug)]
pub(super) struct ClusterNode {
    pub id: NodeId,
    /// Index of its site.
    pub site: u16,
    pub address: Arc<str>,
    pub draining: bool,
    pub version: u64,
    /// Differs between all nodes that ever were in a slot.
    pub epoch: u32,
    /// Hash of name and generation, for shares.
    pub seed: u64,
    /// Round trip, smoothed, microseconds; 0 when not measured.
    pub rtt_us: u32,
    /// Indices of its models.
    pub models: Vec<u32>,
    /// Reported lost by the failure detector, without a report since.
    pub is_lost: bool,
    /// Time of the last response of its peers listener.
    pub answered_at: Option<Millis>,
    report_at: Millis,
    /// Excess transit time of the last report over the fastest one.
    delay: Millis,
    /// Clock offset of the node, milliseconds behind this one, including the transit time of the
    /// fastest report.
    clock_offset_ms: i64,
    /// Backoff after failed connections.
    pub backoff: FailureBackoff,
}

impl ClusterNode {
    pub fn new(report: &NodeReport, site: u16, birth: u32, now: Millis) -> ClusterNode {
        ClusterNode {
            id: report.node.clone(),
            site,
            address: report.address.clone(),
            draining: report.draining,
            version: report.version,
            epoch: birth,
            seed: super::site_order::seed_of(&report.node.name) ^ report.node.generation,
            rtt_us: 0,
            models: Vec::new(),
            is_lost: false,
            answered_at: None,
            report_at: now,
            delay: Millis::ZERO,
            clock_offset_ms: clock_offset_ms(report.made, now),
            backoff: FailureBackoff::default(),
        }
    }

    /// Applies a newer report.
    pub fn apply_report(&mut self, report: &NodeReport, now: Millis) {
        let late_ms = clock_offset_ms(report.made, now).saturating_sub(self.clock_offset_ms);
        self.clock_offset_ms += match late_ms {
            ..=0 => late_ms,
            _ => late_ms / DRIFT_DIVISOR + 1,
        };
        self.delay = Millis(late_ms.max(0).unsigned_abs());
        self.version = report.version;
        self.draining = report.draining;
        self.report_at = now;
        self.is_lost = false;
        if self.address != report.address {
            self.address = report.address.clone();
        }
    }

    /// Returns the age of the last report.
    pub fn report_age(&self, now: Millis) -> Millis {
        now.since(self.report_at) + self.delay
    }

    /// Returns the time since the last report arrived.
    pub fn silence(&self, now: Millis) -> Millis {
        now.since(self.report_at)
    }
}

fn clock_offset_ms(made: Millis, now: Millis) -> i64 {
    let ms = |at: Millis| i64::try_from(at.0).unwrap_or(i64::MAX);
    ms(now).saturating_sub(ms(made))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(made: u64) -> NodeReport {
        NodeReport {
            node: NodeId {
                name: "b".into(),
                generation: 1,
            },
            site: "fra".into(),
            address: "10.0.0.2:7070".into(),
            draining: false,
            models: Vec::new(),
            version: made,
            made: Millis(made),
        }
    }

    #[test]
    fn a_report_that_took_longer_than_the_quickest_is_older_when_heard() {
        // Its clock began 10 s after ours.
        let mut node = ClusterNode::new(&report(100), 0, 0, Millis(10_150));
        node.apply_report(&report(600), Millis(10_605));
        assert_eq!(
            node.report_age(Millis(10_605)),
            Millis(0),
            "the quickest so far"
        );
        node.apply_report(&report(1_100), Millis(11_605));
        assert_eq!(node.report_age(Millis(11_605)), Millis(500));
        assert_eq!(node.report_age(Millis(11_705)), Millis(600));
    }

    #[test]
    fn a_clock_that_drifts_does_not_make_reports_old() {
        let mut node = ClusterNode::new(&report(0), 0, 0, Millis(0));
        for round in 1..10_000_u64 {
            // A thousandth slower than ours.
            let now = Millis(round * 500);
            node.apply_report(&report(now.0 - now.0 / 1000), now);
            assert!(
                node.report_age(now) <= Millis(2),
                "round {round}: {:?}",
                node.report_age(now)
            );
        }
    }
}
