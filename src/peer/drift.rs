//! Comparison of nodes' configurations in what they have to agree on: accounts, models and tariffs.
//!
//! No configuration is read here. A node publishes a digest of each part, and every node compares
//! those of the others with its own: a difference is a warning and refuses nothing.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::routing::fleet::{NODES_MAX, NodeId};
use parking_lot::Mutex;

/// Digests of a node's configuration, the same for equal parts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Names, keys and limits of its accounts.
    pub accounts: u64,
    /// Names and tasks of its models.
    pub models: u64,
    /// Tariffs of its models.
    pub tariffs: u64,
}

/// Parts of a node's configuration that differ from this node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Its accounts.
    pub accounts: bool,
    /// Its models.
    pub models: bool,
    /// Its tariffs.
    pub tariffs: bool,
}

impl Digests {
    /// Compares with the digests of another node.
    fn drift(&self, other: &Digests) -> Drift {
        Drift {
            accounts: self.accounts != other.accounts,
            models: self.models != other.models,
            tariffs: self.tariffs != other.tariffs,
        }
    }
}

impl Drift {
    /// All is alike.
    pub fn is_none(self) -> bool {
        self == Drift::default()
    }

    /// Names of the differing parts.
    pub fn names(self) -> Vec<&'static str> {
        let parts = [
            (self.accounts, "accounts"),
            (self.models, "models"),
            (self.tariffs, "tariffs"),
        ];
        let differing = parts.into_iter().filter(|(differs, _)| *differs);
        differing.map(|(_, name)| name).collect()
    }
}

/// Digests of this node and of the others.
#[derive(Default)]
pub struct Drifts {
    /// Guards the list; held for a look-up.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    here: Digests,
    others: HashMap<Arc<str>, (u64, Digests)>,
}

impl Drifts {
    /// Sets the digests of this node.
    pub fn set_here(&self, here: Digests) {
        self.known.lock().here = here;
    }

    /// Records the digests of another node.
    pub fn heard(&self, node: &NodeId, digests: Digests) {
        let mut known = self.known.lock();
        if known.others.len() < NODES_MAX || known.others.contains_key(&node.name) {
            let told = (node.generation, digests);
            known.others.insert(Arc::clone(&node.name), told);
        }
    }

    /// Forgets a node.
    pub fn forget(&self, name: &str) {
        self.known.lock().others.remove(name);
    }

    /// Drift of a node's configuration; none for a node that has published no digests.
    pub fn of(&self, node: &NodeId) -> Drift {
        let known = self.known.lock();
        let told = known.others.get(&node.name);
        let told = told.filter(|(generation, _)| *generation == node.generation);
        told.map_or_else(Drift::default, |(_, digests)| known.here.drift(digests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_other_than_here_is_named_and_a_process_that_has_told_nothing_is_like_us() {
        let drifts = Drifts::default();
        let node = |generation| NodeId {
            name: "b".into(),
            generation,
        };
        let here = Digests {
            accounts: 1,
            models: 2,
            tariffs: 3,
        };
        drifts.set_here(here);
        assert!(drifts.of(&node(1)).is_none());
        drifts.heard(&node(1), Digests { tariffs: 4, ..here });
        assert_eq!(drifts.of(&node(1)).names(), ["tariffs"]);
        assert!(drifts.of(&node(2)).is_none());
        drifts.set_here(Digests { tariffs: 4, ..here });
        assert!(drifts.of(&node(1)).is_none());
        drifts.heard(&node(1), Digests::default());
        assert_eq!(
            drifts.of(&node(1)).names(),
            ["accounts", "models", "tariffs"]
        );
        drifts.forget("b");
        assert!(drifts.of(&node(1)).is_none());
    }
}
