//! Meters of slots: the time of an instance with and without requests, exact at each grant and release.
//!
//! Fed under the lock that the gate takes anyway. A model without a metered slot pays for one look at an empty list.

use infergate_core::Millis;
use infergate_core::vram::{InstanceMeter, StateTimes};

use super::slot_meter::SlotMeter;
use super::{AdmissionGate, GateState};

impl GateState {
    /// Feeds the meters with the permits in use.
    pub(super) fn measure_slots(&mut self, now: Millis) {
        for own in &mut self.meters {
            own.endpoint = own.endpoint.or_else(|| self.turnstile.endpoint(&own.slot));
            let used = own.endpoint.map_or(0, |id| self.turnstile.used(id));
            if used != own.in_flight {
                own.in_flight = used;
                let due = own.meter.set_in_flight(used, now);
                if !due.is_empty() {
                    own.keep(due);
                }
            }
        }
    }
}

impl AdmissionGate {
    /// Feeds the meter of an instance that becomes ready with the requests of its slot, from now on.
    pub fn meter_slot(&self, slot: &str, mut meter: InstanceMeter) {
        self.decide(|inner, now| {
            inner.meters.retain(|own| *own.slot != *slot);
            let due = meter.become_ready(now);
            inner.meters.push(SlotMeter::new(slot, meter, due));
        });
    }

    /// Notes that the instance of a metered slot boots out of its sleep.
    pub fn begin_slot_wake(&self, slot: &str) {
        self.change_meter(slot, InstanceMeter::begin_wake);
    }

    /// Notes that the instance of a metered slot is ready again.
    pub fn end_slot_wake(&self, slot: &str) {
        self.change_meter(slot, InstanceMeter::become_ready);
    }

    fn change_meter(
        &self,
        slot: &str,
        change: impl FnOnce(&mut InstanceMeter, Millis) -> Vec<StateTimes>,
    ) {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let mut meters = inner.meters.iter_mut();
        if let Some(own) = meters.find(|own| *own.slot == *slot) {
            let due = change(&mut own.meter, now);
            own.keep(due);
        }
    }

    /// Returns the reports of a metered slot that are due.
    pub fn take_slot_times(&self, slot: &str) -> Vec<StateTimes> {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let mut meters = inner.meters.iter_mut();
        let Some(own) = meters.find(|own| *own.slot == *slot) else {
            return Vec::new();
        };
        let due = own.meter.take_due(now);
        own.keep(due);
        std::mem::take(&mut own.due)
    }

    /// Ends the meter of a slot; returns its last reports.
    pub fn end_slot_meter(&self, slot: &str) -> Vec<StateTimes> {
        let mut inner = self.inner.lock();
        let now = self.clock.now();
        let Some(at) = inner.meters.iter().position(|own| *own.slot == *slot) else {
            return Vec::new();
        };
        let own = inner.meters.swap_remove(at);
        let mut due = own.due;
        due.extend(own.meter.end(now));
        due
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use infergate_core::model::{Algorithm, EndpointSpec, ModelSpec};

    use super::*;
    use crate::telemetry::Clock;
    use crate::upstream::gate::GateEntry;
    use crate::upstream::gate::fixtures::{ask, spec};
    use crate::upstream::slot_target;

    #[tokio::test(start_paused = true)]
    async fn a_meter_counts_from_the_first_permit_to_the_last_and_ends_with_all_its_time() {
        let model = spec(Algorithm::Fair);
        let model = ModelSpec {
            endpoints: vec![EndpointSpec::slot(&model.id, 0, 2)],
            ..model
        };
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        let slot = Arc::clone(&model.endpoints[0].url);
        let every = Millis::from_secs(3600);
        gate.meter_slot(&slot, InstanceMeter::new(every, gate.clock.now()));
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4001));
        let timeout = std::time::Duration::from_secs(1);
        let target = slot_target((&*slot, "m#0-1", "m"), address, None, timeout).unwrap();
        gate.open_slot(&slot, target);
        let permit = || match gate.request_permit(ask("a")).1 {
            Ok(GateEntry::Leased(permit)) => permit,
            _ => panic!("a permit is free"),
        };
        let in_flight = |gate: &AdmissionGate| gate.inner.lock().meters[0].in_flight;
        let (first, second) = (permit(), permit());
        assert_eq!(in_flight(&gate), 2);
        // A drain closes the slot; what runs still counts.
        gate.close_slot(&slot, "draining");
        drop(first);
        assert_eq!(in_flight(&gate), 1);
        assert!(gate.take_slot_times(&slot).is_empty(), "nothing is due");
        drop(second);
        assert_eq!(in_flight(&gate), 0);
        gate.end_slot_meter(&slot);
        assert!(gate.inner.lock().meters.is_empty());
        assert!(gate.end_slot_meter(&slot).is_empty(), "once");
    }
}
