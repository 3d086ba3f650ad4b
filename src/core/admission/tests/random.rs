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
struct Choices(u64);

impl Choices {
    fn below(&mut self, count: u64) -> u64 {
        let choice = self.0 % count;
        self.0 /= count;
        choice
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct Waiting {
    ask: Ask,
    ticket: Ticket,
}

struct Model {
    turnstile: Turnstile,
    now: Millis,
    dice: u64,
    spec: ModelSpec,
    /// Discipline that orders the grants of the current step: a reload grants freed permits in the old
    /// order, then changes it.
    algorithm: Algorithm,
    /// Configured endpoints said to be unusable.
    unusable: BTreeSet<&'static str>,
    /// In order of arrival.
    waiting: Vec<Waiting>,
    out: Vec<(PermitId, EndpointId)>,
    answered: Vec<Ticket>,
}

impl Model {
    fn new() -> Model {
        let spec = super::examples::spec(Algorithm::Fair, &[("a", 2), ("b", 2)]);
        Model {
            turnstile: Turnstile::new(&spec, Millis(0)),
            now: Millis(0),
            dice: 0,
            algorithm: spec.queue.algorithm,
            spec,
            unusable: BTreeSet::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            answered: Vec::new(),
        }
    }

    fn step(&mut self, event: u64) {
        let mut choices = Choices(event);
        self.now = self.now + Millis(choices.below(20));
        self.dice = event.rotate_left(17);
        let mut wakes = Wakes::default();
        match choices.below(32) {
            0..=12 => self.ask(&mut choices),
            13..=20 => self.give_back(&mut choices, &mut wakes),
            21..=22 => self.leave(&mut choices),
            23..=24 => self.set_usable(&mut choices, &mut wakes),
            25 => self.configure(&mut choices, &mut wakes),
            26..=27 => self.reserve(&mut choices),
            28..=29 => self.detach(&mut choices, &mut wakes),
            30 => {
                let is_failing = choices.one_in(2);
                self.turnstile
                    .set_failing(is_failing.then_some(Millis::ZERO));
                self.turnstile.expire_unhealthy(self.now, &mut wakes);
            }
            _ => {
                let account = account(choices.below(ACCOUNTS));
                let (charged, actual) = (choices.below(100), choices.below(100));
                self.turnstile.correct_tokens(&account, 1, charged, actual);
            }
        }
        self.settle(wakes);
        self.algorithm = self.spec.queue.algorithm;
        self.turnstile.check();
        let gauges = self.turnstile.gauges();
        assert_eq!(gauges.depth, self.waiting.len(), "nobody is lost");
        assert_eq!(gauges.used as usize, self.out.len(), "no permit is lost");
    }

    fn ask(&mut self, choices: &mut Choices) {
        let who = choices.below(ACCOUNTS);
        let ask = Ask {
            account: account(who),
            weight: who as u32 % 3 + 1,
            priority: choices.below(3) as u8,
            warm: choices.one_in(2),
            tokens: choices.below(50) as u32,
            deadline: self.now + Millis(choices.below(2_000)),
            no_wait: choices.one_in(16),
            avoid: (0..choices.below(3))
                .map(|id| EndpointId(id as u32))
                .collect(),
            order: choices.one_in(3).then(|| {
                let step = |id: usize| (choices.below(3) as u8, EndpointId(id as u32));
                Arc::new(Order::new((0..4).map(step)))
            }),
            resume: choices.one_in(16),
            elsewhere: choices.one_in(8),
        };
        let gauges = self.turnstile.gauges();
        match self.turnstile.ask(ask.clone(), self.now, self.dice) {
            Outcome::Leased(grant) => {
                assert!(self.waiting.is_empty(), "nobody barges in");
                assert_eq!(grant.ticket, None);
                self.hold(grant.permit, grant.endpoint);
            }
            Outcome::Queued {
                ticket, position, ..
            } => {
                assert!(position <= self.waiting.len() + 1);
                assert!(!ask.no_wait);
                let capacity = self.turnstile.state(self.now).capacity;
                let total = self.spec.queue.total_capacity as usize;
                let depth = self.line_depth(&ask);
                assert!(
                    ask.resume || (depth < capacity && gauges.depth < total),
                    "bounded"
                );
                self.waiting.push(Waiting { ask, ticket });
            }
            Outcome::Full(refusal) => {
                assert!(!(ask.resume && matches!(refusal, Refusal::QueueFull { .. })));
                assert!(!self.permit_is_free() || refusal == Refusal::DeadlinePassed);
            }
        }
    }

    fn line_depth(&self, ask: &Ask) -> usize {
        let per_account = matches!(
            self.spec.queue.algorithm,
            Algorithm::Fair | Algorithm::TokenFair
        );
        let same_line = |waiting: &&Waiting| !per_account || waiting.ask.account == ask.account;
        self.waiting.iter().filter(same_line).count()
    }

    fn permit_is_free(&self) -> bool {
        self.spec.endpoints.iter().any(|endpoint| {
            let id = self
                .turnstile
                .endpoint(&endpoint.url)
                .expect("configured endpoints are known");
            !self.unusable.contains(&*endpoint.url)
                && self.out_at(id) < endpoint.max_concurrent_requests as usize
        })
    }

    fn out_at(&self, id: EndpointId) -> usize {
        self.out.iter().filter(|&&(_, at)| at == id).count()
    }

    fn give_back(&mut self, choices: &mut Choices, wakes: &mut Wakes) {
        if self.out.is_empty() {
            return;
        }
        let index = choices.below(self.out.len() as u64) as usize;
        let (permit, _) = self.out.swap_remove(index);
        self.turnstile.give_back(permit, self.now, self.dice, wakes);
        if choices.one_in(4) {
            self.turnstile.give_back(permit, self.now, self.dice, wakes);
        }
    }

    fn leave(&mut self, choices: &mut Choices) {
        if !self.waiting.is_empty() {
            let index = choices.below(self.waiting.len() as u64) as usize;
            let ticket = self.waiting.remove(index).ticket;
            assert!(self.turnstile.leave(ticket, self.now));
            self.answered.push(ticket);
        }
        if let Some(&ticket) = self.answered.last() {
            assert!(
                !self.turnstile.leave(ticket, self.now),
                "nobody leaves twice"
            );
        }
    }

    fn set_usable(&mut self, choices: &mut Choices, wakes: &mut Wakes) {
        let url = URLS[choices.below(4) as usize];
        let usable = !choices.one_in(3);
        let Some(id) = self.turnstile.endpoint(url) else {
            return;
        };
        if usable || !self.is_configured(url) {
            self.unusable.remove(url);
        } else {
            self.unusable.insert(url);
        }
        self.turnstile
            .set_usable(id, usable, self.now, self.dice, wakes);
    }

    fn is_configured(&self, url: &str) -> bool {
        self.spec
            .endpoints
            .iter()
            .any(|endpoint| &*endpoint.url == url)
    }

    fn configure(&mut self, choices: &mut Choices, wakes: &mut Wakes) {
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
        self.turnstile
            .configure(&self.spec, self.now, self.dice, wakes);
        // Who comes back later is usable then.
        let configured = |url: &&str| self.spec.endpoints.iter().any(|spec| &*spec.url == *url);
        self.unusable.retain(|url| configured(url));
    }

    fn reserve(&mut self, choices: &mut Choices) {
        match self.turnstile.reserve(self.now, self.dice) {
            Some((permit, endpoint)) => {
                assert!(self.waiting.is_empty(), "waiters come first");
                self.hold(permit, endpoint);
                if choices.one_in(2) {
                    self.turnstile.assign(permit);
                }
            }
            None => assert!(!self.waiting.is_empty() || !self.permit_is_free()),
        }
    }

    fn detach(&mut self, choices: &mut Choices, wakes: &mut Wakes) {
        if !self.out.is_empty() && choices.one_in(2) {
            let (permit, _) = self.out[choices.below(self.out.len() as u64) as usize];
            assert!(
                self.turnstile
                    .detach(permit, self.now + Millis(choices.below(100)))
            );
            assert!(
                self.turnstile
                    .renew(permit, self.now + Millis(choices.below(100)))
            );
            return;
        }
        let expired = self.turnstile.expire_detached(self.now, self.dice, wakes);
        let lost = self.out.len();
        self.out
            .retain(|&(permit, _)| self.turnstile.is_out(permit));
        assert_eq!(lost - self.out.len(), expired);
    }

    /// A permit was granted: within the limit of an endpoint that may be used.
    fn hold(&mut self, permit: PermitId, endpoint: EndpointId) {
        assert!(
            self.out.iter().all(|&(out, _)| out != permit),
            "a permit is granted once"
        );
        self.out.push((permit, endpoint));
        let named = |spec: &&EndpointSpec| self.turnstile.endpoint(&spec.url) == Some(endpoint);
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
    fn settle(&mut self, wakes: Wakes) {
        for (ticket, _) in wakes.refusals {
            self.answer(ticket);
        }
        for grant in wakes.grants {
            let ticket = grant.ticket.expect("woken waiters have tickets");
            let served = self.answer(ticket).ask;
            assert!(served.deadline > self.now, "nothing is started late");
            let overtaken = self.waiting.iter().find(|other| {
                let same_class = self.algorithm != Algorithm::Priority
                    || (other.ask.priority, other.ask.warm) == (served.priority, served.warm);
                other.ask.account == served.account
                    && same_class
                    && !served.resume
                    && other.ticket < ticket
            });
            assert!(overtaken.is_none(), "first in, first out within an account");
            self.hold(grant.permit, grant.endpoint);
        }
    }

    fn answer(&mut self, ticket: Ticket) -> Waiting {
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
        let mut wakes = Wakes::default();
        self.unusable.clear();
        for url in URLS {
            if let Some(id) = self.turnstile.endpoint(url) {
                self.turnstile
                    .set_usable(id, true, self.now, self.dice, &mut wakes);
            }
        }
        self.settle(wakes);
        while let Some((permit, _)) = self.out.pop() {
            let mut wakes = Wakes::default();
            self.turnstile
                .give_back(permit, self.now, self.dice, &mut wakes);
            self.settle(wakes);
            self.turnstile.check();
        }
        assert!(self.waiting.is_empty() || self.spec.endpoints.is_empty());
        assert_eq!(self.turnstile.gauges().used, 0);
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
        let mut model = Model::new();
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
        let mut turnstile = Turnstile::new(&spec, Millis(0));
        let Some((permit, _)) = turnstile.reserve(Millis(0), 0) else { panic!("a permit is free") };
        let mut owner = BTreeMap::new();
        for _ in 0..rounds * 20 {
            for (number, &weight) in weights.iter().enumerate() {
                let ask = super::ask(&format!("account {number}")).weight(weight).build();
                let Outcome::Queued { ticket, .. } = turnstile.ask(ask, Millis(0), 0) else {
                    panic!("the only permit is out");
                };
                owner.insert(ticket, number);
            }
        }
        let mut served = vec![0_u32; weights.len()];
        let mut held = permit;
        for turn in 1..=sum * rounds {
            let mut wakes = Wakes::default();
            turnstile.give_back(held, Millis(0), 0, &mut wakes);
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
