//! Details of slots and models for operators: what each is, since when, and what the rule knows of it.
//!
//! Decides nothing. Spans are as of `now`.

use super::cold_reason::ColdReason;
use super::config::ModelDemand;
use super::record::{ModelRecord, SlotRecord};
use super::{ModelPool, slot_id};
use crate::vram::slot::{SlotId, SlotState};
use crate::{Millis, ModelId};

/// Details of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDetails {
    /// Slot.
    pub slot: SlotId,
    /// Time in its state.
    pub in_state: Millis,
    /// Reason of its load, or of its drain; none without a process.
    pub reason: Option<&'static str>,
    /// Time for which it is kept while a model with the same load time waits; none where it does not serve.
    pub turn_left: Option<Millis>,
    /// Mark of a process that is to be replaced.
    pub is_outdated: bool,
}

/// Details of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelDetails {
    /// Model.
    pub model: ModelId,
    /// Memory of a process as estimated now, MiB, raised after loads that ran out of it.
    pub need_mib: u64,
    /// Expected time of a load.
    pub expected_load: Millis,
    /// Times of the latest loads.
    pub loads: Vec<Millis>,
    /// Demand.
    pub demand: ModelDemand,
    /// Time until it may be loaded again after a failure; none without one.
    pub backoff: Option<Millis>,
    /// Too many failures without having been ready.
    pub is_broken: bool,
    /// Pinned by the configuration or an operator.
    pub is_pinned: bool,
    /// Time for which it is pinned and finds no room, not even by eviction; none where it has some.
    pub unplaced: Option<Millis>,
    /// Slots restart, or are still to.
    pub is_restarting: bool,
    /// Reason why it is not ready although requests wait.
    pub cold_reason: Option<ColdReason>,
}

impl ModelPool {
    /// Returns the details of all slots, in order.
    pub fn slot_details(&self, now: Millis) -> Vec<SlotDetails> {
        let mut details = Vec::new();
        for (id, model) in self.models.iter() {
            let turn = Millis(2 * u64::from(self.config.rule.turn) * model.expected_load().0);
            for (number, record) in model.slots.iter().enumerate() {
                let slot = slot_id(id, number);
                let ready_since = record.slot.ready_since();
                details.push(SlotDetails {
                    in_state: now.since(record.slot.since()),
                    reason: record.reason_name(),
                    turn_left: ready_since.map(|since| (since + turn).since(now)),
                    is_outdated: self.is_outdated(&slot),
                    slot,
                });
            }
        }
        details
    }

    /// Returns the reason of a slot's load, or of its drain; none without a process.
    pub fn slot_reason(&self, slot: &SlotId) -> Option<&'static str> {
        self.slot(slot)?.reason_name()
    }

    /// Returns the pinned models that find no room, not even by eviction, and for how long.
    pub fn unplaced_pins(&self, now: Millis) -> impl Iterator<Item = (&ModelId, Millis)> {
        let models = self.models.iter();
        models.filter_map(move |(id, model)| Some((id, model.unplaced(now)?)))
    }

    /// Returns the details of all models, in order.
    pub fn model_details(&self, now: Millis) -> Vec<ModelDetails> {
        let models = self.models.iter();
        let details = models.map(|(id, model)| model.details(id, self.is_restarting(id), now));
        details.collect()
    }
}

impl ModelRecord {
    fn details(&self, id: &ModelId, is_restarting: bool, now: Millis) -> ModelDetails {
        let until = self.backoff.state().until();
        ModelDetails {
            model: id.clone(),
            need_mib: self.need().mib,
            expected_load: self.expected_load(),
            loads: self.load_times.loads().map(|(took, _)| took).collect(),
            demand: self.demand,
            backoff: until.map(|until| until.since(now)).filter(|it| it.0 > 0),
            is_broken: self.backoff.is_broken(),
            is_pinned: self.is_pinned(),
            unplaced: self.unplaced(now),
            is_restarting,
            cold_reason: self.cold_reason,
        }
    }
}

impl ModelRecord {
    fn unplaced(&self, now: Millis) -> Option<Millis> {
        let since = self.unplaced_since.filter(|_| self.is_pinned())?;
        Some(now.since(since))
    }
}

impl SlotRecord {
    fn reason_name(&self) -> Option<&'static str> {
        match self.slot.state() {
            SlotState::Cold => None,
            SlotState::Draining(reason) => Some(reason.name()),
            _ => Some(self.reason.name()),
        }
    }
}
