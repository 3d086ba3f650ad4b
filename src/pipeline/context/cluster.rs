//! Parts of the context that only a cluster needs: origin, possible targets, owner of the event.
//!
//! Little stands in the context itself. The rest is its [`ForwardState`], which is made when the request is first
//! forwarded or comes from another node.

use std::sync::Arc;

use infergate_core::routing::budget::{AttemptBudget, ERRORS_MAX};
use infergate_core::routing::hops::{Hops, HopsError, forward_wait_max};
use infergate_core::{Millis, Refusal};

use crate::peer::{ForwardRejection, ForwardStatus, ForwardedHead, RejectionCause, UnfitCause};
use crate::pipeline::context::RequestContext;
use crate::pipeline::forwarding::{ForwardState, InterimState};
use crate::pipeline::origin::{EventOwner, Origin};
use crate::upstream::ModelRuntime;

/// A node that cannot serve a request at all.
const NO_CAPACITY: RejectionCause = RejectionCause::NoCapacity {
    free: 0,
    wait_ms: 0,
};

impl RequestContext {
    /// Another node forwards it: by its word it has been under way for a while.
    ///
    /// # Errors
    /// The request has been here before.
    pub fn accept_forward(&mut self, head: ForwardedHead) -> Result<(), HopsError> {
        let mut head = head;
        head.hops.arrive(&self.snapshot.node)?;
        let ceiling = Millis::from_secs(self.snapshot.timeouts.ceiling_secs);
        self.deadline = self.arrival + head.hops.deadline_left.min(ceiling);
        self.in_cluster = true;
        self.facts.client = head.client;
        self.forced_site = head.forced_site.clone();
        let times = &mut self.trace.times;
        times.set_elsewhere(head.elapsed_us, head.queued_us);
        self.request_id = Arc::clone(&head.request_id);
        self.account = Some(head.account.clone());
        self.replaced_model = head.requested_model.clone();
        self.attempts = head.attempts;
        self.facts.path = Some(Arc::from(head.path.as_slice()));
        if let Some(entry) = head.path.first()
            && let Some((site, _)) = entry.rsplit_once('/')
        {
            self.facts.source_site = Some(site.into());
        }
        self.set_origin(Origin::Peer);
        self.forwarding = Some(Box::new(ForwardState::from_head(head)));
        Ok(())
    }

    /// The model it is to be served by: another node knows better than the body.
    pub fn resolve_model_name(&self, named: String) -> String {
        let forwarded = self
            .forwarding
            .as_ref()
            .and_then(|forwarding| forwarding.model());
        forwarded.map_or(named, |model| model.as_str().to_owned())
    }

    /// Returns the rejection for the forwarding node in place of a refusal; none where the refusal is for
    /// the client. No server has started, and that node may find another one. None where the refusal is for
    /// the client to read.
    pub fn forward_rejection(&self, refusal: &Refusal) -> Option<ForwardRejection> {
        let forwarding = self
            .forwarding
            .as_ref()
            .filter(|forwarding| !forwarding.is_from_client())?;
        if self.status != 0 {
            return None;
        }
        let cause = match refusal {
            refusal if let Some(cause) = UnfitCause::of(refusal) => RejectionCause::Unfit(cause),
            Refusal::UpstreamFailed | Refusal::UpstreamRejected | Refusal::UpstreamNotTrusted => {
                RejectionCause::Failed
            }
            Refusal::BodyBudgetSpent | Refusal::NoSuchModel => NO_CAPACITY,
            refusal if refusal.is_out_of_capacity() => self
                .model
                .as_ref()
                .map_or(NO_CAPACITY, |model| capacity_of(model)),
            _ => return None,
        };
        Some(ForwardRejection {
            cause,
            hops: forwarding.hops.clone(),
            attempts: self.attempts,
        })
    }

    /// Returns the rejection for the forwarding node before the request is looked at: no capacity.
    pub fn immediate_rejection(&self) -> Option<ForwardRejection> {
        Some(ForwardRejection {
            cause: NO_CAPACITY,
            hops: self.forwarding.as_ref()?.hops.clone(),
            attempts: self.attempts,
        })
    }

    /// Sets whether the node is one of a cluster, and the size of the body, by which the request's budget goes.
    pub fn set_cluster(&mut self, has_joined: bool, body_bytes: usize) {
        self.in_cluster |= has_joined;
        self.body_bytes = body_bytes as u64;
    }

    /// Returns the forwarding state, which the first forward of a client's request makes.
    pub fn begin_forward(&mut self) -> &mut ForwardState {
        let state = self.forwarding.take().unwrap_or_else(|| {
            let left = self.deadline.since(self.shared.clock.now());
            let hops = Hops {
                budget: self.attempt_budget(),
                ..Hops::new(&self.snapshot.node, left, self.body_bytes)
            };
            Box::new(ForwardState::begin(hops, &self.snapshot.path))
        });
        self.forwarding.insert(state)
    }

    /// Attempts that are left to the request over all nodes.
    fn attempt_budget(&self) -> AttemptBudget {
        match &self.forwarding {
            Some(state) => state.hops.budget,
            None => AttemptBudget {
                errors_left: ERRORS_MAX.saturating_sub(self.attempts_used()),
                ..AttemptBudget::for_body(self.body_bytes)
            },
        }
    }

    /// Longest wait at another node, for a request that can wait nowhere here.
    pub fn forward_wait_max(&self, left: Millis) -> Millis {
        forward_wait_max(self.attempt_budget(), left)
    }

    /// Returns whether the request may be served at this node's site.
    pub fn may_stay(&self) -> bool {
        let only = self.forced_site.as_ref();
        only.is_none_or(|only| *only == self.snapshot.site)
    }

    /// Returns the interim messages sent to the forwarding node; none for a client's request.
    pub fn interim_state(&self) -> Option<InterimState> {
        self.forwarding.as_ref()?.interim_state()
    }

    /// Records an interim message to the forwarding node.
    pub fn record_interim(&mut self, interim: ForwardStatus, at: Millis) {
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.record_interim(interim, at);
        }
    }

    /// The other sites of the cluster.
    pub fn known_sites(&self) -> Vec<Arc<str>> {
        self.shared.cluster.sites()
    }

    /// Returns whether the cost counts against a limit.
    pub fn has_reservation(&self) -> bool {
        self.billing.has_reservation()
    }

    /// Attempts that have failed, here and at other nodes.
    pub fn attempts_used(&self) -> u32 {
        match &self.forwarding {
            Some(forwarding) => ERRORS_MAX.saturating_sub(forwarding.hops.budget.errors_left),
            None => self.attempts,
        }
    }

    /// An attempt at a model server of this node has failed.
    pub fn record_local_failure(&mut self) {
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.hops.budget.record_error();
        }
    }

    /// Returns whether the budget over all nodes allows another attempt.
    pub fn has_errors_left(&self) -> bool {
        !self.in_cluster || self.attempt_budget().errors_left > 0
    }

    /// Returns whether hops and budget allow a forward, wherever nodes are.
    pub fn has_hops_left(&self) -> bool {
        match &self.forwarding {
            Some(state) => state.hops.may_forward(),
            None => self.in_cluster && self.attempt_budget().errors_left > 0,
        }
    }

    /// Returns whether the request may be forwarded.
    pub fn may_forward(&self) -> bool {
        self.has_hops_left() && !self.shared.cluster.is_alone()
    }

    /// Another node has granted a permit for it, and writes its event.
    pub fn is_event_elsewhere(&self) -> bool {
        let forwarding = self.forwarding.as_ref();
        forwarding.is_some_and(|forwarding| forwarding.is_event_elsewhere())
    }

    /// The event is this node's to write: it has answered, or refused a client of its own.
    pub(super) fn owns_event(&self) -> bool {
        if self.can.event_owner == EventOwner::Caller {
            return false;
        }
        let Some(forwarding) = &self.forwarding else {
            return true;
        };
        let has_answered = self.status != 0;
        !forwarding.is_event_elsewhere()
            && (self.can.event_owner == EventOwner::Node || has_answered)
    }
}

/// Returns the capacity of a model for forwarded requests.
fn capacity_of(model: &ModelRuntime) -> RejectionCause {
    let gauges = model.gate.gauges();
    let free = match gauges.usable_endpoints {
        0 => 0,
        _ => gauges.limit.saturating_sub(gauges.used),
    };
    let wait = model.gate.expected_wait().0;
    RejectionCause::NoCapacity {
        free,
        wait_ms: u32::try_from(wait).unwrap_or(u32::MAX),
    }
}
