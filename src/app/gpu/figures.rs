//! Figures of the GPU host for metrics: what the pool reports, counted, and a reading of the devices as levels.
//!
//! Decides nothing.

use std::collections::BTreeMap;

use infergate_core::Millis;
use infergate_core::vram::{
    DeviceId, FreeMemory, HolderKind, HostTime, InstanceFailure, LoadKind, PoolReport, SlotId,
    SlotState,
};

use crate::gpu::{HostReading, ReadDevice};
use crate::telemetry::gpu_metrics::{GpuDeviceLevels, GpuLevels, GpuMetrics, GpuModelMetrics};

/// Figures from report to report.
#[derive(Debug, Default)]
pub(super) struct HostFigures {
    /// Moments at which loads were chosen that have no memory yet.
    chosen: BTreeMap<SlotId, Millis>,
    /// Swaps by the slot that others make room for.
    swaps: BTreeMap<SlotId, SwapTimes>,
}

/// Swap that has not ended.
#[derive(Debug, Default)]
struct SwapTimes {
    victims: Vec<SlotId>,
    /// Moment at which the first victim began to stop.
    since: Option<Millis>,
    devices: Vec<String>,
}

impl HostFigures {
    /// Counts a report of a slot, which has shares on these devices.
    pub fn record(
        &mut self,
        (slot, report): (&SlotId, &PoolReport),
        devices: Vec<String>,
        metrics: &GpuMetrics,
        now: Millis,
    ) {
        let Some(model) = metrics.model(&slot.model) else {
            return;
        };
        match report {
            PoolReport::Transition { from, to } => {
                self.record_transition(slot, (*from, *to), devices, &model, now);
            }
            PoolReport::Swap { victims, .. } => {
                let swap = SwapTimes {
                    victims: victims.clone(),
                    ..SwapTimes::default()
                };
                self.swaps.insert(slot.clone(), swap);
            }
            PoolReport::Setup(status) => {
                model.record_load(status.name());
                if let Some(swap) = self.swaps.remove(slot)
                    && let Some(since) = swap.since
                {
                    for device in &swap.devices {
                        metrics.record_swap_lost(device, now.since(since).0);
                    }
                }
            }
            PoolReport::Failure(InstanceFailure::Crash) => model.record_crash(),
            PoolReport::Load {
                kind: LoadKind::Start,
                took,
            } => model.record_load_time(took.0),
            PoolReport::Load { .. }
            | PoolReport::RoomForClaim(_)
            | PoolReport::Failure(_)
            | PoolReport::Alarm
            | PoolReport::Ignored(_) => {}
        }
    }

    fn record_transition(
        &mut self,
        slot: &SlotId,
        (from, to): (SlotState, SlotState),
        devices: Vec<String>,
        model: &GpuModelMetrics,
        now: Millis,
    ) {
        match to {
            SlotState::Acquiring(_) => {
                self.chosen.insert(slot.clone(), now);
            }
            SlotState::Loading(_) => {
                if let Some(chosen) = self.chosen.remove(slot) {
                    model.record_swap_wait(now.since(chosen).0);
                }
                if let Some(swap) = self.swaps.get_mut(slot) {
                    swap.devices = devices;
                }
            }
            SlotState::Stopping(_) => {
                if let SlotState::Draining(reason) = from {
                    model.record_eviction(reason.name());
                }
                let mut swaps = self.swaps.values_mut();
                if let Some(swap) = swaps.find(|swap| swap.victims.contains(slot)) {
                    swap.since.get_or_insert(now);
                }
            }
            SlotState::Cold | SlotState::Asleep => {
                // A load that was given up before it had memory.
                self.chosen.remove(slot);
                self.swaps.remove(slot);
            }
            _ => {}
        }
    }
}

/// Index and name of a device, as metrics have it.
pub(super) fn device_label(reading: &HostReading, device: &DeviceId) -> Option<String> {
    let mut devices = reading.devices.iter();
    let found = devices.find(|it| it.view.info.id == *device)?;
    Some(label(found))
}

fn label(device: &ReadDevice) -> String {
    format!("{} {}", device.view.info.index, device.view.info.name)
}

/// Levels of devices, leases and claims; models are the caller's.
pub(super) fn host_levels(reading: &HostReading, now: HostTime) -> GpuLevels {
    let count = |kinds: &mut dyn Iterator<Item = HolderKind>| {
        let mut counts = [("slot", 0), ("job", 0)];
        for kind in kinds {
            counts[kind as usize].1 += 1;
        }
        counts
    };
    GpuLevels {
        devices: reading.devices.iter().map(|it| levels(it, now)).collect(),
        models: BTreeMap::new(),
        leases: count(&mut reading.leases.iter().map(|lease| lease.holder.kind)),
        claims: count(&mut reading.claims.iter().map(|claim| claim.holder.kind)),
    }
}

fn levels(device: &ReadDevice, now: HostTime) -> GpuDeviceLevels {
    let (view, account) = (&device.view, device.account_at(now));
    let sample = view.sample.as_ref();
    let age = sample.map(|sample| now.since(sample.taken_at));
    let mut memory_mib = vec![
        ("total", view.info.total_mib),
        ("reserve", view.reserve_mib),
        ("leased", account.leased_mib),
    ];
    memory_mib.extend(sample.and_then(|it| it.used_mib).map(|mib| ("used", mib)));
    if let FreeMemory::Known(free) = account.free {
        memory_mib.extend([("outside", account.outside_mib), ("free", free)]);
    }
    GpuDeviceLevels {
        device: label(device),
        memory_mib,
        over_lease_mib: account.over_lease_mib,
        sample_age_secs: age.map(|age| age.0 as f64 / 1e3),
        utilization: sample
            .and_then(|it| it.utilization_percent)
            .map(|percent| f64::from(percent) / 100.0),
        is_up: sample.is_some() && !device.is_stale(now),
    }
}

#[cfg(test)]
mod tests {
    use infergate_core::vram::{DrainReason, LoadPhase, SetupStatus, StopPhase, SwapReason};

    use super::*;
    use crate::telemetry::Metrics;

    fn slot(model: &str) -> SlotId {
        SlotId {
            model: model.into(),
            number: 0,
        }
    }

    #[test]
    fn a_swap_costs_its_device_the_time_from_the_first_stop_to_the_end_of_the_load() {
        let metrics = Metrics::new("0", "0", 0.0);
        let (mut figures, own) = (HostFigures::default(), metrics.gpu());
        let (old, new) = (slot("old"), slot("new"));
        own.configure([&old.model, &new.model]);
        let go = |from, to| PoolReport::Transition { from, to };
        let draining = SlotState::Draining(DrainReason::Victim);
        let acquiring = SlotState::Acquiring(LoadKind::Start);
        let swap = PoolReport::Swap {
            victims: vec![old.clone()],
            debt: 1.0,
            cost: 0.0,
            reason: SwapReason::Order,
        };
        let steps = [
            (&new, go(SlotState::Cold, acquiring), 1000),
            (&new, swap, 1000),
            (&old, go(SlotState::Ready, draining), 1000),
            (
                &old,
                go(draining, SlotState::Stopping(StopPhase::Terminating)),
                3000,
            ),
            (
                &new,
                go(acquiring, SlotState::Loading(LoadPhase::Spawning)),
                4000,
            ),
            (&new, PoolReport::Setup(SetupStatus::Ready), 9000),
        ];
        for (slot, report, at) in &steps {
            let devices = vec!["0 sim0".to_owned()];
            figures.record((*slot, report), devices, own, Millis(*at));
        }
        assert!(figures.swaps.is_empty() && figures.chosen.is_empty());
        let text = metrics.render(&crate::telemetry::Levels::default());
        for line in [
            r#"infergate_gpu_swap_lost_seconds_total{device="0 sim0"} 6"#,
            r#"infergate_model_swap_wait_seconds_sum{model="new"} 3"#,
            r#"infergate_instance_evictions_total{reason="victim",model="old"} 1"#,
            r#"infergate_instance_loads_total{result="ready",model="new"} 1"#,
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        let without = Metrics::new("0", "0", 0.0);
        let text = without.render(&crate::telemetry::Levels::default());
        assert!(
            !text.contains("infergate_orphans"),
            "no host, no metric: {text}"
        );
    }
}
