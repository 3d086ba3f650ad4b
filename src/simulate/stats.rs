//! Counters of the simulator: requests now, at most, served, refused. Not metrics of the gateway.
//!
//! `current` counts requests that hold a slot, never those that wait for one, so `high_water` is
//! what a gateway's permits must bound. Read by `GET /sim/stats` and by tests in the process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Live counts; shared by all connections.
#[derive(Debug, Default)]
pub(super) struct Stats {
    pub(super) current: AtomicU64,
    pub(super) waiting: AtomicU64,
    pub(super) high_water: AtomicU64,
    pub(super) waiting_high_water: AtomicU64,
    pub(super) served: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) faulted: AtomicU64,
    pub(super) output_tokens: AtomicU64,
    pub(super) connections: AtomicU64,
    pub(super) weight_swaps: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StatsSnapshot {
    /// Marks the JSON as the simulator's.
    pub simulator: bool,
    /// Requests that hold a slot now.
    pub current: u64,
    /// Requests that wait for a slot now.
    pub waiting: u64,
    /// The most slots ever held at once.
    pub high_water: u64,
    /// The most requests that ever waited at once.
    pub waiting_high_water: u64,
    /// Requests answered to the last byte.
    pub served: u64,
    /// Requests whose client left while they waited or worked.
    pub cancelled: u64,
    /// Requests refused for want of a slot.
    pub refused: u64,
    /// Requests and connections that met a fault.
    pub faulted: u64,
    /// Tokens generated for the requests served.
    pub output_tokens: u64,
    /// Connections open now.
    pub connections: u64,
    /// Requests for other weights than those of the request before.
    pub weight_swaps: u64,
}

impl Stats {
    /// The counts now. Each is exact; together they are not one instant.
    pub(super) fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            simulator: true,
            current: self.current.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            high_water: self.high_water.load(Relaxed),
            waiting_high_water: self.waiting_high_water.load(Relaxed),
            served: self.served.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            refused: self.refused.load(Relaxed),
            faulted: self.faulted.load(Relaxed),
            output_tokens: self.output_tokens.load(Relaxed),
            connections: self.connections.load(Relaxed),
            weight_swaps: self.weight_swaps.load(Relaxed),
        }
    }

    /// Begin counting anew, between two phases of a test; what is in progress stays counted.
    pub(super) fn reset(&self) {
        for total in [
            &self.served,
            &self.cancelled,
            &self.refused,
            &self.faulted,
            &self.output_tokens,
            &self.weight_swaps,
        ] {
            total.store(0, Relaxed);
        }
        self.high_water.store(self.current.load(Relaxed), Relaxed);
        self.waiting_high_water
            .store(self.waiting.load(Relaxed), Relaxed);
    }
}
