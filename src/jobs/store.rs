//! Store of jobs: what the rest of the durable path asks of it, whatever keeps the jobs.
//!
//! Not a queue of its own: every store means what the core's `JobTable` means. Verbs take one item; a store gathers
//! what is under way into one write. A verb whose future is dropped may still take effect.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, DeployableState, EndReason, FlowCounts,
    HeartbeatReply, HeldJobs, JobDefinition, JobId, JobKind, JobOutcome, JobProgress, JobState,
    NewJob, Release, RunEnd, StoreTime, SubmitResult, TakeRequest, TakenJob, WorkerId, WriteResult,
};
use infergate_core::{AccountId, ModelId};
use serde::{Deserialize, Serialize};

use super::deployments::{DeploymentResult, DeploymentWrite};

/// Failure of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Unable to read or write at the moment; the text says why.
    #[error("the store of jobs is not available: {0}")]
    Unavailable(Arc<str>),
    /// More calls wait than the store has room for.
    #[error("too many calls wait for the store of jobs")]
    Overloaded,
    /// The outcome is unknown.
    #[error("the store of jobs did not answer in time")]
    Timeout,
}

/// Key by which a client may repeat a submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The client's text, at most 255 bytes.
    pub key: Arc<str>,
    /// SHA-256 of path and body.
    pub digest: [u8; 32],
}

/// Job that an idempotency key was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerSubmit {
    /// Job.
    pub job: JobId,
    /// Path and body were the same.
    pub is_same: bool,
}

/// Job to be stored.
#[derive(Clone, Debug)]
pub struct NewStoredJob {
    /// Its place in the queue.
    pub job: NewJob,
    /// Request that it is, as JSON.
    pub payload: Bytes,
    /// Key of the submit.
    pub key: Option<IdempotencyKey>,
}

/// Job that a worker has taken, with its request.
#[derive(Clone, Debug)]
pub struct StoredRun {
    /// Taken job.
    pub taken: TakenJob,
    /// Request that it is, as JSON.
    pub payload: Bytes,
    /// The server that it is for served other weights before, as its worker knows. False from a store.
    pub weights_changed: bool,
}

/// Result of a job and its event, as they are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndRecord {
    /// Result document, JSON.
    pub result: Bytes,
    /// Line of the inference event.
    pub event: Bytes,
}

/// End of a run, to be written.
#[derive(Clone, Debug)]
pub struct StoredEnd {
    /// End in the queue.
    pub end: RunEnd,
    /// Result and event.
    pub record: EndRecord,
}

/// Job as it is stored.
#[derive(Clone, Debug)]
pub struct StoredJob {
    /// Place in the order of submits.
    pub place: i64,
    /// Fixed part.
    pub definition: JobDefinition,
    /// Changing part.
    pub progress: JobProgress,
    /// State.
    pub state: JobState,
    /// Reason of the end.
    pub reason: Option<EndReason>,
    /// Moment of the end.
    pub ended: Option<StoreTime>,
    /// Request that it is, as JSON.
    pub payload: Bytes,
    /// Result document, once ended.
    pub result: Option<Bytes>,
    /// Request and result are gone; the submit was repeated by its key.
    pub is_data_removed: bool,
}

impl StoredJob {
    /// Returns a job as it is when it has just been submitted. Its place is not known.
    pub fn queued(definition: &JobDefinition, payload: Bytes) -> StoredJob {
        StoredJob {
            place: 0,
            definition: definition.clone(),
            progress: JobProgress::default(),
            state: JobState::Queued,
            reason: None,
            ended: None,
            payload,
            result: None,
            is_data_removed: false,
        }
    }

    /// Gives a job, made of a repeated submit, the id and the times of the first one, whose data is gone.
    pub fn removed(self, id: JobId, kept: &RemovedJob) -> StoredJob {
        let mut job = self;
        job.definition.id = id;
        job.definition.created = kept.created;
        job.progress.started = kept.started;
        job.progress.epoch = kept.epoch;
        job.state = kept.state;
        job.reason = kept.reason;
        job.ended = Some(kept.ended);
        job.is_data_removed = true;
        job
    }
}

/// Part of the list of an account's jobs.
#[derive(Clone, Debug)]
pub struct JobListing {
    /// Account; none for operators, who see all.
    pub account: Option<AccountId>,
    /// Kind of the jobs; none for every kind.
    pub kind: Option<JobKind>,
    /// State of the jobs; none for every state.
    pub state: Option<JobState>,
    /// Model of the jobs; none for every model. Not indexed: for operators.
    pub model: Option<ModelId>,
    /// Place before which the list goes on; none for the newest.
    pub before: Option<i64>,
    /// Jobs at most.
    pub limit: usize,
}

/// Bytes of requests and results after which a part of a list ends, so that many large outputs are not in memory at once.
pub const LISTED_BYTES_MAX: usize = 16 << 20;

/// Part of a list: as many jobs as were asked for, or fewer large ones.
#[derive(Clone, Debug, Default)]
pub struct ListedJobs {
    /// Jobs, newest first.
    pub jobs: Vec<StoredJob>,
    /// The list goes on behind the last one.
    pub has_more: bool,
}

impl ListedJobs {
    /// Gathers jobs up to `limit` and [`LISTED_BYTES_MAX`], at least one where there is one.
    ///
    /// # Errors
    /// That of a job which cannot be read.
    pub fn gather<E>(
        found: impl Iterator<Item = Result<StoredJob, E>>,
        limit: usize,
    ) -> Result<ListedJobs, E> {
        let mut listed = ListedJobs::default();
        let mut bytes = 0;
        for job in found {
            if listed.jobs.len() >= limit || bytes >= LISTED_BYTES_MAX {
                listed.has_more = true;
                break;
            }
            let job = job?;
            bytes += job.payload.len() + job.result.as_ref().map_or(0, Bytes::len);
            listed.jobs.push(job);
        }
        Ok(listed)
    }

    /// Returns the place behind which the list goes on; none at its end.
    pub fn next(&self) -> Option<i64> {
        let last = self.jobs.last().map(|job| job.place);
        last.filter(|_| self.has_more)
    }
}

/// What is kept of a job whose record is gone, while an idempotency key names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedJob {
    /// State at its end.
    pub state: JobState,
    /// Reason of the end.
    pub reason: Option<EndReason>,
    /// Moment of the submit.
    pub created: StoreTime,
    /// Moment of the first start.
    pub started: Option<StoreTime>,
    /// Moment of the end.
    pub ended: StoreTime,
    /// Number of takes.
    pub epoch: u32,
}

/// Event that is not known to be in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingEvent {
    /// Place in the outbox.
    pub place: i64,
    /// Line of the event.
    pub line: Bytes,
}

/// Claimed delivery of a webhook.
#[derive(Clone, Debug)]
pub struct PendingWebhook {
    /// Id of the message.
    pub id: Arc<str>,
    /// Job whose end it tells.
    pub job: JobId,
    /// Attempts made so far.
    pub attempts: u32,
    /// Moment from which the next one may be made.
    pub due: StoreTime,
    /// No attempt is made any more.
    pub is_dead: bool,
    /// Result of the last attempt, for operators.
    pub last_result: Arc<str>,
    /// The record of the job is kept: without it there is nothing to send.
    pub has_job: bool,
}

/// Result of an attempt to deliver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookSettlement {
    /// Delivered: the entry goes.
    Delivered,
    /// The next attempt is at this moment.
    RetryAt(StoreTime),
    /// Not delivered: the entry stays for operators, and the record of its job for a retry.
    Dead,
    /// Given up because newer ones took its place: the entry stays for operators, the record of its job not longer.
    Displaced,
    /// An operator wants a dead one tried again.
    Revived(StoreTime),
}

/// Result of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementResult {
    /// Written.
    Done,
    /// No such entry, or none that is dead where one is to be tried again.
    NoEntry,
    /// The record of the job is gone: nothing can be sent.
    NoJob,
}

/// Counts of a store, for operators.
#[derive(Clone, Debug, Default)]
pub struct StoreStats {
    /// Queues.
    pub deployables: Vec<DeployableState>,
    /// Workers with running jobs.
    pub workers: Vec<(WorkerId, usize)>,
    /// Jobs that have not ended.
    pub live: usize,
    /// Bytes of those.
    pub live_bytes: u64,
    /// Age of the oldest queued job of each queue, milliseconds.
    pub oldest_ms: Vec<(DeployableKey, u64)>,
    /// Queued jobs of each queue by account. Empty in levels that were not asked for.
    pub by_account: Vec<(DeployableKey, FlowCounts)>,
}

/// Makes the record of an end that no worker has written.
pub trait EndRenderer: Send + Sync {
    /// Returns result and event of a job that ended without a run.
    fn render(&self, outcome: &JobOutcome, payload: &[u8]) -> EndRecord;
}

impl StoreError {
    /// Returns the name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Overloaded => "overloaded",
            StoreError::Timeout => "timeout",
        }
    }
}

/// Store of jobs.
#[async_trait]
pub trait JobStore: Send + Sync {
    /// Stores a job and queues it. The answer comes when it is kept.
    async fn submit(&self, job: NewStoredJob) -> Result<SubmitResult, StoreError>;
    /// Takes queued jobs for a worker.
    async fn take(
        &self,
        worker: &WorkerId,
        request: TakeRequest,
    ) -> Result<Vec<StoredRun>, StoreError>;
    /// Writes the end of a run.
    async fn finish(&self, worker: &WorkerId, end: StoredEnd) -> Result<WriteResult, StoreError>;
    /// Queues a running job again.
    async fn release(&self, worker: &WorkerId, release: Release)
    -> Result<WriteResult, StoreError>;
    /// Cancels a job.
    async fn cancel(&self, job: JobId, by: CanceledBy) -> Result<CancelResult, StoreError>;
    /// Reconciles what a worker holds. A store in the worker's own process needs none.
    async fn heartbeat(
        &self,
        worker: &WorkerId,
        held: HeldJobs,
    ) -> Result<HeartbeatReply, StoreError>;
    /// Releases all jobs of a worker that ends.
    async fn retire(&self, worker: &WorkerId) -> Result<(), StoreError>;
    /// Returns a job.
    async fn get(&self, job: JobId) -> Result<Option<StoredJob>, StoreError>;
    /// Returns the job that a key was used for, if its time is not over at `now`.
    async fn former_submit(
        &self,
        account: &AccountId,
        key: &IdempotencyKey,
        now: StoreTime,
    ) -> Result<Option<FormerSubmit>, StoreError>;
    /// Returns what is kept of a job that is gone.
    async fn removed(&self, job: JobId) -> Result<Option<RemovedJob>, StoreError>;
    /// Returns jobs, newest first.
    async fn list(&self, listing: JobListing) -> Result<ListedJobs, StoreError>;
    /// Ends the queued jobs of a queue.
    async fn end_queued(
        &self,
        deployable: DeployableKey,
        reason: EndReason,
    ) -> Result<usize, StoreError>;
    /// Pauses or resumes a queue.
    async fn set_paused(
        &self,
        deployable: DeployableKey,
        is_paused: bool,
    ) -> Result<(), StoreError>;
    /// Returns the place of a queued job among those that may be taken before it, from 1 on; none of another one.
    async fn position(&self, job: JobId) -> Result<Option<usize>, StoreError>;
    /// Returns counts.
    async fn stats(&self) -> Result<StoreStats, StoreError>;
    /// Returns events that are not known to be in the file, oldest first.
    async fn pending_events(&self, limit: usize) -> Result<Vec<PendingEvent>, StoreError>;
    /// Forgets events that are in the file.
    async fn acknowledge_events(&self, places: Vec<i64>) -> Result<(), StoreError>;
    /// Returns deliveries whose entry is new since the last call, at the start all that are not dead.
    async fn new_webhooks(&self, limit: usize) -> Result<Vec<PendingWebhook>, StoreError>;
    /// Returns deliveries for operators, newest first.
    async fn webhooks(
        &self,
        is_dead: bool,
        limit: usize,
    ) -> Result<Vec<PendingWebhook>, StoreError>;
    /// Writes the result of an attempt, or the wish of an operator.
    async fn settle_webhook(
        &self,
        id: Arc<str>,
        settlement: WebhookSettlement,
        result: Arc<str>,
    ) -> Result<SettlementResult, StoreError>;
    /// Changes the deployments that accounts have made. The directory has the change when this returns.
    async fn write_deployment(
        &self,
        write: DeploymentWrite,
    ) -> Result<DeploymentResult, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::conformance;

    #[test]
    fn a_part_of_a_list_ends_at_its_bytes_and_has_at_least_one_job() {
        let stored = |number, bytes| {
            let new = conformance::job(number, "a", StoreTime(1));
            StoredJob {
                place: 100 - number as i64,
                result: Some(vec![b'x'; bytes].into()),
                ..StoredJob::queued(&new.job.definition, new.payload)
            }
        };
        let list = |jobs: Vec<StoredJob>, limit| {
            let found = jobs.into_iter().map(Ok::<_, ()>);
            let listed = ListedJobs::gather(found, limit).unwrap();
            (listed.jobs.len(), listed.next())
        };
        let large = |count| {
            (0..count)
                .map(|n| stored(n, LISTED_BYTES_MAX / 2))
                .collect()
        };
        assert_eq!(list(large(2), 100), (2, None));
        assert_eq!(list(large(5), 100), (2, Some(99)));
        assert_eq!(
            list(vec![stored(0, 2 * LISTED_BYTES_MAX), stored(1, 1)], 100),
            (1, Some(100))
        );
        assert_eq!(list(vec![stored(0, 1), stored(1, 1)], 1), (1, Some(100)));
        assert_eq!(list(Vec::new(), 1), (0, None));
    }
}
