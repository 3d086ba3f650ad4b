//! Submit of a job to the table.
//!
//! Idempotency keys and bodies are the store's; the same id is recognized here.

use std::sync::Arc;

use super::JobTable;
use crate::job::id::JobId;
use crate::job::record::{JobDefinition, JobProgress, LiveJob};
use crate::job::shard::{self, HandSize};
use crate::job::states::JobState;
use crate::job::store_time::StoreTime;
use crate::model::FlowMode;
use crate::{AccountId, Millis, ModelId};

/// Limits of the queue that a job is submitted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Queued jobs in all.
    pub queue_max: u32,
    /// Queued jobs of the account.
    pub queue_max_per_account: u32,
    /// Bytes of all live jobs of the store.
    pub bytes_max: u64,
}

/// Job to be queued.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Fixed part. The table sets its flow.
    pub definition: JobDefinition,
    /// Rule for its flow.
    pub flows: FlowMode,
    /// Limits of its queue.
    pub limits: QueueLimits,
}

/// Result of a submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// The job is queued.
    Created,
    /// A job with this id was submitted before, and is in this state.
    Exists(JobState),
    /// The idempotency key belongs to this job, which was submitted with the same body.
    Duplicate(JobId),
    /// The idempotency key belongs to a job with another body.
    KeyMismatch,
    /// The queue is full, in all or for the account.
    QueueFull {
        /// Expected time until a place is free.
        retry_after: Millis,
    },
    /// The store's bytes are used up.
    StoreFull,
}

impl JobTable {
    /// Queues a job.
    pub fn submit(&mut self, job: NewJob, now: StoreTime) -> SubmitResult {
        let NewJob {
            mut definition,
            flows,
            limits,
        } = job;
        let id = definition.id;
        if let Some(known) = self.jobs.get(&id) {
            return SubmitResult::Exists(known.progress.state());
        }
        if let Some(ended) = self.recent.get(&id) {
            return SubmitResult::Exists(ended.state);
        }
        if self.bytes.saturating_add(definition.bytes) > limits.bytes_max {
            return SubmitResult::StoreFull;
        }
        let deployable = self
            .deployables
            .entry(definition.deployable.clone())
            .or_default();
        deployable.last_submit = Some(now);
        let own = deployable.by_account.get(&definition.account).copied();
        if deployable.queued >= limits.queue_max || own.unwrap_or(0) >= limits.queue_max_per_account
        {
            let retry_after = deployable.holds.retry_after();
            return SubmitResult::QueueFull { retry_after };
        }
        let length = |flow: &str| deployable.schedule.len_of_flow(flow);
        let key = definition.deployable.as_str();
        definition.flow = flow_of(flows, key, &definition.account, &definition.model, length);
        deployable.count_queued(&definition.account);
        deployable.accepted += 1;
        self.insert(Arc::new(definition), JobProgress::default());
        self.enqueue(id, now);
        SubmitResult::Created
    }

    /// Adds a job with its ends by time. The caller puts it in its place.
    pub(super) fn insert(&mut self, definition: Arc<JobDefinition>, progress: JobProgress) {
        let id = definition.id;
        self.bytes += definition.bytes;
        self.ends.insert((definition.swept_at(&progress), id));
        if progress.started.is_none() {
            self.ends.insert((definition.start_until, id));
        }
        let job = LiveJob {
            definition,
            progress,
            place: None,
            charged: None,
        };
        self.jobs.insert(id, job);
    }
}

/// Returns the flow of a job. `length` returns the queued jobs of a flow.
fn flow_of(
    mode: FlowMode,
    deployable: &str,
    account: &AccountId,
    model: &ModelId,
    length: impl Fn(&str) -> usize,
) -> Arc<str> {
    match mode {
        FlowMode::Account => account.as_str().into(),
        FlowMode::Model => model.as_str().into(),
        FlowMode::Shards { shards, hand } => {
            let hand = shard::deal_hand(deployable, account, HandSize { shards, hand });
            let name = |shard: u16| format!("shard-{shard}");
            let shortest = hand.into_iter().min_by_key(|shard| length(&name(*shard)));
            name(shortest.unwrap_or(0)).into()
        }
    }
}
