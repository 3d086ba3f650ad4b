//! World of the simulated jobs: its clock and events, API nodes, and the run of one seed.
//!
//! Messages are in `network.rs`, faults in `chaos.rs`, maintenance and the outbox in `duties.rs`. Time here is the
//! true one; the store's clock is it with an offset that jumps.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::job::{
    DeployableKey, JobClass, JobDefinition, JobId, JobKind, JobLimits, NewJob, QueueLimits,
    StoreTime, WorkerId,
};
use infergate_core::model::{FairBy, FlowMode};

use super::duties::{SimDeliverer, SimSweeper};
use super::ledger::{Broken, JobsLedger};
use super::network::{JobsCaller, JobsNet};
use super::store::{PlantedFault, SimJobStore, StoreCall, StoreReply};
use super::worker::{SimJobWorker, TICK};

/// Store's time when the simulation begins.
const STORE_BEGIN: u64 = 1_800_000_000_000;
/// Time after the last fault in which everything must end.
const QUIET_WITHIN: Millis = Millis::from_secs(900);
/// Deployables of the world. The second loses its model in some runs.
pub const DEPLOYABLES: [&str; 2] = ["vp-a", "vp-b"];
const ACCOUNTS: [&str; 4] = ["ant", "bee", "cat", "dog"];

/// Something that happens at a moment.
pub enum JobsEvent {
    /// An API node sends a submit, or repeats it.
    Submit(usize),
    Cancel(usize),
    Tick {
        worker: usize,
        generation: u64,
    },
    Restart(usize),
    AtStore(JobsCaller, StoreCall),
    AtCaller(JobsCaller, StoreReply),
    Commit,
    Sweep(usize),
    Deliver(usize),
    Fault,
    StoreBack {
        /// Moment whose later commits are lost.
        lose_after: Option<Millis>,
    },
    Heal,
}

/// Job of a client, as its API node knows it.
pub struct ClientJob {
    pub new: NewJob,
    pub first_sent: Option<Millis>,
    pub is_answered: bool,
}

pub struct JobsWorld {
    pub rng: Rng,
    pub now: Millis,
    pub store_offset: i64,
    /// Largest offset so far.
    pub latest_offset: i64,
    /// Moment before which the store's clock does not jump again.
    pub next_jump: Millis,
    pub events: BTreeMap<(Millis, u64), JobsEvent>,
    next_event: u64,
    pub store: SimJobStore,
    pub store_is_up: bool,
    /// Replies that wait for the commit.
    pub replies: Vec<(JobsCaller, StoreReply)>,
    pub commit_is_set: bool,
    pub net: JobsNet,
    pub workers: Vec<SimJobWorker>,
    pub next_worker: u32,
    pub jobs: Vec<ClientJob>,
    pub sweepers: Vec<SimSweeper>,
    pub deliverers: Vec<SimDeliverer>,
    pub ledger: JobsLedger,
    pub is_healed: bool,
    /// Runs that may be repeated because the store's clock jumped under a take, or the store lost writes.
    pub excused: u64,
    /// Failovers that lose commits are among the faults.
    pub may_lose: bool,
    pub steps: u64,
}

impl JobsWorld {
    pub fn new(mut rng: Rng, fault: Option<PlantedFault>) -> JobsWorld {
        let workers = rng.u32(1..=20).min(rng.u32(1..=20));
        let mut world = JobsWorld {
            now: Millis::from_secs(1),
            store_offset: 0,
            latest_offset: 0,
            next_jump: Millis::ZERO,
            events: BTreeMap::new(),
            next_event: 0,
            store: SimJobStore::new(fault),
            store_is_up: true,
            replies: Vec::new(),
            commit_is_set: false,
            net: JobsNet::drawn(&mut rng),
            workers: Vec::new(),
            next_worker: 0,
            jobs: Vec::new(),
            sweepers: vec![SimSweeper::new(), SimSweeper::new()],
            deliverers: vec![SimDeliverer::default(), SimDeliverer::default()],
            ledger: JobsLedger::default(),
            is_healed: false,
            excused: 0,
            may_lose: rng.u32(0..4) == 0,
            steps: 0,
            rng,
        };
        for _ in 0..workers {
            world.add_worker();
        }
        world.plan();
        world
    }

    fn add_worker(&mut self) {
        let id = self.new_worker_id(self.workers.len());
        let permits = 1 << self.rng.u32(0..4);
        let mut deployables: Vec<DeployableKey> = DEPLOYABLES.map(DeployableKey::from).into();
        // The first serves everything, so that no queue is without a worker.
        if !self.workers.is_empty() && self.rng.u32(0..3) == 0 {
            deployables.swap_remove(self.rng.usize(0..2));
        }
        let worker = SimJobWorker::new(id, permits, deployables, &mut self.rng);
        self.workers.push(worker);
    }

    pub fn new_worker_id(&mut self, node: usize) -> WorkerId {
        self.next_worker += 1;
        WorkerId::new(&format!("n{node}"), self.next_worker)
    }

    /// Plans submits, cancels, faults and the end of the disorder.
    fn plan(&mut self) {
        let span = self.rng.u64(10_000..120_000);
        let count = self.rng.usize(5..60);
        let limits = QueueLimits {
            queue_max: 1000,
            queue_max_per_account: [4, 1000][self.rng.usize(0..2)],
            bytes_max: 1_000_000,
        };
        let flows = [
            FlowMode::Account,
            FlowMode::Model,
            FlowMode::Shards { shards: 4, hand: 2 },
        ];
        let flows = flows[self.rng.usize(0..3)];
        for n in 0..count {
            let at = Millis(self.rng.u64(1_000..span));
            let definition = self.definition(n);
            self.jobs.push(ClientJob {
                new: NewJob {
                    definition,
                    flows,
                    limits,
                },
                first_sent: None,
                is_answered: false,
            });
            self.at(at, JobsEvent::Submit(n));
            if self.rng.u32(0..5) == 0 {
                let cancel = at + Millis(self.rng.u64(0..20_000));
                self.at(cancel, JobsEvent::Cancel(n));
            }
        }
        for _ in 0..self.rng.u32(0..20) {
            let at = Millis(self.rng.u64(1_000..span));
            self.at(at, JobsEvent::Fault);
        }
        for worker in 0..self.workers.len() {
            let at = self.now + Millis(self.rng.u64(0..TICK.0));
            let generation = 0;
            self.at(at, JobsEvent::Tick { worker, generation });
        }
        for n in 0..2 {
            self.at(self.now, JobsEvent::Sweep(n));
            self.at(self.now, JobsEvent::Deliver(n));
        }
        self.at(Millis(span), JobsEvent::Heal);
    }

    fn definition(&mut self, n: usize) -> JobDefinition {
        let created = StoreTime(STORE_BEGIN);
        let account = ACCOUNTS[self.rng.usize(0..ACCOUNTS.len())];
        let minute = 60_000;
        let has_deadline = self.rng.u32(0..6) == 0;
        let deadline = created + Millis(self.rng.u64(10_000..2 * minute));
        JobDefinition {
            id: JobId::from_random(None, u128::from(self.rng.u64(..)).to_be_bytes()),
            kind: JobKind::Prediction,
            deployable: DEPLOYABLES[self.rng.usize(0..2)].into(),
            account: account.into(),
            model: ["ant", "bee"][n % 2].into(),
            flow: Arc::from(""),
            class: JobClass::ALL[self.rng.usize(1..4)],
            weight: self.rng.u32(1..4),
            fair_by: [FairBy::Time, FairBy::Jobs][usize::from(self.rng.u32(0..8) == 0)],
            created,
            limits: JobLimits {
                deadline: has_deadline.then_some(deadline),
                lifetime: created + Millis(180 * minute),
                run_timeout_ms: self.rng.u64(20_000..100 * minute),
            },
            start_until: created + Millis(self.rng.u64(100..170) * minute),
            attempts_max: self.rng.u32(1..4),
            cancel_grace_ms: 10_000,
            bytes: self.rng.u64(100..2000),
            has_webhook: self.rng.u32(0..4) > 0,
        }
    }

    pub fn at(&mut self, at: Millis, event: JobsEvent) {
        self.next_event += 1;
        self.events.insert((at, self.next_event), event);
    }

    pub fn store_time(&self) -> StoreTime {
        StoreTime((STORE_BEGIN + self.now.0).saturating_add_signed(self.store_offset))
    }

    /// Runs until everything is quiet, and judges the whole.
    pub fn run(&mut self) -> Result<(), Broken> {
        let mut healed_at = None;
        while let Some(((at, _), event)) = self.events.pop_first() {
            self.now = at;
            self.steps += 1;
            self.handle(event)?;
            if !self.is_healed {
                continue;
            }
            let frozen = self.workers.iter().map(|worker| worker.frozen_until).max();
            let since = *healed_at.get_or_insert(self.now.max(frozen.unwrap_or_default()));
            if self.is_quiet() {
                return self.ledger.close(&self.store.kept, self.repeats_excused());
            }
            if self.now.since(since) > QUIET_WITHIN {
                let left = self.store.kept.live.values().next();
                return Err(format!("no quiet after the faults: {left:?}"));
            }
        }
        Err("nothing happens any more".into())
    }

    fn repeats_excused(&self) -> u64 {
        let given_back: u64 = self.workers.iter().map(|worker| worker.given_back).sum();
        given_back + self.excused
    }

    fn is_quiet(&self) -> bool {
        let is_sent = |job: &ClientJob| job.first_sent.is_some();
        self.store.kept.is_quiet()
            && self.store.table.is_empty()
            && !self.store.has_pending()
            && self.jobs.iter().all(is_sent)
            && !self
                .events
                .values()
                .any(|event| matches!(event, JobsEvent::Submit(_)))
    }

    fn handle(&mut self, event: JobsEvent) -> Result<(), Broken> {
        match event {
            JobsEvent::Submit(n) => self.submit(n),
            JobsEvent::Cancel(n) => {
                let id = self.jobs[n].new.definition.id;
                self.send(JobsCaller::Nobody, StoreCall::Cancel(id));
            }
            JobsEvent::Tick { worker, generation } => self.tick(worker, generation),
            JobsEvent::Restart(worker) => self.restart_worker(worker),
            JobsEvent::AtStore(caller, call) => self.at_store(caller, call),
            JobsEvent::AtCaller(caller, reply) => self.at_caller(caller, reply)?,
            JobsEvent::Commit => self.commit()?,
            JobsEvent::Sweep(n) => self.sweep(n)?,
            JobsEvent::Deliver(n) => self.deliver(n),
            JobsEvent::Fault => self.strike(),
            JobsEvent::StoreBack { lose_after } => self.store_back(lose_after)?,
            JobsEvent::Heal => self.heal(),
        }
        Ok(())
    }

    /// Sends a submit; repeats it by the same id until it is answered or a second is over.
    fn submit(&mut self, n: usize) {
        let (now, created) = (self.now, self.store_time());
        let job = &mut self.jobs[n];
        if job.is_answered {
            return;
        }
        if job.first_sent.is_none() {
            job.first_sent = Some(now);
            let definition = &mut job.new.definition;
            let later = created.since(definition.created);
            definition.created = created;
            definition.limits.lifetime = definition.limits.lifetime + later;
            definition.limits.deadline = definition.limits.deadline.map(|at| at + later);
            definition.start_until = definition.start_until + later;
        }
        if job
            .first_sent
            .is_some_and(|sent| now.since(sent) > Millis::from_secs(1))
        {
            return;
        }
        let call = StoreCall::Submit(Box::new(job.new.clone()));
        self.send(JobsCaller::Api(n), call);
        self.at(now + Millis(300), JobsEvent::Submit(n));
    }

    fn tick(&mut self, worker: usize, generation: u64) {
        let now = self.now;
        let actor = &mut self.workers[worker];
        if actor.generation != generation || !actor.is_up {
            return;
        }
        if actor.frozen_until > now {
            let thaw = actor.frozen_until;
            return self.at(thaw, JobsEvent::Tick { worker, generation });
        }
        let table = &self.store.table;
        let calls = actor.tick(now, |deployable| table.ready(deployable), &mut self.rng);
        let caller = JobsCaller::worker(worker, actor);
        for call in calls {
            self.send(caller.clone(), call);
        }
        let next = now + TICK + Millis(self.rng.u64(0..20));
        self.at(next, JobsEvent::Tick { worker, generation });
    }
}
