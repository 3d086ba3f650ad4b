//! Hand-over of the embedded store between two processes, whose connection breaks.
//!
//! Both are in this process, one of them played by hand where its disk is to stand still.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use infergate_core::job::{CanceledBy, JobState, WorkerId, WriteResult};
use tempfile::TempDir;

use super::EmbeddedStore;
use super::files::{StoreFiles, lock_life};
use super::handover::{SuccessorListener, ask_for_store, let_go, resume};
use super::tests::{clock, lock_is_held, now, open, settings};
use super::wire::{
    ForwardedAnswer, ForwardedCall, ResumeAnswer, StoreRequest, read_frame, write_frame,
};
use crate::jobs::conformance::{id, job, marked_ends, metrics, submit, success, take};
use crate::jobs::signals::{JobSignals, StopCause};
use crate::jobs::store::JobStore;

fn locked(folder: &Path) -> StoreFiles {
    let mut files = StoreFiles::new(&folder.join("jobs.sqlite"));
    while files.lock().is_err() {
        thread::yield_now();
    }
    files
}

fn accept(listener: &SuccessorListener) -> (StoreRequest, std::os::unix::net::UnixStream) {
    loop {
        match listener.accept() {
            Some(accepted) => return accepted,
            None => thread::yield_now(),
        }
    }
}

#[tokio::test]
async fn an_end_lands_although_the_connection_to_the_successor_breaks() {
    let folder = TempDir::new().unwrap();
    let first = open(folder.path());
    let worker = WorkerId::new("w", 1);
    submit(&first, job(1, "a", now())).await;
    let run = take(&first, &worker, 1).await.remove(0);
    let stream = ask_for_store(folder.path()).unwrap();
    let files = locked(folder.path());
    let listener = SuccessorListener::bind(folder.path()).unwrap();
    drop(stream);
    let successor = thread::spawn(move || {
        let (request, mut stream) = accept(&listener);
        assert_eq!(request, StoreRequest::Resume);
        write_frame(&mut stream, &ResumeAnswer).unwrap();
        loop {
            let (answer, is_last) = match read_frame(&mut stream).unwrap() {
                ForwardedCall::Finish { .. } => (ForwardedAnswer::Written(WriteResult::Done), true),
                _ => (ForwardedAnswer::Unknown, false),
            };
            write_frame(&mut stream, &answer).unwrap();
            if is_last {
                return files;
            }
        }
    });
    let end = success(&run);
    let written = loop {
        match first.finish(&worker, end.clone()).await {
            Ok(written) => break written,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(written, WriteResult::Done);
    drop(successor.join().unwrap());
}

#[tokio::test]
async fn a_predecessor_that_comes_back_has_lost_no_job() {
    let folder = TempDir::new().unwrap();
    let worker = WorkerId::new("w", 1);
    let run = {
        let store = open(folder.path());
        submit(&store, job(1, "a", now())).await;
        take(&store, &worker, 1).await.remove(0)
    };
    let mut files = locked(folder.path());
    let listener = SuccessorListener::bind(folder.path()).unwrap();
    let path = folder.path().to_owned();
    let call = ForwardedCall::finish(worker, success(&run));
    let predecessor = thread::spawn(move || {
        let (request, mut stream) = accept(&listener);
        assert_eq!(request, StoreRequest::LetGo);
        let life = lock_life(&path).unwrap();
        files.unlock();
        let_go(&mut stream, 1).unwrap();
        drop((stream, listener));
        let mut stream = loop {
            match resume(&path) {
                Ok(stream) => break stream,
                Err(_) => thread::yield_now(),
            }
        };
        write_frame(&mut stream, &call).unwrap();
        let answer: ForwardedAnswer = read_frame(&mut stream).unwrap();
        (answer, life)
    });
    let second = open(folder.path());
    let (answer, life) = predecessor.join().unwrap();
    let expected = ForwardedAnswer::Written(WriteResult::Done);
    assert_eq!(format!("{answer:?}"), format!("{expected:?}"));
    drop(life);
    let ended = second.get(id(1)).await.unwrap().unwrap();
    assert_eq!(
        (ended.state, ended.progress.epoch),
        (JobState::Succeeded, 1)
    );
}

#[tokio::test]
async fn a_cancel_at_the_successor_keeps_its_origin() {
    let folder = TempDir::new().unwrap();
    let signals = Arc::new(JobSignals::default());
    let first = EmbeddedStore::open(
        folder.path(),
        clock(),
        settings(),
        Arc::clone(&signals),
        marked_ends(),
        metrics(),
    )
    .unwrap();
    let worker = WorkerId::new("w", 1);
    for number in 1..=2 {
        submit(&first, job(number, "a", now())).await;
    }
    let runs = take(&first, &worker, 2).await;
    let register = |number: usize| {
        let taken = &runs[number].taken;
        signals.register_run(taken.definition.id, taken.progress.epoch)
    };
    let [(_one, mut by_user), (_two, mut by_operator)] = [register(0), register(1)];
    let second = open(folder.path());
    for (number, by) in [(0, CanceledBy::User), (1, CanceledBy::Operator)] {
        let job = runs[number].taken.definition.id;
        second.cancel(job, by).await.unwrap();
    }
    for (stop, by) in [
        (&mut by_user, CanceledBy::User),
        (&mut by_operator, CanceledBy::Operator),
    ] {
        let stop = stop.wait_for(|stop| *stop != StopCause::None).await;
        assert_eq!(*stop.unwrap(), StopCause::Canceled(by));
    }
    drop(first);
    assert!(lock_is_held(folder.path()), "the second one has it");
}
