//! Duties of the pool: timers, ends of backoffs, new configuration, idle models, challengers whose demand has gone.
//!
//! Not the loads, which `loads.rs` begins. A pool that has settled has nothing more to do at the same moment.

use super::action::{Action, LoadReason, ReadyOutlook, RejectReason};
use super::cold_reason::ColdReason;
use super::record::{DeviceScope, ModelRecord, SlotRecord};
use super::{ModelPool, PoolMoment, slot_id, slots_of};
use crate::model::KeepLoaded;
use crate::vram::backoff::BackoffState;
use crate::vram::device::DeviceId;
use crate::vram::evict::WaitReason;
use crate::vram::fit::{DeviceRoom, Placement, PlacementRequest, place};
use crate::vram::load_time::ReadyEstimate;
use crate::vram::slot::{DrainReason, LoadKind, LoadPhase, SlotEvent, SlotId, SlotState};
use crate::{Millis, ModelId};

/// Rounds in which one step may make another due; more than the steps of one model's way.
const ROUNDS_MAX: usize = 16;

impl ModelPool {
    /// Does all that is due.
    pub(super) fn settle(&mut self, at: PoolMoment) {
        // Number of changes at which the rule has chosen nothing more.
        let mut decided_at = None;
        for _ in 0..ROUNDS_MAX {
            let before = self.actions.len();
            self.models.note_rest();
            // Before a wake is taken for the load that a later order asks for.
            self.end_unloaded(at);
            self.note_loads();
            self.run_timers(at);
            self.expire_claims(at.now);
            self.end_backoffs(at);
            self.apply_configuration(at);
            if !self.is_held {
                self.drain_idle(at);
                self.drain_superfluous(at);
            }
            self.cancel_challengers(at);
            self.cancel_drains(at);
            self.abort_unwanted(at);
            self.acquire_pending(at);
            let mut is_news = false;
            if !self.is_held {
                is_news = self.load_kept(at) | self.load_chosen(&mut decided_at, at);
                self.load_further(at);
            }
            if self.actions.len() == before && !is_news {
                break;
            }
        }
        self.forget_removed();
        self.note_reasons(at.now);
        self.announce(at.now);
    }

    /// Returns the moment at which something is due without an event.
    pub fn next_deadline(&self, now: Millis) -> Option<Millis> {
        let mut next: Option<Millis> = None;
        let mut add = |at: Millis| {
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        };
        let claims = self.claims.values();
        claims
            .filter_map(|claim| claim.deadline())
            .for_each(&mut add);
        for (_, record) in self.models.iter() {
            record
                .backoff
                .state()
                .until()
                .into_iter()
                .for_each(&mut add);
            record.shrinks_at().into_iter().for_each(&mut add);
            for slot in &record.slots {
                slot.slot
                    .next_timer()
                    .into_iter()
                    .for_each(|(at, _)| add(at));
                if let Some(since) = slot.slot.ready_since() {
                    add(since + self.config.rule.min_warm);
                    record.unload_at(since).into_iter().for_each(&mut add);
                }
            }
        }
        next
    }

    /// Slots with a property that none has which rests.
    pub(super) fn restless_where(
        &self,
        has: impl Fn(&SlotRecord) -> bool,
    ) -> impl Iterator<Item = (SlotId, &SlotRecord)> {
        let slots = slots_of(self.models.restless());
        let chosen = slots.filter(move |(.., slot)| has(slot));
        chosen.map(|(model, number, slot)| (slot_id(model, number), slot))
    }

    /// Applies an event to each slot of a list; one that has no row for it any more stays as it is.
    fn apply_all(&mut self, slots: Vec<SlotId>, event: SlotEvent, at: PoolMoment) {
        for slot in slots {
            let _ = self.apply(&slot, event, at);
        }
    }

    fn run_timers(&mut self, at: PoolMoment) {
        let is_due = |record: &SlotRecord| {
            let timer = record.slot.next_timer();
            timer.is_some_and(|(due, _)| due <= at.now)
        };
        let timers = self.restless_where(is_due);
        let timers = timers.filter_map(|(id, record)| Some((id, record.slot.next_timer()?.1)));
        for (id, event) in timers.collect::<Vec<_>>() {
            let _ = self.apply(&id, event, at);
        }
    }

    fn end_backoffs(&mut self, at: PoolMoment) {
        let mut over = Vec::new();
        for (id, model) in self.models.restless() {
            let states = model.slots.iter().map(|record| record.slot.state());
            let failed = states
                .enumerate()
                .filter(|(_, state)| matches!(state, SlotState::Failed(_)));
            if model.is_removed || model.backoff.state().permits_load(at.now) {
                over.extend(failed.map(|(number, _)| slot_id(id, number)));
            }
        }
        self.apply_all(over, SlotEvent::Retry, at);
    }

    /// Drains a slot that serves, or ends its load; returns whether that changed its state.
    pub(super) fn stop(&mut self, id: &SlotId, reason: DrainReason, at: PoolMoment) -> bool {
        let state = self.slot(id).map(|record| record.slot.state());
        let event = match state {
            Some(SlotState::Draining(before)) if before >= reason => return false,
            // The answer of the ledger comes first: a refused wake goes on sleeping.
            Some(SlotState::Acquiring(LoadKind::Wake))
                if self.slot(id).is_some_and(|record| record.is_requested) =>
            {
                return false;
            }
            Some(SlotState::Acquiring(_) | SlotState::Loading(_)) => SlotEvent::Abort,
            _ => SlotEvent::Drain(reason),
        };
        self.apply(id, event, at).is_ok()
    }

    /// Unloads a model. A slot that is about to wake ends once it is known whether it does.
    pub(super) fn unload(&mut self, model: &ModelId, reason: DrainReason, at: PoolMoment) {
        let slots = self
            .models
            .get(model)
            .map_or(0, |record| record.slots.len());
        for number in 0..slots {
            self.unload_slot(&slot_id(model, number), reason, at);
        }
    }

    /// Ends the service of each slot that has memory of a device and is in a state that `leaves`.
    pub(super) fn drain_device(
        &mut self,
        device: &DeviceId,
        leaves: impl Fn(SlotState) -> bool,
        at: PoolMoment,
    ) {
        let there = self.slots_where(|record| {
            let mut shares = record.share_of_each();
            leaves(record.slot.state()) && shares.any(|share| share.device == *device)
        });
        let there: Vec<SlotId> = there.map(|(id, _)| id).collect();
        for id in there {
            self.unload_slot(&id, DrainReason::Operator, at);
        }
    }

    fn unload_slot(&mut self, id: &SlotId, reason: DrainReason, at: PoolMoment) {
        if let Some(record) = self.slot_mut(id) {
            record.must_unload |= record.slot.state() == SlotState::Acquiring(LoadKind::Wake);
        }
        self.stop(id, reason, at);
    }

    /// Ends slots that were about to wake when their model was unloaded.
    fn end_unloaded(&mut self, at: PoolMoment) {
        let marked = self.restless_where(|record| record.must_unload);
        let marked: Vec<SlotId> = marked.map(|(id, _)| id).collect();
        for id in marked {
            self.stop(&id, DrainReason::Operator, at);
        }
    }

    /// Drains models that were idle for long; while the node drains, all without waiters, pinned ones last.
    fn drain_idle(&mut self, at: PoolMoment) {
        let others_left = self.is_draining
            && self.models.active().any(|(_, model)| {
                let mut slots = model.slots.iter();
                !model.is_pinned() && slots.any(|slot| slot.is_occupied())
            });
        let mut idle = Vec::new();
        for (id, model) in self.models.active() {
            for (number, record) in model.slots.iter().enumerate() {
                let state = record.slot.state();
                let reason = match record.slot.ready_since() {
                    _ if self.is_draining => {
                        let ends = model.demand.waiters == 0 && !(model.is_pinned() && others_left);
                        ends.then_some(DrainReason::NodeDrain)
                    }
                    Some(since) if state == SlotState::Ready => {
                        let due = model.unload_at(since).is_some_and(|due| due <= at.now);
                        due.then_some(DrainReason::KeepAliveOver)
                    }
                    _ => None,
                };
                idle.extend(reason.map(|reason| (slot_id(id, number), reason)));
            }
        }
        for (id, reason) in idle {
            self.stop(&id, reason, at);
        }
    }

    /// Gives up loads that wait for victims, once nothing waits for them and before a victim has begun to stop.
    fn cancel_challengers(&mut self, at: PoolMoment) {
        let mut canceled = Vec::new();
        for (id, record) in self.restless_where(SlotRecord::is_pending) {
            let Some(model) = self.models.get(&id.model) else {
                continue;
            };
            let is_wanted = match record.reason {
                LoadReason::Demand => model.demand.waiters > 0 || model.is_requested,
                LoadReason::Growth => model.demand.waiters > 0,
                LoadReason::Pin => model.is_pinned(),
                _ => true,
            };
            let has_stopped = self
                .victims_of(&id)
                .any(|state| !matches!(state, SlotState::Ready | SlotState::Draining(_)));
            if self.is_draining || (!is_wanted && !has_stopped) {
                canceled.push(id);
            }
        }
        self.apply_all(canceled, SlotEvent::Abort, at);
    }

    /// States of the slots that make room for another.
    pub(super) fn victims_of(&self, challenger: &SlotId) -> impl Iterator<Item = SlotState> {
        self.restless_where(move |record| record.challenger.as_ref() == Some(challenger))
            .map(|(_, record)| record.slot.state())
    }

    /// Lets victims serve on whose challenger does not wait for them any more.
    fn cancel_drains(&mut self, at: PoolMoment) {
        let mut spared = Vec::new();
        let has_left = |record: &SlotRecord| record.challenger.is_some() || record.claim.is_some();
        for (id, record) in self.restless_where(has_left) {
            let waits = match (&record.challenger, &record.claim) {
                (Some(challenger), _) => self.slot(challenger).is_some_and(|it| it.is_pending()),
                (None, Some(claim)) => self.keeps_room(claim),
                (None, None) => false,
            };
            if !waits {
                spared.push(id);
            }
        }
        for id in spared {
            if let Some(record) = self.slot_mut(&id) {
                record.leave_challenger();
            }
            let _ = self.apply(&id, SlotEvent::DrainCanceled, at);
        }
    }

    /// Ends a load that nothing waits for, in its first half, while another model waits for its room.
    fn abort_unwanted(&mut self, at: PoolMoment) {
        let mut unwanted = Vec::new();
        let is_load = |record: &SlotRecord| matches!(record.slot.state(), SlotState::Loading(_));
        for (id, record) in self.restless_where(is_load) {
            let Some(model) = self.models.get(&id.model) else {
                continue;
            };
            let elapsed = at.now.since(record.slot.load_since());
            let is_early = elapsed.0 < model.expected_load().0 / 2;
            let has_no_use = model.demand.waiters == 0
                && match record.reason {
                    LoadReason::Demand => model.kept() == 0,
                    LoadReason::Growth => true,
                    _ => false,
                };
            if is_early && has_no_use && self.is_in_the_way(&id, at.now) {
                unwanted.push(id);
            }
        }
        self.apply_all(unwanted, SlotEvent::Abort, at);
    }

    /// Returns whether another model has waiters and fits only without the slot.
    fn is_in_the_way(&self, id: &SlotId, now: Millis) -> bool {
        let Some(record) = self.slot(id) else {
            return false;
        };
        let rooms = self.rooms(None, DeviceScope::Open);
        let without = self.rooms_with(None, DeviceScope::Open, &record.shares);
        let contenders = self.contenders(None, now);
        let mut cold = contenders.cold.iter();
        cold.any(|model| model.place(&rooms).is_none() && model.place(&without).is_some())
    }

    /// Drops models and slots that the configuration has no more, once they hold nothing.
    fn forget_removed(&mut self) {
        if !self.may_forget {
            return;
        }
        let (mut past_life, mut has_left) = (self.past_life, false);
        self.models.retain(|model| {
            let is_cold = |record: &SlotRecord| record.slot.state() == SlotState::Cold;
            let kept = match model.is_removed && model.slots.iter().all(is_cold) {
                true => 0,
                false => usize::from(model.config.replicas_max),
            };
            while model.slots.len() > kept
                && let Some(record) = model.slots.pop_if(|record| is_cold(record))
            {
                past_life = past_life.max(record.slot.life());
            }
            has_left |= model.slots.len() > kept || (model.is_removed && !model.slots.is_empty());
            !model.slots.is_empty() || !model.is_removed
        });
        (self.past_life, self.may_forget) = (past_life, has_left);
    }

    /// Keeps the reason of each model with demand that is not ready.
    fn note_reasons(&mut self, now: Millis) {
        let is_draining = self.is_draining;
        self.models
            .note_reasons(|model| model.reason(is_draining, now));
    }

    /// Passes each change of a model's outlook on to admission.
    fn announce(&mut self, now: Millis) {
        if !self.models.has_unannounced() {
            return;
        }
        let rooms = self.rooms(None, DeviceScope::Every);
        let is_sampled = self.devices.is_some();
        let actions = &mut self.actions;
        self.models.look_at_outlooks(|id, model| {
            let need = model.need();
            let fits_in_one = rooms.iter().any(|room| need.fits_in(room.empty_mib));
            let fits = !is_sampled || fits_in_one || could_hold(&need, &rooms);
            let outlook = model.outlook(fits, now);
            if model.announced != Some(outlook) {
                model.announced = Some(outlook);
                let model = id.clone();
                actions.push(match outlook {
                    Ok(outlook) => Action::SetReadyEstimate { model, outlook },
                    Err(reason) => Action::Reject { model, reason },
                });
            }
            // Time ends a backoff. Where a need that is spread has a place depends on what is free.
            !fits_in_one || matches!(model.backoff.state(), BackoffState::Waiting(_))
        });
    }

    /// Asserts that a look at every model would find nothing that the lists miss.
    #[cfg(test)]
    pub(super) fn check_lists(&self, now: Millis) {
        self.models.check();
        self.check_uses();
        let rooms = self.rooms(None, DeviceScope::Every);
        for (id, model) in self.models.iter() {
            let fits = self.devices.is_none() || could_hold(&model.need(), &rooms);
            assert_eq!(model.announced, Some(model.outlook(fits, now)), "{id}");
            let reason = model.reason(self.is_draining, now);
            assert_eq!(model.cold_reason, reason, "{id}");
        }
    }
}

/// Returns whether the devices could hold a need if they were empty.
fn could_hold(need: &PlacementRequest, rooms: &[DeviceRoom]) -> bool {
    !matches!(place(need, rooms), Placement::DoesNotFit { .. })
}

impl ModelRecord {
    /// Moment at which an idle model is unloaded; `None` while it is in use, or kept.
    fn unload_at(&self, ready_since: Millis) -> Option<Millis> {
        let is_idle = self.demand.waiters == 0 && self.demand.in_flight == 0;
        let keep_alive = match self.demand.keep_alive {
            Some(KeepLoaded::For(time)) => Some(time),
            Some(KeepLoaded::Always) => None,
            None => self.config.keep_alive,
        };
        let keep_alive = keep_alive.filter(|_| is_idle && self.kept() == 0)?;
        Some(self.demand.last_used.max(ready_since) + keep_alive)
    }

    fn outlook(&self, fits: bool, now: Millis) -> Result<ReadyOutlook, RejectReason> {
        let mut states = self.slots.iter().map(|record| record.slot.state());
        if states.any(|state| state == SlotState::Ready) {
            return Ok(ReadyOutlook::Usable);
        }
        if self.backoff.is_broken() {
            return Err(RejectReason::Broken);
        }
        let estimate = |kind| self.load_times.ready_estimate(kind, Millis::ZERO);
        let mut slots = self.slots.iter();
        let loading = slots.find(|it| matches!(it.slot.state(), SlotState::Loading(_)));
        if let Some(loading) = loading {
            let from = loading.slot.load_since();
            let kind = match loading.slot.state() {
                SlotState::Loading(LoadPhase::Waking) => LoadKind::Wake,
                _ => LoadKind::Start,
            };
            return Ok(ReadyOutlook::At(estimate(kind).after(from)));
        }
        if !fits {
            return Err(RejectReason::DoesNotFit);
        }
        let asleep = self.asleep_slot().is_some();
        let kind = if asleep {
            LoadKind::Wake
        } else {
            LoadKind::Start
        };
        let load: ReadyEstimate = estimate(kind);
        match self.backoff.state() {
            BackoffState::Waiting(until) if until > now => Ok(ReadyOutlook::At(load.after(until))),
            _ => Ok(ReadyOutlook::AfterLoad(load)),
        }
    }

    fn reason(&self, is_draining: bool, now: Millis) -> Option<ColdReason> {
        let has = |state: fn(SlotState) -> bool| {
            let mut slots = self.slots.iter();
            self.is_active && slots.any(|record| state(record.slot.state()))
        };
        if self.demand.waiters == 0 || has(|state| state == SlotState::Ready) {
            return None;
        }
        let mut pending = self.slots.iter().filter(|record| record.is_pending());
        let reason = if has(|state| matches!(state, SlotState::Loading(_))) {
            ColdReason::Loading
        } else if self.is_active && pending.next().is_some() {
            ColdReason::AwaitsVictims
        } else if has(SlotState::is_becoming_ready) {
            ColdReason::AwaitsLease
        } else if is_draining || self.is_removed {
            ColdReason::NodeDrain
        } else if self.backoff.is_broken() {
            ColdReason::Broken
        } else if !self.backoff.state().permits_load(now) {
            ColdReason::Backoff
        } else if self.is_refused {
            ColdReason::LeaseRefused
        } else if self.asleep_slot().is_none() && self.cold_slot().is_none() {
            ColdReason::Leaving
        } else {
            // Whatever the rule is not asked about has no device.
            ColdReason::Rule(self.wait_reason.unwrap_or(WaitReason::NoDevice))
        };
        Some(reason)
    }
}
