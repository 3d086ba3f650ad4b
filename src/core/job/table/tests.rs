//! Examples of the table, and random sequences of verbs against its invariants.

use std::sync::Arc;

use super::runs::EXPIRED_PER_TAKE_MAX;
use super::*;
use crate::Millis;
use crate::job::deadline::JobLimits;
use crate::job::record::JobDefinition;
use crate::job::retry::ReleaseCause;
use crate::job::schedule::AFFINITY_STREAK_MAX;
use crate::job::states::{CanceledBy, JobKind, WriteResult};
use crate::model::FlowMode;

const LIMITS: QueueLimits = QueueLimits {
    queue_max: 100,
    queue_max_per_account: 50,
    bytes_max: 1_000_000,
};

pub(super) fn id(n: u64) -> JobId {
    JobId::from_random(None, u128::from(n).to_be_bytes())
}

pub(super) fn definition(n: u64, account: &str, now: StoreTime) -> JobDefinition {
    JobDefinition {
        id: id(n),
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
            lifetime: now + Millis(100_000),
            run_timeout_ms: 10_000,
        },
        start_until: now + Millis(90_000),
        attempts_max: 3,
        cancel_grace_ms: 1000,
        bytes: 100,
        has_webhook: false,
    }
}

pub(super) fn new_job(definition: JobDefinition) -> NewJob {
    NewJob {
        definition,
        flows: FlowMode::Account,
        limits: LIMITS,
    }
}

pub(super) fn submit(table: &mut JobTable, n: u64, account: &str, now: StoreTime) {
    let job = new_job(definition(n, account, now));
    assert_eq!(table.submit(job, now), SubmitResult::Created);
}

pub(super) fn take(
    table: &mut JobTable,
    worker: &WorkerId,
    count: usize,
    now: StoreTime,
) -> Vec<TakenJob> {
    let request = TakeRequest {
        deployable: "vp-a".into(),
        count,
        turn: 1,
        preferred_flow: None,
    };
    table.take(worker, &request, now)
}

pub(super) fn success(taken: &TakenJob) -> RunEnd {
    RunEnd {
        id: taken.definition.id,
        epoch: taken.progress.epoch,
        state: JobState::Succeeded,
        reason: None,
    }
}

pub(super) fn ends(table: &mut JobTable) -> Vec<(JobId, JobState, Option<EndReason>)> {
    let changes = table.take_changes();
    let ended = changes.into_iter().filter_map(|change| match change {
        JobChange::Ended(end) => Some((end.definition.id, end.state, end.reason)),
        JobChange::Progressed(_) => None,
    });
    ended.collect()
}

pub(super) const T0: StoreTime = StoreTime(1_000_000);

#[test]
fn a_job_ends_once_and_the_repeat_of_its_end_is_known() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    submit(&mut table, 1, "acme", T0);
    let again = new_job(definition(1, "acme", T0));
    assert_eq!(
        table.submit(again, T0),
        SubmitResult::Exists(JobState::Queued)
    );
    let taken = take(&mut table, &worker, 4, T0);
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].time_left, Millis(10_000));
    let end = success(&taken[0]);
    assert_eq!(table.finish(&worker, &end, T0), WriteResult::Done);
    assert_eq!(table.finish(&worker, &end, T0), WriteResult::Already);
    let other = WorkerId::new("a", 2);
    assert_eq!(table.finish(&other, &end, T0), WriteResult::Stale);
    assert_eq!(ends(&mut table), [(id(1), JobState::Succeeded, None)]);
    assert!(table.is_empty() && table.bytes() == 0);
    table.check();
}

#[test]
fn a_worker_that_lost_its_job_cannot_end_it() {
    let (mut table, slow) = (JobTable::new(), WorkerId::new("a", 1));
    submit(&mut table, 1, "acme", T0);
    let frozen = take(&mut table, &slow, 1, T0).remove(0);
    let released = table.release_worker(&slow, ReleaseCause::WorkerLost, 10, T0);
    assert_eq!(released, 1);
    let other = WorkerId::new("b", 1);
    let taken = take(&mut table, &other, 1, T0).remove(0);
    assert_eq!(taken.progress.epoch, 2);
    assert_eq!(
        table.finish(&slow, &success(&frozen), T0),
        WriteResult::Stale
    );
    assert_eq!(
        table.finish(&other, &success(&taken), T0),
        WriteResult::Done
    );
    table.check();
}

#[test]
fn a_queued_job_is_canceled_at_once_and_a_running_one_by_its_worker_or_after_the_grace() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    for n in 1..=3 {
        submit(&mut table, n, "acme", T0);
    }
    let by = CanceledBy::User;
    assert_eq!(
        table.cancel(&id(3), by, T0),
        CancelResult::Ended(JobState::Canceled)
    );
    let taken = take(&mut table, &worker, 2, T0);
    let first = taken[0].definition.id;
    for _ in 0..2 {
        let canceled = table.cancel(&first, by, T0);
        assert_eq!(canceled, CancelResult::Requested(worker.clone()));
    }
    let held = HeldJobs {
        jobs: taken.iter().map(|job| job.definition.id).collect(),
        oldest_take: None,
    };
    assert_eq!(table.heartbeat(&worker, &held, T0).canceled, [(first, by)]);
    assert_eq!(table.expire(10, T0 + Millis(999)), 0);
    assert_eq!(table.expire(10, T0 + Millis(1000)), 1);
    let reason = Some(EndReason::CanceledByUser);
    let expected = [
        (id(3), JobState::Canceled, reason),
        (first, JobState::Canceled, reason),
    ];
    assert_eq!(ends(&mut table), expected);
    let late = success(&taken[0]);
    assert_eq!(table.finish(&worker, &late, T0), WriteResult::Stale);
    assert_eq!(
        table.cancel(&first, by, T0),
        CancelResult::AlreadyEnded(JobState::Canceled)
    );
    assert_eq!(table.cancel(&id(9), by, T0), CancelResult::Unknown);
    table.check();
}

#[test]
fn time_ends_jobs_by_the_first_of_their_limits() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    for n in 1..=4 {
        let mut job = definition(n, "acme", T0);
        job.limits.deadline = (n < 3).then_some(T0 + Millis(5000));
        assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    }
    let [first, third] = [take(&mut table, &worker, 1, T0).remove(0), {
        take(&mut table, &worker, 2, T0).remove(1)
    }];
    let release = |taken: &TakenJob| Release {
        id: taken.definition.id,
        epoch: taken.progress.epoch,
        cause: ReleaseCause::Drain,
        not_before: None,
    };
    assert_eq!(
        table.release(&worker, &release(&first), T0),
        WriteResult::Done
    );
    table.expire(10, T0 + Millis(5000));
    let canceled = JobState::Canceled;
    let deadline = Some(EndReason::Deadline);
    assert_eq!(ends(&mut table), [(id(1), canceled, deadline)]);
    // The other one runs: its worker has a second to end it with what it made.
    table.expire(10, T0 + Millis(5999));
    assert!(ends(&mut table).is_empty());
    table.expire(10, T0 + Millis(6000));
    assert_eq!(ends(&mut table), [(id(2), canceled, deadline)]);
    table.expire(10, T0 + Millis(11_000));
    assert_eq!(
        ends(&mut table),
        [(
            third.definition.id,
            JobState::Failed,
            Some(EndReason::Timeout)
        )]
    );
    table.expire(10, T0 + Millis(90_000));
    assert_eq!(
        ends(&mut table),
        [(id(4), JobState::Failed, Some(EndReason::NeverStarted))]
    );
    table.check();
}

#[test]
fn a_job_that_was_never_taken_is_aborted_by_its_deadline_also_where_a_take_meets_it() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    for n in 1..=2 {
        let mut job = definition(n, "acme", T0);
        job.limits.deadline = Some(T0 + Millis(5000));
        assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    }
    assert_eq!(table.next_duty(), Some(T0 + Millis(5000)));
    assert!(take(&mut table, &worker, 1, T0 + Millis(5000)).is_empty());
    let aborted = (JobState::Aborted, Some(EndReason::Deadline));
    let ended = ends(&mut table);
    assert_eq!(
        ended,
        [(id(1), aborted.0, aborted.1), (id(2), aborted.0, aborted.1)]
    );
    table.check();
}

#[test]
fn refused_jobs_wait_for_their_delay_and_go_first_then() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    submit(&mut table, 1, "acme", T0);
    let taken = take(&mut table, &worker, 1, T0).remove(0);
    let release = Release {
        id: id(1),
        epoch: taken.progress.epoch,
        cause: ReleaseCause::NoServer,
        not_before: None,
    };
    assert_eq!(table.release(&worker, &release, T0), WriteResult::Done);
    submit(&mut table, 2, "acme", T0);
    assert_eq!(table.release_due(10, T0 + Millis(999)), 0);
    table.check();
    assert_eq!(table.next_duty(), Some(T0 + Millis(1000)));
    assert_eq!(table.release_due(10, T0 + Millis(1000)), 1);
    let next = take(&mut table, &worker, 1, T0 + Millis(1000)).remove(0);
    assert_eq!((next.definition.id, next.progress.epoch), (id(1), 2));
    assert_eq!(next.progress.attempts.counted, 0);
    table.check();
}

#[test]
fn a_full_queue_refuses_and_stores_nothing() {
    let mut table = JobTable::new();
    for n in 0..50 {
        submit(&mut table, n, "acme", T0);
    }
    let refused = table.submit(new_job(definition(50, "acme", T0)), T0);
    assert!(
        matches!(refused, SubmitResult::QueueFull { .. }),
        "{refused:?}"
    );
    submit(&mut table, 51, "other", T0);
    let mut large = definition(52, "other", T0);
    large.bytes = 1_000_000;
    assert_eq!(table.submit(new_job(large), T0), SubmitResult::StoreFull);
    assert_eq!(table.len(), 51);
    table.check();
}

#[test]
fn a_table_made_of_what_was_kept_goes_on_where_it_was() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    for n in 0..4 {
        submit(&mut table, n, "acme", T0);
    }
    let taken = take(&mut table, &worker, 2, T0);
    table.cancel(&taken[1].definition.id, CanceledBy::User, T0);
    let mut restored = JobTable::new();
    for n in 0..4 {
        let job = table.job(&id(n)).unwrap();
        restored.restore((*job.definition).clone(), job.progress.clone(), T0);
    }
    restored.check();
    assert_eq!(restored.workers(), [(worker.clone(), 2)]);
    assert_eq!(
        restored.finish(&worker, &success(&taken[0]), T0),
        WriteResult::Done
    );
    assert_eq!(
        restored.release_worker(&worker, ReleaseCause::WorkerLost, 9, T0),
        1
    );
    // The canceled one ends with its worker.
    let ended = ends(&mut restored);
    assert_eq!(
        ended[1],
        (
            taken[1].definition.id,
            JobState::Canceled,
            Some(EndReason::CanceledByUser)
        )
    );
    restored.check();
}

#[test]
fn a_paused_queue_gives_nothing_and_an_unserved_one_ends() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    let key = DeployableKey::from("vp-a");
    for n in 0..3 {
        submit(&mut table, n, "acme", T0);
    }
    table.set_paused(&key, true);
    assert_eq!(table.ready(&key), 0);
    assert!(take(&mut table, &worker, 3, T0).is_empty());
    table.set_paused(&key, false);
    assert_eq!(take(&mut table, &worker, 1, T0).len(), 1);
    assert_eq!(table.end_queued(&key, EndReason::ModelRemoved, 10, T0), 2);
    assert_eq!(table.deployables()[0].running, 1);
    table.check();
}

#[test]
fn a_worker_whose_job_has_ended_stays_known_while_a_take_is_under_way() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    for n in 1..=2 {
        let mut job = definition(n, "acme", T0);
        job.limits.deadline = (n == 1).then_some(T0 + Millis(5000));
        assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    }
    let first = take(&mut table, &worker, 1, T0).remove(0);
    let now = T0 + Millis(6000);
    take(&mut table, &worker, 1, now);
    table.expire(1, now);
    let held = HeldJobs {
        jobs: vec![first.definition.id],
        oldest_take: Some(now),
    };
    let reply = table.heartbeat(&worker, &held, now);
    assert!(reply.is_known && reply.orphans.is_empty(), "{reply:?}");
    assert_eq!(reply.lost, [id(1)]);
    table.check();
}

#[test]
fn a_job_that_ends_where_it_was_to_be_taken_costs_its_flow_nothing() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    let late = T0 + Millis(5000);
    for n in 0..20 {
        let mut job = definition(n, "acme", T0);
        job.limits.deadline = Some(late);
        assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    }
    for n in 20..24 {
        submit(&mut table, n, "acme", T0);
        submit(&mut table, n + 10, "other", T0);
    }
    let taken = take(&mut table, &worker, 4, late);
    let of_acme = taken.iter().filter(|job| &*job.definition.flow == "acme");
    assert_eq!(of_acme.count(), 2);
    table.check();
}

/// Random verbs of several workers. The invariants hold after each, and no job ends twice.
#[test]
fn random_verbs_keep_the_invariants_and_end_each_job_once() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut table = JobTable::new();
        let workers: Vec<WorkerId> = (0..3).map(|n| WorkerId::new("w", n)).collect();
        let mut held: Vec<(WorkerId, TakenJob)> = Vec::new();
        let (mut now, mut next, mut ended) = (T0, 0, std::collections::HashSet::new());
        for step in 0..3000 {
            now = now + Millis(random.u64(0..200));
            match random.u32(0..10) {
                0..4 => {
                    let account = ["a", "b", "c"][random.usize(0..3)];
                    let mut job = definition(next, account, now);
                    job.limits.deadline = random.bool().then(|| now + Millis(random.u64(0..9000)));
                    job.class = JobClass::ALL[random.usize(1..4)];
                    next += 1;
                    table.submit(new_job(job), now);
                }
                4 | 5 => {
                    let worker = workers[random.usize(0..3)].clone();
                    let request = TakeRequest {
                        deployable: "vp-a".into(),
                        count: random.usize(1..4),
                        turn: random.u32(..),
                        preferred_flow: random.bool().then(|| Arc::from("b")),
                    };
                    let taken = table.take(&worker, &request, now);
                    held.extend(taken.into_iter().map(|job| (worker.clone(), job)));
                }
                6 | 7 if !held.is_empty() => {
                    let (worker, job) = held.swap_remove(random.usize(0..held.len()));
                    table.finish(&worker, &success(&job), now);
                }
                8 if !held.is_empty() => {
                    let (worker, job) = held.swap_remove(random.usize(0..held.len()));
                    let causes = [
                        ReleaseCause::NoServer,
                        ReleaseCause::ServerLost,
                        ReleaseCause::Drain,
                    ];
                    let release = Release {
                        id: job.definition.id,
                        epoch: job.progress.epoch,
                        cause: causes[random.usize(0..3)],
                        not_before: None,
                    };
                    table.release(&worker, &release, now);
                }
                _ => {
                    table.cancel(&id(random.u64(0..next.max(1))), CanceledBy::User, now);
                    if random.u32(0..8) == 0 {
                        let worker = &workers[random.usize(0..3)];
                        table.release_worker(worker, ReleaseCause::WorkerLost, 100, now);
                    }
                }
            }
            table.expire(random.usize(0..4), now);
            table.release_due(random.usize(0..4), now);
            if step % 16 == 0 {
                table.check();
            }
            for (id, ..) in ends(&mut table) {
                assert!(ended.insert(id), "{id} ends twice");
            }
        }
        // Time ends what is left.
        table.expire(usize::MAX, now + Millis(1_000_000));
        ended.extend(ends(&mut table).into_iter().map(|(id, ..)| id));
        assert!(table.is_empty(), "{} jobs are left", table.len());
        table.check();
    }
}

/// Runs `takes` jobs of flows that never run dry, one after the other, each with a preference for the flow before it for
/// at most `streak_max` takes in a row. Returns the exchanges and the largest lead in permit time, milliseconds.
fn run_with_affinity(seed: u64, takes: usize, streak_max: u32) -> (usize, u64) {
    const HOLD_MAX_MS: u64 = 1000;
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut table, worker) = (JobTable::new(), WorkerId::new("w", 1));
    let flows: Vec<String> = (0..random.usize(2..6)).map(|n| format!("s{n}")).collect();
    let (mut now, mut next) = (T0, 0);
    let mut served = vec![0; flows.len()];
    let (mut last, mut streak): (Option<Arc<str>>, u32) = (None, 0);
    let (mut swaps, mut lead) = (0, 0);
    for flow in flows.iter().cycle().take(3 * flows.len()) {
        submit(&mut table, next, flow, now);
        next += 1;
    }
    for turn in 0..takes {
        let preferred = last.clone().filter(|_| streak < streak_max);
        let request = TakeRequest {
            deployable: "vp-a".into(),
            count: 1,
            turn: turn as u32,
            preferred_flow: preferred.clone(),
        };
        let taken = table.take(&worker, &request, now).remove(0);
        let flow = Arc::clone(&taken.definition.flow);
        submit(&mut table, next, &flow, now);
        next += 1;
        streak = match preferred.as_ref() == Some(&flow) {
            true => streak + 1,
            false => 0,
        };
        swaps += usize::from(last.as_ref().is_some_and(|last| *last != flow));
        let hold = random.u64(1..=HOLD_MAX_MS);
        now = now + Millis(hold);
        table.finish(&worker, &success(&taken), now);
        table.take_changes();
        let at = flows.iter().position(|name| **name == *flow).unwrap();
        served[at] += hold;
        last = Some(flow);
        lead = lead.max(served.iter().max().unwrap() - served.iter().min().unwrap());
    }
    table.check();
    (swaps, lead)
}

/// Rows save exchanges, and no flow gets ahead by more than two rows of the longest jobs. Without a bound of rows, the
/// lead is that of the permitted lag.
#[test]
fn a_preference_saves_exchanges_and_lets_no_flow_run_away() {
    for seed in 0..100 {
        let (swaps, lead) = run_with_affinity(seed, 400, AFFINITY_STREAK_MAX);
        let (all_swaps, fair_lead) = run_with_affinity(seed, 400, 0);
        assert!(swaps * 3 < all_swaps, "seed {seed}: {swaps} of {all_swaps}");
        let row_ms = u64::from(AFFINITY_STREAK_MAX + 1) * 1000;
        assert!(lead <= 2 * row_ms, "seed {seed}: {lead} ms");
        assert!(fair_lead <= 3000, "seed {seed}: {fair_lead} ms");
    }
    let (_, unbounded) = run_with_affinity(1, 400, u32::MAX);
    assert!(unbounded > 20_000, "{unbounded} ms");
}

#[test]
fn a_wait_for_the_quota_is_no_time_of_the_run() {
    let (mut table, worker) = (JobTable::default(), WorkerId::new("w", 1));
    let start = StoreTime(1_000_000);
    submit(&mut table, 1, "a", start);
    let request = TakeRequest {
        deployable: "vp-a".into(),
        count: 1,
        turn: 1,
        preferred_flow: None,
    };
    let first = table.take(&worker, &request, start).remove(0);
    assert_eq!(first.time_left, Millis(10_000));
    let until = start + Millis(50_000);
    let release = |epoch, cause, not_before| Release {
        id: id(1),
        epoch,
        cause,
        not_before,
    };
    let waits = release(1, ReleaseCause::QuotaWait, Some(until));
    assert_eq!(
        table.release(&worker, &waits, start + Millis(5)),
        WriteResult::Done
    );
    assert!(
        table
            .take(&worker, &request, start + Millis(49_999))
            .is_empty()
    );
    assert_eq!(table.release_due(10, until), 1);
    let again = table.take(&worker, &request, until).remove(0);
    assert_eq!(again.time_left, Millis(10_000));
    assert_eq!(
        again.progress.started,
        Some(start),
        "the status does not go back"
    );
    let lost = release(2, ReleaseCause::ServerLost, None);
    assert_eq!(
        table.release(&worker, &lost, until + Millis(4_000)),
        WriteResult::Done
    );
    let third = table
        .take(&worker, &request, until + Millis(4_000))
        .remove(0);
    assert_eq!(third.time_left, Millis(6_000), "other waits are");
}

#[test]
fn a_take_ends_a_bounded_number_of_jobs_whose_time_is_over() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    let late = T0 + Millis(5000);
    for n in 0..49 {
        let mut job = definition(n, "acme", T0);
        job.limits.deadline = Some(late);
        assert_eq!(table.submit(new_job(job), T0), SubmitResult::Created);
    }
    submit(&mut table, 49, "acme", late);
    assert!(take(&mut table, &worker, 1, late).is_empty());
    assert_eq!(ends(&mut table).len(), EXPIRED_PER_TAKE_MAX);
    table.check();
    assert_eq!(table.expire(100, late), 49 - EXPIRED_PER_TAKE_MAX);
    let next = take(&mut table, &worker, 1, late).remove(0);
    assert_eq!(next.definition.id, id(49));
    table.check();
}

#[test]
fn a_deployable_without_jobs_is_forgotten_after_an_hour_unless_it_is_paused() {
    let (mut table, worker) = (JobTable::new(), WorkerId::new("a", 1));
    let hour = Millis::from_secs(3600);
    table.set_paused(&"vp-paused".into(), true);
    let run = |table: &mut JobTable, n, at| {
        submit(table, n, "acme", at);
        table.forget_idle(at);
        let taken = take(table, &worker, 1, at).remove(0);
        assert_eq!(
            table.finish(&worker, &success(&taken), at),
            WriteResult::Done
        );
        table.forget_idle(at);
    };
    run(&mut table, 1, T0);
    // Between two looks it had a job.
    let later = T0 + Millis::from_secs(1800);
    submit(&mut table, 2, "acme", later);
    table.cancel(&id(2), CanceledBy::User, later);
    table.forget_idle(T0 + hour);
    assert_eq!(table.deployables().len(), 2);
    table.forget_idle(T0 + hour + hour);
    let left = table.deployables();
    assert_eq!(left.len(), 1);
    assert!(left[0].is_paused);
    run(&mut table, 3, T0 + hour + hour);
    table.check();
}
