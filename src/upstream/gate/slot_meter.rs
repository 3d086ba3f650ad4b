//! Meter of the instance of one slot, with the reports that its owner has not taken. Fed by the gate.

use std::sync::Arc;

use infergate_core::admission::EndpointId;
use infergate_core::vram::{InstanceMeter, StateTimes};

/// Reports of a slot that wait for its owner; the time of further ones is joined into the last.
const WAITING_MAX: usize = 256;

/// Meter of the instance of one slot.
pub(super) struct SlotMeter {
    pub slot: Arc<str>,
    /// Endpoint that the slot is under the present configuration, once it was looked for.
    pub endpoint: Option<EndpointId>,
    pub meter: InstanceMeter,
    /// Permits in use when it was last fed.
    pub in_flight: u32,
    /// Reports that the owner has not taken.
    pub due: Vec<StateTimes>,
}

impl SlotMeter {
    pub fn new(slot: &str, meter: InstanceMeter, due: Vec<StateTimes>) -> SlotMeter {
        SlotMeter {
            slot: Arc::from(slot),
            endpoint: None,
            meter,
            in_flight: 0,
            due,
        }
    }

    /// Keeps reports for the owner of the slot.
    pub fn keep(&mut self, times: Vec<StateTimes>) {
        for times in times {
            let is_full = self.due.len() >= WAITING_MAX;
            match self.due.last_mut().filter(|_| is_full) {
                Some(last) => last.join(times),
                None => self.due.push(times),
            }
        }
    }
}
