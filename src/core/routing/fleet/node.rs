//! State of one node: identity, report age and reachability.
//!
//! Report age is the time since arrival plus the time in transit, over all relays. Transit needs no
//! common clock: the fastest report gives the clock offset, and the excess of any other report is
//! its delay.

use std::sync::Arc;

use super::doubt::Doubt;
use super::report::{NodeId, NodeReport};
use crate::Millis;

/// Part of a report's excess delay that counts as clock drift: a thousandth of drift is followed
/// within some seconds, a burst of slow reports hardly.
const DRIFT_DIVISOR: i64 = 256;

/// State of a node, apart from its models.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub id: NodeId,
    /// Index of its site.
    pub site: u16,
    pub address: Arc<str>,
    pub draining: bool,
    pub version: u64,
    /// Differs between all nodes that ever were in a slot.
    pub birth: u32,
    /// Hash of name and generation, for shares.
    pub seed: u64,
    /// Round trip, smoothed, microseconds; 0 when not measured.
    pub rtt_us: u32,
    /// Indices of its models.
    pub models: Vec<u32>,
    /// Reported lost by the failure detector, without a report since.
    pub gone: bool,
    /// Time of the last response of its peers listener.
    pub answered_at: Option<Millis>,
    heard_at: Millis,
    /// Excess transit time of the last report over the fastest one.
    delay: Millis,
    /// Clock offset of the node, milliseconds behind this one, including the transit time of the
    /// fastest report.
    behind_ms: i64,
    /// Backoff after failed connections.
    pub doubt: Doubt,
}

impl Node {
    pub fn new(report: &NodeReport, site: u16, birth: u32, now: Millis) -> Node {
        Node {
            id: report.node.clone(),
            site,
            address: report.address.clone(),
            draining: report.draining,
            version: report.version,
            birth,
            seed: super::order::seed_of(&report.node.name) ^ report.node.generation,
            rtt_us: 0,
            models: Vec::new(),
            gone: false,
            answered_at: None,
            heard_at: now,
            delay: Millis::ZERO,
            behind_ms: behind_ms(report.made, now),
            doubt: Doubt::default(),
        }
    }

    /// Applies a newer report.
    pub fn told(&mut self, report: &NodeReport, now: Millis) {
        let late_ms = behind_ms(report.made, now).saturating_sub(self.behind_ms);
        self.behind_ms += match late_ms {
            ..=0 => late_ms,
            _ => late_ms / DRIFT_DIVISOR + 1,
        };
        self.delay = Millis(late_ms.max(0).unsigned_abs());
        self.version = report.version;
        self.draining = report.draining;
        self.heard_at = now;
        self.gone = false;
        if self.address != report.address {
            self.address = report.address.clone();
        }
    }

    /// Returns the age of the last report.
    pub fn age(&self, now: Millis) -> Millis {
        now.since(self.heard_at) + self.delay
    }

    /// Returns the time since the last report arrived.
    pub fn silence(&self, now: Millis) -> Millis {
        now.since(self.heard_at)
    }
}

fn behind_ms(made: Millis, now: Millis) -> i64 {
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
        let mut node = Node::new(&report(100), 0, 0, Millis(10_150));
        node.told(&report(600), Millis(10_605));
        assert_eq!(node.age(Millis(10_605)), Millis(0), "the quickest so far");
        node.told(&report(1_100), Millis(11_605));
        assert_eq!(node.age(Millis(11_605)), Millis(500));
        assert_eq!(node.age(Millis(11_705)), Millis(600));
    }

    #[test]
    fn a_clock_that_drifts_does_not_make_reports_old() {
        let mut node = Node::new(&report(0), 0, 0, Millis(0));
        for round in 1..10_000_u64 {
            // A thousandth slower than ours.
            let now = Millis(round * 500);
            node.told(&report(now.0 - now.0 / 1000), now);
            assert!(
                node.age(now) <= Millis(2),
                "round {round}: {:?}",
                node.age(now)
            );
        }
    }
}
