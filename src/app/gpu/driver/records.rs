//! State and reports of the pool, shown to operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::vram::{PoolReport, SlotId, SlotState};
use infergate_core::{Millis, ModelId};

use super::Driver;
use crate::app::gpu::figures::{device_label, host_levels};
use crate::app::gpu::reports::record_report;
use crate::app::gpu::settings::EstimateFacts;
use crate::app::gpu::view::{SlotFacts, WaitingFacts};
use crate::telemetry::gpu_metrics::{GpuLevels, GpuModelLevels};

impl Driver {
    pub(super) fn report(&mut self, slot: &SlotId, report: &PoolReport) {
        record_report(slot, report, &self.parts.board);
        let metrics = self.parts.shared.metrics.gpu();
        let shares = self.slots.get(slot).map_or(&[][..], |run| &run.shares);
        let devices = shares.iter().map(|share| &share.device);
        let devices = devices.filter_map(|device| device_label(&self.reading, device));
        let now = self.parts.shared.clock.now();
        self.figures
            .record((slot, report), devices.collect(), metrics, now);
        self.send_records(slot, report);
        if let PoolReport::Transition { to, .. } = report
            && *to != SlotState::Ready
        {
            self.close(slot, to.name());
        }
    }

    /// Shows the estimates of all models, and warns once of each configured figure that a load has exceeded.
    pub(super) fn show_estimates(&mut self, estimates: BTreeMap<ModelId, EstimateFacts>) {
        for (model, facts) in &estimates {
            let former = self.estimates.get(model).and_then(|it| it.excess);
            if let Some(excess) = facts.excess.filter(|it| former != Some(*it)) {
                let (manifest_mib, peak_mib) = (excess.manifest_mib, excess.peak_mib);
                tracing::warn!(
                    model = model.as_str(),
                    manifest_mib,
                    peak_mib,
                    "a model used more memory than vram.mib says: the measurement counts; raise vram.mib"
                );
            }
        }
        self.parts.board.set_estimates(estimates.clone());
        self.estimates = estimates;
    }

    /// Shows the present state to operators.
    pub(super) fn publish(&self) {
        let now = self.parts.shared.clock.now();
        let details = self.pool.slot_details(now);
        let states = self.pool.slot_states().zip(details);
        let slots = states.map(|((slot, state, shares), details)| {
            let run = self.slots.get(&slot);
            let started = run.and_then(|it| it.started.as_ref());
            let present = started.filter(|_| state.has_process());
            SlotFacts {
                state: state.name(),
                shares: shares.to_vec(),
                pid: present.map(|it| it.main.pid),
                port: present.map(|it| it.port),
                // Its log stays when it has ended.
                instance: started.map(|it| it.instance.to_string()),
                previous: run
                    .and_then(|it| it.previous.as_ref())
                    .map(ToString::to_string),
                problem: run.and_then(|it| it.problem.clone()),
                has_update: state.has_process() && self.has_update(&slot),
                details,
                slot,
            }
        });
        let waiting = self.pool.waiting_reasons();
        let waiting = waiting.map(|(model, reason, demand)| WaitingFacts {
            model: model.clone(),
            reason: reason.name(),
            waiters: demand.waiters,
            debt: demand.debt,
            unserved: demand
                .unserved_since
                .map_or(Millis::ZERO, |it| now.since(it)),
        });
        let devices = self.reading.devices.iter().map(|it| &it.view.info.id);
        let closed =
            devices.filter_map(|id| Some((id.clone(), self.standing.with(|it| it.closure(id))?)));
        self.parts.board.publish(
            (Arc::clone(&self.reading), closed.collect()),
            slots.collect(),
            self.pool.model_details(now),
            waiting.collect(),
        );
        self.parts.shared.metrics.gpu().set_levels(self.levels());
    }

    /// Levels of devices, models and leases, for metrics.
    fn levels(&self) -> GpuLevels {
        let mut models: BTreeMap<ModelId, GpuModelLevels> = BTreeMap::new();
        let now = self.parts.shared.clock.now();
        for (id, model) in &self.models {
            let retry_at = self.pool.retry_at(id).unwrap_or(now);
            let estimate = self.estimates.get(id);
            let levels = GpuModelLevels {
                backoff_secs: retry_at.since(now).0 as f64 / 1e3,
                estimate: estimate.and_then(|it| it.source.zip(it.mib)),
                measured_mib: estimate.and_then(|it| it.measured_mib),
                cold: model.gate.cold_counts(),
                ..GpuModelLevels::default()
            };
            models.insert(id.clone(), levels);
        }
        for (slot, state, _) in self.pool.slot_states() {
            if let Some(levels) = models.get_mut(&slot.model) {
                *levels.instances.entry(state.name()).or_default() += 1;
            }
        }
        GpuLevels {
            models,
            ..host_levels(&self.reading, self.parts.ledger.host().now())
        }
    }
}
