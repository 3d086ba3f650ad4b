//! State of a request in a cluster: visited nodes, budget over all nodes, and the request as it is
//! forwarded.
//!
//! Not the choice of nodes (`Fleet`) and not the budget ([`Hops`]). A node that knows no other has no
//! journeys, and its requests pay nothing for them.

pub mod forward;
pub mod response;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use infergate_core::routing::Hops;
use infergate_core::routing::cluster::{ForwardTarget, Need, NodeQuery};
use infergate_core::{AccountId, Millis, ModelId};

use crate::peer::{ForwardStatus, ForwardedHead};
use crate::upstream::{RankingClass, SiteRanking};

/// Time beyond the deadline and three round trips (connection, proof, response) for the final message of the
/// working node, which has the same deadline and reports it to the client.
const FINAL_MESSAGE_GRACE: Duration = Duration::from_millis(100);

/// Returns the wait for the final message of the other node, beyond that node's own deadline.
pub fn final_message_grace(rtt_us: u32) -> Duration {
    FINAL_MESSAGE_GRACE + 3 * Duration::from_micros(rtt_us.into())
}

/// Forwarding state of one request.
pub struct ForwardState {
    /// Visited nodes, and what is left of the time and the budget.
    pub hops: Hops,
    /// Nodes of those that have handed it on to here, and this one.
    visited_on_arrival: usize,
    /// `site/node` of each node it has been at, this one included, the first being the client's.
    pub path: Vec<Arc<str>>,
    /// The only site it may be served at.
    pub only_site: Option<Arc<str>>,
    /// By what the model's policy tells requests apart when it ranks sites.
    pub class: RankingClass,
    /// Request to forward; empty while the body is not read.
    pub request: ReplayableRequest,
    /// Metadata from the forwarding node; none where the client speaks to this node.
    meta: Option<ForwardMeta>,
    /// Another node has begun to answer: the event is that node's.
    event_elsewhere: bool,
}

/// Metadata that the forwarding node sent with the head.
struct ForwardMeta {
    from: Arc<str>,
    account: AccountId,
    model: ModelId,
    is_limited: bool,
    tariff: Option<Arc<str>>,
    interim: InterimState,
}

/// Interim messages sent to the forwarding node before the response.
#[derive(Clone, Copy, Debug, Default)]
pub struct InterimState {
    /// Moment of the last message.
    pub sent_at: Option<Millis>,
    /// A model server may begin: there is nothing more to say.
    pub is_granted: bool,
}

/// Request of a client, as the next node gets it.
#[derive(Default)]
pub struct ReplayableRequest {
    /// Path and query.
    pub target: String,
    /// Header lines in wire form: those that may pass, and the body's type.
    pub headers: BytesMut,
    /// The body as it came.
    pub body: Bytes,
}

/// Next node of a request, and its bound there.
pub struct ForwardPlan {
    /// Node to forward to.
    pub target: ForwardTarget,
    /// Longest wait there.
    pub wait_max: Millis,
}

impl ForwardState {
    /// A client's request begins here.
    pub fn begin(
        here: &Arc<str>,
        path: &[Arc<str>],
        left: Millis,
        only_site: Option<Arc<str>>,
        request: ReplayableRequest,
    ) -> ForwardState {
        ForwardState {
            hops: Hops::new(here, left, request.body.len() as u64),
            visited_on_arrival: 1,
            path: path.to_vec(),
            only_site,
            class: RankingClass::default(),
            request,
            meta: None,
            event_elsewhere: false,
        }
    }

    /// Another node forwards it. Its last place is this one.
    pub fn from_head(head: ForwardedHead) -> ForwardState {
        let meta = ForwardMeta {
            from: head.from,
            account: head.account,
            model: head.model,
            is_limited: head.is_limited,
            tariff: head.tariff,
            interim: InterimState::default(),
        };
        ForwardState {
            visited_on_arrival: head.hops.visited.len(),
            hops: head.hops,
            path: head.path,
            only_site: head.only_site,
            class: RankingClass::default(),
            request: ReplayableRequest::default(),
            meta: Some(meta),
            event_elsewhere: false,
        }
    }

    /// Its client speaks to this node.
    pub fn is_from_client(&self) -> bool {
        self.meta.is_none()
    }

    /// Account that pays, as the forwarding node says.
    pub fn account(&self) -> Option<&AccountId> {
        self.meta.as_ref().map(|meta| &meta.account)
    }

    /// The model it is to be served by, by the word of the node before.
    pub fn model(&self) -> Option<&ModelId> {
        self.meta.as_ref().map(|meta| &meta.model)
    }

    /// The day of its account has a limit, by the word of the node before.
    pub fn is_limited(&self) -> bool {
        self.meta.as_ref().is_some_and(|meta| meta.is_limited)
    }

    /// Tariff of the node that the client asked, as text; none where its client speaks to this node.
    pub fn tariff(&self) -> Option<&Arc<str>> {
        self.meta.as_ref()?.tariff.as_ref()
    }

    /// Returns the interim messages sent to the forwarding node; none where the client speaks to this node.
    pub fn interim_state(&self) -> Option<InterimState> {
        self.meta.as_ref().map(|meta| meta.interim)
    }

    /// Records that the node got the message that the request is queued, or that a model server may start.
    pub fn record_interim(&mut self, interim: ForwardStatus, at: Millis) {
        if let Some(meta) = &mut self.meta {
            let granted = meta.interim.is_granted || interim == ForwardStatus::Granted;
            meta.interim = InterimState {
                sent_at: Some(at),
                is_granted: granted,
            };
        }
    }

    /// The node that has forwarded it here.
    pub fn forwarder(&self) -> Option<Arc<str>> {
        self.meta.as_ref().map(|meta| Arc::clone(&meta.from))
    }

    /// Returns the query for nodes, with sites in the order of the model's policy.
    pub fn query<'a>(
        &'a self,
        model: &'a ModelId,
        sites: Option<&'a SiteRanking>,
        need: Need,
    ) -> NodeQuery<'a> {
        NodeQuery {
            model: model.as_str(),
            visited: &self.hops.visited,
            forced_site: self.only_site.as_deref(),
            site_order: sites.map(|ranking| &ranking.order),
            need,
        }
    }

    /// The same while it waits in line here: who had no room before may have some now.
    pub fn query_as_waiter<'a>(
        &'a self,
        model: &'a ModelId,
        sites: Option<&'a SiteRanking>,
    ) -> NodeQuery<'a> {
        NodeQuery {
            visited: self.hops.excluded_for_waiter(self.visited_on_arrival),
            ..self.query(model, sites, Need::Permit)
        }
    }

    /// Another model is to serve it: nodes that had no room for the former one may have some for that.
    pub fn reset_visited(&mut self) {
        self.hops.visited.truncate(self.visited_on_arrival);
    }

    /// Returns whether the request may be served at this site.
    pub fn may_stay(&self, site: &str) -> bool {
        self.only_site.as_deref().is_none_or(|only| only == site)
    }

    /// Another node has sent the head of an answer: whatever comes of it is told there.
    pub fn is_event_elsewhere(&self) -> bool {
        self.event_elsewhere
    }

    /// Sets whether another node owns the event.
    pub fn set_event_elsewhere(&mut self, meta: bool) {
        self.event_elsewhere = meta;
    }

    /// Returns the hop data for the chosen node; the rejection is compared with it.
    pub fn advance(&mut self, plan: &ForwardPlan, left: Millis) -> Hops {
        let ForwardPlan {
            target: chosen,
            wait_max,
        } = plan;
        let place: Arc<str> = format!("{}/{}", chosen.site, chosen.node.name).into();
        // Asked again, it stands where it was asked last.
        self.path.retain(|before| *before != place);
        self.path.push(place);
        self.hops.revisit(&chosen.node.name);
        self.hops.forward(
            &chosen.node.name,
            left,
            *wait_max,
            chosen.in_flight.saturating_add(1),
            chosen.is_only_candidate,
        )
    }
}
