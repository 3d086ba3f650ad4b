//! Messages to other nodes beside requests of clients: round-trip measurements, and the notice that
//! this node leaves.
//!
//! Reports of other nodes are not read and requests are not forwarded here. Eight nodes are measured at once,
//! each for at most a second.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use infergate_core::routing::cluster::{NodeView, SkipReason};
use tokio::time::{MissedTickBehavior, interval};

use crate::state::Shared;

/// Between two measurements of a node, and the most one may take.
const TIMING_TICK: Duration = Duration::from_secs(1);
/// Nodes measured at once.
const MEASURED_AT_ONCE: usize = 8;
/// Time for the notice that this node leaves: a node without it forwards a few more requests,
/// which are served.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_millis(500);

/// Measures round-trip times to the other nodes, for the life of the process.
pub async fn measure_rtts(shared: Arc<Shared>) {
    let mut ticks = interval(TIMING_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // One that has appeared is asked for its certificate at once: nothing goes to it before.
        let is_tick = tokio::select! {
            _ = ticks.tick() => true,
            () = shared.cluster.appeared() => false,
        };
        let mut nodes = shared.cluster.nodes();
        nodes.retain(|node| is_tick || node.skip_reason == Some(SkipReason::Unproven));
        let measure = async |node: NodeView| {
            if let Some(rtt_us) = shared.peer_client.ping(&node, TIMING_TICK).await {
                shared.cluster.record_ping(&node.node.name, rtt_us);
            }
        };
        // Lost nodes as well: a node that responds is not lost.
        stream::iter(nodes)
            .for_each_concurrent(MEASURED_AT_ONCE, measure)
            .await;
    }
}

/// Announces to the other nodes that this node takes no further requests.
pub async fn announce_draining(shared: &Shared) {
    let nodes = reachable_nodes(shared);
    if nodes.is_empty() {
        return;
    }
    let announced = shared
        .peer_client
        .announce_draining(&nodes, ANNOUNCE_TIMEOUT);
    let reported = announced.await;
    tracing::info!(
        reported,
        of = nodes.len(),
        "other nodes know that this one drains"
    );
}

/// Nodes that have not left.
fn reachable_nodes(shared: &Shared) -> Vec<NodeView> {
    let mut nodes = shared.cluster.nodes();
    nodes.retain(|node| node.skip_reason != Some(SkipReason::Gone));
    nodes
}
