//! Looks at devices, demand and draining slots, and the time of the next one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use infergate_core::model::slot_url;
use infergate_core::vram::{
    ChallengerName, DeviceId, Lease, LeaseGroup, PoolDevice, SlotEvent, SlotId, SlotState,
    WaitingChallenger,
};
use infergate_core::{Millis, ModelId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Driver;
use crate::gpu::HostReading;
use crate::telemetry::host_time;
use crate::upstream::ColdPlace;

/// Needs at the front of the order that a request's trace names.
const FRONT_NAMED_MAX: usize = 8;
/// Look at demand and timers while nothing happens.
const TICK: Duration = Duration::from_millis(250);
/// The same while requests of a draining slot end.
const DRAIN_TICK: Duration = Duration::from_millis(10);
/// Time for which a pinned model may be without room before that is said: memory of others may be on its way back.
const PIN_PATIENCE: Millis = Millis::from_secs(5);

impl Driver {
    pub(super) fn take_reading(&mut self, readings: &mut watch::Receiver<Arc<HostReading>>) {
        let reading = Arc::clone(&readings.borrow_and_update());
        let was_empty = self.reading.devices.is_empty();
        // Before what follows of it: who was used meanwhile decides who leaves.
        self.look_at_demand();
        self.reading = reading;
        let groups = self.reading.leases.iter().map(|lease| &lease.group);
        self.unreleased.take_reading(groups);
        self.release_again();
        if was_empty && !self.reading.devices.is_empty() {
            // A model of unknown size takes the largest device.
            self.configure();
        }
        self.set_devices();
        self.empty_closed_devices();
        self.look_at_memory();
        self.look_at_sleepers();
        self.look_at_peaks();
        self.look_at_over_leases();
    }

    /// Sees whether the devices answer: their thread may hang, so that no reading comes.
    pub(super) fn look_at_age(&mut self) {
        let now = host_time();
        let stale = self.reading.devices.iter().filter(|it| it.is_stale(now));
        let stale = stale.count();
        if std::mem::replace(&mut self.stale_devices, stale) != stale {
            match stale {
                0 => tracing::info!("the devices answer again"),
                _ => tracing::warn!(
                    devices = stale,
                    "no figures of devices for 5 s: no memory is leased there; ready models serve on"
                ),
            }
            self.set_devices();
        }
    }

    pub(super) fn set_devices(&mut self) {
        let now = host_time();
        if self.reading.devices.is_empty() && self.reading.problem.is_some() {
            // Nothing was read yet: no word that a device is gone.
            return;
        }
        let host = self.parts.ledger.host();
        let own: Vec<&LeaseGroup> = self
            .slots
            .values()
            .filter_map(|it| it.group.as_ref())
            .collect();
        let devices = self.reading.devices.iter().map(|device| {
            let leases = self.reading.leases.iter();
            let leases = leases.filter(|lease| lease.device == device.view.info.id);
            // Also what was granted, and has not been heard of; and what is given back, and is in a reading from before.
            let is_own = |lease: &&Lease| {
                host.is_own(&lease.holder)
                    || own.iter().any(|it| it.id == lease.group)
                    || self.unreleased.is_leaving(&lease.group)
            };
            let own_mib = leases.filter(is_own).map(|it| it.mib).sum();
            let own = PoolDevice::of(&device.view, &device.account_at(now), own_mib);
            PoolDevice {
                is_open: own.is_open && self.standing.with(|it| it.closure(&own.id)).is_none(),
                ..own
            }
        });
        let devices = devices.collect();
        self.look_at_recording();
        self.take_claims();
        let actions = self.pool.set_devices(devices, self.moment());
        self.perform(actions);
    }

    /// Memory in use on a device, by the newest sample.
    pub(super) fn used_mib(&self, device: &DeviceId) -> Option<u64> {
        let mut devices = self.reading.devices.iter();
        let device = devices.find(|it| it.view.info.id == *device)?;
        device.view.sample.as_ref()?.used_mib
    }

    /// Notes the use of the devices of a slot before its process ends. The first note counts.
    pub(super) fn mark_end(&mut self, slot: &SlotId) {
        let Some(run) = self.slots.get(slot) else {
            return;
        };
        let used: Vec<Option<u64>> = run
            .shares
            .iter()
            .map(|it| self.used_mib(&it.device))
            .collect();
        if let Some(run) = self.slots.get_mut(slot) {
            for (trail, used) in run.trails.iter_mut().zip(used) {
                trail.before_end_mib = trail.before_end_mib.or(used);
            }
        }
    }

    /// Tells the pool of memory that has returned: no process of the slot's keeper has any there. Where the driver lists no
    /// processes, the use of the devices is compared; else the time to wait passes.
    pub(super) fn look_at_memory(&mut self) {
        let awaited = self.slots.iter().filter(|(_, run)| run.is_awaited);
        let returned = awaited.filter(|(_, run)| {
            let keeper = run.started.as_ref().and_then(|it| it.keeper);
            run.shares.iter().enumerate().all(|(nth, share)| {
                let mut devices = self.reading.devices.iter();
                let device = devices.find(|it| it.view.info.id == share.device);
                let sample = device.and_then(|device| device.view.sample.as_ref());
                let processes = sample.and_then(|sample| sample.processes.as_ref());
                let is_keepers = |pid: Option<u32>| pid.is_some() && pid == keeper.map(|it| it.pid);
                match processes {
                    Some(it) => !it.iter().any(|own| is_keepers(own.holder_pid)),
                    None => run.trails.get(nth).is_some_and(|trail| {
                        trail.has_returned(share.mib, sample.and_then(|it| it.used_mib))
                    }),
                }
            })
        });
        let returned: Vec<(SlotId, u64)> = returned
            .map(|(slot, run)| (slot.clone(), run.life))
            .collect();
        for (slot, life) in returned {
            if let Some(run) = self.slots.get_mut(&slot) {
                run.is_awaited = false;
            }
            let moment = self.moment();
            let actions = self
                .pool
                .slot_event(&slot, life, SlotEvent::MemoryReturned, moment);
            self.perform(actions);
        }
    }

    pub(super) fn look_at_demand(&mut self) {
        let now = self.parts.shared.clock.now();
        let moment = self.moment();
        let models = self.models.iter();
        let shared = self.parts.shared.snapshot.load();
        let (mut lines, is_written) = (Vec::new(), self.recorder.is_written());
        let demands = models.map(|(id, model)| {
            let elsewhere = match shared.models.were_shared() {
                true => {
                    let slots = (0..model.spec.replicas.max).map(|number| slot_url(id, number));
                    let permits = slots.map(|url| shared.models.permits_elsewhere(id, &url));
                    permits.sum()
                }
                false => 0,
            };
            let (demand, line) = self.demand.read((model, elsewhere), is_written, now);
            lines.extend(line.map(|line| (id.clone(), line)));
            (id, demand)
        });
        let demands: Vec<_> = demands.collect();
        let demands = demands.iter().map(|(id, demand)| (*id, demand));
        let actions = self.pool.update_demand(demands, moment);
        self.perform(actions);
        self.models.keys().for_each(|id| self.set_readiness(id));
        let reasons = self.pool.waiting_reasons();
        let reasons: BTreeMap<&ModelId, &'static str> = reasons
            .map(|(model, reason, _)| (model, reason.name()))
            .collect();
        let mut places = match reasons.is_empty() {
            true => BTreeMap::new(),
            false => cold_places(self.pool.waiting_challengers(now)),
        };
        for (id, model) in &self.models {
            let place = places.remove(id);
            model.gate.set_cold_reason(reasons.get(id).copied(), place);
        }
        self.record_demand(&lines);
    }

    /// Looks whether requests of draining slots have ended.
    /// Says once for each time without room that a pinned model cannot be loaded.
    pub(super) fn look_at_pins(&mut self) {
        let now = self.parts.shared.clock.now();
        let unplaced = self.pool.unplaced_pins(now);
        let unplaced = unplaced.filter(|(_, since)| *since >= PIN_PATIENCE);
        let unplaced: BTreeSet<ModelId> = unplaced.map(|(model, _)| model.clone()).collect();
        for model in unplaced.difference(&self.unplaced_pins) {
            tracing::warn!(
                %model,
                "a pinned model has no room: models pinned as urgently, or programs outside, have the memory; unpin one of \
                 them, or give the model a smaller `priority`"
            );
        }
        self.unplaced_pins = unplaced;
    }

    pub(super) fn look_at_drains(&mut self) {
        let draining: Vec<SlotId> = self.draining().collect();
        for slot in draining {
            if self.requests_at(&slot) == 0
                && let Some((_, life)) = self.pool.slot_state(&slot)
            {
                let event = SlotEvent::InFlightZero(self.stop_method(&slot));
                let moment = self.moment();
                let actions = self.pool.slot_event(&slot, life, event, moment);
                self.perform(actions);
            }
        }
        if !self.retired.is_empty() {
            self.forget_retired();
        }
    }

    fn draining(&self) -> impl Iterator<Item = SlotId> {
        let states = self.pool.slot_states();
        let draining = states.filter(|(_, state, _)| matches!(state, SlotState::Draining(_)));
        draining.map(|(slot, ..)| slot)
    }

    pub(super) fn next_due(&self) -> Instant {
        let pause = match self.draining().next() {
            Some(_) => DRAIN_TICK,
            None => TICK,
        };
        let now = self.parts.shared.clock.now();
        let timer = self.pool.next_deadline(now);
        let timer = timer.map(|at| Duration::from_millis(at.since(now).0.max(1)));
        Instant::now() + timer.map_or(pause, |timer| timer.min(pause))
    }
}

/// Returns the place of each model among all that wait.
fn cold_places(order: Vec<WaitingChallenger>) -> BTreeMap<ModelId, ColdPlace> {
    let front = order.iter().take(FRONT_NAMED_MAX);
    let front: Arc<[ChallengerName]> = front.map(|it| it.name.clone()).collect();
    let places = order.into_iter().enumerate();
    let places = places.filter_map(|(ahead, challenger)| {
        let ChallengerName::Model(model) = challenger.name else {
            return None;
        };
        let place = ColdPlace {
            front: Arc::clone(&front),
            ahead,
            debt_per_load_sec: challenger.debt_per_load_sec,
        };
        Some((model, place))
    });
    places.collect()
}
