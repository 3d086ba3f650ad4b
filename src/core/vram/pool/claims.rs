//! Claims of other holders of the host: needs that the pool makes room for, and that it loads nothing for.
//!
//! Not the ledger's order of claims: the caller passes those whose turn it is. A claim is a cold model among others, with
//! the debt of its wait. Room that was made for it is kept for 5 s, and then it is passed over for [`PASS`].

use super::claim::{ClaimRecord, PoolClaim, TAKE_MAX};
use super::contenders::ContenderNames;
use super::{ColdReason, ModelPool, PoolMoment, PoolReport};
use crate::vram::fit::PlacementRequest;
use crate::vram::lease::ClaimId;
use crate::vram::schedule::SwapStep;
use crate::vram::slot::{DrainReason, SlotEvent, SlotId};
use crate::{Millis, ModelId};

/// Time for which a claim makes no room after it did not take what was there.
const PASS: Millis = Millis::from_secs(30);

impl ModelPool {
    /// Replaces the claims of others whose turn it is. Claims that are gone have their memory, or want none any more.
    ///
    /// Does nothing yet: devices of the same moment follow, whose figures have the leases that claims became.
    pub fn set_claims(&mut self, claims: Vec<PoolClaim>) {
        let mut former = std::mem::take(&mut self.claims);
        for claim in claims {
            let id = claim.id.clone();
            let record = match former.remove(&id) {
                Some(record) => ClaimRecord { claim, ..record },
                None => ClaimRecord {
                    claim,
                    room: None,
                    free_since: None,
                    passed_until: Millis::ZERO,
                },
            };
            self.claims.insert(id, record);
        }
    }

    /// Returns the needs of models that have waited since `before` for memory which others have, with their urgency.
    pub fn needs(&self, before: Millis) -> Vec<(ModelId, PlacementRequest, u8)> {
        let mut needs = Vec::new();
        for (id, model) in self.models.waiting() {
            let is_want = model.cold_reason.is_some_and(ColdReason::is_want_of_memory);
            let since = model.demand.unserved_since;
            if is_want && since.is_some_and(|since| since <= before) {
                needs.push((id.clone(), model.need(), model.priority()));
            }
        }
        needs
    }

    /// Keeps the room of a step for a claim, and lets victims leave.
    pub(super) fn make_room(
        &mut self,
        claim: &ClaimId,
        names: &ContenderNames,
        (step, has_to_end): (SwapStep, bool),
        at: PoolMoment,
    ) -> bool {
        let (victims, shares) = match step {
            SwapStep::Wait => return false,
            SwapStep::Load { shares, .. } => (Vec::new(), shares),
            SwapStep::Swap {
                victims, shares, ..
            } => (victims, shares),
        };
        let Some(record) = self.claims.get_mut(claim) else {
            return false;
        };
        record.room = Some(shares);
        record.free_since = None;
        for nth in victims {
            let victim: SlotId = self.slot_name(names.residents[nth]);
            if let Some(record) = self.slot_mut(&victim) {
                record.claim = Some(claim.clone());
                record.has_to_end = has_to_end;
            }
            // The rule has no victim that cannot drain.
            let _ = self.apply(&victim, SlotEvent::Drain(DrainReason::Victim), at);
            self.report(&victim, PoolReport::RoomForClaim(claim.clone()));
        }
        true
    }

    /// Gives up room that was not taken in time.
    pub(super) fn expire_claims(&mut self, now: Millis) {
        if self.claims.is_empty() {
            return;
        }
        let slots = self.models.restless().flat_map(|(_, model)| &model.slots);
        let awaited: Vec<ClaimId> = slots.filter_map(|slot| slot.claim.clone()).collect();
        for (id, record) in &mut self.claims {
            if record.room.is_none() || awaited.contains(id) {
                continue;
            }
            let since = *record.free_since.get_or_insert(now);
            if now.since(since) >= TAKE_MAX {
                record.give_up_room();
                record.passed_until = now + PASS;
            }
        }
    }

    /// Returns whether room is still kept for a claim.
    pub(super) fn keeps_room(&self, claim: &ClaimId) -> bool {
        let record = self.claims.get(claim);
        record.is_some_and(|record| record.room.is_some())
    }
}
