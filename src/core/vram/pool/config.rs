//! Configuration of the pool and of the models that it manages, and their demand.
//!
//! Not the file that an operator writes: defaults are filled in, and sizes are estimated, by the caller.

use std::collections::BTreeMap;

use crate::model::KeepLoaded;
use crate::vram::fit::PlacementRequest;
use crate::vram::load_time::StoredModel;
use crate::vram::schedule::SwapRule;
use crate::vram::slot::SlotLimits;
use crate::{Millis, ModelId};

/// Loads that may run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadParallel {
    /// On one device: loads slow each other down, and their use of memory cannot be told apart.
    pub per_device: u32,
    /// On the host.
    pub per_host: u32,
}

impl Default for LoadParallel {
    fn default() -> Self {
        LoadParallel {
            per_device: 1,
            per_host: 2,
        }
    }
}

/// Model whose processes the pool starts and stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolModel {
    /// Memory that an instance is estimated to need.
    pub need: PlacementRequest,
    /// Need that nothing tells: an instance takes what is free of a device without a lease, and `need` holds only until
    /// devices are known.
    pub is_exclusive: bool,
    /// Memory that a sleeping instance is assumed to keep on each device until it is measured, MiB.
    ///
    /// `None` for a model that cannot sleep.
    pub asleep_mib: Option<u64>,
    /// Size on its storage.
    pub stored: StoredModel,
    /// Times of its slots.
    pub limits: SlotLimits,
    /// Urgency while no request gives another: the smaller, the more urgent.
    pub priority: u8,
    /// Instances that are kept loaded while there is room.
    pub replicas_min: u16,
    /// Slots.
    pub replicas_max: u16,
    /// Permits of a slot.
    pub permits: u32,
    /// Pin: loaded at once, never a victim and never unloaded when idle.
    pub is_pinned: bool,
    /// Preload: loaded once without a request.
    pub is_preloaded: bool,
    /// Time without a request after which it is unloaded; `None` for never.
    pub keep_alive: Option<Millis>,
    /// Number of the settings that a process is started with: another number restarts it.
    pub revision: u64,
}

/// Configuration of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolConfig {
    /// Loads at a time.
    pub load_parallel: LoadParallel,
    /// Rule by which models with demand get memory.
    pub swap: SwapRule,
    /// Models.
    pub models: BTreeMap<ModelId, PoolModel>,
}

/// Demand for a model at one moment, as its admission queue has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelDemand {
    /// Requests that wait, or count as waiting.
    pub waiters: u32,
    /// Requests of one round of permits that the load is for, and that have no permit yet.
    ///
    /// No more than one round: a model with requests all the time would keep its memory for ever.
    pub first_waiters: u32,
    /// Begin of the time in which something waits and the model serves nothing.
    pub unserved_since: Option<Millis>,
    /// Debt, request-seconds.
    pub debt: f64,
    /// Requests per second.
    pub arrivals_per_sec: f64,
    /// Requests in flight.
    pub in_flight: u32,
    /// End of the latest request.
    pub last_used: Millis,
    /// Most urgent priority of requests in flight, waiting, or of the last minute; `None` without any.
    pub priority: Option<u8>,
    /// Time for which its latest requests keep it loaded, in place of its own.
    pub keep_alive: Option<KeepLoaded>,
}

impl ModelDemand {
    /// Demand of a model without requests.
    pub const NONE: ModelDemand = ModelDemand {
        waiters: 0,
        first_waiters: 0,
        unserved_since: None,
        debt: 0.0,
        arrivals_per_sec: 0.0,
        in_flight: 0,
        last_used: Millis::ZERO,
        priority: None,
        keep_alive: None,
    };
}
