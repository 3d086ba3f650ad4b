//! Models of the pool in the order of their names, and which of them a call has to look at.
//!
//! Not what is due for them. Most of many models are cold, without waiters. Lists name the others: those with
//! a slot that is not cold, those with waiters, and those that have changed. Whatever may change a model notes it here;
//! tests compare the lists with all models.

use super::cold_reason::ColdReason;
use super::config::ModelDemand;
use super::record::{ModelRecord, SlotRecord};
use crate::ModelId;
use crate::vram::evict::WaitReason;
use crate::vram::slot::{SlotId, SlotState};

/// Models by name, with the places of those that need a look; each list ascends.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelTable {
    names: Vec<ModelId>,
    /// Records, at the places of their names.
    records: Vec<ModelRecord>,
    /// Models with a slot that is not cold.
    active: Vec<usize>,
    /// Models with waiters.
    waiting: Vec<usize>,
    /// Models that may have a load due which needs no request: more of them than have.
    kept: Vec<usize>,
    /// Models whose outlook may be another than admission has: more of them than have.
    unannounced: Vec<usize>,
    /// Models with a slot that may not rest: more of them than have.
    restless: Vec<usize>,
    /// Times that a model was given out to be changed.
    changes: u64,
}

impl ModelTable {
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ModelId, &ModelRecord)> {
        self.names.iter().zip(&self.records)
    }

    /// Models with a slot that is not cold.
    pub fn active(&self) -> impl Iterator<Item = (&ModelId, &ModelRecord)> {
        self.active.iter().map(|place| self.at(*place))
    }

    /// Looks at the models with a slot that is not cold, and changes nothing that a list depends on.
    pub fn look_at_active(&mut self, mut look: impl FnMut(&ModelId, &mut ModelRecord)) {
        for place in &self.active {
            look(&self.names[*place], &mut self.records[*place]);
        }
    }

    /// Models with a slot that may not rest, as far as they are active.
    pub fn restless(&self) -> impl Iterator<Item = (&ModelId, &ModelRecord)> {
        let models = self.restless.iter().map(|place| self.at(*place));
        models.filter(|(_, record)| record.is_active)
    }

    /// Keeps those models with a slot that does not rest.
    pub fn note_rest(&mut self) {
        let records = &self.records;
        self.restless.retain(|place| !records[*place].rests());
    }

    /// Number that is another one once any model may have changed but for its demand.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Models with waiters.
    pub fn waiting(&self) -> impl Iterator<Item = (&ModelId, &ModelRecord)> {
        self.waiting.iter().map(|place| self.at(*place))
    }

    /// Places of models with a slot that is not cold.
    pub fn active_places(&self) -> &[usize] {
        &self.active
    }

    /// Places of models with waiters.
    pub fn waiting_places(&self) -> &[usize] {
        &self.waiting
    }

    /// Name and record at a place that a list has.
    pub fn at(&self, place: usize) -> (&ModelId, &ModelRecord) {
        (&self.names[place], &self.records[place])
    }

    pub fn place(&self, id: &ModelId) -> Option<usize> {
        self.names.binary_search(id).ok()
    }

    pub fn get(&self, id: &ModelId) -> Option<&ModelRecord> {
        self.place(id).map(|place| &self.records[place])
    }

    /// A model to change; it is noted as changed.
    pub fn get_mut(&mut self, id: &ModelId) -> Option<&mut ModelRecord> {
        let place = self.place(id)?;
        Some(self.at_mut(place))
    }

    /// The model at a place to change; it is noted as changed.
    pub fn at_mut(&mut self, place: usize) -> &mut ModelRecord {
        insert(&mut self.kept, place);
        insert(&mut self.unannounced, place);
        insert(&mut self.restless, place);
        self.changes += 1;
        &mut self.records[place]
    }

    /// Changes every model.
    pub fn change_all(&mut self, mut change: impl FnMut(&ModelId, &mut ModelRecord)) {
        for (id, record) in self.names.iter().zip(&mut self.records) {
            change(id, record);
        }
        self.list_anew();
    }

    /// Adds models that are not there.
    pub fn add_all(&mut self, added: Vec<(ModelId, ModelRecord)>) {
        let names = std::mem::take(&mut self.names).into_iter();
        let records = std::mem::take(&mut self.records).into_iter();
        let mut all: Vec<(ModelId, ModelRecord)> = names.zip(records).chain(added).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        (self.names, self.records) = all.into_iter().unzip();
        self.list_anew();
    }

    /// Drops the models that `keeps` returns false for.
    pub fn retain(&mut self, mut keeps: impl FnMut(&mut ModelRecord) -> bool) {
        let are_kept: Vec<bool> = self.records.iter_mut().map(&mut keeps).collect();
        let mut kept = are_kept.iter();
        self.names.retain(|_| kept.next() != Some(&false));
        let mut kept = are_kept.iter();
        self.records.retain(|_| kept.next() != Some(&false));
        self.list_anew();
    }

    /// Sets the demand of a model; returns the place behind it, where the next one is looked for first.
    pub fn set_demand(&mut self, id: &ModelId, demand: &ModelDemand, expected: usize) -> usize {
        // Callers go through their models in order: most are where they are expected.
        let there = self.names.get(expected);
        let is_expected = there.is_some_and(|there| there.is_copy_of(id) || there == id);
        let place = match is_expected {
            true => Some(expected),
            false => self.place(id),
        };
        let Some(place) = place else {
            return expected;
        };
        let record = &mut self.records[place];
        let waited = record.demand.waiters > 0;
        record.demand = *demand;
        let waits = demand.waiters > 0;
        if waits && !waited {
            insert(&mut self.waiting, place);
        } else if waited && !waits {
            remove(&mut self.waiting, place);
            self.records[place].cold_reason = None;
        }
        place + 1
    }

    /// Takes note that a slot of a model has become cold, or is cold no more.
    pub fn note_slot(&mut self, place: usize) {
        let record = &mut self.records[place];
        record.is_active = is_active(record);
        match record.is_active {
            true => insert(&mut self.active, place),
            false => remove(&mut self.active, place),
        }
    }

    /// Keeps the rule's reason for not loading a model.
    pub fn note_wait(&mut self, place: usize, reason: WaitReason) {
        self.records[place].wait_reason = Some(reason);
    }

    /// Keeps the reason of each model with waiters that is not ready.
    pub fn note_reasons(&mut self, reason: impl Fn(&ModelRecord) -> Option<ColdReason>) {
        for place in &self.waiting {
            let record = &mut self.records[*place];
            record.cold_reason = reason(record);
        }
    }

    /// Models that may have a load due without a request.
    pub fn kept(&self) -> impl Iterator<Item = (&ModelId, &ModelRecord)> {
        self.kept.iter().map(|place| self.at(*place))
    }

    /// Looks at the models that may have a load due without a request, and keeps those that `has_duty` returns true for.
    pub fn look_at_kept(&mut self, mut has_duty: impl FnMut(&mut ModelRecord) -> bool) {
        let records = &mut self.records;
        self.kept.retain(|place| has_duty(&mut records[*place]));
    }

    /// Looks at the models whose outlook may have changed, and keeps those that `may_change` returns true for.
    pub fn look_at_outlooks(
        &mut self,
        mut may_change: impl FnMut(&ModelId, &mut ModelRecord) -> bool,
    ) {
        let (names, records) = (&self.names, &mut self.records);
        self.unannounced
            .retain(|place| may_change(&names[*place], &mut records[*place]));
    }

    pub fn has_unannounced(&self) -> bool {
        !self.unannounced.is_empty()
    }

    pub fn slot(&self, id: &SlotId) -> Option<&SlotRecord> {
        self.get(&id.model)?.slots.get(usize::from(id.number))
    }

    fn list_anew(&mut self) {
        for record in &mut self.records {
            record.is_active = is_active(record);
        }
        let places = 0..self.records.len();
        let list = |has: fn(&ModelRecord) -> bool| {
            let there = places.clone().filter(|place| has(&self.records[*place]));
            there.collect::<Vec<usize>>()
        };
        (self.active, self.waiting) = (list(is_active), list(waits));
        self.kept = places.collect();
        self.unannounced.clone_from(&self.kept);
        self.restless.clone_from(&self.kept);
        self.changes += 1;
    }

    /// Asserts that no list lacks a model, and that a cold slot has nothing.
    #[cfg(test)]
    pub fn check(&self) {
        let mut anew = self.clone();
        anew.list_anew();
        assert_eq!(self.active, anew.active, "models with a slot");
        assert_eq!(self.waiting, anew.waiting, "models with waiters");
        for (place, (id, model)) in self.iter().enumerate() {
            assert_eq!(model.is_active, is_active(model), "{id}");
            assert!(
                self.kept.contains(&place) || !model.has_duty(),
                "loads of {id}"
            );
            assert!(
                self.restless.contains(&place) || !model.is_active || model.rests(),
                "duties of {id}"
            );
            for record in &model.slots {
                let is_cold = record.slot.state() == SlotState::Cold;
                let makes_room = record.challenger.is_some() || record.claim.is_some();
                let is_marked = record.must_restart || record.must_unload || record.is_surplus;
                let has_nothing = record.has_no_shares() && !makes_room && !is_marked;
                assert!(!is_cold || has_nothing, "{id}: {record:?}");
            }
        }
    }
}

fn is_active(model: &ModelRecord) -> bool {
    let mut slots = model.slots.iter();
    slots.any(|record| record.slot.state() != SlotState::Cold)
}

fn waits(model: &ModelRecord) -> bool {
    model.demand.waiters > 0
}

fn insert(list: &mut Vec<usize>, place: usize) {
    // Callers go through the models in order.
    if list.last().is_none_or(|last| *last < place) {
        return list.push(place);
    }
    if let Err(nth) = list.binary_search(&place) {
        list.insert(nth, place);
    }
}

fn remove(list: &mut Vec<usize>, place: usize) {
    if let Ok(nth) = list.binary_search(&place) {
        list.remove(nth);
    }
}
