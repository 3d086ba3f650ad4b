//! Store that is the core's table and nothing else: the meaning that every other store has to have.
//!
//! Not kept anywhere, and without webhooks: those are an outbox of the stores that keep them.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeartbeatReply, HeldJobs, JobChange, JobId,
    JobOutcome, JobState, JobTable, Release, StoreTime, SubmitResult, TakeRequest, WorkerId,
    WriteResult,
};
use infergate_core::{AccountId, Millis};
use parking_lot::Mutex;

use super::conformance::{a_key_outlasts_the_record_of_its_job, marked_ends, suite};
use super::deployments::{DeploymentResult, DeploymentWrite, StoredDeployment};
use super::store::{
    EndRecord, FormerSubmit, IdempotencyKey, JobListing, JobStore, ListedJobs, NewStoredJob,
    PendingEvent, PendingWebhook, RemovedJob, SettlementResult, StoreError, StoreStats, StoredEnd,
    StoredJob, StoredRun, WebhookSettlement,
};
const NOW: StoreTime = StoreTime(1_000_000);

/// Rows that the table does not have: ended jobs, requests, keys, events, deployments.
#[derive(Default)]
struct Kept {
    table: JobTable,
    jobs: Vec<StoredJob>,
    keys: Vec<(String, IdempotencyKey, JobId)>,
    events: Vec<PendingEvent>,
    /// Place of the latest event.
    last_event: i64,
    deployments: HashMap<Arc<str>, StoredDeployment>,
    /// Jobs that are gone, as their keys know them.
    removed: HashMap<JobId, RemovedJob>,
    /// Time since the store began, and the step of it before each verb.
    age: Millis,
    step: Millis,
    /// Ended jobs are removed at the next verb.
    keeps_none: bool,
}

#[derive(Default)]
pub struct TableStore(Mutex<Kept>);

impl Kept {
    fn now(&self) -> StoreTime {
        NOW + self.age
    }

    /// Moves the clock on, and does what is due.
    fn pass_time(&mut self) {
        self.age = self.age + self.step;
        let now = self.now();
        self.table.expire(usize::MAX, now);
        self.table.release_due(usize::MAX, now);
        self.keep_changes(None);
        if self.keeps_none {
            let is_ended = |job: &StoredJob| job.ended.is_some();
            let (ended, live) = std::mem::take(&mut self.jobs)
                .into_iter()
                .partition(is_ended);
            self.jobs = live;
            self.remove(ended);
        }
    }

    fn remove(&mut self, ended: Vec<StoredJob>) {
        for job in ended {
            let id = job.definition.id;
            if self.keys.iter().any(|(.., of)| *of == id) {
                let removed = RemovedJob {
                    state: job.state,
                    reason: job.reason,
                    created: job.definition.created,
                    started: job.progress.started,
                    ended: job.ended.unwrap(),
                    epoch: job.progress.epoch,
                };
                self.removed.insert(id, removed);
            }
        }
    }

    fn job(&mut self, id: &JobId) -> Option<&mut StoredJob> {
        self.jobs.iter_mut().find(|job| job.definition.id == *id)
    }

    fn keep_changes(&mut self, record: Option<&EndRecord>) {
        for change in self.table.take_changes() {
            match change {
                JobChange::Progressed(id) => {
                    let progress = self.table.job(&id).map(|job| job.progress.clone());
                    if let (Some(job), Some(progress)) = (self.job(&id), progress) {
                        job.state = progress.state();
                        job.progress = progress;
                    }
                }
                JobChange::Ended(outcome) => self.keep_end(outcome, record),
            }
        }
    }

    fn keep_end(&mut self, outcome: JobOutcome, record: Option<&EndRecord>) {
        let record = match record.filter(|_| outcome.by_worker) {
            Some(record) => record.clone(),
            None => marked_ends().render(&outcome, b""),
        };
        if !record.event.is_empty() {
            self.last_event += 1;
            self.events.push(PendingEvent {
                place: self.last_event,
                line: record.event,
            });
        }
        let job = self.job(&outcome.definition.id).unwrap();
        job.state = outcome.state;
        job.reason = outcome.reason;
        job.ended = Some(outcome.ended);
        job.progress = outcome.progress;
        job.result = Some(record.result);
    }
}

impl TableStore {
    /// Applies a verb, and keeps what it changed.
    fn apply<T>(&self, verb: impl FnOnce(&mut Kept) -> T) -> Result<T, StoreError> {
        let mut kept = self.0.lock();
        kept.pass_time();
        let result = verb(&mut kept);
        kept.keep_changes(None);
        Ok(result)
    }
}

#[async_trait]
impl JobStore for TableStore {
    async fn submit(&self, new: NewStoredJob) -> Result<SubmitResult, StoreError> {
        self.apply(|kept| {
            let NewStoredJob { job, payload, key } = new;
            let (id, account) = (
                job.definition.id,
                job.definition.account.as_str().to_owned(),
            );
            if let Some(key) = &key
                && let Some((.., used, first)) = kept
                    .keys
                    .iter()
                    .find(|(of, used, _)| *of == account && used.key == key.key)
            {
                return match used.digest == key.digest {
                    true => SubmitResult::Duplicate(*first),
                    false => SubmitResult::KeyMismatch,
                };
            }
            let stored = StoredJob {
                place: kept.jobs.len() as i64 + 1,
                ..StoredJob::queued(&job.definition, payload)
            };
            let now = kept.now();
            let result = kept.table.submit(job, now);
            if result == SubmitResult::Created {
                kept.jobs.push(stored);
                kept.keys.extend(key.map(|key| (account, key, id)));
            }
            result
        })
    }

    async fn take(
        &self,
        worker: &WorkerId,
        request: TakeRequest,
    ) -> Result<Vec<StoredRun>, StoreError> {
        self.apply(|kept| {
            let now = kept.now();
            let runs = kept.table.take(worker, &request, now);
            let with_payload = runs.into_iter().map(|taken| StoredRun {
                payload: kept.job(&taken.definition.id).unwrap().payload.clone(),
                taken,
                weights_changed: false,
            });
            with_payload.collect()
        })
    }

    async fn finish(&self, worker: &WorkerId, end: StoredEnd) -> Result<WriteResult, StoreError> {
        let mut kept = self.0.lock();
        kept.pass_time();
        let now = kept.now();
        let result = kept.table.finish(worker, &end.end, now);
        kept.keep_changes(Some(&end.record));
        Ok(result)
    }

    async fn release(
        &self,
        worker: &WorkerId,
        release: Release,
    ) -> Result<WriteResult, StoreError> {
        self.apply(|kept| {
            let now = kept.now();
            kept.table.release(worker, &release, now)
        })
    }

    async fn cancel(&self, job: JobId, by: CanceledBy) -> Result<CancelResult, StoreError> {
        self.apply(|kept| {
            let now = kept.now();
            kept.table.cancel(&job, by, now)
        })
    }

    async fn heartbeat(
        &self,
        worker: &WorkerId,
        held: HeldJobs,
    ) -> Result<HeartbeatReply, StoreError> {
        self.apply(|kept| {
            let now = kept.now();
            kept.table.heartbeat(worker, &held, now)
        })
    }

    async fn retire(&self, worker: &WorkerId) -> Result<(), StoreError> {
        use infergate_core::job::ReleaseCause::Drain;
        self.apply(|kept| {
            let now = kept.now();
            kept.table.release_worker(worker, Drain, usize::MAX, now);
        })
    }

    async fn get(&self, job: JobId) -> Result<Option<StoredJob>, StoreError> {
        self.apply(|kept| kept.job(&job).cloned())
    }

    async fn former_submit(
        &self,
        account: &AccountId,
        key: &IdempotencyKey,
        _now: StoreTime,
    ) -> Result<Option<FormerSubmit>, StoreError> {
        self.apply(|kept| {
            let mut used = kept.keys.iter();
            let found = used.find(|(of, used, _)| of == account.as_str() && used.key == key.key);
            found.map(|(_, used, job)| FormerSubmit {
                job: *job,
                is_same: used.digest == key.digest,
            })
        })
    }

    async fn removed(&self, job: JobId) -> Result<Option<RemovedJob>, StoreError> {
        self.apply(|kept| kept.removed.get(&job).cloned())
    }

    async fn list(&self, listing: JobListing) -> Result<ListedJobs, StoreError> {
        let is_listed = |job: &&StoredJob| {
            let of = &job.definition;
            let is_before = listing.before.is_none_or(|before| job.place < before);
            let is_own = listing
                .account
                .as_ref()
                .is_none_or(|own| of.account == *own);
            let is_kind = listing.kind.is_none_or(|kind| of.kind == kind);
            is_before && is_own && is_kind && listing.state.is_none_or(|state| job.state == state)
        };
        self.apply(|kept| {
            let listed = kept.jobs.iter().rev().filter(is_listed);
            ListedJobs::gather(listed.cloned().map(Ok), listing.limit)
        })?
    }

    async fn end_queued(
        &self,
        deployable: DeployableKey,
        reason: EndReason,
    ) -> Result<usize, StoreError> {
        self.apply(|kept| {
            let now = kept.now();
            kept.table.end_queued(&deployable, reason, usize::MAX, now)
        })
    }

    async fn set_paused(
        &self,
        deployable: DeployableKey,
        is_paused: bool,
    ) -> Result<(), StoreError> {
        self.apply(|kept| kept.table.set_paused(&deployable, is_paused))
    }

    async fn position(&self, job: JobId) -> Result<Option<usize>, StoreError> {
        self.apply(|kept| kept.table.position(&job))
    }

    async fn stats(&self) -> Result<StoreStats, StoreError> {
        self.apply(|kept| StoreStats {
            deployables: kept.table.deployables(),
            workers: kept.table.workers(),
            live: kept.table.len(),
            live_bytes: kept.table.bytes(),
            ..StoreStats::default()
        })
    }

    async fn pending_events(&self, limit: usize) -> Result<Vec<PendingEvent>, StoreError> {
        self.apply(|kept| kept.events.iter().take(limit).cloned().collect())
    }

    async fn acknowledge_events(&self, places: Vec<i64>) -> Result<(), StoreError> {
        self.apply(|kept| kept.events.retain(|event| !places.contains(&event.place)))
    }

    async fn new_webhooks(&self, _limit: usize) -> Result<Vec<PendingWebhook>, StoreError> {
        Ok(Vec::new())
    }

    async fn webhooks(
        &self,
        _is_dead: bool,
        _limit: usize,
    ) -> Result<Vec<PendingWebhook>, StoreError> {
        Ok(Vec::new())
    }

    async fn settle_webhook(
        &self,
        _id: Arc<str>,
        _settlement: WebhookSettlement,
        _result: Arc<str>,
    ) -> Result<SettlementResult, StoreError> {
        Ok(SettlementResult::NoEntry)
    }

    async fn write_deployment(
        &self,
        write: DeploymentWrite,
    ) -> Result<DeploymentResult, StoreError> {
        self.apply(|kept| {
            let kept = &mut kept.deployments;
            match write {
                DeploymentWrite::Create(new, most) => {
                    let own = kept.values().filter(|made| made.account == new.account);
                    let count = own.count();
                    if kept.contains_key(&new.spec.id) {
                        return DeploymentResult::Exists;
                    }
                    if count >= most as usize {
                        return DeploymentResult::Full;
                    }
                    kept.insert(Arc::clone(&new.spec.id), new);
                }
                DeploymentWrite::Release(next) => {
                    let is_next = |former: &&mut StoredDeployment| {
                        former.account == next.account && former.release + 1 == next.release
                    };
                    match kept.get_mut(&next.spec.id).filter(is_next) {
                        Some(former) => *former = next,
                        None => return DeploymentResult::Stale,
                    }
                }
                DeploymentWrite::Remove(name) => {
                    if kept.remove(&name).is_none() {
                        return DeploymentResult::Stale;
                    }
                }
            }
            DeploymentResult::Done
        })
    }
}

#[tokio::test]
async fn the_table_alone_does_what_every_store_does() {
    let store = TableStore::default();
    store.0.lock().step = Millis(1);
    suite(&store, NOW).await;
    let kept = store.0.lock();
    kept.table.check();
    assert!(kept.jobs.iter().all(|job| job.state != JobState::Queued));
}

#[tokio::test]
async fn a_key_of_the_table_alone_outlasts_the_record_of_its_job() {
    let store = TableStore::default();
    store.0.lock().keeps_none = true;
    a_key_outlasts_the_record_of_its_job(&store, NOW).await;
}
