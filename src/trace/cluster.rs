//! The steps of a trace that only a cluster has: which nodes were considered, and what became of a
//! request that was sent to one.
//!
//! Kept in boxes, so that requests that stay here pay nothing for them.

use std::sync::Arc;

use super::record::{RequestTrace, RetryDecision, TraceBuilder, TraceStep};
use crate::peer::ClusterHandle;
use crate::telemetry::ForwardResult;
use crate::upstream::SiteRanking;
use infergate_core::Millis;
use infergate_core::routing::cluster::{ForwardTarget, Need, NodeQuery, NodeView};

/// Nodes recorded of one selection; of a larger cluster the first in the order.
const NODES_RECORDED_MAX: usize = 8;

/// Other nodes were looked at.
#[derive(Clone, Debug)]
pub struct PeerSelectionStep {
    pub at_us: u64,
    pub need: Need,
    pub forced_site: Option<Arc<str>>,
    /// Order of the sites by the policy; none where their distance decides.
    pub sites: Option<Arc<SiteRanking>>,
    pub nodes: Vec<NodeView>,
    pub nodes_left_out: usize,
    pub chosen: Option<Arc<str>>,
}

/// The request was sent to another node.
#[derive(Clone, Debug)]
pub struct ForwardStep {
    pub begin_us: u64,
    pub node: Arc<str>,
    pub site: Arc<str>,
    pub rtt_us: u32,
    pub in_flight: u32,
    pub wait_max_ms: u64,
    /// End of the forward and its result: the node answered, or was given up. None while it is open.
    pub ended: Option<(u64, ForwardStepEnd)>,
    pub retry: Option<RetryDecision>,
}

/// Result of a forward.
#[derive(Clone, Copy, Debug)]
pub enum ForwardStepEnd {
    /// The node has begun to answer with this HTTP status.
    Answered(u16),
    /// The node has no capacity.
    Rejected {
        /// In a word.
        result: ForwardResult,
        /// Permits free there, as it said.
        free: u32,
        /// Expected wait there, as it said.
        wait_ms: u32,
    },
    /// Something else, and the request is back.
    Ended(ForwardResult),
}

impl TraceBuilder {
    /// Other nodes were looked at for what is sought.
    pub fn record_peer_selection(
        &mut self,
        others: &ClusterHandle,
        at_us: u64,
        query: &NodeQuery<'_>,
        sites: Option<&Arc<SiteRanking>>,
        chosen: Option<&ForwardTarget>,
    ) {
        self.push_step(|| {
            let (nodes, nodes_left_out) = others.explain(query, NODES_RECORDED_MAX);
            TraceStep::PeerSelection(Box::new(PeerSelectionStep {
                at_us,
                need: query.need,
                forced_site: query.forced_site.map(Arc::from),
                sites: sites.cloned(),
                nodes,
                nodes_left_out,
                chosen: chosen.map(|chosen| Arc::clone(&chosen.node.name)),
            }))
        });
    }

    /// The request is sent to another node.
    pub fn begin_forward(&mut self, began_us: u64, target: &ForwardTarget, wait_max: Millis) {
        let chosen = target;
        self.push_step(|| {
            TraceStep::Forward(Box::new(ForwardStep {
                begin_us: began_us,
                node: Arc::clone(&chosen.node.name),
                site: Arc::clone(&chosen.site),
                rtt_us: chosen.rtt_us,
                in_flight: chosen.in_flight,
                wait_max_ms: wait_max.0,
                ended: None,
                retry: None,
            }))
        });
    }

    /// Records the result of the forward.
    pub fn end_forward(&mut self, at_us: u64, how: ForwardStepEnd) {
        if let Some(forward) = self.last_forward() {
            forward.ended = Some((at_us, how));
        }
    }

    pub(super) fn last_forward(&mut self) -> Option<&mut ForwardStep> {
        match self.recorded.as_mut()?.last_step()? {
            TraceStep::Forward(forward) => Some(forward),
            _ => None,
        }
    }
}

impl ForwardStep {
    pub(super) fn set_retry_decision(&mut self, decision: RetryDecision) {
        self.retry = Some(decision);
    }
}

impl RequestTrace {
    /// Names of the nodes that were sent the request, in order.
    pub fn nodes(&self) -> Vec<Arc<str>> {
        let forward = |step: &TraceStep| match step {
            TraceStep::Forward(forward) => Some(Arc::clone(&forward.node)),
            _ => None,
        };
        self.steps.iter().filter_map(forward).collect()
    }
}
