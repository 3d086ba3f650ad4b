//! Conformance of stores of jobs: a suite that runs against any of them.
//!
//! Not the meaning of the verbs, which the table's own tests hold: here the same table is behind each store, alone or
//! with a file.

use std::sync::Arc;

use infergate_core::job::{
    CancelResult, CanceledBy, DeployableKey, EndReason, HeldJobs, JobClass, JobDefinition, JobId,
    JobKind, JobLimits, JobState, NewJob, QueueLimits, Release, ReleaseCause, RunEnd, StoreTime,
    SubmitResult, TakeRequest, WorkerId, WriteResult,
};
use infergate_core::model::{FairBy, FlowMode};
use infergate_core::{AccountId, Millis};

use super::deployments::{DeploymentResult, DeploymentWrite, StoredDeployment};
use super::store::{
    EndRecord, FormerSubmit, IdempotencyKey, JobListing, JobStore, NewStoredJob, StoreError,
    StoredEnd, StoredRun,
};

/// Job of an account in the queue `vp-a`.
pub fn job(number: u64, account: &str, now: StoreTime) -> NewStoredJob {
    let definition = JobDefinition {
        id: id(number),
        kind: JobKind::Prediction,
        deployable: "vp-a".into(),
        account: account.into(),
        model: "m".into(),
        flow: "".into(),
        class: JobClass::Normal,
        weight: 1,
        fair_by: FairBy::Time,
        created: now,
        limits: JobLimits {
            deadline: None,
            lifetime: now + Millis(3_600_000),
            run_timeout_ms: 600_000,
        },
        start_until: now + Millis(3_600_000),
        attempts_max: 2,
        cancel_grace_ms: 10_000,
        bytes: 100,
        has_webhook: false,
    };
    NewStoredJob {
        job: NewJob {
            definition,
            flows: FlowMode::Account,
            limits: QueueLimits {
                queue_max: 10,
                queue_max_per_account: 5,
                bytes_max: 1 << 20,
            },
        },
        payload: format!("payload {number}").into_bytes().into(),
        key: None,
    }
}

/// Id of a numbered job.
pub fn id(number: u64) -> JobId {
    JobId::from_random(None, u128::from(number).to_be_bytes())
}

/// Submits as the gateway does: a submit whose outcome is unknown, as on a disk that takes its time, is repeated.
pub async fn submit(store: &dyn JobStore, job: NewStoredJob) -> SubmitResult {
    let mut first = store.submit(job.clone()).await;
    let is_unknown = first == Err(StoreError::Timeout);
    while first == Err(StoreError::Timeout) {
        first = store.submit(job.clone()).await;
    }
    match first.unwrap() {
        SubmitResult::Exists(JobState::Queued) if is_unknown => SubmitResult::Created,
        result => result,
    }
}

/// Takes up to `count` jobs of the queue.
pub async fn take(store: &dyn JobStore, worker: &WorkerId, count: usize) -> Vec<StoredRun> {
    let request = TakeRequest {
        deployable: "vp-a".into(),
        count,
        turn: 1,
        preferred_flow: None,
    };
    store.take(worker, request).await.unwrap()
}

/// End of a run with a result.
pub fn success(run: &StoredRun) -> StoredEnd {
    StoredEnd {
        end: RunEnd {
            id: run.taken.definition.id,
            epoch: run.taken.progress.epoch,
            state: JobState::Succeeded,
            reason: None,
        },
        record: EndRecord {
            result: b"{}".to_vec().into(),
            event: format!("event of {}\n", run.taken.definition.id)
                .into_bytes()
                .into(),
        },
    }
}

/// Runs the whole suite against an empty store.
pub async fn suite(store: &dyn JobStore, now: StoreTime) {
    submits_are_idempotent_and_bounded(store, now).await;
    a_run_ends_once(store).await;
    a_release_raises_the_epoch_and_attempts_run_out(store).await;
    cancels_end_queued_jobs_and_mark_running_ones(store).await;
    lists_are_newest_first_and_by_account(store).await;
    a_paused_queue_gives_nothing_and_an_unserved_one_is_emptied(store, now).await;
    a_heartbeat_finds_orphans_lost_jobs_and_cancels(store, now).await;
    time_ends_jobs_and_brings_released_ones_back(store).await;
    deployments_have_one_maker_and_releases_in_a_row(store, now).await;
}

async fn submits_are_idempotent_and_bounded(store: &dyn JobStore, now: StoreTime) {
    let submit = async |job| submit(store, job).await;
    for number in 0..5 {
        assert_eq!(submit(job(number, "a", now)).await, SubmitResult::Created);
    }
    let again = submit(job(0, "a", now)).await;
    assert_eq!(again, SubmitResult::Exists(JobState::Queued));
    let full = submit(job(9, "a", now)).await;
    assert!(matches!(full, SubmitResult::QueueFull { .. }), "{full:?}");
    assert_eq!(store.get(id(9)).await.unwrap().map(|job| job.state), None);
    let keyed = |number, digest| NewStoredJob {
        key: Some(IdempotencyKey {
            key: "k".into(),
            digest: [digest; 32],
        }),
        ..job(number, "b", now)
    };
    assert_eq!(submit(keyed(10, 1)).await, SubmitResult::Created);
    assert_eq!(submit(keyed(11, 1)).await, SubmitResult::Duplicate(id(10)));
    assert_eq!(submit(keyed(12, 2)).await, SubmitResult::KeyMismatch);
    let former = async |account: &str, digest| {
        let key = keyed(0, digest).key.unwrap();
        let account = AccountId::from(account);
        store.former_submit(&account, &key, now).await.unwrap()
    };
    let used = |is_same| {
        Some(FormerSubmit {
            job: id(10),
            is_same,
        })
    };
    assert_eq!(former("b", 1).await, used(true));
    assert_eq!(former("b", 2).await, used(false));
    assert_eq!(former("a", 1).await, None, "of another account");
    for (number, expected) in [
        (0, Some(1)),
        (10, Some(2)),
        (1, Some(3)),
        (4, Some(6)),
        (9, None),
    ] {
        assert_eq!(store.position(id(number)).await, Ok(expected), "{number}");
    }
    let kept = store.get(id(3)).await.unwrap().unwrap();
    assert_eq!(&kept.payload[..], b"payload 3");
    assert_eq!((kept.state, kept.progress.epoch), (JobState::Queued, 0));
}

async fn a_run_ends_once(store: &dyn JobStore) {
    let worker = WorkerId::new("w", 1);
    let runs = take(store, &worker, 2).await;
    assert_eq!(runs.len(), 2);
    assert!(runs[0].payload.starts_with(b"payload "));
    let end = success(&runs[0]);
    let running = runs[0].taken.definition.id;
    assert_eq!(store.position(running).await, Ok(None));
    assert_eq!(
        store.finish(&worker, end.clone()).await,
        Ok(WriteResult::Done)
    );
    assert_eq!(
        store.finish(&worker, end.clone()).await,
        Ok(WriteResult::Already)
    );
    let other = WorkerId::new("w", 2);
    assert_eq!(store.finish(&other, end).await, Ok(WriteResult::Stale));
    let ended = store
        .get(runs[0].taken.definition.id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(ended.state, JobState::Succeeded);
    assert_eq!(ended.result.as_deref(), Some(&b"{}"[..]));
    let held = HeldJobs {
        jobs: vec![runs[1].taken.definition.id],
        oldest_take: None,
    };
    let reply = store.heartbeat(&worker, held).await.unwrap();
    assert!(reply.is_known && reply.orphans.is_empty() && reply.lost.is_empty());
    let events = store.pending_events(10).await.unwrap();
    assert_eq!(events.len(), 1);
    store
        .acknowledge_events(vec![events[0].place])
        .await
        .unwrap();
    assert!(store.pending_events(10).await.unwrap().is_empty());
    store.retire(&worker).await.unwrap();
}

async fn a_release_raises_the_epoch_and_attempts_run_out(store: &dyn JobStore) {
    let worker = WorkerId::new("w", 3);
    // The job that was released by the retired worker goes first.
    let first = take(store, &worker, 1).await.remove(0);
    assert_eq!(first.taken.progress.epoch, 2);
    let job = first.taken.definition.id;
    let release = |epoch| Release {
        id: job,
        epoch,
        cause: ReleaseCause::ServerLost,
        not_before: None,
    };
    assert_eq!(
        store.release(&worker, release(1)).await,
        Ok(WriteResult::Stale)
    );
    assert_eq!(
        store.release(&worker, release(2)).await,
        Ok(WriteResult::Done)
    );
    let second = take(store, &worker, 1).await.remove(0);
    assert_eq!(
        (second.taken.definition.id, second.taken.progress.epoch),
        (job, 3)
    );
    assert_eq!(
        store.release(&worker, release(3)).await,
        Ok(WriteResult::Done)
    );
    let failed = store.get(job).await.unwrap().unwrap();
    assert_eq!(failed.reason, Some(EndReason::ServerLost));
    assert_eq!(failed.result.as_deref(), Some(&b"unrun"[..]));
}

async fn cancels_end_queued_jobs_and_mark_running_ones(store: &dyn JobStore) {
    let worker = WorkerId::new("w", 4);
    let by = CanceledBy::User;
    let run = take(store, &worker, 1).await.remove(0);
    let running = run.taken.definition.id;
    let requested = CancelResult::Requested(worker.clone());
    assert_eq!(store.cancel(running, by).await, Ok(requested));
    assert_eq!(
        store.finish(&worker, success(&run)).await,
        Ok(WriteResult::Done)
    );
    let ended = CancelResult::AlreadyEnded(JobState::Succeeded);
    assert_eq!(store.cancel(running, by).await, Ok(ended));
    let queued = CancelResult::Ended(JobState::Canceled);
    assert_eq!(store.cancel(id(10), by).await, Ok(queued));
    assert_eq!(store.cancel(id(99), by).await, Ok(CancelResult::Unknown));
}

async fn lists_are_newest_first_and_by_account(store: &dyn JobStore) {
    let list = async |account: Option<&str>, before, limit| {
        let listing = JobListing {
            account: account.map(Into::into),
            kind: Some(JobKind::Prediction),
            state: None,
            model: None,
            before,
            limit,
        };
        let listed = store.list(listing).await.unwrap();
        assert_eq!(listed.next().is_some(), listed.has_more);
        let is_whole = limit == 100;
        assert_eq!(listed.has_more, !is_whole);
        listed.jobs
    };
    let all = list(None, None, 100).await;
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by_key(|job| -job.place));
    let own = list(Some("a"), None, 2).await;
    let ids: Vec<JobId> = own.iter().map(|job| job.definition.id).collect();
    assert_eq!(ids, [id(4), id(3)]);
    let rest = list(Some("a"), Some(own[1].place), 100).await;
    assert_eq!(rest.len(), 3);
    assert_eq!(list(Some("b"), None, 100).await.len(), 1);
    assert!(list(Some("c"), None, 100).await.is_empty());
}

async fn a_paused_queue_gives_nothing_and_an_unserved_one_is_emptied(
    store: &dyn JobStore,
    now: StoreTime,
) {
    let key = DeployableKey::from("vp-a");
    let worker = WorkerId::new("w", 5);
    assert_eq!(
        submit(store, job(20, "a", now)).await,
        SubmitResult::Created
    );
    store.set_paused(key.clone(), true).await.unwrap();
    assert!(take(store, &worker, 10).await.is_empty());
    let queued = store.stats().await.unwrap().deployables[0].queued;
    let ended = store
        .end_queued(key, EndReason::ModelRemoved)
        .await
        .unwrap();
    assert_eq!(ended, queued as usize);
    let failed = store.get(id(20)).await.unwrap().unwrap();
    assert_eq!(
        (failed.state, failed.reason),
        (JobState::Failed, Some(EndReason::ModelRemoved))
    );
    assert_eq!(store.stats().await.unwrap().live, 0);
}

async fn a_heartbeat_finds_orphans_lost_jobs_and_cancels(store: &dyn JobStore, now: StoreTime) {
    let (worker, next) = (WorkerId::new("w", 6), WorkerId::new("w", 7));
    store.set_paused("vp-a".into(), false).await.unwrap();
    for number in 30..33 {
        submit(store, job(number, "c", now)).await;
    }
    let runs = take(store, &worker, 3).await;
    let ids: Vec<JobId> = runs.iter().map(|run| run.taken.definition.id).collect();
    let by = CanceledBy::Operator;
    let requested = CancelResult::Requested(worker.clone());
    assert_eq!(store.cancel(ids[1], by).await, Ok(requested));
    let held = |oldest_take| HeldJobs {
        jobs: vec![ids[1], ids[2], id(99)],
        oldest_take,
    };
    let taken = runs[0].taken.progress.taken;
    let reply = store.heartbeat(&worker, held(taken)).await.unwrap();
    assert!(
        reply.is_known && reply.orphans.is_empty(),
        "it is on its way"
    );
    assert_eq!(
        (reply.canceled, reply.lost),
        (vec![(ids[1], by)], vec![id(99)])
    );
    let reply = store.heartbeat(&worker, held(None)).await.unwrap();
    assert_eq!(reply.orphans, [ids[0]]);
    let again = take(store, &next, 3).await.remove(0);
    let progress = &again.taken.progress;
    assert_eq!(again.taken.definition.id, ids[0]);
    assert_eq!((progress.epoch, progress.attempts.counted), (2, 0));
    let late = store.finish(&worker, success(&runs[0])).await;
    assert_eq!(late, Ok(WriteResult::Stale));
    let all = HeldJobs {
        jobs: ids.clone(),
        oldest_take: None,
    };
    let reply = store.heartbeat(&worker, all).await.unwrap();
    assert_eq!(reply.lost, [ids[0]], "it is another's");
    for (worker, run) in [(&next, &again), (&worker, &runs[1]), (&worker, &runs[2])] {
        let done = store.finish(worker, success(run)).await;
        assert_eq!(done, Ok(WriteResult::Done));
    }
}

/// Asks until the job has ended. A store under test has a clock that goes on.
async fn ended(store: &dyn JobStore, job: JobId) -> (JobState, Option<EndReason>) {
    loop {
        let found = store.get(job).await.unwrap().unwrap();
        if found.state.is_terminal() {
            return (found.state, found.reason);
        }
        tokio::task::yield_now().await;
    }
}

async fn time_ends_jobs_and_brings_released_ones_back(store: &dyn JobStore) {
    let worker = WorkerId::new("w", 8);
    let now = store.get(id(30)).await.unwrap().unwrap().ended.unwrap();
    let mut late = job(40, "d", now);
    late.job.definition.limits.deadline = Some(now);
    submit(store, late).await;
    let aborted = (JobState::Aborted, Some(EndReason::Deadline));
    assert_eq!(ended(store, id(40)).await, aborted);
    let mut long = job(41, "d", now);
    long.job.definition.limits.run_timeout_ms = 20;
    long.job.definition.cancel_grace_ms = 20;
    submit(store, long).await;
    assert_eq!(take(store, &worker, 1).await.len(), 1);
    let timed_out = (JobState::Failed, Some(EndReason::Timeout));
    assert_eq!(ended(store, id(41)).await, timed_out);
    submit(store, job(42, "d", now)).await;
    let run = take(store, &worker, 1).await.remove(0);
    let due = run.taken.progress.taken.unwrap() + Millis(100);
    let release = Release {
        id: id(42),
        epoch: 1,
        cause: ReleaseCause::Drain,
        not_before: Some(due),
    };
    let released = store.release(&worker, release).await;
    assert_eq!(released, Ok(WriteResult::Done));
    let again = loop {
        match take(store, &worker, 1).await.pop() {
            Some(again) => break again,
            None => tokio::task::yield_now().await,
        }
    };
    let progress = &again.taken.progress;
    assert!(progress.epoch == 2 && progress.taken >= Some(due));
    let done = store.finish(&worker, success(&again)).await;
    assert_eq!(done, Ok(WriteResult::Done));
}

/// Runs against an empty store that keeps ended jobs for no time.
pub async fn a_key_outlasts_the_record_of_its_job(store: &dyn JobStore, now: StoreTime) {
    let worker = WorkerId::new("w", 1);
    let keyed = |number| NewStoredJob {
        key: Some(IdempotencyKey {
            key: "k".into(),
            digest: [1; 32],
        }),
        ..job(number, "a", now)
    };
    submit(store, keyed(1)).await;
    submit(store, job(2, "a", now)).await;
    assert_eq!(store.removed(id(1)).await, Ok(None), "its record is there");
    for run in take(store, &worker, 2).await {
        store.finish(&worker, success(&run)).await.unwrap();
    }
    for number in [1, 2] {
        while store.get(id(number)).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    }
    let kept = store.removed(id(1)).await.unwrap().unwrap();
    let ended = (kept.state, kept.reason, kept.epoch);
    assert_eq!(ended, (JobState::Succeeded, None, 1));
    assert!(kept.started.unwrap() <= kept.ended && kept.created <= kept.ended);
    assert_eq!(store.removed(id(2)).await, Ok(None), "nothing asks for it");
    let again = submit(store, keyed(3)).await;
    assert_eq!(again, SubmitResult::Duplicate(id(1)));
}

/// Deployment that an account makes.
pub fn deployment(account: &str, name: &str, release: u32, now: StoreTime) -> StoredDeployment {
    let spec = serde_json::json!({ "id": name, "model": "m" });
    StoredDeployment {
        account: account.into(),
        spec: serde_json::from_value(spec).unwrap(),
        release,
        released: now,
    }
}

async fn deployments_have_one_maker_and_releases_in_a_row(store: &dyn JobStore, now: StoreTime) {
    let write = async |write| store.write_deployment(write).await.unwrap();
    let create = async |account, name| {
        let new = deployment(account, name, 1, now);
        write(DeploymentWrite::Create(new, 2)).await
    };
    let release = async |account, number| {
        let next = deployment(account, "a/x", number, now);
        write(DeploymentWrite::Release(next)).await
    };
    assert_eq!(create("a", "a/x").await, DeploymentResult::Done);
    assert_eq!(create("b", "a/x").await, DeploymentResult::Exists);
    assert_eq!(create("a", "a/y").await, DeploymentResult::Done);
    assert_eq!(create("a", "a/z").await, DeploymentResult::Full);
    assert_eq!(create("b", "b/z").await, DeploymentResult::Done);
    assert_eq!(release("a", 2).await, DeploymentResult::Done);
    assert_eq!(release("a", 2).await, DeploymentResult::Stale);
    assert_eq!(release("b", 3).await, DeploymentResult::Stale);
    assert_eq!(release("a", 3).await, DeploymentResult::Done);
    let remove = async || write(DeploymentWrite::Remove("a/y".into())).await;
    assert_eq!(remove().await, DeploymentResult::Done);
    assert_eq!(remove().await, DeploymentResult::Stale);
    assert_eq!(create("a", "a/z").await, DeploymentResult::Done);
}

/// Marks ends that no worker has written.
pub struct MarkedEnds;

impl super::store::EndRenderer for MarkedEnds {
    fn render(&self, _outcome: &infergate_core::job::JobOutcome, _payload: &[u8]) -> EndRecord {
        EndRecord {
            result: b"unrun".to_vec().into(),
            event: bytes::Bytes::new(),
        }
    }
}

/// Renderer of ends for stores under test.
pub fn marked_ends() -> Arc<dyn super::store::EndRenderer> {
    Arc::new(MarkedEnds)
}

/// Counters for stores under test.
pub fn metrics() -> Arc<crate::telemetry::job_metrics::JobMetrics> {
    Arc::clone(crate::telemetry::Metrics::new("0", "0", 0.0).jobs())
}
