//! Whether a forward is lost although its connection still stands: a process that was stopped, or a
//! machine whose kernel still acknowledges, closes nothing.
//!
//! It judges spans of silence and measures none. Before the other node has granted a permit nobody has
//! begun to work, so a request may go elsewhere on little evidence; afterwards it may not, and a node
//! counts as lost only when gossip and its peers listener say so. Spans are milliseconds.

use super::node::Node;
use super::report::NodeId;
use super::world::Fleet;
use crate::Millis;

/// A node that has a forward in line says so this often, until it grants a permit: four times in
/// [`SILENCE_MAX`], so that one that is late does not count.
pub const QUEUED_EVERY: Millis = Millis(250);

/// Without a word for so long, on its connection and in the gossip, a node that has granted nothing has
/// lost the request.
pub const SILENCE_MAX: Millis = Millis(1_000);

/// Without a word on its connection for so long it has, whatever gossip says. A node whose own last
/// word is so old has been given up, and begins nothing.
pub const GIVEN_UP_AFTER: Millis = Millis(2_000);

/// Reports come ten times a second: a node without one for so long may be stopped.
const UNREPORTED_MAX: Millis = Millis(500);

/// A node is pinged every second for at most a second: without an answer for so long its listener is
/// not served.
const UNANSWERED_MAX: Millis = Millis(2_000);

/// What is known of the life of a node beside one connection to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// The failure detector says that it is gone, or another process has its name.
    pub gone: bool,
    /// Since its last report.
    pub unreported: Millis,
    /// Since its peers listener answered last.
    pub unanswered: Millis,
}

impl Liveness {
    /// Of a node that is not known any more.
    pub const UNKNOWN: Liveness = Liveness {
        gone: true,
        unreported: Millis::MAX,
        unanswered: Millis::MAX,
    };

    /// Whether a forward is lost for which no permit was granted, after `silent` without a word about
    /// it. `connected`: it was sent, so that there should have been one.
    pub fn is_lost_in_line(&self, silent: Millis, connected: bool) -> bool {
        let node_is_silent = self.gone || self.unreported >= UNREPORTED_MAX;
        (silent >= SILENCE_MAX && node_is_silent) || (silent >= GIVEN_UP_AFTER && connected)
    }

    /// Whether a forward is lost for which a permit was granted, after `silent` without a byte of its
    /// answer. A model may need minutes for the first one: its node has to be silent everywhere.
    pub fn is_lost_at_work(&self, silent: Millis) -> bool {
        self.gone && self.unanswered >= UNANSWERED_MAX && silent >= SILENCE_MAX
    }
}

impl Fleet {
    /// The peers listener of a node has answered. Returns whether it is the first time of its process.
    pub fn answered(&mut self, name: &str, now: Millis) -> bool {
        let slot = self.by_name.get(name);
        let node = slot.and_then(|&slot| self.nodes[usize::from(slot)].as_mut());
        node.is_some_and(|node| node.answered_at.replace(now).is_none())
    }

    /// Returns whether reports of a node count: it has proved to be the one it says, or need not.
    pub(super) fn counts(&self, node: &Node) -> bool {
        !self.rule.proven_only || node.answered_at.is_some()
    }

    /// How alive a process of a node is, as far as is known here.
    pub fn liveness(&self, id: &NodeId, now: Millis) -> Liveness {
        let slot = self.by_name.get(&id.name);
        let node = slot.and_then(|&slot| self.nodes[usize::from(slot)].as_ref());
        let Some(node) = node.filter(|node| node.id.generation == id.generation) else {
            return Liveness::UNKNOWN;
        };
        Liveness {
            gone: node.gone,
            unreported: node.silence(now),
            unanswered: node.answered_at.map_or(Millis::MAX, |at| now.since(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Liveness = Liveness {
        gone: false,
        unreported: Millis(100),
        unanswered: Millis(300),
    };

    #[test]
    fn a_forward_in_line_is_lost_after_a_second_of_a_silent_node_and_after_two_of_any() {
        let stopped = Liveness {
            unreported: Millis(500),
            ..ALIVE
        };
        assert!(!stopped.is_lost_in_line(Millis(999), true));
        assert!(stopped.is_lost_in_line(Millis(1_000), true));
        assert!(stopped.is_lost_in_line(Millis(1_000), false));
        assert!(
            !ALIVE.is_lost_in_line(Millis(1_999), true),
            "late, not lost"
        );
        assert!(ALIVE.is_lost_in_line(Millis(2_000), true));
        assert!(
            !ALIVE.is_lost_in_line(Millis(9_000), false),
            "connecting has a bound of its own"
        );
    }

    #[test]
    fn a_forward_at_work_is_lost_only_when_gossip_and_the_listener_and_the_connection_are_silent() {
        let lost = Liveness {
            gone: true,
            unreported: Millis(3_000),
            unanswered: Millis(2_000),
        };
        assert!(lost.is_lost_at_work(Millis(1_000)));
        assert!(
            !lost.is_lost_at_work(Millis(999)),
            "bytes came a moment ago"
        );
        let heard = Liveness {
            gone: false,
            ..lost
        };
        assert!(!heard.is_lost_at_work(Millis(60_000)), "a slow model");
        let answers = Liveness {
            unanswered: Millis(1_999),
            ..lost
        };
        assert!(
            !answers.is_lost_at_work(Millis(60_000)),
            "gossip alone is cut"
        );
        assert!(Liveness::UNKNOWN.is_lost_at_work(Millis(1_000)));
    }
}
