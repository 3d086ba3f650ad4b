//! Detection of lost forwards whose connection still stands: a stopped process, or a machine whose
//! kernel still acknowledges, closes nothing.
//!
//! Judges spans of silence and measures none. Before the other node has granted a permit no work
//! has begun, so little evidence is enough to try elsewhere. Afterwards a node counts as lost only
//! when gossip and its peers listener both say so. Spans are milliseconds.

use super::membership::ClusterView;
use super::node::ClusterNode;
use super::report::NodeId;
use crate::Millis;

/// A node with a queued forward reports at this interval until it grants a permit: four times in
/// [`SILENCE_MAX`], so that one late report does not count.
pub const QUEUED_EVERY: Millis = Millis(250);

/// Silence, on its connection and in gossip, after which a node that granted nothing has lost the
/// request.
pub const SILENCE_MAX: Millis = Millis(1_000);

/// Silence on the connection after which the forward is lost, whatever gossip says. A node whose
/// own last message is so old has been given up and starts nothing.
pub const GIVEN_UP_AFTER: Millis = Millis(2_000);

/// Reports come ten times a second: a node without one for so long may be stopped.
const REPORT_AGE_MAX: Millis = Millis(500);

/// A node is pinged every second for at most a second: without a response for so long its listener is
/// not served.
const PING_AGE_MAX: Millis = Millis(2_000);

/// Liveness of a node, apart from one connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// The failure detector reports it lost, or another process has its name.
    pub is_lost: bool,
    /// Since its last report.
    pub since_report: Millis,
    /// Since its peers listener answered last.
    pub since_response: Millis,
}

impl Liveness {
    /// Liveness of an unknown node.
    pub const UNKNOWN: Liveness = Liveness {
        is_lost: true,
        since_report: Millis::MAX,
        since_response: Millis::MAX,
    };

    /// Returns whether a queued forward is lost after `silent` without a message about it.
    /// `connected`: the request was sent, so that a message was due.
    pub fn is_queued_forward_lost(&self, silent: Millis, connected: bool) -> bool {
        let node_is_silent = self.is_lost || self.since_report >= REPORT_AGE_MAX;
        (silent >= SILENCE_MAX && node_is_silent) || (silent >= GIVEN_UP_AFTER && connected)
    }

    /// Returns whether a granted forward is lost after `silent` without a byte of its response. A
    /// model may need minutes for the first one: its node has to be silent everywhere.
    pub fn is_granted_forward_lost(&self, silent: Millis) -> bool {
        self.is_lost && self.since_response >= PING_AGE_MAX && silent >= SILENCE_MAX
    }
}

impl ClusterView {
    /// Records a response of a node's peers listener. Returns whether it is the first time of its
    /// process.
    pub fn record_ping_response(&mut self, name: &str, now: Millis) -> bool {
        let slot = self.by_name.get(name);
        let node = slot.and_then(|&slot| self.nodes[usize::from(slot)].as_mut());
        node.is_some_and(|node| node.answered_at.replace(now).is_none())
    }

    /// Returns whether reports of a node count: it has proved to be the one it says, or need not.
    pub(super) fn is_trusted(&self, node: &ClusterNode) -> bool {
        !self.rule.proven_only || node.answered_at.is_some()
    }

    /// Returns the liveness of one process of a node.
    pub fn liveness(&self, id: &NodeId, now: Millis) -> Liveness {
        let slot = self.by_name.get(&id.name);
        let node = slot.and_then(|&slot| self.nodes[usize::from(slot)].as_ref());
        let Some(node) = node.filter(|node| node.id.generation == id.generation) else {
            return Liveness::UNKNOWN;
        };
        Liveness {
            is_lost: node.is_lost,
            since_report: node.silence(now),
            since_response: node.answered_at.map_or(Millis::MAX, |at| now.since(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Liveness = Liveness {
        is_lost: false,
        since_report: Millis(100),
        since_response: Millis(300),
    };

    #[test]
    fn a_forward_in_line_is_lost_after_a_second_of_a_silent_node_and_after_two_of_any() {
        let stopped = Liveness {
            since_report: Millis(500),
            ..ALIVE
        };
        assert!(!stopped.is_queued_forward_lost(Millis(999), true));
        assert!(stopped.is_queued_forward_lost(Millis(1_000), true));
        assert!(stopped.is_queued_forward_lost(Millis(1_000), false));
        assert!(
            !ALIVE.is_queued_forward_lost(Millis(1_999), true),
            "late, not lost"
        );
        assert!(ALIVE.is_queued_forward_lost(Millis(2_000), true));
        assert!(
            !ALIVE.is_queued_forward_lost(Millis(9_000), false),
            "connecting has a bound of its own"
        );
    }

    #[test]
    fn a_forward_at_work_is_lost_only_when_gossip_and_the_listener_and_the_connection_are_silent() {
        let lost = Liveness {
            is_lost: true,
            since_report: Millis(3_000),
            since_response: Millis(2_000),
        };
        assert!(lost.is_granted_forward_lost(Millis(1_000)));
        assert!(
            !lost.is_granted_forward_lost(Millis(999)),
            "bytes came a moment ago"
        );
        let liveness = Liveness {
            is_lost: false,
            ..lost
        };
        assert!(
            !liveness.is_granted_forward_lost(Millis(60_000)),
            "a slow model"
        );
        let answers = Liveness {
            since_response: Millis(1_999),
            ..lost
        };
        assert!(
            !answers.is_granted_forward_lost(Millis(60_000)),
            "gossip alone is cut"
        );
        assert!(Liveness::UNKNOWN.is_granted_forward_lost(Millis(1_000)));
    }
}
