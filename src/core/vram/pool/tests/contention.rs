//! Models that contend for one card without a pause, and the bound of their waits.

use std::collections::BTreeMap;

use super::super::*;
use super::events;
use super::host::{Activity, PERMITS, SimulatedHost, model};
use crate::vram::demand::{DemandSettings, debt_of_wait};

/// Time between two looks.
const STEP: Millis = Millis(250);
/// Time from the order to stop to the end of the processes, and from there to the return of their memory.
const STOP: Millis = Millis(1000);
const RECLAIM: Millis = Millis(500);
/// Longest bound of a wait that is looked for.
const BOUND_MAX: Millis = Millis::from_secs(100_000);

/// A card that holds one of its models at a time, each of them asked for more than it can serve.
pub struct Contention {
    host: SimulatedHost,
    config: PoolConfig,
    loads: BTreeMap<ModelId, Millis>,
    service: Millis,
    bound: Millis,
    /// Moment since which a process is in its activity.
    since: BTreeMap<SlotId, (Activity, Millis)>,
    reclaiming: BTreeMap<SlotId, Millis>,
    ends: Vec<(Millis, SlotId)>,
    pub longest: Millis,
}

impl Contention {
    pub fn new(seed: u64, models: u64) -> Contention {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut config = PoolConfig::default();
        let mut loads = BTreeMap::new();
        let (mut longest, mut shortest) = (Millis::ZERO, Millis::MAX);
        for nth in 0..models {
            let mib = rng.u64(11..20) * 1000;
            let (id, model) = (ModelId::from(format!("m{nth}").as_str()), model(mib));
            let load = Millis(rng.u64(1000..20_000));
            // Before its first load the estimate counts.
            let estimate = super::super::super::load_time::LoadTimes::new(model.stored);
            let estimate = estimate.expected(LoadKind::Start);
            longest = longest.max(load.max(estimate));
            shortest = shortest.min(load.min(estimate));
            loads.insert(id.clone(), load);
            config.models.insert(id, model);
        }
        let service = Millis(rng.u64(500..5000));
        let turn = Millis(u64::from(config.swap.turn) * 2 * longest.0);
        // A model that leaves with waiters: its own end, the load of the other, a turn, and the other's end.
        let leave = service + STOP + RECLAIM;
        let bound = match models {
            2 => leave + longest + turn + leave + longest + Millis(8 * STEP.0),
            _ => {
                // A load is seen to be over at a step.
                let ratio = (longest.0 + 4 * STEP.0) as f64 / shortest.0 as f64;
                let round = leave + longest + turn + Millis(8 * STEP.0);
                bound_of_several(models, round, (leave + service, ratio))
            }
        };
        Contention {
            host: SimulatedHost::new(seed, &[20_000], config.clone()),
            config,
            loads,
            service,
            bound,
            since: BTreeMap::new(),
            reclaiming: BTreeMap::new(),
            ends: Vec::new(),
            longest: Millis::ZERO,
        }
    }

    pub fn set_turn(&mut self, turn: u32) {
        self.config.swap.turn = turn;
        self.host.configure(self.config.clone());
    }

    /// Runs steps; panics where a model waits longer than the bound.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
            let now = self.host.now;
            for (model, demand) in &self.host.demands {
                let waited = demand
                    .unserved_since()
                    .map_or(Millis::ZERO, |it| now.since(it));
                self.longest = self.longest.max(waited);
                assert!(
                    waited <= self.bound,
                    "{model} waits longer than its bound: {waited:?} of {:?}",
                    self.bound
                );
            }
        }
    }

    fn step(&mut self) {
        self.host.now = self.host.now + STEP;
        let now = self.host.now;
        for model in self.loads.keys().cloned().collect::<Vec<_>>() {
            // Of a pause in its requests others would make use.
            let waiting = self.host.waiters(model.as_str());
            for _ in waiting..2 * PERMITS as usize {
                self.host.arrive(model.as_str());
            }
        }
        for (end, slot) in std::mem::take(&mut self.ends) {
            match end <= now {
                true => self.host.finish_one(&slot),
                false => self.ends.push((end, slot)),
            }
        }
        self.host.deliver_all();
        self.move_processes();
        self.host.deliver_all();
        for slot in self.host.open.iter().cloned().collect::<Vec<_>>() {
            while self.host.grant(&slot) {
                let service = self.host.rng.u64(100..=self.service.0);
                self.ends.push((now + Millis(service), slot.clone()));
            }
        }
        self.host.tick();
        self.host.deliver_all();
    }

    fn move_processes(&mut self) {
        let now = self.host.now;
        for (slot, process) in self.host.processes.clone() {
            let (activity, since) = *self
                .since
                .entry(slot.clone())
                .and_modify(|it| {
                    if it.0 != process.activity {
                        *it = (process.activity, now);
                    }
                })
                .or_insert((process.activity, now));
            let takes = match activity {
                Activity::Loading => self.loads[&slot.model],
                Activity::Terminating => STOP,
                _ => Millis::ZERO,
            };
            if now.since(since) >= takes {
                self.host.advance(&slot);
            }
        }
        for slot in self.host.reclaiming.clone() {
            let since = *self.reclaiming.entry(slot.clone()).or_insert(now);
            let awaits = self.host.pool.slot_state(&slot).map(|it| it.0);
            if now.since(since) >= RECLAIM && awaits == Some(SlotState::Reclaiming) {
                self.reclaiming.remove(&slot);
                self.host
                    .event(slot.model.as_str(), SlotEvent::MemoryReturned);
            }
        }
    }
}

/// Bound of the wait of one of several contenders, each of which has the card for a round at most.
///
/// The greatest debt for each second of a load is first. Others that come in turn have waited for the rounds of all the
/// rest, and `late` for the waiters that a model leaves with. A debt that exceeds theirs by the `ratio` of the longest load to
/// the shortest is before them; until then each other may have come once more.
fn bound_of_several(models: u64, round: Millis, (late, ratio): (Millis, f64)) -> Millis {
    let aging = DemandSettings::default().aging;
    let debt = |waited| debt_of_wait(5, waited, aging);
    let others = Millis(round.0 * (models - 2)) + late;
    let steps = (others.0..BOUND_MAX.0).step_by(STEP.0 as usize);
    let mut waits = steps.map(Millis);
    let first = waits.find(|wait| debt(*wait) >= ratio * debt(others));
    first.expect("debts grow without an end") + Millis(round.0 * models)
}

#[test]
fn a_model_waits_for_one_turn_of_the_other_at_most() {
    let mut loads = 0;
    for seed in 0..events() / 10_000 {
        let mut contention = Contention::new(seed, 2);
        contention.run(4000);
        loads += contention.host.loads;
    }
    assert!(loads > events() / 2000, "{loads} loads");
}

#[test]
fn no_one_of_several_contenders_starves() {
    let mut closest = 0;
    for seed in 0..events() / 10_000 {
        let mut contention = Contention::new(seed, 3 + seed % 2);
        contention.run(12_000);
        assert!(contention.longest > Millis::ZERO);
        closest = closest.max(contention.longest.0 * 100 / contention.bound.0);
    }
    println!("longest wait: {closest} % of its bound");
    assert!(
        closest > 20,
        "a bound that far off finds nothing: {closest} %"
    );
}
