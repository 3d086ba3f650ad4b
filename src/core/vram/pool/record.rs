//! Records of the pool: a model, its slots, and what each of them has and waits for.
//!
//! Not the decisions about them.

use std::borrow::Cow;

use super::action::{LoadReason, ReadyOutlook, RejectReason};
use super::cold_reason::ColdReason;
use super::config::{ModelDemand, PoolModel};
use crate::Millis;
use crate::vram::backoff::LoadBackoff;
use crate::vram::device::DeviceId;
use crate::vram::evict::WaitReason;
use crate::vram::fit::{DeviceShare, PlacementRequest};
use crate::vram::lease::ClaimId;
use crate::vram::load_time::LoadTimes;
use crate::vram::slot::{LoadKind, Slot, SlotId, SlotState, StopPhase};

/// A slot and its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRecord {
    pub slot: Slot,
    /// Settings that its process was started with.
    pub revision: u64,
    /// Shares that are leased, or asked for.
    pub shares: Vec<DeviceShare>,
    /// Shares that are kept free for it while victims end; for a wake, what it has not yet.
    pub planned: Vec<DeviceShare>,
    /// Shares of the awake process.
    pub full: Vec<DeviceShare>,
    /// The ledger has been asked for `shares`.
    pub is_requested: bool,
    /// Slot that its memory is meant for.
    pub challenger: Option<SlotId>,
    /// Claim of another holder that its memory is meant for.
    pub claim: Option<ClaimId>,
    /// The challenger needs also what the process would keep while it sleeps.
    pub has_to_end: bool,
    /// Order to replace the process, although its settings are those of now.
    pub must_restart: bool,
    /// Order to end the process, which came while it was about to be woken.
    pub must_unload: bool,
    /// Loaded in place of an outdated slot that has not drained yet.
    pub is_surplus: bool,
    pub reason: LoadReason,
}

impl SlotRecord {
    pub fn new(slot: Slot) -> SlotRecord {
        SlotRecord {
            slot,
            revision: 0,
            shares: Vec::new(),
            planned: Vec::new(),
            full: Vec::new(),
            is_requested: false,
            challenger: None,
            claim: None,
            has_to_end: false,
            must_restart: false,
            must_unload: false,
            is_surplus: false,
            reason: LoadReason::Demand,
        }
    }

    /// Makes room for nothing any more.
    pub fn leave_challenger(&mut self) {
        (self.challenger, self.claim, self.has_to_end) = (None, None, false);
    }

    /// Returns whether leases are still to be asked for.
    pub fn is_pending(&self) -> bool {
        matches!(self.slot.state(), SlotState::Acquiring(_)) && !self.is_requested
    }

    /// Returns whether the load counts against the limit of loads.
    pub fn is_loading(&self) -> bool {
        self.slot.state().is_becoming_ready() && !self.is_pending()
    }

    /// Returns whether a process is there, will be, or its memory is.
    pub fn is_occupied(&self) -> bool {
        self.slot.state().is_becoming_ready() || self.slot.state().holds_lease()
    }

    /// Returns whether nothing is leased, asked for or kept free.
    pub fn has_no_shares(&self) -> bool {
        self.shares.is_empty() && self.planned.is_empty()
    }

    /// Shares that are leased, asked for or kept free, one for each device.
    pub fn share_of_each(&self) -> impl Iterator<Item = &DeviceShare> {
        let planned = self.planned.iter();
        let others = planned.filter(|share| !self.has_lease_on(&share.device));
        self.shares.iter().chain(others)
    }

    /// Returns whether memory of a device is leased, or asked for.
    pub fn has_lease_on(&self, device: &DeviceId) -> bool {
        self.shares.iter().any(|share| share.device == *device)
    }

    /// Returns whether it has no process that comes or goes, and nothing is due for it but by its demand.
    pub fn rests(&self) -> bool {
        let is_still = matches!(
            self.slot.state(),
            SlotState::Cold | SlotState::Ready | SlotState::Asleep
        );
        let is_marked = self.must_restart || self.must_unload || self.is_surplus;
        is_still && !self.makes_room() && !is_marked
    }

    /// Returns whether its memory is meant for another.
    pub fn makes_room(&self) -> bool {
        self.challenger.is_some() || self.claim.is_some()
    }

    /// Memory that is free once the slot has made room: a process that can sleep keeps a rest.
    pub fn frees(&self, asleep_mib: Option<u64>) -> Cow<'_, [DeviceShare]> {
        let may_sleep = match self.slot.state() {
            SlotState::Ready | SlotState::Stopping(StopPhase::Sleeping) => true,
            SlotState::Draining(reason) => reason.may_sleep(),
            _ => false,
        };
        match asleep_mib.filter(|_| may_sleep && !self.has_to_end) {
            Some(mib) => Cow::Owned(less(&self.shares, &self.asleep_shares(mib))),
            None => Cow::Borrowed(&self.shares),
        }
    }

    /// Shares of the process while it sleeps.
    pub fn asleep_shares(&self, asleep_mib: u64) -> Vec<DeviceShare> {
        let rest = |share: &DeviceShare| DeviceShare {
            device: share.device.clone(),
            mib: share.mib.min(asleep_mib),
        };
        self.full.iter().map(rest).collect()
    }

    /// Shares that a wake needs beside those of the sleeping process.
    pub fn growth(&self) -> Vec<DeviceShare> {
        less(&self.full, &self.shares)
    }
}

/// Devices that a search for room takes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceScope {
    /// Every device, whatever its state.
    Every,
    /// Devices that take loads, once those that run have ended.
    Open,
    /// Devices on which a load may begin now: none runs, none is awaited, and none of these is reserved.
    Loadable,
}

/// Returns each of `shares` without what `kept` has on its device.
pub(super) fn less(shares: &[DeviceShare], kept: &[DeviceShare]) -> Vec<DeviceShare> {
    let rest = |share: &DeviceShare| DeviceShare {
        device: share.device.clone(),
        mib: share.mib.saturating_sub(on(kept, &share.device)),
    };
    shares.iter().map(rest).collect()
}

/// Returns the memory of `shares` on a device.
pub(super) fn on(shares: &[DeviceShare], device: &DeviceId) -> u64 {
    let there = shares.iter().filter(|share| share.device == *device);
    there.map(|share| share.mib).sum()
}

/// A model, its slots, and what was learnt about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelRecord {
    pub config: PoolModel,
    /// Slot `n` is the place `{model}#{n}`.
    pub slots: Vec<SlotRecord>,
    pub backoff: LoadBackoff,
    pub load_times: LoadTimes,
    /// Memory of the device that a model of unknown need takes whole, MiB; `None` before there are devices.
    pub whole_mib: Option<u64>,
    /// Measured rest of a sleeping instance on each device, MiB.
    pub measured_asleep_mib: Option<u64>,
    pub demand: ModelDemand,
    /// Pinned by an operator, beside the configuration.
    pub is_pinned_by_command: bool,
    /// Preload that has not begun.
    pub preloads: bool,
    /// Load that a command asks for and that has not begun.
    pub is_requested: bool,
    /// Moment since which it is pinned and finds no room.
    pub unplaced_since: Option<Millis>,
    /// Loads that are due for slots that were restarted.
    pub replacements: u16,
    /// The latest of these found no room, not even by eviction.
    pub has_no_room: bool,
    /// Moment since which one slot fewer would have sufficed.
    pub superfluous_since: Option<Millis>,
    /// The ledger granted nothing: the next samples say more.
    pub is_refused: bool,
    /// The configuration has the model no more: it ends once its slots are cold.
    pub is_removed: bool,
    /// A slot is not cold: of a model without one no decision looks at the slots.
    pub is_active: bool,
    /// Reason of the rule's latest decision for not loading it.
    pub wait_reason: Option<WaitReason>,
    /// Reason for operators why it is not ready.
    pub cold_reason: Option<ColdReason>,
    /// Outlook that admission has.
    pub announced: Option<Result<ReadyOutlook, RejectReason>>,
}

impl ModelRecord {
    pub fn new(config: PoolModel, life: u64, now: Millis) -> ModelRecord {
        let mut record = ModelRecord {
            slots: Vec::new(),
            backoff: LoadBackoff::default(),
            load_times: LoadTimes::new(config.stored),
            whole_mib: None,
            measured_asleep_mib: None,
            demand: ModelDemand::NONE,
            is_pinned_by_command: false,
            preloads: config.is_preloaded,
            is_requested: false,
            unplaced_since: None,
            replacements: 0,
            has_no_room: false,
            superfluous_since: None,
            is_refused: false,
            is_removed: false,
            is_active: false,
            wait_reason: None,
            cold_reason: None,
            announced: None,
            config,
        };
        record.add_slots(life, now);
        record
    }

    pub fn add_slots(&mut self, life: u64, now: Millis) {
        while self.slots.len() < usize::from(self.config.replicas_max) {
            let slot = Slot::new(self.config.limits, life, now);
            self.slots.push(SlotRecord::new(slot));
        }
    }

    pub fn is_pinned(&self) -> bool {
        (self.config.is_pinned || self.is_pinned_by_command) && !self.is_removed
    }

    /// Instances that are to be loaded without a request.
    pub fn kept(&self) -> usize {
        let pinned = u16::from(self.is_pinned());
        let replicas = self
            .config
            .replicas_min
            .max(pinned)
            .min(self.config.replicas_max);
        if self.is_removed {
            0
        } else {
            usize::from(replicas)
        }
    }

    /// Returns whether a load without a request is due, or will be once nothing stands against it.
    pub fn has_duty(&self) -> bool {
        let is_ordered = self.is_requested || self.preloads || self.replacements > 0;
        is_ordered || self.is_pinned() || self.kept() > 0 || self.backoff.is_broken()
    }

    /// Slots that have or get a process that does not sleep.
    pub fn occupied(&self) -> usize {
        let is_awake =
            |record: &&SlotRecord| record.is_occupied() && record.slot.state() != SlotState::Asleep;
        self.slots.iter().filter(is_awake).count()
    }

    /// Returns whether a load may begin now.
    pub fn permits_load(&self, now: Millis) -> bool {
        !self.is_removed && !self.is_refused && self.backoff.state().permits_load(now)
    }

    /// Returns whether a slot serves, or is on its way to.
    pub fn has_service(&self) -> bool {
        let serves = |record: &SlotRecord| {
            let state = record.slot.state();
            state == SlotState::Ready || state.is_becoming_ready()
        };
        self.is_active && self.slots.iter().any(serves)
    }

    /// Place of the first cold slot that the configuration still has.
    pub fn cold_slot(&self) -> Option<usize> {
        if !self.is_active {
            return (self.config.replicas_max > 0 && !self.slots.is_empty()).then_some(0);
        }
        let slots = self
            .slots
            .iter()
            .take(usize::from(self.config.replicas_max));
        slots
            .map(|record| record.slot.state())
            .position(|state| state == SlotState::Cold)
    }

    /// Place of the first sleeping slot.
    pub fn asleep_slot(&self) -> Option<usize> {
        if !self.is_active {
            return None;
        }
        let mut states = self.slots.iter().map(|record| record.slot.state());
        states.position(|state| state == SlotState::Asleep)
    }

    /// Need of an instance, raised after loads that ran out of memory. A whole device has no more to give.
    pub fn need(&self) -> PlacementRequest {
        let whole_mib = self.whole_mib.filter(|_| self.config.is_exclusive);
        PlacementRequest {
            mib: whole_mib.unwrap_or_else(|| self.backoff.raise(self.config.need.mib)),
            ..self.config.need
        }
    }

    /// Memory that a sleeping instance keeps on each device, MiB: measured, else assumed.
    pub fn asleep_mib(&self) -> Option<u64> {
        let assumed = self.config.asleep_mib?;
        Some(self.measured_asleep_mib.unwrap_or(assumed))
    }

    pub fn priority(&self) -> u8 {
        self.demand.priority.unwrap_or(self.config.priority)
    }

    pub fn expected_load(&self) -> Millis {
        self.load_times.expected(LoadKind::Start)
    }
}
