//! Part of a process in a cluster: begun at its start, or where the part of its predecessor ends.
//!
//! The work of a member is [`cluster`](super::cluster)'s.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::cluster::{ClusterSockets, Membership};
use super::membership_handover::{FormerNode, MembershipHandover, proven_nodes};
use super::nodes;
use super::seeds::{self, Seeds};
use crate::state::Shared;

/// Longest wait for the nodes that a predecessor has known: their next reports, and a proof of each. Connections of clients
/// wait as long to be accepted.
const OTHERS_WAIT_MAX: Duration = Duration::from_secs(1);
/// Between two looks for them.
const OTHERS_LOOK: Duration = Duration::from_millis(10);

/// Part of a process in a cluster, if it has one.
pub enum ClusterPart {
    /// Without a predecessor.
    Joined(Option<Box<Membership>>),
    /// To begin where the predecessor's ends, with the node that it has been.
    Later(Option<Box<ClusterSockets>>, Option<Box<FormerNode>>),
}

impl ClusterPart {
    /// Joins the gossip at once, as a process without a predecessor.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn begin(
        joining: Option<ClusterSockets>,
        shared: &Arc<Shared>,
    ) -> Result<ClusterPart, String> {
        Ok(ClusterPart::Joined(match joining {
            Some(joining) => Some(Box::new(joining.start(shared, None).await?)),
            None => None,
        }))
    }

    /// Takes part from now on, until it is handed over. A process that follows another one waits for the nodes that this has
    /// known; one that cannot join serves alone, for its predecessor has left.
    pub async fn join(
        self,
        tasks: &mut JoinSet<()>,
        shared: &Arc<Shared>,
    ) -> Option<MembershipHandover> {
        match self {
            ClusterPart::Joined(membership) => membership.map(|it| spawn(tasks, *it, shared)),
            ClusterPart::Later(joining, former) => {
                let others = former.as_ref().map_or(0, |former| former.others);
                let former = former.map(|former| *former);
                match joining?.start(shared, former).await {
                    Ok(membership) => {
                        let handover = spawn(tasks, membership, shared);
                        wait_for_others(shared, others).await;
                        Some(handover)
                    }
                    Err(reason) => {
                        tracing::error!(reason, "this node is alone until it is restarted");
                        None
                    }
                }
            }
        }
    }
}

fn spawn(
    tasks: &mut JoinSet<()>,
    membership: Membership,
    shared: &Arc<Shared>,
) -> MembershipHandover {
    let (sender, seeds) = watch::channel(Seeds::default());
    let cluster = membership.cluster().clone();
    tasks.spawn(seeds::look_up(Arc::clone(shared), cluster, sender));
    tasks.spawn(nodes::measure_rtts(Arc::clone(shared)));
    let (handover, stopped) = membership.handover();
    tasks.spawn(membership.run(seeds, stopped));
    handover
}

async fn wait_for_others(shared: &Shared, others: usize) {
    let known = async {
        let mut looks = interval(OTHERS_LOOK);
        while proven_nodes(shared) < others {
            looks.tick().await;
        }
    };
    if timeout(OTHERS_WAIT_MAX, known).await.is_err() {
        tracing::warn!(
            others,
            "not all nodes of the process before this one are known yet"
        );
    }
}
