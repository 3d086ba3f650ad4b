//! Table made of what a store has kept.
//!
//! Not a decision about running jobs: they stay with their workers, and the caller names those that are lost.

use std::sync::Arc;

use super::JobTable;
use crate::job::record::{JobDefinition, JobProgress};
use crate::job::store_time::StoreTime;

impl JobTable {
    /// Adds a job as it was written last. Queued jobs are to be restored in the order of their submits.
    pub fn restore(&mut self, definition: JobDefinition, progress: JobProgress, now: StoreTime) {
        let definition = Arc::new(definition);
        let id = definition.id;
        let owner = progress.owner.clone();
        let cancel = progress.cancel;
        let deployable = self
            .deployables
            .entry(definition.deployable.clone())
            .or_default();
        deployable.last_submit = deployable.last_submit.max(Some(definition.created));
        match owner {
            Some(_) => deployable.running += 1,
            None => deployable.count_queued(&definition.account),
        }
        let grace = crate::Millis(definition.cancel_grace_ms);
        self.insert(definition, progress);
        match owner {
            Some(owner) => {
                self.running.entry(owner.worker).or_default().insert(id);
                if let Some(cancel) = cancel {
                    self.graces.insert((cancel.at + grace, id));
                }
            }
            None => self.enqueue(id, now),
        }
    }
}
