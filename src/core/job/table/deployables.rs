//! Queue of one deployable in the table: schedule, counts, and what holds it back.
//!
//! Not its servers and permits, which are unknown to the queue.

use hashbrown::HashMap;

use super::JobTable;
use crate::job::estimator::HoldEstimator;
use crate::job::id::DeployableKey;
use crate::job::record::JobDefinition;
use crate::job::schedule::{FlowCost, JobClass, Schedule};
use crate::job::store_time::StoreTime;
use crate::model::FairBy;
use crate::{AccountId, Millis};

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
    pub is_paused: bool,
}

impl Deployable {
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

    /// Returns the counts of every deployable, sorted by key.
    pub fn deployables(&self) -> Vec<DeployableState> {
        let state = |(key, found): (&DeployableKey, &Deployable)| DeployableState {
            key: key.clone(),
            ready: JobClass::ALL.map(|class| found.schedule.len_of(class)),
            queued: found.queued,
            running: found.running,
            accepted: found.accepted,
            finished: found.finished,
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
