//! Loads that the pool begins: pinned and preloaded models in order, then what the rule chooses, as limits allow.
//!
//! Not the rule. A load without room waits in `acquiring` for its victims, and the memory that they free is its own.

use std::cmp::Reverse;

use super::action::{Action, LoadReason, PoolReport};
use super::contenders::{Contender, ContenderNames};
use super::record::{DeviceScope, SlotRecord};
use super::{ModelPool, PoolMoment};
use crate::vram::fit::{DeviceShare, Placement, place};
use crate::vram::lease::ClaimId;
use crate::vram::schedule::{SwapReason, SwapRule, SwapStep};
use crate::vram::slot::{DrainReason, LoadKind, SlotEvent, SlotId, SlotState};
use crate::{Millis, ModelId};

/// Result of the attempt to begin a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadStart {
    /// Leases are sought.
    Seeking,
    /// As many loads run as may, although there is room.
    LimitReached,
    /// No room, not even by eviction.
    NoRoom,
}

impl ModelPool {
    /// Asks for the leases of each slot that waits for room, once there is room; gives up where none will come.
    pub(super) fn acquire_pending(&mut self, at: PoolMoment) {
        let pending = self.restless_where(SlotRecord::is_pending);
        let pending: Vec<SlotId> = pending.map(|(id, _)| id).collect();
        for id in pending {
            self.acquire(&id, at);
        }
    }

    fn acquire(&mut self, id: &SlotId, at: PoolMoment) {
        self.keep_uses();
        if let Some(shares) = self.shares_for(id, DeviceScope::Loadable) {
            self.request(id, shares);
            return;
        }
        let awaits_victims = self.victims_of(id).next().is_some();
        if !awaits_victims && self.shares_for(id, DeviceScope::Open).is_none() {
            let _ = self.apply(id, SlotEvent::Abort, at);
        }
    }

    /// Shares that a pending slot can lease now.
    fn shares_for(&self, id: &SlotId, scope: DeviceScope) -> Option<Vec<DeviceShare>> {
        let (model, record) = (self.models.get(&id.model)?, self.slot(id)?);
        let rooms = self.rooms(Some(id), scope);
        match record.slot.state() {
            SlotState::Acquiring(LoadKind::Wake) => {
                let has_room = |share: &DeviceShare| {
                    let room = rooms.iter().find(|room| room.id == share.device);
                    room.is_some_and(|room| room.free_mib >= share.mib)
                };
                record
                    .growth()
                    .iter()
                    .all(has_room)
                    .then(|| record.full.clone())
            }
            _ => match place(&model.need(), &rooms) {
                Placement::Fits(shares) => Some(shares),
                _ => None,
            },
        }
    }

    fn request(&mut self, id: &SlotId, shares: Vec<DeviceShare>) {
        let Some(model) = self.models.get_mut(&id.model) else {
            return;
        };
        let priority = model.priority();
        let Some(record) = model.slots.get_mut(usize::from(id.number)) else {
            return;
        };
        // A wake that is refused goes on with what the sleeping process has.
        record.planned = std::mem::replace(&mut record.shares, shares.clone());
        if record.slot.state() == SlotState::Acquiring(LoadKind::Start) {
            record.planned.clear();
            record.full.clone_from(&shares);
        }
        record.is_requested = true;
        let (slot, life, reason) = (id.clone(), record.slot.life(), record.reason);
        self.actions.push(Action::Acquire {
            slot,
            life,
            shares,
            priority,
            reason,
        });
    }

    /// Begins loads that need no request: pinned models, ordered ones, preloads, replicas, tries of broken models.
    ///
    /// Returns whether slots may restart that waited for room.
    pub(super) fn load_kept(&mut self, at: PoolMoment) -> bool {
        if self.is_draining {
            return false;
        }
        let mut due: Vec<(LoadReason, u8, Reverse<u64>, ModelId)> = Vec::new();
        for (id, model) in self.models.kept() {
            let is_broken = model.backoff.is_broken();
            let reason = match model.occupied() {
                _ if !model.permits_load(at.now) => continue,
                0 if model.is_pinned() => LoadReason::Pin,
                _ if model.is_requested && !model.has_service() => LoadReason::Command,
                _ if model.owes_replacement() => LoadReason::Restart,
                0 if model.preloads => LoadReason::Preload,
                occupied if occupied < model.kept() => LoadReason::Replicas,
                0 if is_broken => LoadReason::BrokenRetry,
                _ => continue,
            };
            let size = Reverse(model.config.need.mib);
            due.push((reason, model.config.priority, size, id.clone()));
        }
        due.sort_by(|a, b| (a.0 as u8, a.1, a.2, &a.3).cmp(&(b.0 as u8, b.1, b.2, &b.3)));
        let mut is_news = false;
        for (reason, _, _, model) in due {
            // What comes behind would take the room.
            let started = self.load_one(&model, reason, at);
            match reason {
                LoadReason::Restart => {
                    is_news |= self.note_room(&model, started != LoadStart::NoRoom);
                }
                LoadReason::Pin => self.note_pin(&model, started == LoadStart::NoRoom, at.now),
                _ => {}
            }
            if started == LoadStart::LimitReached {
                break;
            }
        }
        is_news
    }

    /// Notes since when a pinned model finds no room, not even by eviction.
    fn note_pin(&mut self, id: &ModelId, has_no_room: bool, now: Millis) {
        self.with_model(id, |model| {
            model.unplaced_since = match has_no_room {
                true => Some(model.unplaced_since.unwrap_or(now)),
                false => None,
            };
        });
    }

    /// Takes orders and preloads for done whose load is under way; a load that was ordered is not given up.
    pub(super) fn note_loads(&mut self) {
        self.models.look_at_kept(|model| {
            let under_way = model.slots.iter_mut().filter(|record| {
                matches!(
                    record.slot.state(),
                    SlotState::Loading(_) | SlotState::Ready
                )
            });
            let mut is_under_way = false;
            for record in under_way {
                is_under_way = true;
                if model.is_requested && record.reason == LoadReason::Demand {
                    record.reason = LoadReason::Command;
                }
            }
            model.is_requested &= !is_under_way;
            model.preloads &= !is_under_way;
            model.has_duty()
        });
    }

    pub(super) fn load_one(
        &mut self,
        model: &ModelId,
        reason: LoadReason,
        at: PoolMoment,
    ) -> LoadStart {
        let mut contenders = self.contenders(Some((model, reason)), at.now);
        let Some(cold) = contenders.cold.first_mut() else {
            return LoadStart::NoRoom;
        };
        // An order counts as a wait that is long enough for everything.
        (cold.debt, cold.unserved_since) = (cold.debt.max(1.0), Millis::ZERO);
        if cold.place(&contenders.rooms).is_none() {
            let open = self.rooms(None, DeviceScope::Open);
            if cold.place(&open).is_some() {
                return LoadStart::LimitReached;
            }
            if !reason.may_evict() {
                return LoadStart::NoRoom;
            }
        }
        let rule = SwapRule {
            min_warm: self.config.rule.min_warm,
            ..SwapRule::ORDER
        };
        let (decision, has_to_end) = self.decide(&rule, &mut contenders, at.now);
        let names = contenders.names;
        match self.carry_out(&names, decision.step, (reason, has_to_end), at) {
            true => LoadStart::Seeking,
            false => LoadStart::NoRoom,
        }
    }

    /// Begins the loads that the rule chooses, one after the other. Leaves in `decided_at` the number of changes at which
    /// nothing more was chosen: without another one nothing would be at the same moment.
    ///
    /// Returns whether a claim has room from now on, which no action tells where no victim leaves.
    pub(super) fn load_chosen(&mut self, decided_at: &mut Option<u64>, at: PoolMoment) -> bool {
        let mut is_news = false;
        // Claims change without a model.
        let is_decided = *decided_at == Some(self.models.changes()) && self.claims.is_empty();
        if self.is_draining || is_decided {
            return is_news;
        }
        let rule = self.config.rule;
        // Each choice takes one off the contenders, so that there are no more than these.
        for _ in 0..=self.models.len() + self.claims.len() {
            self.keep_uses();
            let mut contenders = self.contenders(None, at.now);
            if contenders.cold.is_empty() {
                break;
            }
            let (decision, has_to_end) = self.decide(&rule, &mut contenders, at.now);
            let names = contenders.names;
            for (nth, reason) in &decision.waiting {
                if let Contender::Model(place, _) = &names.cold[*nth] {
                    self.models.note_wait(*place, *reason);
                }
            }
            if let Some(claim) = chosen_claim(&names, &decision.step) {
                is_news |= self.make_room(&claim, &names, (decision.step, has_to_end), at);
                continue;
            }
            if decision.step == SwapStep::Wait {
                *decided_at = Some(self.models.changes());
                break;
            }
            let how = (LoadReason::Demand, has_to_end);
            if !self.carry_out(&names, decision.step, how, at) {
                break;
            }
        }
        is_news
    }

    /// Carries out a step of the rule; returns whether a load began.
    fn carry_out(
        &mut self,
        names: &ContenderNames,
        step: SwapStep,
        (reason, has_to_end): (LoadReason, bool),
        at: PoolMoment,
    ) -> bool {
        let (model, shares, swap) = match step {
            SwapStep::Wait => return false,
            SwapStep::Load { model, shares } => (model, shares, None),
            SwapStep::Swap {
                model,
                victims,
                shares,
                cost,
                reason,
            } => (model, shares, Some((victims, cost, reason))),
        };
        let Contender::Model(place, kind) = names.cold[model] else {
            return false;
        };
        let debt = self.models.at(place).1.demand.debt;
        let Some(id) = self.begin(place, kind, (reason, shares), at) else {
            return false;
        };
        if let Some((victims, cost, swap_reason)) = swap {
            let victims = victims.iter();
            let victims = victims.map(|nth| self.slot_name(names.residents[*nth]));
            let victims: Vec<SlotId> = victims.collect();
            self.drain_victims(&id, &victims, has_to_end, at);
            let reason = match reason {
                LoadReason::Demand => swap_reason,
                _ => SwapReason::Order,
            };
            self.report(
                &id,
                PoolReport::Swap {
                    victims,
                    debt,
                    cost,
                    reason,
                },
            );
        }
        self.acquire(&id, at);
        true
    }

    /// Chooses a slot for a load, and keeps its shares free.
    fn begin(
        &mut self,
        place: usize,
        kind: LoadKind,
        (reason, shares): (LoadReason, Vec<DeviceShare>),
        at: PoolMoment,
    ) -> Option<SlotId> {
        let model = self.models.at_mut(place);
        let (number, event) = match kind {
            LoadKind::Start => (model.cold_slot()?, SlotEvent::Chosen),
            LoadKind::Wake => (model.asleep_slot()?, SlotEvent::WakeChosen),
        };
        let revision = model.config.revision;
        model.unplaced_since = None;
        let record = &mut model.slots[number];
        record.reason = reason;
        record.is_requested = false;
        record.leave_challenger();
        record.planned = shares;
        record.is_surplus = false;
        if kind == LoadKind::Start {
            record.revision = revision;
            record.must_restart = false;
        }
        let slot = self.slot_name((place, number));
        self.apply(&slot, event, at).ok()?;
        Some(slot)
    }

    fn drain_victims(
        &mut self,
        challenger: &SlotId,
        victims: &[SlotId],
        has_to_end: bool,
        at: PoolMoment,
    ) {
        for victim in victims {
            if let Some(record) = self.slot_mut(victim) {
                record.challenger = Some(challenger.clone());
                record.has_to_end = has_to_end;
            }
            // The rule has no victim that cannot drain.
            let _ = self.apply(victim, SlotEvent::Drain(DrainReason::Victim), at);
        }
    }
}

/// Claim that a step makes room for; none where it is a model's.
fn chosen_claim(names: &ContenderNames, step: &SwapStep) -> Option<ClaimId> {
    let (SwapStep::Load { model, .. } | SwapStep::Swap { model, .. }) = step else {
        return None;
    };
    match &names.cold[*model] {
        Contender::Claim(id) => Some(id.clone()),
        Contender::Model(..) => None,
    }
}
