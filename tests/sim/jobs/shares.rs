//! Shares of permit time between accounts, through the simulated store: what the charge at a job's end is for.
//!
//! Not the schedule alone: the table measures the holds here. Workers neither die nor lose messages.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::job::{
    HeldJobs, JobClass, JobDefinition, JobId, JobKind, JobLimits, JobState, NewJob, QueueLimits,
    RunEnd, StoreTime, TakeRequest, TakenJob, WorkerId,
};
use infergate_core::model::{FairBy, FlowMode};

use super::ledger::Broken;
use super::store::{PlantedFault, SimJobStore, StoreCall, StoreReply};

/// Accounts with the hold of their jobs, milliseconds: one has jobs ten times as long.
const ACCOUNTS: [(&str, u64); 5] = [
    ("ant", 200),
    ("bee", 200),
    ("cat", 200),
    ("dog", 200),
    ("elk", 2_000),
];
/// Queued jobs of each account at all times.
const BACKLOG: usize = 20;
const PERMITS: usize = 8;
/// Jobs that end before shares are counted, and while they are.
const JOBS: (u32, u32) = (500, 5_000);
const BEGIN: StoreTime = StoreTime(1_800_000_000_000);

/// Index of fairness of shares: 1 for equal ones, one over their number when one has all
/// (<https://arxiv.org/abs/cs/9809099>).
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Backlogged accounts and one worker.
struct BackloggedStore {
    store: SimJobStore,
    worker: WorkerId,
    rng: Rng,
    now: StoreTime,
    running: BTreeMap<(StoreTime, JobId), (TakenJob, Millis)>,
    next_job: u64,
    turn: u32,
    used: BTreeMap<Arc<str>, f64>,
}

impl BackloggedStore {
    fn new(seed: u64, fault: Option<PlantedFault>) -> BackloggedStore {
        let mut backlogged = BackloggedStore {
            store: SimJobStore::new(fault),
            worker: WorkerId::new("n", 1),
            rng: Rng::with_seed(seed),
            now: BEGIN,
            running: BTreeMap::new(),
            next_job: 0,
            turn: 1,
            used: BTreeMap::new(),
        };
        let heartbeat = StoreCall::Heartbeat {
            sent: Millis::ZERO,
            held: HeldJobs::default(),
            node_clock: BEGIN,
        };
        backlogged.call(heartbeat);
        for _ in 0..BACKLOG {
            for (account, _) in ACCOUNTS {
                backlogged.submit(account);
            }
        }
        backlogged
    }

    fn call(&mut self, call: StoreCall) -> StoreReply {
        self.store.call(Some(&self.worker), call, self.now)
    }

    fn submit(&mut self, account: &str) {
        self.next_job += 1;
        let day = Millis::from_secs(86_400);
        let definition = JobDefinition {
            id: JobId::from_random(None, u128::from(self.next_job).to_be_bytes()),
            kind: JobKind::Prediction,
            deployable: "vp-a".into(),
            account: account.into(),
            model: "m".into(),
            flow: "".into(),
            class: JobClass::Normal,
            weight: 1,
            fair_by: FairBy::Time,
            created: self.now,
            limits: JobLimits {
                deadline: None,
                lifetime: self.now + day,
                run_timeout_ms: day.0,
            },
            start_until: self.now + day,
            attempts_max: 3,
            cancel_grace_ms: 1000,
            bytes: 1,
            has_webhook: false,
        };
        let job = NewJob {
            definition,
            flows: FlowMode::Account,
            limits: QueueLimits {
                queue_max: u32::MAX,
                queue_max_per_account: u32::MAX,
                bytes_max: u64::MAX,
            },
        };
        self.call(StoreCall::Submit(Box::new(job)));
    }

    fn take(&mut self) {
        let request = TakeRequest {
            deployable: "vp-a".into(),
            count: PERMITS - self.running.len(),
            turn: self.turn,
            preferred_flow: None,
        };
        self.turn += 1;
        let sequence = u64::from(self.turn);
        let reply = self.call(StoreCall::Take { sequence, request });
        let StoreReply::Taken { taken, .. } = reply else {
            return;
        };
        for taken in taken {
            let account = Arc::from(taken.definition.account.as_str());
            let mean = ACCOUNTS.iter().find(|(name, _)| **name == *account);
            let mean = mean.map_or(0, |(_, hold)| *hold);
            let hold = Millis(mean * self.rng.u64(70..=130) / 100);
            self.submit(&account);
            let key = (self.now + hold, taken.definition.id);
            self.running.insert(key, (taken, hold));
        }
    }

    /// Runs until so many jobs have ended.
    fn run(&mut self, jobs: u32) {
        for _ in 0..jobs {
            self.take();
            let Some(((at, id), (taken, hold))) = self.running.pop_first() else {
                return;
            };
            self.now = at;
            let account = Arc::from(taken.definition.account.as_str());
            *self.used.entry(account).or_default() += hold.0 as f64;
            self.call(StoreCall::Finish(RunEnd {
                id,
                epoch: taken.progress.epoch,
                state: JobState::Succeeded,
                reason: None,
            }));
            self.store.commit(Millis(self.now.0 - BEGIN.0));
        }
    }
}

/// Returns a broken promise of the shares of one seed.
fn share(seed: u64, fault: Option<PlantedFault>) -> Result<(), Broken> {
    let mut backlogged = BackloggedStore::new(seed, fault);
    backlogged.run(JOBS.0);
    backlogged.used.clear();
    backlogged.run(JOBS.1);
    let used: Vec<f64> = backlogged.used.values().copied().collect();
    match used.len() == ACCOUNTS.len() && jain(&used) >= 0.9 {
        true => Ok(()),
        false => Err(format!("shares of permit time: {used:?}")),
    }
}

#[test]
fn backlogged_accounts_get_equal_permit_time_with_jobs_ten_times_as_long() {
    for seed in 0..20 {
        let shared = share(seed, None);
        assert_eq!(shared, Ok(()), "seed {seed}");
    }
}

#[test]
fn a_charge_that_is_forgotten_is_found() {
    let broken = share(0, Some(PlantedFault::ChargeForgotten)).unwrap_err();
    assert!(broken.contains("shares of permit time"), "{broken}");
}
