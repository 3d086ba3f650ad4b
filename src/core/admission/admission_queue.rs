//! The admission queue of one model: grants a permit now, queues the request, or refuses it.
//!
//! Neither a waker nor a clock: every outcome is a value, and outcomes for other waiters are appended
//! to [`WaiterUpdates`]. The reason why an endpoint is not usable is unknown here. Times are [`Millis`] since
//! start; `random` is any number, drawn anew for each call. Queues are bounded by the
//! model's [`QueueSpec`](crate::model::QueueSpec), durable ones by its permits. Called by the shell under
//! one mutex per model.
//! Known in the source system as the endpoint group's `find_best_available_endpoint` with the
//! queue's processor.

mod classes;
mod cold;
mod inspection;
mod reservation;
mod unhealthy;

use super::class_share::ClassShare;
use super::discipline::{Discipline, Waiter, Waiters};
use super::disciplines::discipline_for;
use super::endpoint_id::EndpointId;
use super::endpoints::Endpoints;
use super::order::EndpointOrder;
use super::permit_class::{ClassTurn, PermitClass};
use super::permit_request::{
    AdmissionOutcome, PermitId, PermitRequest, QueueTicket, WaiterUpdates,
};
use super::permits::Permits;
use super::queue::Queue;
use super::server::{GateId, Handoff, ServerMembership};
use super::service_time::retry_after;
use super::slab::{Slab, SlotKey};
use crate::model::{Algorithm, JobSpec, ModelSpec, WhenUnhealthy, is_slot};
use crate::{AccountId, Millis, Refusal};
pub use cold::{Readiness, RequestCounts, WaitingRequest};

/// Margin on an estimated wait, percent. Without it a queue under overload grows until every request gets
/// its permit with just too little time left, and all work is wasted.
const WAIT_MARGIN_PERCENT: u64 = 10;

/// Permits and queue of one model.
pub struct AdmissionQueue {
    endpoints: Endpoints,
    permits: Permits,
    waiters: Waiters,
    /// Waiters that are bounded elsewhere, durable ones included.
    outside: usize,
    /// Order of the live waiters.
    discipline: Box<dyn Discipline>,
    /// Durable waiters in order of arrival.
    durable: Queue,
    /// Permits in use that durable requests hold.
    durable_used: u32,
    /// Permits that durable requests may hold at once, at the usable endpoints.
    durable_max: u32,
    classes: ClassShare,
    last_turn: Option<ClassTurn>,
    jobs: JobSpec,
    algorithm: Algorithm,
    account_capacity: usize,
    total_capacity: usize,
    when_unhealthy: WhenUnhealthy,
    /// Longest wait while no endpoint is usable.
    unhealthy_wait: Millis,
    /// Time at which the last endpoint became unusable.
    unusable_since: Option<Millis>,
    /// Latest success, while every usable endpoint keeps failing.
    failing_since: Option<Millis>,
    /// Expectation for a model with slots while none is ready; none for a model without slots.
    readiness: Option<Readiness>,
    /// Requests and permits since the latest look at them.
    counts: RequestCounts,
    gate: GateId,
    /// Every server of a usable endpoint was notified that requests wait here.
    is_announced: bool,
    /// Some server may count requests as waiting here.
    is_awaited: bool,
}

impl AdmissionQueue {
    /// Creates a queue with all endpoints usable, no permit in use and no waiters.
    pub fn new(spec: &ModelSpec, now: Millis) -> AdmissionQueue {
        AdmissionQueue::with_servers(spec, &ServerMembership::NONE, now)
    }

    /// The same, with endpoints that share their servers' permits with other admission queues.
    pub fn with_servers(
        spec: &ModelSpec,
        servers: &ServerMembership<'_>,
        now: Millis,
    ) -> AdmissionQueue {
        let mut turnstile = AdmissionQueue {
            endpoints: Endpoints::default(),
            permits: Permits::new(),
            waiters: Slab::new(),
            outside: 0,
            discipline: discipline_for(spec.queue.algorithm),
            durable: Queue::default(),
            durable_used: 0,
            durable_max: 0,
            classes: ClassShare::new(spec.jobs.share_percent),
            last_turn: None,
            jobs: spec.jobs.clone(),
            algorithm: spec.queue.algorithm,
            account_capacity: 0,
            total_capacity: 0,
            when_unhealthy: spec.queue.when_unhealthy,
            unhealthy_wait: Millis::ZERO,
            unusable_since: None,
            failing_since: None,
            readiness: None,
            counts: RequestCounts::default(),
            gate: servers.gate,
            is_announced: false,
            is_awaited: false,
        };
        for class in PermitClass::ALL {
            turnstile.classes.record_grant(class, now);
        }
        // No permit is in use yet that could become free.
        let _ = turnstile.limit(spec, servers, now);
        turnstile
    }

    /// Requests a permit.
    pub fn request_permit(
        &mut self,
        request: PermitRequest,
        now: Millis,
        random: u64,
    ) -> AdmissionOutcome {
        if now >= request.deadline {
            return AdmissionOutcome::Full(Refusal::DeadlinePassed);
        }
        let class = request.class;
        // Counted where it is asked for again, or was asked for before.
        let goes_on = request.has_alternative && class == PermitClass::Live && self.is_unusable();
        if !request.is_retry && !goes_on {
            self.counts.record_arrival(request.priority);
        }
        // While a request waits that could use a permit none is free, and if one were it would be its own.
        if self.may_take(class)
            && let Some(endpoint) =
                self.take_endpoint(&request.avoid, request.endpoint_order.as_deref(), random)
        {
            if class == PermitClass::Live {
                self.discipline.charge_immediate(&request);
            }
            let turn = self.turn_alone(class);
            return AdmissionOutcome::Leased(self.lease(endpoint, None, turn, now));
        }
        if class == PermitClass::Durable {
            return self.queue_durable(request, now);
        }
        if self.is_closed() {
            return AdmissionOutcome::Full(self.closed_refusal());
        }
        if request.has_alternative && self.is_unusable() {
            return AdmissionOutcome::Full(Refusal::NoHealthyEndpoint);
        }
        self.queue(request, now)
    }

    fn queue(&mut self, request: PermitRequest, now: Millis) -> AdmissionOutcome {
        let estimate = self.discipline.estimate(&request);
        let own_wait = self.wait(estimate.grants_ahead, now);
        let wait = own_wait + self.load_wait(now);
        let retry_after = retry_after(wait);
        if request.no_wait {
            return AdmissionOutcome::Full(Refusal::Busy { retry_after });
        }
        let is_unbounded = request.is_retry || request.is_bounded_elsewhere;
        let fits = is_unbounded || self.has_capacity(estimate.queue_depth);
        if !fits || self.waiters.is_full() {
            return AdmissionOutcome::Full(Refusal::QueueFull { retry_after });
        }
        if let Some(refusal) = self.cold_refusal(&request, own_wait, now) {
            return AdmissionOutcome::Full(refusal);
        }
        let margin = Millis(wait.0 / 100 * WAIT_MARGIN_PERCENT);
        let end = now + wait + margin + self.live_holds().optimistic_service();
        // While no request is served no estimate holds; requests wait for an endpoint to recover.
        let is_served = self.endpoints.totals().usable > 0;
        if is_served && self.live_holds().is_reliable() && end > request.deadline {
            return AdmissionOutcome::Full(Refusal::CannotStartInTime { retry_after });
        }
        self.outside += usize::from(is_outside(&request));
        let place = self.waiters.insert(Waiter {
            request,
            joined: now,
            account_queue: estimate.account_queue,
        });
        self.discipline.join(&mut self.waiters, place);
        if let Some(grant) = self.lease_on_arrival(place, now) {
            return AdmissionOutcome::Leased(grant);
        }
        let position = estimate.grants_ahead + 1;
        AdmissionOutcome::Queued {
            ticket: self.ticket(place),
            position,
            expected_wait: wait,
        }
    }

    /// Releases a permit, which goes to the next waiter. Ignores one that was released before.
    pub fn release(
        &mut self,
        permit: PermitId,
        now: Millis,
        random: u64,
        wakes: &mut WaiterUpdates,
    ) {
        let Some(returned) = self.permits.release(permit, now) else {
            return;
        };
        let handoff = self.take_back(permit, &returned, now);
        if let Some(hold) = returned.hold {
            self.classes.record_hold(returned.class, hold, now);
        }
        match handoff {
            Some(handoff) if handoff.gate() == self.gate => self.accept(handoff, now, wakes),
            handoff => wakes.handoffs.extend(handoff),
        }
        self.admit(now, random, wakes);
    }

    /// Marks a permit as one that no request had: the time it is held for tells nothing of requests.
    pub fn mark_unused(&mut self, permit: PermitId) {
        self.permits.unassign(permit);
    }

    /// Accepts a permit that a server reserved for this admission queue: the next waiter gets it, or it is
    /// passed on to another queue.
    pub fn accept(&mut self, handoff: Handoff, now: Millis, wakes: &mut WaiterUpdates) {
        match self.endpoints.take_handoff(handoff) {
            Ok(endpoint) => self.serve_at(endpoint, now, wakes),
            Err(handoff) => wakes.handoffs.extend(handoff.decline()),
        }
    }

    /// Checks again whether a server has a permit for the waiters. To be called about once a second, to find
    /// handoffs that were dropped instead of delivered.
    pub fn poll(&mut self, now: Millis, wakes: &mut WaiterUpdates) {
        while self.wants_permit()
            && let Some(endpoint) = self.announce(true)
        {
            self.serve_at(endpoint, now, wakes);
        }
    }

    /// Removes a waiter whose client left or whose deadline passed. Returns false when the waiter has its
    /// outcome already, in some [`WaiterUpdates`].
    pub fn cancel(&mut self, ticket: QueueTicket, now: Millis) -> bool {
        let Some(place) = self.waiters.find(ticket.0) else {
            return false;
        };
        self.remove_waiter(place);
        self.update_demand(now);
        self.withdraw();
        true
    }

    /// Corrects the charge of a request from `charged` to `actual` tokens. Best called before its permit is
    /// released, so that the next grant uses the correction.
    pub fn correct_tokens(&mut self, account: &AccountId, weight: u32, charged: u64, actual: u64) {
        self.discipline
            .correct_tokens(account, weight, charged, actual);
    }

    /// Sets the health or ejection of an endpoint, as decided outside.
    pub fn set_usable(
        &mut self,
        endpoint: EndpointId,
        usable: bool,
        now: Millis,
        random: u64,
        wakes: &mut WaiterUpdates,
    ) {
        self.endpoints.set_usable(endpoint, usable);
        self.limit_durable();
        self.record_usability(now);
        self.is_announced = false;
        self.reject_unserveable(wakes);
        self.admit(now, random, wakes);
    }

    /// Applies a changed configuration. Permits in use stay valid; waiters stay queued, under a new algorithm
    /// as far as its bounds allow.
    pub fn configure(
        &mut self,
        spec: &ModelSpec,
        now: Millis,
        random: u64,
        wakes: &mut WaiterUpdates,
    ) {
        self.configure_sharing(spec, &ServerMembership::NONE, now, random, wakes);
    }

    /// The same, with endpoints that share their servers' permits with other admission queues.
    pub fn configure_sharing(
        &mut self,
        spec: &ModelSpec,
        servers: &ServerMembership<'_>,
        now: Millis,
        random: u64,
        wakes: &mut WaiterUpdates,
    ) {
        self.gate = servers.gate;
        wakes.handoffs.extend(self.limit(spec, servers, now));
        // New endpoints were not notified of the waiters.
        self.is_announced = false;
        self.when_unhealthy = spec.queue.when_unhealthy;
        self.record_usability(now);
        self.reject_unserveable(wakes);
        self.admit(now, random, wakes);
        if spec.queue.algorithm != self.algorithm {
            self.algorithm = spec.queue.algorithm;
            self.requeue_all(wakes);
            self.withdraw();
        }
    }

    fn limit(
        &mut self,
        spec: &ModelSpec,
        servers: &ServerMembership<'_>,
        now: Millis,
    ) -> Vec<Handoff> {
        let handoffs = self.endpoints.configure(&spec.endpoints, servers);
        let has_slots = spec.endpoints.iter().any(|it| is_slot(&it.url));
        self.readiness = has_slots.then(|| self.readiness.unwrap_or_default());
        self.jobs = spec.jobs.clone();
        self.classes.configure(spec.jobs.share_percent, now);
        self.limit_durable();
        self.unhealthy_wait = Millis::from_secs(spec.queue.when_unhealthy_wait_secs);
        self.account_capacity = spec.queue.line_capacity(spec.permits());
        self.total_capacity = spec.queue.total_capacity as usize;
        handoffs
    }

    /// Moves all live waiters into the new discipline's queues in the order of arrival; refuses those beyond
    /// the new bounds.
    fn requeue_all(&mut self, wakes: &mut WaiterUpdates) {
        self.discipline = discipline_for(self.algorithm);
        let live = self.waiters.iter();
        let live = live.filter(|(_, waiter)| waiter.request.class == PermitClass::Live);
        let mut places: Vec<SlotKey> = live.map(|(place, _)| place).collect();
        places.sort_unstable_by_key(|&place| self.waiters.key(place));
        let mut joined = 0;
        for place in places {
            let request = &self.waiters[place].request;
            let (resume, is_outside) = (request.is_retry, request.is_bounded_elsewhere);
            let estimate = self.discipline.estimate(request);
            let fits = estimate.queue_depth < self.account_capacity && joined < self.total_capacity;
            if fits || resume || is_outside {
                self.waiters[place].account_queue = estimate.account_queue;
                self.discipline.join(&mut self.waiters, place);
                joined += usize::from(!is_outside);
            } else {
                wakes.refusals.push((self.ticket(place), Refusal::Evicted));
                self.forget(place);
            }
        }
    }

    /// Returns the endpoint with `url`, configured or draining.
    pub fn endpoint(&self, url: &str) -> Option<EndpointId> {
        self.endpoints.find(url)
    }

    /// Permits used and allowed at an endpoint that is configured.
    pub fn permits(&self, endpoint: EndpointId) -> Option<(u32, u32)> {
        self.endpoints.permits(endpoint)
    }

    /// Returns the permits of this model in use at an endpoint, configured or draining.
    pub fn used(&self, endpoint: EndpointId) -> u32 {
        self.endpoints.own_used(endpoint)
    }

    /// Returns the expected time until all present live waiters have a permit and one more is free; zero while
    /// one is free.
    pub fn expected_wait(&self, now: Millis) -> Millis {
        if !self.wants_permit() && self.endpoints.has_open() {
            return Millis::ZERO;
        }
        self.wait(self.live_waiting(), now) + self.load_wait(now)
    }

    /// Returns how many more live requests may queue. With one queue per account, computed as if all waiters were in
    /// one.
    pub fn free_slots(&self) -> usize {
        let capacity = self.account_capacity.min(self.total_capacity);
        capacity.saturating_sub(self.bounded_waiters())
    }

    /// Grants free permits to waiters until either runs out. Waiters that would be late are refused instead.
    /// Each waiter gets one outcome, so the cost is O(1) amortised. Finally notifies the servers whether
    /// requests wait here.
    fn admit(&mut self, now: Millis, mut random: u64, wakes: &mut WaiterUpdates) {
        while let Some((place, turn)) = self.next_turn(now) {
            if !self.endpoints.has_open() {
                break;
            } else if let Some(refusal) = self.give_up_refusal(place, now) {
                self.refuse(place, refusal, wakes);
            } else if let Some(endpoint) = self.take_for(place, random) {
                self.serve(endpoint, place, turn, now, wakes);
                random = splitmix64(random);
            } else {
                break;
            }
        }
        self.withdraw();
        while !self.is_announced
            && self.wants_permit()
            && let Some(endpoint) = self.announce(false)
        {
            self.serve_at(endpoint, now, wakes);
        }
    }

    /// Grants a permit that was taken at `endpoint` to the next waiter in time; returns it to the server when
    /// there is none.
    fn serve_at(&mut self, endpoint: EndpointId, now: Millis, wakes: &mut WaiterUpdates) {
        while !self.permits.is_full()
            && let Some((place, turn)) = self.next_turn(now)
        {
            if let Some(refusal) = self.give_up_refusal(place, now) {
                self.refuse(place, refusal, wakes);
                continue;
            }
            let weight = self.waiting_weight();
            self.serve(endpoint, place, turn, now, wakes);
            self.endpoints.set_weight(endpoint, weight);
            self.withdraw();
            return;
        }
        self.retract();
        wakes.handoffs.extend(self.endpoints.release(endpoint));
    }

    /// Grants the permit that was taken at `endpoint` to the waiter at `place`, whose turn it is.
    fn serve(
        &mut self,
        endpoint: EndpointId,
        place: SlotKey,
        turn: ClassTurn,
        now: Millis,
        wakes: &mut WaiterUpdates,
    ) {
        self.leave_served(place);
        let ticket = self.ticket(place);
        self.forget(place);
        let grant = self.lease(endpoint, Some(ticket), turn, now);
        wakes.grants.push(grant);
    }

    /// Notifies the servers of usable endpoints that requests wait here. Stops at an endpoint whose server had
    /// a permit, takes it and returns the endpoint.
    fn announce(&mut self, again: bool) -> Option<EndpointId> {
        if self.permits.is_full() {
            return None;
        }
        self.is_awaited = true;
        let weight = self.waiting_weight();
        let taken = self.endpoints.announce(Some(weight), again);
        self.is_announced = taken.is_none();
        taken
    }

    /// Withdraws the notification once no request waits here that could use a permit.
    fn withdraw(&mut self) {
        if self.is_awaited && !self.wants_permit() {
            self.retract();
        }
    }

    fn retract(&mut self) {
        self.is_announced = false;
        self.is_awaited = false;
        let _ = self.endpoints.announce(None, false);
    }

    fn late_refusal(&self, deadline: Millis, now: Millis) -> Option<Refusal> {
        if now >= deadline {
            return Some(Refusal::DeadlinePassed);
        }
        let late = now + self.live_holds().optimistic_service() > deadline;
        late.then(|| Refusal::CannotStartInTime {
            retry_after: retry_after(self.expected_wait(now)),
        })
    }

    fn refuse(&mut self, place: SlotKey, refusal: Refusal, wakes: &mut WaiterUpdates) {
        wakes.refusals.push((self.ticket(place), refusal));
        self.remove_waiter(place);
    }

    fn remove_waiter(&mut self, place: SlotKey) {
        match self.waiters[place].request.class {
            PermitClass::Live => self.discipline.cancel(&mut self.waiters, place),
            PermitClass::Durable => self.durable.remove(&mut self.waiters, place),
        }
        self.forget(place);
    }

    /// Frees the slot of a waiter that no queue has any more.
    fn forget(&mut self, place: SlotKey) {
        let waiter = self.waiters.remove(place);
        self.outside -= usize::from(is_outside(&waiter.request));
    }

    fn take_for(&mut self, place: SlotKey, random: u64) -> Option<EndpointId> {
        if self.permits.is_full() {
            return None;
        }
        let request = &self.waiters[place].request;
        let order = request.endpoint_order.as_deref();
        self.endpoints.take_one(order, &request.avoid, random)
    }

    fn take_endpoint(
        &mut self,
        avoid: &[EndpointId],
        order: Option<&EndpointOrder>,
        random: u64,
    ) -> Option<EndpointId> {
        if self.permits.is_full() {
            return None;
        }
        self.endpoints.take_one(order, avoid, random)
    }

    fn has_capacity(&self, line_depth: usize) -> bool {
        line_depth < self.account_capacity && self.bounded_waiters() < self.total_capacity
    }

    /// Waiters within the queue's bounds.
    fn bounded_waiters(&self) -> usize {
        self.waiters.len() - self.outside
    }

    /// Returns whether no endpoint can take a request and requests do not wait for one.
    fn is_closed(&self) -> bool {
        self.when_unhealthy == WhenUnhealthy::Refuse && self.is_unusable() && !self.is_cold()
    }

    /// Returns whether no endpoint can take a request.
    fn is_unusable(&self) -> bool {
        self.endpoints.totals().usable == 0
    }

    fn ticket(&self, place: SlotKey) -> QueueTicket {
        QueueTicket(self.waiters.key(place))
    }
}

/// Returns whether a request takes no place within the queue's bounds.
fn is_outside(request: &PermitRequest) -> bool {
    request.is_bounded_elsewhere || request.class == PermitClass::Durable
}

/// Returns the next number after `random`: the output step of splitmix64
/// (<https://prng.di.unimi.it/splitmix64.c>), so that one random number serves several grants.
fn splitmix64(random: u64) -> u64 {
    let mut z = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
