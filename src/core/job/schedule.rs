//! Order in which the queued jobs of one deployable are taken: four classes, and within a class fair flows.
//!
//! Not the jobs themselves: a flow holds ids. Start-time fair queueing over permit time
//! (<https://dl.acm.org/doi/10.1145/248156.248171>): a flow's virtual time grows by what its jobs are expected to
//! cost, over its weight, and is corrected at their end. O(log n) a call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::id::JobId;
use crate::Millis;

/// Takes of a worker after which `normal` comes first once.
const NORMAL_EVERY: u32 = 8;
/// Takes of a worker after which `batch` comes first once.
const BATCH_EVERY: u32 = 32;
/// Take among these 32 in which `interactive` comes first, so that released jobs cannot keep it out.
const INTERACTIVE_TURN: u32 = 4;
/// Idle flows beyond the active ones that are remembered before those without debt are dropped.
const IDLE_FLOWS_SLACK: usize = 64;
/// Flows without a turn since they came that one correction moves.
const FRESH_MOVED_MAX: usize = 64;
/// Largest lead of a flow with preferred weights before the least served flow is next.
pub const AFFINITY_LAG: Millis = Millis::from_secs(30);
/// Takes in a row that a preference may decide.
pub const AFFINITY_STREAK_MAX: u32 = 8;

/// Class of a job in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobClass {
    /// Released jobs, which had their turn before.
    Again,
    /// A client waits for the result.
    Interactive,
    /// All others.
    Normal,
    /// Work without hurry.
    Batch,
}

impl JobClass {
    /// Every class, in the usual order.
    pub const ALL: [JobClass; 4] = [
        JobClass::Again,
        JobClass::Interactive,
        JobClass::Normal,
        JobClass::Batch,
    ];

    /// Returns the name in metrics and events.
    pub const fn name(self) -> &'static str {
        match self {
            JobClass::Again => "again",
            JobClass::Interactive => "interactive",
            JobClass::Normal => "normal",
            JobClass::Batch => "batch",
        }
    }

    /// Returns the order of classes for a worker's take number `turn`. Each class is first in at least one of 32.
    pub fn order(turn: u32) -> [JobClass; 4] {
        use JobClass::{Again, Batch, Interactive, Normal};
        match turn {
            _ if turn.is_multiple_of(BATCH_EVERY) => [Batch, Again, Interactive, Normal],
            _ if turn.is_multiple_of(NORMAL_EVERY) => [Normal, Again, Interactive, Batch],
            _ if turn % BATCH_EVERY == INTERACTIVE_TURN => [Interactive, Again, Normal, Batch],
            _ => [Again, Interactive, Normal, Batch],
        }
    }
}

/// Cost of a job to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowCost {
    /// Expected permit time, milliseconds; 1 per job where jobs are counted.
    pub expected_ms: u64,
    /// Share of the flow relative to others; 0 counts as 1.
    pub weight: u32,
}

impl FlowCost {
    /// Returns the step of virtual time, microseconds over weight; at least 1, so that every take moves a flow on.
    fn step(self) -> u64 {
        let micros = self.expected_ms.saturating_mul(1000);
        (micros / u64::from(self.weight.max(1))).max(1)
    }
}

/// A flow: the jobs of one account, or of one shard or model.
#[derive(Debug, Default)]
struct Flow {
    /// Virtual time, microseconds over weight.
    time: u64,
    /// Jobs by their place in arrival.
    jobs: BTreeMap<u64, JobId>,
    /// Jobs that were taken and whose charge is not corrected yet.
    charged: u32,
    /// Virtual time that it had used itself, while it has had no turn since it became active.
    fresh_from: Option<u64>,
}

impl Flow {
    /// Returns whether the flow would come back as a new one does. A charge to come would be lost with it.
    fn is_forgettable(&self, least: u64) -> bool {
        self.jobs.is_empty() && self.charged == 0 && self.time <= least
    }
}

/// Queue of one class: its flows in the order of their virtual time.
#[derive(Debug, Default)]
struct ClassQueue {
    flows: HashMap<Arc<str>, Flow>,
    /// Flows with jobs.
    active: BTreeSet<(u64, Arc<str>)>,
    /// Active flows that have had no turn since they became active.
    fresh: BTreeSet<(u64, Arc<str>)>,
    /// Virtual time of the flow served last.
    now: u64,
    /// Jobs of all flows.
    len: usize,
}

impl ClassQueue {
    fn least(&self) -> u64 {
        self.active.first().map_or(self.now, |(time, _)| *time)
    }

    fn push(&mut self, flow: &Arc<str>, place: u64, job: JobId, cost: FlowCost) {
        let entry_time = self.least().saturating_add(cost.step());
        let entry = self.flows.entry(Arc::clone(flow)).or_default();
        if entry.jobs.is_empty() {
            // One quantum behind: a tenant with one job at a time has one turn a round and no more.
            entry.fresh_from = Some(entry.time);
            entry.time = entry.time.max(entry_time);
            self.active.insert((entry.time, Arc::clone(flow)));
            self.fresh.insert((entry.time, Arc::clone(flow)));
        }
        entry.jobs.insert(place, job);
        self.len += 1;
        self.forget_idle();
    }

    /// Drops idle flows that would come back as new ones do.
    fn forget_idle(&mut self) {
        if self.flows.len() <= 2 * self.active.len() + IDLE_FLOWS_SLACK {
            return;
        }
        let least = self.least();
        self.flows.retain(|_, flow| !flow.is_forgettable(least));
    }

    fn pop(
        &mut self,
        cost: impl Fn(&JobId) -> FlowCost,
        preferred: Option<&str>,
    ) -> Option<(Arc<str>, JobId)> {
        let (least, first) = self.active.first()?;
        let lag = least.saturating_add(AFFINITY_LAG.0 * 1000);
        let preferred = preferred.and_then(|name| self.flows.get_key_value(name));
        let preferred = preferred.filter(|(_, flow)| !flow.jobs.is_empty() && flow.time <= lag);
        let name = preferred.map_or_else(|| Arc::clone(first), |(name, _)| Arc::clone(name));
        let flow = self.flows.get_mut(&name)?;
        let (_, job) = flow.jobs.pop_first()?;
        self.len -= 1;
        let place = (flow.time, Arc::clone(&name));
        self.active.remove(&place);
        if flow.fresh_from.take().is_some() {
            self.fresh.remove(&place);
        }
        self.now = self.now.max(flow.time);
        flow.time = flow.time.saturating_add(cost(&job).step());
        flow.charged = flow.charged.saturating_add(1);
        if !flow.jobs.is_empty() {
            self.active.insert((flow.time, Arc::clone(&name)));
        }
        Some((name, job))
    }

    fn remove(&mut self, name: &str, place: u64) -> bool {
        let Some(flow) = self.flows.get_mut(name) else {
            return false;
        };
        let is_found = flow.jobs.remove(&place).is_some();
        if is_found {
            self.len -= 1;
            if flow.jobs.is_empty() {
                let place = (flow.time, name.into());
                self.active.remove(&place);
                if flow.fresh_from.take().is_some() {
                    self.fresh.remove(&place);
                }
            }
        }
        is_found
    }

    /// Moves a flow by the difference between the actual and the expected cost of one of its jobs.
    fn correct(&mut self, name: &str, expected: FlowCost, actual: FlowCost) {
        let Some(flow) = self.flows.get_mut(name) else {
            return;
        };
        flow.charged = flow.charged.saturating_sub(1);
        let was = flow.time;
        let used = was.saturating_sub(expected.step());
        flow.time = used.saturating_add(actual.step());
        let mut place = (was, Arc::from(name));
        if self.active.remove(&place) {
            let is_fresh = self.fresh.remove(&place);
            place.0 = flow.time;
            if is_fresh {
                self.fresh.insert(place.clone());
            }
            self.active.insert(place);
            if flow.time < was {
                let (least, step) = (flow.time, actual.step());
                self.bring_fresh_after(least, step);
            }
        }
    }

    /// Moves flows that still wait for their first turn to one step behind a flow that has got time back.
    ///
    /// Places of such flows were reckoned from a charge that was too high. Where they stayed, the flow that was charged would
    /// be served before them until it had used that charge up.
    fn bring_fresh_after(&mut self, time: u64, step: u64) {
        let entry = time.saturating_add(step);
        if self.least() < time {
            return;
        }
        let later = self.fresh.range((entry.saturating_add(1), Arc::from(""))..);
        let later: Vec<_> = later.take(FRESH_MOVED_MAX).cloned().collect();
        for place in later {
            let Some(flow) = self.flows.get_mut(&place.1) else {
                continue;
            };
            let moved = flow
                .fresh_from
                .unwrap_or(flow.time)
                .max(entry)
                .min(flow.time);
            flow.time = moved;
            self.active.remove(&place);
            self.fresh.remove(&place);
            self.active.insert((moved, Arc::clone(&place.1)));
            self.fresh.insert((moved, place.1));
        }
    }
}

/// Place of a queued job, by which it is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePlace {
    /// Class it is queued in.
    pub class: JobClass,
    /// Place in its flow; unique in the schedule.
    pub place: u64,
}

/// Queued jobs of one deployable.
#[derive(Debug, Default)]
pub struct Schedule {
    classes: [ClassQueue; 4],
    /// Next place in arrival.
    next_place: u64,
}

impl Schedule {
    /// Queues a job at the end of its flow.
    pub fn push(
        &mut self,
        class: JobClass,
        flow: &Arc<str>,
        job: JobId,
        cost: FlowCost,
    ) -> QueuePlace {
        let place = self.next_place;
        self.next_place += 1;
        self.classes[class as usize].push(flow, place, job, cost);
        QueuePlace { class, place }
    }

    /// Takes the next job: the first class in `order` that has one, and its least served flow, or the preferred one
    /// while its lead is small. `cost` returns the expected cost of a job.
    pub fn pop(
        &mut self,
        order: [JobClass; 4],
        preferred: Option<&str>,
        cost: impl Fn(&JobId) -> FlowCost,
    ) -> Option<(JobClass, Arc<str>, JobId)> {
        for class in order {
            if let Some((flow, job)) = self.classes[class as usize].pop(&cost, preferred) {
                return Some((class, flow, job));
            }
        }
        None
    }

    /// Removes a queued job. Returns false when it is not queued there.
    pub fn remove(&mut self, flow: &str, place: &QueuePlace) -> bool {
        self.classes[place.class as usize].remove(flow, place.place)
    }

    /// Returns the place of a queued job among those that wait, from 1 on, as classes and flows of equal weight have their
    /// turns. Others may still come before it. Visits every flow of its class and the jobs before it in its own.
    pub fn position(&self, flow: &str, place: &QueuePlace) -> Option<usize> {
        let class = &self.classes[place.class as usize];
        let own = class.flows.get(flow)?;
        let ahead = own.jobs.range(..place.place).count();
        let others = class.flows.iter().filter(|(name, _)| ***name != *flow);
        let before = others.map(|(name, other)| {
            // A flow that is served first in a round has one turn more.
            let turns = ahead + usize::from((other.time, &**name) < (own.time, flow));
            other.jobs.len().min(turns)
        });
        let classes = JobClass::ALL.iter().take_while(|it| **it != place.class);
        let in_classes: usize = classes.map(|class| self.len_of(*class)).sum();
        Some(in_classes + ahead + before.sum::<usize>() + 1)
    }

    /// Corrects the charge of a job that was taken, once, when its run is over. Until then its flow is remembered.
    pub fn correct(&mut self, class: JobClass, flow: &str, expected: FlowCost, actual: FlowCost) {
        self.classes[class as usize].correct(flow, expected, actual);
    }

    /// Queued jobs of a class.
    pub fn len_of(&self, class: JobClass) -> usize {
        self.classes[class as usize].len
    }

    /// Queued jobs of a flow, over all classes.
    pub fn len_of_flow(&self, flow: &str) -> usize {
        let flows = self
            .classes
            .iter()
            .filter_map(|class| class.flows.get(flow));
        flows.map(|flow| flow.jobs.len()).sum()
    }

    /// Queued jobs.
    pub fn len(&self) -> usize {
        self.classes.iter().map(|class| class.len).sum()
    }

    /// Returns whether no job is queued.
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.len == 0)
    }

    /// Asserts that counts, flows and their order agree: for tests.
    pub fn check(&self) {
        for class in &self.classes {
            let jobs: usize = class.flows.values().map(|flow| flow.jobs.len()).sum();
            assert_eq!(jobs, class.len, "the queued jobs of a class are counted");
            let active = class.flows.iter().filter(|(_, flow)| !flow.jobs.is_empty());
            let active: BTreeSet<_> = active
                .map(|(name, flow)| (flow.time, Arc::clone(name)))
                .collect();
            assert_eq!(active, class.active, "flows with jobs are in order");
            let fresh = active
                .into_iter()
                .filter(|(_, name)| class.flows[name].fresh_from.is_some());
            let fresh: BTreeSet<_> = fresh.collect();
            assert_eq!(fresh, class.fresh, "flows without a turn are known");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: FlowCost = FlowCost {
        expected_ms: 1000,
        weight: 1,
    };

    fn id(n: u64) -> JobId {
        JobId::from_random(None, u128::from(n).to_be_bytes())
    }

    #[test]
    fn each_class_is_first_in_one_of_32_takes_and_batch_in_no_more() {
        for class in JobClass::ALL {
            let firsts = (0..32).filter(|turn| JobClass::order(*turn)[0] == class);
            let count = firsts.count();
            assert!(count >= 1, "{}", class.name());
            assert!(class != JobClass::Batch || count == 1);
        }
        for turn in 0..32 {
            let mut order = JobClass::order(turn);
            order.sort();
            assert_eq!(order, JobClass::ALL);
        }
    }

    #[test]
    fn positions_are_in_rounds_of_the_flows_behind_the_classes_before() {
        let mut schedule = Schedule::default();
        let flows = ["a", "a", "a", "b", "b", "c"].map(Arc::from);
        let places: Vec<_> = flows
            .iter()
            .zip(0..)
            .map(|(flow, n)| schedule.push(JobClass::Normal, flow, id(n), SECOND))
            .collect();
        let positions = |schedule: &Schedule| -> Vec<usize> {
            let found = flows.iter().zip(&places);
            found
                .map(|(flow, place)| schedule.position(flow, place).unwrap())
                .collect()
        };
        assert_eq!(positions(&schedule), [1, 4, 6, 2, 5, 3]);
        schedule.push(JobClass::Interactive, &"d".into(), id(9), SECOND);
        schedule.push(JobClass::Batch, &"d".into(), id(10), SECOND);
        assert_eq!(positions(&schedule), [2, 5, 7, 3, 6, 4]);
        assert_eq!(schedule.position("x", &places[0]), None);
    }

    #[test]
    fn a_flow_is_charged_for_a_long_job_however_many_others_came_meanwhile() {
        let mut schedule = Schedule::default();
        let order = JobClass::order(1);
        let mut next = 0;
        let mut push = |schedule: &mut Schedule, flow: &str| {
            next += 1;
            schedule.push(JobClass::Normal, &flow.into(), id(next), SECOND);
        };
        push(&mut schedule, "a-long");
        schedule.pop(order, None, |_| SECOND);
        for n in 0..500 {
            push(&mut schedule, &format!("short-{n}"));
            schedule.pop(order, None, |_| SECOND);
            schedule.correct(JobClass::Normal, &format!("short-{n}"), SECOND, SECOND);
        }
        let hour = FlowCost {
            expected_ms: 3_600_000,
            weight: 1,
        };
        schedule.correct(JobClass::Normal, "a-long", SECOND, hour);
        for flow in ["new", "new", "new", "a-long"] {
            push(&mut schedule, flow);
        }
        for expected in ["new", "new", "new", "a-long"] {
            let (_, flow, _) = schedule.pop(order, None, |_| SECOND).unwrap();
            assert_eq!(&*flow, expected);
        }
        schedule.check();
    }
    #[test]
    fn a_flow_that_comes_while_charges_are_too_high_has_its_turn_after_one_job() {
        let mut schedule = Schedule::default();
        let order = JobClass::order(1);
        for number in 0..100 {
            schedule.push(JobClass::Normal, &"big".into(), id(number), SECOND);
        }
        for _ in 0..8 {
            schedule.pop(order, None, |_| SECOND);
        }
        for number in 0..4 {
            schedule.push(
                JobClass::Normal,
                &format!("s{number}").into(),
                id(200 + number),
                SECOND,
            );
        }
        let actual = FlowCost {
            expected_ms: 100,
            weight: 1,
        };
        for _ in 0..8 {
            schedule.correct(JobClass::Normal, "big", SECOND, actual);
            schedule.check();
        }
        let served: Vec<_> = (0..6)
            .map(|_| schedule.pop(order, None, |_| actual).unwrap().1)
            .collect();
        let turns = served.iter().filter(|flow| &***flow == "big").count();
        assert!(turns <= 2, "{served:?}");
        schedule.check();
    }

    #[test]
    fn a_flow_pays_its_own_debt_before_it_is_moved_nearer() {
        let mut schedule = Schedule::default();
        let order = JobClass::order(1);
        schedule.push(JobClass::Normal, &"debtor".into(), id(1), SECOND);
        schedule.pop(order, None, |_| SECOND);
        let long = FlowCost {
            expected_ms: 60_000,
            weight: 1,
        };
        schedule.correct(JobClass::Normal, "debtor", SECOND, long);
        for number in 2..100 {
            schedule.push(JobClass::Normal, &"big".into(), id(number), SECOND);
        }
        schedule.pop(order, None, |_| SECOND);
        schedule.push(JobClass::Normal, &"debtor".into(), id(200), SECOND);
        let short = FlowCost {
            expected_ms: 10,
            weight: 1,
        };
        schedule.correct(JobClass::Normal, "big", SECOND, short);
        for _ in 0..50 {
            let (_, flow, _) = schedule.pop(order, None, |_| SECOND).unwrap();
            assert_eq!(&*flow, "big");
        }
        schedule.check();
    }
}
