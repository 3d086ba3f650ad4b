//! A card in virtual time: models load, serve and stop on it as a policy decides.
//!
//! Not a policy. One load or stop of a model takes its time; memory is free once the stop is over.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::trace::{PERMITS, STOP_MS, Trace, TraceRequest};

/// State of a model on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardState {
    Cold,
    Loading,
    Ready,
    /// Ready without new permits: stops once nothing is in flight.
    Draining,
    Stopping,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finish(usize),
    Ready(usize),
    Stop(usize),
    Arrival(usize),
    Tick,
}

/// A model and its queue.
#[derive(Clone, Debug)]
pub struct CardModel {
    pub mib: u64,
    pub load_ms: u64,
    pub state: CardState,
    pub queue: VecDeque<TraceRequest>,
    pub in_flight: u32,
    pub ready_ms: u64,
    pub used_ms: u64,
    /// Requests of one round of permits that waited when the model became ready and wait still.
    pub first_waiters: u32,
}

impl CardModel {
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }
}

/// Decides what loads and what stops.
pub trait Policy {
    /// Takes a request that has arrived.
    fn arrive(&mut self, card: &mut Card, request: TraceRequest) {
        card.models[request.model].queue.push_back(request);
    }

    /// Acts after every event, behind the start of all requests that have a permit.
    fn act(&mut self, card: &mut Card);

    /// Learns that a request leaves its queue.
    fn start(&mut self, request: &TraceRequest, now_ms: u64) {
        let _ = (request, now_ms);
    }
}

/// The card, its models and its clock.
#[derive(Debug)]
pub struct Card {
    pub now_ms: u64,
    pub free_mib: u64,
    pub models: Vec<CardModel>,
    pub loads: u64,
    /// (model, time from arrival to end) of every request.
    pub latencies: Vec<(usize, u64)>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    next_tick_ms: Option<u64>,
}

/// Plays a trace to the end of its last request.
pub fn play(trace: &Trace, policy: &mut dyn Policy) -> Card {
    let mut card = Card::new(trace);
    let mut arrivals = trace.requests.iter();
    let mut next = arrivals.next();
    if let Some(first) = next {
        card.events.push(Reverse((first.at_ms, Event::Arrival(0))));
    }
    while let Some(Reverse((at_ms, event))) = card.events.pop() {
        card.now_ms = at_ms;
        match event {
            Event::Arrival(nth) => {
                if let Some(request) = next {
                    policy.arrive(&mut card, *request);
                }
                next = arrivals.next();
                if let Some(request) = next {
                    let event = Event::Arrival(nth + 1);
                    card.events.push(Reverse((request.at_ms, event)));
                }
            }
            event => card.apply(event),
        }
        card.serve(policy);
        policy.act(&mut card);
        card.serve(policy);
    }
    assert_eq!(card.latencies.len(), trace.requests.len(), "all are served");
    card
}

impl Card {
    fn new(trace: &Trace) -> Card {
        let models = trace.models.iter().map(|model| CardModel {
            mib: model.mib,
            load_ms: model.load_ms,
            state: CardState::Cold,
            queue: VecDeque::new(),
            in_flight: 0,
            ready_ms: 0,
            used_ms: 0,
            first_waiters: 0,
        });
        Card {
            now_ms: 0,
            free_mib: trace.card_mib,
            models: models.collect(),
            loads: 0,
            latencies: Vec::new(),
            events: BinaryHeap::new(),
            next_tick_ms: None,
        }
    }

    /// Begins a load; the memory must be free.
    pub fn load(&mut self, model: usize) {
        let now_ms = self.now_ms;
        let loading = &mut self.models[model];
        assert_eq!(loading.state, CardState::Cold);
        loading.state = CardState::Loading;
        self.free_mib = self
            .free_mib
            .checked_sub(loading.mib)
            .expect("memory is free");
        self.loads += 1;
        let ready_ms = now_ms + loading.load_ms;
        self.events.push(Reverse((ready_ms, Event::Ready(model))));
    }

    /// Stops a model, at once or after its requests in flight.
    pub fn drain(&mut self, model: usize) {
        self.models[model].state = CardState::Draining;
        self.stop_if_drained(model);
    }

    /// Calls the policy again at the next multiple of `period_ms`.
    pub fn tick_every(&mut self, period_ms: u64) {
        let at_ms = (self.now_ms / period_ms + 1) * period_ms;
        if self.next_tick_ms.is_none_or(|tick| tick <= self.now_ms) {
            self.next_tick_ms = Some(at_ms);
            self.events.push(Reverse((at_ms, Event::Tick)));
        }
    }

    /// Returns whether a model loads, drains or stops.
    pub fn is_swapping(&self) -> bool {
        self.models
            .iter()
            .any(|model| !matches!(model.state, CardState::Cold | CardState::Ready))
    }

    fn stop_if_drained(&mut self, model: usize) {
        let stopping = &mut self.models[model];
        if stopping.state == CardState::Draining && stopping.in_flight == 0 {
            stopping.state = CardState::Stopping;
            let end_ms = self.now_ms + STOP_MS;
            self.events.push(Reverse((end_ms, Event::Stop(model))));
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Finish(model) => {
                self.models[model].in_flight -= 1;
                self.models[model].used_ms = self.now_ms;
                self.stop_if_drained(model);
            }
            Event::Ready(model) => {
                let ready = &mut self.models[model];
                ready.state = CardState::Ready;
                ready.ready_ms = self.now_ms;
                ready.used_ms = self.now_ms;
                ready.first_waiters = PERMITS.min(ready.queue.len() as u32);
            }
            Event::Stop(model) => {
                self.models[model].state = CardState::Cold;
                self.free_mib += self.models[model].mib;
            }
            Event::Arrival(_) | Event::Tick => {}
        }
    }

    fn serve(&mut self, policy: &mut dyn Policy) {
        for (nth, model) in self.models.iter_mut().enumerate() {
            while model.state == CardState::Ready && model.in_flight < PERMITS {
                let Some(request) = model.queue.pop_front() else {
                    break;
                };
                policy.start(&request, self.now_ms);
                model.in_flight += 1;
                model.first_waiters = model.first_waiters.saturating_sub(1);
                model.used_ms = self.now_ms;
                let end_ms = self.now_ms + request.service_ms;
                self.events.push(Reverse((end_ms, Event::Finish(nth))));
                self.latencies.push((nth, end_ms - request.at_ms));
            }
        }
    }
}
