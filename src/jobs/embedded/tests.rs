//! The embedded store: the suite of every store, and what a file adds to it.
//!
//! Files are in folders of their own; nothing here waits for a fixed time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use infergate_core::job::{JobState, StoreTime, SubmitResult, WorkerId, WriteResult};
use tempfile::TempDir;

use super::{EmbeddedSettings, EmbeddedStore};
use crate::jobs::conformance::{id, job, marked_ends, metrics, success, suite, take};
use crate::jobs::signals::JobSignals;
use crate::jobs::store::{JobStore, StoreError};
use crate::jobs::store_clock::StoreClock;
use crate::telemetry::Clock;

const HOUR_MS: u64 = 3_600_000;

fn clock() -> StoreClock {
    StoreClock::start(Clock::start())
}

fn open(folder: &Path) -> EmbeddedStore {
    let settings = Arc::new(EmbeddedSettings::default());
    settings.keep_ms.store(HOUR_MS, Ordering::Relaxed);
    open_with(folder, settings)
}

fn open_with(folder: &Path, settings: Arc<EmbeddedSettings>) -> EmbeddedStore {
    let (signals, metrics) = (Arc::new(JobSignals::default()), metrics());
    EmbeddedStore::open(folder, clock(), settings, signals, marked_ends(), metrics).unwrap()
}

/// Waits until the threads of a dropped store have let go of its folder.
async fn open_again(folder: &Path) -> EmbeddedStore {
    loop {
        let store = open(folder);
        if store.problem().is_none() {
            return store;
        }
        drop(store);
        tokio::task::yield_now().await;
    }
}

fn now() -> StoreTime {
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
            let submitted = store.submit(job(number, "a", now())).await;
            assert_eq!(submitted, Ok(SubmitResult::Created));
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
    let again = store.submit(job(0, "a", now())).await;
    assert_eq!(again, Ok(SubmitResult::Exists(state)));
}

#[tokio::test]
async fn a_store_is_one_processes_and_says_so() {
    let folder = TempDir::new().unwrap();
    let first = open(folder.path());
    let second = open(folder.path());
    let problem = second.problem().unwrap();
    assert!(problem.contains("another process has it"), "{problem}");
    let refused = second.submit(job(1, "a", now())).await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(
        first.submit(job(1, "a", now())).await,
        Ok(SubmitResult::Created)
    );
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
    store.submit(job(1, "a", now())).await.unwrap();
    let run = take(&store, &worker, 1).await.remove(0);
    store.finish(&worker, success(&run)).await.unwrap();
    // Kept for no time: the next round of the owner removes it.
    while store.get(id(1)).await.unwrap().is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.pending_events(10).await.unwrap().len(), 1);
}
