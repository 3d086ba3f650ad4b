//! Simulated host of the pool: a ledger, processes, requests, devices; performs actions and checks each of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;

use super::super::record::on;
use super::super::*;
use crate::AccountId;
use crate::vram::demand::{Demand, DemandSettings, DemandWeight, WaiterDemand};
use crate::vram::device::{DeviceId, DeviceKind};
use crate::vram::evict::SwapPolicy;
use crate::vram::fit::{DeviceShare, PlacementRequest, Split};
use crate::vram::load_time::StoredModel;
use crate::vram::slot::{FailedPhase, ProcessExit, ServerActivity, SlotLimits, StartFailure};

/// Beginning of the names of devices.
pub const GPU: &str = "GPU-";
/// Requests that a slot serves at a time.
pub const PERMITS: u32 = 4;
/// Time between two looks at what waits.
const LOOK_EVERY: Millis = Millis(2000);

/// A model of a size with usual settings.
pub fn model(mib: u64) -> PoolModel {
    PoolModel {
        need: PlacementRequest {
            mib,
            devices: 1,
            split: Split::Never,
            context_mib: 0,
        },
        is_exclusive: false,
        asleep_mib: None,
        stored: StoredModel {
            bytes: mib << 20,
            rate_mib: None,
        },
        limits: SlotLimits {
            ready_timeout: Millis::from_secs(600),
            stop_timeout: Millis::from_secs(10),
        },
        priority: 5,
        replicas_min: 0,
        replicas_max: 1,
        permits: PERMITS,
        is_pinned: false,
        is_preloaded: false,
        keep_alive: Some(Millis::from_secs(300)),
        revision: 1,
    }
}

/// Models that the least recently used idle one makes room for.
pub fn small_config() -> PoolConfig {
    let mut config = turns_config();
    config.swap.policy = SwapPolicy::Lru;
    config
}

/// The same models, in turns.
pub fn turns_config() -> PoolConfig {
    let sizes = [("a", 14_000), ("b", 14_000), ("c", 14_000), ("s", 4000)];
    PoolConfig {
        models: sizes
            .into_iter()
            .map(|(name, mib)| (ModelId::from(name), model(mib)))
            .collect(),
        ..PoolConfig::default()
    }
}

/// Activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Starting,
    Loading,
    Ready,
    FallingAsleep,
    Asleep,
    Waking,
    Terminating,
    Killed,
    /// The main process has ended, others of its group have not.
    Exited,
}

#[derive(Clone, Debug)]
pub struct Process {
    life: u64,
    pub activity: Activity,
}

/// Fault that is planted between the pool and its host, so that the checks see a pool that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Memory is granted twice.
    DoubleGrant,
    /// A pin is not known.
    EvictedPin,
    /// Requests are not heard of.
    LostWaiter,
    /// Leases of processes that are gone stay.
    DeadHolder,
    /// Claims for which room was made are not known any more.
    LostClaim,
}

#[derive(Clone, Debug)]
struct Card {
    total_mib: u64,
    outside_mib: u64,
    /// Leases that claims became.
    claimed_mib: u64,
    /// Leases of other pools, now and at the latest sample.
    neighbours_mib: u64,
    known_neighbours_mib: u64,
    is_there: bool,
    is_open: bool,
}

impl Card {
    /// Memory that others than the pool have, as it knows.
    fn others_mib(&self) -> u64 {
        self.outside_mib + self.claimed_mib + self.known_neighbours_mib
    }
}

/// A host, its pool, and the requests of its clients.
pub struct SimulatedHost {
    pub pool: ModelPool,
    pub log: Vec<Action>,
    pub open: BTreeSet<SlotId>,
    pub loads: u64,
    pub rng: Rng,
    pub now: Millis,
    pub fault: Option<Fault>,
    /// The ledger grants nothing.
    pub refuses_leases: bool,
    /// Other pools lease on the same cards, and have no claims.
    pub has_neighbours: bool,
    config: PoolConfig,
    cards: Vec<Card>,
    /// Claims of other holders, and the room that was made for them.
    claims: BTreeMap<ClaimId, (PoolClaim, Option<Vec<DeviceShare>>)>,
    claims_made: u32,
    pub claims_taken: u64,
    ledger: BTreeMap<SlotId, Vec<DeviceShare>>,
    pub processes: BTreeMap<SlotId, Process>,
    /// Slots whose memory has not returned.
    pub reclaiming: BTreeSet<SlotId>,
    /// Closed slots whose requests in flight finish.
    draining: BTreeSet<SlotId>,
    events: VecDeque<(SlotId, u64, SlotEvent)>,
    waiting: BTreeMap<ModelId, VecDeque<WaiterDemand>>,
    pub demands: BTreeMap<ModelId, Demand>,
    /// Waiters of a load that have no permit yet.
    first_waiters: BTreeMap<ModelId, u32>,
    pub in_flight: BTreeMap<SlotId, u32>,
    last_used: BTreeMap<ModelId, Millis>,
    refused: BTreeSet<ModelId>,
    outlooks: BTreeMap<ModelId, ReadyOutlook>,
    /// Models that an operator has pinned.
    pinned: BTreeSet<ModelId>,
    /// A configuration or an operator may stop anything at the moment.
    is_commanding: bool,
    digest: DefaultHasher,
    keeps_log: bool,
}

impl SimulatedHost {
    pub fn new(seed: u64, cards: &[u64], config: PoolConfig) -> SimulatedHost {
        let card = |total_mib: &u64| Card {
            total_mib: *total_mib,
            outside_mib: 0,
            claimed_mib: 0,
            neighbours_mib: 0,
            known_neighbours_mib: 0,
            is_there: true,
            is_open: true,
        };
        let mut host = SimulatedHost {
            pool: ModelPool::default(),
            log: Vec::new(),
            open: BTreeSet::new(),
            loads: 0,
            rng: Rng::with_seed(seed),
            now: Millis::from_secs(1000),
            fault: None,
            refuses_leases: false,
            has_neighbours: false,
            config: PoolConfig::default(),
            cards: cards.iter().map(card).collect(),
            claims: BTreeMap::new(),
            claims_made: 0,
            claims_taken: 0,
            ledger: BTreeMap::new(),
            processes: BTreeMap::new(),
            reclaiming: BTreeSet::new(),
            draining: BTreeSet::new(),
            events: VecDeque::new(),
            waiting: BTreeMap::new(),
            demands: BTreeMap::new(),
            first_waiters: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            last_used: BTreeMap::new(),
            refused: BTreeSet::new(),
            outlooks: BTreeMap::new(),
            pinned: BTreeSet::new(),
            is_commanding: false,
            digest: DefaultHasher::new(),
            keeps_log: true,
        };
        host.configure(config);
        host.sample();
        host
    }

    /// A host of random cards and models.
    pub fn random(seed: u64, policy: SwapPolicy, fault: Option<Fault>) -> SimulatedHost {
        SimulatedHost::random_beside(seed, policy, fault, &[])
    }

    /// The same, with memory that other pools have leased on each card.
    pub fn random_beside(
        seed: u64,
        policy: SwapPolicy,
        fault: Option<Fault>,
        leased_mib: &[u64],
    ) -> SimulatedHost {
        let mut rng = Rng::with_seed(seed);
        let cards: Vec<u64> = (0..rng.usize(1..=3))
            .map(|_| rng.u64(16_000..48_000))
            .collect();
        let mut host = SimulatedHost::new(seed, &cards, PoolConfig::default());
        if !leased_mib.is_empty() {
            host.set_neighbours(leased_mib.iter().copied());
            host.sample();
        }
        host.keeps_log = false;
        host.fault = fault;
        host.log.clear();
        let mut config = PoolConfig::default();
        config.swap.policy = policy;
        config.swap.min_warm = Millis(rng.u64(0..2) * 3000);
        for nth in 0..rng.u32(3..8) {
            let mut model = model(rng.u64(1..20) * 1000);
            model.is_preloaded = rng.u32(0..4) == 0;
            model.is_pinned = nth == 0 && rng.bool();
            model.replicas_max = rng.u16(1..3);
            model.replicas_min = rng.u16(0..2);
            model.asleep_mib = (rng.u32(0..3) == 0).then_some(500);
            model.priority = rng.u8(1..9);
            if rng.u32(0..4) == 0 {
                model.need.split = Split::Proportional;
            }
            config
                .models
                .insert(ModelId::from(format!("m{nth}").as_str()), model);
        }
        host.configure(config);
        host
    }

    fn at(&mut self) -> PoolMoment {
        PoolMoment {
            now: self.now,
            random: self.rng.u64(..),
        }
    }

    pub fn state(&self, model: &str) -> SlotState {
        let slot = slot_id(&ModelId::from(model), 0);
        self.pool.slot_state(&slot).expect("the slot is there").0
    }

    pub fn outlook(&self, model: &str) -> Option<ReadyOutlook> {
        self.outlooks.get(model).copied()
    }

    pub fn waiters(&self, model: &str) -> usize {
        self.waiting.get(model).map_or(0, VecDeque::len)
    }

    pub fn lease_mib(&self, model: &str) -> u64 {
        let slot = slot_id(&ModelId::from(model), 0);
        self.ledger
            .get(&slot)
            .map_or(0, |shares| shares.iter().map(|share| share.mib).sum())
    }

    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    pub fn configure(&mut self, config: PoolConfig) {
        self.config = config.clone();
        self.is_commanding = true;
        let mut config = config;
        if self.fault == Some(Fault::EvictedPin) {
            let models = config.models.values_mut();
            models.for_each(|model| model.is_pinned = false);
        }
        let at = self.at();
        let actions = self.pool.set_config(config, at);
        self.perform(actions);
        self.is_commanding = false;
    }

    pub fn command(&mut self, command: PoolCommand) {
        match &command {
            PoolCommand::Pin(model) => drop(self.pinned.insert(model.clone())),
            PoolCommand::Unpin(model) | PoolCommand::Unload(model) => {
                self.pinned.remove(model);
            }
            _ => {}
        }
        if self.fault == Some(Fault::EvictedPin) && matches!(command, PoolCommand::Pin(_)) {
            return;
        }
        self.is_commanding = true;
        let at = self.at();
        let actions = self.pool.command(command, at);
        self.perform(actions);
        self.is_commanding = false;
    }

    /// Times that the pool sees the memory of a card.
    fn counted(&self) -> u64 {
        match self.fault {
            Some(Fault::DoubleGrant) => 2,
            _ => 1,
        }
    }

    /// Sets what other pools have leased on each card; the pool learns of it with the next sample.
    pub fn set_neighbours(&mut self, leased_mib: impl IntoIterator<Item = u64>) {
        for (card, mib) in self.cards.iter_mut().zip(leased_mib) {
            card.neighbours_mib = mib;
        }
    }

    pub fn leased_by_card(&self) -> Vec<u64> {
        let cards = 0..self.cards.len();
        cards
            .map(|index| self.leased(&device_id(index), None))
            .collect()
    }

    pub fn totals_mib(&self) -> Vec<u64> {
        self.cards.iter().map(|card| card.total_mib).collect()
    }

    pub fn sample(&mut self) {
        for card in &mut self.cards {
            card.known_neighbours_mib = card.neighbours_mib;
        }
        let counted = self.counted();
        let devices = self
            .cards
            .iter()
            .enumerate()
            .filter(|(_, card)| card.is_there);
        let device = |(index, card): (usize, &Card)| PoolDevice {
            id: device_id(index),
            index: index as u32,
            kind: DeviceKind::Gpu,
            name: "card".into(),
            empty_mib: card.total_mib * counted,
            others_mib: card.others_mib(),
            outside_mib: card.outside_mib,
            is_open: card.is_open,
        };
        let devices = devices.map(device).collect();
        let at = self.at();
        let actions = self.pool.set_devices(devices, at);
        self.perform(actions);
    }

    pub fn set_outside(&mut self, index: usize, mib: u64) {
        self.cards[index].outside_mib = mib;
        self.sample();
    }

    pub fn lose_device(&mut self, index: usize) {
        self.cards[index].is_there = false;
        self.sample();
    }

    pub fn recover_device(&mut self, index: usize) {
        self.cards[index].is_there = true;
        self.sample();
    }

    pub fn adopt(&mut self, model: &str, mib: u64) {
        let slot = slot_id(&ModelId::from(model), 0);
        let device = device_id(0);
        let shares = vec![DeviceShare { device, mib }];
        self.ledger.insert(slot.clone(), shares.clone());
        let activity = Activity::Ready;
        self.processes
            .insert(slot.clone(), Process { life: 1, activity });
        let at = self.at();
        let actions = self.pool.adopt(&slot, shares, at);
        self.perform(actions);
    }

    pub fn raw_event(&mut self, model: &str, life: u64, event: SlotEvent) {
        let slot = slot_id(&ModelId::from(model), 0);
        let at = self.at();
        let actions = self.pool.slot_event(&slot, life, event, at);
        self.perform(actions);
    }

    /// Delivers an event of the present life, with what it means for the simulated process.
    pub fn event(&mut self, model: &str, event: SlotEvent) {
        let slot = slot_id(&ModelId::from(model), 0);
        if event == SlotEvent::MemoryReturned {
            self.reclaiming.remove(&slot);
        }
        if event == SlotEvent::Slept {
            self.set_activity(&slot, Activity::Asleep);
        }
        let life = self.pool.slot_state(&slot).expect("the slot is there").1;
        self.raw_event(model, life, event);
    }

    fn set_activity(&mut self, slot: &SlotId, activity: Activity) {
        if let Some(process) = self.processes.get_mut(slot) {
            process.activity = activity;
        }
    }

    pub fn arrive(&mut self, model: &str) {
        let id = ModelId::from(model);
        if !self.refused.contains(&id) {
            let now = self.now;
            let waiting = self.waiting.entry(id.clone()).or_default();
            let counted = waiting.iter().filter(|it| it.is_counted()).count() as u32;
            let demand = demand_of(&mut self.demands, &id);
            demand.record_arrivals(1, now);
            let weight = DemandWeight::of_priority(5);
            waiting.push_back(demand.join(weight, counted, PERMITS, now));
        }
        self.update(&id);
    }

    pub fn leave_all(&mut self, model: &str) {
        let id = ModelId::from(model);
        self.drop_waiting(&id);
        self.update(&id);
    }

    fn drop_waiting(&mut self, id: &ModelId) {
        for waiter in self.waiting.remove(id).into_iter().flatten() {
            demand_of(&mut self.demands, id).leave(waiter);
        }
    }

    /// Grants a permit to one request, which stays in flight.
    pub fn begin_request(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        self.grant(&slot);
    }

    pub fn serve_all(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        while self.grant(&slot) {
            self.finish_one(&slot);
        }
    }

    pub fn grant(&mut self, slot: &SlotId) -> bool {
        let has_permit = self.in_flight.get(slot).copied().unwrap_or(0) < PERMITS;
        if !has_permit || !self.open.contains(slot) {
            return false;
        }
        let waiting = self.waiting.get_mut(&slot.model);
        let Some(waiter) = waiting.and_then(VecDeque::pop_front) else {
            return false;
        };
        let demand = demand_of(&mut self.demands, &slot.model);
        demand.record_grant(self.now);
        demand.leave(waiter);
        let first = self.first_waiters.entry(slot.model.clone()).or_default();
        *first = first.saturating_sub(1);
        *self.in_flight.entry(slot.clone()).or_default() += 1;
        self.update(&slot.model);
        true
    }

    pub fn finish_one(&mut self, slot: &SlotId) {
        let Some(count) = self.in_flight.get_mut(slot).filter(|count| **count > 0) else {
            return;
        };
        *count -= 1;
        let is_last = *count == 0;
        self.last_used.insert(slot.model.clone(), self.now);
        if is_last && self.draining.contains(slot) {
            self.push(slot, SlotEvent::InFlightZero(StopMethod::Sleep));
        }
        self.update(&slot.model);
    }

    fn update(&mut self, id: &ModelId) {
        let demand = self.demand(id);
        let at = self.at();
        let actions = self.pool.update_demand([(id, &demand)], at);
        self.perform(actions);
    }

    fn demand(&mut self, id: &ModelId) -> ModelDemand {
        if self.fault == Some(Fault::LostWaiter) && id.as_str() == "m1" {
            return ModelDemand::NONE;
        }
        let waiters = self.waiting.get(id).map_or(0, VecDeque::len) as u32;
        let first = self.first_waiters.entry(id.clone()).or_default();
        *first = match self.open.iter().any(|slot| slot.model == *id) {
            true => waiters.min(*first),
            false => waiters.min(PERMITS),
        };
        let demand = demand_of(&mut self.demands, id);
        demand.expire(self.now);
        let slots = self.in_flight.iter().filter(|(slot, _)| slot.model == *id);
        ModelDemand {
            waiters,
            first_waiters: *first,
            unserved_since: demand.unserved_since(),
            debt: demand.debt(self.now),
            arrivals_per_sec: demand.arrivals_per_sec(self.now),
            in_flight: slots.map(|(_, count)| count).sum(),
            last_used: self.last_used.get(id).copied().unwrap_or(Millis::ZERO),
            priority: None,
            keep_alive: None,
        }
    }

    /// Time passes; what is due is done at its moment.
    pub fn pass(&mut self, span: Millis) {
        let end = self.now + span;
        while self.now < end {
            let waits = self.waiting.values().any(|waiting| !waiting.is_empty());
            let look = waits.then_some(self.now + LOOK_EVERY);
            let due = self.pool.next_deadline(self.now).into_iter().chain(look);
            let Some(due) = due.min().filter(|due| *due <= end) else {
                break;
            };
            self.now = due;
            self.tick();
        }
        self.now = end;
        self.tick();
    }

    pub fn tick(&mut self) {
        let ids: Vec<ModelId> = self.config.models.keys().cloned().collect();
        let demands: Vec<ModelDemand> = ids.iter().map(|id| self.demand(id)).collect();
        let at = self.at();
        let actions = self.pool.update_demand(ids.iter().zip(&demands), at);
        self.perform(actions);
    }

    fn push(&mut self, slot: &SlotId, event: SlotEvent) {
        let life = self.processes.get(slot).map_or(0, |process| process.life);
        self.events.push_back((slot.clone(), life, event));
    }

    pub fn deliver_all(&mut self) {
        while self.deliver() {}
    }

    fn deliver(&mut self) -> bool {
        let Some((slot, life, event)) = self.events.pop_front() else {
            return false;
        };
        let at = self.at();
        let actions = self.pool.slot_event(&slot, life, event, at);
        self.perform(actions);
        true
    }

    pub fn load(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        self.now = self.now + Millis(2000);
        while self
            .processes
            .get(&slot)
            .is_some_and(|it| it.activity != Activity::Ready)
        {
            self.advance(&slot);
            self.deliver_all();
        }
    }

    /// Ends a process that was asked to end, or was killed.
    pub fn end(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        while self.processes.contains_key(&slot) {
            self.advance(&slot);
        }
        self.deliver_all();
    }

    pub fn crash(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        self.exit(&slot, false, false);
        self.deliver_all();
    }

    pub fn run_out_of_memory(&mut self, model: &str) {
        let slot = slot_id(&ModelId::from(model), 0);
        self.exit(&slot, true, false);
        self.deliver_all();
    }

    pub fn exit(&mut self, slot: &SlotId, out_of_memory: bool, address_in_use: bool) {
        self.set_activity(slot, Activity::Exited);
        self.in_flight.remove(slot);
        let code = Some(1);
        self.push(
            slot,
            SlotEvent::Exited(ProcessExit {
                code,
                out_of_memory,
                address_in_use,
            }),
        );
    }

    /// Moves a process one step on, as it should go.
    pub fn advance(&mut self, slot: &SlotId) {
        let Some(process) = self.processes.get(slot).cloned() else {
            return;
        };
        let (next, event) = match process.activity {
            Activity::Starting => (Activity::Loading, SlotEvent::ListeningSeen),
            Activity::Loading => (Activity::Ready, SlotEvent::Ready),
            Activity::FallingAsleep => (Activity::Asleep, SlotEvent::Slept),
            Activity::Waking => (Activity::Ready, SlotEvent::Woke),
            Activity::Ready | Activity::Asleep => return,
            Activity::Terminating => return self.exit(slot, false, false),
            Activity::Killed | Activity::Exited => {
                self.push(slot, SlotEvent::ProcessesGone);
                self.processes.remove(slot);
                self.in_flight.remove(slot);
                self.reclaiming.insert(slot.clone());
                return;
            }
        };
        self.set_activity(slot, next);
        self.push(slot, event);
    }

    pub fn perform(&mut self, actions: Vec<Action>) {
        self.note_rooms();
        for action in actions {
            format!("{action:?}").hash(&mut self.digest);
            if self.keeps_log {
                self.log.push(action.clone());
            }
            self.perform_one(action);
        }
        self.check();
    }

    fn perform_one(&mut self, action: Action) {
        match action {
            Action::Acquire {
                slot, life, shares, ..
            } => {
                self.acquire(&slot, life, shares);
            }
            Action::Release(slot) => {
                assert!(
                    !self.processes.contains_key(&slot),
                    "{slot} releases what it uses"
                );
                self.reclaiming.remove(&slot);
                if self.fault != Some(Fault::DeadHolder) {
                    self.ledger.remove(&slot);
                }
            }
            Action::Shrink { slot, shares } => {
                // A process that has ended meanwhile uses nothing of either.
                let activity = self.processes.get(&slot).map(|process| process.activity);
                let uses_more = matches!(activity, Some(Activity::Ready | Activity::Waking));
                assert!(!uses_more, "{slot} is awake");
                self.ledger.insert(slot, shares);
            }
            Action::Start { slot, life, shares } => self.start(slot, life, &shares),
            Action::Open(slot) => {
                self.draining.remove(&slot);
                self.events.retain(|(of, _, event)| {
                    *of != slot || !matches!(event, SlotEvent::InFlightZero(_))
                });
                self.open.insert(slot);
            }
            Action::Close {
                slot,
                reason,
                challenger,
            } => self.close(slot, reason, challenger),
            Action::Stop(slot) => self.set_unless_ended(&slot, Activity::Terminating),
            Action::Kill(slot) => {
                self.in_flight.remove(&slot);
                self.draining.remove(&slot);
                self.set_unless_ended(&slot, Activity::Killed);
            }
            Action::Sleep(slot) => self.set_unless_ended(&slot, Activity::FallingAsleep),
            Action::Wake(slot) => self.set_unless_ended(&slot, Activity::Waking),
            Action::AwaitMemory(slot) => assert!(!self.processes.contains_key(&slot)),
            Action::SetReadyEstimate { model, outlook } => {
                self.refused.remove(&model);
                self.outlooks.insert(model, outlook);
            }
            Action::Reject { model, .. } => {
                self.outlooks.remove(&model);
                self.drop_waiting(&model);
                self.refused.insert(model);
            }
            Action::Report { slot, report, .. } => self.judge(&slot, &report),
        }
    }

    fn set_unless_ended(&mut self, slot: &SlotId, activity: Activity) {
        let is_there = |process: &&mut Process| process.activity != Activity::Exited;
        if let Some(process) = self.processes.get_mut(slot).filter(is_there) {
            process.activity = activity;
        }
    }

    /// The ledger: grants all shares or none, and what is granted fits beside all else.
    fn acquire(&mut self, slot: &SlotId, life: u64, shares: Vec<DeviceShare>) {
        let mut fits = self.rng.u32(0..40) > 0 || self.keeps_log;
        fits &= !self.refuses_leases;
        for share in &shares {
            let card = self.card(&share.device);
            let leased = self.leased(&share.device, Some(slot));
            assert!(
                card.is_there && card.is_open,
                "a lease on a device that takes none"
            );
            let is_within = leased + share.mib + card.others_mib() <= card.total_mib;
            assert!(
                is_within,
                "{slot} asks for more than is free: {share:?} beside {leased} of {card:?}, {:?}",
                self.pool.slot_states().collect::<Vec<_>>()
            );
            // What others have leased since the latest sample, the ledger alone knows.
            let taken_mib = card.outside_mib + card.claimed_mib + card.neighbours_mib;
            fits &= is_within && leased + share.mib + taken_mib <= card.total_mib;
            self.check_promises(&share.device, slot);
        }
        let event = match fits {
            true => SlotEvent::LeaseHeld,
            false => SlotEvent::LeaseRefused,
        };
        if fits {
            self.ledger.insert(slot.clone(), shares);
        }
        self.events.push_back((slot.clone(), life, event));
    }

    fn start(&mut self, slot: SlotId, life: u64, shares: &[DeviceShare]) {
        assert!(!self.processes.contains_key(&slot), "{slot} has a process");
        assert_eq!(self.ledger.get(&slot).map(Vec::as_slice), Some(shares));
        self.reclaiming.remove(&slot);
        if !self.keeps_log && self.rng.u32(0..30) == 0 {
            let event = SlotEvent::NotStarted(StartFailure::CommandFailed);
            self.events.push_back((slot, life, event));
            return;
        }
        self.loads += 1;
        let activity = Activity::Starting;
        self.processes
            .insert(slot.clone(), Process { life, activity });
        self.push(&slot, SlotEvent::Started);
    }

    fn close(&mut self, slot: SlotId, reason: Option<DrainReason>, challenger: Option<SlotId>) {
        assert!(self.open.remove(&slot));
        if reason == Some(DrainReason::Victim) {
            let has_other = self.open.iter().any(|other| other.model == slot.model);
            let yields = challenger.as_ref().is_some_and(|challenger| {
                self.is_pinned(&challenger.model)
                    && self.priority(&challenger.model) < self.priority(&slot.model)
            });
            assert!(
                !self.is_pinned(&slot.model) || has_other || yields,
                "{slot} is pinned"
            );
            assert_ne!(challenger.map(|it| it.model), Some(slot.model.clone()));
        }
        if reason.is_some() {
            self.draining.insert(slot.clone());
            if self.in_flight.get(&slot).copied().unwrap_or(0) == 0 {
                self.push(&slot, SlotEvent::InFlightZero(StopMethod::Sleep));
            }
        }
    }

    fn is_pinned(&self, model: &ModelId) -> bool {
        let configured = self.config.models.get(model);
        configured.is_some_and(|model| model.is_pinned)
            || configured.is_some() && self.pinned.contains(model)
    }

    fn priority(&self, model: &ModelId) -> Option<u8> {
        self.config.models.get(model).map(|model| model.priority)
    }

    /// Transitions come from the table, and a load ends early only where nothing waits for it.
    fn judge(&self, slot: &SlotId, report: &PoolReport) {
        let PoolReport::Transition { from, to } = report else {
            return;
        };
        let names = (from.name(), to.name());
        let is_known = from.name() == to.name() || TRANSITIONS.contains(&names);
        assert!(is_known, "{slot}: {names:?}");
        let aborts = matches!(from, SlotState::Loading(_)) && matches!(to, SlotState::Stopping(_));
        // Where a model has several slots, a new configuration restarts them one after the other.
        let record = self.pool.slot(slot);
        let revision = record.map(|record| record.revision);
        let model = self.config.models.get(&slot.model);
        let is_outdated = record.is_some_and(|record| record.must_restart || record.must_unload)
            || model.map(|model| model.revision) != revision
            || model.is_some_and(|model| slot.number >= model.replicas_max);
        if aborts && !self.is_commanding && !is_outdated {
            let waiters = self.waiting.get(&slot.model).map_or(0, VecDeque::len);
            assert_eq!(waiters, 0, "{slot}: a load that is waited for is aborted");
        }
    }

    fn card(&self, device: &DeviceId) -> &Card {
        &self.cards[self.index(device)]
    }

    fn index(&self, device: &DeviceId) -> usize {
        let index = (0..self.cards.len()).find(|index| device_id(*index) == *device);
        index.expect("a device of the host")
    }

    fn leased(&self, device: &DeviceId, except: Option<&SlotId>) -> u64 {
        let others = self.ledger.iter().filter(|(slot, _)| Some(*slot) != except);
        let shares = others.flat_map(|(_, shares)| shares);
        shares
            .filter(|share| share.device == *device)
            .map(|share| share.mib)
            .sum()
    }

    /// Free memory of a device is promised to one challenger or claim.
    ///
    /// Asked where something was promised just now: others that take memory later break older promises.
    fn check_promises(&self, device: &DeviceId, to: &impl std::fmt::Display) {
        let card = self.card(device);
        let mut taken_mib = card.others_mib();
        let mut promised_mib = 0;
        let mut for_claims: BTreeMap<&ClaimId, u64> = BTreeMap::new();
        let mut for_slots: BTreeMap<&SlotId, u64> = BTreeMap::new();
        for (_, model) in self.pool.models.iter() {
            for record in &model.slots {
                taken_mib += on(&record.shares, device);
                let frees_mib = on(&record.frees(model.asleep_mib()), device);
                if let Some(claim) = &record.claim {
                    *for_claims.entry(claim).or_default() += frees_mib;
                } else if let Some(challenger) = &record.challenger {
                    *for_slots.entry(challenger).or_default() += frees_mib;
                }
            }
        }
        for (id, (_, room)) in &self.claims {
            let room_mib = room.as_deref().map_or(0, |room| on(room, device));
            let comes_mib = for_claims.get(id).copied().unwrap_or(0);
            promised_mib += room_mib.saturating_sub(comes_mib);
        }
        for (id, model) in self.pool.models.iter() {
            for (number, record) in model.slots.iter().enumerate() {
                if record.is_pending() {
                    let comes_mib = for_slots.get(&slot_id(id, number)).copied();
                    let planned_mib = on(&record.planned, device);
                    promised_mib += planned_mib.saturating_sub(comes_mib.unwrap_or(0));
                }
            }
        }
        let free_mib = (card.total_mib * self.counted()).saturating_sub(taken_mib);
        assert!(
            promised_mib <= free_mib,
            "{to}: memory of {card:?} is promised twice: {promised_mib} of {free_mib}, {:?}",
            self.claims
        );
    }

    /// Takes note of the room that was made for claims, and of that which was given up.
    fn note_rooms(&mut self) {
        let mut made = Vec::new();
        for (id, (_, room)) in &mut self.claims {
            let Some(record) = self.pool.claims.get(id) else {
                continue;
            };
            if room.is_none() && record.room.is_some() {
                made.push(id.clone());
            }
            room.clone_from(&record.room);
        }
        for id in made {
            for share in self.claims[&id].1.clone().into_iter().flatten() {
                self.check_promises(&share.device, &id);
            }
        }
    }

    /// Invariants that hold after every event.
    fn check(&mut self) {
        for index in 0..self.cards.len() {
            let leased = self.leased(&device_id(index), None);
            assert!(
                leased <= self.cards[index].total_mib,
                "over-commit on {index}"
            );
        }
        let mut loading = 0;
        let mut loading_on: BTreeMap<DeviceId, u32> = BTreeMap::new();
        for (slot, state, shares) in self.pool.slot_states() {
            let leased = self.ledger.contains_key(&slot);
            let may_be_granted = matches!(state, SlotState::Acquiring(_));
            assert!(
                leased || !state.holds_lease(),
                "{slot} {state:?} has no lease"
            );
            assert!(
                !leased || state.holds_lease() || may_be_granted,
                "{slot} {state:?} has a lease"
            );
            let has_process = self.processes.contains_key(&slot);
            assert!(
                !has_process || state.has_process(),
                "{slot} {state:?} has a process"
            );
            assert_eq!(
                self.open.contains(&slot),
                state == SlotState::Ready,
                "{slot} {state:?}"
            );
            if state.is_becoming_ready() && !shares.is_empty() && state != ACQUIRING_WAKE {
                loading += 1;
                for share in shares {
                    *loading_on.entry(share.device.clone()).or_default() += 1;
                }
            }
        }
        assert!(
            loading <= 2 && loading_on.values().all(|loads| *loads <= 1),
            "too many loads"
        );
        self.check_rest();
    }

    /// A pool that has settled does nothing more at the same moment, and loads what fits.
    fn check_rest(&mut self) {
        let mut settled = self.pool.clone();
        let at = PoolMoment {
            now: self.now,
            random: 1,
        };
        let more = settled.update_demand([], at);
        assert!(more.is_empty(), "not settled: {more:?}");
        assert!(
            self.pool
                .next_deadline(self.now)
                .is_none_or(|due| due > self.now)
        );
        self.pool.check_lists(self.now);
        if self.pool.is_draining || self.pool.is_held {
            return;
        }
        let contenders = self.pool.contenders(None, self.now);
        for (cold, name) in contenders.cold.iter().zip(&contenders.names.cold) {
            let shares = cold.place(&contenders.rooms);
            assert_eq!(shares, None, "{name:?} fits and is not loaded");
        }
        let reasons: BTreeSet<&ModelId> = self.pool.waiting_reasons().map(|it| it.0).collect();
        for (id, model) in self.pool.models.iter() {
            let mut states = model.slots.iter().map(|record| record.slot.state());
            let is_ready = states.any(|state| state == SlotState::Ready);
            let waits = model.demand.waiters > 0 && !is_ready;
            assert_eq!(reasons.contains(id), waits, "reason of {id}");
        }
    }

    pub fn random_event(&mut self) {
        self.now = self.now + Millis(self.rng.u64(0..400));
        match self.rng.u32(0..1000) {
            0..200 => drop(self.deliver()),
            200..330 => self.random_arrival(),
            330..360 => self.random_departure(),
            360..500 => self.random_grant(),
            500..620 => self.random_finish(),
            620..800 => self.random_progress(),
            800..840 => self.random_failure(),
            840..890 => self.random_return(),
            890..910 => self.tick(),
            910..920 if !self.has_neighbours => self.random_claim(),
            920..940 => self.take_rooms(),
            910..920 | 940..960 => self.sample(),
            960..970 => self.random_card(),
            970..980 => self.random_config(),
            980..986 => self.random_command(),
            986..994 => self.random_late_event(),
            _ => {
                let secs = [5, 20, 70, 320, 1000][self.rng.usize(0..5)];
                self.pass(Millis::from_secs(secs));
            }
        }
    }

    fn random_model(&mut self) -> Option<ModelId> {
        let ids: Vec<&ModelId> = self.config.models.keys().collect();
        (!ids.is_empty()).then(|| ids[self.rng.usize(0..ids.len())].clone())
    }

    fn random_slot(&mut self, slots: Vec<SlotId>) -> Option<SlotId> {
        (!slots.is_empty()).then(|| slots[self.rng.usize(0..slots.len())].clone())
    }

    fn random_process(&mut self) -> Option<SlotId> {
        let slots = self.processes.keys().cloned().collect();
        self.random_slot(slots)
    }

    fn random_arrival(&mut self) {
        if let Some(model) = self.random_model() {
            self.arrive(model.as_str());
        }
    }

    fn random_departure(&mut self) {
        if let Some(model) = self.random_model() {
            let waiting = self.waiting.get_mut(&model);
            if let Some(waiter) = waiting.and_then(VecDeque::pop_back) {
                let account = AccountId::from("a");
                let demand = demand_of(&mut self.demands, &model);
                match self.rng.bool() {
                    true => demand.leave(waiter),
                    false => demand.time_out(waiter, &account, PERMITS, self.now),
                }
            }
            self.update(&model);
        }
    }

    fn random_grant(&mut self) {
        let open = self.open.iter().cloned().collect();
        if let Some(slot) = self.random_slot(open) {
            self.grant(&slot);
        }
    }

    fn random_finish(&mut self) {
        let busy = self.in_flight.keys().cloned().collect();
        if let Some(slot) = self.random_slot(busy) {
            self.finish_one(&slot);
        }
    }

    fn random_progress(&mut self) {
        if let Some(slot) = self.random_process() {
            self.advance(&slot);
        }
    }

    fn random_failure(&mut self) {
        let Some(slot) = self.random_process() else {
            return;
        };
        let activity = self.processes[&slot].activity;
        match (activity, self.rng.u32(0..4)) {
            (Activity::Exited | Activity::Killed, _) => {}
            (Activity::Ready, 0) => self.push(&slot, SlotEvent::ProbeFailed(ServerActivity::Idle)),
            (Activity::Ready, 1) => self.push(&slot, SlotEvent::ProbeSucceeded),
            (Activity::Starting, 0) => self.exit(&slot, false, true),
            (_, 2) => self.exit(&slot, true, false),
            _ => self.exit(&slot, false, false),
        }
    }

    fn random_return(&mut self) {
        let slots = self.reclaiming.iter().cloned().collect();
        if let Some(slot) = self.random_slot(slots)
            && let Some((state, life)) = self.pool.slot_state(&slot)
            && matches!(
                state,
                SlotState::Reclaiming | SlotState::Failed(FailedPhase::Reclaiming)
            )
        {
            self.reclaiming.remove(&slot);
            self.events
                .push_back((slot, life, SlotEvent::MemoryReturned));
        }
    }

    fn random_card(&mut self) {
        let index = self.rng.usize(0..self.cards.len());
        let total_mib = self.cards[index].total_mib;
        match self.rng.u32(0..4) {
            0 => self.cards[index].is_there ^= true,
            1 => self.cards[index].is_open ^= true,
            _ => self.cards[index].outside_mib = self.rng.u64(0..total_mib / 3),
        }
        self.sample();
    }

    /// A claim comes or is withdrawn; a lease that one became ends.
    fn random_claim(&mut self) {
        let ids: Vec<ClaimId> = self.claims.keys().cloned().collect();
        let nth = self.rng.usize(0..ids.len().max(1));
        let chosen = ids.get(nth).cloned();
        match (self.rng.u32(0..5), chosen) {
            (0..3, _) if ids.len() < 3 => self.add_claim(),
            (3, Some(id)) => drop(self.claims.remove(&id)),
            _ => {
                let index = self.rng.usize(0..self.cards.len());
                self.cards[index].claimed_mib = 0;
            }
        }
        self.pass_claims();
    }

    fn add_claim(&mut self) {
        self.claims_made += 1;
        let id = ClaimId::from(format!("c-{}", self.claims_made));
        let claim = PoolClaim {
            id: id.clone(),
            placement: model(self.rng.u64(1..20) * 1000).need,
            priority: self.rng.u8(1..9),
            debt: [0.1, 10.0, 1e6][self.rng.usize(0..3)],
            since: self.now - Millis::from_secs(self.rng.u64(0..500)),
        };
        self.claims.insert(id, (claim, None));
    }

    /// Claims take the room that was made for them.
    fn take_rooms(&mut self) {
        for id in self.claims.keys().cloned().collect::<Vec<_>>() {
            self.take_room(&id);
        }
        self.pass_claims();
    }

    /// The ledger grants a claim its room, once that is free.
    fn take_room(&mut self, id: &ClaimId) {
        let Some(room) = self.claims[id].1.clone() else {
            return;
        };
        let is_free = |share: &DeviceShare| {
            let card = self.card(&share.device);
            let leased = self.leased(&share.device, None);
            card.is_there && leased + card.others_mib() + share.mib <= card.total_mib
        };
        if room.iter().all(is_free) {
            for share in &room {
                let index = self.index(&share.device);
                self.cards[index].claimed_mib += share.mib;
            }
            self.claims.remove(id);
            self.claims_taken += 1;
        }
    }

    fn pass_claims(&mut self) {
        let is_lost = self.fault == Some(Fault::LostClaim);
        let claims = self.claims.values();
        let known = claims.filter(|(_, room)| !is_lost || room.is_none());
        let known = known.map(|(claim, _)| claim.clone()).collect();
        self.pool.set_claims(known);
        self.sample();
    }

    fn random_config(&mut self) {
        let mut config = self.config.clone();
        let Some(id) = self.random_model() else {
            return;
        };
        let what = self.rng.u32(0..6);
        config.swap.turn = self.rng.u32(1..6);
        config.swap.patience = self.rng.u32(0..20);
        if let Some(model) = config.models.get_mut(&id) {
            match what {
                0 => model.revision += 1,
                1 => model.is_pinned ^= true,
                2 => model.replicas_max = self.rng.u16(1..4),
                3 => model.keep_alive = Some(Millis::from_secs(self.rng.u64(1..300))),
                4 => model.need.mib = self.rng.u64(1..20) * 1000,
                _ => {
                    config.models.remove(&id);
                    self.drop_waiting(&id);
                    let name = format!("n{}", self.rng.u32(0..4));
                    config
                        .models
                        .insert(ModelId::from(name.as_str()), model_of(&mut self.rng));
                }
            }
        }
        self.refused.retain(|id| config.models.contains_key(id));
        self.pinned.retain(|id| config.models.contains_key(id));
        self.configure(config);
    }

    fn random_command(&mut self) {
        let Some(model) = self.random_model() else {
            return;
        };
        let command = match self.rng.u32(0..8) {
            0 => PoolCommand::Load(model),
            1 => PoolCommand::Unload(model),
            2 => PoolCommand::Retry(model),
            3 => PoolCommand::Pin(model),
            4 => PoolCommand::Restart(model),
            5 => PoolCommand::RestartSlot(slot_id(&model, 0)),
            6 => PoolCommand::Renew(model),
            _ => PoolCommand::Unpin(model),
        };
        self.command(command);
    }

    fn random_late_event(&mut self) {
        let slots = self.pool.slot_states().map(|(slot, ..)| slot).collect();
        let Some(slot) = self.random_slot(slots) else {
            return;
        };
        let life = self.pool.slot_state(&slot).expect("a slot").1;
        let events = [
            SlotEvent::LeaseHeld,
            SlotEvent::ProcessesGone,
            SlotEvent::Ready,
            SlotEvent::MemoryReturned,
        ];
        let event = events[self.rng.usize(0..events.len())];
        let at = self.at();
        let actions = self.pool.slot_event(&slot, life.wrapping_sub(1), event, at);
        self.perform(actions);
    }

    /// Heals the host; no request comes any more. Requests for a model that fits are served.
    pub fn heal_and_serve(&mut self) {
        for card in &mut self.cards {
            (card.is_there, card.is_open) = (true, true);
            (card.outside_mib, card.claimed_mib) = (0, 0);
        }
        self.claims.clear();
        self.pool.set_claims(Vec::new());
        self.keeps_log = true;
        self.log.clear();
        let models: Vec<ModelId> = self.config.models.keys().cloned().collect();
        for model in &models {
            self.command(PoolCommand::Unpin(model.clone()));
        }
        let mut config = self.config.clone();
        config
            .models
            .values_mut()
            .for_each(|model| model.is_pinned = false);
        self.configure(config);
        for _ in 0..3000 {
            self.deliver_all();
            for slot in self.processes.keys().cloned().collect::<Vec<_>>() {
                self.advance(&slot);
            }
            for slot in self.in_flight.keys().cloned().collect::<Vec<_>>() {
                self.finish_one(&slot);
            }
            for slot in self.open.iter().cloned().collect::<Vec<_>>() {
                while self.grant(&slot) {}
            }
            self.sample();
            self.pass(Millis(500));
            if self.waiting.values().all(VecDeque::is_empty) {
                return;
            }
        }
        let left: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, it)| !it.is_empty())
            .collect();
        let slots: Vec<_> = self.pool.slot_states().collect();
        let processes = &self.processes;
        panic!("waiters without a path: {left:?} {slots:?} {processes:?}");
    }
}

fn demand_of<'a>(demands: &'a mut BTreeMap<ModelId, Demand>, id: &ModelId) -> &'a mut Demand {
    let demand = demands.entry(id.clone());
    demand.or_insert_with(|| Demand::new(DemandSettings::default()))
}

fn model_of(rng: &mut Rng) -> PoolModel {
    let is_preloaded = rng.bool();
    let mib = rng.u64(1..16) * 1000;
    PoolModel {
        is_preloaded,
        is_exclusive: mib == 15_000,
        ..model(mib)
    }
}

fn device_id(index: usize) -> DeviceId {
    DeviceId::from(format!("{GPU}{index}").as_str())
}

const ACQUIRING_WAKE: SlotState = SlotState::Acquiring(LoadKind::Wake);

/// Changes of state by name that there are.
const TRANSITIONS: &[(&str, &str)] = &[
    ("cold", "acquiring"),
    ("cold", "ready"),
    ("acquiring", "loading"),
    ("acquiring", "cold"),
    ("acquiring", "asleep"),
    ("acquiring", "failed"),
    ("loading", "ready"),
    ("loading", "failed"),
    ("loading", "stopping"),
    ("ready", "draining"),
    ("ready", "failed"),
    ("draining", "ready"),
    ("draining", "stopping"),
    ("draining", "failed"),
    ("asleep", "acquiring"),
    ("asleep", "stopping"),
    ("asleep", "failed"),
    ("stopping", "asleep"),
    ("stopping", "reclaiming"),
    ("stopping", "stuck"),
    ("stuck", "reclaiming"),
    ("reclaiming", "cold"),
    ("failed", "stuck"),
    ("failed", "cold"),
];
