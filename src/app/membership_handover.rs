//! Hand-over of a node to the process that follows, which is the same node to all others.
//!
//! The gossip is [`cluster`](super::cluster)'s; when it changes hands is decided by the upgrade.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use infergate_core::AccountId;
use infergate_core::routing::cluster::NodeId;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::peer::GossipIdentity;
use crate::state::Shared;

/// Reports that a process may still send after it has told its number of them to its successor: for some hours.
const REPORTS_BETWEEN: u64 = 1 << 20;
/// Longest wait for a round of gossip to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Node as its former process leaves it to this one: the same node to all others, so that nothing that they have sent
/// there is lost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FormerNode {
    /// Name of the node.
    pub name: Arc<str>,
    /// Generation of the node.
    pub generation: u64,
    /// Number of the process in the gossip.
    pub incarnation: u64,
    /// Above the version of every report of that process.
    pub version: u64,
    /// Requests of accounts that have passed.
    pub passed: Vec<(AccountId, u64)>,
    /// Number of other nodes that it can forward requests to.
    pub others: usize,
}

impl FormerNode {
    /// Returns the node.
    pub fn id(&self) -> NodeId {
        NodeId {
            name: Arc::clone(&self.name),
            generation: self.generation,
        }
    }
}

/// Hold on the membership of a process, for its hand-over to a successor.
pub struct MembershipHandover {
    /// Identity of this process.
    pub identity: GossipIdentity,
    /// Version of its last report.
    pub version: Arc<AtomicU64>,
    /// Requests of accounts that had passed before it.
    pub passed_before: Arc<HashMap<AccountId, u64>>,
    /// Ends the membership.
    pub stop: watch::Sender<bool>,
}

impl MembershipHandover {
    /// Returns the node as this process leaves it.
    pub fn node(&self, shared: &Shared) -> FormerNode {
        let snapshot = shared.snapshot.load();
        let passed = with_former(snapshot.requests_passed(), &self.passed_before);
        FormerNode {
            name: Arc::clone(&self.identity.here.name),
            generation: self.identity.here.generation,
            incarnation: self.identity.incarnation,
            version: self.version.load(Ordering::Relaxed) + REPORTS_BETWEEN,
            passed: passed.map(|(id, count)| (id.clone(), count)).collect(),
            others: proven_nodes(shared),
        }
    }

    /// Leaves the gossip without a word: the successor speaks from now on. Reports of other nodes grow old here, so that
    /// what is left to do is done by this node.
    pub async fn leave(&self) {
        self.stop.send_replace(true);
        if timeout(STOP_TIMEOUT, self.stop.closed()).await.is_err() {
            tracing::warn!("the gossip of this process does not end: both processes read it");
        }
    }
}

/// Number of other nodes that live and have shown their certificate.
pub fn proven_nodes(shared: &Shared) -> usize {
    let nodes = shared.cluster.nodes();
    let live = nodes.iter().filter(|view| !view.gone);
    live.filter(|view| shared.cluster.is_proven(&view.node))
        .count()
}

/// Requests that have passed in this process and in those before it.
pub fn with_former<'a>(
    passed: impl Iterator<Item = (&'a AccountId, u64)>,
    before: &HashMap<AccountId, u64>,
) -> impl Iterator<Item = (&'a AccountId, u64)> {
    passed.map(|(id, count)| (id, count + before.get(id).copied().unwrap_or(0)))
}
