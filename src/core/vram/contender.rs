//! Contenders for memory: models that wait for it, and residents that hold it.
//!
//! Not what is decided between them. Both are values of one moment, made for one decision; debts are request-seconds.

use std::borrow::Cow;

use super::fit::{DeviceRoom, DeviceShare, Placement, PlacementRequest, place};
use crate::Millis;

/// Model that is not loaded and has demand.
#[derive(Clone, Debug, PartialEq)]
pub struct ColdModel {
    /// Need of a new process.
    pub placement: PlacementRequest,
    /// Memory that the wake of its sleeping process needs on each device; empty where a process is started.
    pub growth: Vec<DeviceShare>,
    /// Expected time from the start of its process, or from its wake, to ready.
    pub load: Millis,
    /// Most urgent priority of its requests: the smaller, the more urgent.
    pub priority: u8,
    /// Busy residents with more urgent requests keep their memory, also when their turn is over.
    pub spares_urgent: bool,
    /// Debt by its demand.
    pub debt: f64,
    /// Begin of the time in which it has demand and serves nothing.
    pub unserved_since: Millis,
}

impl ColdModel {
    /// Returns the debt that each millisecond of loading takes away.
    pub(super) fn debt_per_load(&self) -> f64 {
        self.debt / self.load.0.max(1) as f64
    }

    /// Returns whether no place is found for certain where no device has more free memory than this.
    pub(super) fn is_beyond(&self, largest_mib: u64) -> bool {
        self.growth.is_empty()
            && !self.placement.can_spread()
            && !self.placement.fits_in(largest_mib)
    }

    /// Returns the shares to lease in the memory that is free, or `None` without room.
    pub(super) fn place(&self, rooms: &[DeviceRoom]) -> Option<Vec<DeviceShare>> {
        if self.growth.is_empty() {
            return match self
                .placement
                .may_fit(rooms)
                .then(|| place(&self.placement, rooms))
            {
                Some(Placement::Fits(shares)) => Some(shares),
                _ => None,
            };
        }
        let has_room = |share: &DeviceShare| {
            let room = rooms.iter().find(|room| room.id == share.device);
            room.is_some_and(|room| room.free_mib >= share.mib)
        };
        let fits = self.growth.iter().all(has_room);
        fits.then(|| self.growth.clone())
    }
}

/// Reason why a resident is no victim, whatever waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Pinned by the configuration or an operator.
    Pinned,
    /// Held by an operator for now.
    Held,
    /// Loading: its memory would be spent for nothing.
    Loading,
    /// Draining or stopping: its memory comes back anyway. So is what shares a device with one that leaves.
    Leaving,
    /// Asleep, with requests that will wake it.
    Asleep,
    /// Ready, while waiters of its load have no permit yet.
    FirstWaiters,
}

/// Model process that holds memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Resident<'a> {
    /// Memory that it frees on each of its devices; most often what it has, which is not copied for a decision.
    pub shares: Cow<'a, [DeviceShare]>,
    /// Expected time to load it again.
    pub load: Millis,
    /// Most urgent priority of its requests.
    pub priority: u8,
    /// Requests per second by its demand.
    pub arrivals_per_sec: f64,
    /// Something is in flight or waits.
    pub is_busy: bool,
    /// Moment at which it became ready.
    pub ready_since: Millis,
    /// Moment of its last request's begin or end.
    pub last_used: Millis,
    /// Reason why it is no victim.
    pub protection: Option<Protection>,
}
