//! States of a job with their moments, put together from its record and from the attempts that are known.
//!
//! The record has the first take and the latest one; what lies between is known to the process that ran it.

use std::collections::BTreeMap;

use infergate_core::job::{EndReason, JobProgress, JobState, StoreTime};

use crate::admin::JobTransition;
use crate::jobs::{JobAttempt, rfc3339_micros};

/// End of a job: its moment, its state and the reason.
pub(super) type JobEnd = (StoreTime, JobState, Option<EndReason>);

/// Place of a state among those of a job. Moments are milliseconds, so two states may have the same one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Submitted.
    Created,
    /// Taken for the attempt of this number, or queued again after it.
    Attempt { epoch: u32, is_over: bool },
    /// Ended.
    End,
}

/// Returns the states of a job in their order.
pub(super) fn transitions(
    created: StoreTime,
    progress: &JobProgress,
    end: Option<JobEnd>,
    attempts: &[JobAttempt],
) -> Vec<JobTransition> {
    let mut found = BTreeMap::from([(Step::Created, (created, JobState::Queued, None))]);
    for (epoch, at) in [(1, progress.started), (progress.epoch, progress.taken)] {
        if let Some(at) = at {
            let taken = Step::Attempt {
                epoch,
                is_over: false,
            };
            found.entry(taken).or_insert((at, JobState::Running, None));
        }
    }
    // A last attempt that was to be queued again beyond its limit has ended the job: it stands as taken.
    let ended_by = progress
        .taken
        .filter(|_| end.is_some())
        .map(|_| progress.epoch);
    for attempt in attempts {
        let epoch = attempt.epoch;
        let step = |is_over| Step::Attempt { epoch, is_over };
        let taken = (attempt.began, JobState::Running, None);
        found.entry(step(false)).or_insert(taken);
        let is_last = attempt.is_last || ended_by == Some(epoch);
        if let Some(at) = attempt.ended.filter(|_| !is_last) {
            found.insert(step(true), (at, JobState::Queued, attempt.result));
        }
    }
    if let Some((at, state, reason)) = end {
        found.insert(Step::End, (at, state, reason.map(EndReason::code)));
    }
    let mut latest = created;
    let shown = found.into_iter().map(|(step, (at, state, reason))| {
        // The process's moments and the store's are read one after the other.
        latest = latest.max(at);
        JobTransition {
            at: rfc3339_micros(latest),
            state: state.name(),
            attempt: match step {
                Step::Attempt { epoch, is_over } => (!is_over).then_some(epoch),
                Step::Created | Step::End => None,
            },
            reason,
        }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn attempt(epoch: u32, began: u64, ended: Option<(u64, &'static str, bool)>) -> JobAttempt {
        JobAttempt {
            epoch,
            began: StoreTime(began),
            ended: ended.map(|it| StoreTime(it.0)),
            endpoint: Arc::from("http://a"),
            result: ended.map(|it| it.1),
            is_last: ended.is_some_and(|it| it.2),
            trace: None,
        }
    }

    fn progress(epoch: u32, started: Option<u64>, taken: Option<u64>) -> JobProgress {
        JobProgress {
            epoch,
            started: started.map(StoreTime),
            taken: taken.map(StoreTime),
            ..JobProgress::default()
        }
    }

    fn names(shown: &[JobTransition]) -> Vec<&str> {
        shown.iter().map(|it| it.state).collect()
    }

    const AGAIN: [&str; 5] = ["queued", "running", "queued", "running", "succeeded"];

    #[test]
    fn states_of_one_millisecond_stand_in_their_order() {
        let end = (StoreTime(1), JobState::Succeeded, None);
        let attempts = [
            attempt(1, 1, Some((1, "server_lost", false))),
            attempt(2, 1, Some((1, "succeeded", true))),
        ];
        let progress = progress(2, Some(1), Some(1));
        let shown = transitions(StoreTime(1), &progress, Some(end), &attempts);
        assert_eq!(names(&shown), AGAIN);
        assert_eq!(shown[2].reason, Some("server_lost"));
        let numbers: Vec<_> = shown.iter().map(|it| it.attempt).collect();
        assert_eq!(numbers, [None, Some(1), None, Some(2), None]);
    }

    #[test]
    fn no_state_is_shown_before_the_one_that_it_follows() {
        let end = (StoreTime(6), JobState::Succeeded, None);
        let attempts = [
            attempt(1, 2, Some((5, "drain", false))),
            attempt(2, 4, Some((6, "succeeded", true))),
        ];
        let progress = progress(2, Some(2), Some(4));
        let shown = transitions(StoreTime(1), &progress, Some(end), &attempts);
        assert_eq!(names(&shown), AGAIN);
        assert!(shown.is_sorted_by(|one, next| one.at <= next.at));
    }

    #[test]
    fn the_attempt_that_ends_the_job_is_not_queued_again() {
        let end = (StoreTime(9), JobState::Failed, Some(EndReason::ServerLost));
        let attempts = [attempt(1, 2, Some((8, "server_lost", false)))];
        let taken = progress(1, Some(2), Some(2));
        let shown = transitions(StoreTime(1), &taken, Some(end), &attempts);
        assert_eq!(names(&shown), ["queued", "running", "failed"]);
        assert_eq!(shown[2].reason, Some("server_lost"));
        // Queued again, and ended in the queue.
        let queued = progress(1, Some(2), None);
        let shown = transitions(StoreTime(1), &queued, Some(end), &attempts);
        assert_eq!(names(&shown), ["queued", "running", "queued", "failed"]);
    }

    #[test]
    fn takes_of_another_process_are_known_by_the_record() {
        let shown = transitions(
            StoreTime(1),
            &progress(3, Some(2), Some(30)),
            None,
            &[attempt(3, 31, None)],
        );
        assert_eq!(names(&shown), ["queued", "running", "running"]);
        assert_eq!(shown[2].attempt, Some(3));
    }
}
