//! Configuration of the host for its lifecycle file, as a replay needs it: when it is to be written, and the line.
//!
//! Writes nothing itself, and keeps nothing while no file is configured.

use std::sync::Arc;

use infergate_core::vram::replay::{DeviceLine, HostLine};
use infergate_core::vram::{DemandSettings, PoolConfig};
use infergate_core::{Millis, ModelId};

use crate::gpu::HostReading;

/// Time after which the configuration is written again: files rotate, and each is to have it.
const HOST_EVERY: Millis = Millis::from_secs(3600);

/// Configuration for the lifecycle file, with what was written of it last.
#[derive(Default)]
pub(super) struct HostRecorder {
    pool: Option<PoolConfig>,
    written_at: Millis,
    devices: Vec<DeviceLine>,
}

impl HostRecorder {
    /// Takes over a configuration; none where none is written.
    pub fn configure(&mut self, pool: Option<PoolConfig>) {
        self.pool = pool;
    }

    /// Returns whether the file has the configuration of now: lines of demand mean nothing before it.
    pub fn is_written(&self) -> bool {
        self.pool.is_some()
    }

    /// Returns whether a line is due: devices have come or gone, or the latest line is old.
    pub fn is_due(&self, reading: &HostReading, now: Millis) -> bool {
        // Memory of others comes and goes.
        let memory = |it: &DeviceLine| (it.id.clone(), it.total_mib, it.reserve_mib);
        let has_changed = || {
            let present = devices(reading);
            !present
                .iter()
                .map(memory)
                .eq(self.devices.iter().map(memory))
        };
        self.pool.is_some() && (now.since(self.written_at) >= HOST_EVERY || has_changed())
    }

    /// Returns the line of now, which counts as written; none where none is written.
    pub fn take_line(
        &mut self,
        reading: &HostReading,
        demand: DemandSettings,
        load: impl Fn(&ModelId) -> Option<Millis>,
        now: Millis,
    ) -> Option<HostLine> {
        let pool = self.pool.as_ref()?;
        self.written_at = now;
        self.devices = devices(reading);
        Some(HostLine::of(pool, demand, load, self.devices.clone()))
    }
}

fn devices(reading: &HostReading) -> Vec<DeviceLine> {
    let devices = reading.devices.iter().map(|device| {
        let (view, account) = (&device.view, &device.account);
        DeviceLine {
            id: view.info.id.clone(),
            index: view.info.index,
            kind: view.info.kind,
            name: Arc::clone(&view.info.name),
            total_mib: view.info.total_mib,
            reserve_mib: view.reserve_mib,
            outside_mib: account.outside_mib,
        }
    });
    devices.collect()
}
