//! Messages to other nodes beside requests of clients: round-trip measurements, and the notice that
//! this node leaves.
//!
//! Reports of other nodes are not read and requests are not forwarded here. Eight nodes are measured at once,
//! each for at most a second.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use infergate_core::routing::fleet::{NodeView, NotAsked};
use tokio::time::{MissedTickBehavior, interval};

use crate::proxy::Shared;

/// Between two measurements of a node, and the most one may take.
const TIMING_TICK: Duration = Duration::from_secs(1);
/// Nodes measured at once.
const TIMED_AT_ONCE: usize = 8;
/// Time for the notice that this node leaves: a node without it forwards a few more requests,
/// which are served.
const DRAINING_TOLD_LIMIT: Duration = Duration::from_millis(500);

/// Measures round-trip times to the other nodes, for the life of the process.
pub async fn time(shared: Arc<Shared>) {
    let mut ticks = interval(TIMING_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // One that has appeared is asked for its certificate at once: nothing goes to it before.
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = shared.others.appeared() => false,
        };
        let mut nodes = shared.others.nodes();
        nodes.retain(|node| is_tick || node.not_asked == Some(NotAsked::Unproven));
        let measure = async |node: NodeView| {
            if let Some(rtt_us) = shared.channel.ping(&node, TIMING_TICK).await {
                shared.others.timed(&node.node.name, rtt_us);
            }
        };
        // Lost nodes as well: a node that responds is not lost.
        stream::iter(nodes)
            .for_each_concurrent(TIMED_AT_ONCE, measure)
            .await;
    }
}

/// Announces to the other nodes that this node takes no further requests.
pub async fn tell_draining(shared: &Shared) {
    let nodes = there(shared);
    if nodes.is_empty() {
        return;
    }
    let told = shared.channel.tell_draining(&nodes, DRAINING_TOLD_LIMIT);
    let told = told.await;
    tracing::info!(
        told,
        of = nodes.len(),
        "other nodes know that this one drains"
    );
}

/// Nodes that have not left.
fn there(shared: &Shared) -> Vec<NodeView> {
    let mut nodes = shared.others.nodes();
    nodes.retain(|node| node.not_asked != Some(NotAsked::Gone));
    nodes
}
