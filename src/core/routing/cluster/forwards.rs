//! Forwards of this node: sent, started and finished.
//!
//! The shell keeps a [`ForwardTicket`] with each forward and ends it once, in its guard's drop. Tickets of
//! a node that was started again meanwhile, or of a model it no longer has, end without effect.

use super::super::load::smoothed;
use super::membership::ClusterView;
use super::selection::{ForwardTarget, NodeModelKey};
use crate::Millis;

/// Handle of a forward in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTicket(NodeModelKey);

/// Outcome of a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardOutcome {
    /// The node responded, with success or an error.
    Answered {
        /// From sending to the first byte of the response's body, microseconds; 0 when there was none.
        ttft_us: u32,
    },
    /// Out of capacity.
    Refused {
        /// Permits free there, as it said.
        free: u32,
        /// Expected wait there, milliseconds.
        wait_ms: u32,
    },
    /// The node does not serve such a request, which says nothing about its room.
    Unfit,
    /// The node's servers of the model failed before a response started.
    ServersFailed,
    /// No connection, or one that broke.
    Failed,
    /// Cancelled here: the client left or the deadline passed.
    Cancelled,
}

impl ClusterView {
    /// Records a forward to the target that [`ClusterView::next_target`] returned at the same moment.
    pub fn record_forward(&mut self, chosen: &ForwardTarget, now: Millis) -> ForwardTicket {
        let place = chosen.key;
        let span = self.span(now);
        let rule = self.rule;
        if let Some(at) = self.state_index(place) {
            let state = &mut self.models[place.model as usize].nodes[at];
            state.record_sent(span, now);
            state.backoff.record_sent(&rule, now);
        }
        let node = self.nodes[usize::from(place.slot)].as_mut();
        if let Some(node) = node.filter(|node| node.epoch == place.node_epoch) {
            node.backoff.record_sent(&rule, now);
        }
        ForwardTicket(place)
    }

    /// Records that the node's response has started: the backoff of node and model ends, however
    /// long the response takes.
    pub fn record_response_start(&mut self, ticket: ForwardTicket) {
        let ForwardTicket(place) = ticket;
        let node = self.nodes[usize::from(place.slot)].as_mut();
        let Some(node) = node.filter(|node| node.epoch == place.node_epoch) else {
            return;
        };
        node.backoff.clear();
        if let Some(at) = self.state_index(place) {
            self.models[place.model as usize].nodes[at].backoff.clear();
        }
        self.wake_if_room(place.model, place.slot);
    }

    /// Records the end of a forward. Call it once for each ticket.
    pub fn finish_forward(&mut self, ticket: ForwardTicket, ended: ForwardOutcome, now: Millis) {
        let ForwardTicket(place) = ticket;
        let rule = self.rule;
        let node = self.nodes[usize::from(place.slot)].as_mut();
        let Some(node) = node.filter(|node| node.epoch == place.node_epoch) else {
            return;
        };
        match ended {
            ForwardOutcome::Answered { .. }
            | ForwardOutcome::Refused { .. }
            | ForwardOutcome::Unfit
            | ForwardOutcome::ServersFailed => {
                node.backoff.clear();
            }
            ForwardOutcome::Failed => node.backoff.record_failure(&rule, now),
            ForwardOutcome::Cancelled => {}
        }
        let Some(at) = self.state_index(place) else {
            return;
        };
        let state = &mut self.models[place.model as usize].nodes[at];
        state.record_end(matches!(ended, ForwardOutcome::Answered { .. }), now);
        match ended {
            ForwardOutcome::Failed | ForwardOutcome::Cancelled => {}
            // The forward has put the next try off; this one was none.
            ForwardOutcome::Unfit => state.backoff.clear(),
            ForwardOutcome::ServersFailed => state.backoff.record_failure(&rule, now),
            ForwardOutcome::Answered { ttft_us } => {
                state.backoff.clear();
                if ttft_us > 0 {
                    state.ttft_us = smoothed(state.ttft_us, ttft_us);
                }
            }
            ForwardOutcome::Refused { free, wait_ms } => {
                state.record_refusal(free, wait_ms, &rule, now);
            }
        }
        if !matches!(ended, ForwardOutcome::Refused { .. }) {
            self.wake_if_room(place.model, place.slot);
        }
    }

    /// Returns the present index of a key's state.
    fn state_index(&self, place: NodeModelKey) -> Option<usize> {
        let node = self.nodes.get(usize::from(place.slot))?.as_ref()?;
        let view = self.models.get(place.model as usize)?;
        let same = node.epoch == place.node_epoch && view.epoch == place.model_epoch;
        same.then(|| view.index_of(place.slot)).flatten()
    }
}
