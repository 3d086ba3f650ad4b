//! Record of a slot in the driver: its leases, its process, its server. States are the pool's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infergate_core::Millis;
use infergate_core::vram::{
    DeviceShare, HostTime, InstanceMeter, LeaseGroup, PeakMeter, ProcessTrail,
};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::instance::{InstanceOrder, StartedInstance};
use crate::gpu::process::InstanceId;
use crate::upstream::{ModelRuntime, Target};

/// A slot with what belongs to its life.
#[derive(Default)]
pub(super) struct SlotRun {
    pub life: u64,
    pub shares: Vec<DeviceShare>,
    pub group: Option<LeaseGroup>,
    pub orders: Option<mpsc::Sender<InstanceOrder>>,
    pub started: Option<StartedInstance>,
    pub target: Option<Arc<Target>>,
    /// Use of each device of `shares` around the life of the process.
    pub trails: Vec<ProcessTrail>,
    /// Its processes are gone, and their memory is awaited since then.
    pub is_awaited: bool,
    /// Memory in use on the devices of its shares before it was to fall asleep, MiB.
    pub before_sleep: Vec<Option<u64>>,
    /// Moment at which the server said that it sleeps; a later sample shows what it keeps.
    pub slept_at: Option<HostTime>,
    /// Changes of its leases, which overtake each other.
    pub resizes: Arc<Resizes>,
    /// Meter of its load; none once the peak is known.
    pub meter: Option<PeakMeter>,
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

/// Order of the changes of a slot's leases: one that was overtaken by a later one has no effect.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    /// Number of the latest change that was ordered.
    ordered: AtomicU64,
    /// Number of the latest change that was carried out; held while one is.
    done: Mutex<u64>,
}

impl Resizes {
    /// Returns the number of a change that is ordered now.
    pub fn order(&self) -> u64 {
        self.ordered.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Carries a change out unless a later one was; one after the other.
    pub fn perform<T>(&self, number: u64, change: impl FnOnce() -> T) -> Option<T> {
        let mut done = self.done.lock();
        if *done > number {
            return None;
        }
        *done = number;
        Some(change())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_was_overtaken_has_no_effect() {
        let resizes = Resizes::default();
        let (first, second) = (resizes.order(), resizes.order());
        assert_eq!(resizes.perform(second, || "grown"), Some("grown"));
        assert_eq!(resizes.perform(first, || "shrunk"), None);
        let third = resizes.order();
        assert_eq!(resizes.perform(third, || "shrunk"), Some("shrunk"));
    }
}
