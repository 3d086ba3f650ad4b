//! Pool of the models that a host loads and unloads: their slots, their memory, and the loads that are due.
//!
//! Performs nothing: events and samples come in, and each call returns the actions that follow. The next model is
//! the choice of [`SwapRule`]. Records stand in a fixed order, so equal input gives equal actions. Debts grow with time:
//! while something waits, the caller sets the demand at least once a second. The pool never has more memory of a device
//! leased than there is beside others.

mod action;
mod claim;
mod claims;
mod cold_reason;
mod command;
mod config;
mod contenders;
mod details;
mod growth;
mod loads;
mod record;
mod restarts;
mod rooms;
mod settle;
mod table;

use std::collections::BTreeMap;

pub use action::{Action, LoadReason, PoolReport, ReadyOutlook, RejectReason};
pub use claim::PoolClaim;
pub use cold_reason::ColdReason;
pub use command::PoolCommand;
pub use config::{LoadParallel, ModelDemand, PoolConfig, PoolModel};
pub use contenders::{ChallengerName, WaitingChallenger};
pub use details::{ModelDetails, SlotDetails};
pub use rooms::PoolDevice;

use claim::ClaimRecord;
use record::{ModelRecord, SlotRecord};
use rooms::KeptUses;
use table::ModelTable;

use super::device::DeviceId;
use super::fit::DeviceShare;
use super::lease::ClaimId;
use super::load_time::FileCache;
use super::schedule::SwapRule;
use super::slot::{
    DrainReason, ForbiddenTransition, LoadKind, SlotEffect, SlotEvent, SlotId, SlotState,
    StopMethod,
};
use crate::{Millis, ModelId};

/// Moment of a call, with a random number for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolMoment {
    /// Time.
    pub now: Millis,
    /// Random number, which spreads delays.
    pub random: u64,
}

/// Models, slots and devices of a host.
#[derive(Clone, Debug, Default)]
pub struct ModelPool {
    config: PoolSettings,
    /// Devices by index; `None` before the first samples.
    devices: Option<Vec<PoolDevice>>,
    models: ModelTable,
    /// The configuration has a model or a slot no more that was there: it is dropped once it holds nothing.
    may_forget: bool,
    /// Claims of other holders whose turn it is.
    claims: BTreeMap<ClaimId, ClaimRecord>,
    is_draining: bool,
    /// Loads and ends are not begun.
    is_held: bool,
    /// Highest number of a life among slots that are gone: late events of those are not taken for a new slot's.
    past_life: u64,
    actions: Vec<Action>,
    uses: KeptUses,
}

/// Settings that concern no single model.
#[derive(Clone, Copy, Debug, Default)]
struct PoolSettings {
    load_parallel: LoadParallel,
    rule: SwapRule,
}

impl ModelPool {
    /// Replaces the configuration. Only models with another revision, fewer slots, or none any more stop processes.
    pub fn set_config(&mut self, config: PoolConfig, at: PoolMoment) -> Vec<Action> {
        self.config = PoolSettings {
            load_parallel: config.load_parallel,
            rule: config.swap,
        };
        self.models
            .change_all(|id, record| record.is_removed = !config.models.contains_key(id));
        self.may_forget = true;
        let life = self.past_life;
        let mut added = Vec::new();
        for (id, model) in config.models {
            match self.models.get_mut(&id) {
                Some(record) => reconfigure(record, model, life, at.now),
                None => added.push((id, ModelRecord::new(model, life, at.now))),
            }
        }
        let whole_mib = self.whole_mib();
        for (_, record) in &mut added {
            record.whole_mib = whole_mib;
        }
        self.models.add_all(added);
        self.finish(at)
    }

    /// Replaces the devices. Slots on a device that is not among them have lost it.
    pub fn set_devices(&mut self, devices: Vec<PoolDevice>, at: PoolMoment) -> Vec<Action> {
        let mut devices = devices;
        devices.sort_by_key(|device| device.index);
        for device in &mut devices {
            self.share_text(&mut device.id);
        }
        let known = |share: &DeviceShare| devices.iter().any(|it| it.id == share.device);
        let mut lost = Vec::new();
        for (id, record) in self.slots_where(|record| !record.has_no_shares()) {
            if !record.shares.iter().chain(&record.planned).all(known) {
                lost.push(id);
            }
        }
        self.devices = Some(devices);
        let whole_mib = self.whole_mib();
        self.models.change_all(|_, model| {
            (model.is_refused, model.whole_mib) = (false, whole_mib);
        });
        for id in lost {
            // A slot whose process is ending already goes on to its end.
            let _ = self.apply(&id, SlotEvent::DeviceLost, at);
        }
        self.finish(at)
    }

    /// Sets the demand of models, and does what is due. A model that is not managed has none.
    pub fn update_demand<'a>(
        &mut self,
        demands: impl IntoIterator<Item = (&'a ModelId, &'a ModelDemand)>,
        at: PoolMoment,
    ) -> Vec<Action> {
        let mut expected = 0;
        for (model, demand) in demands {
            expected = self.models.set_demand(model, demand, expected);
        }
        self.finish(at)
    }

    /// Takes an event of a slot's present life; a late one, or one of an earlier life, is reported and changes nothing.
    pub fn slot_event(
        &mut self,
        slot: &SlotId,
        life: u64,
        event: SlotEvent,
        at: PoolMoment,
    ) -> Vec<Action> {
        let Some(record) = self.slot(slot) else {
            return self.finish(at);
        };
        let state = record.slot.state();
        let is_answer = matches!(event, SlotEvent::LeaseHeld | SlotEvent::LeaseRefused);
        let is_present = life == record.slot.life()
            && event.is_observed()
            && (record.is_requested || !is_answer);
        let event = match event {
            SlotEvent::InFlightZero(method) => {
                SlotEvent::InFlightZero(self.stop_method(slot, method))
            }
            event => event,
        };
        let refused = match is_present {
            true => self.apply(slot, event, at).err(),
            false => Some(ForbiddenTransition { state, event }),
        };
        if let Some(refused) = refused {
            self.report(slot, PoolReport::Ignored(refused));
        }
        self.finish(at)
    }

    /// Takes over a process of an earlier gateway, with the shares it has leased.
    pub fn adopt(
        &mut self,
        slot: &SlotId,
        shares: Vec<DeviceShare>,
        at: PoolMoment,
    ) -> Vec<Action> {
        let mut shares = shares;
        for share in &mut shares {
            self.share_text(&mut share.device);
        }
        let revision = self
            .models
            .get(&slot.model)
            .map_or(0, |model| model.config.revision);
        if let Some(record) = self
            .slot_mut(slot)
            .filter(|it| it.slot.state() == SlotState::Cold)
        {
            record.full.clone_from(&shares);
            record.shares = shares;
            record.revision = revision;
            let _ = self.apply(slot, SlotEvent::Adopted, at);
        }
        self.finish(at)
    }

    /// Takes the measured rest of a server that has fallen asleep, MiB on each device, before its event.
    pub fn record_rest(&mut self, slot: &SlotId, asleep_mib: u64) {
        self.with_model(&slot.model, |record| {
            record.measured_asleep_mib = Some(asleep_mib);
        });
    }

    /// Takes over the leases of a slot that have grown while it serves.
    pub fn set_shares(
        &mut self,
        slot: &SlotId,
        shares: Vec<DeviceShare>,
        at: PoolMoment,
    ) -> Vec<Action> {
        let serves = |state| matches!(state, SlotState::Ready | SlotState::Draining(_));
        if let Some(record) = self.slot_mut(slot).filter(|it| serves(it.slot.state())) {
            record.full.clone_from(&shares);
            record.shares = shares;
        }
        self.finish(at)
    }

    /// Returns whether the latest configuration has a model.
    pub fn has_model(&self, model: &ModelId) -> bool {
        self.models.get(model).is_some_and(|it| !it.is_removed)
    }

    /// Performs an operator's order; without effect for a model that is not configured.
    pub fn command(&mut self, command: PoolCommand, at: PoolMoment) -> Vec<Action> {
        match command {
            PoolCommand::Load(model) => {
                self.with_model(&model, |record| record.is_requested = true)
            }
            PoolCommand::Unload(model) => {
                self.with_model(&model, |record| {
                    record.is_requested = false;
                    record.preloads = false;
                    record.is_pinned_by_command = false;
                    record.replacements = 0;
                });
                self.unload(&model, DrainReason::Operator, at);
            }
            PoolCommand::Retry(model) => self.with_model(&model, |record| {
                record.backoff.retry();
                record.is_requested = true;
            }),
            PoolCommand::Restart(model) => self.restart(&model),
            PoolCommand::RestartSlot(slot) => self.mark_restart(&slot),
            PoolCommand::Renew(model) => self.with_model(&model, |record| record.backoff.reset()),
            PoolCommand::Pin(model) => {
                self.with_model(&model, |record| record.is_pinned_by_command = true);
            }
            PoolCommand::Unpin(model) => {
                self.with_model(&model, |record| record.is_pinned_by_command = false);
            }
            PoolCommand::DrainDevice(device) => self.drain_device(&device, |_| true, at),
            PoolCommand::EndSleepers(device) => {
                self.drain_device(&device, |state| state == SlotState::Asleep, at);
            }
            PoolCommand::DrainNode => self.is_draining = true,
            PoolCommand::Hold => self.is_held = true,
            PoolCommand::GoOn => self.is_held = false,
        }
        self.finish(at)
    }

    /// Returns the state of a slot and the number of its life.
    pub fn slot_state(&self, slot: &SlotId) -> Option<(SlotState, u64)> {
        self.slot(slot)
            .map(|record| (record.slot.state(), record.slot.life()))
    }

    /// Returns all slots with their states and leased shares, in order.
    pub fn slot_states(&self) -> impl Iterator<Item = (SlotId, SlotState, &[DeviceShare])> {
        let slots = slots_of(self.models.iter());
        slots.map(|(model, number, record)| {
            let (state, shares) = (record.slot.state(), record.shares.as_slice());
            (slot_id(model, number), state, shares)
        })
    }

    /// Returns each model with demand that is not ready, why, and its demand, as of the latest call.
    pub fn waiting_reasons(&self) -> impl Iterator<Item = (&ModelId, ColdReason, &ModelDemand)> {
        let places = self.models.waiting_places().iter();
        let models = places.map(|place| self.models.at(*place));
        models.filter_map(|(id, model)| Some((id, model.cold_reason?, &model.demand)))
    }

    /// Returns the moment of the next try of a model that has failed.
    pub fn retry_at(&self, model: &ModelId) -> Option<Millis> {
        self.models.get(model)?.backoff.state().until()
    }

    fn with_model(&mut self, model: &ModelId, change: impl FnOnce(&mut ModelRecord)) {
        if let Some(record) = self.models.get_mut(model) {
            change(record);
        }
    }

    /// Lets the identity of a known device be a copy of its own, by which it is found faster.
    fn share_text(&self, id: &mut DeviceId) {
        let mut known = self.devices.iter().flatten();
        if let Some(device) = known.find(|device| device.id == *id) {
            id.clone_from(&device.id);
        }
    }

    /// Slots with a property that no cold one has. Names of others are not built, which costs more than to look at it.
    fn slots_where(
        &self,
        has: impl Fn(&SlotRecord) -> bool,
    ) -> impl Iterator<Item = (SlotId, &SlotRecord)> {
        let slots = slots_of(self.models.active());
        let chosen = slots.filter(move |(.., slot)| has(slot));
        chosen.map(|(model, number, slot)| (slot_id(model, number), slot))
    }

    fn slot(&self, id: &SlotId) -> Option<&SlotRecord> {
        self.models.slot(id)
    }

    fn slot_mut(&mut self, id: &SlotId) -> Option<&mut SlotRecord> {
        self.models
            .get_mut(&id.model)?
            .slots
            .get_mut(usize::from(id.number))
    }

    /// Sleep only where the model can, and nothing needs what it would keep.
    fn stop_method(&self, slot: &SlotId, method: StopMethod) -> StopMethod {
        let record = self.models.get(&slot.model);
        let can_sleep = record.is_some_and(|record| record.config.asleep_mib.is_some());
        match can_sleep && !self.slot(slot).is_some_and(|record| record.has_to_end) {
            true => method,
            false => StopMethod::Terminate,
        }
    }

    /// Changes the state of a slot and turns what follows into actions.
    fn apply(
        &mut self,
        id: &SlotId,
        event: SlotEvent,
        at: PoolMoment,
    ) -> Result<(), ForbiddenTransition> {
        // Looked for once: the names of many models are long to compare.
        let Some(place) = self.models.place(&id.model) else {
            return Ok(());
        };
        let model = self.models.at_mut(place);
        let Some(record) = model.slots.get_mut(usize::from(id.number)) else {
            return Ok(());
        };
        let from = record.slot.state();
        let effects = record.slot.apply(event, at.now)?;
        let to = record.slot.state();
        match event {
            SlotEvent::LeaseHeld => {
                record.is_requested = false;
                record.planned.clear();
            }
            SlotEvent::Abort => record.is_requested = false,
            SlotEvent::LeaseRefused => {
                model.is_refused = true;
                record.is_requested = false;
                record.shares = match to {
                    SlotState::Asleep => std::mem::take(&mut record.planned),
                    _ => Vec::new(),
                };
                // No release follows, which does so elsewhere.
                if to == SlotState::Cold {
                    record.forget_life();
                }
            }
            _ => {}
        }
        let life = record.slot.life();
        if event == SlotEvent::Started {
            model.backoff.record_start(at.now);
        }
        if (from == SlotState::Cold) != (to == SlotState::Cold) {
            self.models.note_slot(place);
        }
        if to != from {
            self.report_of(id, life, PoolReport::Transition { from, to });
        }
        for effect in effects {
            self.perform((place, id), effect, at);
        }
        Ok(())
    }

    fn perform(&mut self, (place, id): (usize, &SlotId), effect: SlotEffect, at: PoolMoment) {
        let model = self.models.at_mut(place);
        let asleep_mib = model.asleep_mib().unwrap_or(0);
        let Some(record) = model.slots.get_mut(usize::from(id.number)) else {
            return;
        };
        let (slot, life) = (id.clone(), record.slot.life());
        let action = match effect {
            SlotEffect::Acquire(_) => return,
            SlotEffect::Start => Action::Start {
                slot,
                life,
                shares: record.shares.clone(),
            },
            SlotEffect::Open => Action::Open(slot),
            SlotEffect::Close => Action::Close {
                slot,
                reason: match record.slot.state() {
                    SlotState::Draining(reason) => Some(reason),
                    _ => None,
                },
                challenger: record.challenger.clone(),
            },
            SlotEffect::Sleep => Action::Sleep(slot),
            SlotEffect::Wake => Action::Wake(slot),
            SlotEffect::Stop => Action::Stop(slot),
            SlotEffect::Kill => Action::Kill(slot),
            SlotEffect::AwaitMemory => Action::AwaitMemory(slot),
            SlotEffect::Release => {
                record.forget_life();
                if std::mem::take(&mut record.shares).is_empty() {
                    return;
                }
                Action::Release(slot)
            }
            SlotEffect::ShrinkLease => match Self::shrink(record, asleep_mib) {
                Some(shares) => Action::Shrink { slot, shares },
                None => return,
            },
            SlotEffect::RecordLoad { kind, took } => {
                model.record_load(kind, took);
                model.pay_replacement(id.number);
                return self.report_of(id, life, PoolReport::Load { kind, took });
            }
            SlotEffect::RecordFailure { failure, ready_for } => {
                let PoolMoment { now, random } = at;
                model
                    .backoff
                    .record_failure(failure, ready_for, random, now);
                model.forgive_replacements();
                return self.report_of(id, life, PoolReport::Failure(failure));
            }
            SlotEffect::RecordService { ready_for } => {
                return model.backoff.record_service(ready_for);
            }
            SlotEffect::ReportSetup(status) => {
                return self.report_of(id, life, PoolReport::Setup(status));
            }
            SlotEffect::Alarm => {
                self.give_up_memory(id);
                return self.report_of(id, life, PoolReport::Alarm);
            }
        };
        self.actions.push(action);
    }

    /// Lets whatever waits for the memory of a slot look for room elsewhere: it will not come.
    fn give_up_memory(&mut self, id: &SlotId) {
        let Some(record) = self.slot_mut(id) else {
            return;
        };
        let claim = record.claim.take();
        record.leave_challenger();
        if let Some(claim) = claim.and_then(|claim| self.claims.get_mut(&claim)) {
            claim.give_up_room();
        }
    }

    /// Shares of a slot that falls asleep; none where its leases are of that size already.
    fn shrink(record: &mut SlotRecord, asleep_mib: u64) -> Option<Vec<DeviceShare>> {
        record.planned.clear();
        record.leave_challenger();
        let shares = record.asleep_shares(asleep_mib);
        if record.shares == shares {
            return None;
        }
        record.shares.clone_from(&shares);
        Some(shares)
    }

    fn report(&mut self, slot: &SlotId, report: PoolReport) {
        let life = self.slot(slot).map_or(0, |record| record.slot.life());
        self.report_of(slot, life, report);
    }

    fn report_of(&mut self, slot: &SlotId, life: u64, report: PoolReport) {
        let slot = slot.clone();
        self.actions.push(Action::Report { slot, life, report });
    }

    fn finish(&mut self, at: PoolMoment) -> Vec<Action> {
        self.settle(at);
        std::mem::take(&mut self.actions)
    }
}

impl ModelRecord {
    /// Keeps the time of a load. The first one of a model reads from the storage, later ones mostly from memory.
    fn record_load(&mut self, kind: LoadKind, took: Millis) {
        self.backoff.record_ready();
        match kind {
            LoadKind::Wake => self.load_times.record_wake(took),
            LoadKind::Start => {
                let cache = match self.load_times.loads().next() {
                    None => FileCache::Cold,
                    Some(_) => FileCache::Warm,
                };
                self.load_times.record_load(took, cache);
            }
        }
    }
}

/// Takes over new settings. Another revision forgets failures and load times: they were of other settings.
fn reconfigure(record: &mut ModelRecord, model: PoolModel, life: u64, now: Millis) {
    if record.config.revision != model.revision {
        record.backoff.reset();
        record.measured_asleep_mib = None;
    }
    if record.config.stored != model.stored {
        record.load_times = super::load_time::LoadTimes::new(model.stored);
    }
    record.preloads |= model.is_preloaded && !record.config.is_preloaded;
    record.config = model;
    record.is_removed = false;
    record.add_slots(life, now);
    for slot in &mut record.slots {
        slot.slot.set_limits(record.config.limits);
    }
}

/// Slots of models, each with its model and its number.
fn slots_of<'a>(
    models: impl Iterator<Item = (&'a ModelId, &'a ModelRecord)>,
) -> impl Iterator<Item = (&'a ModelId, usize, &'a SlotRecord)> {
    models.flat_map(|(model, record)| {
        let slots = record.slots.iter().enumerate();
        slots.map(move |(number, slot)| (model, number, slot))
    })
}

fn slot_id(model: &ModelId, number: usize) -> SlotId {
    SlotId {
        model: model.clone(),
        number: u16::try_from(number).unwrap_or(u16::MAX),
    }
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
