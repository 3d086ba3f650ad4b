//! Restarts of slots: other settings, other files, an operator's order. One slot of a model at a time.
//!
//! Not the loads that follow, which `loads.rs` begins. While a model has another slot and the card room for it, the new
//! process is ready before the old one drains. A failed one leaves the others as they are.

use super::action::LoadReason;
use super::record::{DeviceScope, ModelRecord, SlotRecord};
use super::{ModelPool, PoolMoment, slot_id};
use crate::ModelId;
use crate::vram::fit::{Placement, place};
use crate::vram::slot::{DrainReason, SlotId, SlotState};

/// Next step of a model with slots to restart.
enum RestartStep {
    /// Wait for what has not ended, or nothing is due.
    Wait,
    /// Load of a further slot first, where there is room.
    Replace,
    /// Drain of a slot.
    Drain(usize),
}

impl ModelPool {
    /// Marks a slot whose process is to be replaced; one without a process stays as it is.
    pub(super) fn mark_restart(&mut self, slot: &SlotId) {
        if let Some(record) = self.slot_mut(slot).filter(|record| record.is_occupied()) {
            record.must_restart = true;
        }
    }

    /// Restarts all slots of a model, or loads it where none has a process.
    pub(super) fn restart(&mut self, id: &ModelId) {
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let occupied = model.slots.iter_mut().filter(|slot| slot.is_occupied());
        let marked = occupied.map(|slot| slot.must_restart = true).count();
        model.is_requested |= marked == 0;
        model.backoff.retry();
    }

    /// Returns whether a model has slots to restart, or loads due for those that were.
    pub fn is_restarting(&self, model: &ModelId) -> bool {
        let record = self.models.get(model);
        record.is_some_and(|model| model.replacements > 0 || model.outdated().next().is_some())
    }

    /// Returns whether a slot has a process that is to be replaced.
    pub fn is_outdated(&self, slot: &SlotId) -> bool {
        let model = self.models.get(&slot.model);
        model.is_some_and(|model| {
            let mut outdated = model.outdated();
            outdated.any(|number| number == usize::from(slot.number))
        })
    }

    /// Stops what the configuration has no place for, and restarts what is outdated: one slot at a time.
    pub(super) fn apply_configuration(&mut self, at: PoolMoment) {
        let changing = self.models.restless().filter(|(_, model)| {
            let is_marked = |record: &SlotRecord| record.is_surplus || record.must_restart;
            model.slots.iter().any(is_marked) || model.differs_from_configuration()
        });
        let changing: Vec<ModelId> = changing.map(|(id, _)| id.clone()).collect();
        for id in changing {
            self.stop_without_place(&id, at);
            self.end_outdated_loads(&id, at);
            match self.restart_step(&id, at) {
                RestartStep::Wait => {}
                RestartStep::Replace => self.load_replacement(&id, at),
                RestartStep::Drain(number) => self.drain_outdated(&id, number, at),
            }
        }
    }

    fn stop_without_place(&mut self, id: &ModelId, at: PoolMoment) {
        let Some(model) = self.models.get(id) else {
            return;
        };
        for number in model.places()..model.slots.len() {
            self.stop(&slot_id(id, number), DrainReason::Configuration, at);
        }
    }

    /// Ends loads and sleeping processes of former settings: nothing is served by them.
    fn end_outdated_loads(&mut self, id: &ModelId, at: PoolMoment) {
        let Some(model) = self.models.get(id) else {
            return;
        };
        let outdated: Vec<(usize, SlotState)> = model
            .outdated()
            .map(|number| (number, model.slots[number].slot.state()))
            .collect();
        for (number, state) in outdated {
            let is_load = state.is_becoming_ready();
            if !is_load && state != SlotState::Asleep {
                continue;
            }
            let is_stopped = self.stop(&slot_id(id, number), DrainReason::Configuration, at);
            if is_stopped && is_load {
                self.with_model(id, |model| model.replacements += 1);
            }
        }
    }

    fn restart_step(&mut self, id: &ModelId, at: PoolMoment) -> RestartStep {
        let Some(model) = self.models.get_mut(id) else {
            return RestartStep::Wait;
        };
        let is_ready = |number: &usize| model.slots[*number].slot.state() == SlotState::Ready;
        let Some(number) = model.outdated().find(is_ready) else {
            // Whatever was loaded for another one stays as it is.
            model.slots.iter_mut().for_each(|it| it.is_surplus = false);
            return RestartStep::Wait;
        };
        let awaits = model.slots.iter().any(SlotRecord::is_between)
            || (model.replacements > 0 && !model.has_no_room);
        if awaits {
            return RestartStep::Wait;
        }
        let mut slots = model.slots.iter();
        let has_surplus =
            slots.any(|record| record.is_surplus && record.slot.state() == SlotState::Ready);
        if has_surplus || model.cold_slot().is_none() {
            return RestartStep::Drain(number);
        }
        let (need, permits_load) = (model.need(), model.permits_load(at.now));
        let rooms = self.rooms(None, DeviceScope::Open);
        match place(&need, &rooms) {
            Placement::Fits(_) if permits_load && !self.is_draining => RestartStep::Replace,
            // The next try of the new settings comes first.
            Placement::Fits(_) => RestartStep::Wait,
            _ => RestartStep::Drain(number),
        }
    }

    /// Loads a slot beside an outdated one; where as many loads run as may, later.
    fn load_replacement(&mut self, id: &ModelId, at: PoolMoment) {
        self.load_one(id, LoadReason::Replacement, at);
        self.with_model(id, |model| {
            for record in &mut model.slots {
                record.is_surplus |= record.slot.state().is_becoming_ready();
            }
        });
    }

    fn drain_outdated(&mut self, id: &ModelId, number: usize, at: PoolMoment) {
        if !self.stop(&slot_id(id, number), DrainReason::Configuration, at) {
            return;
        }
        self.with_model(id, |model| {
            let surplus = model.slots.iter_mut().find(|record| record.is_surplus);
            match surplus {
                Some(surplus) => surplus.is_surplus = false,
                None => model.replacements += 1,
            }
        });
    }

    /// Notes whether a due replacement has found no room at all: then the next slot drains, and makes some.
    ///
    /// Returns whether that is news.
    pub(super) fn note_room(&mut self, id: &ModelId, has_room: bool) -> bool {
        let Some(model) = self.models.get_mut(id) else {
            return false;
        };
        let is_last = model.outdated().next().is_none();
        if !has_room && is_last {
            model.replacements = 0;
        }
        let has_no_room = !has_room && !is_last;
        std::mem::replace(&mut model.has_no_room, has_no_room) != has_no_room
    }
}

impl ModelRecord {
    /// Slots that the configuration has.
    pub fn places(&self) -> usize {
        match self.is_removed {
            true => 0,
            false => usize::from(self.config.replicas_max),
        }
    }

    /// Returns whether a slot is one too many, or has other settings than the configuration.
    fn differs_from_configuration(&self) -> bool {
        self.slots.len() > self.places() || self.outdated().next().is_some()
    }

    /// Returns whether no process comes or goes, and nothing is due for a slot but by demand.
    pub fn rests(&self) -> bool {
        self.slots.iter().all(SlotRecord::rests) && !self.differs_from_configuration()
    }

    /// Places of the slots whose process has other settings than it would be started with now.
    fn outdated(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().take(self.places()).enumerate();
        let outdated = slots.filter(|(_, record)| {
            let is_other = record.revision != self.config.revision || record.must_restart;
            is_other && record.is_occupied()
        });
        outdated.map(|(number, _)| number)
    }

    /// Returns whether a load is due for a slot that was restarted, beside those that run.
    pub fn owes_replacement(&self) -> bool {
        let becoming = self
            .slots
            .iter()
            .filter(|record| record.slot.state().is_becoming_ready() && !record.is_surplus);
        usize::from(self.replacements) > becoming.count()
    }

    /// Takes a load that has become ready for one that was due.
    pub fn pay_replacement(&mut self, number: u16) {
        let record = self.slots.get(usize::from(number));
        if !record.is_some_and(|record| record.is_surplus) {
            self.replacements = self.replacements.saturating_sub(1);
        }
        self.has_no_room = false;
    }

    /// Drops loads that are due where nothing serves any more: requests decide about the next one.
    pub fn forgive_replacements(&mut self) {
        let mut slots = self.slots.iter();
        if !slots.any(|record| record.slot.state() == SlotState::Ready) {
            self.replacements = 0;
        }
    }
}

impl SlotRecord {
    /// Drops what belongs to a life that is over, but for its shares.
    pub fn forget_life(&mut self) {
        self.planned.clear();
        self.leave_challenger();
        (self.must_restart, self.must_unload) = (false, false);
        (self.is_surplus, self.is_requested) = (false, false);
    }

    /// Returns whether a process comes or goes, or is to come again.
    fn is_between(&self) -> bool {
        match self.slot.state() {
            SlotState::Acquiring(_)
            | SlotState::Loading(_)
            | SlotState::Stopping(_)
            | SlotState::Reclaiming
            | SlotState::Draining(DrainReason::Configuration)
            // The next try comes first.
            | SlotState::Failed(_) => true,
            SlotState::Cold
            | SlotState::Ready
            | SlotState::Draining(_)
            | SlotState::Asleep
            | SlotState::Stuck => false,
        }
    }
}
