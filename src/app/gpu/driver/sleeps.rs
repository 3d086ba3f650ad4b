//! Sleep of servers: whether the host has room for it, the rest that is measured, and leases that shrink and grow.
//!
//! The calls of a server are its instance's.

use std::sync::Arc;

use infergate_core::vram::{
    DeviceShare, LeaseGroup, SleepMemory, SlotEvent, SlotId, SlotState, StopMethod, StopPhase,
    asleep_lease,
};

use super::{Driver, Message};
use crate::app::gpu::instance::InstanceOrder;
use crate::app::gpu::leases;
use crate::app::gpu::slot_run::SlotRun;

/// Name of the host's memory under `gpu.reserve`.
const RAM: &str = "ram";
/// Bytes of a MiB.
const MIB: u64 = 1 << 20;

impl Driver {
    /// Returns the way to end the service of a slot: a sleep where memory of the host has room for its weights.
    pub(super) fn stop_method(&self, slot: &SlotId) -> StopMethod {
        let spec = self.models.get(&slot.model).map(|model| &model.spec);
        let Some(process) = spec.and_then(|spec| spec.process.as_ref()) else {
            return StopMethod::Terminate;
        };
        let is_falling = |state| state == SlotState::Stopping(StopPhase::Sleeping);
        let falls_asleep = |(state, _)| match state {
            SlotState::Draining(reason) => reason.may_sleep(),
            _ => false,
        };
        if !self.pool.slot_state(slot).is_some_and(falls_asleep) {
            return StopMethod::Terminate;
        }
        let states = self.pool.slot_states();
        let falling = states.filter(|(_, state, _)| is_falling(*state));
        let coming_mib: u64 = falling.map(|(other, ..)| self.weights_mib(&other)).sum();
        let limit_mib = process.limits.memory_mib;
        let memory = SleepMemory {
            level: process.sleep,
            weights_mib: self.weights_mib(slot),
            free_mib: self.reading.host_free_mib,
            kept_mib: self.parts.gpu.reserve_of(RAM).saturating_add(coming_mib),
            limit_mib: (limit_mib > 0).then_some(limit_mib),
        };
        let method = memory.method();
        if method == StopMethod::Terminate && process.sleep.number() > 0 {
            let SleepMemory {
                weights_mib,
                free_mib,
                kept_mib,
                ..
            } = memory;
            tracing::warn!(%slot, weights_mib, ?free_mib, kept_mib, "a server ends instead of sleeping: the host has no memory for its weights");
        }
        method
    }

    /// Weights of a slot's model: its files, else at most what it has leased.
    fn weights_mib(&self, slot: &SlotId) -> u64 {
        let model = self.models.get(&slot.model);
        let bytes = model
            .and_then(|model| self.files.stored_bytes(&model.spec.id))
            .unwrap_or(0);
        let run = self.slots.get(slot);
        let leased = run.map_or(0, |run| run.shares.iter().map(|share| share.mib).sum());
        match bytes {
            0 => leased,
            bytes => bytes.div_ceil(MIB),
        }
    }

    pub(super) fn put_to_sleep(&mut self, slot: &SlotId) {
        let reading = Arc::clone(&self.reading);
        if let Some(run) = self.slots.get_mut(slot) {
            let used = |share: &DeviceShare| reading.view_of(&share.device)?.used_mib();
            run.before_sleep = run.shares.iter().map(used).collect();
            run.slept_at = None;
        }
        self.send(slot, InstanceOrder::Sleep);
    }

    /// Notes that a server says that it sleeps. The next sample shows what it keeps.
    pub(super) fn note_sleep(&mut self, slot: &SlotId) {
        let now = self.parts.ledger.host().now();
        self.slots.entry(slot.clone()).or_default().slept_at = Some(now);
        self.parts.monitor.look();
    }

    /// Tells the pool of servers that sleep, with the rest that a later sample shows.
    pub(super) fn look_at_sleepers(&mut self) {
        let measured = self.slots.iter().filter_map(|(slot, run)| {
            let rest_mib = self.rest_of(run)?;
            Some((slot.clone(), run.life, rest_mib))
        });
        for (slot, life, rest_mib) in measured.collect::<Vec<_>>() {
            if let Some(run) = self.slots.get_mut(&slot) {
                run.slept_at = None;
            }
            let is_awaited =
                |(state, own)| own == life && state == SlotState::Stopping(StopPhase::Sleeping);
            if !self.pool.slot_state(&slot).is_some_and(is_awaited) {
                continue;
            }
            tracing::info!(%slot, rest_mib, "a model sleeps");
            self.pool.record_rest(&slot, rest_mib);
            let moment = self.moment();
            let actions = self.pool.slot_event(&slot, life, SlotEvent::Slept, moment);
            self.perform(actions);
        }
    }

    /// Largest rest among the devices of a server that says it sleeps; none before a sample that is later than that.
    fn rest_of(&self, run: &SlotRun) -> Option<u64> {
        let (slept_at, keeper) = (run.slept_at?, run.started.as_ref()?.keeper?);
        let before = run
            .before_sleep
            .iter()
            .copied()
            .chain(std::iter::repeat(None));
        let rests = run.shares.iter().zip(before).map(|(share, before)| {
            let view = self.reading.view_of(&share.device)?;
            let is_later = view.sample.as_ref()?.taken_at > slept_at;
            let rest = asleep_lease(view, keeper.pid, share.mib, before);
            // A lease of which nothing tells what is used stays as it is.
            is_later.then(|| rest.unwrap_or(share.mib))
        });
        let rests: Option<Vec<u64>> = rests.collect();
        rests?.into_iter().max()
    }

    pub(super) fn has_group(&self, slot: &SlotId, group: &LeaseGroup) -> bool {
        let own = self.slots.get(slot).and_then(|run| run.group.as_ref());
        own == Some(group)
    }

    /// Reduces the leases of a slot.
    pub(super) fn shrink(&mut self, slot: &SlotId, shares: Vec<DeviceShare>) {
        let Some(run) = self.slots.get_mut(slot) else {
            return;
        };
        run.shares.clone_from(&shares);
        let Some(group) = run.group.clone() else {
            return;
        };
        let (ledger, reading) = (Arc::clone(&self.parts.ledger), Arc::clone(&self.reading));
        let slot = slot.to_string();
        self.changes.add(&mut self.tasks, move || {
            if let Err(reason) = leases::resize(&ledger, &reading, &group, &shares) {
                tracing::warn!(
                    slot,
                    %reason,
                    "the leases of a model that sleeps stay as they were"
                );
            }
        });
    }

    /// Grows the leases of a slot that wakes; the answer comes as a message.
    pub(super) fn grow(
        &mut self,
        slot: SlotId,
        life: u64,
        group: LeaseGroup,
        shares: Vec<DeviceShare>,
    ) {
        let run = self.slots.entry(slot.clone()).or_default();
        run.grown = Some(shares.clone());
        let (ledger, reading) = (Arc::clone(&self.parts.ledger), Arc::clone(&self.reading));
        let sender = self.sender.clone();
        self.changes.add(&mut self.tasks, move || {
            let result = leases::resize(&ledger, &reading, &group, &shares);
            let result = result.map(|()| group);
            let _ = sender.blocking_send(Message::Leased { slot, life, result });
        });
    }
}
