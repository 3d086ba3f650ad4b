//! The steps of a story that only a fleet has: which nodes were looked at, and what became of a
//! request that was sent to one.
//!
//! Kept in boxes, so that requests that stay here pay nothing for them.

use std::sync::Arc;

use infergate_core::routing::Candidate;
use infergate_core::routing::fleet::{Chosen, NodeView, Seek, Wants};
use serde_json::{Value, json};

use super::tell::{ms, ranked_by, retry};
use super::{Again, Draft, Step, Story};
use crate::peer::Others;
use crate::proxy::journey::Going;
use crate::telemetry::ForwardResult;
use crate::upstream::Sited;

/// Nodes of one look that are told; of a fleet of more the first that would be asked.
const NODES_TOLD_MAX: usize = 8;

/// Other nodes were looked at.
#[derive(Clone, Debug)]
pub(super) struct Look {
    at_us: u64,
    wants: Wants,
    only_site: Option<Arc<str>>,
    /// Order of the sites by the policy; none where their distance decides.
    sites: Option<Arc<Sited>>,
    nodes: Vec<NodeView>,
    nodes_left_out: usize,
    chosen: Option<Arc<str>>,
}

/// The request was sent to another node.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    began_us: u64,
    node: Arc<str>,
    site: Arc<str>,
    rtt_us: u32,
    in_flight: u32,
    wait_max_ms: u64,
    /// When the node answered, or was given up, and how; none while it is open.
    ended: Option<(u64, Forwarded)>,
    again: Option<Again>,
}

/// Result of a forward.
#[derive(Clone, Copy, Debug)]
pub enum Forwarded {
    /// The node has begun to answer with this HTTP status.
    Answers(u16),
    /// The node has no capacity.
    ComesBack {
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

impl Draft {
    /// Other nodes were looked at for what is sought.
    pub fn looked(
        &mut self,
        others: &Others,
        at_us: u64,
        seek: &Seek<'_>,
        sites: Option<&Arc<Sited>>,
        chosen: Option<&Chosen>,
    ) {
        self.step(|| {
            let (nodes, nodes_left_out) = others.explain(seek, NODES_TOLD_MAX);
            Step::Look(Box::new(Look {
                at_us,
                wants: seek.wants,
                only_site: seek.forced_site.map(Arc::from),
                sites: sites.cloned(),
                nodes,
                nodes_left_out,
                chosen: chosen.map(|chosen| Arc::clone(&chosen.node.name)),
            }))
        });
    }

    /// The request is sent to another node.
    pub fn forwards(&mut self, began_us: u64, going: &Going) {
        let Going { chosen, wait_max } = going;
        self.step(|| {
            Step::Forward(Box::new(Forward {
                began_us,
                node: Arc::clone(&chosen.node.name),
                site: Arc::clone(&chosen.site),
                rtt_us: chosen.rtt_us,
                in_flight: chosen.in_flight,
                wait_max_ms: wait_max.0,
                ended: None,
                again: None,
            }))
        });
    }

    /// Records the result of the forward.
    pub fn forwarded(&mut self, at_us: u64, how: Forwarded) {
        if let Some(forward) = self.last_forward() {
            forward.ended = Some((at_us, how));
        }
    }

    pub(super) fn last_forward(&mut self) -> Option<&mut Forward> {
        match self.0.as_mut()?.last_step()? {
            Step::Forward(forward) => Some(forward),
            _ => None,
        }
    }
}

impl Forward {
    pub(super) fn judged(&mut self, again: Again) {
        self.again = Some(again);
    }
}

impl Story {
    /// Names of the nodes that were sent the request, in order.
    pub fn nodes(&self) -> Vec<Arc<str>> {
        let forward = |step: &Step| match step {
            Step::Forward(forward) => Some(Arc::clone(&forward.node)),
            _ => None,
        };
        self.steps.iter().filter_map(forward).collect()
    }

    pub(super) fn look(&self, look: &Look) -> Value {
        let (wants, wait_max_ms) = match look.wants {
            Wants::Permit => ("permit", None),
            Wants::Line { wait_max, .. } => ("line", Some(wait_max.0)),
        };
        json!({
            "step": "look",
            "at_ms": self.at(look.at_us),
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

    pub(super) fn forward(&self, forward: &Forward) -> Value {
        let (status, said) = match forward.ended {
            Some((_, Forwarded::Answers(status))) => (Some(status), None),
            Some((_, Forwarded::ComesBack { free, wait_ms, .. })) => {
                (None, Some(json!({ "free": free, "wait_ms": wait_ms })))
            }
            _ => (None, None),
        };
        let result = match forward.ended {
            // A request that is dropped under way has no time to say what became of it.
            None => "cut-off",
            Some((_, Forwarded::Answers(_))) => ForwardResult::Answered.name(),
            Some((_, Forwarded::ComesBack { result, .. } | Forwarded::Ended(result))) => {
                result.name()
            }
        };
        json!({
            "step": "forward",
            "at_ms": self.at(forward.began_us),
            "node": forward.node,
            "site": forward.site,
            "rtt_ms": Some(forward.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
            "in_flight": forward.in_flight,
            "wait_max_ms": forward.wait_max_ms,
            "ended_at_ms": forward.ended.map(|(at_us, _)| self.at(at_us)),
            "result": result,
            "status": status,
            "said": said,
            "retry": forward.again.map(retry),
        })
    }
}

/// Sites in the policy's order.
fn sites(sited: &Sited) -> Vec<Value> {
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
    sited.places.iter().map(site).collect()
}

fn node(view: &NodeView) -> Value {
    json!({
        "node": view.node.name,
        "site": view.site,
        "not_asked": view.not_asked.map(|why| why.name()),
        "free": view.free,
        "permits": view.load.permits,
        "queued": view.load.queued,
        "wait_ms": view.load.wait_ms,
        "ours_there": view.in_flight,
        "rtt_ms": Some(view.rtt_us).filter(|us| *us > 0).map(|us| ms(us.into())),
        "told_ms_ago": view.age.0,
    })
}
