//! Several turnstiles at servers whose permits they share.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::*;
use super::examples::spec;
use super::request;
use crate::Millis;
use crate::model::{Algorithm, ModelSpec};

const CASES: u32 = 600;
const EVENTS: usize = 600;
const URLS: [&str; 3] = ["a", "b", "c"];

/// A permit that is out, and what it was taken for.
struct LeasedPermit {
    model: usize,
    permit: PermitId,
    server: usize,
}

/// Models beside each other, and what they were granted.
struct SharedModels {
    servers: Vec<Arc<ServerPermits>>,
    limits: [u32; 3],
    turnstiles: Vec<AdmissionQueue>,
    specs: Vec<ModelSpec>,
    waiting: Vec<Vec<QueueTicket>>,
    out: Vec<LeasedPermit>,
    now: Millis,
}

impl SharedModels {
    fn new(endpoints: &[&[&str]], limits: [u32; 3]) -> SharedModels {
        let mut models = SharedModels {
            servers: limits
                .iter()
                .map(|&limit| ServerPermits::new(limit))
                .collect(),
            limits,
            turnstiles: Vec::new(),
            specs: Vec::new(),
            waiting: Vec::new(),
            out: Vec::new(),
            now: Millis(0),
        };
        for urls in endpoints {
            models.add(urls);
        }
        models
    }

    fn add(&mut self, urls: &[&str]) {
        let spec = self.spec(urls, Algorithm::Fair);
        let number = self.turnstiles.len();
        let turnstile = self.with_servers(number, |servers| {
            AdmissionQueue::with_servers(&spec, servers, Millis(0))
        });
        self.turnstiles.push(turnstile);
        self.specs.push(spec);
        self.waiting.push(Vec::new());
    }

    fn spec(&self, urls: &[&str], algorithm: Algorithm) -> ModelSpec {
        let limits = urls.iter().map(|url| self.limits[index_of(url)]);
        let endpoints: Vec<_> = urls.iter().copied().zip(limits).collect();
        spec(algorithm, &endpoints)
    }

    fn with_servers<T>(&self, model: usize, act: impl FnOnce(&ServerMembership<'_>) -> T) -> T {
        act(&ServerMembership {
            gate: GateId(model as u64),
            server_of: &|spec| Some(Arc::clone(&self.servers[index_of(&spec.url)])),
        })
    }

    /// Returns whether the request was granted at once; it waits otherwise.
    fn request(&mut self, model: usize, request: PermitRequest) -> bool {
        match self.turnstiles[model].request_permit(request, self.now, 0) {
            AdmissionOutcome::Leased(grant) => {
                self.hold(model, &grant);
                true
            }
            AdmissionOutcome::Queued { ticket, .. } => {
                self.waiting[model].push(ticket);
                false
            }
            AdmissionOutcome::Full(_) => false,
        }
    }

    fn release(&mut self, index: usize) {
        let LeasedPermit { model, permit, .. } = self.out.swap_remove(index);
        let mut wakes = WaiterUpdates::default();
        self.turnstiles[model].release(permit, self.now, 0, &mut wakes);
        self.settle(model, wakes);
    }

    /// Records a call's outcomes for other waiters, and delivers permits until none is passed on.
    fn settle(&mut self, model: usize, wakes: WaiterUpdates) {
        let mut todo = vec![(model, wakes)];
        while let Some((model, wakes)) = todo.pop() {
            for (ticket, _) in wakes.refusals {
                self.answer(model, ticket);
            }
            for grant in wakes.grants {
                self.answer(model, grant.ticket.expect("woken waiters have tickets"));
                self.hold(model, &grant);
            }
            for handoff in wakes.handoffs {
                let model = handoff.gate().0 as usize;
                let mut wakes = WaiterUpdates::default();
                self.turnstiles[model].accept(handoff, self.now, &mut wakes);
                todo.push((model, wakes));
            }
        }
    }

    fn answer(&mut self, model: usize, ticket: QueueTicket) {
        let waiting = &mut self.waiting[model];
        let at = waiting.iter().position(|&waiting| waiting == ticket);
        waiting.remove(at.expect("only those who wait are answered, once"));
    }

    fn hold(&mut self, model: usize, grant: &Grant) {
        let state = self.turnstiles[model].state(self.now);
        let endpoint = state.endpoints.iter().find(|e| e.id == grant.endpoint);
        let server = index_of(&endpoint.expect("granted at an endpoint it has").url);
        self.out.push(LeasedPermit {
            model,
            permit: grant.permit,
            server,
        });
    }

    fn out_at(&self, server: usize) -> u32 {
        self.out.iter().filter(|out| out.server == server).count() as u32
    }

    fn check(&self) {
        for (number, server) in self.servers.iter().enumerate() {
            assert_eq!(
                server.used(),
                self.out_at(number),
                "every permit counts once"
            );
        }
        for (number, turnstile) in self.turnstiles.iter().enumerate() {
            turnstile.check();
            let depth = turnstile.gauges().depth;
            assert_eq!(depth, self.waiting[number].len(), "no waiter is lost");
        }
    }

    fn step(&mut self, event: u64) {
        let (what, a, b) = (event % 16, (event >> 8) as usize, (event >> 24) as usize);
        let model = a % self.turnstiles.len();
        let mut wakes = WaiterUpdates::default();
        self.now = self.now + Millis(event >> 40 & 15);
        match what {
            0..=6 => {
                let account = ["ant", "bee", "cat"][b % 3];
                let deadline = self.now.0 + 20 + (event >> 44 & 1023);
                let mut request = request(account).weight(b as u32 % 3 + 1).deadline(deadline);
                if event >> 55 & 7 == 0 {
                    request = request.no_wait();
                }
                let is_durable = event >> 58 & 3 == 0;
                if is_durable {
                    request = request.durable();
                }
                let free = self.specs[model].endpoints.iter().any(|endpoint| {
                    let server = index_of(&endpoint.url);
                    self.out_at(server) < self.limits[server]
                });
                let before = self.out.len();
                let found = self.turnstiles[model].state(self.now);
                let is_capped = is_durable && found.durable_used >= found.durable_max;
                self.request(model, request.build());
                let state = self.turnstiles[model].state(self.now);
                let usable = state.endpoints.iter().all(|endpoint| endpoint.usable);
                assert!(
                    !(free && usable) || is_capped || self.out.len() > before,
                    "a free permit is given at once"
                );
            }
            7..=11 if !self.out.is_empty() => self.release(b % self.out.len()),
            12 if !self.waiting[model].is_empty() => {
                let at = b % self.waiting[model].len();
                let ticket = self.waiting[model].remove(at);
                assert!(self.turnstiles[model].cancel(ticket, self.now));
            }
            13 => {
                let url = URLS[b % 3];
                if let Some(id) = self.turnstiles[model].endpoint(url) {
                    let usable = event >> 50 & 3 != 0;
                    self.turnstiles[model].set_usable(id, usable, self.now, 0, &mut wakes);
                }
            }
            14 => self.configure(model, b, &mut wakes),
            15 => {
                let server = b % 3;
                self.limits[server] = (event >> 50) as u32 % 3 + 1;
                let handoffs = self.servers[server].set_limit(self.limits[server]);
                wakes.handoffs.extend(handoffs);
                for model in 0..self.turnstiles.len() {
                    let urls = self.specs[model].endpoints.iter();
                    let mask = urls.fold(0, |mask, e| mask | 1 << index_of(&e.url));
                    self.configure_to(model, mask, Algorithm::Fair, &mut wakes);
                }
                // The limit of those at work sinks as they come back.
                while self.out_at(server) > self.limits[server] {
                    let at = self.out.iter().position(|out| out.server == server);
                    self.settle(model, std::mem::take(&mut wakes));
                    self.release(at.expect("one is out"));
                }
            }
            _ => {}
        }
        self.settle(model, wakes);
        self.check();
    }

    fn configure(&mut self, model: usize, choice: usize, wakes: &mut WaiterUpdates) {
        let algorithms = [Algorithm::Fair, Algorithm::Fifo, Algorithm::TokenFair];
        self.configure_to(model, choice % 8, algorithms[choice / 8 % 3], wakes);
    }

    fn configure_to(
        &mut self,
        model: usize,
        mask: usize,
        algorithm: Algorithm,
        wakes: &mut WaiterUpdates,
    ) {
        let urls: Vec<_> = (0..3)
            .filter(|at| mask >> at & 1 == 1)
            .map(|at| URLS[at])
            .collect();
        let spec = self.spec(&urls, algorithm);
        let mut own = WaiterUpdates::default();
        let mut turnstile = self.turnstiles.remove(model);
        self.with_servers(model, |servers| {
            turnstile.configure_sharing(&spec, servers, self.now, 0, &mut own);
        });
        self.turnstiles.insert(model, turnstile);
        self.specs[model] = spec;
        wakes.handoffs.append(&mut own.handoffs);
        self.settle(model, own);
    }

    /// Releases all permits: every waiter that could be served got an outcome.
    fn wind_down(&mut self) {
        for model in 0..self.turnstiles.len() {
            for url in URLS {
                if let Some(id) = self.turnstiles[model].endpoint(url) {
                    let mut wakes = WaiterUpdates::default();
                    self.turnstiles[model].set_usable(id, true, self.now, 0, &mut wakes);
                    self.settle(model, wakes);
                }
            }
        }
        while !self.out.is_empty() {
            self.release(0);
            self.check();
        }
        for (model, waiting) in self.waiting.iter().enumerate() {
            assert!(waiting.is_empty() || self.specs[model].endpoints.is_empty());
        }
    }
}

fn index_of(url: &str) -> usize {
    let at = URLS.iter().position(|known| *known == url);
    at.expect("one of three servers")
}

#[test]
fn models_at_one_server_get_its_permits_together() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [3, 1, 1]);
    let granted = (0..8)
        .filter(|n| models.request(n % 2, request("x").build()))
        .count();
    assert_eq!((granted, models.out.len()), (3, 3));
    models.check();
}

#[test]
fn a_permit_that_comes_back_serves_the_model_that_waits() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
    assert!(models.request(0, request("x").build()));
    assert!(!models.request(1, request("y").build()));
    models.release(0);
    assert_eq!((models.out[0].model, models.waiting[1].len()), (1, 0));
}

#[test]
fn one_waiter_beside_a_thousand_is_served_within_two_turns() {
    for weights in [1, 5] {
        let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
        assert!(models.request(0, request("x").build()));
        for number in 0..1000 {
            let account = format!("{}", number % 100);
            models.request(0, request(&account).weight(weights).build());
        }
        for _ in 0..7 {
            models.release(0);
        }
        models.request(1, request("lone").build());
        models.release(0);
        models.release(0);
        assert!(models.waiting[1].is_empty());
    }
}

#[test]
fn turns_of_models_go_by_the_weights_of_the_accounts_that_wait() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
    assert!(models.request(0, request("x").build()));
    for _ in 0..200 {
        for account in ["p", "q", "r"] {
            models.request(0, request(account).build());
        }
        models.request(1, request("s").build());
    }
    let before = models.waiting[1].len();
    for _ in 0..200 {
        models.release(0);
    }
    let served = before - models.waiting[1].len();
    assert!((48..=52).contains(&served), "a quarter of 200: {served}");
}

#[test]
fn a_durable_request_weighs_as_one_account_at_a_shared_server() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
    assert!(models.request(0, request("x").build()));
    let mut served = 0;
    for _ in 0..100 {
        while models.waiting[0].len() < 3 {
            models.request(0, request("p").weight(3).build());
        }
        if models.waiting[1].is_empty() {
            models.request(1, request("q").durable().build());
        }
        models.release(0);
        served += usize::from(models.waiting[1].is_empty());
        models.check();
    }
    assert!((24..=50).contains(&served), "at least a quarter: {served}");
}

#[test]
fn a_permit_handed_to_a_model_goes_to_the_class_whose_turn_it_is_there() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
    assert!(models.request(0, request("x").build()));
    models.request(1, request("y").build());
    models.request(1, request("y").durable().build());
    models.request(1, request("y").build());
    let mut durable = Vec::new();
    for _ in 0..3 {
        models.now = models.now + Millis(100);
        models.release(0);
        durable.push(models.turnstiles[1].gauges().durable_used);
        models.check();
    }
    assert_eq!(durable.iter().sum::<u32>(), 1, "{durable:?}");
    assert!(models.waiting[1].is_empty());
}

#[test]
fn a_model_whose_durable_requests_hold_all_they_may_lets_others_have_the_server() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [2, 1, 1]);
    models.specs[0].jobs.keep_free = 1;
    let spec = models.specs[0].clone();
    let mut turnstile = models.turnstiles.remove(0);
    let mut wakes = WaiterUpdates::default();
    models.with_servers(0, |servers| {
        turnstile.configure_sharing(&spec, servers, Millis(0), 0, &mut wakes);
    });
    models.turnstiles.insert(0, turnstile);
    assert!(models.request(0, request("x").durable().build()));
    assert!(!models.request(0, request("x").durable().build()));
    assert!(models.request(1, request("y").build()));
    assert!(!models.request(1, request("y").build()));
    models.release(1);
    assert!(models.waiting[1].is_empty(), "the other model is served");
    models.release(0);
    assert!(
        models.waiting[0].is_empty(),
        "the next durable one is served"
    );
    models.check();
}

#[test]
fn a_model_that_returns_or_is_renamed_finds_its_permits_counted() {
    let mut models = SharedModels::new(&[&["a"]], [2, 1, 1]);
    assert!(models.request(0, request("x").build()) && models.request(0, request("x").build()));
    let mut wakes = WaiterUpdates::default();
    models.configure_to(0, 0, Algorithm::Fair, &mut wakes);
    models.add(&["a"]);
    assert!(!models.request(1, request("x").build()));
    models.release(0);
    assert_eq!(models.out_at(0), 2);
    assert!(models.waiting[1].is_empty());
}

#[test]
fn a_handoff_that_is_dropped_is_found_by_the_next_look() {
    let mut models = SharedModels::new(&[&["a"], &["a"]], [1, 1, 1]);
    models.request(0, request("x").build());
    models.request(1, request("y").build());
    let LeasedPermit { permit, .. } = models.out.pop().expect("one is out");
    let mut wakes = WaiterUpdates::default();
    models.turnstiles[0].release(permit, Millis(0), 0, &mut wakes);
    drop(wakes);
    let mut wakes = WaiterUpdates::default();
    models.turnstiles[1].poll(Millis(0), &mut wakes);
    models.settle(1, wakes);
    assert_eq!(models.out_at(0), 1);
    models.check();
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(CASES)
    })]

    #[test]
    fn no_event_breaks_a_promise_of_shared_servers(
        events in prop::collection::vec(any::<u64>(), 1..=EVENTS)
    ) {
        let endpoints: [&[&str]; 4] = [&["a"], &["a", "b"], &["b", "c"], &["a", "c"]];
        let mut models = SharedModels::new(&endpoints, [2, 1, 3]);
        for event in events {
            models.step(event);
        }
        models.wind_down();
    }
}
