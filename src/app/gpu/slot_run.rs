//! Record of a slot in the driver: its leases, its process, its server. States are the pool's.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::Millis;
use infergate_core::model::ModelSpec;
use infergate_core::vram::{
    DeviceShare, HostTime, InstanceMeter, LeaseGroup, PeakMeter, ProcessTrail, RECLAIM_MAX, SlotId,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::instance::{InstanceOrder, StartedInstance};
use crate::gpu::process::InstanceId;
use crate::upstream::{ModelRuntime, Target};

/// A slot with what belongs to its life.
#[derive(Default)]
pub(super) struct SlotRun {
    pub life: u64,
    pub shares: Vec<DeviceShare>,
    pub group: Option<LeaseGroup>,
    /// The leases are the keeper's, and end with it.
    pub is_handed_over: bool,
    pub priority: u8,
    pub orders: Option<mpsc::Sender<InstanceOrder>>,
    pub started: Option<StartedInstance>,
    /// Process before that one, whose log stays.
    pub previous: Option<InstanceId>,
    pub target: Option<Arc<Target>>,
    /// Use of each device of `shares` around the life of the process.
    pub trails: Vec<ProcessTrail>,
    /// Its processes are gone, and their memory is awaited since then.
    pub is_awaited: bool,
    /// Memory in use on the devices of its shares before it was to fall asleep, MiB.
    pub before_sleep: Vec<Option<u64>>,
    /// Moment at which the server said that it sleeps; a later sample shows what it keeps.
    pub slept_at: Option<HostTime>,
    /// Shares that its leases grow to for a wake, until the ledger has answered.
    pub grown: Option<Vec<DeviceShare>>,
    /// Meter of its load; none once the peak is known.
    pub meter: Option<LoadMeter>,
    /// Moment at which its load was over.
    pub ready_at: Option<Millis>,
    /// The ledger has been asked for a larger lease than it was started with.
    pub is_growing: bool,
    /// Use above its leases, with no room for larger ones.
    pub is_over_lease: bool,
    pub problem: Option<String>,
    /// Asked to end, or killed.
    pub is_ending_by_order: bool,
    /// The present life, or the last one.
    pub instance: Option<InstanceLife>,
}

impl SlotRun {
    /// Returns the shares that the ledger was asked for last.
    pub fn asked_for(&self) -> &[DeviceShare] {
        self.grown.as_deref().unwrap_or(&self.shares)
    }
}

/// Meter of a load, and what its process was started with: that may not be the configuration's any more when it ends.
pub(super) struct LoadMeter {
    pub peak: PeakMeter,
    pub spec: Arc<ModelSpec>,
}

/// Life of an instance as its reports have it.
pub(super) struct InstanceLife {
    /// Name; `None` where the slot's name allows none.
    pub id: Option<InstanceId>,
    pub runtime: Arc<ModelRuntime>,
    pub shares: Vec<DeviceShare>,
    /// Start of the load, RFC 3339; `None` before its leases are held.
    pub load_since: Option<String>,
    pub meter: MeterPlace,
}

/// Place of the meter of a life.
pub(super) enum MeterPlace {
    /// The instance boots.
    Driver(Box<InstanceMeter>),
    /// The gate feeds it with requests.
    Gate,
    /// The life is over.
    Ended,
}

/// A load that begins anew at another port, and asks for leases again.
pub(super) struct PortRetry {
    pub slot: SlotId,
    pub life: u64,
    pub shares: Vec<DeviceShare>,
    /// Leases of the first process.
    pub former: LeaseGroup,
    pub until: Instant,
}

impl PortRetry {
    pub fn new(
        (slot, life): (SlotId, u64),
        shares: Vec<DeviceShare>,
        former: LeaseGroup,
    ) -> Box<PortRetry> {
        Box::new(PortRetry {
            slot,
            life,
            shares,
            former,
            until: Instant::now() + Duration::from_millis(RECLAIM_MAX.0),
        })
    }
}
