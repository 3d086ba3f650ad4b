//! The two classes of an admission queue: durable waiters, whose turn it is, and grants with their charges.
//!
//! Not the shares themselves, which are in [`class_share`](crate::admission::class_share). Durable requests wait
//! in order of arrival, at most as many as the model has permits; retries come first and are bounded by the
//! permits they had. They wait while endpoints are unhealthy, and leave by their deadline, by
//! [`AdmissionQueue::cancel`] or with the model's last endpoint.

use super::AdmissionQueue;
use crate::admission::class_share::{ClassDemand, PermitCharge};
use crate::admission::discipline::Waiter;
use crate::admission::endpoint_id::EndpointId;
use crate::admission::permit_class::{ClassChoice, ClassTurn, PermitClass};
use crate::admission::permit_request::{
    AdmissionOutcome, Grant, PermitId, PermitRequest, QueueTicket,
};
use crate::admission::permits::ReleasedPermit;
use crate::admission::server::Handoff;
use crate::admission::service_time::{ServiceTimeEstimator, retry_after};
use crate::admission::slab::SlotKey;
use crate::{Millis, Refusal};

impl AdmissionQueue {
    /// Queues a durable request that found no permit.
    pub(super) fn queue_durable(
        &mut self,
        request: PermitRequest,
        now: Millis,
    ) -> AdmissionOutcome {
        let totals = self.endpoints.totals();
        if totals.configured == 0 {
            return AdmissionOutcome::Full(Refusal::Evicted);
        }
        let is_retry = request.is_retry;
        let ahead = if is_retry { 0 } else { self.durable.len() };
        let expected_wait = self.wait_of(PermitClass::Durable, ahead, now);
        let retry_after = retry_after(expected_wait);
        if request.no_wait {
            return AdmissionOutcome::Full(Refusal::Busy { retry_after });
        }
        let fits = is_retry || self.durable.len() < totals.limit as usize;
        if !fits || self.waiters.is_full() {
            return AdmissionOutcome::Full(Refusal::QueueFull { retry_after });
        }
        self.classes.activate(now);
        self.outside += 1;
        let place = self.waiters.insert(Waiter {
            request,
            joined: now,
            account_queue: None,
        });
        match is_retry {
            true => self.durable.push_front(&mut self.waiters, place),
            false => self.durable.push_back(&mut self.waiters, place),
        }
        if let Some(grant) = self.lease_on_arrival(place, now) {
            return AdmissionOutcome::Leased(grant);
        }
        AdmissionOutcome::Queued {
            ticket: self.ticket(place),
            position: ahead + 1,
            expected_wait,
        }
    }

    /// Grants a permit that another model released since to the waiter at `place`, which has just joined.
    /// Without a notification of the servers it is the only one that could use a permit.
    pub(super) fn lease_on_arrival(&mut self, place: SlotKey, now: Millis) -> Option<Grant> {
        self.update_demand(now);
        if self.is_announced || !self.wants_permit() {
            return None;
        }
        let endpoint = self.announce(false)?;
        let turn = self.turn_alone(self.waiters[place].request.class);
        self.leave_served(place);
        self.forget(place);
        let grant = self.lease(endpoint, None, turn, now);
        self.withdraw();
        Some(grant)
    }

    /// Returns whether a waiter could use a permit. None is free then.
    pub(super) fn wants_permit(&self) -> bool {
        self.waiters.len() > 0 && (self.live_waiting() > 0 || self.durable_could_take())
    }

    /// Returns whether a request of `class` that arrives now may take a free permit.
    pub(super) fn may_take(&self, class: PermitClass) -> bool {
        let is_below_cap = class == PermitClass::Live || self.durable_used < self.durable_max;
        is_below_cap && !self.wants_permit()
    }

    /// Returns the number of live waiters.
    pub(super) fn live_waiting(&self) -> usize {
        self.waiters.len() - self.durable.len()
    }

    fn durable_could_take(&self) -> bool {
        !self.durable.is_empty() && self.durable_used < self.durable_max
    }

    /// Returns the waiter that gets the next permit, and why its class does.
    pub(super) fn next_turn(&mut self, now: Millis) -> Option<(SlotKey, ClassTurn)> {
        self.update_demand(now);
        if self.waiters.len() == 0 {
            return None;
        }
        self.next_of_waiters(now)
    }

    fn next_of_waiters(&mut self, now: Millis) -> Option<(SlotKey, ClassTurn)> {
        let live = self.discipline.next();
        let durable = self.durable.head().filter(|_| self.durable_could_take());
        match (live, durable) {
            (Some(live), Some(durable)) => {
                let turn = self.classes.choose(now);
                match turn.class {
                    PermitClass::Live => Some((live, turn)),
                    PermitClass::Durable => Some((durable, turn)),
                }
            }
            (Some(live), None) => Some((live, self.turn_alone(PermitClass::Live))),
            (None, Some(durable)) => Some((durable, self.turn_alone(PermitClass::Durable))),
            (None, None) => None,
        }
    }

    /// Returns the turn of a class while the other has no waiter that could use a permit.
    pub(super) fn turn_alone(&self, class: PermitClass) -> ClassTurn {
        let choice = match class {
            PermitClass::Live if !self.durable.is_empty() => ClassChoice::CapReached,
            PermitClass::Live | PermitClass::Durable => ClassChoice::OnlyWaiting,
        };
        ClassTurn { class, choice }
    }

    /// Removes a waiter that gets a permit from its queue: the next one of its class.
    pub(super) fn leave_served(&mut self, place: SlotKey) {
        match self.waiters[place].request.class {
            PermitClass::Live => self.discipline.serve_next(&mut self.waiters),
            PermitClass::Durable => self.durable.remove(&mut self.waiters, place),
        }
    }

    /// Records a permit that was taken at `endpoint`, and charges its class.
    pub(super) fn lease(
        &mut self,
        endpoint: EndpointId,
        ticket: Option<QueueTicket>,
        turn: ClassTurn,
        now: Millis,
    ) -> Grant {
        let class = turn.class;
        if class == PermitClass::Durable {
            self.durable_used += 1;
            self.classes.activate(now);
        }
        self.classes.record_grant(class, now);
        self.counts.record_grant();
        let permit = match self.classes.is_active() {
            true => self.issue_charged(endpoint, class, now),
            false => self.permits.issue(endpoint, class, Millis::ZERO, now),
        };
        self.last_turn = Some(turn);
        Grant {
            permit,
            endpoint,
            ticket,
            turn,
        }
    }

    #[inline(never)]
    fn issue_charged(&mut self, endpoint: EndpointId, class: PermitClass, now: Millis) -> PermitId {
        let expected = self.classes.expected_hold(class, now);
        let permit = self.permits.issue(endpoint, class, expected, now);
        self.classes
            .charge(class, PermitCharge::new(permit, now, expected));
        self.update_demand(now);
        permit
    }

    /// Frees a released permit at its endpoint and corrects its charge.
    pub(super) fn take_back(
        &mut self,
        permit: PermitId,
        returned: &ReleasedPermit,
        now: Millis,
    ) -> Option<Handoff> {
        if returned.class == PermitClass::Durable {
            self.durable_used -= 1;
        }
        if returned.expected > Millis::ZERO {
            let charge = PermitCharge::new(permit, returned.since, returned.expected);
            self.classes.settle(returned.class, charge, now);
        }
        self.endpoints.release(returned.endpoint)
    }

    /// Reports the demand of both classes to the sharing, where there is one.
    pub(super) fn update_demand(&mut self, now: Millis) {
        if self.classes.is_active() {
            self.report_demand(now);
        }
    }

    #[inline(never)]
    fn report_demand(&mut self, now: Millis) {
        let live_used = self.endpoints.totals().used - self.durable_used;
        let live = demand(self.live_waiting() > 0, live_used > 0);
        let durable_left = self.durable_used > 0 || !self.durable.is_empty();
        let durable = demand(self.durable_could_take(), durable_left);
        self.classes.set_demand(live, durable, now);
    }

    /// Sets the bound of the permits that durable requests hold: a part of those at usable endpoints.
    pub(super) fn limit_durable(&mut self) {
        let usable = self.endpoints.totals().usable_limit;
        self.durable_max = self.jobs.permits_max(usable);
    }

    /// Returns the weight of the waiters that could use a permit, against those of other models at a shared
    /// server. Durable ones weigh as one account of weight 1.
    pub(super) fn waiting_weight(&self) -> u64 {
        let live = match self.live_waiting() {
            0 => 0,
            _ => self.discipline.weight(&self.waiters),
        };
        live + u64::from(self.durable_could_take())
    }

    /// Returns the hold times of live requests.
    pub(super) fn live_holds(&self) -> &ServiceTimeEstimator {
        self.classes.holds(PermitClass::Live)
    }

    /// Returns the expected wait of a live request behind `ahead` others, at the endpoints in use now; while
    /// there is none, as if all recovered.
    pub(super) fn wait(&self, ahead: usize, now: Millis) -> Millis {
        self.wait_of(PermitClass::Live, ahead, now)
    }

    fn wait_of(&self, class: PermitClass, ahead: usize, now: Millis) -> Millis {
        let totals = self.endpoints.totals();
        let permits = match totals.usable_limit {
            0 => totals.limit.max(1),
            usable => usable,
        };
        let live_used = totals.used - self.durable_used;
        let (used, other_max) = match class {
            PermitClass::Live if self.durable.is_empty() => (live_used, self.durable_used),
            PermitClass::Live => (live_used, self.durable_used.max(self.durable_max)),
            PermitClass::Durable if self.live_waiting() == 0 => (self.durable_used, live_used),
            PermitClass::Durable => (self.durable_used, permits),
        };
        let permits = self.classes.permits_of(class, permits, other_max);
        let permits = match class {
            PermitClass::Live => permits,
            PermitClass::Durable => permits.min(f64::from(self.durable_max.max(1))),
        };
        // Without permits in use none is released: that silence says nothing about holds.
        let now = if used > 0 { now } else { Millis::ZERO };
        self.classes.holds(class).expected_wait(ahead, permits, now)
    }
}

/// Returns the demand of a class: whether a waiter could use a permit, and whether any request is left.
fn demand(could_take: bool, is_left: bool) -> ClassDemand {
    match (could_take, is_left) {
        (true, _) => ClassDemand::Waiting,
        (false, true) => ClassDemand::Served,
        (false, false) => ClassDemand::Idle,
    }
}
