//! Invariants of the table, for tests and the simulator.
//!
//! Changes nothing, and visits everything.

use super::JobTable;
use crate::job::states::JobState;

impl JobTable {
    /// Asserts every invariant that one moment can show.
    pub fn check(&self) {
        let (mut queued, mut running, mut bytes) = (0, 0, 0);
        for (id, job) in &self.jobs {
            bytes += job.definition.bytes;
            let end = job.definition.swept_at(&job.progress);
            assert!(
                self.ends.contains(&(end, *id)),
                "every job has an end by time"
            );
            match job.progress.state() {
                JobState::Queued => {
                    queued += 1;
                    let is_aside = job
                        .progress
                        .due
                        .is_some_and(|due| self.due.contains(&(due, *id)));
                    assert!(
                        job.place.is_some() != is_aside,
                        "a queued job is in the schedule, or aside until it is due"
                    );
                }
                _ => {
                    running += 1;
                    let owner = job.progress.owner.as_ref();
                    let own = owner.and_then(|owner| self.running.get(&owner.worker));
                    assert!(
                        own.is_some_and(|own| own.contains(id)),
                        "a running job has its worker"
                    );
                    assert!(
                        job.place.is_none() && job.progress.due.is_none(),
                        "a running job is not queued"
                    );
                }
            }
        }
        let scheduled: usize = self
            .deployables
            .values()
            .map(|found| found.schedule.len())
            .sum();
        assert_eq!(
            scheduled + self.due.len(),
            queued,
            "queued jobs are scheduled or not due"
        );
        let owned: usize = self.running.values().map(|jobs| jobs.len()).sum();
        assert_eq!(owned, running, "workers have running jobs only");
        assert_eq!(bytes, self.bytes, "bytes are counted");
        for deployable in self.deployables.values() {
            deployable.schedule.check();
            let by_account: u32 = deployable.by_account.values().sum();
            assert_eq!(
                by_account, deployable.queued,
                "queued jobs are counted by account"
            );
        }
        let counted = |count: fn(&super::Deployable) -> u32| -> usize {
            self.deployables
                .values()
                .map(|found| count(found) as usize)
                .sum()
        };
        assert_eq!(counted(|found| found.queued), queued);
        assert_eq!(counted(|found| found.running), running);
        assert_eq!(self.recent.len(), self.recent_order.len());
    }
}
