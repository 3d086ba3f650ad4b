//! Requests per minute over the whole cluster: how many more were admitted at other nodes.
//!
//! Limits stay with the accounts' own counters. Each node gossips how many requests of an account have passed
//! there since its process began. A count gossiped by an unproven node becomes the base that counting starts
//! from, and is not itself counted. Bounds: the nodes of the cluster, [`ACCOUNTS_MAX`] accounts of each.

use std::collections::HashMap;

use infergate_core::AccountId;
use infergate_core::routing::cluster::{NODES_MAX, NodeId};

use crate::peer::ACCOUNTS_MAX;

/// Counts of other nodes.
#[derive(Default)]
pub struct RemoteRequestCounts {
    nodes: HashMap<NodeId, NodeCounts>,
}

#[derive(Default)]
struct NodeCounts {
    by_account: HashMap<AccountId, u64>,
    /// The node had shown its certificate at the last update.
    counts: bool,
}

impl RemoteRequestCounts {
    /// Drops all nodes but the living ones. Counts what proven nodes report from now on. To be called before
    /// [`RemoteRequestCounts::update`], with the nodes that were known before it.
    pub fn set_members(&mut self, living: impl Iterator<Item = (NodeId, bool)>) {
        let living: HashMap<NodeId, bool> = living.take(NODES_MAX).collect();
        self.nodes.retain(|id, _| living.contains_key(id));
        for (id, is_proven) in living {
            self.nodes.entry(id).or_default().counts = is_proven;
        }
    }

    /// Applies reports. Returns how many requests more were admitted, by account.
    pub fn update(&mut self, reports: Vec<(NodeId, AccountId, u64)>) -> Vec<(AccountId, u64)> {
        let mut more = Vec::new();
        for (node, account, count) in reports {
            if !self.nodes.contains_key(&node) && self.nodes.len() >= NODES_MAX {
                continue;
            }
            let node = self.nodes.entry(node).or_default();
            let is_known = node.by_account.contains_key(&account);
            if !is_known && node.by_account.len() >= ACCOUNTS_MAX {
                continue;
            }
            let before = node.by_account.entry(account.clone()).or_default();
            // A request that is given back makes less, which the next one makes up for.
            let new = count.saturating_sub(*before);
            *before = count.max(*before);
            if node.counts && new > 0 {
                more.push((account, new));
            }
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str, generation: u64) -> NodeId {
        NodeId {
            name: name.into(),
            generation,
        }
    }

    fn reported(node: &NodeId, count: u64) -> Vec<(NodeId, AccountId, u64)> {
        vec![(node.clone(), "a".into(), count)]
    }

    #[test]
    fn what_passed_before_a_node_had_proved_itself_is_not_counted_and_everything_after_is() {
        let (mut passed, b) = (RemoteRequestCounts::default(), id("b", 1));
        let keep = |passed: &mut RemoteRequestCounts, proven| {
            passed.set_members([(id("b", 1), proven)].into_iter());
        };
        assert_eq!(passed.update(reported(&b, 1_000)), []);
        keep(&mut passed, false);
        assert_eq!(passed.update(reported(&b, 1_010)), []);
        keep(&mut passed, true);
        assert_eq!(passed.update(reported(&b, 1_015)), [("a".into(), 5)]);
        // One was given back, and another one passed.
        assert_eq!(passed.update(reported(&b, 1_014)), []);
        assert_eq!(passed.update(reported(&b, 1_016)), [("a".into(), 1)]);
    }

    #[test]
    fn the_first_request_at_a_node_that_was_there_before_counts_and_a_stranger_has_no_say() {
        let (mut passed, b, stranger) = (RemoteRequestCounts::default(), id("b", 1), id("s", 1));
        passed.set_members([(b.clone(), true), (stranger.clone(), false)].into_iter());
        assert_eq!(passed.update(reported(&stranger, u64::MAX)), []);
        assert_eq!(passed.update(reported(&b, 1)), [("a".into(), 1)]);
        // It was started again.
        let b = id("b", 2);
        passed.set_members([(b.clone(), true)].into_iter());
        assert_eq!(passed.update(reported(&b, 2)), [("a".into(), 2)]);
        assert_eq!(passed.nodes.len(), 1);
    }
}
