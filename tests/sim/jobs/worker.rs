//! Simulated worker of jobs: takes, runs, ends, heartbeats, and fences itself.
//!
//! No network and no clock: a tick returns the calls to send. Only [`HeldJobs`] and epochs tie it to the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use infergate_core::Millis;
use infergate_core::job::{
    DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobId, JobState, Release, ReleaseCause,
    RunEnd, StoreTime, TakeRequest, TakenJob, WorkerId, WriteResult,
};

use super::store::{LEASE, StoreCall, StoreReply};

/// Time between two ticks.
pub const TICK: Millis = Millis(250);
const HEARTBEAT: Millis = Millis(2_000);
/// Age of a take without a reply that is given up.
const TAKE_TIMEOUT: Millis = Millis(1_000);
/// Time after which a write without a reply is repeated.
const REPEAT_AFTER: Millis = Millis(500);
/// Time for which ends are kept to repeat them after a failover.
pub const ENDS_KEPT: Millis = Millis(10_000);

/// Result that a run comes to when nothing cuts it.
#[derive(Clone, Copy, Debug)]
enum RunPlan {
    Succeed,
    Fail(EndReason),
    GiveBack(ReleaseCause),
}

/// Job in work.
pub struct SimRun {
    pub taken: TakenJob,
    began: Millis,
    ends: Millis,
    plan: RunPlan,
}

/// End or release without a reply.
struct OpenWrite {
    call: StoreCall,
    /// Moment of the latest attempt.
    sent: Option<Millis>,
}

/// Take without a reply.
struct OpenTake {
    sent: Millis,
    store: StoreTime,
    count: usize,
}

/// End that was written lately.
pub struct RecentRunEnd {
    pub at: Millis,
    pub taken: TakenJob,
    pub end: RunEnd,
}

pub struct SimJobWorker {
    pub id: WorkerId,
    /// Incarnation: replies to an earlier one are dropped.
    pub generation: u64,
    pub is_up: bool,
    pub frozen_until: Millis,
    /// End of a partition from the store.
    pub cut_until: Millis,
    pub permits: usize,
    pub deployables: Vec<DeployableKey>,
    /// Writes at once after a freeze, before a heartbeat is answered.
    pub is_careless: bool,
    /// Own clock less the store's, milliseconds.
    pub skew_ms: i64,
    pub runs: BTreeMap<(JobId, u32), SimRun>,
    pub recent: Vec<RecentRunEnd>,
    /// Releases that were sent for the first time.
    pub given_back: u64,
    writes: BTreeMap<(JobId, u32), OpenWrite>,
    takes: BTreeMap<u64, OpenTake>,
    next_take: u64,
    /// Longest run, milliseconds.
    run_max: u64,
    is_registered: bool,
    /// Moment at which the latest answered heartbeat was sent.
    last_good: Millis,
    last_beat: Option<Millis>,
    /// Store's time as the latest reply has it, and when that came.
    store_clock: (StoreTime, Millis),
}

impl SimJobWorker {
    pub fn new(
        id: WorkerId,
        permits: usize,
        deployables: Vec<DeployableKey>,
        rng: &mut Rng,
    ) -> Self {
        let hour = 3_600_000;
        SimJobWorker {
            id,
            generation: 0,
            is_up: true,
            frozen_until: Millis::ZERO,
            cut_until: Millis::ZERO,
            permits,
            deployables,
            is_careless: rng.bool(),
            skew_ms: rng.i64(-hour..hour),
            runs: BTreeMap::new(),
            recent: Vec::new(),
            given_back: 0,
            writes: BTreeMap::new(),
            takes: BTreeMap::new(),
            next_take: 0,
            run_max: 1 << rng.u32(9..15),
            is_registered: false,
            last_good: Millis::ZERO,
            last_beat: None,
            store_clock: (StoreTime::default(), Millis::ZERO),
        }
    }

    /// Forgets everything and becomes a new incarnation. Returns the runs and ends that are lost by it.
    pub fn become_new(&mut self, id: WorkerId) -> u64 {
        let lost = self.runs.len() + self.writes.len();
        self.runs.clear();
        self.writes.clear();
        self.takes.clear();
        self.recent.clear();
        self.is_registered = false;
        self.last_beat = None;
        self.id = id;
        self.generation += 1;
        lost as u64
    }

    /// Acts: ends runs that are over, and returns the calls to send. `ready` counts the jobs of a deployable.
    pub fn tick(
        &mut self,
        now: Millis,
        ready: impl Fn(&DeployableKey) -> usize,
        rng: &mut Rng,
    ) -> Vec<StoreCall> {
        let mut calls = Vec::new();
        self.end_runs(now);
        self.recent
            .retain(|recent| now.since(recent.at) < ENDS_KEPT);
        let takes = &mut self.takes;
        takes.retain(|_, take| now.since(take.sent) < TAKE_TIMEOUT);
        let is_due = |beat: Millis| now.since(beat) >= HEARTBEAT;
        if self.last_beat.is_none_or(is_due) {
            self.last_beat = Some(now);
            calls.push(self.heartbeat(now));
        }
        let may_write = self.is_registered && now.since(self.last_good) < LEASE;
        if may_write || self.is_careless {
            self.send_writes(now, &mut calls);
        }
        if may_write && self.writes.is_empty() {
            calls.extend(self.take(now, ready, rng));
        }
        calls
    }

    /// Store's time now, by the latest reply: late by the time that reply took.
    fn store_estimate(&self, now: Millis) -> StoreTime {
        self.store_clock.0 + now.since(self.store_clock.1)
    }

    fn heartbeat(&self, now: Millis) -> StoreCall {
        let mut jobs: Vec<JobId> = self.runs.keys().map(|(id, _)| *id).collect();
        jobs.extend(self.writes.keys().map(|(id, _)| *id));
        jobs.dedup();
        // What is taken after this heartbeat was sent is unknown to it, however late it arrives.
        let takes = self.takes.values().map(|take| take.store);
        let oldest = takes.chain([self.store_estimate(now)]).min();
        let own = self.store_clock.0.0.saturating_add_signed(self.skew_ms);
        StoreCall::Heartbeat {
            sent: now,
            held: HeldJobs {
                jobs,
                oldest_take: oldest,
            },
            node_clock: StoreTime(own) + now.since(self.store_clock.1),
        }
    }

    fn end_runs(&mut self, now: Millis) {
        let is_over = |run: &SimRun| now >= run.ends || now.since(run.began) >= run.taken.time_left;
        let over = self.runs.iter().filter(|(_, run)| is_over(run));
        let over: Vec<_> = over.map(|(key, _)| *key).collect();
        for key in over {
            let Some(run) = self.runs.remove(&key) else {
                continue;
            };
            let timed_out = now.since(run.began) >= run.taken.time_left;
            match run.plan {
                _ if timed_out => {
                    let reason = run.taken.end_reason;
                    self.end_run(run, reason.state(true), Some(reason), now);
                }
                RunPlan::Succeed => self.end_run(run, JobState::Succeeded, None, now),
                RunPlan::Fail(reason) => self.end_run(run, JobState::Failed, Some(reason), now),
                RunPlan::GiveBack(cause) => self.give_back(&run, cause),
            }
        }
    }

    fn end_run(&mut self, run: SimRun, state: JobState, reason: Option<EndReason>, now: Millis) {
        let (id, epoch) = (run.taken.definition.id, run.taken.progress.epoch);
        let end = RunEnd {
            id,
            epoch,
            state,
            reason,
        };
        let write = OpenWrite {
            call: StoreCall::Finish(end.clone()),
            sent: None,
        };
        self.writes.insert((id, epoch), write);
        self.recent.push(RecentRunEnd {
            at: now,
            taken: run.taken,
            end,
        });
    }

    fn give_back(&mut self, run: &SimRun, cause: ReleaseCause) {
        let (id, epoch) = (run.taken.definition.id, run.taken.progress.epoch);
        let waits = cause == ReleaseCause::QuotaWait;
        let release = Release {
            id,
            epoch,
            cause,
            not_before: waits.then(|| self.store_clock.0 + Millis(3_000)),
        };
        let write = OpenWrite {
            call: StoreCall::Release(release),
            sent: None,
        };
        self.writes.insert((id, epoch), write);
        self.given_back += 1;
    }

    /// Gives back every run: the worker drains, or its server is gone.
    pub fn give_back_all(&mut self, cause: impl Fn(usize) -> ReleaseCause) {
        let runs = std::mem::take(&mut self.runs);
        for (n, run) in runs.values().enumerate() {
            self.give_back(run, cause(n));
        }
    }

    fn send_writes(&mut self, now: Millis, calls: &mut Vec<StoreCall>) {
        for write in self.writes.values_mut() {
            if write
                .sent
                .is_none_or(|sent| now.since(sent) >= REPEAT_AFTER)
            {
                write.sent = Some(now);
                calls.push(write.call.clone());
            }
        }
    }

    fn take(
        &mut self,
        now: Millis,
        ready: impl Fn(&DeployableKey) -> usize,
        rng: &mut Rng,
    ) -> Option<StoreCall> {
        let asked: usize = self.takes.values().map(|take| take.count).sum();
        let free = self.permits.saturating_sub(self.runs.len() + asked);
        let deployable = self.deployables[self.next_take as usize % self.deployables.len()].clone();
        let count = free.min(ready(&deployable));
        let sequence = self.next_take;
        self.next_take += 1;
        if count == 0 {
            return None;
        }
        let take = OpenTake {
            sent: now,
            store: self.store_estimate(now),
            count,
        };
        self.takes.insert(sequence, take);
        let preferred = rng.bool().then(|| Arc::from("bee"));
        let request = TakeRequest {
            deployable,
            count,
            turn: sequence as u32,
            preferred_flow: preferred,
        };
        Some(StoreCall::Take { sequence, request })
    }

    /// Takes a reply. Returns the runs that begin by it.
    pub fn receive(
        &mut self,
        reply: StoreReply,
        now: Millis,
        rng: &mut Rng,
    ) -> Result<Vec<(JobId, u32)>, Fenced> {
        match reply {
            StoreReply::Taken { sequence, taken } => {
                // A reply that comes after its take was given up begins nothing: the jobs are orphans.
                if self.takes.remove(&sequence).is_none() {
                    return Ok(Vec::new());
                }
                Ok(taken
                    .into_iter()
                    .map(|taken| self.begin(taken, now, rng))
                    .collect())
            }
            StoreReply::Written(id, epoch, result) => {
                self.writes.remove(&(id, epoch));
                if result == WriteResult::Stale {
                    self.recent.retain(|recent| recent.end.id != id);
                }
                Ok(Vec::new())
            }
            StoreReply::Heartbeat {
                is_known: false, ..
            } => Err(Fenced),
            StoreReply::Heartbeat {
                sent,
                reply,
                store_time,
                ..
            } => {
                self.is_registered = true;
                if sent >= self.last_good {
                    self.last_good = sent;
                    self.store_clock = (store_time, now);
                }
                self.obey(reply, sent, now, rng);
                Ok(Vec::new())
            }
            StoreReply::Submitted(..) | StoreReply::Nothing => Ok(Vec::new()),
        }
    }

    fn begin(&mut self, taken: TakenJob, now: Millis, rng: &mut Rng) -> (JobId, u32) {
        let key = (taken.definition.id, taken.progress.epoch);
        let plan = match rng.u32(0..100) {
            0..78 => RunPlan::Succeed,
            78..86 => RunPlan::Fail(EndReason::ModelError),
            86..91 => RunPlan::GiveBack(ReleaseCause::ServerLost),
            91..96 => RunPlan::GiveBack(ReleaseCause::NoServer),
            _ => RunPlan::GiveBack(ReleaseCause::QuotaWait),
        };
        let run = SimRun {
            taken,
            began: now,
            ends: now + Millis(rng.u64(20..self.run_max)),
            plan,
        };
        self.runs.insert(key, run);
        key
    }

    fn obey(&mut self, reply: HeartbeatReply, sent: Millis, now: Millis, rng: &mut Rng) {
        // What began after the heartbeat was sent is none of those that it is about.
        self.runs
            .retain(|(id, _), run| run.began > sent || !reply.lost.contains(id));
        for (id, _) in reply.canceled {
            let mut runs = self.runs.keys().filter(|(job, _)| *job == id);
            let Some(key) = runs.next().copied() else {
                continue;
            };
            // A cancel that the server misses ends by the grace.
            if rng.u32(0..4) > 0
                && let Some(run) = self.runs.remove(&key)
            {
                let reason = EndReason::CanceledByUser;
                self.end_run(run, JobState::Canceled, Some(reason), now);
            }
        }
    }
}

/// Worker that the store does not know any more: everything it holds is another's.
pub struct Fenced;
