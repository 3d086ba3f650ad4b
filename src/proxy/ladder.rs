//! The models one request may be served by: the one it asks for, then those of its ladder.
//!
//! Not the decision: the core's [`Descent`] says whether a model is left, and [`Rung`] which ones are open.
//! A model without fallbacks costs no look-up. When none has served, the client is told what the model it
//! asked for said.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::Call;
use infergate_core::model::{Access, AccountSpec, Catalog};
use infergate_core::routing::{Descent, Missed, Rung};

use super::Shared;
use super::call::{Left, Trip};
use crate::upstream::Lane;

/// Why a model has not begun to answer.
pub enum Unserved {
    /// The model cannot take the request as it is.
    Unfit(Refusal),
    /// The model could not serve the request, and no server has started to work.
    Missed(Missed, Refusal),
    /// The configuration changed while it waited, in what the request was checked for.
    Outdated,
    /// The request ends here, whatever other models could do.
    Ended(Left),
}

impl From<Left> for Unserved {
    fn from(left: Left) -> Unserved {
        Unserved::Ended(left)
    }
}

impl From<Refusal> for Unserved {
    fn from(refusal: Refusal) -> Unserved {
        Unserved::Ended(refusal.into())
    }
}

impl Unserved {
    /// Classifies a refusal of the model's admission gate.
    pub fn at_the_gate(left: Left) -> Unserved {
        match left {
            Left::Refused(refusal) if refusal.is_out_of_capacity() => {
                let missed = match refusal {
                    Refusal::NoHealthyEndpoint => Missed::Unhealthy,
                    _ => Missed::OutOfCapacity,
                };
                Unserved::Missed(missed, refusal)
            }
            left => Unserved::Ended(left),
        }
    }
}

/// Fallback of one request.
pub struct Ladder<'a> {
    shared: &'a Shared,
    account: Arc<AccountSpec>,
    /// The request has waited for its first model already and goes to the head of the queue.
    resumes: bool,
    /// Taken when no other model can need it any more.
    call: Option<Call>,
    lane: Arc<Lane>,
    /// Models to come, the next one last.
    below: Vec<Arc<Lane>>,
    descent: Descent,
    /// The model asked for and what it said, once it is left.
    top: Option<(Arc<Lane>, Refusal)>,
}

impl<'a> Ladder<'a> {
    /// Begins at the model that was asked for.
    pub fn begin(
        shared: &'a Shared,
        trip: &Trip,
        account: &Arc<AccountSpec>,
        lane: Arc<Lane>,
        call: Call,
    ) -> Ladder<'a> {
        let mut ladder = Ladder {
            shared,
            account: Arc::clone(account),
            resumes: false,
            call: Some(call),
            below: Vec::new(),
            descent: Descent::begin(lane.spec.pin_primary, 0),
            lane,
            top: None,
        };
        // Another node's client is on that node's ladder.
        if trip.is_first() && !ladder.lane.spec.ladder.is_empty() {
            ladder.look_down(trip);
        }
        ladder
    }

    /// Finds the open rungs.
    fn look_down(&mut self, trip: &Trip) {
        let world = &trip.world;
        let spec = &self.lane.spec;
        let models = spec.ladder.iter().rev();
        let indices = models.filter_map(|id| Some(world.catalog.model(id.as_str())?.0));
        let lanes = indices.map(|index| world.lanes.get(index));
        self.below = lanes.filter(|lane| self.is_open(lane)).cloned().collect();
        self.descent = Descent::begin(spec.pin_primary, self.below.len());
    }

    fn is_open(&self, lane: &Lane) -> bool {
        let rung = Rung {
            is_allowed: Catalog::access(&self.account, &lane.spec) == Access::Allowed,
            is_external: lane.spec.is_external(),
        };
        rung.is_open(self.shared.runtime.flags().allow_cloud_fallback)
    }

    /// The model to ask now.
    pub fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Returns whether the request has waited for the present model already.
    pub fn resumes(&self) -> bool {
        self.resumes
    }

    /// Goes to the head of the line where it has waited at the gate of `former`.
    pub fn resume_after(&mut self, former: &Lane) {
        self.resumes = Arc::ptr_eq(&self.lane.gate, &former.gate);
    }

    /// The guard has come down since this model was chosen: nothing may be sent there any more.
    pub fn is_barred(&self) -> bool {
        self.top.is_some() && !self.is_open(&self.lane)
    }

    /// How far down it is, for who makes the tries.
    pub fn descent(&self) -> Descent {
        self.descent
    }

    /// The request for the present model. To be taken once at each.
    pub fn call(&mut self) -> Result<Call, Refusal> {
        let call = match self.below.is_empty() {
            true => self.call.take(),
            false => self.call.clone(),
        };
        // Taken before only by the last model, after which there is none.
        call.ok_or(Refusal::Internal)
    }

    /// Goes down to the next model that is open, with what the present one said.
    ///
    /// # Errors
    /// There is none to go to, and this is what the client is told.
    pub fn go_down(&mut self, trip: &mut Trip, unserved: Unserved) -> Result<(), Left> {
        let (missed, refusal) = match unserved {
            Unserved::Ended(left) => return Err(left),
            // The walk has gone back by now.
            Unserved::Outdated => return Err(Refusal::Internal.into()),
            // What is wrong with a request is for the model that was asked for to say.
            Unserved::Unfit(refusal) if self.top.is_none() => return Err(refusal.into()),
            Unserved::Unfit(refusal) => (None, refusal),
            Unserved::Missed(missed, refusal) => (Some(missed), refusal),
        };
        let cause = refusal.clone();
        let (top, said) = self
            .top
            .get_or_insert_with(|| (Arc::clone(&self.lane), refusal));
        let (top, said) = (Arc::clone(top), said.clone());
        let leaves = self
            .descent
            .may_leave(missed.unwrap_or(Missed::Failed), trip.event().attempts);
        let Some(next) = leaves.then(|| self.next_open()).flatten() else {
            trip.goes_to(&top, &top);
            return Err(said.into());
        };
        if let Some(missed) = missed {
            self.lane.metrics.fell_back(missed);
        }
        self.descent.goes_down(self.below.len());
        self.resumes = false;
        self.lane = next;
        trip.goes_to(&self.lane, &top);
        let now_us = self.shared.clock.micros();
        trip.story.fell_back(now_us, &self.lane.spec.id, &cause);
        match &self.call {
            Some(call) => {
                trip.holds_instead(&self.account, &self.lane, call);
                Ok(())
            }
            None => Err(Refusal::Internal.into()),
        }
    }

    /// The guard may have come down while the request waited.
    fn next_open(&mut self) -> Option<Arc<Lane>> {
        while let Some(next) = self.below.pop() {
            if self.is_open(&next) {
                return Some(next);
            }
        }
        None
    }
}
