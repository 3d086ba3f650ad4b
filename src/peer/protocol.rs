//! Version of the protocol between nodes: gossip values, headers and paths of the peers listener.
//!
//! Nothing is translated. A node of another version is no member: it is shown, its reports are not read, no
//! request is forwarded to it, and a request of its is not answered. Such a node tries elsewhere, because
//! no version takes a closed connection for a response.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::routing::cluster::{NODES_MAX, NodeId};
use parking_lot::Mutex;

/// Version that this node speaks. Raised by each change of what nodes write to each other.
pub const PROTOCOL_VERSION: u32 = 3;

/// A live node that speaks another version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncompatibleNode {
    /// The node.
    pub node: NodeId,
    /// Its version.
    pub protocol: u32,
}

/// Live nodes of other versions.
#[derive(Default)]
pub struct IncompatibleNodes {
    /// Guards the list; held for a look-up. At most [`NODES_MAX`].
    nodes: Mutex<HashMap<Arc<str>, IncompatibleNode>>,
}

impl IncompatibleNodes {
    /// Replaces the list, and returns those that were not in it.
    pub fn replace(&self, found: Vec<IncompatibleNode>) -> Vec<IncompatibleNode> {
        let mut nodes = self.nodes.lock();
        let is_new = |found: &&IncompatibleNode| nodes.get(&found.node.name) != Some(*found);
        let new: Vec<_> = found.iter().filter(is_new).cloned().collect();
        let named = |found: IncompatibleNode| (Arc::clone(&found.node.name), found);
        *nodes = found.into_iter().take(NODES_MAX).map(named).collect();
        new
    }

    /// Returns all of them, by name.
    pub fn list(&self) -> Vec<IncompatibleNode> {
        let mut nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        nodes.sort_unstable_by(|a, b| a.node.name.cmp(&b.node.name));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_new_once_for_each_process_and_version() {
        let nodes = IncompatibleNodes::default();
        let node = |generation, protocol| IncompatibleNode {
            node: NodeId {
                name: "b".into(),
                generation,
            },
            protocol,
        };
        for (found, new) in [
            (vec![node(1, 1)], 1),
            (vec![node(1, 1)], 0),
            (vec![node(2, 1)], 1),
            (vec![node(2, 3)], 1),
            (Vec::new(), 0),
            (vec![node(2, 3)], 1),
        ] {
            assert_eq!(nodes.replace(found.clone()).len(), new);
            assert_eq!(nodes.list(), found);
        }
    }
}
