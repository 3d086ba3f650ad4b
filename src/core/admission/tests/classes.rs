//! Promises of the two classes, by example and by a million random events.
//!
//! Not the shares of permit time, which `class_shares.rs` measures. The model of the random events knows
//! waiters and permits, and nothing about virtual service.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::examples::spec;
use super::request;
use crate::model::{Algorithm, ModelSpec, WhenUnhealthy};
use crate::{Millis, Refusal};

const CASES: u32 = 2_200;
/// At most, in one case; on average half as many.
const EVENTS: usize = 1_000;
const URLS: [&str; 3] = ["a", "b", "c"];

/// A random number taken apart into small choices.
struct RandomChoices(u64);

impl RandomChoices {
    fn below(&mut self, count: u64) -> u64 {
        let choice = self.0 % count;
        self.0 /= count;
        choice
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct ClassWaiter {
    ticket: QueueTicket,
    class: PermitClass,
    deadline: Millis,
    is_retry: bool,
}

struct ClassPermit {
    permit: PermitId,
    endpoint: EndpointId,
    class: PermitClass,
    since: Millis,
    /// Number of its grant.
    grant: u64,
}

/// Permit time of the other class while one waits.
#[derive(Clone, Copy, Default)]
struct WaitedTime {
    /// Able to use a permit and waiting, since before this step.
    is_waiting: bool,
    /// Grants up to this one were made before.
    after_grant: u64,
    /// Permits of the other class that were granted and came back since.
    returned_ms: u64,
    /// Longest hold that was ever measured.
    longest: Option<Millis>,
}

struct ClassModel {
    queue: AdmissionQueue,
    spec: ModelSpec,
    now: Millis,
    random: u64,
    unusable: BTreeSet<&'static str>,
    /// In order of arrival.
    waiting: Vec<ClassWaiter>,
    /// Refused by the current step, before or after its grants.
    refused: Vec<ClassWaiter>,
    out: Vec<ClassPermit>,
    grants: u64,
    waited: [WaitedTime; 2],
}

impl ClassModel {
    fn new() -> ClassModel {
        let spec = spec(Algorithm::Fair, &[("a", 2), ("b", 2)]);
        ClassModel {
            queue: AdmissionQueue::new(&spec, Millis(0)),
            spec,
            now: Millis(0),
            random: 0,
            unusable: BTreeSet::new(),
            waiting: Vec::new(),
            refused: Vec::new(),
            out: Vec::new(),
            grants: 0,
            waited: [WaitedTime::default(); 2],
        }
    }

    fn step(&mut self, event: u64) {
        let mut choices = RandomChoices(event);
        self.now = self.now + Millis(choices.below(20));
        self.random = event.rotate_left(17);
        let mut wakes = WaiterUpdates::default();
        match choices.below(32) {
            0..=14 => self.request(&mut choices),
            15..=23 => self.release(&mut choices, &mut wakes),
            24..=25 => self.cancel(&mut choices),
            26..=27 => self.set_usable(&mut choices, &mut wakes),
            28 => self.configure(&mut choices, &mut wakes),
            29 => self.detach(&mut choices, &mut wakes),
            30 => {
                let is_failing = choices.one_in(2);
                self.queue.set_failing(is_failing.then_some(Millis::ZERO));
                self.queue.expire_unhealthy(self.now, &mut wakes);
            }
            _ => self.queue.poll(self.now, &mut wakes),
        }
        self.settle(wakes);
        self.check();
    }

    fn request(&mut self, choices: &mut RandomChoices) {
        let mut ask = request(["ant", "bee", "cat"][choices.below(3) as usize]).build();
        if choices.one_in(2) {
            ask.class = PermitClass::Durable;
        }
        ask.deadline = self.now + Millis(choices.below(2_000));
        ask.no_wait = choices.one_in(16);
        ask.is_retry = choices.one_in(16);
        ask.has_alternative = choices.one_in(8);
        ask.is_bounded_elsewhere = choices.one_in(8);
        let waiter = |ticket| ClassWaiter {
            ticket,
            class: ask.class,
            deadline: ask.deadline,
            is_retry: ask.is_retry,
        };
        match self
            .queue
            .request_permit(ask.clone(), self.now, self.random)
        {
            AdmissionOutcome::Leased(grant) => {
                assert_eq!((grant.ticket, grant.turn.class), (None, ask.class));
                self.hold(grant);
            }
            AdmissionOutcome::Queued { ticket, .. } => {
                assert!(!ask.no_wait);
                self.waiting.push(waiter(ticket));
            }
            AdmissionOutcome::Full(refusal) if ask.class == PermitClass::Durable => {
                let is_full = self.waiting_of(ask.class) >= self.spec.permits() as usize;
                let is_meant = match refusal {
                    Refusal::DeadlinePassed => self.now >= ask.deadline,
                    Refusal::Busy { .. } => ask.no_wait,
                    Refusal::QueueFull { .. } => is_full && !ask.is_retry,
                    Refusal::Evicted => self.spec.endpoints.is_empty(),
                    _ => false,
                };
                assert!(
                    is_meant,
                    "durable requests are never refused for {refusal:?}"
                );
            }
            AdmissionOutcome::Full(_) => {}
        }
    }

    fn waiting_of(&self, class: PermitClass) -> usize {
        self.waiting.iter().filter(|w| w.class == class).count()
    }

    fn used_by(&self, class: PermitClass) -> usize {
        self.out.iter().filter(|out| out.class == class).count()
    }

    fn release(&mut self, choices: &mut RandomChoices, wakes: &mut WaiterUpdates) {
        if self.out.is_empty() {
            return;
        }
        let index = choices.below(self.out.len() as u64) as usize;
        let out = self.out.swap_remove(index);
        let hold = self.now.since(out.since);
        let longest = &mut self.waited[out.class as usize].longest;
        *longest = (*longest).max(Some(hold));
        self.count_returned(&out);
        self.queue.release(out.permit, self.now, self.random, wakes);
    }

    fn count_returned(&mut self, out: &ClassPermit) {
        let waited = &mut self.waited[out.class.other() as usize];
        if out.grant > waited.after_grant {
            waited.returned_ms += self.now.since(out.since).0;
        }
    }

    fn cancel(&mut self, choices: &mut RandomChoices) {
        if !self.waiting.is_empty() {
            let index = choices.below(self.waiting.len() as u64) as usize;
            let ticket = self.waiting.remove(index).ticket;
            assert!(self.queue.cancel(ticket, self.now));
            assert!(!self.queue.cancel(ticket, self.now), "a waiter leaves once");
        }
    }

    fn set_usable(&mut self, choices: &mut RandomChoices, wakes: &mut WaiterUpdates) {
        let url = URLS[choices.below(3) as usize];
        let usable = !choices.one_in(3);
        let Some(id) = self.queue.endpoint(url) else {
            return;
        };
        match usable || !self.is_configured(url) {
            true => self.unusable.remove(url),
            false => self.unusable.insert(url),
        };
        self.queue
            .set_usable(id, usable, self.now, self.random, wakes);
    }

    fn is_configured(&self, url: &str) -> bool {
        let mut endpoints = self.spec.endpoints.iter();
        endpoints.any(|endpoint| &*endpoint.url == url)
    }

    fn configure(&mut self, choices: &mut RandomChoices, wakes: &mut WaiterUpdates) {
        let mut endpoints = Vec::new();
        for url in URLS {
            if !choices.one_in(4) {
                endpoints.push((url, choices.below(4) as u32 + 1));
            }
        }
        let algorithms = [
            Algorithm::Fifo,
            Algorithm::Fair,
            Algorithm::Priority,
            Algorithm::TokenFair,
        ];
        self.spec = spec(algorithms[choices.below(4) as usize], &endpoints);
        self.spec.jobs.share_percent = [25, 25, 50, 1, 99][choices.below(5) as usize];
        self.spec.jobs.permits_max_percent = [100, 100, 50, 1][choices.below(4) as usize];
        self.spec.jobs.keep_free = [0, 0, 1, 3][choices.below(4) as usize];
        self.spec.queue.capacity = choices.below(4) as u32 + 1;
        if choices.one_in(3) {
            self.spec.queue.when_unhealthy = WhenUnhealthy::Refuse;
        }
        let configured: Vec<&str> = endpoints.iter().map(|&(url, _)| url).collect();
        self.unusable.retain(|url| configured.contains(url));
        self.queue
            .configure(&self.spec, self.now, self.random, wakes);
    }

    fn detach(&mut self, choices: &mut RandomChoices, wakes: &mut WaiterUpdates) {
        if !self.out.is_empty() && choices.one_in(2) {
            let permit = self.out[choices.below(self.out.len() as u64) as usize].permit;
            let lease_until = self.now + Millis(choices.below(100));
            assert!(self.queue.detach(permit, lease_until));
            return;
        }
        self.queue.expire_detached(self.now, self.random, wakes);
        let (kept, lost): (Vec<_>, Vec<_>) = std::mem::take(&mut self.out)
            .into_iter()
            .partition(|out| self.queue.is_held(out.permit));
        self.out = kept;
        for out in lost {
            self.count_returned(&out);
        }
    }

    /// Permits that durable requests may hold, of those at usable endpoints.
    fn durable_max(&self) -> usize {
        let usable = self.spec.endpoints.iter();
        let usable = usable.filter(|endpoint| !self.unusable.contains(&*endpoint.url));
        let limit = usable.map(|endpoint| endpoint.max_concurrent_requests);
        self.spec.jobs.permits_max(limit.sum()) as usize
    }

    fn could_take(&self, class: PermitClass) -> bool {
        let is_below_cap = class == PermitClass::Live || self.used_by(class) < self.durable_max();
        is_below_cap && self.waiting_of(class) > 0
    }

    /// A permit was granted: within the limits, for a good reason, and within the bound against starvation.
    fn hold(&mut self, grant: Grant) {
        let ClassTurn { class, choice } = grant.turn;
        let other = class.other();
        let could_take = self.could_take(other);
        let was_refused = self.refused.iter().any(|w| w.class == other);
        let waited = self.waiting_of(other) > 0 || was_refused;
        let is_below_cap = other == PermitClass::Live || self.used_by(other) < self.durable_max();
        let is_meant = match choice {
            ClassChoice::OnlyWaiting => !could_take,
            ClassChoice::CapReached => class == PermitClass::Live && waited && !could_take,
            ClassChoice::LessService | ClassChoice::StarvationBound => waited && is_below_cap,
        };
        assert!(is_meant, "{class:?} for {choice:?}");

        if choice == ClassChoice::LessService {
            self.check_bound(class);
        }
        if class == PermitClass::Durable {
            assert!(
                self.used_by(class) < self.durable_max(),
                "never above the cap"
            );
        }
        self.grants += 1;
        let waited = &mut self.waited[class as usize];
        (waited.after_grant, waited.returned_ms) = (self.grants, 0);
        self.out.push(ClassPermit {
            permit: grant.permit,
            endpoint: grant.endpoint,
            class,
            since: self.now,
            grant: self.grants,
        });
        let at = self.out.iter().filter(|out| out.endpoint == grant.endpoint);
        let mut endpoints = self.spec.endpoints.iter();
        let spec = endpoints.find(|e| self.queue.endpoint(&e.url) == Some(grant.endpoint));
        let spec = spec.expect("only configured endpoints get requests");
        assert!(at.count() <= spec.max_concurrent_requests as usize);
        assert!(!self.unusable.contains(&*spec.url));
    }

    /// Checks that `class` may be granted one more permit while the other waits.
    fn check_bound(&self, class: PermitClass) {
        let waited = self.waited[class.other() as usize];
        let Some(longest) = waited.longest.filter(|_| waited.is_waiting) else {
            return;
        };
        let since = self.out.iter();
        let since = since.filter(|out| out.class == class && out.grant > waited.after_grant);
        let held: u64 = since.map(|out| self.now.since(out.since).0).sum();
        let durable = f64::from(self.spec.jobs.share_percent);
        let ratio = match class {
            PermitClass::Live => (100.0 - durable) / durable,
            PermitClass::Durable => durable / (100.0 - durable),
        };
        let granted = (waited.returned_ms + held) as f64;
        let bound = ratio * longest.0.max(1) as f64;
        assert!(
            granted < bound + 1e-6,
            "{class:?}: {granted} ms over {bound} ms"
        );
    }

    fn settle(&mut self, wakes: WaiterUpdates) {
        for (ticket, refusal) in wakes.refusals {
            let waiter = self.answer(ticket);
            if waiter.class == PermitClass::Durable {
                let is_meant = match refusal {
                    Refusal::DeadlinePassed => self.now >= waiter.deadline,
                    Refusal::Evicted => self.spec.endpoints.is_empty(),
                    _ => false,
                };
                assert!(
                    is_meant,
                    "durable requests wait and are not refused: {refusal:?}"
                );
            }
            self.refused.push(waiter);
        }
        for grant in wakes.grants {
            let waiter = self.answer(grant.ticket.expect("woken waiters have tickets"));
            assert_eq!(waiter.class, grant.turn.class);
            assert!(waiter.deadline > self.now, "nothing is started late");
            let mut before = self.waiting.iter();
            let is_overtaking = waiter.class == PermitClass::Durable
                && !waiter.is_retry
                && before.any(|w| w.class == waiter.class && w.ticket < waiter.ticket);
            assert!(!is_overtaking, "durable requests go in order of arrival");
            self.hold(grant);
        }
        self.refused.clear();
    }

    fn answer(&mut self, ticket: QueueTicket) -> ClassWaiter {
        let at = self.waiting.iter().position(|w| w.ticket == ticket);
        self.waiting
            .remove(at.expect("only those who wait are answered, once"))
    }

    fn check(&mut self) {
        self.queue.check();
        let gauges = self.queue.gauges();
        assert_eq!(gauges.used as usize, self.out.len(), "no permit is lost");
        assert_eq!(gauges.depth, self.waiting.len(), "no waiter is lost");
        let used = self.used_by(PermitClass::Durable);
        assert_eq!(gauges.durable_used as usize, used);
        let waiting = self.waiting_of(PermitClass::Durable);
        assert_eq!(gauges.durable_waiting, waiting);
        let state = self.queue.state(self.now);
        assert_eq!(state.durable_max as usize, self.durable_max());
        let is_free = |endpoint: &&EndpointState| {
            endpoint.usable && !endpoint.draining && endpoint.used < endpoint.limit
        };
        let could_take = PermitClass::ALL.map(|class| self.could_take(class));
        assert!(
            could_take == [false; 2] || !state.endpoints.iter().any(|e| is_free(&e)),
            "no permit is free while a waiter could use it"
        );
        for (waited, could_take) in self.waited.iter_mut().zip(could_take) {
            if !could_take || !waited.is_waiting {
                (waited.after_grant, waited.returned_ms) = (self.grants, 0);
            }
            waited.is_waiting = could_take;
        }
    }

    /// Releases all permits: every waiter that could be served gets an outcome.
    fn wind_down(&mut self) {
        for url in URLS {
            let mut wakes = WaiterUpdates::default();
            self.unusable.remove(url);
            if let Some(id) = self.queue.endpoint(url) {
                self.queue
                    .set_usable(id, true, self.now, self.random, &mut wakes);
            }
            self.settle(wakes);
        }
        while !self.out.is_empty() {
            let mut wakes = WaiterUpdates::default();
            self.release(&mut RandomChoices(self.random), &mut wakes);
            self.settle(wakes);
            self.check();
        }
        let served = PermitClass::ALL.map(|class| self.waiting_of(class) == 0);
        assert!(served[0] || self.spec.endpoints.is_empty());
        assert!(served[1] || self.durable_max() == 0);
        assert_eq!(self.queue.gauges().used, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(CASES)
    })]

    #[test]
    fn a_million_random_events_of_both_classes_break_no_promise(
        events in prop::collection::vec(any::<u64>(), 1..=EVENTS)
    ) {
        let mut model = ClassModel::new();
        for event in events {
            model.step(event);
        }
        model.wind_down();
    }
}
