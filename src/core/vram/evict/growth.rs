//! Victims for a wake: a sleeping process needs its memory back on the devices that it has.
//!
//! Not the search among devices, which a process that is started needs.

use super::{Candidate, Eviction, Evictions, WaitReason};
use crate::vram::contender::ColdModel;
use crate::vram::fit::DeviceRoom;

impl Evictions<'_> {
    /// Returns the cheapest eviction after which each device has room for the growth of a wake.
    pub(super) fn for_growth(
        &mut self,
        model: &ColdModel,
        cost_max: f64,
    ) -> Result<Eviction, WaitReason> {
        let mut victims: Vec<Candidate> = Vec::new();
        for share in &model.growth {
            let room = self.rooms.iter().position(|room| room.id == share.device);
            let room = room.ok_or(WaitReason::NoDevice)?;
            if share.mib > self.rooms[room].empty_mib {
                return Err(WaitReason::DoesNotFit);
            }
            let mut free_mib = self.rooms_without(&victims)[room].free_mib;
            if free_mib >= share.mib {
                continue;
            }
            let missing_mib = share.mib - self.rooms[room].free_mib.min(share.mib);
            let terms = self.terms(&self.of_room[room], missing_mib)?;
            self.collect(model, terms);
            let is_taken = |candidate: &Candidate| {
                let resident = candidate.place.resident;
                victims
                    .iter()
                    .any(|victim| victim.place.resident == resident)
            };
            let mut taken = Vec::new();
            for candidate in self.candidates.iter().filter(|it| !is_taken(it)) {
                if free_mib >= share.mib {
                    break;
                }
                free_mib += candidate.place.mib;
                taken.push(*candidate);
            }
            if free_mib < share.mib {
                return Err(WaitReason::TurnNotOver);
            }
            victims.extend(taken);
        }
        self.candidates = self.necessary(model, victims);
        self.cost_within(cost_max)?;
        Ok(self.eviction_with(model.growth.clone()))
    }

    /// Drops superfluous victims, the dearest first.
    fn necessary(&self, model: &ColdModel, mut victims: Vec<Candidate>) -> Vec<Candidate> {
        victims.sort_unstable_by(Candidate::dearest);
        let mut nth = 0;
        while nth < victims.len() {
            let victim = victims.remove(nth);
            let rooms: Vec<DeviceRoom> = self.rooms_without(&victims);
            if model.place(&rooms).is_none() {
                victims.insert(nth, victim);
                nth += 1;
            }
        }
        victims
    }
}
