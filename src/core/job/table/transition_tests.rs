//! Every transition of a job: each situation with each event, and for writes each relation of epoch and worker.
//!
//! The expectation stands here a second time, as a table: S1 to S9 of the design and what must not happen.

use super::tests::{T0, definition, ends, id, new_job, submit, success, take};
use super::*;
use crate::Millis;
use crate::job::record::JobDefinition;
use crate::job::retry::ReleaseCause;
use crate::job::states::{CanceledBy, WriteResult};

/// Situation of a job before the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    Absent,
    Queued,
    /// Released, in the schedule.
    Again,
    /// Released, and not due.
    Aside,
    Running,
    /// Running, its cancel requested.
    Canceling,
    /// Ended by its worker.
    Ended(JobState),
    /// Ended by time before a take.
    Aborted,
    /// Ended by time in its run.
    TimedOut,
}

/// Relation of a write to the latest take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Writer {
    epoch: i32,
    is_owner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Submit,
    Take,
    Finish(Writer),
    Release(Writer),
    Cancel,
    WorkerLost,
    Deadline,
    Timeout,
    Lifetime,
    NeverStarted,
    Grace,
    Due,
    EndQueued,
}

const SITUATIONS: [Situation; 11] = [
    Situation::Absent,
    Situation::Queued,
    Situation::Again,
    Situation::Aside,
    Situation::Running,
    Situation::Canceling,
    Situation::Ended(JobState::Succeeded),
    Situation::Ended(JobState::Failed),
    Situation::Ended(JobState::Canceled),
    Situation::Aborted,
    Situation::TimedOut,
];

fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Submit,
        Event::Take,
        Event::Cancel,
        Event::WorkerLost,
        Event::Deadline,
        Event::Timeout,
        Event::Lifetime,
        Event::NeverStarted,
        Event::Grace,
        Event::Due,
        Event::EndQueued,
    ];
    for epoch in [-1, 0, 1] {
        for is_owner in [true, false] {
            let writer = Writer { epoch, is_owner };
            events.extend([Event::Finish(writer), Event::Release(writer)]);
        }
    }
    events
}

/// Job whose only end by time within the test is the one of the event.
fn job_for(event: Event) -> JobDefinition {
    let mut job = definition(1, "acme", T0);
    let far = T0 + Millis(10_000_000);
    job.limits.deadline = (event == Event::Deadline).then_some(T0 + Millis(5000));
    job.limits.lifetime = far;
    job.limits.run_timeout_ms = 10_000_000;
    job.start_until = far;
    match event {
        Event::Timeout => job.limits.run_timeout_ms = 10_000,
        Event::Lifetime => job.limits.lifetime = T0 + Millis(100_000),
        Event::NeverStarted => job.start_until = T0 + Millis(90_000),
        _ => {}
    }
    job
}

fn worker(n: u32) -> WorkerId {
    WorkerId::new("a", n)
}

/// Table with the job in a situation.
fn arrange(situation: Situation, event: Event) -> JobTable {
    let (mut table, own) = (JobTable::new(), worker(1));
    let mut job = job_for(event);
    match situation {
        Situation::Absent => return table,
        Situation::Aborted => job.limits.deadline = Some(T0),
        Situation::TimedOut => job.limits.run_timeout_ms = 0,
        _ => {}
    }
    job.cancel_grace_ms = match situation {
        Situation::TimedOut => 0,
        _ => job.cancel_grace_ms,
    };
    assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    if situation == Situation::Aborted {
        table.expire(1, T0);
    }
    if !matches!(situation, Situation::Queued | Situation::Aborted) {
        let taken = take(&mut table, &own, 1, T0).remove(0);
        let release = |cause| Release {
            id: id(1),
            epoch: 1,
            cause,
            not_before: None,
        };
        match situation {
            Situation::Again => _ = table.release(&own, &release(ReleaseCause::Drain), T0),
            Situation::Aside => _ = table.release(&own, &release(ReleaseCause::NoServer), T0),
            Situation::Canceling => _ = table.cancel(&id(1), CanceledBy::User, T0),
            Situation::TimedOut => _ = table.expire(1, T0),
            Situation::Ended(state) => {
                let end = RunEnd {
                    state,
                    ..success(&taken)
                };
                assert_eq!(table.finish(&own, &end, T0), WriteResult::Done);
            }
            _ => {}
        }
    }
    table.take_changes();
    table.check();
    table
}

/// State of the job after the event; none where the table does not hold it and nothing ends.
fn expected_state(situation: Situation, event: Event) -> Option<JobState> {
    use JobState::{Aborted, Canceled, Failed, Queued, Running, Succeeded};
    use Situation as S;
    let own = |writer: Writer| writer.epoch == 0 && writer.is_owner;
    let before = match situation {
        S::Queued | S::Again | S::Aside => Some(Queued),
        S::Running | S::Canceling => Some(Running),
        _ => None,
    };
    let after = match (situation, event) {
        // S1, S2
        (S::Absent, Event::Submit) => Queued,
        (S::Queued | S::Again, Event::Take) => Running,
        // S3, S4
        (S::Running | S::Canceling, Event::Finish(writer)) if own(writer) => Succeeded,
        (S::Running, Event::Release(writer)) if own(writer) => Queued,
        (S::Running, Event::WorkerLost) => Queued,
        // S5, S6
        (S::Canceling, Event::Release(writer)) if own(writer) => Canceled,
        (S::Canceling, Event::WorkerLost | Event::Grace) => Canceled,
        (S::Queued | S::Again | S::Aside, Event::Cancel) => Canceled,
        (S::Again | S::Aside | S::Running, Event::Deadline) => Canceled,
        // What the user asked for before counts, whatever time would say.
        (
            S::Canceling,
            Event::Deadline | Event::Timeout | Event::Lifetime | Event::NeverStarted,
        ) => Canceled,
        // S7
        (S::Queued, Event::Deadline) => Aborted,
        // S8, S9
        (S::Again | S::Aside | S::Running, Event::Timeout) => Failed,
        (S::Queued | S::Again | S::Aside | S::Running, Event::Lifetime) => Failed,
        (S::Queued, Event::NeverStarted) => Failed,
        (S::Queued | S::Again | S::Aside, Event::EndQueued) => Failed,
        _ => return before,
    };
    Some(after)
}

fn expected_write(situation: Situation, writer: Writer) -> WriteResult {
    match situation {
        _ if writer.epoch != 0 || !writer.is_owner => WriteResult::Stale,
        Situation::Running | Situation::Canceling => WriteResult::Done,
        Situation::Ended(_) => WriteResult::Already,
        _ => WriteResult::Stale,
    }
}

/// Applies the event. Returns the result of a write.
fn act(table: &mut JobTable, situation: Situation, event: Event) -> Option<WriteResult> {
    let latest = match situation {
        Situation::Absent | Situation::Queued | Situation::Aborted => 0_i32,
        _ => 1,
    };
    let identify = |writer: Writer| {
        let epoch = u32::try_from(latest + writer.epoch).unwrap_or(u32::MAX);
        (worker(if writer.is_owner { 1 } else { 2 }), epoch)
    };
    let mut expire = |ms| _ = table.expire(10, T0 + Millis(ms));
    match event {
        Event::Submit if situation == Situation::Absent => submit(table, 1, "acme", T0),
        Event::Submit => {
            let again = table.submit(new_job(job_for(event)), T0);
            assert!(matches!(again, SubmitResult::Exists(_)), "{again:?}");
        }
        Event::Take => _ = take(table, &worker(2), 1, T0),
        Event::Finish(writer) => {
            let (worker, epoch) = identify(writer);
            let end = RunEnd {
                id: id(1),
                epoch,
                state: JobState::Succeeded,
                reason: None,
            };
            return Some(table.finish(&worker, &end, T0));
        }
        Event::Release(writer) => {
            let (worker, epoch) = identify(writer);
            let release = Release {
                id: id(1),
                epoch,
                cause: ReleaseCause::Drain,
                not_before: None,
            };
            return Some(table.release(&worker, &release, T0));
        }
        Event::Cancel => _ = table.cancel(&id(1), CanceledBy::User, T0),
        Event::WorkerLost => {
            table.release_worker(&worker(1), ReleaseCause::WorkerLost, 10, T0);
        }
        // A running job has the grace of a cancel beyond its end.
        Event::Deadline => expire(6000),
        Event::Timeout => expire(11_000),
        Event::Lifetime => expire(101_000),
        Event::NeverStarted => expire(90_000),
        Event::Grace => expire(1000),
        Event::Due => {
            let queued = table.release_due(10, T0 + Millis(1000));
            assert_eq!(queued, usize::from(situation == Situation::Aside));
        }
        Event::EndQueued => {
            table.end_queued(&"vp-a".into(), EndReason::ModelRemoved, 10, T0);
        }
    }
    None
}

#[test]
fn each_situation_and_event_lead_where_the_transitions_say_and_nowhere_else() {
    for situation in SITUATIONS {
        for event in events() {
            let mut table = arrange(situation, event);
            let written = act(&mut table, situation, event);
            table.check();
            let epoch = table.job(&id(1)).map(|job| job.progress.epoch);
            let held = table.job(&id(1)).map(|job| job.progress.state());
            let ended = ends(&mut table);
            assert!(ended.len() <= 1 && (ended.is_empty() || held.is_none()));
            let after = held.or(ended.first().map(|(_, state, _)| *state));
            let case = format!("{situation:?} {event:?}");
            assert_eq!(after, expected_state(situation, event), "{case}");
            if let Event::Finish(writer) | Event::Release(writer) = event {
                assert_eq!(written, Some(expected_write(situation, writer)), "{case}");
            }
            let took = event == Event::Take && held == Some(JobState::Running);
            let expected_epoch = match situation {
                Situation::Queued => u32::from(took),
                Situation::Again => 1 + u32::from(took),
                Situation::Absent => 0,
                _ => 1,
            };
            assert!(epoch.is_none_or(|epoch| epoch == expected_epoch), "{case}");
        }
    }
}
