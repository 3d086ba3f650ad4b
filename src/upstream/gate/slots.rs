//! Slots of a model: endpoints whose processes the gateway starts, opened and closed by their owner.
//!
//! Starts nothing. A slot keeps its identity while its address changes from process to process; permits of a
//! former process keep the target that they were granted with.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::{
    DemandClient, EndpointId, LoadCooldowns, PermitRequest, Readiness, RequestCounts,
    WaitingRequest,
};
use infergate_core::model::{EndpointSpec, KeepLoaded, Secret, is_slot};
use infergate_core::routing::Health;
use infergate_core::vram::{ColdRefusal, KeptAlive};
use infergate_core::{AccountId, Millis, Refusal};

use super::cold_requests::{ColdResult, ColdSignal};
use super::snapshot::{ColdPlace, ColdState};
use super::{AdmissionGate, GateState};
use crate::telemetry::gpu_metrics::ColdCounts;
use crate::upstream::target::Target;

/// Refusals that are remembered between two looks; more of them weigh no more.
const REFUSALS_MAX: usize = 64;

/// Longest pause of a slot whose process has refused a connection: until then its owner knows whether it is gone.
const REFUSED_PAUSE: Millis = Millis::from_secs(1);

/// Urgency of a request that has not been read yet.
const PRIORITY_USUAL: u8 = 5;

/// Request that was refused because no slot could be ready in time: it counts as demand for a load.
#[derive(Clone, Debug)]
pub struct RefusedRequest {
    /// Account, urgency and moment.
    pub refusal: ColdRefusal,
    /// Client that it names.
    pub client: Option<Arc<DemandClient>>,
}

/// Slots of one gate.
#[derive(Default)]
pub(super) struct GateSlots {
    /// Endpoints that are no slots, of the configuration of now; kept for models with slots alone.
    others: Vec<EndpointSpec>,
    /// Slots that are ready, with their processes.
    open: BTreeMap<Arc<str>, Arc<Target>>,
    /// Slots that refused a connection while they are open, with the ends of their pauses.
    paused: BTreeMap<Arc<str>, Millis>,
    /// Requests that no load could serve in time, since the last look.
    refused: Vec<RefusedRequest>,
    /// States of slots that are not ready, in a word for operators.
    words: BTreeMap<Arc<str>, &'static str>,
    /// Reason for which a model with demand is not ready.
    reason: Option<&'static str>,
    /// Place of such a model among those that wait.
    place: Option<ColdPlace>,
    /// Moment at which a slot of a model that was cold became ready, for the last time.
    pub(super) ready_at: Millis,
    /// Requests with a time of their own for which the model stays loaded, since the last look.
    kept_alive: Option<KeptAlive>,
    /// Loads that client profiles have caused.
    pub(super) cooldowns: LoadCooldowns,
}

/// States of slots that are not ready, the nearest to it first; unlisted ones come last.
const NEAREST_FIRST: [&str; 9] = [
    "loading",
    "acquiring",
    "draining",
    "asleep",
    "stopping",
    "reclaiming",
    "cold",
    "failed",
    "stuck",
];

impl GateSlots {
    /// Takes over a configuration. Returns the endpoints whose health is judged where that is not all of them.
    pub fn configure(&mut self, endpoints: &[EndpointSpec]) -> Option<Vec<EndpointSpec>> {
        // A slot that comes back later is opened anew by its owner.
        self.open
            .retain(|url, _| endpoints.iter().any(|it| it.url == *url));
        self.words
            .retain(|url, _| endpoints.iter().any(|it| it.url == *url));
        let open = &self.open;
        self.paused.retain(|url, _| open.contains_key(url));
        if !endpoints.iter().any(|it| is_slot(&it.url)) {
            self.others.clear();
            return None;
        }
        let others = endpoints.iter().filter(|it| !is_slot(&it.url));
        self.others = others.cloned().collect();
        Some(self.judged())
    }

    fn judged(&self) -> Vec<EndpointSpec> {
        let open = self.open.keys().map(|url| EndpointSpec {
            url: Arc::clone(url),
            ..EndpointSpec::default()
        });
        self.others.iter().cloned().chain(open).collect()
    }

    /// State of a slot that is not ready, in a word; none of a slot that is, and of other endpoints.
    pub fn word(&self, url: &str) -> Option<&'static str> {
        match is_slot(url) && !self.open.contains_key(url) {
            true => Some(self.words.get(url).copied().unwrap_or("cold")),
            false => None,
        }
    }

    /// State of the slot that is nearest to being ready, of a model that is cold.
    pub(super) fn nearest(&self) -> &'static str {
        let rank = |word: &&'static str| NEAREST_FIRST.iter().position(|it| it == word);
        let words = self.words.values().copied();
        let nearest = words.min_by_key(|word| rank(word).unwrap_or(NEAREST_FIRST.len()));
        nearest.unwrap_or("cold")
    }

    /// Takes a slot whose pause has ended.
    fn take_resumed(&mut self, now: Millis) -> Option<Arc<str>> {
        let ended = self.paused.iter().find(|(_, until)| **until <= now);
        let slot = Arc::clone(ended?.0);
        self.paused.remove(&slot);
        Some(slot)
    }

    /// Processes of slots that are ready.
    pub fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        self.open.values()
    }
}

impl GateState {
    /// State of a model none of whose slots is ready; none of any other model.
    pub(super) fn cold_state(&self) -> Option<ColdState> {
        let readiness = self.turnstile.cold_readiness()?;
        Some(ColdState {
            slot: self.slots.nearest(),
            reason: self.slots.reason,
            place: self.slots.place.clone(),
            readiness,
        })
    }

    fn remember_refusal(&mut self, request: RefusedRequest) {
        if self.slots.refused.len() < REFUSALS_MAX {
            self.slots.refused.push(request);
        }
    }
}

impl RefusedRequest {
    pub(super) fn of(request: &PermitRequest, at: Millis) -> RefusedRequest {
        RefusedRequest {
            refusal: ColdRefusal {
                account: request.account.clone(),
                priority: request.priority,
                at,
            },
            client: request.client.clone(),
        }
    }
}

impl AdmissionGate {
    /// Sets the owner that is woken when a model that nothing serves is asked for. The first one stays.
    pub fn set_cold_signal(&self, signal: Arc<ColdSignal>) {
        self.cold.set_signal(signal);
    }

    /// Counts a request that was refused while nothing serves the model, and remembers it as demand. Not one that goes
    /// on to another model or node: it counts there, or by [`AdmissionGate::record_cold_demand`]. Returns the refusal.
    pub(super) fn refuse_cold(
        &self,
        inner: &mut GateState,
        request: Option<RefusedRequest>,
        refusal: Refusal,
    ) -> Refusal {
        let Some(request) = request.filter(|_| refusal != Refusal::NoHealthyEndpoint) else {
            return refusal;
        };
        self.cold.record(ColdResult::Refused);
        if !matches!(
            refusal,
            Refusal::CannotStartInTime { .. } | Refusal::Busy { .. } | Refusal::QueueFull { .. }
        ) {
            return refusal;
        }
        let at = request.refusal.at;
        match inner.held_until(request.client.as_deref(), at, at) {
            Some(until) => refusal.not_before(until.since(at)),
            None => {
                inner.remember_refusal(request);
                refusal
            }
        }
    }

    /// Returns the results of requests that came while nothing served the model, since the start.
    pub fn cold_counts(&self) -> ColdCounts {
        self.cold.counts()
    }

    /// Gives requests to the process of a slot from now on, with a clean record of its health.
    pub fn open_slot(&self, slot: &str, target: Arc<Target>) {
        self.decide(|inner, now| {
            let Some(id) = inner.turnstile.endpoint(slot) else {
                return;
            };
            if inner.turnstile.is_cold() {
                inner.slots.ready_at = now;
            }
            inner.slots.cooldowns.record_ready();
            inner.ejector.forget(slot);
            inner.slots.paused.remove(slot);
            inner
                .slots
                .open
                .insert(Arc::from(slot), Arc::clone(&target));
            inner.set_target(id, Some(target));
            inner.judge_slots(now);
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.set_usable(id, true, now, fastrand::u64(..), wakes);
        });
    }

    /// Opens a slot unless it is open: a gate that is new, or has the slot again, knows nothing of its process.
    pub fn ensure_slot_open(&self, slot: &str, target: Arc<Target>) {
        let is_open = self.inner.lock().slots.open.contains_key(slot);
        if !is_open {
            self.open_slot(slot, target);
        }
    }

    /// Gives no further request to a slot, which is in the state of this `word`. Those in flight go on.
    pub fn close_slot(&self, slot: &str, word: &'static str) {
        self.decide(|inner, now| {
            inner.slots.words.insert(Arc::from(slot), word);
            inner.slots.paused.remove(slot);
            if inner.slots.open.remove(slot).is_none() {
                return;
            }
            let Some(id) = inner.turnstile.endpoint(slot) else {
                return;
            };
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.set_usable(id, false, now, fastrand::u64(..), wakes);
            inner.set_target(id, None);
            inner.judge_slots(now);
        });
    }

    /// Gives no further request to a slot whose process at `target` has refused a connection, until its owner closes it
    /// or [`REFUSED_PAUSE`] is over. Between the end of a process and the moment its owner hears of it, requests would
    /// otherwise use up their attempts on it.
    pub(super) fn pause_slot(&self, slot: EndpointId, target: &Arc<Target>, now: Millis) {
        self.decide_at(now, |inner, now| {
            let open = inner.slots.open.get(&target.url);
            if !open.is_some_and(|open| Arc::ptr_eq(open, target)) {
                return;
            }
            let until = now + REFUSED_PAUSE;
            inner.slots.paused.insert(Arc::clone(&target.url), until);
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.set_usable(slot, false, now, fastrand::u64(..), wakes);
            if turnstile.is_cold() {
                // What was expected of a load before this process says nothing of the next one.
                turnstile.set_readiness(Readiness::default(), wakes);
            }
        });
    }

    /// Sets what is expected of the model while none of its slots is ready.
    pub fn set_readiness(&self, readiness: Readiness) {
        self.decide(|inner, _| {
            let GateState {
                turnstile, wakes, ..
            } = inner;
            turnstile.set_readiness(readiness, wakes);
        });
    }

    /// Sets the reason for which the model is not ready, and its place among those that wait, for operators.
    pub fn set_cold_reason(&self, reason: Option<&'static str>, place: Option<ColdPlace>) {
        let mut inner = self.inner.lock();
        inner.slots.reason = reason;
        // The former one may have the last copy of its names, which is freed behind the lock.
        let former = std::mem::replace(&mut inner.slots.place, place);
        drop(inner);
        drop(former);
    }

    /// Visits at most `limit` requests that wait and count as demand, and takes refusals and counts since the last
    /// look.
    pub fn look_at_demand(
        &self,
        limit: usize,
        mut each: impl FnMut(WaitingRequest<'_>),
    ) -> (Vec<RefusedRequest>, RequestCounts) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let (cooldowns, progress) = (&inner.slots.cooldowns, inner.load_progress());
        inner.turnstile.for_each_waiting(limit, |request| {
            let client = request.client.map(|client| &**client);
            let held = cooldowns.held_until(client, request.joined, progress, now);
            if held.is_none() {
                each(request);
            }
        });
        let counts = inner.turnstile.take_counts();
        (std::mem::take(&mut inner.slots.refused), counts)
    }

    /// Returns whether the model has slots, none of them is ready, and nothing else serves it.
    pub fn is_cold(&self) -> bool {
        self.inner.lock().turnstile.is_cold()
    }

    /// Remembers a request that another model serves only because this one is cold.
    pub fn record_cold_demand(&self, account: &AccountId, client: Option<Arc<DemandClient>>) {
        let Some(signal) = self.cold.signal() else {
            return;
        };
        let at = self.clock.now();
        let mut inner = self.inner.lock();
        if inner.held_until(client.as_deref(), at, at).is_some() {
            return;
        }
        let refusal = ColdRefusal {
            account: account.clone(),
            priority: PRIORITY_USUAL,
            at,
        };
        inner.remember_refusal(RefusedRequest { refusal, client });
        drop(inner);
        signal.changed.notify_one();
    }

    /// Records that a request which has a permit keeps the model loaded for this time.
    pub fn record_keep_alive(&self, latest: KeepLoaded) {
        let mut inner = self.inner.lock();
        let former = inner.slots.kept_alive.map_or(0, |kept| kept.grants);
        inner.slots.kept_alive = Some(KeptAlive {
            grants: former.saturating_add(1),
            latest,
        });
    }

    /// Takes what requests have said of the time for which the model stays loaded. To be called before
    /// [`AdmissionGate::look_at_demand`]: a permit counts before its request says so.
    pub fn take_kept_alive(&self) -> Option<KeptAlive> {
        self.inner.lock().slots.kept_alive.take()
    }

    /// Returns the permits in use at a slot; also those of a former process.
    pub fn in_flight(&self, slot: &str) -> u32 {
        let inner = self.inner.lock();
        let used = inner.turnstile.endpoint(slot);
        used.map_or(0, |id| inner.turnstile.used(id))
    }
}

impl GateState {
    /// Gives requests again to slots whose pause has ended and whose process is still theirs.
    pub(super) fn resume_slots(&mut self, now: Millis) {
        while let Some(slot) = self.slots.take_resumed(now) {
            let fit = matches!(
                self.ejector.health(&slot),
                Health::Healthy | Health::Degraded
            );
            let GateState {
                turnstile, wakes, ..
            } = self;
            if let Some(id) = turnstile.endpoint(&slot).filter(|_| fit) {
                turnstile.set_usable(id, true, now, fastrand::u64(..), wakes);
            }
        }
    }

    /// Judges the health of the endpoints that are open now.
    fn judge_slots(&mut self, now: Millis) {
        let judged = self.slots.judged();
        let changes = self.ejector.configure(&judged, now);
        self.apply(changes, now);
    }

    /// Returns whether an endpoint is open for this process.
    pub(super) fn is_open_at(&self, EndpointId(index): EndpointId, target: &Arc<Target>) -> bool {
        let present = self.targets.get(index as usize).and_then(Option::as_ref);
        present.is_some_and(|present| Arc::ptr_eq(present, target))
    }

    fn set_target(&mut self, EndpointId(index): EndpointId, target: Option<Arc<Target>>) {
        let index = index as usize;
        if self.targets.len() <= index {
            self.targets.resize(index + 1, None);
        }
        self.targets[index] = target;
        let url = |target: &Option<Arc<Target>>| Some(Arc::clone(&target.as_ref()?.url));
        self.urls = self.targets.iter().map(url).collect();
    }
}

/// Target of an instance, the process of a slot, at an address of this host; `key` is sent as a bearer token.
pub fn slot_target(
    (slot, instance, model): (&str, &str, &str),
    address: SocketAddr,
    key: Option<Secret>,
    connect_timeout: Duration,
) -> Option<Arc<Target>> {
    let spec = EndpointSpec {
        url: format!("http://{address}").into(),
        api_key: key,
        ..EndpointSpec::default()
    };
    let target = Target::new(&spec, model, connect_timeout)?;
    Some(Arc::new(
        target.of_slot(Arc::from(slot), Arc::from(instance)),
    ))
}

#[cfg(test)]
mod tests {
    use infergate_core::model::{Algorithm, ModelSpec};
    use infergate_core::routing::{ATTEMPTS_MAX, AttemptFailure, EndpointSignal, REFUSED};

    use super::*;
    use crate::telemetry::Clock;
    use crate::upstream::gate::fixtures::{ask, spec};
    use crate::upstream::gate::{GateEntry, Permit, WaitProgress};

    fn model() -> ModelSpec {
        let model = spec(Algorithm::Fair);
        ModelSpec {
            endpoints: vec![EndpointSpec::slot(&model.id, 0, 1)],
            ..model
        }
    }

    fn process(slot: &str, port: u16) -> Arc<Target> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let key = Some("secret".into());
        slot_target(
            (slot, "m#0-00c0ffee", "m"),
            address,
            key,
            Duration::from_secs(1),
        )
        .expect("a good address")
    }

    #[tokio::test]
    async fn a_slot_keeps_its_identity_while_its_process_changes() {
        let model = model();
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        let signal = Arc::new(ColdSignal::default());
        gate.set_cold_signal(Arc::clone(&signal));
        let slot = Arc::clone(&model.endpoints[0].url);
        assert_eq!(gate.state().1[0].slot, Some("cold"));
        let Ok(GateEntry::Queued(mut first)) = gate.request_permit(ask("a")).1 else {
            panic!("it waits for a process");
        };
        signal.changed.notified().await;
        gate.tick();
        gate.open_slot(&slot, process(&slot, 4001));
        let first = first.granted().await.unwrap();
        assert_eq!(first.target.authority, "127.0.0.1:4001");
        assert_eq!((&first.target.url, gate.in_flight(&slot)), (&slot, 1));
        assert_eq!(gate.cold_counts().served, 1);
        assert_eq!(gate.state().1[0].slot, None);
        gate.close_slot(&slot, "failed");
        assert_eq!(gate.state().1[0].slot, Some("failed"));
        assert!(gate.targets().is_empty(), "no check goes to a closed slot");
        gate.open_slot(&slot, process(&slot, 4002));
        // What the former process did says nothing about the present one.
        for _ in 0..20 {
            let now = gate.clock.now();
            first.record_attempt(
                infergate_core::routing::EndpointSignal::Failure,
                None,
                None,
                now,
            );
        }
        assert!(gate.targets()[0].1, "healthy");
        drop(first);
        let Ok(GateEntry::Leased(second)) = gate.request_permit(ask("a")).1 else {
            panic!("the new process has a permit");
        };
        assert_eq!(second.target.authority, "127.0.0.1:4002");
        gate.configure(&model, Vec::new());
        assert_eq!(gate.targets().len(), 1, "a reload leaves it open");
        let without = ModelSpec {
            endpoints: Vec::new(),
            ..model.clone()
        };
        gate.configure(&without, Vec::new());
        assert!(gate.targets().is_empty());
        gate.configure(&model, Vec::new());
        assert_eq!(
            gate.state().1[0].slot,
            Some("cold"),
            "of a slot that is new"
        );
        gate.ensure_slot_open(&slot, process(&slot, 4002));
        // Its one permit is in use until then, also by a request of before.
        drop(second);
        let Ok(GateEntry::Leased(again)) = gate.request_permit(ask("a")).1 else {
            panic!("a slot that came back serves once its owner opens it");
        };
        assert_eq!(again.target.authority, "127.0.0.1:4002");
    }

    #[tokio::test]
    async fn a_slot_that_refuses_a_connection_gets_no_request_until_it_is_closed_or_a_second_is_over()
     {
        let model = model();
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        let slot = Arc::clone(&model.endpoints[0].url);
        // A former load failed for good.
        gate.set_readiness(Readiness::Never);
        gate.open_slot(&slot, process(&slot, 4001));
        let refuse = |permit: &Permit| {
            let (seen, cause) = (EndpointSignal::Unusable, Some(REFUSED));
            permit.record_attempt(seen, cause, None, gate.clock.now());
        };
        let Ok(GateEntry::Leased(first)) = gate.request_permit(ask("a")).1 else {
            panic!("it is open");
        };
        refuse(&first);
        let tried = [first.endpoint];
        drop(first);
        for tries in 1..ATTEMPTS_MAX {
            for _ in 0..4 {
                let plan = gate.plan_retry(tries, AttemptFailure::NotConnected, &tried, false);
                assert!(plan.allowed, "no budget is used up by a wait");
            }
        }
        let plan = gate.plan_retry(ATTEMPTS_MAX, AttemptFailure::NotConnected, &tried, false);
        assert!(!plan.allowed);
        let Ok(GateEntry::Queued(mut second)) = gate.request_permit(ask("a")).1 else {
            panic!("it waits for the owner of the slot");
        };
        gate.close_slot(&slot, "failed");
        gate.open_slot(&slot, process(&slot, 4002));
        let second = second.granted().await.unwrap();
        assert_eq!(second.target.authority, "127.0.0.1:4002");
        refuse(&second);
        drop(second);
        let Ok(GateEntry::Queued(mut third)) = gate.request_permit(ask("a")).1 else {
            panic!("it waits again");
        };
        let later = gate.clock.now() + REFUSED_PAUSE;
        gate.decide_at(later, |inner, now| inner.resume_slots(now));
        let third = third.granted().await.unwrap();
        assert_eq!(third.target.authority, "127.0.0.1:4002", "it listens still");
    }

    #[tokio::test]
    async fn a_wait_for_a_load_stands_on_the_permit_and_its_progress_can_be_asked() {
        let model = model();
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        let slot = Arc::clone(&model.endpoints[0].url);
        let soon = gate.clock.now() + Millis(60_000);
        gate.set_readiness(Readiness::Expected {
            earliest: soon,
            expected: soon,
        });
        gate.close_slot(&slot, "loading");
        gate.set_cold_reason(Some("awaits_lease"), None);
        assert!(gate.is_cold());
        let (found, entry) = gate.request_permit(ask("a"));
        let cold = found.cold.expect("nothing is ready");
        assert_eq!((cold.slot, cold.reason), ("loading", Some("awaits_lease")));
        let Ok(GateEntry::Queued(mut first)) = entry else {
            panic!("it waits for a process");
        };
        assert!(first.has_found_cold);
        let Some(WaitProgress::Loading { left, .. }) = gate.wait_progress(&first) else {
            panic!("it waits for a load");
        };
        assert!(left > Millis(30_000), "{left:?}");
        assert!(
            gate.model_load().wait_ms > 30_000,
            "nodes see the time to the load"
        );
        assert!(gate.model_load().queue_room > 0, "and may send requests");
        let Ok(GateEntry::Queued(second)) = gate.request_permit(ask("a")).1 else {
            panic!("it waits behind the first");
        };
        gate.open_slot(&slot, process(&slot, 4001));
        let first = first.granted().await.unwrap();
        assert!(first.load_wait_us.is_some());
        assert_eq!(first.target.instance.as_deref(), Some("m#0-00c0ffee"));
        let progress = gate.wait_progress(&second);
        assert_eq!(progress, Some(WaitProgress::Queued { position: 1 }));
        let (found, entry) = gate.request_permit(ask("a"));
        assert!(found.cold.is_none());
        let Ok(GateEntry::Queued(third)) = entry else {
            panic!("one permit is all there is");
        };
        assert!(!third.has_found_cold);
        let progress = gate.wait_progress(&third);
        assert_eq!(progress, Some(WaitProgress::Queued { position: 2 }));
        gate.close_slot(&slot, "failed");
        gate.set_readiness(Readiness::Never);
        assert_eq!(gate.wait_progress(&third), None);
        assert_eq!(gate.model_load().queue_room, 0);
    }

    #[test]
    fn a_full_queue_counts_as_demand_like_other_refusals() {
        let mut model = model();
        model.queue.capacity = 0;
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        let refused = gate.request_permit(ask("a")).1;
        assert!(matches!(refused, Err(Refusal::QueueFull { .. })));
        assert_eq!(gate.look_at_demand(8, |_| {}).0.len(), 1);
    }

    #[test]
    fn requests_that_no_load_can_serve_are_remembered_as_demand() {
        let model = model();
        let gate = AdmissionGate::new(&model, Vec::new(), Clock::start());
        gate.set_cold_signal(Arc::default());
        let far = gate.clock.now() + Millis(60_000);
        gate.set_readiness(Readiness::Expected {
            earliest: far,
            expected: far,
        });
        let soon = PermitRequest {
            deadline: gate.clock.now() + Millis(1000),
            ..ask("a")
        };
        let at_once = PermitRequest {
            no_wait: true,
            ..ask("b")
        };
        for request in [soon, at_once] {
            assert!(gate.request_permit(request).1.is_err());
        }
        let Ok(GateEntry::Queued(waiter)) = gate.request_permit(ask("c")).1 else {
            panic!("it has time");
        };
        let mut waiting = Vec::new();
        let (refused, counts) =
            gate.look_at_demand(8, |it| waiting.push(it.account.as_str().to_owned()));
        let refused: Vec<&str> = refused
            .iter()
            .map(|it| it.refusal.account.as_str())
            .collect();
        assert_eq!((refused, waiting), (vec!["a", "b"], vec!["c".to_owned()]));
        assert_eq!((counts.arrivals, counts.grants), (3, 0));
        drop(waiter);
        let counts = gate.cold_counts();
        assert_eq!((counts.served, counts.refused, counts.left), (0, 2, 1));
        let (refused, counts) = gate.look_at_demand(8, |_| {});
        assert_eq!((refused.len(), counts), (0, RequestCounts::default()));
    }
}
