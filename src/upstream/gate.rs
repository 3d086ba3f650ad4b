//! Admission of one model: the locked shell around its turnstile, with permits as guards and
//! waiters as futures.
//!
//! Decisions are [`AdmissionQueue`]'s (who enters) and [`Ejector`]'s (which endpoint is fit). Both are
//! called under one small mutex, and the waiters they name are woken. The lock is held for the
//! length of one decision and never across an await. No task runs per waiter.

mod client_demand;
mod cold_requests;
mod held;
mod readings;
mod retry;
mod slot_meter;
mod slot_meters;
mod slots;
mod snapshot;
mod waiter;

use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use infergate_core::admission::{
    AdmissionOutcome, AdmissionQueue, ClassTurn, EndpointId, GateId, Grant, Handoff, PermitId,
    PermitRequest, QueueTicket, ServerMembership, WaiterUpdates,
};
use infergate_core::model::{ModelSpec, is_slot};
use infergate_core::routing::{
    AccountKey, Ejector, EndpointSignal, FailureCause, Health, Observation, RetryBudget,
    UsabilityChange,
};
use infergate_core::{AccountId, Millis, ModelId, Refusal};
use tokio::sync::oneshot;

use super::backends::ServerMetrics;
use super::check_request::request_check;
use super::left_runs::OpenRuns;
use super::servers::{HandoffReceiver, SharedServers};
use super::sync::Mutex;
use super::target::Target;
use crate::telemetry::Clock;
use cold_requests::ColdRequests;
pub use cold_requests::ColdSignal;

pub use retry::RetryPlan;
use slot_meter::SlotMeter;
pub use slots::slot_target;
use slots::{GateSlots, RefusedRequest};
pub use snapshot::{AdmissionSnapshot, ColdPlace, ColdState};
use snapshot::{EndpointUrls, GateView};
pub use waiter::{WaitProgress, Waiter};

/// Longest wait that a permit tells, microseconds: an hour.
const WAIT_US_MAX: u64 = 3_600_000_000;

/// Admission of one model, alive as long as the model is configured or a permit is held.
pub struct AdmissionGate {
    pub(super) clock: Clock,
    id: GateId,
    /// The servers its endpoints are at, and the other gates that have endpoints there.
    servers: Arc<SharedServers>,
    model: ModelId,
    /// Requests that no slot serves, and the owner that is woken for them.
    cold: ColdRequests,
    /// Runs of its permits at servers that do not end them with the connection.
    runs: OpenRuns,
    /// Guards the decisions and who waits for them. Held by: askers, permits being dropped,
    /// waiters leaving, probes reporting, reloads.
    inner: Mutex<GateState>,
}

struct GateState {
    turnstile: AdmissionQueue,
    ejector: Ejector,
    retries: RetryBudget,
    targets: Vec<Option<Arc<Target>>>,
    /// URLs of the targets, for traces.
    urls: EndpointUrls,
    waiting: HashMap<QueueTicket, oneshot::Sender<GrantResult>>,
    wakes: WaiterUpdates,
    slots: GateSlots,
    /// Meters of the slots that serve.
    meters: Vec<SlotMeter>,
}

/// Result for a waiter: its grant with the target it is for, or why there is none.
type GrantResult = Result<(Grant, GrantedEndpoint), Refusal>;

/// The endpoint of a grant, as it is at the grant.
struct GrantedEndpoint {
    target: Arc<Target>,
    health: Health,
    /// Moment at which a slot became ready while none was, of a model with slots.
    ready_at: Millis,
}

/// Result of a request for a permit: granted at once, or queued.
pub enum GateEntry {
    /// Go on.
    Leased(Permit),
    /// Wait.
    Queued(Waiter),
}

impl AdmissionGate {
    /// A gate for a model, with the targets of its endpoints, which shares its servers with no other.
    #[cfg(test)]
    pub fn new(spec: &ModelSpec, targets: Vec<Arc<Target>>, clock: Clock) -> Arc<AdmissionGate> {
        AdmissionGate::with_servers(&Arc::default(), spec, targets, clock)
    }

    /// A gate for a model, with the targets of its endpoints, at `servers`.
    pub fn with_servers(
        servers: &Arc<SharedServers>,
        spec: &ModelSpec,
        targets: Vec<Arc<Target>>,
        clock: Clock,
    ) -> Arc<AdmissionGate> {
        let now = clock.now();
        let id = servers.next_gate_id();
        let membership = ServerMembership {
            gate: id,
            server_of: &|endpoint| Some(servers.permits(&spec.id, endpoint)),
        };
        let mut inner = GateState {
            turnstile: AdmissionQueue::with_servers(spec, &membership, now),
            ejector: Ejector::default(),
            retries: RetryBudget::new(),
            targets: Vec::new(),
            urls: EndpointUrls::default(),
            waiting: HashMap::new(),
            wakes: WaiterUpdates::default(),
            slots: GateSlots::default(),
            meters: Vec::new(),
        };
        inner.set_targets(spec, targets, now);
        let gate = Arc::new(AdmissionGate {
            clock,
            id,
            servers: Arc::clone(servers),
            model: spec.id.clone(),
            cold: ColdRequests::default(),
            runs: OpenRuns::default(),
            inner: Mutex::new(inner),
        });
        let receiver: Weak<AdmissionGate> = Arc::downgrade(&gate);
        servers.register(id, receiver);
        gate
    }

    /// Requests a permit at the present moment.
    #[cfg(test)]
    pub fn request_permit(
        self: &Arc<AdmissionGate>,
        request: PermitRequest,
    ) -> (AdmissionSnapshot, Result<GateEntry, Refusal>) {
        self.request_permit_at(request, self.clock.micros())
    }

    /// Requests a permit at `at_us`, which was read just now; also returns a snapshot of what the request has
    /// found here.
    ///
    /// # Errors
    /// The refusal of a full queue and the like; nothing is held then.
    pub fn request_permit_at(
        self: &Arc<AdmissionGate>,
        request: PermitRequest,
        at_us: u64,
    ) -> (AdmissionSnapshot, Result<GateEntry, Refusal>) {
        let now = Millis(at_us / 1000);
        // For the trace; the list of what was tried is empty but for retries.
        let (order, avoid) = (request.endpoint_order.clone(), request.avoid.clone());
        let account = AccountKey::from(&request.account);
        let mut inner = self.inner.lock();
        let state = inner.cold_state();
        let is_cold = state.is_some();
        let asked = is_cold.then(|| RefusedRequest::of(&request, now));
        let client = request.client.clone();
        let outcome = match inner.ejector.pause_left(now) {
            Some(retry_after) => AdmissionOutcome::Full(Refusal::EndpointsPaused { retry_after }),
            None => inner
                .turnstile
                .request_permit(request, now, fastrand::u64(..)),
        };
        let taken = match &outcome {
            AdmissionOutcome::Leased(grant) => Some(grant.endpoint),
            AdmissionOutcome::Queued { .. } | AdmissionOutcome::Full(_) => None,
        };
        let mut found = inner
            .view()
            .snapshot(at_us, order.as_deref(), &avoid, taken);
        found.cold = state.map(Box::new);
        let entry = match outcome {
            AdmissionOutcome::Leased(grant) => {
                inner.measure_slots(now);
                let given = inner.granted_endpoint(grant.endpoint);
                drop(inner);
                Ok(GateEntry::Leased(Permit::new(self, grant, given, account)))
            }
            AdmissionOutcome::Queued {
                ticket,
                position,
                expected_wait,
            } => {
                let (sender, receiver) = oneshot::channel();
                inner.waiting.insert(ticket, sender);
                drop(inner);
                Ok(GateEntry::Queued(Waiter {
                    gate: Arc::clone(self),
                    account,
                    ticket,
                    joined_us: at_us,
                    grant: receiver,
                    waiting_before: found.gauges.depth - 1,
                    position,
                    expected_wait,
                    has_found_cold: is_cold,
                    is_uncounted: is_cold,
                    client,
                }))
            }
            AdmissionOutcome::Full(refusal) => {
                let refusal = self.refuse_cold(&mut inner, asked, refusal);
                drop(inner);
                Err(refusal)
            }
        };
        if is_cold && let Some(signal) = self.cold.signal() {
            signal.changed.notify_one();
        }
        (found, entry)
    }

    /// Applies a new configuration of the model: counts stay, waiters move over or get a refusal.
    pub fn configure(&self, spec: &ModelSpec, targets: Vec<Arc<Target>>) {
        self.decide(|inner, now| {
            let GateState {
                turnstile, wakes, ..
            } = inner;
            let membership = ServerMembership {
                gate: self.id,
                server_of: &|endpoint| Some(self.servers.permits(&spec.id, endpoint)),
            };
            turnstile.configure_sharing(spec, &membership, now, fastrand::u64(..), wakes);
            inner.meters.iter_mut().for_each(|it| it.endpoint = None);
            inner.set_targets(spec, targets, now);
        });
    }

    /// Records how a request's attempt at an endpoint ended at `now`. That of a slot tells nothing once the process is
    /// gone that the permit was for: another one has its place.
    fn record_attempt(
        &self,
        endpoint: EndpointId,
        target: &Arc<Target>,
        observed: Observation,
        now: Millis,
    ) {
        self.decide_at(now, |inner, now| {
            if is_slot(&target.url) && !inner.is_open_at(endpoint, target) {
                return;
            }
            let changes = inner.ejector.observe_request(&target.url, observed, now);
            inner.apply(changes, now);
            if !inner.ejector.take_checks().is_empty() {
                // Endpoints that fail are due in every round.
                request_check();
            }
        });
    }

    /// Records the result of a health check; `cause` says why it failed.
    pub fn record_check(&self, url: &str, seen: EndpointSignal, cause: Option<FailureCause>) {
        self.decide(|inner, now| {
            let changes = inner.ejector.observe_check(url, seen, cause, now);
            inner.apply(changes, now);
        });
    }

    /// Lets time-driven decisions happen: ends of ejections, detached permits run out.
    pub fn tick(&self) {
        self.decide(|inner, now| {
            let changes = inner.ejector.tick(now);
            inner.apply(changes, now);
            inner.resume_slots(now);
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.expire_detached(now, fastrand::u64(..), wakes);
            turnstile.poll(now, wakes);
            turnstile.expire_unhealthy(now, wakes);
        });
    }

    /// Charges an account for the tokens a request really used, where the queue counts tokens.
    pub fn correct_tokens(&self, account: &AccountId, weight: u32, charged: u64, actual: u64) {
        self.inner
            .lock()
            .turnstile
            .correct_tokens(account, weight, charged, actual);
    }

    /// Records what an endpoint's server reports about its load; none where it reports nothing.
    pub(super) fn record_report(&self, target: &Target, report: Option<ServerMetrics>) {
        let own = {
            let inner = self.inner.lock();
            let endpoint = inner.turnstile.endpoint(&target.url);
            endpoint.and_then(|endpoint| inner.turnstile.permits(endpoint))
        };
        target.record_report(report, own.map_or(0, |(used, _)| used));
    }

    fn release(&self, permit: PermitId, now: Millis) {
        self.decide_at(now, |inner, now| {
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.release(permit, now, fastrand::u64(..), wakes);
        });
    }

    /// Runs a decision under the lock, wakes waiters, and hands permits freed for other models to
    /// their gates.
    fn decide(&self, decision: impl FnOnce(&mut GateState, Millis)) {
        self.decide_at(self.clock.now(), decision);
    }

    /// Runs a decision at a moment that was read just now.
    fn decide_at(&self, now: Millis, decision: impl FnOnce(&mut GateState, Millis)) {
        let handoffs = self.decide_here(now, decision);
        if !handoffs.is_empty() {
            self.servers.deliver(handoffs);
        }
    }

    /// Runs a decision under the lock, then wakes waiters. A waiter that has left by then cannot
    /// take its grant, so the grant goes back and the next one is woken. Returns permits that other
    /// gates wait for.
    fn decide_here(
        &self,
        now: Millis,
        decision: impl FnOnce(&mut GateState, Millis),
    ) -> Vec<Handoff> {
        let mut handoffs = Vec::new();
        let mut inner = self.inner.lock();
        decision(&mut inner, now);
        let reports = inner.ejector.take_reports();
        while !(inner.wakes.grants.is_empty() && inner.wakes.refusals.is_empty()) {
            let wakes = std::mem::take(&mut inner.wakes);
            handoffs.extend(wakes.handoffs);
            let pause = inner.ejector.pause_left(now);
            for (ticket, refusal) in wakes.refusals {
                let refusal = match (refusal, pause) {
                    (Refusal::NoHealthyEndpoint, Some(retry_after)) => {
                        Refusal::EndpointsPaused { retry_after }
                    }
                    (refusal, _) => refusal,
                };
                if let Some(sender) = inner.waiting.remove(&ticket) {
                    // A gone waiter needs no refusal.
                    let _ = sender.send(Err(refusal));
                }
            }
            for grant in wakes.grants {
                let sender = grant
                    .ticket
                    .and_then(|ticket| inner.waiting.remove(&ticket));
                let given = inner.granted_endpoint(grant.endpoint);
                let kept = sender.is_some_and(|sender| sender.send(Ok((grant, given))).is_ok());
                if !kept {
                    let GateState {
                        turnstile, wakes, ..
                    } = &mut *inner;
                    turnstile.release(grant.permit, now, fastrand::u64(..), wakes);
                }
            }
        }
        handoffs.append(&mut inner.wakes.handoffs);
        inner.measure_slots(now);
        drop(inner);
        for change in reports {
            self.log_health_change(&change);
        }
        handoffs
    }
}

impl HandoffReceiver for AdmissionGate {
    fn accept(&self, handoff: Handoff) -> Vec<Handoff> {
        self.decide_here(self.clock.now(), |inner, now| {
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.accept(handoff, now, wakes);
        })
    }
}

impl GateState {
    /// Takes over the targets of the endpoints the turnstile has just been configured with.
    /// Endpoints that left are no target any more: they are not probed, and a permit that is still
    /// out there has its own.
    fn set_targets(&mut self, spec: &ModelSpec, targets: Vec<Arc<Target>>, now: Millis) {
        let judged = self.slots.configure(&spec.endpoints);
        self.targets.fill(None);
        let open: Vec<_> = self.slots.targets().cloned().collect();
        for target in targets.into_iter().chain(open) {
            let Some(EndpointId(index)) = self.turnstile.endpoint(&target.url) else {
                continue;
            };
            let index = index as usize;
            if self.targets.len() <= index {
                self.targets.resize(index + 1, None);
            }
            self.targets[index] = Some(target);
        }
        let url = |target: &Option<Arc<Target>>| Some(Arc::clone(&target.as_ref()?.url));
        self.urls = self.targets.iter().map(url).collect();
        let judged = judged.as_deref().unwrap_or(&spec.endpoints);
        let changes = self.ejector.configure(judged, now);
        self.apply(changes, now);
    }

    fn apply(&mut self, changes: Vec<UsabilityChange>, now: Millis) {
        let GateState {
            turnstile,
            ejector,
            wakes,
            ..
        } = self;
        turnstile.set_failing(ejector.failing_since());
        for change in changes {
            if let Some(endpoint) = turnstile.endpoint(&change.url) {
                turnstile.set_usable(endpoint, change.usable, now, fastrand::u64(..), wakes);
            }
        }
    }

    fn view(&self) -> GateView<'_> {
        GateView {
            turnstile: &self.turnstile,
            ejector: &self.ejector,
            targets: &self.targets,
            urls: &self.urls,
        }
    }

    fn granted_endpoint(&self, endpoint: EndpointId) -> GrantedEndpoint {
        let target = self.targets[endpoint.0 as usize]
            .clone()
            .expect("the turnstile grants only endpoints that were placed with it");
        let health = self.ejector.health(&target.url);
        GrantedEndpoint {
            target,
            health,
            ready_at: self.slots.ready_at,
        }
    }
}

/// The right to have one request in flight at one endpoint; released by drop.
pub struct Permit {
    gate: Arc<AdmissionGate>,
    id: PermitId,
    account: AccountKey,
    /// Its endpoint.
    pub endpoint: EndpointId,
    /// Target of requests to the endpoint.
    pub target: Arc<Target>,
    /// Health of the endpoint at the grant.
    pub health: Health,
    /// Class that was served with it, and why.
    pub turn: ClassTurn,
    /// Wait for it, microseconds, at most an hour; 0 where it was free at once.
    pub waited_us: u32,
    /// Part of the wait for a process of the model to be ready, microseconds; none where one was on arrival.
    pub load_wait_us: Option<u32>,
    /// Moment of the release, milliseconds, where that was read already.
    released_ms: Option<NonZeroU64>,
    /// Request whose work may go on there after its response.
    work: Option<Arc<str>>,
}

impl Permit {
    fn new(
        gate: &Arc<AdmissionGate>,
        grant: Grant,
        given: GrantedEndpoint,
        account: AccountKey,
    ) -> Permit {
        Permit {
            gate: Arc::clone(gate),
            id: grant.permit,
            account,
            endpoint: grant.endpoint,
            target: given.target,
            health: given.health,
            turn: grant.turn,
            waited_us: 0,
            load_wait_us: None,
            released_ms: None,
            work: None,
        }
    }

    /// Returns the permit for a request of another model that runs on the same endpoints; none where that model has
    /// no endpoint at this URL.
    pub fn lend_to(mut self, model: &AdmissionGate) -> Option<Permit> {
        if !self.is_of(model) {
            let mut targets = model.targets().into_iter();
            let (own, _) = targets.find(|(target, _)| target.url == self.target.url)?;
            self.target = own;
        }
        Some(self)
    }

    /// Returns whether it was granted by this gate, whose endpoints alone its own can be compared with.
    pub fn is_of(&self, gate: &AdmissionGate) -> bool {
        std::ptr::eq(&*self.gate, gate)
    }

    /// Gives the permit back, which no request had.
    pub fn give_back(self) {
        self.gate.inner.lock().turnstile.mark_unused(self.id);
    }

    /// Gives the permit back at `now`, which was read just now.
    pub fn release(mut self, now: Millis) {
        self.released_ms = NonZeroU64::new(now.0);
    }

    /// Records how the attempt at its endpoint ended at `now`: the observation, the cause of a failure, and
    /// the pause that the endpoint asked for.
    pub fn record_attempt(
        &self,
        seen: EndpointSignal,
        cause: Option<FailureCause>,
        pause: Option<Millis>,
        now: Millis,
    ) {
        let observed = Observation {
            signal: seen,
            cause,
            account: self.account,
            pause,
        };
        self.gate
            .record_attempt(self.endpoint, &self.target, observed, now);
        let is_gone =
            seen == EndpointSignal::Unusable && cause.is_some_and(FailureCause::is_process_gone);
        if is_gone && is_slot(&self.target.url) {
            self.gate.pause_slot(self.endpoint, &self.target, now);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.leave_run() || self.leave_work() {
            return;
        }
        let now = match self.released_ms {
            Some(ms) => Millis(ms.get()),
            None => self.gate.clock.recent(),
        };
        self.gate.release(self.id, now);
    }
}

#[cfg(test)]
pub(super) mod fixtures;
#[cfg(test)]
mod interleavings;
#[cfg(test)]
mod tests;
