//! Parts of the context that only a cluster needs: origin, possible targets, owner of the event.
//!
//! All of it stands in the trip's [`Journey`], which a node that knows no other does not make.

use std::sync::Arc;

use infergate_core::routing::budget::ERRORS_MAX;
use infergate_core::routing::hops::HopsError;
use infergate_core::{Millis, Refusal};

use super::Trip;
use crate::peer::{CameBack, Cause, Interim, Visit};
use crate::proxy::journey::{Journey, Parcel, Word};
use crate::upstream::Lane;

/// A node that cannot serve a request at all.
const NOTHING_HERE: Cause = Cause::NoRoom {
    free: 0,
    wait_ms: 0,
};

impl Trip {
    /// Another node forwards it: by its word it has been under way for a while.
    ///
    /// # Errors
    /// It has been here before.
    pub fn visits(&mut self, visit: Visit) -> Result<(), HopsError> {
        let mut visit = visit;
        visit.hops.arrive(&self.world.node)?;
        let ceiling = Millis::from_secs(self.world.timeouts.ceiling_secs);
        self.deadline = self.arrival + visit.hops.deadline_left.min(ceiling);
        self.only_site = visit.only_site.clone();
        self.elapsed_us = visit.elapsed_us;
        let event = self.event();
        event.request_id = Arc::clone(&visit.request_id);
        event.account_id = Some(visit.account.clone());
        event.asked_model_id = visit.asked_model.clone();
        event.attempts = visit.attempts;
        event.queuing_time_us = visit.queued_us;
        event.queued = visit.queued_us > 0;
        event.path = Arc::from(visit.path.as_slice());
        if let Some(entry) = visit.path.first()
            && let Some((site, _)) = entry.rsplit_once('/')
        {
            event.source_site = site.into();
        }
        self.journey = Some(Box::new(Journey::of_visit(visit)));
        Ok(())
    }

    /// The model it is to be served by: another node knows better than the body.
    pub fn model_named(&self, named: String) -> String {
        let told = self.journey.as_ref().and_then(|journey| journey.model());
        told.map_or(named, |model| model.as_str().to_owned())
    }

    /// Returns the rejection for the forwarding node in place of a refusal; none where the refusal is for
    /// the client. No server has started, and that node may find another one. None where the refusal is for
    /// the client to read.
    pub fn comes_back(&self, refusal: &Refusal) -> Option<CameBack> {
        let journey = self
            .journey
            .as_ref()
            .filter(|journey| !journey.is_first())?;
        let event = self.event.as_ref().filter(|event| event.status == 0)?;
        let cause = match refusal {
            Refusal::UpstreamFailed | Refusal::UpstreamRejected | Refusal::UpstreamNotTrusted => {
                Cause::Failed
            }
            Refusal::BodyBudgetSpent | Refusal::NoSuchModel => NOTHING_HERE,
            refusal if refusal.is_out_of_capacity() => self
                .lane
                .as_ref()
                .map_or(NOTHING_HERE, |lane| room_at(lane)),
            _ => return None,
        };
        Some(CameBack {
            cause,
            hops: journey.hops.clone(),
            attempts: event.attempts,
        })
    }

    /// Returns the rejection for the forwarding node before the request is looked at: no capacity.
    pub fn comes_back_at_once(&self) -> Option<CameBack> {
        Some(CameBack {
            cause: NOTHING_HERE,
            hops: self.journey.as_ref()?.hops.clone(),
            attempts: self.event.as_ref()?.attempts,
        })
    }

    /// Keeps the request for another node, should it be forwarded.
    pub fn sets_out(&mut self, parcel: Parcel) {
        match &mut self.journey {
            Some(journey) => journey.parcel = parcel,
            None => {
                let world = &self.world;
                let left = self.deadline.since(self.shared.clock.now());
                let site = self.only_site.clone();
                let journey = Journey::begin(&world.node, &world.path, left, site, parcel);
                self.journey = Some(Box::new(journey));
            }
        }
    }

    /// Its client speaks to this node.
    pub fn is_first(&self) -> bool {
        self.journey
            .as_ref()
            .is_none_or(|journey| journey.is_first())
    }

    /// Returns the interim messages sent to the forwarding node; none for a client's request.
    pub fn forwarded(&self) -> Option<Word> {
        self.journey.as_ref()?.word()
    }

    /// Records an interim message to the forwarding node.
    pub fn has_said(&mut self, interim: Interim, at: Millis) {
        if let Some(journey) = &mut self.journey {
            journey.has_said(interim, at);
        }
    }

    /// The other sites of the fleet.
    pub fn sites(&self) -> Vec<Arc<str>> {
        self.shared.others.sites()
    }

    /// Returns whether the cost counts against a limit.
    pub fn is_limited(&self) -> bool {
        self.bill.is_held()
    }

    /// Tries that have failed, here and at other nodes.
    pub fn tried(&self) -> u32 {
        match &self.journey {
            Some(journey) => ERRORS_MAX.saturating_sub(journey.hops.tries.errors_left),
            None => self.event.as_ref().map_or(0, |event| event.attempts),
        }
    }

    /// A try at a model server of this node has failed.
    pub fn failed_here(&mut self) {
        if let Some(journey) = &mut self.journey {
            journey.hops.tries.error();
        }
    }

    /// The budget over all nodes allows another try.
    pub fn has_errors_left(&self) -> bool {
        let journey = self.journey.as_ref();
        journey.is_none_or(|journey| journey.hops.tries.errors_left > 0)
    }

    /// Returns whether the request may be forwarded.
    pub fn may_forward(&self) -> bool {
        let journey = self.journey.as_ref();
        journey.is_some_and(|journey| journey.hops.may_forward()) && !self.shared.others.is_alone()
    }

    /// Another node has granted a permit for it, and tells what came of it.
    pub fn is_told_elsewhere(&self) -> bool {
        let journey = self.journey.as_ref();
        journey.is_some_and(|journey| journey.is_told_elsewhere())
    }

    /// The event is this node's to tell: it has answered, or refused a client of its own.
    pub(super) fn is_told_here(&self) -> bool {
        let Some(journey) = &self.journey else {
            return true;
        };
        let has_answered = self.event.as_ref().is_some_and(|event| event.status != 0);
        !journey.is_told_elsewhere() && (journey.is_first() || has_answered)
    }
}

/// Returns the capacity of a model for forwarded requests.
fn room_at(lane: &Lane) -> Cause {
    let gauges = lane.gate.gauges();
    let free = match gauges.usable_endpoints {
        0 => 0,
        _ => gauges.limit.saturating_sub(gauges.used),
    };
    let wait = lane.gate.expected_wait().0;
    Cause::NoRoom {
        free,
        wait_ms: u32::try_from(wait).unwrap_or(u32::MAX),
    }
}
