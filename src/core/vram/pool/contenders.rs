//! Contenders of one decision: the pool's models that wait, its residents and rooms as the rule takes them.
//!
//! Not the decision, and not what follows from it. A device that loads, is reserved or closed is not among the rooms.
//! Others on a device that a slot leaves are no victims: a choice made once its memory is back knows more.

use std::borrow::Cow;

use super::action::LoadReason;
use super::record::{DeviceScope, ModelRecord, SlotRecord};
use super::{ModelPool, PoolDevice, slot_id};
use crate::vram::contender::{ColdModel, Protection, Resident};
use crate::vram::device::DeviceId;
use crate::vram::evict::WaitReason;
use crate::vram::fit::{DeviceRoom, DeviceShare};
use crate::vram::lease::ClaimId;
use crate::vram::schedule::{SwapDecision, SwapRule, SwapStep};
use crate::vram::slot::{LoadKind, SlotId, SlotState};
use crate::{Millis, ModelId};

/// Debt of a model with a request that has just come, request-seconds: it waits as well.
const DEBT_MIN: f64 = 0.001;
/// Time from ready on in which first waiters protect a model: one that is ready and gives no permit is no reason to wait.
const FIRST_WAITERS_MAX: Millis = Millis::from_secs(30);

/// Need that waits for a choice of the rule.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitingChallenger {
    /// Model, or claim of another holder.
    pub name: ChallengerName,
    /// Debt for each second of its load, request-seconds: the greatest one is first, but by the policy `lru`.
    pub debt_per_load_sec: f64,
}

/// Name of a need that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengerName {
    /// Model of this pool.
    Model(ModelId),
    /// Claim of a command or of another gateway.
    Claim(ClaimId),
}

/// Models, residents and rooms of one moment.
#[derive(Default)]
pub(super) struct Contenders<'a> {
    pub cold: Vec<ColdModel>,
    pub residents: Vec<Resident<'a>>,
    pub rooms: Vec<DeviceRoom>,
    pub names: ContenderNames,
}

/// Places in the pool of the contenders, in their order.
#[derive(Default)]
pub(super) struct ContenderNames {
    pub cold: Vec<Contender>,
    /// Slots: the place of the model and the number.
    pub residents: Vec<(usize, usize)>,
}

/// Owner of the need of a contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    /// The place of a model, with the way to load it.
    Model(usize, LoadKind),
    /// A claim of another holder.
    Claim(ClaimId),
}

/// Devices on which memory will come back.
struct LeavingDevices<'a> {
    devices: &'a [PoolDevice],
    /// Devices among them, at their places: identities are long, and each decision compares them often.
    leaves: Vec<bool>,
    /// Others, which are lost.
    lost: Vec<&'a DeviceId>,
}

impl<'a> LeavingDevices<'a> {
    fn of(pool: &'a ModelPool) -> LeavingDevices<'a> {
        let mut leaving = LeavingDevices {
            devices: pool.devices.as_deref().unwrap_or_default(),
            leaves: Vec::new(),
            lost: Vec::new(),
        };
        let slots = pool.models.restless().flat_map(|(_, model)| &model.slots);
        let leave = slots.filter(|record| record.protection() == Some(Protection::Leaving));
        for share in leave.flat_map(|record| &record.shares) {
            leaving.leaves.resize(leaving.devices.len(), false);
            match leaving.place(share) {
                Some(place) => leaving.leaves[place] = true,
                None => leaving.lost.push(&share.device),
            }
        }
        leaving
    }

    fn place(&self, share: &DeviceShare) -> Option<usize> {
        let ids = self.devices.iter().map(|device| &device.id);
        share.device.place_in(ids)
    }

    /// Returns whether a slot has memory of one of them, or has some kept free there.
    fn has_slot(&self, record: &SlotRecord) -> bool {
        if self.leaves.is_empty() && self.lost.is_empty() {
            return false;
        }
        let mut shares = record.shares.iter().chain(&record.planned);
        shares.any(|share| match self.place(share) {
            Some(place) => self.leaves.get(place) == Some(&true),
            None => self.lost.contains(&&share.device),
        })
    }
}

impl ModelPool {
    /// Returns what waits for a choice of the rule, in the rule's order. A model that was chosen is not among them.
    pub fn waiting_challengers(&self, now: Millis) -> Vec<WaitingChallenger> {
        let mut contenders = Contenders::default();
        self.add_cold(&mut contenders, None, now);
        let Contenders { cold, names, .. } = contenders;
        let order = self.config.rule.order(&cold).into_iter();
        let named = order.map(|nth| WaitingChallenger {
            name: match &names.cold[nth] {
                Contender::Model(place, _) => {
                    ChallengerName::Model(self.models.at(*place).0.clone())
                }
                Contender::Claim(id) => ChallengerName::Claim(id.clone()),
            },
            debt_per_load_sec: cold[nth].debt_per_load() * 1000.0,
        });
        named.collect()
    }

    /// Returns the contenders: models with waiters that nothing serves, or `only` one that is loaded for a reason.
    pub(super) fn contenders(
        &self,
        only: Option<(&ModelId, LoadReason)>,
        now: Millis,
    ) -> Contenders<'_> {
        let mut contenders = Contenders::default();
        let pin = only.filter(|(_, reason)| *reason == LoadReason::Pin);
        let pin = pin.and_then(|(model, _)| self.models.get(model));
        self.add_cold(&mut contenders, only.map(|(model, _)| model), now);
        // Without one that waits nothing is decided.
        if !contenders.cold.is_empty() {
            contenders.rooms = self.rooms(None, DeviceScope::Loadable);
            self.add_residents(&mut contenders, pin.map(|it| it.config.priority), now);
        }
        contenders
    }

    fn add_cold(&self, contenders: &mut Contenders<'_>, only: Option<&ModelId>, now: Millis) {
        let only = only.map(|only| self.models.place(only));
        let places = match &only {
            Some(only) => only.as_slice(),
            None => self.models.waiting_places(),
        };
        contenders.cold.reserve(places.len());
        contenders.names.cold.reserve(places.len());
        for &place in places {
            let (_, model) = self.models.at(place);
            let is_asked = only.is_some() || (model.waits() && !model.backoff.is_broken());
            if is_asked && let Some(kind) = model.way_to_load(now) {
                contenders.cold.push(model.contender(kind, now));
                contenders.names.cold.push(Contender::Model(place, kind));
            }
        }
        if only.is_none() {
            for (id, claim) in &self.claims {
                if let Some(cold) = claim.contender(now) {
                    contenders.cold.push(cold);
                    contenders.names.cold.push(Contender::Claim(id.clone()));
                }
            }
        }
    }

    /// Adds the slots with memory. Slots pinned less urgently than a `pin` that has none are as any other.
    fn add_residents<'a>(&'a self, contenders: &mut Contenders<'a>, pin: Option<u8>, now: Millis) {
        let leaving = LeavingDevices::of(self);
        let places = self.models.active_places();
        contenders.residents.reserve(places.len());
        contenders.names.residents.reserve(places.len());
        for &place in places {
            let (_, model) = self.models.at(place);
            let yields = pin.is_some_and(|priority| priority < model.config.priority);
            let mut kept = match model.is_pinned() && !yields {
                true => model.kept(),
                false => 0,
            };
            for (number, record) in model.slots.iter().enumerate() {
                if !record.shares.is_empty() {
                    let is_pinned = kept > 0;
                    // Further slots of a pinned model are as any other once the pinned ones are ready.
                    kept -= usize::from(is_pinned && record.slot.state() == SlotState::Ready);
                    let leaves = leaving.has_slot(record).then_some(Protection::Leaving);
                    contenders
                        .residents
                        .push(model.resident(record, (is_pinned, leaves), now));
                    contenders.names.residents.push((place, number));
                }
            }
        }
    }

    /// Name of a slot at its places.
    pub(super) fn slot_name(&self, (place, number): (usize, usize)) -> SlotId {
        slot_id(self.models.at(place).0, number)
    }

    /// Decides by a rule. Returns whether victims have to end where they would sleep otherwise.
    ///
    /// Memory that sleeping processes would keep is taken only for a model that has no other way.
    pub(super) fn decide<'a>(
        &'a self,
        rule: &SwapRule,
        contenders: &mut Contenders<'a>,
        now: Millis,
    ) -> (SwapDecision, bool) {
        let next = |contenders: &Contenders<'_>| {
            let Contenders {
                cold,
                residents,
                rooms,
                ..
            } = contenders;
            rule.next_step(cold, residents, rooms, now)
        };
        let decision = next(contenders);
        let is_blocked = |reason: &WaitReason| *reason == WaitReason::Protected;
        let blocked = || decision.waiting.iter().filter(|(_, it)| is_blocked(it));
        if decision.step != SwapStep::Wait || blocked().next().is_none() {
            return (decision, false);
        }
        let mut keeps_memory = false;
        let names = contenders.names.residents.iter();
        for (resident, (place, number)) in contenders.residents.iter_mut().zip(names) {
            let record = &self.models.at(*place).1.slots[*number];
            if *record.shares != *resident.shares {
                resident.shares = Cow::Borrowed(&record.shares);
                keeps_memory = true;
            }
        }
        if !keeps_memory {
            return (decision, false);
        }
        let mut is_other = vec![true; contenders.cold.len()];
        for (nth, _) in blocked() {
            is_other[*nth] = false;
        }
        for (cold, is_other) in contenders.cold.iter_mut().zip(is_other) {
            if is_other {
                cold.debt = 0.0;
            }
        }
        let ended = next(contenders);
        match ended.step {
            SwapStep::Swap { .. } => {
                let step = ended.step;
                (SwapDecision { step, ..decision }, true)
            }
            SwapStep::Load { .. } | SwapStep::Wait => (decision, false),
        }
    }
}

impl ModelRecord {
    /// Returns whether requests wait, and no slot serves or will.
    pub fn waits(&self) -> bool {
        self.demand.waiters > 0 && !self.has_service()
    }

    /// Way to load the model; `None` where no load may begin.
    pub(super) fn way_to_load(&self, now: Millis) -> Option<LoadKind> {
        if !self.permits_load(now) {
            return None;
        }
        let asleep = self.asleep_slot().map(|_| LoadKind::Wake);
        asleep.or_else(|| self.cold_slot().map(|_| LoadKind::Start))
    }

    /// The model as one that waits for a load of a kind.
    fn contender(&self, kind: LoadKind, now: Millis) -> ColdModel {
        let asleep = self.asleep_slot().filter(|_| kind == LoadKind::Wake);
        ColdModel {
            placement: self.need(),
            growth: asleep.map_or_else(Vec::new, |number| self.slots[number].growth()),
            load: self.load_times.expected(kind),
            priority: self.priority(),
            spares_urgent: false,
            debt: self.demand.debt.max(DEBT_MIN),
            unserved_since: self.demand.unserved_since.unwrap_or(now),
        }
    }

    /// A slot with memory, as one that may leave; `beside`: what protects it for the sake of another slot.
    fn resident<'a>(
        &self,
        record: &'a SlotRecord,
        (is_pinned, beside): (bool, Option<Protection>),
        now: Millis,
    ) -> Resident<'a> {
        let (demand, state) = (&self.demand, record.slot.state());
        let waits = demand.waiters > 0;
        let ready_since = record.slot.ready_since().unwrap_or(Millis::ZERO);
        let is_new = now.since(ready_since) < FIRST_WAITERS_MAX;
        let protection = match record.protection() {
            _ if is_pinned => Some(Protection::Pinned),
            None if state == SlotState::Asleep && waits => Some(Protection::Asleep),
            None if state == SlotState::Ready && is_new && demand.first_waiters > 0 => {
                Some(Protection::FirstWaiters)
            }
            protection => protection,
        };
        let sleeps = state == SlotState::Ready && self.config.asleep_mib.is_some();
        let again = if sleeps {
            LoadKind::Wake
        } else {
            LoadKind::Start
        };
        Resident {
            shares: record.frees(self.asleep_mib()),
            load: self.load_times.expected(again),
            priority: self.priority(),
            arrivals_per_sec: demand.arrivals_per_sec,
            is_busy: state == SlotState::Ready && (demand.in_flight > 0 || waits),
            ready_since,
            last_used: demand.last_used.max(ready_since),
            protection: protection.or(beside),
        }
    }
}

impl SlotRecord {
    /// Reason by its state why the slot is no victim.
    fn protection(&self) -> Option<Protection> {
        match self.slot.state() {
            SlotState::Acquiring(_) | SlotState::Loading(_) => Some(Protection::Loading),
            SlotState::Ready | SlotState::Asleep | SlotState::Cold => None,
            SlotState::Draining(_)
            | SlotState::Stopping(_)
            | SlotState::Reclaiming
            | SlotState::Stuck
            | SlotState::Failed(_) => Some(Protection::Leaving),
        }
    }
}
