//! Lines of a lifecycle file that a replay needs beside those of slots: the host as configured, and demand.
//!
//! Members are the file's, which a gateway writes and a replay reads: a renamed one breaks recordings.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::vram::demand::DemandSettings;
use crate::vram::device::{DeviceId, DeviceKind};
use crate::vram::evict::SwapPolicy;
use crate::vram::fit::{PlacementRequest, Split};
use crate::vram::load_time::StoredModel;
use crate::vram::pool::{LoadParallel, PoolConfig, PoolDevice, PoolModel};
use crate::vram::schedule::SwapRule;
use crate::vram::slot::SlotLimits;
use crate::{Millis, ModelId};

/// Name of the event with a [`HostLine`].
pub const HOST_EVENT: &str = "models";
/// Name of the event with a [`DemandLine`].
pub const DEMAND_EVENT: &str = "demand";
/// Limit of loads and stops in a replay: they end when the recording says.
const UNLIMITED: Millis = Millis::from_secs(7 * 24 * 3600);

/// Demand of one model since its line before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemandLine {
    /// Time over which the requests came, up to the moment of the line.
    pub span_ms: u64,
    /// Requests that came, refused ones included.
    pub arrivals: u32,
    /// Requests that did not wait for a load: refused, or served by another model.
    pub refused: u32,
    /// Accounts whose requests waited at a time, at most.
    pub accounts: u32,
    /// Most urgent priority.
    pub priority: u8,
    /// Mean time with a permit of the model's latest requests; none before the first has ended.
    pub service_ms: Option<u64>,
    /// Requests that wait now.
    pub waiting: u32,
    /// Sum of the waits since the line before.
    pub waited_ms: u64,
    /// Longest wait that was seen.
    pub longest_wait_ms: u64,
}

/// The host as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostLine {
    /// Rule by which models get memory.
    pub swap: RuleLine,
    /// Models.
    pub models: Vec<ModelLine>,
    /// Devices.
    pub devices: Vec<DeviceLine>,
}

/// Rule by which models get memory, with the limits of loads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleLine {
    /// Policy.
    pub policy: SwapPolicy,
    /// Turn in units of both load times.
    pub turn: u32,
    /// Factor by which a debt must exceed the cost of an eviction.
    pub patience: u32,
    /// Time from ready on in which a model is not evicted.
    pub min_warm_ms: u64,
    /// Wait at which a request weighs twice its time.
    pub aging_ms: u64,
    /// Time for which a request counts that left without an answer of the model.
    pub demand_memory_ms: u64,
    /// Loads at a time on a device.
    pub loads_per_device: u32,
    /// Loads at a time on the host.
    pub loads_per_host: u32,
}

/// A model as it is configured and estimated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLine {
    /// Model.
    pub id: ModelId,
    /// Memory of a process, MiB.
    pub need_mib: u64,
    /// Need that nothing tells: a process takes a device for itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// Part of it that each device of a split needs whole.
    pub context_mib: u64,
    /// Split over devices.
    pub split: Split,
    /// Urgency without a request.
    pub priority: u8,
    /// Slots that stay loaded.
    pub replicas_min: u16,
    /// Slots.
    pub replicas_max: u16,
    /// Permits of a slot.
    pub parallel: u32,
    /// Time for which it stays loaded while idle; none: always.
    pub keep_alive_ms: Option<u64>,
    /// Expected time of a load.
    pub expected_load_ms: u64,
    /// Size on its storage, from which a load is estimated before the first.
    pub stored_bytes: u64,
    /// Memory that it keeps on each device while it sleeps; none: it ends.
    pub asleep_mib: Option<u64>,
    /// Never evicted.
    pub pinned: bool,
    /// Loaded at start.
    pub preload: bool,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// Device.
    pub id: DeviceId,
    /// Place in the driver's list.
    pub index: u32,
    /// Kind.
    pub kind: DeviceKind,
    /// Name of the product.
    pub name: Arc<str>,
    /// Memory in all.
    pub total_mib: u64,
    /// Memory that is never leased.
    pub reserve_mib: u64,
    /// Memory in use by others than the gateway.
    pub outside_mib: u64,
}

impl HostLine {
    /// Returns the line of a configuration. `load` is the expected time of a model's load.
    pub fn of(
        config: &PoolConfig,
        demand: DemandSettings,
        load: impl Fn(&ModelId) -> Option<Millis>,
        devices: Vec<DeviceLine>,
    ) -> HostLine {
        let models = config.models.iter();
        let models = models.map(|(id, model)| ModelLine::of(id, model, load(id)));
        let (rule, loads) = (&config.swap, config.load_parallel);
        HostLine {
            swap: RuleLine {
                policy: rule.policy,
                turn: rule.turn,
                patience: rule.patience,
                min_warm_ms: rule.min_warm.0,
                aging_ms: demand.aging.0,
                demand_memory_ms: demand.memory.0,
                loads_per_device: loads.per_device,
                loads_per_host: loads.per_host,
            },
            models: models.collect(),
            devices,
        }
    }

    /// Returns the configuration of a pool.
    pub(super) fn pool_config(&self) -> PoolConfig {
        let rule = &self.swap;
        let models = self.models.iter();
        PoolConfig {
            load_parallel: LoadParallel {
                per_device: rule.loads_per_device,
                per_host: rule.loads_per_host,
            },
            swap: SwapRule {
                policy: rule.policy,
                turn: rule.turn,
                patience: rule.patience,
                min_warm: Millis(rule.min_warm_ms),
            },
            models: models.map(|it| (it.id.clone(), it.pool_model())).collect(),
        }
    }

    /// Returns the settings of demand.
    pub(super) fn demand_settings(&self) -> DemandSettings {
        DemandSettings {
            aging: Millis(self.swap.aging_ms),
            memory: Millis(self.swap.demand_memory_ms),
        }
    }

    /// Returns the devices, of another size where one is given.
    pub(super) fn pool_devices(&self, device_mib: Option<u64>) -> Vec<PoolDevice> {
        let devices = self.devices.iter().map(|device| {
            let total_mib = device_mib.unwrap_or(device.total_mib);
            PoolDevice {
                id: device.id.clone(),
                index: device.index,
                kind: device.kind,
                name: Arc::clone(&device.name),
                empty_mib: total_mib.saturating_sub(device.reserve_mib),
                others_mib: device.outside_mib,
                outside_mib: device.outside_mib,
                is_open: true,
            }
        });
        devices.collect()
    }
}

impl ModelLine {
    fn of(id: &ModelId, model: &PoolModel, load: Option<Millis>) -> ModelLine {
        ModelLine {
            id: id.clone(),
            need_mib: model.need.mib,
            exclusive: model.is_exclusive,
            context_mib: model.need.context_mib,
            split: model.need.split,
            priority: model.priority,
            replicas_min: model.replicas_min,
            replicas_max: model.replicas_max,
            parallel: model.permits,
            keep_alive_ms: model.keep_alive.map(|time| time.0),
            expected_load_ms: load.unwrap_or(Millis::ZERO).0,
            stored_bytes: model.stored.bytes,
            asleep_mib: model.asleep_mib,
            pinned: model.is_pinned,
            preload: model.is_preloaded,
        }
    }

    fn pool_model(&self) -> PoolModel {
        PoolModel {
            need: PlacementRequest {
                mib: self.need_mib,
                devices: 1,
                split: self.split,
                context_mib: self.context_mib,
            },
            is_exclusive: self.exclusive,
            asleep_mib: self.asleep_mib,
            stored: StoredModel {
                bytes: self.stored_bytes,
                rate_mib: None,
            },
            limits: SlotLimits {
                ready_timeout: UNLIMITED,
                stop_timeout: UNLIMITED,
            },
            priority: self.priority,
            replicas_min: self.replicas_min,
            replicas_max: self.replicas_max,
            permits: self.parallel,
            is_pinned: self.pinned,
            is_preloaded: self.preload,
            keep_alive: self.keep_alive_ms.map(Millis),
            // A recorded process is not restarted because its estimate has changed.
            revision: 0,
        }
    }
}
