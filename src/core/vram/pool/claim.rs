//! Claim of another holder of the host as the pool keeps it, with the room that was made for it.
//!
//! Not the rules, which `claims.rs` has.

use crate::Millis;
use crate::vram::contender::ColdModel;
use crate::vram::fit::{DeviceShare, PlacementRequest};
use crate::vram::lease::ClaimId;

/// Time for a holder to take the room that was made for it: it looks ten times a second, another gateway once.
pub(super) const TAKE_MAX: Millis = Millis::from_secs(5);
/// Load time of what claims, where turns are counted in load times: that of a server of middle size.
const LOAD: Millis = Millis::from_secs(10);

/// Claim of another holder.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolClaim {
    /// Identity.
    pub id: ClaimId,
    /// Need.
    pub placement: PlacementRequest,
    /// Urgency: the smaller, the more urgent.
    pub priority: u8,
    /// Debt of its wait, request-seconds.
    pub debt: f64,
    /// Moment of the claim.
    pub since: Millis,
}

/// A claim, and the room that is kept for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClaimRecord {
    pub claim: PoolClaim,
    /// Memory that is the claim's once victims have left.
    pub room: Option<Vec<DeviceShare>>,
    /// Moment from which on nothing keeps the holder from taking its room.
    pub free_since: Option<Millis>,
    pub passed_until: Millis,
}

impl ClaimRecord {
    /// The claim as a model that waits; none while room is kept for it, or after it did not take some.
    pub fn contender(&self, now: Millis) -> Option<ColdModel> {
        let waits = self.room.is_none() && now >= self.passed_until;
        waits.then(|| ColdModel {
            placement: self.claim.placement,
            growth: Vec::new(),
            load: LOAD,
            priority: self.claim.priority,
            spares_urgent: true,
            debt: self.claim.debt,
            unserved_since: self.claim.since,
        })
    }

    /// Keeps no room for it any more.
    pub fn give_up_room(&mut self) {
        (self.room, self.free_since) = (None, None);
    }

    /// Moment at which its room is given up.
    pub fn deadline(&self) -> Option<Millis> {
        let end = self.free_since? + TAKE_MAX;
        self.room.as_ref().map(|_| end)
    }
}
