//! The embedded store: the suite of every store, and what a file adds to it.
//!
//! Files are in folders of their own; nothing here waits for a fixed time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use infergate_core::job::{
    CancelResult, CanceledBy, HeldJobs, JobOutcome, JobProgress, JobState, Release, ReleaseCause,
    StoreTime, SubmitResult, WorkerId, WriteResult,
};
use tempfile::TempDir;

use super::schema::STEPS;
use super::{EmbeddedSettings, EmbeddedStore};
use crate::jobs::conformance::{
    a_key_outlasts_the_record_of_its_job, deployment, id, job, marked_ends, metrics, submit,
    success, suite, take,
};
use crate::jobs::deployments::{DeploymentResult, DeploymentWrite};
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{EndRecord, EndRenderer, JobStore, StoreError};
use crate::jobs::store_clock::StoreClock;
use crate::telemetry::Clock;

const HOUR_MS: u64 = 3_600_000;

pub fn clock() -> StoreClock {
    StoreClock::start(Clock::start())
}

/// Settings that keep ended jobs for an hour.
pub fn settings() -> Arc<EmbeddedSettings> {
    let settings = Arc::new(EmbeddedSettings::default());
    settings.keep_ms.store(HOUR_MS, Ordering::Relaxed);
    settings
}

pub fn open(folder: &Path) -> EmbeddedStore {
    open_with(folder, settings())
}

fn open_with(folder: &Path, settings: Arc<EmbeddedSettings>) -> EmbeddedStore {
    let (signals, metrics) = (Arc::new(JobSignals::default()), metrics());
    EmbeddedStore::open(folder, clock(), settings, signals, marked_ends(), metrics).unwrap()
}

/// Opens the folder after the threads of a dropped store have let go of it: before, it would be a take-over, in which
/// runs go on.
async fn open_again(folder: &Path) -> EmbeddedStore {
    while lock_is_held(folder) {
        tokio::task::yield_now().await;
    }
    open(folder)
}

pub fn now() -> StoreTime {
    clock().now()
}

#[tokio::test]
async fn the_store_does_what_every_store_does() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path());
    suite(&store, now()).await;
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart_and_runs_of_the_former_process_are_queued_again()
 {
    let folder = TempDir::new().unwrap();
    let worker = WorkerId::new("w", 1);
    let (ended, running) = {
        let store = open(folder.path());
        for number in 0..3 {
            let submitted = submit(&store, job(number, "a", now())).await;
            assert_eq!(submitted, SubmitResult::Created);
        }
        let mut runs = take(&store, &worker, 2).await;
        let done = store.finish(&worker, success(&runs[0])).await;
        assert_eq!(done, Ok(WriteResult::Done));
        (runs.remove(0).taken.definition.id, runs.remove(0))
    };
    let store = open_again(folder.path()).await;
    let kept = store.get(ended).await.unwrap().unwrap();
    assert_eq!(kept.state, JobState::Succeeded);
    assert_eq!(store.pending_events(10).await.unwrap().len(), 1);
    let lost = running.taken.definition.id;
    let kept = store.get(lost).await.unwrap().unwrap();
    assert_eq!(
        (kept.state, kept.progress.attempts.counted),
        (JobState::Queued, 1)
    );
    let late = store.finish(&worker, success(&running)).await;
    assert_eq!(late, Ok(WriteResult::Stale));
    let next = WorkerId::new("w", 2);
    let runs = take(&store, &next, 5).await;
    let taken: Vec<_> = runs
        .iter()
        .map(|run| (run.taken.definition.id, run.taken.progress.epoch))
        .collect();
    assert_eq!(taken[0], (lost, 2));
    assert_eq!(taken[1].1, 1);
    let state = store.get(id(0)).await.unwrap().unwrap().state;
    let again = submit(&store, job(0, "a", now())).await;
    assert_eq!(again, SubmitResult::Exists(state));
}

#[tokio::test]
async fn a_file_of_the_first_version_gets_its_missing_tables_and_keeps_its_jobs() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("jobs.sqlite");
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch(STEPS[0]).unwrap();
    file.pragma_update(None, "user_version", 1).unwrap();
    let json = |value| serde_json::to_string(&value).unwrap();
    for (number, ended) in [(1, None), (2, Some(i64::MAX))] {
        let definition = job(number, "a", now()).job.definition;
        file.execute(
            "INSERT INTO jobs (id, account, kind, state, definition, progress, payload, ended, expires, result)
             VALUES (?1, 'a', 'prediction', ?2, ?3, ?4, x'70', ?5, ?5, ?6)",
            rusqlite::params![
                definition.id.as_str(),
                ended.map_or("queued", |_| "succeeded"),
                json(serde_json::to_value(&definition).unwrap()),
                json(serde_json::to_value(JobProgress::default()).unwrap()),
                ended,
                ended.map(|_| b"{}"),
            ],
        )
        .unwrap();
    }
    drop(file);
    let made = {
        let store = open(folder.path());
        assert_eq!(store.problem(), None);
        let kept = store.get(id(1)).await.unwrap().unwrap();
        assert_eq!(kept.state, JobState::Queued);
        let kept = store.get(id(2)).await.unwrap().unwrap();
        assert_eq!(
            (kept.state, kept.result.as_deref()),
            (JobState::Succeeded, Some(&b"{}"[..]))
        );
        let run = take(&store, &WorkerId::new("w", 1), 2).await.remove(0);
        assert_eq!(
            (run.taken.definition.id, &run.payload[..]),
            (id(1), &b"p"[..])
        );
        let new = deployment("a", "a/x", 1, now());
        let write = DeploymentWrite::Create(new.clone(), 1);
        let written = store.write_deployment(write).await;
        assert_eq!(written, Ok(DeploymentResult::Done));
        new
    };
    let store = open_again(folder.path()).await;
    let found = store.deployments().of_name("a/x").unwrap();
    assert_eq!(found.account.as_ref(), Some(&made.account));
    assert_eq!(found.released, Some(made.released));
}

#[tokio::test]
async fn a_file_of_a_later_version_is_left_alone() {
    let folder = TempDir::new().unwrap();
    drop(open(folder.path()));
    while lock_is_held(folder.path()) {
        tokio::task::yield_now().await;
    }
    let path = folder.path().join("jobs.sqlite");
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch("PRAGMA user_version = 99").unwrap();
    drop(file);
    let store = open(folder.path());
    let problem = store.problem().unwrap();
    assert!(problem.contains("the file has version 99"), "{problem}");
}

#[tokio::test]
async fn a_store_of_a_process_that_does_not_let_go_is_not_opened() {
    let folder = TempDir::new().unwrap();
    let lock = std::fs::File::create(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let store = open(folder.path());
    let problem = store.problem().unwrap();
    assert!(problem.contains("another process has it"), "{problem}");
    let refused = store.submit(job(1, "a", now())).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_second_process_takes_the_store_over_and_gets_the_ends_of_the_first() {
    let folder = TempDir::new().unwrap();
    let first = open(folder.path());
    let worker = WorkerId::new("w", 1);
    for number in 1..=3 {
        submit(&first, job(number, "a", now())).await;
    }
    let runs = take(&first, &worker, 3).await;
    let second = open(folder.path());
    assert_eq!(second.problem(), None);
    let state = async |store: &EmbeddedStore, number| {
        let found = store.get(id(number)).await.unwrap().unwrap();
        (found.state, found.progress.attempts.counted)
    };
    assert_eq!(
        state(&second, 1).await,
        (JobState::Running, 0),
        "it runs there"
    );
    let submitted = submit(&first, job(4, "b", now())).await;
    assert_eq!(submitted, SubmitResult::Created);
    let again = second.submit(job(4, "b", now())).await;
    assert_eq!(again, Ok(SubmitResult::Exists(JobState::Queued)));
    let end = success(&runs[0]);
    let job_of_end = end.end.id;
    assert_eq!(
        first.finish(&worker, end.clone()).await,
        Ok(WriteResult::Done)
    );
    assert_eq!(first.finish(&worker, end).await, Ok(WriteResult::Already));
    let kept = second.get(job_of_end).await.unwrap().unwrap();
    assert_eq!(kept.state, JobState::Succeeded);
    assert_eq!(kept.result, Some(success(&runs[0]).record.result));
    assert!(first.pending_events(10).await.unwrap().is_empty());
    assert_eq!(second.pending_events(10).await.unwrap().len(), 1);
    let release = Release {
        id: runs[1].taken.definition.id,
        epoch: 1,
        cause: ReleaseCause::Drain,
        not_before: None,
    };
    assert_eq!(first.release(&worker, release).await, Ok(WriteResult::Done));
    // The first process ends without a word about its last job.
    drop(first);
    let lost = runs[2].taken.definition.id;
    while second.get(lost).await.unwrap().unwrap().state == JobState::Running {
        tokio::task::yield_now().await;
    }
    let next = WorkerId::new("w", 2);
    let mut taken: Vec<_> = take(&second, &next, 9)
        .await
        .iter()
        .map(|run| run.taken.progress.attempts.counted)
        .collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 0, 1]);
}

#[tokio::test]
async fn a_store_that_is_lost_is_never_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("jobs.sqlite");
    drop(open(folder.path()));
    drop(open_again(folder.path()).await);
    for is_removed in [false, true] {
        // The former store closes its file after its drop.
        while lock_is_held(folder.path()) {
            tokio::task::yield_now().await;
        }
        match is_removed {
            false => std::fs::write(&path, []).unwrap(),
            true => std::fs::remove_file(&path).unwrap(),
        }
        let store = open(folder.path());
        let problem = store.problem().unwrap();
        assert!(problem.contains("missing or empty"), "{problem}");
        assert!(store.submit(job(1, "a", now())).await.is_err());
        assert!(std::fs::metadata(&path).map_or(0, |file| file.len()) == 0);
    }
}

pub fn lock_is_held(folder: &Path) -> bool {
    let lock = std::fs::File::open(folder.join("lock")).unwrap();
    lock.try_lock().is_err()
}

/// Another program that writes to the file, as an operator's shell may.
fn hold(folder: &Path) -> rusqlite::Connection {
    let other = rusqlite::Connection::open(folder.join("jobs.sqlite")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test]
async fn a_submit_waits_less_than_a_second_and_what_nobody_waits_for_is_not_begun() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path());
    let other = hold(folder.path());
    let timer = Clock::start();
    let (first, second) = tokio::join!(
        store.submit(job(1, "a", now())),
        // Comes while the thread waits for the file, so that it is not begun.
        async {
            tokio::task::yield_now().await;
            store.submit(job(2, "a", now())).await
        }
    );
    assert_eq!(
        (first, second),
        (Err(StoreError::Timeout), Err(StoreError::Timeout))
    );
    let took_us = timer.micros();
    assert!(took_us < 1_500_000, "{took_us} us");
    drop(other);
    let created = loop {
        match store.submit(job(3, "a", now())).await {
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(StoreError::Timeout) => break submit(&store, job(3, "a", now())).await,
            result => break result.unwrap(),
        }
    };
    // The first of two may have come through.
    let is_kept = [
        SubmitResult::Created,
        SubmitResult::Exists(JobState::Queued),
    ];
    assert!(is_kept.contains(&created), "{created:?}");
    for late in [1, 2] {
        assert!(store.get(id(late)).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_full_disk_refuses_submits_and_the_ends_of_runs_are_taken_once_there_is_room() {
    let folder = TempDir::new().unwrap();
    let settings = Arc::new(EmbeddedSettings::default());
    settings.keep_ms.store(HOUR_MS, Ordering::Relaxed);
    let store = open_with(folder.path(), Arc::clone(&settings));
    let worker = WorkerId::new("w", 1);
    submit(&store, job(1, "a", now())).await;
    let run = take(&store, &worker, 1).await.remove(0);
    settings.pages_max.store(1, Ordering::Relaxed);
    let mut large = job(2, "a", now());
    large.payload = vec![b'x'; 200_000].into();
    let refused = store.submit(large.clone()).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    let problem = loop {
        match store.problem() {
            Some(problem) => break problem,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(problem.contains("full"), "{problem}");
    let mut end = success(&run);
    end.record.result = vec![b'y'; 200_000].into();
    assert!(store.finish(&worker, end.clone()).await.is_err());
    assert_eq!(
        store.get(id(1)).await.unwrap().unwrap().state,
        JobState::Running,
        "reads go on"
    );
    settings.pages_max.store(0, Ordering::Relaxed);
    let written = loop {
        match store.finish(&worker, end.clone()).await {
            Ok(result) => break result,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(written, WriteResult::Done);
    assert_eq!(store.problem(), None);
    assert_eq!(submit(&store, large).await, SubmitResult::Created);
}

#[tokio::test]
async fn a_file_that_is_no_store_is_never_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("jobs.sqlite");
    let text = b"not a database, and longer than its header would be".repeat(4);
    std::fs::write(&path, &text).unwrap();
    let store = open(folder.path());
    let problem = store.problem().unwrap();
    assert!(problem.contains("jobs.sqlite"), "{problem}");
    assert!(store.submit(job(1, "a", now())).await.is_err());
    assert!(store.get(id(1)).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), text);
}

#[tokio::test]
async fn ended_jobs_go_when_their_time_is_over() {
    let folder = TempDir::new().unwrap();
    let settings = Arc::new(EmbeddedSettings::default());
    let store = open_with(folder.path(), settings);
    let worker = WorkerId::new("w", 1);
    submit(&store, job(1, "a", now())).await;
    let run = take(&store, &worker, 1).await.remove(0);
    store.finish(&worker, success(&run)).await.unwrap();
    // Kept for no time: the next round of the owner removes it.
    while store.get(id(1)).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.pending_events(10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_key_outlasts_the_record_of_its_job_and_tells_how_it_ended() {
    let folder = TempDir::new().unwrap();
    let store = open_with(folder.path(), Arc::default());
    a_key_outlasts_the_record_of_its_job(&store, now()).await;
}

#[tokio::test]
async fn removal_goes_on_as_long_as_there_are_rows_whose_time_is_over() {
    const ROWS: i64 = 15_000;
    let folder = TempDir::new().unwrap();
    drop(open(folder.path()));
    while lock_is_held(folder.path()) {
        tokio::task::yield_now().await;
    }
    let path = folder.path().join("jobs.sqlite");
    let file = rusqlite::Connection::open(&path).unwrap();
    file.execute_batch(&format!(
        "BEGIN;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
         INSERT INTO jobs (place, id, account, kind, definition, payload)
             SELECT i, 'old-' || i, 'a', 'prediction', '{{}}', x'70' FROM n;
         INSERT INTO ends (place, state, reason, ended, expires, progress, result)
             SELECT place, 'failed', NULL, place, place, '{{}}', x'' FROM jobs;
         COMMIT;"
    ))
    .unwrap();
    let timer = Clock::start();
    let _store = open(folder.path());
    let left = || file.query_row("SELECT count(*) FROM ends", [], |row| row.get::<_, i64>(0));
    while left().unwrap() > 0 {
        tokio::task::yield_now().await;
    }
    // A thousand a second would take fifteen.
    let took_us = timer.micros();
    assert!(took_us < 8_000_000, "{took_us} us");
}

#[tokio::test]
async fn the_repeat_of_an_end_is_known_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let worker = WorkerId::new("w", 1);
    let end = {
        let store = open(folder.path());
        submit(&store, job(1, "a", now())).await;
        let end = success(&take(&store, &worker, 1).await.remove(0));
        let done = store.finish(&worker, end.clone()).await;
        assert_eq!(done, Ok(WriteResult::Done));
        end
    };
    let store = open_again(folder.path()).await;
    let repeated = store.finish(&worker, end.clone()).await;
    assert_eq!(repeated, Ok(WriteResult::Already));
    let other = store.finish(&WorkerId::new("w", 2), end.clone()).await;
    assert_eq!(other, Ok(WriteResult::Stale));
    let mut later = end;
    later.end.epoch = 2;
    let later = store.finish(&worker, later).await;
    assert_eq!(later, Ok(WriteResult::Stale));
}

/// Renderer that fails once, as a fault of the program would.
struct FaultyOnce(AtomicBool);

impl EndRenderer for FaultyOnce {
    fn render(&self, outcome: &JobOutcome, payload: &[u8]) -> EndRecord {
        assert!(self.0.swap(true, Ordering::Relaxed), "planted");
        marked_ends().render(outcome, payload)
    }
}

#[tokio::test]
async fn a_panic_in_a_write_closes_the_store_which_opens_again_as_it_was() {
    let folder = TempDir::new().unwrap();
    let settings = Arc::new(EmbeddedSettings::default());
    settings.keep_ms.store(HOUR_MS, Ordering::Relaxed);
    let (signals, renderer) = (Arc::default(), Arc::new(FaultyOnce(AtomicBool::new(false))));
    let store = EmbeddedStore::open(
        folder.path(),
        clock(),
        settings,
        signals,
        renderer,
        metrics(),
    )
    .unwrap();
    submit(&store, job(1, "a", now())).await;
    assert!(store.cancel(id(1), CanceledBy::User).await.is_err());
    let problem = loop {
        match store.problem() {
            Some(problem) => break problem,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(problem.contains("fault of this program"), "{problem}");
    let kept = store.get(id(1)).await.unwrap().unwrap();
    assert_eq!(kept.state, JobState::Queued);
    let canceled = loop {
        match store.cancel(id(1), CanceledBy::User).await {
            Ok(canceled) => break canceled,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(canceled, CancelResult::Ended(JobState::Canceled));
    assert_eq!(store.problem(), None);
}

#[tokio::test]
async fn a_heartbeat_after_a_reopen_finds_the_jobs_of_an_answer_that_was_lost() {
    let folder = TempDir::new().unwrap();
    let renderer = Arc::new(FaultyOnce(AtomicBool::new(false)));
    let (signals, metrics) = (Arc::default(), metrics());
    let store = EmbeddedStore::open(
        folder.path(),
        clock(),
        settings(),
        signals,
        renderer,
        metrics,
    )
    .unwrap();
    let worker = WorkerId::new("w", 1);
    submit(&store, job(1, "a", now())).await;
    assert_eq!(take(&store, &worker, 1).await.len(), 1, "is not heard");
    submit(&store, job(2, "a", now())).await;
    assert!(store.cancel(id(2), CanceledBy::User).await.is_err());
    let reply = loop {
        match store.heartbeat(&worker, HeldJobs::default()).await {
            Ok(reply) => break reply,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(reply.orphans, [id(1)]);
    let kept = store.get(id(1)).await.unwrap().unwrap();
    let attempts = kept.progress.attempts.counted;
    assert_eq!((kept.state, attempts), (JobState::Queued, 0));
}
