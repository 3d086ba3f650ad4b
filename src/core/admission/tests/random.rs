//! A million random events against a reference model that checks the admission queue's promises by counting.
//!
//! An event is a number; proptest shortens a failing list of them. The model knows the waiters and
//! which permits are in use, and nothing about how the admission queue works.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::super::*;
use crate::model::{Algorithm, EndpointSpec, ModelSpec, WhenUnhealthy};
use crate::{Millis, Refusal};

const CASES: u32 = 2_200;
/// At most, in one case; on average half as many.
const EVENTS: usize = 1_000;
const ACCOUNTS: u64 = 6;
const URLS: [&str; 4] = ["a", "b", "c", "d"];

/// A random number taken apart into small choices.
struct EventChoices(u64);

impl EventChoices {
    fn below(&mut self, count: u64) -> u64 {
        let choice = self.0 % count;
        self.0 /= count;
        choice
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct WaitingRequest {
    ask: PermitRequest,
    ticket: QueueTicket,
}

struct ReferenceModel {
    admission_queue: AdmissionQueue,
    now: Millis,
    random: u64,
    spec: ModelSpec,
    /// Discipline that orders the grants of the current step: a reload grants freed permits in the old
    /// order, then changes it.
    algorithm: Algorithm,
    /// Configured endpoints said to be unusable.
    unusable: BTreeSet<&'static str>,
    /// In order of arrival.
    waiting: Vec<WaitingRequest>,
    out: Vec<(PermitId, EndpointId)>,
    answered: Vec<QueueTicket>,
}

impl ReferenceModel {
    fn new() -> ReferenceModel {
        let spec = super::examples::spec(Algorithm::Fair, &[("a", 2), ("b", 2)]);
        ReferenceModel {
            admission_queue: AdmissionQueue::new(&spec, Millis(0)),
            now: Millis(0),
            random: 0,
            algorithm: spec.queue.algorithm,
            spec,
            unusable: BTreeSet::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            answered: Vec::new(),
        }
    }

    fn step(&mut self, event: u64) {
        let mut choices = EventChoices(event);
        self.now = self.now + Millis(choices.below(20));
        self.random = event.rotate_left(17);
        let mut wakes = WaiterUpdates::default();
        match choices.below(32) {
            0..=12 => self.request(&mut choices),
            13..=20 => self.release(&mut choices, &mut wakes),
            21..=22 => self.cancel(&mut choices),
            23..=24 => self.set_usable(&mut choices, &mut wakes),
            25 => self.configure(&mut choices, &mut wakes),
            26..=27 => self.reserve(&mut choices),
            28..=29 => self.detach(&mut choices, &mut wakes),
            30 => {
                let is_failing = choices.one_in(2);
                self.admission_queue
                    .set_failing(is_failing.then_some(Millis::ZERO));
                self.admission_queue.expire_unhealthy(self.now, &mut wakes);
            }
            _ => {
                let account = account(choices.below(ACCOUNTS));
                let (charged, actual) = (choices.below(100), choices.below(100));
                self.admission_queue
                    .correct_tokens(&account, 1, charged, actual);
            }
        }
        self.settle(wakes);
        self.algorithm = self.spec.queue.algorithm;
        self.admission_queue.check();
        let gauges = self.admission_queue.gauges();
        assert_eq!(gauges.depth, self.waiting.len(), "nobody is lost");
        assert_eq!(gauges.used as usize, self.out.len(), "no permit is lost");
    }

    fn request(&mut self, choices: &mut EventChoices) {
        let who = choices.below(ACCOUNTS);
        let ask = PermitRequest {
            class: PermitClass::Live,
            account: account(who),
            weight: who as u32 % 3 + 1,
            priority: choices.below(3) as u8,
            is_warm: choices.one_in(2),
            tokens: choices.below(50) as u32,
            deadline: self.now + Millis(choices.below(2_000)),
            no_wait: choices.one_in(16),
            avoid: (0..choices.below(3))
                .map(|id| EndpointId(id as u32))
                .collect(),
            endpoint_order: choices.one_in(3).then(|| {
                let step = |id: usize| (choices.below(3) as u8, EndpointId(id as u32));
                Arc::new(EndpointOrder::new((0..4).map(step)))
            }),
            is_retry: choices.one_in(16),
            is_bounded_elsewhere: choices.one_in(8),
            has_alternative: choices.one_in(8),
            client: None,
        };
        match self
            .admission_queue
            .request_permit(ask.clone(), self.now, self.random)
        {
            AdmissionOutcome::Leased(grant) => {
                assert!(self.waiting.is_empty(), "nobody barges in");
                assert_eq!(grant.ticket, None);
                self.hold(grant.permit, grant.endpoint);
            }
            AdmissionOutcome::Queued {
                ticket, position, ..
            } => {
                assert!(position <= self.waiting.len() + 1);
                assert!(!ask.no_wait);
                let capacity = self.admission_queue.state(self.now).capacity;
                let total = self.spec.queue.total_capacity as usize;
                let depth = self.queue_depth(&ask);
                assert!(
                    ask.is_retry
                        || ask.is_bounded_elsewhere
                        || (depth < capacity && self.bounded().count() < total),
                    "bounded"
                );
                self.waiting.push(WaitingRequest { ask, ticket });
            }
            AdmissionOutcome::Full(refusal) => {
                let is_unbounded = ask.is_retry || ask.is_bounded_elsewhere;
                let is_full = matches!(refusal, Refusal::QueueFull { .. });
                assert!(!(is_unbounded && is_full));
                let capacity = self.admission_queue.state(self.now).capacity;
                let total = self.spec.queue.total_capacity as usize;
                let has_room = self.queue_depth(&ask) < capacity && self.bounded().count() < total;
                assert!(!(is_full && has_room), "jobs take no place from others");
                assert!(!self.permit_is_free() || refusal == Refusal::DeadlinePassed);
            }
        }
    }

    fn queue_depth(&self, ask: &PermitRequest) -> usize {
        let per_account = matches!(
            self.spec.queue.algorithm,
            Algorithm::Fair | Algorithm::TokenFair
        );
        let same_line =
            |waiting: &&WaitingRequest| !per_account || waiting.ask.account == ask.account;
        self.bounded().filter(same_line).count()
    }

    /// Waiters within the queue's bounds.
    fn bounded(&self) -> impl Iterator<Item = &WaitingRequest> {
        let waiting = self.waiting.iter();
        waiting.filter(|waiting| !waiting.ask.is_bounded_elsewhere)
    }

    fn permit_is_free(&self) -> bool {
        self.spec.endpoints.iter().any(|endpoint| {
            let id = self
                .admission_queue
                .endpoint(&endpoint.url)
                .expect("configured endpoints are known");
            !self.unusable.contains(&*endpoint.url)
                && self.out_at(id) < endpoint.max_concurrent_requests as usize
        })
    }

    fn out_at(&self, id: EndpointId) -> usize {
        self.out.iter().filter(|&&(_, at)| at == id).count()
    }

    fn release(&mut self, choices: &mut EventChoices, wakes: &mut WaiterUpdates) {
        if self.out.is_empty() {
            return;
        }
        let index = choices.below(self.out.len() as u64) as usize;
        let (permit, _) = self.out.swap_remove(index);
        self.admission_queue
            .release(permit, self.now, self.random, wakes);
        if choices.one_in(4) {
            self.admission_queue
                .release(permit, self.now, self.random, wakes);
        }
    }

    fn cancel(&mut self, choices: &mut EventChoices) {
        if !self.waiting.is_empty() {
            let index = choices.below(self.waiting.len() as u64) as usize;
            let ticket = self.waiting.remove(index).ticket;
            assert!(self.admission_queue.cancel(ticket, self.now));
            self.answered.push(ticket);
        }
        if let Some(&ticket) = self.answered.last() {
            assert!(
                !self.admission_queue.cancel(ticket, self.now),
                "nobody leaves twice"
            );
        }
    }

    fn set_usable(&mut self, choices: &mut EventChoices, wakes: &mut WaiterUpdates) {
        let url = URLS[choices.below(4) as usize];
        let usable = !choices.one_in(3);
        let Some(id) = self.admission_queue.endpoint(url) else {
            return;
        };
        if usable || !self.is_configured(url) {
            self.unusable.remove(url);
        } else {
            self.unusable.insert(url);
        }
        self.admission_queue
            .set_usable(id, usable, self.now, self.random, wakes);
    }

    fn is_configured(&self, url: &str) -> bool {
        self.spec
            .endpoints
            .iter()
            .any(|endpoint| &*endpoint.url == url)
    }

    fn configure(&mut self, choices: &mut EventChoices, wakes: &mut WaiterUpdates) {
        let mut endpoints = Vec::new();
        for url in URLS {
            if !choices.one_in(3) {
                endpoints.push((url, choices.below(4) as u32 + 1));
            }
        }
        let algorithms = [
            Algorithm::Fifo,
            Algorithm::Fair,
            Algorithm::Priority,
            Algorithm::TokenFair,
        ];
        let algorithm = algorithms[choices.below(4) as usize];
        self.spec = super::examples::spec(algorithm, &endpoints);
        for endpoint in &mut self.spec.endpoints {
            endpoint.priority = choices.below(2) as u32;
        }
        self.spec.queue.capacity = choices.below(4) as u32;
        self.spec.queue.total_capacity = 8 * choices.below(3) as u32;
        if choices.one_in(3) {
            self.spec.queue.when_unhealthy = WhenUnhealthy::Refuse;
        }
        self.admission_queue
            .configure(&self.spec, self.now, self.random, wakes);
        // Who comes back later is usable then.
        let configured = |url: &&str| self.spec.endpoints.iter().any(|spec| &*spec.url == *url);
        self.unusable.retain(|url| configured(url));
    }

    fn reserve(&mut self, choices: &mut EventChoices) {
        match self.admission_queue.reserve(self.now, self.random) {
            Some((permit, endpoint)) => {
                assert!(self.waiting.is_empty(), "waiters come first");
                self.hold(permit, endpoint);
                if choices.one_in(2) {
                    self.admission_queue.assign(permit);
                }
            }
            None => assert!(!self.waiting.is_empty() || !self.permit_is_free()),
        }
    }

    fn detach(&mut self, choices: &mut EventChoices, wakes: &mut WaiterUpdates) {
        if !self.out.is_empty() && choices.one_in(2) {
            let (permit, _) = self.out[choices.below(self.out.len() as u64) as usize];
            assert!(
                self.admission_queue
                    .detach(permit, self.now + Millis(choices.below(100)))
            );
            assert!(
                self.admission_queue
                    .renew(permit, self.now + Millis(choices.below(100)))
            );
            return;
        }
        let expired = self
            .admission_queue
            .expire_detached(self.now, self.random, wakes);
        let lost = self.out.len();
        self.out
            .retain(|&(permit, _)| self.admission_queue.is_held(permit));
        assert_eq!(lost - self.out.len(), expired);
    }

    /// A permit was granted: within the limit of an endpoint that may be used.
    fn hold(&mut self, permit: PermitId, endpoint: EndpointId) {
        assert!(
            self.out.iter().all(|&(out, _)| out != permit),
            "a permit is granted once"
        );
        self.out.push((permit, endpoint));
        let named =
            |spec: &&EndpointSpec| self.admission_queue.endpoint(&spec.url) == Some(endpoint);
        let spec = self.spec.endpoints.iter().find(named);
        let spec = spec.expect("only configured endpoints get requests");
        let limit = spec.max_concurrent_requests as usize;
        assert!(self.out_at(endpoint) <= limit, "never above the limit");
        assert!(
            !self.unusable.contains(&*spec.url),
            "never to an unusable endpoint"
        );
    }

    /// Checks that every waiter with an outcome waited, got no other outcome, and was not overtaken by
    /// its own account.
    fn settle(&mut self, wakes: WaiterUpdates) {
        for (ticket, _) in wakes.refusals {
            self.answer(ticket);
        }
        for grant in wakes.grants {
            let ticket = grant.ticket.expect("woken waiters have tickets");
            let served = self.answer(ticket).ask;
            assert!(served.deadline > self.now, "nothing is started late");
            let overtaken = self.waiting.iter().find(|other| {
                let same_class = self.algorithm != Algorithm::Priority
                    || (other.ask.priority, other.ask.is_warm) == (served.priority, served.is_warm);
                other.ask.account == served.account
                    && same_class
                    && !served.is_retry
                    && other.ticket < ticket
            });
            assert!(overtaken.is_none(), "first in, first out within an account");
            self.hold(grant.permit, grant.endpoint);
        }
    }

    fn answer(&mut self, ticket: QueueTicket) -> WaitingRequest {
        let at = self
            .waiting
            .iter()
            .position(|waiting| waiting.ticket == ticket);
        self.answered.push(ticket);
        self.waiting
            .remove(at.expect("only those who wait are answered, once"))
    }

    /// Releases all permits: every waiter gets an outcome and no permit stays in use.
    fn wind_down(&mut self) {
        let mut wakes = WaiterUpdates::default();
        self.unusable.clear();
        for url in URLS {
            if let Some(id) = self.admission_queue.endpoint(url) {
                self.admission_queue
                    .set_usable(id, true, self.now, self.random, &mut wakes);
            }
        }
        self.settle(wakes);
        while let Some((permit, _)) = self.out.pop() {
            let mut wakes = WaiterUpdates::default();
            self.admission_queue
                .release(permit, self.now, self.random, &mut wakes);
            self.settle(wakes);
            self.admission_queue.check();
        }
        assert!(self.waiting.is_empty() || self.spec.endpoints.is_empty());
        assert_eq!(self.admission_queue.gauges().used, 0);
    }
}

fn account(number: u64) -> crate::AccountId {
    ["ant", "bee", "cat", "dog", "elk", "fox"][number as usize].into()
}

fn quiet(cases: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    }
}

proptest! {
    #![proptest_config(quiet(CASES))]

    #[test]
    fn a_million_random_events_break_no_promise(
        events in prop::collection::vec(any::<u64>(), 1..=EVENTS)
    ) {
        let mut model = ReferenceModel::new();
        for event in events {
            model.step(event);
        }
        model.wind_down();
    }
}

proptest! {
    #![proptest_config(quiet(200))]

    /// Backlogged accounts: whenever one is served, none of the others is more than one round
    /// away from it, whatever their weights.
    #[test]
    fn weights_are_respected_within_one_round(
        weights in prop::collection::vec(1_u32..20, 2..8),
        rounds in 2_u32..6,
    ) {
        let sum: u32 = weights.iter().sum();
        let mut spec = super::examples::spec(Algorithm::Fair, &[("a", 1)]);
        spec.queue.capacity = 1000;
        let mut turnstile = AdmissionQueue::new(&spec, Millis(0));
        let Some((permit, _)) = turnstile.reserve(Millis(0), 0) else { panic!("a permit is free") };
        let mut owner = BTreeMap::new();
        for _ in 0..rounds * 20 {
            for (number, &weight) in weights.iter().enumerate() {
                let ask = super::request(&format!("account {number}")).weight(weight).build();
                let AdmissionOutcome::Queued { ticket, .. } = turnstile.request_permit(ask, Millis(0), 0) else {
                    panic!("the only permit is out");
                };
                owner.insert(ticket, number);
            }
        }
        let mut served = vec![0_u32; weights.len()];
        let mut held = permit;
        for turn in 1..=sum * rounds {
            let mut wakes = WaiterUpdates::default();
            turnstile.release(held, Millis(0), 0, &mut wakes);
            held = wakes.grants[0].permit;
            served[owner[&wakes.grants[0].ticket.expect("a waiter was woken")]] += 1;
            let share = |number: usize| f64::from(served[number]) / f64::from(weights[number]);
            let shares: Vec<f64> = (0..weights.len()).map(share).collect();
            let spread = shares.iter().cloned().fold(0.0, f64::max)
                - shares.iter().cloned().fold(f64::MAX, f64::min);
            prop_assert!(spread <= 1.0, "{shares:?}");
            if turn % sum == 0 {
                let round: Vec<u32> = weights.iter().map(|weight| weight * turn / sum).collect();
                prop_assert_eq!(&served, &round);
            }
        }
    }
}
