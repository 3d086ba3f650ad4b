//! Memory that processes are seen to use: peaks of loads for the next estimate, and use above a lease.
//!
//! The arithmetic is the core's. The memory of slots belongs to the pool and the ledger, not to this file.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::model::{ModelSpec, OverLease};
use infergate_core::vram::estimate::measured_need;
use infergate_core::vram::{
    DeviceShare, PeakMeter, PeakOwner, PoolCommand, SlotId, SlotState, exceeds_lease,
};

use super::{Driver, Message};
use crate::app::gpu::leases;
use crate::app::gpu::slot_run::{LoadMeter, SlotRun};
use crate::gpu::MeasuredSettings;

/// Time from ready on in which the memory of a load still rises: first requests allocate what they need.
const MEASURE_AFTER_READY: Millis = Millis::from_secs(30);

/// Leases of a slot that its use has outgrown.
struct OutgrownLease {
    slot: SlotId,
    /// Shares with the margin of a measurement, and with none.
    wanted: [Vec<DeviceShare>; 2],
}

impl Driver {
    /// Begins to measure a load before its process is there.
    pub(super) fn begin_measuring(&mut self, slot: &SlotId) {
        let reading = Arc::clone(&self.reading);
        let model = self.models.get(&slot.model);
        let (Some(model), Some(run)) = (model, self.slots.get_mut(slot)) else {
            return;
        };
        run.ready_at = None;
        run.is_over_lease = false;
        run.meter = run.group.as_ref().map(|group| {
            let owner = PeakOwner {
                group: &group.id,
                holder_pid: None,
            };
            LoadMeter {
                peak: PeakMeter::start(&run.shares, owner, &reading.leases, &reading.views()),
                spec: Arc::clone(&model.spec),
            }
        });
    }

    /// Looks at the memory of loads, and keeps the peak of each that is good.
    pub(super) fn look_at_peaks(&mut self) {
        let (reading, now) = (Arc::clone(&self.reading), self.parts.shared.clock.now());
        if self.slots.values().all(|run| run.meter.is_none()) {
            return;
        }
        let views = reading.views();
        let mut measured = Vec::new();
        for (slot, run) in &mut self.slots {
            let state = self.pool.slot_state(slot).map(|(state, _)| state);
            let is_there = state.is_some_and(|state| {
                matches!(state, SlotState::Ready | SlotState::Draining(_))
                    || state.is_becoming_ready()
            });
            let (Some(meter), Some(group)) = (&mut run.meter, &run.group) else {
                continue;
            };
            if !is_there {
                run.meter = None;
                continue;
            }
            let keeper = run.started.as_ref().and_then(|started| started.keeper);
            let owner = PeakOwner {
                group: &group.id,
                holder_pid: keeper.map(|keeper| keeper.pid),
            };
            meter.peak.observe(owner, &reading.leases, &views);
            let is_over = |ready: Millis| now.since(ready) >= MEASURE_AFTER_READY;
            if run.ready_at.is_some_and(is_over) {
                let (peaks, spec) = (meter.peak.peaks_mib(), Arc::clone(&meter.spec));
                run.meter = None;
                measured.extend(peaks.map(|peaks| (slot.clone(), spec, peaks)));
            }
        }
        for (slot, spec, peaks) in measured {
            // The peak is of files that are not there any more.
            if !self.has_update(&slot) {
                self.keep_peak(&slot, spec, &peaks);
            }
        }
    }

    /// Keeps what a process of these settings was seen to use on its devices for the estimates from now on.
    fn keep_peak(&mut self, slot: &SlotId, spec: Arc<ModelSpec>, peaks_mib: &[u64]) {
        let Some(run) = self.slots.get(slot) else {
            return;
        };
        let device = run
            .shares
            .first()
            .and_then(|it| self.reading.view_of(&it.device));
        let Some(device) = device.map(|view| Arc::clone(&view.info.name)) else {
            return;
        };
        // An estimate is for one device: each further one has a context of its own.
        let further = (peaks_mib.len() as u64).saturating_sub(1);
        let peak_mib: u64 = peaks_mib.iter().sum();
        let peak_mib = peak_mib.saturating_sub(further * self.parts.gpu.context_mib);
        tracing::info!(%slot, peak_mib, "the memory of a load was measured");
        let store = Arc::clone(&self.parts.measured);
        let (driver, sender) = (self.reading.driver.clone(), self.sender.clone());
        self.tasks.spawn_blocking(move || {
            if let Some(settings) = MeasuredSettings::of(&spec, &device, driver.as_deref()) {
                let kept = store.record(&settings.key(&spec), settings, peak_mib);
                if let Err(error) = kept {
                    tracing::warn!(%error, "measured memory is forgotten at a restart: gpu/measured.json in the state directory cannot be written");
                }
            }
            let _ = sender.blocking_send(Message::Measured);
        });
    }

    /// Looks for processes that use more than they have leased, and grows their leases where there is room.
    pub(super) fn look_at_over_leases(&mut self) {
        let outgrown = self
            .slots
            .iter()
            .filter_map(|(slot, run)| self.outgrown(slot, run));
        for outgrown in outgrown.collect::<Vec<_>>() {
            let OutgrownLease { slot, wanted } = outgrown;
            let Some(run) = self.slots.get_mut(&slot) else {
                continue;
            };
            let Some(group) = run.group.clone() else {
                continue;
            };
            run.is_growing = true;
            let life = run.life;
            let (ledger, reading) = (Arc::clone(&self.parts.ledger), Arc::clone(&self.reading));
            let sender = self.sender.clone();
            self.changes.add(&mut self.tasks, move || {
                let mut result = Err("nothing was tried".to_owned());
                for shares in wanted {
                    let resized = leases::resize(&ledger, &reading, &group, &shares);
                    result = resized.map(|()| shares).map_err(|it| it.to_string());
                    if result.is_ok() {
                        break;
                    }
                }
                let _ = sender.blocking_send(Message::Outgrown { slot, life, result });
            });
        }
    }

    /// The leases of a slot that serves, where a process uses clearly more of a device than it has leased.
    fn outgrown(&self, slot: &SlotId, run: &SlotRun) -> Option<OutgrownLease> {
        let keeper = run.started.as_ref()?.keeper?;
        let (state, life) = self.pool.slot_state(slot)?;
        let serves = matches!(state, SlotState::Ready | SlotState::Draining(_));
        if run.is_growing || !serves || life != run.life {
            return None;
        }
        let used = |share: &DeviceShare| {
            let used = self.reading.view_of(&share.device)?.use_of(keeper.pid)?;
            exceeds_lease(used, share.mib).then_some(used)
        };
        run.shares.iter().find_map(used)?;
        let shares = |need: fn(u64) -> u64| {
            let grown = |share: &DeviceShare| DeviceShare {
                device: share.device.clone(),
                mib: used(share).map_or(share.mib, need),
            };
            run.shares.iter().map(grown).collect()
        };
        Some(OutgrownLease {
            slot: slot.clone(),
            wanted: [shares(measured_need), shares(|used| used)],
        })
    }

    /// Takes the answer of the ledger about leases that were outgrown.
    pub(super) fn take_outgrown(
        &mut self,
        slot: &SlotId,
        life: u64,
        result: Result<Vec<DeviceShare>, String>,
    ) {
        let Some(run) = self.slots.get_mut(slot) else {
            return;
        };
        run.is_growing = false;
        if run.life != life {
            return;
        }
        let reason = match result {
            Ok(shares) => {
                let mib: Vec<u64> = shares.iter().map(|share| share.mib).collect();
                tracing::warn!(%slot, ?mib, "a process uses more than it had leased: its lease has grown");
                run.is_over_lease = false;
                run.shares.clone_from(&shares);
                let moment = self.moment();
                let actions = self.pool.set_shares(slot, shares, moment);
                return self.perform(actions);
            }
            Err(reason) => reason,
        };
        if std::mem::replace(&mut run.is_over_lease, true) {
            return;
        }
        let model = self.models.get(&slot.model);
        let restarts = model.is_some_and(|it| it.spec.vram.over_lease == OverLease::Restart);
        tracing::warn!(%slot, reason, restarts, "a process uses more than it has leased, and there is no room for a larger lease: its device takes no new load; raise vram.mib");
        if restarts {
            let order = PoolCommand::RestartSlot(slot.clone());
            let moment = self.moment();
            let actions = self.pool.command(order, moment);
            self.perform(actions);
        }
    }
}
