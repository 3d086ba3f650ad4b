//! The rule of this gateway on the card: what the core decides is carried out in virtual time.
//!
//! Not a rule of its own: it translates states, and starts the steps.

use std::collections::BTreeMap;

use infergate_core::Millis;
use infergate_core::vram::{
    ColdModel, Demand, DemandSettings, DemandWeight, DeviceId, DeviceKind, DeviceRoom, DeviceShare,
    PlacementRequest, Protection, Resident, Split, SwapRule, SwapStep, WaiterDemand,
};

use crate::card::{Card, CardModel, CardState, Policy};
use crate::trace::{ACCOUNTS, PERMITS, Trace, TraceRequest};

/// Time between decisions while something waits and nothing happens.
const TICK_MS: u64 = 250;
/// Priority of all requests.
const PRIORITY: u8 = 5;

/// Demand of a model, and what its queue keeps of its waiters.
struct Waiters {
    demand: Demand,
    of_request: BTreeMap<usize, WaiterDemand>,
    counted: [u32; ACCOUNTS as usize],
}

/// The core's rule, with the estimates that it is given.
pub struct CoreRule {
    rule: SwapRule,
    device: DeviceId,
    total_mib: u64,
    waiters: Vec<Waiters>,
    /// Expected load times, which may be wrong.
    loads: Vec<Millis>,
    /// The model for which victims leave.
    challenger: Option<usize>,
}

impl CoreRule {
    pub fn new(rule: SwapRule, trace: &Trace, loads: Vec<Millis>) -> CoreRule {
        let waiters = trace.models.iter().map(|_| Waiters {
            demand: Demand::new(DemandSettings::default()),
            of_request: BTreeMap::new(),
            counted: [0; ACCOUNTS as usize],
        });
        CoreRule {
            rule,
            device: DeviceId::from("card"),
            total_mib: trace.card_mib,
            waiters: waiters.collect(),
            loads,
            challenger: None,
        }
    }

    fn room(&self, card: &Card) -> DeviceRoom {
        let residents = card.models.iter();
        let residents = residents
            .filter(|model| model.state != CardState::Cold)
            .count();
        DeviceRoom {
            id: self.device.clone(),
            index: 0,
            kind: DeviceKind::Simulated,
            name: "card".into(),
            empty_mib: self.total_mib,
            free_mib: card.free_mib,
            residents: residents as u32,
        }
    }

    fn cold(&self, nth: usize, model: &CardModel, now: Millis) -> ColdModel {
        let demand = &self.waiters[nth].demand;
        ColdModel {
            placement: PlacementRequest {
                mib: model.mib,
                devices: 1,
                split: Split::Never,
                context_mib: 0,
            },
            growth: Vec::new(),
            load: self.loads[nth],
            priority: PRIORITY,
            spares_urgent: false,
            debt: demand.debt(now),
            unserved_since: demand.unserved_since().unwrap_or(now),
        }
    }

    fn resident(&self, nth: usize, model: &CardModel, now: Millis) -> Resident<'static> {
        let protection = match model.state {
            CardState::Cold | CardState::Ready => None,
            CardState::Loading => Some(Protection::Loading),
            CardState::Draining | CardState::Stopping => Some(Protection::Leaving),
        };
        let is_new = model.first_waiters > 0;
        Resident {
            shares: vec![DeviceShare {
                device: self.device.clone(),
                mib: model.mib,
            }]
            .into(),
            load: self.loads[nth],
            priority: PRIORITY,
            arrivals_per_sec: self.waiters[nth].demand.arrivals_per_sec(now),
            is_busy: !model.is_idle(),
            ready_since: Millis(model.ready_ms),
            last_used: Millis(model.used_ms),
            protection: protection.or(is_new.then_some(Protection::FirstWaiters)),
        }
    }

    fn decide(&mut self, card: &mut Card) {
        let now = Millis(card.now_ms);
        let is_waiting =
            |model: &CardModel| model.state == CardState::Cold && !model.queue.is_empty();
        let models = || card.models.iter().enumerate();
        let waiting = models().filter(|(_, model)| is_waiting(model));
        let cold: Vec<(usize, ColdModel)> = waiting
            .map(|(nth, model)| (nth, self.cold(nth, model, now)))
            .collect();
        if cold.is_empty() {
            return;
        }
        let there = models().filter(|(_, model)| model.state != CardState::Cold);
        let residents: Vec<(usize, Resident<'static>)> = there
            .map(|(nth, model)| (nth, self.resident(nth, model, now)))
            .collect();
        let (cold_names, cold): (Vec<usize>, Vec<ColdModel>) = cold.into_iter().unzip();
        let (names, residents): (Vec<usize>, Vec<Resident<'static>>) =
            residents.into_iter().unzip();
        let decision = self
            .rule
            .next_step(&cold, &residents, &[self.room(card)], now);
        match decision.step {
            SwapStep::Load { model, .. } => card.load(cold_names[model]),
            SwapStep::Swap { model, victims, .. } => {
                victims.iter().for_each(|victim| card.drain(names[*victim]));
                self.challenger = Some(cold_names[model]);
            }
            SwapStep::Wait => card.tick_every(TICK_MS),
        }
    }
}

impl Policy for CoreRule {
    fn arrive(&mut self, card: &mut Card, request: TraceRequest) {
        let now = Millis(card.now_ms);
        let waiters = &mut self.waiters[request.model];
        let counted = &mut waiters.counted[request.account as usize];
        waiters.demand.record_arrivals(1, now);
        let weight = DemandWeight::of_priority(PRIORITY);
        let waiter = waiters.demand.join(weight, *counted, PERMITS, now);
        *counted += u32::from(waiter.is_counted());
        waiters.of_request.insert(request.number, waiter);
        card.models[request.model].queue.push_back(request);
    }

    fn start(&mut self, request: &TraceRequest, now_ms: u64) {
        let waiters = &mut self.waiters[request.model];
        if let Some(waiter) = waiters.of_request.remove(&request.number) {
            waiters.counted[request.account as usize] -= u32::from(waiter.is_counted());
            waiters.demand.record_grant(Millis(now_ms));
            waiters.demand.leave(waiter);
        }
    }

    fn act(&mut self, card: &mut Card) {
        if let Some(next) = self.challenger {
            if card.models[next].mib <= card.free_mib {
                card.load(next);
                self.challenger = None;
            }
        } else if !card.is_swapping() {
            self.decide(card);
        }
    }
}
