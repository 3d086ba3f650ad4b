//! State of a forwarded request: visited nodes and the budget over all nodes.
//!
//! Not the choice of nodes (`ClusterView`) and not the budget ([`Hops`]). The state is made when a request is first
//! forwarded, or comes from another node: a request that is served where it arrives has none.

pub mod forward;
pub mod response;

use std::sync::Arc;
use std::time::Duration;

use infergate_core::routing::Hops;
use infergate_core::routing::cluster::ForwardTarget;
use infergate_core::{AccountId, Millis, ModelId};

use crate::peer::{ForwardStatus, ForwardedHead};

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
    /// Visited nodes behind those that do not serve such a request, however much room they have.
    unfit: usize,
    /// `site/node` of each node it has been at, this one included, the first being the client's.
    pub path: Vec<Arc<str>>,
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

/// Next node of a request, and its bound there.
pub struct ForwardPlan {
    /// Node to forward to.
    pub target: ForwardTarget,
    /// Longest wait there.
    pub wait_max: Millis,
}

impl ForwardState {
    /// Creates the state of a request whose client speaks to this node, the last place of `path`.
    pub fn begin(hops: Hops, path: &[Arc<str>]) -> ForwardState {
        ForwardState {
            hops,
            visited_on_arrival: 1,
            unfit: 0,
            path: path.to_vec(),
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
            unfit: 0,
            hops: head.hops,
            path: head.path,
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

    /// Another model is to serve it: nodes that had no room for the former one may have some for that.
    pub fn reset_visited(&mut self) {
        self.hops.visited.truncate(self.visited_on_arrival);
        self.unfit = 0;
    }

    /// Records that a node does not serve such a request: it stands behind those of the way, and is not asked again.
    pub fn record_unfit(&mut self, node: &str) {
        let excluded = self.excluded();
        let visited = &mut self.hops.visited;
        let behind = visited.iter().skip(excluded);
        if let Some(at) = behind.into_iter().position(|name| **name == *node) {
            visited[excluded..=excluded + at].rotate_right(1);
            self.unfit += 1;
        }
    }

    /// Number of the first of the visited nodes that count for good: those of the way, and unfit ones.
    fn excluded(&self) -> usize {
        self.visited_on_arrival + self.unfit
    }

    /// Another node has sent the head of an answer: its outcome is recorded there.
    pub fn is_event_elsewhere(&self) -> bool {
        self.event_elsewhere
    }

    /// Sets whether another node owns the event.
    pub fn set_event_elsewhere(&mut self, is_elsewhere: bool) {
        self.event_elsewhere = is_elsewhere;
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

/// Nodes that a request is not sent to again, as a query for nodes has them; `here` alone while it was not forwarded.
pub fn visited<'a>(state: Option<&'a ForwardState>, here: &'a Arc<str>) -> &'a [Arc<str>] {
    match state {
        Some(state) => &state.hops.visited,
        None => std::slice::from_ref(here),
    }
}

/// Nodes among them that are not asked again, whatever room they get.
pub fn excluded<'a>(state: Option<&'a ForwardState>, here: &'a Arc<str>) -> &'a [Arc<str>] {
    match state {
        Some(state) => {
            let visited = &state.hops.visited;
            &visited[..state.excluded().min(visited.len())]
        }
        None => std::slice::from_ref(here),
    }
}

/// The same while the request waits in the queue here: nodes that had no room before may have some now.
pub fn visited_by_waiter<'a>(
    state: Option<&'a ForwardState>,
    here: &'a Arc<str>,
) -> &'a [Arc<str>] {
    match state {
        Some(state) => state.hops.excluded_for_waiter(state.excluded()),
        None => std::slice::from_ref(here),
    }
}
