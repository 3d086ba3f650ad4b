//! Host of a replay, in virtual time: carries out what the pool decides, with loads and stops as long as recorded ones.
//!
//! Decides nothing. Looks at demand as often as a gateway does, and at once where a request finds nothing loaded. The host
//! begins with nothing loaded. Requests wait until they are served: nobody gives up.

use std::collections::BTreeMap;

use super::model::{ReplayModel, ReplayRequest, ReplaySlot};
use super::recording::{DemandStep, Recording, TraceSession};
use super::summary::RunFigures;
use crate::vram::evict::SwapPolicy;
use crate::vram::pool::{Action, ModelPool, PoolMoment, PoolReport};
use crate::vram::slot::{LoadKind, SlotEvent, SlotId, StopMethod};
use crate::{AccountId, Millis, ModelId};

/// Time between two looks at demand while there is any.
const LOOK_EVERY: Millis = Millis(250);
/// Time behind the last request after which what still waits will not be served.
const REST_MAX: Millis = Millis::from_secs(24 * 3600);
/// Accounts that requests of a line are spread over.
const ACCOUNTS_MAX: u32 = 64;

/// Settings that differ from the recorded ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Policy.
    pub policy: Option<SwapPolicy>,
    /// Turn in units of both load times.
    pub turn: Option<u32>,
    /// Factor by which a debt must exceed the cost of an eviction.
    pub patience: Option<u32>,
    /// Memory of each device.
    pub device_mib: Option<u64>,
}

/// Replays a recording.
pub fn replay(recording: &Recording, options: ReplayOptions) -> RunFigures {
    let mut figures = RunFigures::default();
    for session in &recording.sessions {
        let mut host = ReplayHost::new(recording, session, options, figures);
        host.run();
        figures = host.figures;
    }
    figures
}

/// Step of the host that is due at a moment.
#[derive(Debug)]
enum DueStep {
    /// Requests of a step that have not come, by the number of those that have.
    Arrivals(DemandStep, u32),
    /// End of a request.
    Finish(SlotId),
    /// Event of a slot in one of its lives.
    Slot(SlotId, u64, SlotEvent),
}

/// Host of one session.
struct ReplayHost<'a> {
    recording: &'a Recording,
    session: &'a TraceSession,
    options: ReplayOptions,
    figures: RunFigures,
    pool: ModelPool,
    models: BTreeMap<ModelId, ReplayModel>,
    accounts: Vec<AccountId>,
    now: Millis,
    /// Steps by their moment, then in the order in which they became due.
    due: BTreeMap<(Millis, u64), DueStep>,
    steps: u64,
    /// Number of configurations and of demands that have been taken.
    hosts: usize,
    demands: usize,
    next_look: Option<Millis>,
    /// Moment at which the pool has something to do by itself.
    next_timer: Option<Millis>,
}

impl<'a> ReplayHost<'a> {
    fn new(
        recording: &'a Recording,
        session: &'a TraceSession,
        options: ReplayOptions,
        figures: RunFigures,
    ) -> ReplayHost<'a> {
        let accounts = (0..ACCOUNTS_MAX).map(|nth| AccountId::from(nth.to_string().as_str()));
        ReplayHost {
            recording,
            session,
            options,
            figures,
            pool: ModelPool::default(),
            models: BTreeMap::new(),
            accounts: accounts.collect(),
            now: Millis::ZERO,
            due: BTreeMap::new(),
            steps: 0,
            hosts: 0,
            demands: 0,
            next_look: None,
            next_timer: None,
        }
    }

    /// Plays the session until its last request is served, or nothing will serve it.
    fn run(&mut self) {
        while let Some(next) = self.next_moment() {
            self.now = next;
            self.take_hosts();
            self.take_demands();
            self.take_due();
            let dues = [self.next_look, self.next_timer];
            if dues.into_iter().flatten().any(|due| due <= self.now) {
                self.look();
                self.take_due();
            }
        }
        let left: usize = self.models.values_mut().map(ReplayModel::refuse_all).sum();
        self.figures.refused += left as u64;
    }

    /// Returns the moment at which something is due; none once nothing is left to be served.
    fn next_moment(&mut self) -> Option<Millis> {
        let host = self.session.hosts.get(self.hosts).map(|(at, _)| *at);
        let demand = self.session.demands.get(self.demands).map(|it| it.begin);
        let due = self.due.keys().next().map(|(at, _)| *at);
        let input = [host, demand, due].into_iter().flatten().min();
        if input.is_none() && !self.waits() {
            return None;
        }
        self.next_timer = self.pool.next_deadline(self.now);
        let timers = [self.next_look, self.next_timer];
        let next = timers.into_iter().flatten().chain(input).min()?;
        Some(next.max(self.now))
    }

    /// Returns whether a request waits that may still be served.
    fn waits(&self) -> bool {
        let mut demands = self.session.demands.iter();
        let end = demands
            .next_back()
            .map_or(Millis::ZERO, |it| it.begin + it.span);
        self.now < end + REST_MAX && self.models.values().any(|model| model.waiting() > 0)
    }

    fn moment(&self) -> PoolMoment {
        PoolMoment {
            now: self.now,
            random: 0,
        }
    }

    fn take_hosts(&mut self) {
        while let Some((at, line)) = self.session.hosts.get(self.hosts)
            && *at <= self.now
        {
            self.hosts += 1;
            let settings = line.demand_settings();
            let mut former = std::mem::take(&mut self.models);
            for model in &line.models {
                let kept = former.remove(&model.id);
                let mut own = kept.unwrap_or_else(|| ReplayModel::new(settings));
                own.configure(model, settings);
                self.models.insert(model.id.clone(), own);
            }
            let left: usize = former.values_mut().map(ReplayModel::refuse_all).sum();
            self.figures.refused += left as u64;
            let mut config = line.pool_config();
            let (rule, options) = (&mut config.swap, self.options);
            rule.policy = options.policy.unwrap_or(rule.policy);
            rule.turn = options.turn.unwrap_or(rule.turn);
            rule.patience = options.patience.unwrap_or(rule.patience);
            let actions = self.pool.set_config(config, self.moment());
            self.perform(actions);
            let devices = line.pool_devices(options.device_mib);
            if !devices.is_empty() {
                let actions = self.pool.set_devices(devices, self.moment());
                self.perform(actions);
            }
        }
    }

    fn take_demands(&mut self) {
        while let Some(step) = self.session.demands.get(self.demands)
            && step.begin <= self.now
        {
            self.demands += 1;
            self.plan_arrival(*step, 0);
        }
    }

    /// Plans the next request of a step: they come evenly spread over its span.
    fn plan_arrival(&mut self, step: DemandStep, nth: u32) {
        let count = u64::from(step.arrivals) + u64::from(step.refused);
        if u64::from(nth) < count {
            let offset = u128::from(step.span.0) * (2 * u128::from(nth) + 1);
            let offset = offset / (2 * u128::from(count));
            let at = step.begin + Millis(u64::try_from(offset).unwrap_or(u64::MAX));
            self.plan(at, DueStep::Arrivals(step, nth));
        }
    }

    fn plan(&mut self, at: Millis, step: DueStep) {
        self.steps += 1;
        self.due.insert((at.max(self.now), self.steps), step);
    }

    fn plan_event(&mut self, slot: &SlotId, after: Millis, event: SlotEvent) {
        let life = self.pool.slot_state(slot).map_or(0, |(_, life)| life);
        self.plan(self.now + after, DueStep::Slot(slot.clone(), life, event));
    }

    fn take_due(&mut self) {
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= self.now
        {
            match entry.remove() {
                DueStep::Arrivals(step, nth) => {
                    self.arrive(&step, nth);
                    self.plan_arrival(step, nth + 1);
                }
                DueStep::Finish(slot) => self.finish(&slot),
                DueStep::Slot(slot, life, event) => {
                    let actions = self.pool.slot_event(&slot, life, event, self.moment());
                    self.perform(actions);
                }
            }
        }
    }

    fn arrive(&mut self, step: &DemandStep, nth: u32) {
        let account = nth % step.accounts.min(ACCOUNTS_MAX);
        let request = ReplayRequest {
            arrived: self.now,
            service: self.recording.service(step),
            account: self.accounts[account as usize].clone(),
            priority: step.priority,
            waits: nth < step.arrivals,
        };
        let id = &self.recording.names[step.model];
        let Some(model) = self.models.get_mut(id) else {
            self.figures.refused += 1;
            return;
        };
        let is_cold = !model.slots.iter().any(|slot| slot.is_open);
        let is_first = model.waiting() == 0;
        if !model.arrive(request) {
            self.figures.refused += 1;
        }
        // A gateway is woken by a request that finds nothing loaded.
        let look = match is_cold && is_first {
            true => self.now,
            false => self.now + LOOK_EVERY,
        };
        self.next_look = Some(self.next_look.map_or(look, |next| next.min(look)));
        self.serve(&id.clone());
    }

    /// Gives permits to requests that wait.
    fn serve(&mut self, id: &ModelId) {
        while let Some(model) = self.models.get_mut(id)
            && let Some((request, number)) = model.grant()
        {
            self.figures.record_request(self.now.since(request.arrived));
            let slot = slot_id(id, number);
            self.plan(self.now + request.service, DueStep::Finish(slot));
        }
    }

    fn finish(&mut self, slot: &SlotId) {
        // The slot of a model that was removed drains without its requests.
        let is_drained = self.slot_mut(slot).is_none_or(|own| {
            own.in_flight = own.in_flight.saturating_sub(1);
            !own.is_open && own.in_flight == 0
        });
        if is_drained {
            self.end_drain(slot);
        }
        self.serve(&slot.model);
    }

    fn slot_mut(&mut self, slot: &SlotId) -> Option<&mut ReplaySlot> {
        let model = self.models.get_mut(&slot.model)?;
        model.slots.get_mut(usize::from(slot.number))
    }

    /// Looks at the demand of all models, and does what is due.
    fn look(&mut self) {
        let mut demands = Vec::with_capacity(self.models.len());
        for (id, model) in &mut self.models {
            demands.push((id.clone(), model.look(self.now)));
        }
        let demands = demands.iter().map(|(id, demand)| (id, demand));
        let actions = self.pool.update_demand(demands, self.moment());
        let is_active = self.models.values().any(ReplayModel::is_active);
        self.next_look = is_active.then_some(self.now + LOOK_EVERY);
        self.perform(actions);
    }

    fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.perform_one(action);
        }
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Acquire { slot, .. } => {
                self.plan_event(&slot, Millis::ZERO, SlotEvent::LeaseHeld);
            }
            Action::Start { slot, .. } => {
                self.plan_event(&slot, Millis::ZERO, SlotEvent::Started);
                self.plan_event(&slot, Millis::ZERO, SlotEvent::ListeningSeen);
                let load = self.load(&slot, LoadKind::Start);
                self.plan_event(&slot, load, SlotEvent::Ready);
            }
            Action::Wake(slot) => {
                let load = self.load(&slot, LoadKind::Wake);
                self.plan_event(&slot, load, SlotEvent::Woke);
            }
            Action::Open(slot) => {
                if let Some(own) = self.slot_mut(&slot) {
                    own.is_open = true;
                }
                self.serve(&slot.model);
            }
            Action::Close { slot, reason, .. } => self.close(&slot, reason.is_some()),
            Action::Stop(slot) => {
                let stop = self.recording.stop(&slot.model);
                self.plan_event(&slot, stop, SlotEvent::ProcessesGone);
            }
            Action::Kill(slot) => self.plan_event(&slot, Millis::ZERO, SlotEvent::ProcessesGone),
            Action::Sleep(slot) => {
                let stop = self.recording.stop(&slot.model);
                self.plan_event(&slot, stop, SlotEvent::Slept);
            }
            Action::AwaitMemory(slot) => {
                self.plan_event(&slot, Millis::ZERO, SlotEvent::MemoryReturned);
            }
            Action::SetReadyEstimate { model, .. } => {
                if let Some(model) = self.models.get_mut(&model) {
                    model.is_rejected = false;
                }
            }
            Action::Reject { model, .. } => {
                if let Some(model) = self.models.get_mut(&model) {
                    model.is_rejected = true;
                    self.figures.refused += model.refuse_all() as u64;
                }
            }
            Action::Report { report, .. } => self.record(&report),
            Action::Release(_) | Action::Shrink { .. } => {}
        }
    }

    fn close(&mut self, slot: &SlotId, drains: bool) {
        let is_drained = self.slot_mut(slot).is_none_or(|own| {
            own.is_open = false;
            own.in_flight == 0
        });
        if drains && is_drained {
            self.end_drain(slot);
        }
    }

    fn end_drain(&mut self, slot: &SlotId) {
        let event = SlotEvent::InFlightZero(StopMethod::Sleep);
        self.plan_event(slot, Millis::ZERO, event);
    }

    fn load(&self, slot: &SlotId, kind: LoadKind) -> Millis {
        let model = self.models.get(&slot.model);
        let expected = model.map_or(Millis::ZERO, ReplayModel::expected_load);
        self.recording.load(&slot.model, kind, expected)
    }

    fn record(&mut self, report: &PoolReport) {
        match report {
            PoolReport::Load { took, .. } => self.figures.record_load(*took),
            PoolReport::Swap { victims, .. } => self.figures.record_swap(victims.len()),
            _ => {}
        }
    }
}

fn slot_id(model: &ModelId, number: usize) -> SlotId {
    SlotId {
        model: model.clone(),
        number: u16::try_from(number).unwrap_or(u16::MAX),
    }
}
