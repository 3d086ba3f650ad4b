//! Lines of the lifecycle file for a replay: the configuration, and the demand of models.
//!
//! Decides nothing.

use std::collections::BTreeMap;

use infergate_core::vram::PoolConfig;
use infergate_core::vram::replay::DemandLine;
use infergate_core::{Millis, ModelId};

use super::Driver;
use crate::app::gpu::settings::demand_settings;

impl Driver {
    /// Writes a configuration that takes effect now; none where none is written.
    pub(super) fn record_config(&mut self, pool: Option<PoolConfig>) {
        let is_written = pool.is_some();
        self.recorder.configure(pool);
        if is_written {
            self.record_host();
        }
    }

    /// Writes the configuration again where that is due.
    pub(super) fn look_at_recording(&mut self) {
        let now = self.parts.shared.clock.now();
        if self.recorder.is_due(&self.reading, now) {
            self.record_host();
        }
    }

    /// Writes the demand of models.
    pub(super) fn record_demand(&self, lines: &[(ModelId, DemandLine)]) {
        if lines.is_empty() {
            return;
        }
        let moment = self.event_moment();
        for (model, line) in lines {
            self.outlets.send_event(&moment.of_demand(model, line));
        }
    }

    fn record_host(&mut self) {
        let moment = self.event_moment();
        let details = self.pool.model_details(moment.now).into_iter();
        let loads: BTreeMap<ModelId, Millis> =
            details.map(|it| (it.model, it.expected_load)).collect();
        let demand = demand_settings(&self.parts.gpu.swap);
        let load = |model: &ModelId| loads.get(model).copied();
        let line = self
            .recorder
            .take_line(&self.reading, demand, load, moment.now);
        if let Some(line) = line {
            self.outlets.send_event(&moment.of_host(&line));
        }
    }
}
