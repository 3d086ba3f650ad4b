//! What we have sent where, and how it ended.
//!
//! The shell keeps a [`Ticket`] with each forward and ends it once, in its guard's drop. Tickets of
//! a node that was started again meanwhile, or of a model it no longer has, end without effect.

use super::super::load::smoothed;
use super::choose::{Chosen, Place};
use super::world::Fleet;
use crate::Millis;

/// A forward on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(Place);

/// How a forward ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The node served it, well or badly.
    Answered {
        /// From sending to the first byte of the answer's body, microseconds; 0 when there was none.
        ttft_us: u32,
    },
    /// It had no room.
    Refused {
        /// Permits free there, as it said.
        free: u32,
        /// Expected wait there, milliseconds.
        wait_ms: u32,
    },
    /// Its servers of the model failed, and nobody has begun to answer.
    ServersFailed,
    /// No connection, or one that broke.
    Failed,
    /// We ended it: the client left or the deadline passed.
    Cut,
}

impl Fleet {
    /// A request goes to where [`Fleet::next`] said, at the same moment.
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

    /// The node has begun to answer: neither it nor its servers are in doubt, however long the answer
    /// takes.
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

    /// It has ended there. To be called once for each ticket.
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

    /// Where the seat of a place stands now.
    fn seat_at(&self, place: Place) -> Option<usize> {
        let node = self.nodes.get(usize::from(place.slot))?.as_ref()?;
        let view = self.views.get(place.model as usize)?;
        let same = node.birth == place.node_birth && view.birth == place.model_birth;
        same.then(|| view.at(place.slot)).flatten()
    }
}
