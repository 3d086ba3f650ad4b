//! Forwards of this node: sent, started and finished.
//!
//! The shell keeps a [`Ticket`] with each forward and ends it once, in its guard's drop. Tickets of
//! a node that was started again meanwhile, or of a model it no longer has, end without effect.

use super::super::load::smoothed;
use super::choose::{Chosen, Place};
use super::world::Fleet;
use crate::Millis;

/// Handle of a forward in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(Place);

/// How a forward ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
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
    /// The node's servers of the model failed before a response started.
    ServersFailed,
    /// No connection, or one that broke.
    Failed,
    /// Cancelled here: the client left or the deadline passed.
    Cut,
}

impl Fleet {
    /// Records a forward to the target that [`Fleet::next`] returned at the same moment.
    pub fn sent(&mut self, chosen: &Chosen, now: Millis) -> Ticket {
        let place = chosen.place;
        let span = self.span(now);
        let rule = self.rule;
        if let Some(seat) = self.seat_at(place) {
            let seat = &mut self.views[place.model as usize].seats[seat];
            seat.sent(span, now);
            seat.doubt.sent(&rule, now);
        }
        let node = self.nodes[usize::from(place.slot)].as_mut();
        if let Some(node) = node.filter(|node| node.birth == place.node_birth) {
            node.doubt.sent(&rule, now);
        }
        Ticket(place)
    }

    /// Records that the node's response has started: the backoff of node and model ends, however
    /// long the response takes.
    pub fn answers(&mut self, ticket: Ticket) {
        let Ticket(place) = ticket;
        let node = self.nodes[usize::from(place.slot)].as_mut();
        let Some(node) = node.filter(|node| node.birth == place.node_birth) else {
            return;
        };
        node.doubt.clear();
        if let Some(seat) = self.seat_at(place) {
            self.views[place.model as usize].seats[seat].doubt.clear();
        }
        self.wake_if_room(place.model, place.slot);
    }

    /// Records the end of a forward. Call it once for each ticket.
    pub fn ended(&mut self, ticket: Ticket, ended: Ended, now: Millis) {
        let Ticket(place) = ticket;
        let rule = self.rule;
        let node = self.nodes[usize::from(place.slot)].as_mut();
        let Some(node) = node.filter(|node| node.birth == place.node_birth) else {
            return;
        };
        match ended {
            Ended::Answered { .. } | Ended::Refused { .. } | Ended::ServersFailed => {
                node.doubt.clear();
            }
            Ended::Failed => node.doubt.failed(&rule, now),
            Ended::Cut => {}
        }
        let Some(seat) = self.seat_at(place) else {
            return;
        };
        let seat = &mut self.views[place.model as usize].seats[seat];
        seat.ended(matches!(ended, Ended::Answered { .. }), now);
        match ended {
            Ended::Failed | Ended::Cut => {}
            Ended::ServersFailed => seat.doubt.failed(&rule, now),
            Ended::Answered { ttft_us } => {
                seat.doubt.clear();
                if ttft_us > 0 {
                    seat.ttft_us = smoothed(seat.ttft_us, ttft_us);
                }
            }
            Ended::Refused { free, wait_ms } => {
                seat.refused(free, wait_ms, &rule, now);
            }
        }
        if !matches!(ended, Ended::Refused { .. }) {
            self.wake_if_room(place.model, place.slot);
        }
    }

    /// Returns the present index of a key's state.
    fn seat_at(&self, place: Place) -> Option<usize> {
        let node = self.nodes.get(usize::from(place.slot))?.as_ref()?;
        let view = self.views.get(place.model as usize)?;
        let same = node.birth == place.node_birth && view.birth == place.model_birth;
        same.then(|| view.at(place.slot)).flatten()
    }
}
