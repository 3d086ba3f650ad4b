//! Comparison of nodes' configurations in what they have to agree on: accounts, models and tariffs.
//!
//! No configuration is read here. A node publishes a digest of each part, and every node compares
//! those of the others with its own: a difference is a warning and refuses nothing.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::routing::cluster::{NODES_MAX, NodeId};
use parking_lot::Mutex;

/// Digests of a node's configuration, the same for equal parts only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigDigests {
    /// Names, keys and limits of its accounts.
    pub accounts: u64,
    /// Names and tasks of its models.
    pub models: u64,
    /// Tariffs of its models.
    pub tariffs: u64,
}

/// Parts of a node's configuration that differ from this node's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigDrift {
    /// Its accounts.
    pub accounts: bool,
    /// Its models.
    pub models: bool,
    /// Its tariffs.
    pub tariffs: bool,
}

impl ConfigDigests {
    /// Compares with the digests of another node.
    fn drift(&self, other: &ConfigDigests) -> ConfigDrift {
        ConfigDrift {
            accounts: self.accounts != other.accounts,
            models: self.models != other.models,
            tariffs: self.tariffs != other.tariffs,
        }
    }
}

impl ConfigDrift {
    /// All is alike.
    pub fn is_none(self) -> bool {
        self == ConfigDrift::default()
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
pub struct DriftTable {
    /// Guards the list; held for a look-up.
    known: Mutex<DriftState>,
}

#[derive(Default)]
struct DriftState {
    here: ConfigDigests,
    others: HashMap<Arc<str>, (u64, ConfigDigests)>,
}

impl DriftTable {
    /// Sets the digests of this node.
    pub fn set_here(&self, here: ConfigDigests) {
        self.known.lock().here = here;
    }

    /// Records the digests of another node.
    pub fn record(&self, node: &NodeId, digests: ConfigDigests) {
        let mut known = self.known.lock();
        if known.others.len() < NODES_MAX || known.others.contains_key(&node.name) {
            let entry = (node.generation, digests);
            known.others.insert(Arc::clone(&node.name), entry);
        }
    }

    /// Forgets a node.
    pub fn forget(&self, name: &str) {
        self.known.lock().others.remove(name);
    }

    /// Drift of a node's configuration; none for a node that has published no digests.
    pub fn drift_of(&self, node: &NodeId) -> ConfigDrift {
        let known = self.known.lock();
        let published = known.others.get(&node.name);
        let reported = published.filter(|(generation, _)| *generation == node.generation);
        reported.map_or_else(ConfigDrift::default, |(_, digests)| {
            known.here.drift(digests)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_other_than_here_is_named_and_a_process_that_has_told_nothing_is_like_us() {
        let drifts = DriftTable::default();
        let node = |generation| NodeId {
            name: "b".into(),
            generation,
        };
        let here = ConfigDigests {
            accounts: 1,
            models: 2,
            tariffs: 3,
        };
        drifts.set_here(here);
        assert!(drifts.drift_of(&node(1)).is_none());
        drifts.record(&node(1), ConfigDigests { tariffs: 4, ..here });
        assert_eq!(drifts.drift_of(&node(1)).names(), ["tariffs"]);
        assert!(drifts.drift_of(&node(2)).is_none());
        drifts.set_here(ConfigDigests { tariffs: 4, ..here });
        assert!(drifts.drift_of(&node(1)).is_none());
        drifts.record(&node(1), ConfigDigests::default());
        assert_eq!(
            drifts.drift_of(&node(1)).names(),
            ["accounts", "models", "tariffs"]
        );
        drifts.forget("b");
        assert!(drifts.drift_of(&node(1)).is_none());
    }
}
