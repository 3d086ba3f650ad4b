//! The steps of a story that only a fleet has: which nodes were looked at, and what became of a
//! request that was sent to one.
//!
//! Kept in boxes, so that requests that stay here pay nothing for them.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::routing::Candidate;
use infergate_core::routing::cluster::{ForwardTarget, Need, NodeQuery, NodeView};
use serde_json::{Value, json};

use super::record::{RequestTrace, RetryDecision, TraceBuilder, TraceStep};
use super::render::{ms, ranked_by, retry_json};
use crate::peer::ClusterHandle;
use crate::telemetry::ForwardResult;
use crate::upstream::SiteRanking;

/// Nodes of one look that are told; of a fleet of more the first that would be asked.
const NODES_RECORDED_MAX: usize = 8;

/// Other nodes were looked at.
#[derive(Clone, Debug)]
pub struct PeerSelectionStep {
    pub at_us: u64,
    pub need: Need,
    pub only_site: Option<Arc<str>>,
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
    /// When the node answered, or was given up, and how; none while it is open.
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
        seek: &NodeQuery<'_>,
        sites: Option<&Arc<SiteRanking>>,
        chosen: Option<&ForwardTarget>,
    ) {
        self.push_step(|| {
            let (nodes, nodes_left_out) = others.explain(seek, NODES_RECORDED_MAX);
            TraceStep::PeerSelection(Box::new(PeerSelectionStep {
                at_us,
                need: seek.need,
                only_site: seek.forced_site.map(Arc::from),
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
        match self.0.as_mut()?.last_step()? {
            TraceStep::Forward(forward) => Some(forward),
            _ => None,
        }
    }
}

impl ForwardStep {
    pub(super) fn set_retry_decision(&mut self, again: RetryDecision) {
        self.retry = Some(again);
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

    pub(super) fn peer_selection_json(&self, look: &PeerSelectionStep) -> Value {
        let (wants, wait_max_ms) = match look.need {
            Need::Permit => ("permit", None),
            Need::Queue { wait_max, .. } => ("line", Some(wait_max.0)),
        };
        json!({
            "step": "look",
            "at_ms": self.offset_ms(look.at_us),
            "wants": wants,
            "wait_max_ms": wait_max_ms,
            "only_site": look.only_site,
            "sites_by": look.sites.as_ref().map(|sited| ranked_by(&sited.uses)),
            "sites_asked_ms_before": look.sites.as_ref().map(|sited| (look.at_us / 1000).saturating_sub(sited.at.0)),
            "sites": look.sites.as_ref().map_or_else(Vec::new, |sited| sites(sited)),
            "chosen": look.chosen,
            "nodes": look.nodes.iter().map(node).collect::<Vec<_>>(),
            "nodes_left_out": look.nodes_left_out,
        })
    }

    pub(super) fn forward_json(&self, forward: &ForwardStep) -> Value {
        let (status, said) = match forward.ended {
            Some((_, ForwardStepEnd::Answered(status))) => (Some(status), None),
            Some((_, ForwardStepEnd::Rejected { free, wait_ms, .. })) => {
                (None, Some(json!({ "free": free, "wait_ms": wait_ms })))
            }
            _ => (None, None),
        };
        let result = match forward.ended {
            // A request that is dropped under way has no time to say what became of it.
            None => "cut-off",
            Some((_, ForwardStepEnd::Answered(_))) => ForwardResult::Answered.name(),
            Some((_, ForwardStepEnd::Rejected { result, .. } | ForwardStepEnd::Ended(result))) => {
                result.name()
            }
        };
        json!({
            "step": "forward",
            "at_ms": self.offset_ms(forward.begin_us),
            "node": forward.node,
            "site": forward.site,
            "rtt_ms": Some(forward.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
            "in_flight": forward.in_flight,
            "wait_max_ms": forward.wait_max_ms,
            "ended_at_ms": forward.ended.map(|(at_us, _)| self.offset_ms(at_us)),
            "result": result,
            "status": status,
            "said": said,
            "retry": forward.retry.map(retry_json),
        })
    }
}

/// Sites in the policy's order.
fn sites(sited: &SiteRanking) -> Vec<Value> {
    let site = |(name, rank, seen): &(Arc<str>, u8, Candidate)| {
        json!({
            "site": name,
            "rank": rank,
            "free": seen.permits_free,
            "permits": seen.permits_total,
            "queued": seen.queue_len,
            "rtt_us": seen.rtt_us,
            "ttft_us": seen.ttft_us,
        })
    };
    sited.ranked.iter().map(site).collect()
}

fn node(view: &NodeView) -> Value {
    json!({
        "node": view.node.name,
        "site": view.site,
        "not_asked": view.skip_reason.map(|why| why.name()),
        "free": view.free,
        "permits": view.load.permits,
        "queued": view.load.queued,
        "wait_ms": view.load.wait_ms,
        "ours_there": view.in_flight,
        "rtt_ms": Some(view.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
        "told_ms_ago": view.age.0,
    })
}
