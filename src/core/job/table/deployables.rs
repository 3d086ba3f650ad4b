//! Queue of one deployable in the table: schedule, counts, and what holds it back.
//!
//! Not its servers and permits, which are unknown to the queue.

use hashbrown::HashMap;

use super::JobTable;
use crate::job::estimator::HoldEstimator;
use crate::job::id::{DeployableKey, JobId};
use crate::job::record::JobDefinition;
use crate::job::schedule::{FlowCost, JobClass, Schedule};
use crate::job::store_time::StoreTime;
use crate::model::FairBy;
use crate::{AccountId, Millis};

/// Time after which a deployable without jobs is forgotten, with its flows and what its jobs are expected to take.
const IDLE_KEPT: Millis = Millis::from_secs(3600);

/// Queue of a deployable.
#[derive(Debug, Default)]
pub(super) struct Deployable {
    pub schedule: Schedule,
    pub holds: HoldEstimator,
    /// Queued jobs, those that are not due included.
    pub queued: u32,
    /// Queued jobs by account; none is zero.
    pub by_account: HashMap<AccountId, u32>,
    pub running: u32,
    /// Jobs accepted and ended since the table was made.
    pub accepted: u64,
    pub finished: u64,
    /// Moment of the latest submit, also of one that found no room.
    pub last_submit: Option<StoreTime>,
    pub is_paused: bool,
    /// First look that found it without jobs, with what it had accepted and ended by then.
    idle: Option<(StoreTime, u64, u64)>,
}

impl Deployable {
    /// Returns whether the deployable has had no job since a look [`IDLE_KEPT`] ago.
    fn is_forgettable(&mut self, now: StoreTime) -> bool {
        if self.queued > 0 || self.running > 0 || self.is_paused {
            self.idle = None;
            return false;
        }
        let (accepted, finished) = (self.accepted, self.finished);
        let is_same = |idle: &(StoreTime, u64, u64)| (idle.1, idle.2) == (accepted, finished);
        let idle = self.idle.filter(is_same);
        let (since, ..) = *self.idle.insert(idle.unwrap_or((now, accepted, finished)));
        now.since(since) >= IDLE_KEPT
    }

    /// Expected cost of a job to its flow.
    pub fn cost_of(&self, job: &JobDefinition) -> FlowCost {
        cost(&self.holds, Some(job))
    }

    pub fn count_queued(&mut self, account: &AccountId) {
        self.queued += 1;
        match self.by_account.get_mut(account) {
            Some(count) => *count += 1,
            None => _ = self.by_account.insert(account.clone(), 1),
        }
    }

    pub fn count_dequeued(&mut self, account: &AccountId) {
        self.queued = self.queued.saturating_sub(1);
        if let Some(count) = self.by_account.get_mut(account) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_account.remove(account);
            }
        }
    }
}

/// Expected cost of a job to its flow, by the holds of its deployable.
pub(super) fn cost(holds: &HoldEstimator, job: Option<&JobDefinition>) -> FlowCost {
    let expected_ms = match job.map(|job| job.fair_by) {
        Some(FairBy::Jobs) => 1,
        _ => holds.expected().0,
    };
    FlowCost {
        expected_ms,
        weight: job.map_or(1, |job| job.weight),
    }
}

/// Counts of a deployable by class, for operators and workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployableState {
    /// Its key.
    pub key: DeployableKey,
    /// Queued jobs that may be taken, by class in the order of [`JobClass::ALL`].
    pub ready: [usize; 4],
    /// Queued jobs, those that are not due included.
    pub queued: u32,
    /// Running jobs.
    pub running: u32,
    /// Jobs accepted since the store was opened.
    pub accepted: u64,
    /// Jobs ended since the store was opened.
    pub finished: u64,
    /// Moment of the latest submit, also of one that found no room; none where that was before the store was opened and
    /// its job has ended.
    pub last_submit: Option<StoreTime>,
    /// Expected permit time of a job.
    pub expected_hold: Millis,
    /// No job is taken.
    pub is_paused: bool,
}

/// Queued jobs of a deployable by account, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts(pub Vec<(AccountId, u32)>);

impl JobTable {
    /// Returns the jobs of a deployable that may be taken now, none while it is paused.
    pub fn ready(&self, key: &DeployableKey) -> usize {
        let found = self.deployables.get(key).filter(|found| !found.is_paused);
        found.map_or(0, |deployable| deployable.schedule.len())
    }

    /// Returns every deployable with the jobs that may be taken now, none while it is paused.
    pub fn ready_counts(&self) -> impl Iterator<Item = (DeployableKey, usize)> {
        self.deployables.iter().map(|(key, found)| {
            let count = match found.is_paused {
                true => 0,
                false => found.schedule.len(),
            };
            (key.clone(), count)
        })
    }

    /// Pauses or resumes a deployable.
    pub fn set_paused(&mut self, key: &DeployableKey, is_paused: bool) {
        self.deployables.entry(key.clone()).or_default().is_paused = is_paused;
    }

    /// Forgets deployables that have been without jobs for an hour and are not paused. Visits every deployable.
    pub fn forget_idle(&mut self, now: StoreTime) {
        self.deployables
            .retain(|_, deployable| !deployable.is_forgettable(now));
    }

    /// Returns the place of a job among those of its deployable that may be taken, from 1 on; none of a job that does not
    /// wait there.
    pub fn position(&self, job: &JobId) -> Option<usize> {
        let job = self.jobs.get(job)?;
        let (definition, place) = (&job.definition, job.place.as_ref()?);
        let deployable = self.deployables.get(&definition.deployable)?;
        deployable.schedule.position(&definition.flow, place)
    }

    /// Returns the counts of every deployable, sorted by key.
    pub fn deployables(&self) -> Vec<DeployableState> {
        let state = |(key, found): (&DeployableKey, &Deployable)| DeployableState {
            key: key.clone(),
            ready: JobClass::ALL.map(|class| found.schedule.len_of(class)),
            queued: found.queued,
            running: found.running,
            accepted: found.accepted,
            finished: found.finished,
            last_submit: found.last_submit,
            expected_hold: found.holds.expected(),
            is_paused: found.is_paused,
        };
        let mut states: Vec<_> = self.deployables.iter().map(state).collect();
        states.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        states
    }

    /// Returns the queued jobs of a deployable by account, sorted by account.
    pub fn queued_by_account(&self, key: &DeployableKey) -> FlowCounts {
        let found = self.deployables.get(key);
        let counts = found.map(|found| found.by_account.iter());
        let counts = counts.into_iter().flatten();
        let mut counts: Vec<_> = counts.map(|(account, n)| (account.clone(), *n)).collect();
        counts.sort_unstable();
        FlowCounts(counts)
    }

    /// Returns the age of the oldest queued job of each deployable. Visits every job: for operators.
    pub fn oldest_queued(&self, now: StoreTime) -> HashMap<DeployableKey, Millis> {
        let mut oldest: HashMap<DeployableKey, Millis> = HashMap::new();
        for job in self
            .jobs
            .values()
            .filter(|job| job.progress.owner.is_none())
        {
            let age = now.since(job.definition.created);
            let entry = oldest.entry(job.definition.deployable.clone()).or_default();
            *entry = (*entry).max(age);
        }
        oldest
    }
}
