//! Properties of the schedule over a million events: shares, rounds, classes, affinity.
//!
//! No store and no workers: permits are numbers here, and a job's hold is drawn.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::job::{
    AFFINITY_LAG, FlowCost, HoldEstimator, JobClass, JobId, QueuePlace, Schedule, StoreTime,
};

use super::shares::jain;

/// Pushes, takes and corrections of one run.
const EVENTS: u64 = 1_000_000;

/// Flow of a run.
struct FlowShape {
    name: Arc<str>,
    /// Mean hold of its jobs, milliseconds.
    hold_ms: u64,
    weight: u32,
    /// Jobs queued at all times; 0: one job at a time, queued or running.
    backlog: usize,
}

impl FlowShape {
    fn new(n: usize, hold_ms: u64, weight: u32, backlog: usize) -> FlowShape {
        let name = format!("flow-{n:03}").into();
        FlowShape {
            name,
            hold_ms,
            weight,
            backlog,
        }
    }
}

/// Job that has a permit.
struct HeldPermit {
    flow: usize,
    expected: FlowCost,
    actual: FlowCost,
}

/// Permits that take from one schedule.
struct PermitRun {
    rng: Rng,
    schedule: Schedule,
    flows: Vec<FlowShape>,
    /// Flow of each queued job.
    queued: HashMap<JobId, usize>,
    permits: usize,
    holds: HoldEstimator,
    now_ms: u64,
    running: BTreeMap<(u64, u64), HeldPermit>,
    /// Takes so far, and at the latest push of each flow with one job at a time.
    takes: u64,
    pushed_at: Vec<u64>,
    next_job: u64,
    events: u64,
    /// Permit time of each flow over its weight.
    used: Vec<f64>,
    /// Longest wait of each flow with one job at a time, in takes.
    waited: Vec<u64>,
}

impl PermitRun {
    fn new(seed: u64, permits: usize, flows: Vec<FlowShape>) -> PermitRun {
        let count = flows.len();
        let mut run = PermitRun {
            rng: Rng::with_seed(seed),
            schedule: Schedule::default(),
            flows,
            queued: HashMap::new(),
            permits,
            holds: HoldEstimator::default(),
            now_ms: 0,
            running: BTreeMap::new(),
            takes: 0,
            pushed_at: vec![0; count],
            next_job: 0,
            events: 0,
            used: vec![0.0; count],
            waited: vec![0; count],
        };
        for flow in 0..count {
            for _ in 0..run.flows[flow].backlog.max(1) {
                run.push(flow);
            }
        }
        run
    }

    fn cost(&self, flow: usize) -> FlowCost {
        FlowCost {
            expected_ms: self.holds.expected().0,
            weight: self.flows[flow].weight,
        }
    }

    fn push(&mut self, flow: usize) {
        let job = JobId::from_random(None, u128::from(self.next_job).to_be_bytes());
        self.next_job += 1;
        let cost = self.cost(flow);
        let name = Arc::clone(&self.flows[flow].name);
        self.schedule.push(JobClass::Normal, &name, job, cost);
        self.queued.insert(job, flow);
        self.pushed_at[flow] = self.takes;
        self.events += 1;
    }

    /// Fills the permits, and ends the job that ends first.
    fn step(&mut self) {
        while self.running.len() < self.permits {
            let expected_ms = self.holds.expected().0;
            let (queued, flows) = (&self.queued, &self.flows);
            let cost = |job: &JobId| FlowCost {
                expected_ms,
                weight: flows[queued[job]].weight,
            };
            let Some((_, _, job)) = self.schedule.pop(JobClass::order(1), None, cost) else {
                break;
            };
            self.begin(&job);
        }
        self.end_first();
        if self.events % 4096 < 3 {
            self.schedule.check();
        }
    }

    fn begin(&mut self, job: &JobId) {
        let flow = self.queued.remove(job).expect("taken jobs were queued");
        let shape = &self.flows[flow];
        let hold = shape.hold_ms * self.rng.u64(70..=130) / 100;
        let (expected, backlog) = (self.cost(flow), shape.backlog);
        let held = HeldPermit {
            flow,
            expected,
            actual: FlowCost {
                expected_ms: hold,
                weight: shape.weight,
            },
        };
        self.used[flow] += hold as f64 / f64::from(shape.weight);
        self.takes += 1;
        self.events += 1;
        self.running.insert((self.now_ms + hold, self.takes), held);
        match backlog {
            0 => {
                let waited = self.takes - self.pushed_at[flow];
                self.waited[flow] = self.waited[flow].max(waited);
            }
            _ => self.push(flow),
        }
    }

    fn end_first(&mut self) {
        let ((at, _), held) = self.running.pop_first().expect("permits are in use");
        self.now_ms = at;
        self.events += 1;
        let hold = infergate_core::Millis(held.actual.expected_ms);
        self.holds.record(hold, StoreTime(at));
        let name = Arc::clone(&self.flows[held.flow].name);
        self.schedule
            .correct(JobClass::Normal, &name, held.expected, held.actual);
        if self.flows[held.flow].backlog == 0 {
            self.push(held.flow);
        }
    }

    /// Runs for so many events. Returns what each flow has used meanwhile, over its weight.
    fn run(&mut self, events: u64) -> Vec<f64> {
        self.used.fill(0.0);
        let end = self.events + events;
        while self.events < end {
            self.step();
        }
        self.used.clone()
    }
}

#[test]
fn backlogged_flows_share_permit_time_by_weight_with_jobs_of_1_to_10() {
    let flows = (0..20).map(|n| {
        let weight = 1 + (n % 3) as u32;
        FlowShape::new(n, 100 + 900 * n as u64 / 19, weight, 3)
    });
    let mut run = PermitRun::new(1, 8, flows.collect());
    run.run(20_000);
    for _ in 0..20 {
        let used = run.run(EVENTS / 20);
        assert!(jain(&used) >= 0.95, "{} of {used:?}", jain(&used));
    }
}

#[test]
fn a_sender_of_one_job_at_a_time_starts_within_two_rounds_of_twenty_backlogged_flows() {
    for permits in [1, 4, 16] {
        let others = (0..20).map(|n| FlowShape::new(n, 500, 1, 3));
        let single = FlowShape::new(20, 500, 1, 0);
        let mut run = PermitRun::new(2, permits, others.chain([single]).collect());
        let used = run.run(EVENTS / 3);
        assert!(run.waited[20] <= 2 * 21, "{} takes", run.waited[20]);
        // One turn a round, and no more: also no credit for the time between two jobs.
        let share = used[20] / used.iter().sum::<f64>();
        assert!((0.5 / 21.0..1.1 / 21.0).contains(&share), "{share}");
    }
}

#[test]
fn twenty_small_senders_start_within_two_rounds_beside_ten_thousand_jobs_of_another() {
    let small = (1..21).map(|n| FlowShape::new(n, 300, 1, 0));
    let large = FlowShape::new(0, 3_000, 1, 10_000);
    let mut run = PermitRun::new(3, 4, [large].into_iter().chain(small).collect());
    run.run(EVENTS);
    let longest = run.waited.iter().max();
    assert!(longest <= Some(&(2 * 21)), "{longest:?} takes");
}

#[test]
fn every_waiting_class_has_one_of_32_takes_and_batch_no_more_while_others_wait() {
    const COST: FlowCost = FlowCost {
        expected_ms: 1000,
        weight: 1,
    };
    let mut rng = Rng::with_seed(4);
    let mut schedule = Schedule::default();
    // Takes since each class was served or empty.
    let mut passed_over = [0; 4];
    let (mut turn, mut batch_while_others_wait) = (0, 0);
    for n in 0..EVENTS / 2 {
        let class = JobClass::ALL[rng.usize(0..4)];
        let flow = ["a", "b", "c"][rng.usize(0..3)].into();
        let job = JobId::from_random(None, u128::from(n).to_be_bytes());
        schedule.push(class, &flow, job, COST);
        // Phases in which the queue grows, and others in which it is used up.
        let takes = match n / 1000 % 4 {
            0 => 0,
            _ => 1 + u32::from(rng.u32(0..3) == 0),
        };
        for _ in 0..takes {
            let waiting = JobClass::ALL.map(|class| schedule.len_of(class));
            let taken = schedule.pop(JobClass::order(turn), None, |_| COST);
            let Some((taken, ..)) = taken else { continue };
            turn += 1;
            let others: usize = waiting[..3].iter().sum();
            batch_while_others_wait += u32::from(taken == JobClass::Batch && others > 0);
            for class in JobClass::ALL {
                let passed = &mut passed_over[class as usize];
                *passed = match class == taken || waiting[class as usize] == 0 {
                    true => 0,
                    false => *passed + 1,
                };
                assert!(*passed < 32, "{} waits for {passed} takes", class.name());
            }
        }
        if n % 4096 == 0 {
            schedule.check();
        }
    }
    assert!(batch_while_others_wait <= turn / 32 + 1);
    assert!(u64::from(turn) > EVENTS / 4);
}

#[test]
fn a_preferred_flow_is_ahead_by_the_lag_and_one_job_at_most() {
    let mut rng = Rng::with_seed(5);
    let mut schedule = Schedule::default();
    let names: Vec<Arc<str>> = (0..5).map(|n| format!("m{n}").into()).collect();
    let mut served = [0_u64; 5];
    let push = |schedule: &mut Schedule, flow: usize, job: u64| {
        let cost = FlowCost {
            expected_ms: 2_000,
            weight: 1,
        };
        let id = JobId::from_random(None, u128::from(job).to_be_bytes());
        schedule.push(JobClass::Normal, &names[flow], id, cost);
    };
    for flow in 0..5 {
        push(&mut schedule, flow, flow as u64);
        push(&mut schedule, flow, 5 + flow as u64);
    }
    let (mut preferred, mut kept) = (0, 0_u64);
    for n in 0..EVENTS / 2 {
        if rng.u32(0..200) == 0 {
            preferred = rng.usize(0..5);
        }
        let cost = FlowCost {
            expected_ms: rng.u64(100..4_000),
            weight: 1,
        };
        let order = JobClass::order(1);
        let taken = schedule.pop(order, Some(&names[preferred]), |_| cost);
        let (_, name, _) = taken.expect("all flows are backlogged");
        let flow = names
            .iter()
            .position(|known| *known == name)
            .expect("known");
        kept += u64::from(flow == preferred);
        served[flow] += cost.expected_ms;
        push(&mut schedule, flow, 10 + n);
        let ahead = served[flow] - served.iter().min().expect("five flows");
        // The first entries differ by a quantum of two seconds for each flow that was there.
        assert!(ahead <= AFFINITY_LAG.0 + 4_000 + 10_000, "{ahead} ms ahead");
    }
    // Of 200 takes about 15 s of lead are for the preferred one, and its own share.
    assert!(kept > EVENTS / 2 / 5, "{kept} takes kept their weights");
}

#[test]
fn random_verbs_lose_and_repeat_no_job() {
    let mut rng = Rng::with_seed(6);
    let mut schedule = Schedule::default();
    let mut queued: HashMap<JobId, (Arc<str>, QueuePlace)> = HashMap::new();
    let mut ids: Vec<JobId> = Vec::new();
    let names: Vec<Arc<str>> = (0..300).map(|n| format!("f{n}").into()).collect();
    let cost = |ms| FlowCost {
        expected_ms: ms,
        weight: 3,
    };
    for n in 0..EVENTS {
        // Phases that fill the queue, and others that empty it.
        let pushes = [30, 60][(n / 20_000 % 2) as usize];
        match rng.u32(0..100) {
            percent if percent < pushes => {
                let id = JobId::from_random(None, u128::from(n).to_be_bytes());
                let name = &names[rng.usize(0..names.len())];
                let class = JobClass::ALL[rng.usize(0..4)];
                let place = schedule.push(class, name, id, cost(1000));
                queued.insert(id, (Arc::clone(name), place));
                ids.push(id);
            }
            percent if percent < 85 => {
                let preferred = &names[rng.usize(0..names.len())];
                let order = JobClass::order(rng.u32(..));
                if let Some((class, name, id)) =
                    schedule.pop(order, Some(preferred), |_| cost(1000))
                {
                    let (flow, place) = queued.remove(&id).expect("a job is taken once");
                    assert!(flow == name && place.class == class);
                    let actual = cost(rng.u64(0..10_000));
                    schedule.correct(class, &name, cost(1000), actual);
                }
            }
            _ if !ids.is_empty() => {
                let id = ids.swap_remove(rng.usize(0..ids.len()));
                if let Some((name, place)) = queued.remove(&id) {
                    assert!(schedule.remove(&name, &place));
                    assert!(!schedule.remove(&name, &place));
                }
            }
            _ => {}
        }
        assert_eq!(schedule.len(), queued.len());
        if n % 4096 == 0 {
            schedule.check();
        }
    }
}
