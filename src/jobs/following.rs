//! The durable path as those that follow a job see it: its output as it comes, its place in the queue, the end of its
//! time.
//!
//! Not the stream that clients get.

use std::sync::Arc;

use infergate_core::job::JobId;

use super::live::LiveOutput;
use super::service::Jobs;
use super::store::{JobStore, StoredJob};

impl Jobs {
    /// Returns the output of a job as it comes, where it runs or ended lately.
    pub fn live(&self, id: &JobId) -> Option<Arc<LiveOutput>> {
        self.outputs().get(id)
    }

    /// Returns whether the time is over for which an ended job is kept. Its record may last longer: for its webhook.
    pub fn is_past_keep(&self, job: &StoredJob) -> bool {
        let keep = self.choices().jobs.keep();
        job.ended.is_some_and(|ended| ended + keep <= self.now())
    }

    /// Returns the place of a queued job in its queue, from 1 on; none of one that does not wait there.
    pub async fn position(&self, id: JobId) -> Option<usize> {
        self.store.position(id).await.ok().flatten()
    }
}
