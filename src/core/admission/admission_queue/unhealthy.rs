//! Waiting while no endpoint of the model is usable, or all usable ones keep failing, and its bound.
//!
//! Durable requests wait without that bound. The reason why an endpoint is not usable, and the definition
//! of a failure, are the shell's.

use super::AdmissionQueue;
use crate::admission::permit_class::PermitClass;
use crate::admission::permit_request::{PermitRequest, WaiterUpdates};
use crate::admission::slab::SlotKey;
use crate::{Millis, Refusal};

impl AdmissionQueue {
    /// Refuses live waiters when no endpoint is usable: those with a fallback model, or all where the model's
    /// requests do not wait. Durable ones leave with the last endpoint of the configuration. Visits every
    /// waiter once, when the last endpoint becomes unusable; later requests are refused on arrival.
    pub(super) fn reject_unserveable(&mut self, wakes: &mut WaiterUpdates) {
        if !self.is_unusable() {
            return;
        }
        let (is_closed, is_removed) = (self.is_closed(), self.endpoints.totals().configured == 0);
        let refusal = |request: &PermitRequest| match request.class {
            PermitClass::Live if request.has_alternative => Some(Refusal::NoHealthyEndpoint),
            PermitClass::Live => is_closed.then(|| self.closed_refusal()),
            PermitClass::Durable => is_removed.then_some(Refusal::Evicted),
        };
        let waiters = self.waiters.iter();
        let refused = waiters.filter_map(|(place, w)| Some((place, refusal(&w.request)?)));
        let mut refused: Vec<(SlotKey, Refusal)> = refused.collect();
        refused.sort_unstable_by_key(|&(place, _)| self.waiters.key(place));
        for (place, refusal) in refused {
            self.refuse(place, refusal, wakes);
        }
    }

    /// Returns the refusal while no endpoint is usable: a model that left the configuration has none.
    pub(super) fn closed_refusal(&self) -> Refusal {
        match self.endpoints.totals().configured {
            0 => Refusal::Evicted,
            _ => Refusal::NoHealthyEndpoint,
        }
    }

    pub(super) fn record_usability(&mut self, now: Millis) {
        match self.is_unusable() {
            true => _ = self.unusable_since.get_or_insert(now),
            false => self.unusable_since = None,
        }
    }

    /// Sets the time of the latest success while every usable endpoint keeps failing, `None` otherwise.
    /// Requests then wait no longer than for an endpoint to recover: permits held by slow failures serve
    /// no request.
    pub fn set_failing(&mut self, failing_since: Option<Millis>) {
        self.failing_since = failing_since;
    }

    /// Returns the refusal of a waiter that is to get no permit any more.
    pub(super) fn give_up_refusal(&self, place: SlotKey, now: Millis) -> Option<Refusal> {
        let waiter = &self.waiters[place];
        if waiter.request.class == PermitClass::Durable {
            return (now >= waiter.request.deadline).then_some(Refusal::DeadlinePassed);
        }
        let is_over = |since: Millis| now.since(since) >= self.unhealthy_wait;
        if self.failing_since.is_some_and(is_over) && is_over(waiter.joined) {
            return Some(Refusal::NoHealthyEndpoint);
        }
        self.late_refusal(waiter.request.deadline, now)
    }

    /// Refuses live requests that have waited long enough for an endpoint to recover. To be called about
    /// once a second; it visits every waiter while no endpoint is usable or all keep failing.
    pub fn expire_unhealthy(&mut self, now: Millis, wakes: &mut WaiterUpdates) {
        if self.is_cold() {
            // A load is no failure: these wait for it up to their deadline.
            return;
        }
        let wait = self.unhealthy_wait;
        let is_over = |since: Millis| now.since(since) >= wait;
        if !self.unusable_since.is_some_and(is_over) && !self.failing_since.is_some_and(is_over) {
            return;
        }
        let live = self.waiters.iter();
        let live = live.filter(|(_, w)| w.request.class == PermitClass::Live);
        let over = live.filter(|(_, w)| is_over(w.joined));
        let over: Vec<SlotKey> = over.map(|(place, _)| place).collect();
        for place in over {
            self.refuse(place, Refusal::NoHealthyEndpoint, wakes);
        }
        self.update_demand(now);
    }
}
