//! A model with its admission queue, its ejector and its backends, driven by a queue of events.
//!
//! Plays the shell's part as plainly as possible: every result of the core is applied at once, and
//! every request ends exactly once.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::admission::{
    AdmissionOutcome, AdmissionQueue, EndpointId, Grant, PermitClass, PermitId, PermitRequest,
    QueueTicket, WaiterUpdates,
};
use infergate_core::model::ModelSpec;
use infergate_core::routing::{
    AccountKey, AttemptFailure, Ejector, EndpointSignal, Observation, RetryBudget, RetryTarget,
    UsabilityChange,
};

use crate::traffic::{End, Load, Source};

/// A failing backend answers after so long.
const FAILURE_TAKES: Millis = Millis(5);

/// Tokens of a response charged in advance, by the caller's limit up to this; the rest is corrected
/// later.
const CHARGED_MAX: u32 = 256;

/// A closed-loop client that was refused comes back after so long.
const CLIENT_PAUSE: Millis = Millis(20);

/// A request that has ended.
pub struct EndedRequest {
    pub source: usize,
    pub at: Millis,
    pub took: Millis,
    pub end: End,
}

#[derive(Clone)]
struct Request {
    source: usize,
    arrived: Millis,
    deadline: Millis,
    service: Millis,
    tries: u32,
    avoid: Vec<EndpointId>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Waiting(QueueTicket),
    Running(PermitId, EndpointId),
}

/// Requests are named by their number of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival { source: usize },
    Answer { request: u64, tries: u32 },
    Deadline { request: u64 },
    ClientGone { request: u64 },
    Tick,
}

/// State of one backend.
#[derive(Default)]
pub struct Backend {
    pub in_flight: u32,
    pub high_water: u32,
    pub failing: bool,
    /// Answers nothing: requests are given up once their service time has passed. Checks pass.
    pub silent: bool,
}

pub struct ModelSim {
    pub now: Millis,
    pub spec: ModelSpec,
    pub turnstile: AdmissionQueue,
    pub backends: BTreeMap<Arc<str>, Backend>,
    pub ended: Vec<EndedRequest>,
    pub arrivals: usize,
    ejector: Ejector,
    budget: RetryBudget,
    sources: Vec<Source>,
    events: BinaryHeap<Reverse<(Millis, u64, Event)>>,
    requests: HashMap<u64, Request>,
    by_ticket: HashMap<QueueTicket, u64>,
    /// URL of an endpoint, also while it drains.
    urls: HashMap<EndpointId, Arc<str>>,
    numbers: u64,
    steps: u64,
    open_until: Millis,
    pub random: Rng,
}

impl ModelSim {
    pub fn new(spec: ModelSpec, sources: Vec<Source>, random: Rng) -> ModelSim {
        let mut world = ModelSim {
            now: Millis(0),
            turnstile: AdmissionQueue::new(&spec, Millis(0)),
            ejector: Ejector::new(&spec.endpoints, Millis(0)),
            backends: BTreeMap::new(),
            ended: Vec::new(),
            arrivals: 0,
            budget: RetryBudget::new(),
            sources,
            events: BinaryHeap::new(),
            requests: HashMap::new(),
            by_ticket: HashMap::new(),
            urls: HashMap::new(),
            numbers: 0,
            steps: 0,
            open_until: Millis::MAX,
            spec,
            random,
        };
        world.learn_endpoints();
        world.after(Millis(1000), Event::Tick);
        for source in 0..world.sources.len() {
            match world.sources[source].load {
                Load::Closed(open) => (0..open).for_each(|_| world.arrive_after(Millis(0), source)),
                Load::Nothing => {}
                Load::Poisson(rate) | Load::Paced(rate) => world.arrive_at_rate(source, rate),
            }
        }
        world
    }

    /// Runs until `end`, with `disturb` called before each event.
    pub fn run(&mut self, end: Millis, mut disturb: impl FnMut(&mut ModelSim)) {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            disturb(self);
            self.happen(event);
            // A check visits every waiter: with long queues only some steps are checked.
            self.steps += 1;
            let depth = self.turnstile.gauges().depth as u64;
            if self.steps.is_multiple_of(1 + depth / 32) {
                self.turnstile.check();
            }
        }
        self.now = end;
    }

    /// Lets everything that is open end, without new arrivals.
    pub fn wind_down(&mut self) {
        self.open_until = self.now;
        self.run(self.now + Millis::from_secs(300), |_| {});
        assert!(self.requests.is_empty(), "every request has ended");
        assert_eq!(
            self.ended.len(),
            self.arrivals,
            "every request has ended once"
        );
        let gauges = self.turnstile.gauges();
        assert_eq!(
            (gauges.used, gauges.depth),
            (0, 0),
            "everything was given back"
        );
        assert!(self.backends.values().all(|backend| backend.in_flight == 0));
    }

    /// A reload.
    pub fn configure(&mut self, spec: ModelSpec) {
        let mut wakes = WaiterUpdates::default();
        self.spec = spec;
        self.turnstile
            .configure(&self.spec, self.now, self.random.u64(..), &mut wakes);
        self.learn_endpoints();
        self.wake(wakes);
        let changes = self.ejector.configure(&self.spec.endpoints, self.now);
        self.apply(changes);
    }

    /// No further requests of this source, and those of it that run end now.
    pub fn stop(&mut self, source: usize) {
        self.sources[source].load = Load::Nothing;
        let mut numbers: Vec<u64> = self.requests.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            if self
                .requests
                .get(&number)
                .is_some_and(|request| request.source == source)
            {
                self.give_up(number, End::CutByClient);
            }
        }
    }

    /// Sets the result of health checks of `url` from now on.
    pub fn set_failing(&mut self, url: &str, failing: bool) {
        if let Some(backend) = self.backends.get_mut(url) {
            backend.failing = failing;
        }
    }

    fn learn_endpoints(&mut self) {
        for endpoint in self.turnstile.state(self.now).endpoints {
            self.urls.insert(endpoint.id, endpoint.url.clone());
            self.backends.entry(endpoint.url).or_default();
        }
    }

    fn after(&mut self, span: Millis, event: Event) {
        self.numbers += 1;
        self.events
            .push(Reverse((self.now + span, self.numbers, event)));
    }

    fn arrive_after(&mut self, span: Millis, source: usize) {
        if self.now + span < self.open_until {
            self.after(span, Event::Arrival { source });
        }
    }

    fn arrive_at_rate(&mut self, source: usize, rate: f64) {
        let span = -(1.0 - self.random.f64()).ln() * 1000.0 / rate;
        self.arrive_after(Millis(span.round() as u64), source);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival { source } => self.arrive(source),
            Event::Answer { request, tries } => self.answer(request, tries),
            Event::Deadline { request } => self.give_up(request, End::CutByDeadline),
            Event::ClientGone { request } => self.give_up(request, End::CutByClient),
            Event::Tick => self.tick(),
        }
    }

    fn tick(&mut self) {
        let changes = self.ejector.tick(self.now);
        self.apply(changes);
        let configured: Vec<Arc<str>> = self
            .spec
            .endpoints
            .iter()
            .map(|endpoint| endpoint.url.clone())
            .collect();
        for url in configured {
            let failing = self.backends[&url].failing;
            let seen = if failing {
                EndpointSignal::Failure
            } else {
                EndpointSignal::Success
            };
            let changes = self.ejector.observe_check(&url, seen, None, self.now);
            self.apply(changes);
        }
        let mut wakes = WaiterUpdates::default();
        self.turnstile.expire_unhealthy(self.now, &mut wakes);
        self.wake(wakes);
        self.after(Millis(1000), Event::Tick);
    }

    fn arrive(&mut self, source: usize) {
        let Source {
            load,
            service,
            patience,
            gives_up_one_in,
            ..
        } = self.sources[source];
        if self.now >= self.open_until || load == Load::Nothing {
            return;
        }
        if let Load::Poisson(rate) = load {
            self.arrive_at_rate(source, rate);
        }
        self.arrivals += 1;
        self.budget.record_request(self.now);
        let scale = 1.0 + service.jitter * (2.0 * self.random.f64() - 1.0);
        let request = Request {
            source,
            arrived: self.now,
            deadline: self.now + patience,
            service: Millis((service.mean.0 as f64 * scale).round() as u64),
            tries: 0,
            avoid: Vec::new(),
            stage: Stage::Waiting(QueueTicket(0)),
        };
        self.numbers += 1;
        let number = self.numbers;
        self.after(patience, Event::Deadline { request: number });
        if gives_up_one_in > 0 && self.random.u64(..gives_up_one_in) == 0 {
            let span = Millis(self.random.u64(..patience.0));
            self.after(span, Event::ClientGone { request: number });
        }
        self.ask(number, request);
    }

    fn ask(&mut self, number: u64, mut request: Request) {
        let source = &self.sources[request.source];
        let ask = PermitRequest {
            account: source.account.into(),
            weight: source.weight,
            priority: 5,
            is_warm: false,
            tokens: if request.tries == 0 {
                source.tokens.min(CHARGED_MAX)
            } else {
                0
            },
            deadline: request.deadline,
            no_wait: false,
            avoid: request.avoid.clone(),
            endpoint_order: None,
            is_retry: request.tries > 0,
            is_bounded_elsewhere: false,
            has_alternative: false,
            client: None,
            class: PermitClass::Live,
        };
        match self
            .turnstile
            .request_permit(ask, self.now, self.random.u64(..))
        {
            AdmissionOutcome::Leased(grant) => {
                self.requests.insert(number, request);
                self.begin(number, grant);
            }
            AdmissionOutcome::Queued { ticket, .. } => {
                request.stage = Stage::Waiting(ticket);
                self.by_ticket.insert(ticket, number);
                self.requests.insert(number, request);
            }
            AdmissionOutcome::Full(refusal) => self.end(request, End::Refused(refusal)),
        }
    }

    fn begin(&mut self, number: u64, grant: Grant) {
        let request = self
            .requests
            .get_mut(&number)
            .expect("only open requests get permits");
        assert!(self.now < request.deadline, "nothing is started late");
        request.stage = Stage::Running(grant.permit, grant.endpoint);
        request.tries += 1;
        let url = &self.urls[&grant.endpoint];
        let spec = self
            .spec
            .endpoints
            .iter()
            .find(|endpoint| endpoint.url == *url);
        let limit = spec
            .expect("only configured endpoints get requests")
            .max_concurrent_requests;
        let backend = self
            .backends
            .get_mut(url)
            .expect("every endpoint has a backend");
        backend.in_flight += 1;
        backend.high_water = backend.high_water.max(backend.in_flight);
        assert!(
            backend.in_flight <= limit,
            "a backend never has more than its limit"
        );
        let span = if backend.failing {
            FAILURE_TAKES
        } else {
            request.service
        };
        let tries = request.tries;
        self.after(
            span,
            Event::Answer {
                request: number,
                tries,
            },
        );
    }

    fn answer(&mut self, number: u64, tries: u32) {
        let Some(mut request) = self.requests.remove(&number) else {
            return;
        };
        let Stage::Running(permit, endpoint) = request.stage else {
            self.requests.insert(number, request);
            return;
        };
        if request.tries != tries {
            self.requests.insert(number, request);
            return;
        }
        let url = self.urls[&endpoint].clone();
        let is_silent = self.backends[&url].silent;
        let failed = self.backends[&url].failing || is_silent;
        let seen = if failed {
            EndpointSignal::Failure
        } else {
            EndpointSignal::Success
        };
        let observed = Observation {
            signal: seen,
            cause: None,
            account: AccountKey::from(&self.sources[request.source].account.into()),
            pause: None,
        };
        let changes = self.ejector.observe_request(&url, observed, self.now);
        self.apply(changes);
        if !failed {
            self.correct_tokens(&request);
        }
        self.release(permit, endpoint);
        if !failed {
            self.end(request, End::Completed);
            return;
        }
        request.avoid.push(endpoint);
        let is_proven = |(id, url): (&EndpointId, &Arc<str>)| {
            !request.avoid.contains(id) && self.ejector.is_proven(url)
        };
        let target = match self.urls.iter().any(is_proven) {
            true => RetryTarget::Proven,
            false => RetryTarget::Unproven,
        };
        let (tries, now) = (request.tries, self.now);
        // A silent server may have begun.
        if !is_silent
            && self
                .budget
                .may_retry(tries, AttemptFailure::Failed, target, now)
        {
            self.ask(number, request);
        } else {
            self.end(request, End::Failed);
        }
    }

    fn correct_tokens(&mut self, request: &Request) {
        let Source {
            account,
            weight,
            tokens,
            ..
        } = self.sources[request.source];
        let charged = tokens.min(CHARGED_MAX);
        self.turnstile
            .correct_tokens(&account.into(), weight, charged.into(), tokens.into());
    }

    fn give_up(&mut self, number: u64, end: End) {
        let Some(request) = self.requests.remove(&number) else {
            return;
        };
        match request.stage {
            Stage::Waiting(ticket) => {
                assert!(
                    self.turnstile.cancel(ticket, self.now),
                    "it was still waiting"
                );
                self.by_ticket.remove(&ticket);
                let by_deadline = end == End::CutByDeadline;
                self.end(request, if by_deadline { End::LeftLine } else { end });
            }
            Stage::Running(permit, endpoint) => {
                self.release(permit, endpoint);
                self.end(request, end);
            }
        }
    }

    fn release(&mut self, permit: PermitId, endpoint: EndpointId) {
        let url = &self.urls[&endpoint];
        self.backends
            .get_mut(url)
            .expect("every endpoint has a backend")
            .in_flight -= 1;
        let mut wakes = WaiterUpdates::default();
        self.turnstile
            .release(permit, self.now, self.random.u64(..), &mut wakes);
        self.wake(wakes);
    }

    fn wake(&mut self, wakes: WaiterUpdates) {
        for grant in wakes.grants {
            let ticket = grant.ticket.expect("a woken waiter has a ticket");
            let number = self
                .by_ticket
                .remove(&ticket)
                .expect("a waiter is woken once");
            self.begin(number, grant);
        }
        for (ticket, refusal) in wakes.refusals {
            let number = self
                .by_ticket
                .remove(&ticket)
                .expect("a waiter is refused once");
            let request = self
                .requests
                .remove(&number)
                .expect("a waiter is an open request");
            self.end(request, End::Refused(refusal));
        }
    }

    fn apply(&mut self, changes: Vec<UsabilityChange>) {
        self.turnstile.set_failing(self.ejector.failing_since());
        for change in changes {
            let Some(endpoint) = self.turnstile.endpoint(&change.url) else {
                continue;
            };
            let mut wakes = WaiterUpdates::default();
            let rng = self.random.u64(..);
            self.turnstile
                .set_usable(endpoint, change.usable, self.now, rng, &mut wakes);
            self.wake(wakes);
        }
    }

    fn end(&mut self, request: Request, end: End) {
        let Request {
            source, arrived, ..
        } = request;
        let completed = end == End::Completed;
        self.ended.push(EndedRequest {
            source,
            at: self.now,
            took: self.now.since(arrived),
            end,
        });
        match self.sources[source].load {
            Load::Closed(_) => {
                self.arrive_after(if completed { Millis(0) } else { CLIENT_PAUSE }, source);
            }
            Load::Poisson(_) | Load::Nothing => {}
            Load::Paced(rate) => self.arrive_at_rate(source, rate),
        }
    }
}
