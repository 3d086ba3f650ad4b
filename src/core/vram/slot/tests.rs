//! Tests of slots: every state with every event against a table written apart, lives step by step, random histories.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;

const LIMITS: SlotLimits = SlotLimits {
    ready_timeout: Millis::from_secs(600),
    stop_timeout: Millis::from_secs(10),
};
const CRASH: ProcessExit = exit(false, false);
const OUT_OF_MEMORY: ProcessExit = exit(true, false);
const PORT_TAKEN: ProcessExit = exit(false, true);
const IDLE: ServerActivity = ServerActivity::Idle;
const HUNG: ServerActivity = busy(10_000);
const SLOW: ServerActivity = busy(9_999);

const fn exit(out_of_memory: bool, address_in_use: bool) -> ProcessExit {
    ProcessExit {
        code: Some(1),
        out_of_memory,
        address_in_use,
    }
}

const fn busy(ms: u64) -> ServerActivity {
    ServerActivity::Busy {
        without_progress: Millis(ms),
    }
}

fn states() -> Vec<SlotState> {
    use SlotState::*;
    let mut states = vec![Cold, Ready, Asleep, Reclaiming, Stuck];
    states.extend([LoadKind::Start, LoadKind::Wake].map(Acquiring));
    let phases = [
        LoadPhase::Spawning,
        LoadPhase::Starting,
        LoadPhase::Loading,
        LoadPhase::Waking,
        LoadPhase::Restarting,
    ];
    states.extend(phases.map(Loading));
    states.extend(DrainReason::ALL.map(Draining));
    let phases = [
        StopPhase::Sleeping,
        StopPhase::Terminating,
        StopPhase::Killing,
    ];
    states.extend(phases.map(Stopping));
    let phases = [
        FailedPhase::Killing,
        FailedPhase::Reclaiming,
        FailedPhase::Backoff,
    ];
    states.extend(phases.map(Failed));
    states
}

fn events() -> Vec<SlotEvent> {
    use SlotEvent::*;
    let mut events = vec![
        Chosen,
        LeaseHeld,
        LeaseRefused,
        Started,
        NotStarted(StartFailure::WeightsMissing),
        NotStarted(StartFailure::CommandFailed),
        ListeningSeen,
        Ready,
        Adopted,
        ProbeSucceeded,
        DeviceLost,
        ReadyTimeout,
        Abort,
        DrainCanceled,
        InFlightZero(StopMethod::Sleep),
        InFlightZero(StopMethod::Terminate),
        Slept,
        SleepFailed,
        WakeChosen,
        Woke,
        WakeFailed,
        StopTimeout,
        ProcessesGone,
        MemoryReturned,
        ReclaimTimeout,
        AliveAfterKill,
        Retry,
    ];
    events.extend([IDLE, SLOW, HUNG].map(ProbeFailed));
    events.extend([CRASH, OUT_OF_MEMORY, PORT_TAKEN].map(Exited));
    events.extend(DrainReason::ALL.map(Drain));
    events
}

/// A slot in the given state, that has had no bad probe and no port taken.
fn slot_in(state: SlotState) -> Slot {
    Slot {
        state,
        ..Slot::new(LIMITS, 0, Millis::ZERO)
    }
}

/// State after an event, where the state has a row for it: the table of the design, written by hand.
fn expected(state: SlotState, event: SlotEvent) -> Option<SlotState> {
    use SlotState::{Acquiring, Asleep, Cold, Draining, Failed, Loading, Ready, Reclaiming};
    use SlotState::{Stopping, Stuck};
    let killing = Some(Failed(FailedPhase::Killing));
    let spawning = Some(Loading(LoadPhase::Spawning));
    let terminating = Some(Stopping(StopPhase::Terminating));
    Some(match (state, event) {
        (Cold, SlotEvent::Chosen) => Acquiring(LoadKind::Start),
        (Cold, SlotEvent::Adopted) => Ready,

        (Acquiring(LoadKind::Start), SlotEvent::LeaseHeld) => return spawning,
        (Acquiring(LoadKind::Start), SlotEvent::LeaseRefused) => Cold,
        (Acquiring(LoadKind::Start), SlotEvent::Abort | SlotEvent::DeviceLost) => Cold,
        (Acquiring(LoadKind::Wake), SlotEvent::LeaseHeld) => Loading(LoadPhase::Waking),
        (Acquiring(LoadKind::Wake), SlotEvent::LeaseRefused | SlotEvent::Abort) => Asleep,
        (Acquiring(LoadKind::Wake), SlotEvent::Exited(_) | SlotEvent::DeviceLost) => {
            return killing;
        }

        (Loading(_), SlotEvent::ReadyTimeout | SlotEvent::DeviceLost) => return killing,
        (Loading(_), SlotEvent::Abort) => return terminating,
        (Loading(LoadPhase::Spawning), SlotEvent::Started) => Loading(LoadPhase::Starting),
        (Loading(LoadPhase::Spawning), SlotEvent::NotStarted(_)) => Failed(FailedPhase::Backoff),
        (Loading(LoadPhase::Starting), SlotEvent::ListeningSeen) => Loading(LoadPhase::Loading),
        (Loading(LoadPhase::Loading), SlotEvent::Ready) => Ready,
        (Loading(LoadPhase::Waking), SlotEvent::Woke) => Ready,
        (Loading(LoadPhase::Waking), SlotEvent::Exited(_) | SlotEvent::WakeFailed) => {
            return killing;
        }
        (Loading(LoadPhase::Restarting), SlotEvent::ProcessesGone) => return spawning,
        (Loading(LoadPhase::Starting | LoadPhase::Loading), SlotEvent::Exited(exit)) => {
            match exit.address_in_use {
                true => Loading(LoadPhase::Restarting),
                false => return killing,
            }
        }

        (Ready, SlotEvent::Drain(reason)) => Draining(reason),
        (Draining(before), SlotEvent::Drain(reason)) => Draining(before.max(reason)),
        (Draining(DrainReason::Victim), SlotEvent::DrainCanceled) => Ready,
        (
            Draining(DrainReason::Victim | DrainReason::KeepAliveOver),
            SlotEvent::InFlightZero(StopMethod::Sleep),
        ) => Stopping(StopPhase::Sleeping),
        (Draining(_), SlotEvent::InFlightZero(_)) => return terminating,
        (Ready | Draining(_), SlotEvent::ProbeSucceeded) => state,
        (Ready | Draining(_), SlotEvent::ProbeFailed(activity)) if activity != HUNG => state,
        (
            Ready | Draining(_),
            SlotEvent::ProbeFailed(_) | SlotEvent::Exited(_) | SlotEvent::DeviceLost,
        ) => return killing,

        (Asleep, SlotEvent::WakeChosen) => Acquiring(LoadKind::Wake),
        (Asleep, SlotEvent::Drain(_)) => return terminating,
        (Asleep, SlotEvent::Exited(_) | SlotEvent::DeviceLost) => return killing,

        (Stopping(_) | Stuck, SlotEvent::ProcessesGone) => Reclaiming,
        (
            Stopping(StopPhase::Terminating | StopPhase::Killing) | Stuck,
            SlotEvent::NotStarted(_),
        ) => Reclaiming,
        (Stopping(StopPhase::Sleeping), SlotEvent::Slept) => Asleep,
        (Stopping(StopPhase::Sleeping), SlotEvent::StopTimeout | SlotEvent::SleepFailed) => {
            return terminating;
        }
        (Stopping(StopPhase::Sleeping), SlotEvent::Exited(_)) => Stopping(StopPhase::Killing),
        (Stopping(StopPhase::Terminating), SlotEvent::StopTimeout) => Stopping(StopPhase::Killing),
        (Stopping(_), SlotEvent::Exited(_)) => state,
        (Stopping(StopPhase::Killing), SlotEvent::AliveAfterKill) => Stuck,

        (Reclaiming, SlotEvent::MemoryReturned | SlotEvent::ReclaimTimeout) => Cold,

        (Failed(FailedPhase::Killing), SlotEvent::Exited(_)) => state,
        (Failed(FailedPhase::Killing), SlotEvent::ProcessesGone | SlotEvent::NotStarted(_)) => {
            Failed(FailedPhase::Reclaiming)
        }
        (Failed(FailedPhase::Killing), SlotEvent::AliveAfterKill) => Stuck,
        (
            Failed(FailedPhase::Reclaiming),
            SlotEvent::MemoryReturned | SlotEvent::ReclaimTimeout,
        ) => Failed(FailedPhase::Backoff),
        (Failed(FailedPhase::Backoff), SlotEvent::Retry) => Cold,
        _ => return None,
    })
}

#[test]
fn every_state_moves_by_its_rows_only() {
    let mut allowed = 0;
    for state in states() {
        for event in events() {
            let mut slot = slot_in(state);
            let before = slot.clone();
            let result = slot.apply(event, Millis(7));
            match expected(state, event) {
                Some(next) => {
                    assert!(result.is_ok(), "{state:?} {event:?}");
                    assert_eq!(slot.state(), next, "{state:?} {event:?}");
                    allowed += 1;
                }
                None => {
                    let forbidden = ForbiddenTransition { state, event };
                    assert_eq!(result, Err(forbidden));
                    assert_eq!(slot, before, "{state:?} {event:?}");
                }
            }
        }
    }
    let all = states().len() * events().len();
    assert!(allowed > 100 && allowed < all / 3, "{allowed} of {all}");
}

#[test]
fn every_state_is_reached_and_left() {
    let mut reached = vec![SlotState::Cold];
    let mut at = 0;
    while at < reached.len() {
        for event in events() {
            let next = expected(reached[at], event);
            reached.extend(next.filter(|next| !reached.contains(next)));
        }
        at += 1;
    }
    for state in states() {
        assert!(reached.contains(&state), "{state:?} is not reached");
        let is_left = |event| expected(state, event).is_some_and(|next| next != state);
        assert!(events().into_iter().any(is_left), "{state:?} is not left");
    }
}

/// Effects that keep a process and its leases apart from those of another life.
#[test]
fn leases_are_released_exactly_where_a_state_needs_them_no_more() {
    for state in states() {
        for event in events() {
            let mut slot = slot_in(state);
            let Ok(effects) = slot.apply(event, Millis(7)) else {
                continue;
            };
            let (before, after) = (state.holds_lease(), slot.state().holds_lease());
            let releases = effects.contains(&SlotEffect::Release);
            let may_be_granted = state == SlotState::Acquiring(LoadKind::Start);
            let ends_open_search =
                may_be_granted && matches!(event, SlotEvent::Abort | SlotEvent::DeviceLost);
            assert_eq!(
                releases,
                before && !after || ends_open_search,
                "{state:?} {event:?}"
            );
            let starts = effects.contains(&SlotEffect::Start);
            assert!(
                !starts || after,
                "a process without a lease: {state:?} {event:?}"
            );
        }
    }
}

#[test]
fn permits_are_given_exactly_in_ready() {
    for state in states() {
        for event in events() {
            let mut slot = slot_in(state);
            let Ok(effects) = slot.apply(event, Millis(7)) else {
                continue;
            };
            let (before, after) = (state == SlotState::Ready, slot.state() == SlotState::Ready);
            assert_eq!(effects.contains(&SlotEffect::Open), !before && after);
            assert_eq!(effects.contains(&SlotEffect::Close), before && !after);
        }
    }
}

#[test]
fn each_load_is_reported_once() {
    for state in states() {
        for event in events() {
            let mut slot = slot_in(state);
            let Ok(effects) = slot.apply(event, Millis(7)) else {
                continue;
            };
            let was_loading = matches!(state, SlotState::Loading(_));
            let is_loading = matches!(slot.state(), SlotState::Loading(_));
            let is_report = |effect: &&SlotEffect| matches!(effect, SlotEffect::ReportSetup(_));
            let reports = effects.iter().filter(is_report).count();
            assert_eq!(
                reports,
                usize::from(was_loading && !is_loading),
                "{state:?} {event:?}"
            );
        }
    }
}

fn drive(slot: &mut Slot, steps: &[(u64, SlotEvent)]) -> Vec<SlotEffect> {
    let mut effects = Vec::new();
    for (at, event) in steps {
        effects.extend(slot.apply(*event, Millis(*at)).unwrap());
    }
    effects
}

const LOAD: [(u64, SlotEvent); 5] = [
    (0, SlotEvent::Chosen),
    (100, SlotEvent::LeaseHeld),
    (150, SlotEvent::Started),
    (400, SlotEvent::ListeningSeen),
    (2150, SlotEvent::Ready),
];

#[test]
fn a_life_without_a_failure() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    let took = Millis(2000);
    let kind = LoadKind::Start;
    assert_eq!(
        drive(&mut slot, &LOAD),
        [
            SlotEffect::Acquire(kind),
            SlotEffect::Start,
            SlotEffect::RecordLoad { kind, took },
            SlotEffect::Open,
            SlotEffect::ReportSetup(SetupStatus::Ready),
        ]
    );
    assert_eq!((slot.since(), slot.life()), (Millis(2150), 1));
    assert_eq!(slot.ready_for(Millis(9150)), Millis(7000));
    let end = [
        (9150, SlotEvent::Drain(DrainReason::Victim)),
        (9250, SlotEvent::InFlightZero(StopMethod::Terminate)),
        (9300, SlotEvent::Exited(CRASH)),
        (9400, SlotEvent::ProcessesGone),
        (9500, SlotEvent::MemoryReturned),
    ];
    let ready_for = Millis(7100);
    assert_eq!(
        drive(&mut slot, &end),
        [
            SlotEffect::Close,
            SlotEffect::Stop,
            SlotEffect::RecordService { ready_for },
            SlotEffect::AwaitMemory,
            SlotEffect::Release,
        ]
    );
    assert_eq!(slot.state(), SlotState::Cold);
    assert_eq!(slot.ready_for(Millis(9999)), Millis::ZERO);
}

#[test]
fn a_canceled_drain_goes_on_with_the_service() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD);
    let drain = [
        (3000, SlotEvent::Drain(DrainReason::Victim)),
        (3100, SlotEvent::DrainCanceled),
    ];
    assert_eq!(
        drive(&mut slot, &drain),
        [SlotEffect::Close, SlotEffect::Open]
    );
    assert_eq!(slot.ready_for(Millis(12_150)), Millis(10_000));
}

#[test]
fn an_operator_who_unloads_a_victim_is_not_overruled_by_its_challenger() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD);
    for reason in [
        DrainReason::Victim,
        DrainReason::Operator,
        DrainReason::Victim,
    ] {
        slot.apply(SlotEvent::Drain(reason), Millis(3000)).unwrap();
    }
    assert_eq!(slot.state(), SlotState::Draining(DrainReason::Operator));
    slot.apply(SlotEvent::DrainCanceled, Millis(3000))
        .unwrap_err();
}

#[test]
fn a_sleep_and_a_wake_have_their_own_time() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD);
    let steps = [
        (10_000, SlotEvent::Drain(DrainReason::KeepAliveOver)),
        (10_000, SlotEvent::InFlightZero(StopMethod::Sleep)),
        (12_000, SlotEvent::Slept),
        (90_000, SlotEvent::WakeChosen),
        (90_100, SlotEvent::LeaseHeld),
        (90_900, SlotEvent::Woke),
    ];
    let effects = drive(&mut slot, &steps);
    let (kind, took) = (LoadKind::Wake, Millis(800));
    assert!(effects.contains(&SlotEffect::ShrinkLease));
    assert!(effects.contains(&SlotEffect::RecordLoad { kind, took }));
    assert_eq!(slot.ready_for(Millis(91_000)), Millis(100));
    assert_eq!(slot.life(), 1, "the process is the same");
}

#[test]
fn a_taken_port_is_no_failure_five_times() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD[..3]);
    for _ in 0..PORT_RETRIES_MAX {
        let again = [
            (200, SlotEvent::Exited(PORT_TAKEN)),
            (210, SlotEvent::ProcessesGone),
            (220, SlotEvent::Started),
        ];
        let effects = drive(&mut slot, &again);
        assert_eq!(effects, [SlotEffect::Kill, SlotEffect::Start]);
    }
    let effects = drive(&mut slot, &[(300, SlotEvent::Exited(PORT_TAKEN))]);
    let (failure, ready_for) = (InstanceFailure::AddressInUse, Millis::ZERO);
    assert!(effects.contains(&SlotEffect::RecordFailure { failure, ready_for }));
    assert_eq!(slot.state(), SlotState::Failed(FailedPhase::Killing));
    let timer = slot.next_timer();
    assert_eq!(timer, Some((Millis(30_300), SlotEvent::AliveAfterKill)));
}

#[test]
fn other_ports_do_not_prolong_a_load() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD[..3]);
    let again = [
        (300_000, SlotEvent::Exited(PORT_TAKEN)),
        (300_010, SlotEvent::ProcessesGone),
    ];
    drive(&mut slot, &again);
    let timer = slot.next_timer();
    assert_eq!(timer, Some((Millis(600_100), SlotEvent::ReadyTimeout)));
}

#[test]
fn three_bad_probes_in_a_row_fail_an_idle_server() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD);
    let bad = SlotEvent::ProbeFailed(IDLE);
    drive(
        &mut slot,
        &[(3000, bad), (3001, bad), (3002, SlotEvent::ProbeSucceeded)],
    );
    drive(
        &mut slot,
        &[
            (3003, bad),
            (3004, SlotEvent::ProbeFailed(SLOW)),
            (3005, bad),
        ],
    );
    assert_eq!(slot.state(), SlotState::Ready);
    let effects = drive(&mut slot, &[(3150, bad)]);
    let (failure, ready_for) = (InstanceFailure::Unresponsive, Millis(1000));
    let record = SlotEffect::RecordFailure { failure, ready_for };
    assert_eq!(effects, [SlotEffect::Close, SlotEffect::Kill, record]);
}

#[test]
fn outcomes_of_a_load_are_told_apart() {
    let outcome = |event: SlotEvent| {
        let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
        drive(&mut slot, &LOAD[..4]);
        let effects = drive(&mut slot, &[(700, event)]);
        effects.into_iter().find_map(|effect| match effect {
            SlotEffect::ReportSetup(status) => Some(status),
            _ => None,
        })
    };
    let exited = SlotEvent::Exited;
    assert_eq!(outcome(SlotEvent::Ready), Some(SetupStatus::Ready));
    assert_eq!(outcome(exited(CRASH)), Some(SetupStatus::Failed));
    assert_eq!(outcome(SlotEvent::DeviceLost), Some(SetupStatus::Failed));
    assert_eq!(
        outcome(SlotEvent::ReadyTimeout),
        Some(SetupStatus::TimedOut)
    );
    assert_eq!(
        outcome(exited(OUT_OF_MEMORY)),
        Some(SetupStatus::OutOfMemory)
    );
    assert_eq!(outcome(SlotEvent::Abort), Some(SetupStatus::Aborted));
}

#[test]
fn a_process_that_does_not_end_is_killed_and_then_stuck_until_it_is_gone() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    drive(&mut slot, &LOAD);
    let drain = [
        (5000, SlotEvent::Drain(DrainReason::Operator)),
        (5000, SlotEvent::InFlightZero(StopMethod::Sleep)),
    ];
    drive(&mut slot, &drain);
    let mut timers = Vec::new();
    while let Some((at, event)) = slot.next_timer() {
        slot.apply(event, at).unwrap();
        timers.push((at.0, slot.state()));
    }
    let expected = [
        (15_000, SlotState::Stopping(StopPhase::Killing)),
        (45_000, SlotState::Stuck),
    ];
    assert_eq!(timers, expected);
    drive(&mut slot, &[(99_000, SlotEvent::ProcessesGone)]);
    let timer = slot.next_timer();
    assert_eq!(timer, Some((Millis(104_000), SlotEvent::ReclaimTimeout)));
    drive(&mut slot, &[(104_000, SlotEvent::ReclaimTimeout)]);
    assert_eq!(slot.state(), SlotState::Cold);
}

#[test]
fn an_adopted_process_is_ready_without_a_load() {
    let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
    let effects = drive(&mut slot, &[(50, SlotEvent::Adopted)]);
    assert_eq!(effects, [SlotEffect::Open]);
    assert_eq!(slot.ready_for(Millis(60)), Millis(10));
}

/// Histories of random events: the timer of a state always has a row in it, and each state has one name.
#[test]
fn timers_are_always_allowed() {
    let mut rng = Rng::with_seed(7);
    let (events, mut names) = (events(), BTreeMap::<_, BTreeSet<_>>::new());
    for _ in 0..300 {
        let mut slot = Slot::new(LIMITS, 0, Millis::ZERO);
        let mut now = Millis::ZERO;
        for _ in 0..300 {
            now = now + Millis(rng.u64(0..5000));
            if let Some((at, event)) = slot.next_timer()
                && at <= now
            {
                slot.apply(event, now).unwrap();
            }
            let _ = slot.apply(events[rng.usize(0..events.len())], now);
            let state = slot.state();
            names
                .entry(state.name())
                .or_default()
                .insert(format!("{state:?}"));
            assert!(!state.has_process() || state.holds_lease());
        }
    }
    assert_eq!(names.len(), 10);
}
