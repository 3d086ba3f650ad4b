//! A model in a replay: its requests that wait, its slots with those in flight, and its demand from look to look.
//!
//! Not the pool, which decides on the slots. Requests are served in the order of their arrival.

use std::collections::VecDeque;

use super::lines::ModelLine;
use crate::model::KeepLoaded;
use crate::vram::demand::{DemandSettings, DemandWeight};
use crate::vram::demand_look::{ColdRefusal, DemandLook, DemandMemory, SeenRequest};
use crate::vram::pool::ModelDemand;
use crate::{AccountId, Millis};

/// Requests that may wait for a model; further ones are refused, as a full queue does.
const WAITING_MAX: usize = 100_000;
/// Requests of a model that a look takes in, as those of a gateway.
const SEEN_MAX: usize = 4096;
/// Refusals between two looks that are remembered, as those of a gateway.
const REFUSALS_MAX: usize = 64;

/// Request of a replay.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    pub arrived: Millis,
    pub service: Millis,
    pub account: AccountId,
    pub priority: u8,
    /// Waits for a load; others come back no more.
    pub waits: bool,
}

/// Slot of a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaySlot {
    pub is_open: bool,
    pub in_flight: u32,
}

/// Model in a replay.
#[derive(Debug)]
pub struct ReplayModel {
    pub slots: Vec<ReplaySlot>,
    /// Requests are refused at once: no load can serve them.
    pub is_rejected: bool,
    /// The latest look found demand.
    pub has_demand: bool,
    expected_load: Millis,
    permits: u32,
    keep_alive: Option<Millis>,
    memory: DemandMemory,
    queue: VecDeque<ReplayRequest>,
    refusals: Vec<ColdRefusal>,
    arrivals: u32,
    grants: u32,
    most_urgent: Option<u8>,
}

impl ReplayModel {
    /// Returns a model without requests and slots.
    pub fn new(settings: DemandSettings) -> ReplayModel {
        ReplayModel {
            slots: Vec::new(),
            is_rejected: false,
            has_demand: false,
            expected_load: Millis::ZERO,
            permits: 0,
            keep_alive: None,
            memory: DemandMemory::new(settings),
            queue: VecDeque::new(),
            refusals: Vec::new(),
            arrivals: 0,
            grants: 0,
            most_urgent: None,
        }
    }

    /// Takes other settings over. Slots that are there stay.
    pub fn configure(&mut self, line: &ModelLine, settings: DemandSettings) {
        self.memory.configure(settings);
        self.permits = line.parallel;
        self.keep_alive = line.keep_alive_ms.map(Millis);
        self.expected_load = Millis(line.expected_load_ms);
        let slots = usize::from(line.replicas_max).max(self.slots.len());
        self.slots.resize(slots, ReplaySlot::default());
    }

    /// Expected time of a load.
    pub fn expected_load(&self) -> Millis {
        self.expected_load
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes a request; returns whether it waits or is served.
    pub fn arrive(&mut self, request: ReplayRequest) -> bool {
        self.arrivals = self.arrivals.saturating_add(1);
        let urgent = self.most_urgent.into_iter().chain([request.priority]).min();
        self.most_urgent = urgent;
        let is_cold = !self.slots.iter().any(|slot| slot.is_open);
        if self.is_rejected || self.queue.len() >= WAITING_MAX {
            return false;
        }
        if is_cold && !request.waits {
            if self.refusals.len() < REFUSALS_MAX {
                self.refusals.push(ColdRefusal {
                    account: request.account,
                    priority: request.priority,
                    at: request.arrived,
                });
            }
            return false;
        }
        self.queue.push_back(request);
        true
    }

    /// Gives a permit to the request that came first; returns it with the place of its slot.
    pub fn grant(&mut self) -> Option<(ReplayRequest, usize)> {
        let slots = self.slots.iter().enumerate();
        let open = slots.filter(|(_, slot)| slot.is_open && slot.in_flight < self.permits);
        let (number, _) = open.min_by_key(|(_, slot)| slot.in_flight)?;
        let request = self.queue.pop_front()?;
        self.slots[number].in_flight += 1;
        self.grants = self.grants.saturating_add(1);
        Some((request, number))
    }

    /// Lets all that waits go; returns how many.
    pub fn refuse_all(&mut self) -> usize {
        std::mem::take(&mut self.queue).len()
    }

    /// Returns whether something has happened since the latest look, or still does.
    pub fn is_active(&self) -> bool {
        let in_flight = self.slots.iter().any(|slot| slot.in_flight > 0);
        self.arrivals > 0 || self.grants > 0 || self.has_demand || in_flight
    }

    /// Looks at the requests, and returns the demand.
    pub fn look(&mut self, now: Millis) -> ModelDemand {
        let waiting = self.queue.iter().take(SEEN_MAX).map(|request| SeenRequest {
            joined: request.arrived,
            deadline: Millis::MAX,
            account: request.account.clone(),
            weight: DemandWeight::of_priority(request.priority),
            priority: request.priority,
        });
        let slots = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        let look = DemandLook {
            waiting: waiting.collect(),
            refused: std::mem::take(&mut self.refusals),
            arrivals: std::mem::take(&mut self.arrivals),
            grants: std::mem::take(&mut self.grants),
            most_urgent: self.most_urgent.take(),
            in_flight: self.slots.iter().map(|slot| slot.in_flight).sum(),
            permits: self.permits.saturating_mul(slots),
            is_usable: self.slots.iter().any(|slot| slot.is_open),
            kept_alive: None,
            own_keep_alive: self.keep_alive.map_or(KeepLoaded::Always, KeepLoaded::For),
        };
        let demand = self.memory.take(look, now);
        self.has_demand = demand.waiters > 0;
        demand
    }
}
