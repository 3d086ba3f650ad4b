//! Sums and best figures of residents, by which most searches for victims end before they begin.
//!
//! Not the search. A figure of several devices is the best of any, so that it refuses nothing which one of them allows.

use std::ops::Range;

use super::Place;
use crate::Millis;
use crate::vram::contender::Resident;
use crate::vram::fit::DeviceRoom;

/// Sums over residents, by which most searches end before they begin.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    /// Their places; those of one room stand in the order in which they leave.
    pub places: Range<usize>,
    /// Room now, and room without any of them.
    pub free_mib: u64,
    pub empty_mib: u64,
    /// Residents, protected ones included, and the sum of their load times in seconds.
    pub count: usize,
    pub load_secs: f64,
    /// Request-seconds that an eviction costs at least for each arrival per second, however fast a model loads.
    pub cost_of_rate_min: f64,
    /// Memory of idle ones, and of busy ones.
    pub idle_mib: u64,
    pub busy_mib: u64,
    /// Least load time, or the greatest number; and least rank of the idle ones, none below 0.
    pub load_min: Millis,
    pub rank_min: f64,
}

impl Summary {
    pub const NONE: Summary = Summary {
        places: 0..0,
        free_mib: 0,
        empty_mib: 0,
        count: 0,
        load_secs: 0.0,
        cost_of_rate_min: 0.0,
        idle_mib: 0,
        busy_mib: 0,
        load_min: Millis::MAX,
        rank_min: f64::MAX,
    };

    pub fn of(room: &DeviceRoom) -> Summary {
        Summary {
            free_mib: room.free_mib,
            empty_mib: room.empty_mib,
            ..Summary::NONE
        }
    }

    pub fn add(&mut self, place: &Place, resident: &Resident<'_>) {
        self.load_min = self.load_min.min(resident.load);
        if resident.is_busy {
            self.busy_mib += place.mib;
        } else {
            self.idle_mib += place.mib;
            self.rank_min = self.rank_min.min(place.rank.max(0.0));
        }
    }

    /// Request-seconds that an eviction for a model costs for each arrival per second.
    pub fn cost_of_rate(&self, load_secs: f64) -> f64 {
        let mean_load = (self.load_secs + load_secs) / (self.count + 1) as f64;
        // Requests of two mean loads, out and back, each waiting half of that time.
        2.0 * mean_load * mean_load
    }
}

/// The best of each figure among all devices, whichever has it: what is too dear with these is so on each.
#[derive(Clone, Copy, Debug)]
pub(super) struct BestFigures {
    pub free_mib: u64,
    /// Room for a model once all idle residents of one device have left.
    pub idle_room_mib: u64,
    pub load_min: Millis,
    pub rank_min: f64,
    pub cost_of_rate_min: f64,
}

impl BestFigures {
    pub const NONE: BestFigures = BestFigures {
        free_mib: 0,
        idle_room_mib: 0,
        load_min: Millis::MAX,
        rank_min: f64::MAX,
        cost_of_rate_min: f64::MAX,
    };

    pub fn add(&mut self, summary: &Summary) {
        self.free_mib = self.free_mib.max(summary.free_mib);
        let idle_room_mib = summary.empty_mib.min(summary.free_mib + summary.idle_mib);
        self.idle_room_mib = self.idle_room_mib.max(idle_room_mib);
        self.load_min = self.load_min.min(summary.load_min);
        if summary.idle_mib > 0 {
            self.rank_min = self.rank_min.min(summary.rank_min);
            self.cost_of_rate_min = self.cost_of_rate_min.min(summary.cost_of_rate_min);
        }
    }
}
