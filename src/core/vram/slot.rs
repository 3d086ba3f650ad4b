//! States of a slot, and the only changes between them: one life of a model process, from cold to cold.
//!
//! Neither processes nor leases: what follows from a change is returned as effects, and the caller brings them about.
//! An event that a state has no row for changes nothing and is an error. Times are [`Millis`]; the timers of a state
//! are events as well, see [`Slot::next_timer`].

mod event;
mod failure;
mod state;

use thiserror::Error;

pub use event::{ServerActivity, SlotEffect, SlotEvent, StopMethod};
pub use failure::{InstanceFailure, ProcessExit, StartFailure};
pub use state::{DrainReason, FailedPhase, LoadKind, LoadPhase, SlotId, SlotState, StopPhase};

use super::report::SetupStatus;
use crate::Millis;

/// Time for the memory of ended processes to return; the rest counts as outside memory from then on.
pub const RECLAIM_MAX: Millis = Millis::from_secs(5);
/// Time from SIGKILL after which a process that is still there hangs in its driver.
pub const KILL_MAX: Millis = Millis::from_secs(30);
/// Time for a server to fall asleep: level 1 of vLLM copies the weights into memory of the host.
const SLEEP_MAX: Millis = Millis::from_secs(60);
/// Bad probes in a row after which an idle server has failed.
const BAD_PROBES_MAX: u8 = 3;
/// Time without progress after which a bad probe of a busy server means that it has failed.
const PROGRESS_MAX: Millis = Millis::from_secs(10);
/// Further ports that are tried when one was taken between its choice and its use.
const PORT_RETRIES_MAX: u8 = 5;

/// An event for which the state has no row; the slot is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{event:?} changes nothing in state {}", state.name())]
pub struct ForbiddenTransition {
    /// State.
    pub state: SlotState,
    /// Event.
    pub event: SlotEvent,
}

/// Times that the configuration of a model gives its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLimits {
    /// Longest load, from the moment the leases are held.
    pub ready_timeout: Millis,
    /// Time between SIGTERM and SIGKILL.
    pub stop_timeout: Millis,
}

/// A slot and the times of its present life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    limits: SlotLimits,
    state: SlotState,
    since: Millis,
    /// Number of lives so far: an event of an earlier life is recognized by it.
    life: u64,
    /// Moment the leases of the running load were held.
    load_since: Millis,
    /// Start of the process, or of the wake.
    started_at: Millis,
    /// Moment the instance became ready; `None` before.
    ready_since: Option<Millis>,
    bad_probes: u8,
    /// Ports that were taken in this load.
    ports_taken: u8,
}

/// Change of state and its consequences.
struct Transition {
    to: SlotState,
    effects: Vec<SlotEffect>,
}

fn go<const N: usize>(to: SlotState, effects: [SlotEffect; N]) -> Option<Transition> {
    Some(Transition {
        to,
        effects: effects.to_vec(),
    })
}

impl Slot {
    /// Returns a cold slot, whose lives are numbered from `life` + 1.
    pub fn new(limits: SlotLimits, life: u64, now: Millis) -> Slot {
        Slot {
            limits,
            state: SlotState::Cold,
            since: now,
            life,
            load_since: now,
            started_at: now,
            ready_since: None,
            bad_probes: 0,
            ports_taken: 0,
        }
    }

    /// State.
    pub fn state(&self) -> SlotState {
        self.state
    }

    /// Moment of the latest change of state.
    pub fn since(&self) -> Millis {
        self.since
    }

    /// Number of the present life, or of the last one.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Moment the leases of the latest load were held.
    pub fn load_since(&self) -> Millis {
        self.load_since
    }

    /// Moment the instance became ready; `None` while it serves no request.
    pub fn ready_since(&self) -> Option<Millis> {
        self.ready_since
    }

    /// Returns the time since the instance became ready; zero before.
    pub fn ready_for(&self, now: Millis) -> Millis {
        self.ready_since
            .map_or(Millis::ZERO, |since| now.since(since))
    }

    /// Sets the times that count from now on.
    pub fn set_limits(&mut self, limits: SlotLimits) {
        self.limits = limits;
    }

    /// Returns the event that time alone causes next, and its moment.
    pub fn next_timer(&self) -> Option<(Millis, SlotEvent)> {
        match self.state {
            SlotState::Loading(_) => Some((
                self.load_since + self.limits.ready_timeout,
                SlotEvent::ReadyTimeout,
            )),
            SlotState::Stopping(StopPhase::Sleeping) => {
                Some((self.since + SLEEP_MAX, SlotEvent::StopTimeout))
            }
            SlotState::Stopping(StopPhase::Terminating) => Some((
                self.since + self.limits.stop_timeout,
                SlotEvent::StopTimeout,
            )),
            SlotState::Stopping(StopPhase::Killing) | SlotState::Failed(FailedPhase::Killing) => {
                Some((self.since + KILL_MAX, SlotEvent::AliveAfterKill))
            }
            SlotState::Reclaiming | SlotState::Failed(FailedPhase::Reclaiming) => {
                Some((self.since + RECLAIM_MAX, SlotEvent::ReclaimTimeout))
            }
            _ => None,
        }
    }

    /// Changes the state as the event demands and returns what follows.
    ///
    /// # Errors
    /// The state has no row for the event.
    pub fn apply(
        &mut self,
        event: SlotEvent,
        now: Millis,
    ) -> Result<Vec<SlotEffect>, ForbiddenTransition> {
        let Some(transition) = self.transition(event, now) else {
            let state = self.state;
            return Err(ForbiddenTransition { state, event });
        };
        let from = std::mem::replace(&mut self.state, transition.to);
        self.keep_times(from, event, now);
        Ok(transition.effects)
    }

    /// Moves the times that belong to states; counts probes and ports.
    fn keep_times(&mut self, from: SlotState, event: SlotEvent, now: Millis) {
        match event {
            SlotEvent::Chosen | SlotEvent::Adopted => {
                self.life += 1;
                self.ports_taken = 0;
            }
            SlotEvent::LeaseHeld => {
                self.load_since = now;
                self.started_at = now;
            }
            SlotEvent::Started => self.started_at = now,
            _ => {}
        }
        self.bad_probes = match event {
            SlotEvent::ProbeFailed(ServerActivity::Idle) => self.bad_probes.saturating_add(1),
            SlotEvent::ProbeFailed(ServerActivity::Busy { .. }) => self.bad_probes,
            _ => 0,
        };
        match self.state {
            SlotState::Ready => self.ready_since = self.ready_since.or(Some(now)),
            SlotState::Draining(_) => {}
            _ => self.ready_since = None,
        }
        if self.state == SlotState::Loading(LoadPhase::Restarting) && self.state != from {
            self.ports_taken += 1;
        }
        if self.state != from {
            self.since = now;
        }
    }

    /// The table. `None`: the state has no row for the event.
    fn transition(&self, event: SlotEvent, now: Millis) -> Option<Transition> {
        match self.state {
            SlotState::Cold => match event {
                SlotEvent::Chosen => go(
                    SlotState::Acquiring(LoadKind::Start),
                    [SlotEffect::Acquire(LoadKind::Start)],
                ),
                SlotEvent::Adopted => go(SlotState::Ready, [SlotEffect::Open]),
                _ => None,
            },
            SlotState::Acquiring(kind) => self.while_acquiring(kind, event, now),
            SlotState::Loading(phase) => self.while_loading(phase, event, now),
            SlotState::Ready => self.while_ready(event, now),
            SlotState::Draining(reason) => self.while_draining(reason, event, now),
            SlotState::Asleep => self.while_asleep(event, now),
            SlotState::Stopping(phase) => while_stopping(phase, event),
            SlotState::Reclaiming => match event {
                SlotEvent::MemoryReturned | SlotEvent::ReclaimTimeout => {
                    go(SlotState::Cold, [SlotEffect::Release])
                }
                _ => None,
            },
            SlotState::Stuck => match event {
                SlotEvent::ProcessesGone | SlotEvent::NotStarted(_) => {
                    go(SlotState::Reclaiming, [SlotEffect::AwaitMemory])
                }
                _ => None,
            },
            SlotState::Failed(phase) => while_failed(phase, event),
        }
    }

    fn while_acquiring(&self, kind: LoadKind, event: SlotEvent, now: Millis) -> Option<Transition> {
        match (kind, event) {
            (LoadKind::Start, SlotEvent::LeaseHeld) => {
                go(SlotState::Loading(LoadPhase::Spawning), [SlotEffect::Start])
            }
            (LoadKind::Start, SlotEvent::LeaseRefused) => go(SlotState::Cold, []),
            (LoadKind::Start, SlotEvent::Abort | SlotEvent::DeviceLost) => {
                go(SlotState::Cold, [SlotEffect::Release])
            }
            (LoadKind::Wake, SlotEvent::LeaseHeld) => {
                go(SlotState::Loading(LoadPhase::Waking), [SlotEffect::Wake])
            }
            (LoadKind::Wake, SlotEvent::LeaseRefused) => go(SlotState::Asleep, []),
            (LoadKind::Wake, SlotEvent::Abort) => go(SlotState::Asleep, [SlotEffect::ShrinkLease]),
            (LoadKind::Wake, SlotEvent::Exited(_) | SlotEvent::DeviceLost) => {
                self.while_asleep(event, now)
            }
            _ => None,
        }
    }

    fn while_loading(&self, phase: LoadPhase, event: SlotEvent, now: Millis) -> Option<Transition> {
        match (phase, event) {
            (LoadPhase::Spawning, SlotEvent::Started) => {
                go(SlotState::Loading(LoadPhase::Starting), [])
            }
            (LoadPhase::Spawning, SlotEvent::NotStarted(failure)) => {
                let failure = InstanceFailure::from(failure);
                go(
                    SlotState::Failed(FailedPhase::Backoff),
                    [
                        SlotEffect::Release,
                        self.failure_record(failure, now),
                        SlotEffect::ReportSetup(failure.setup_status()),
                    ],
                )
            }
            (LoadPhase::Starting, SlotEvent::ListeningSeen) => {
                go(SlotState::Loading(LoadPhase::Loading), [])
            }
            (LoadPhase::Loading, SlotEvent::Ready) => self.become_ready(LoadKind::Start, now),
            (LoadPhase::Waking, SlotEvent::Woke) => self.become_ready(LoadKind::Wake, now),
            (LoadPhase::Restarting, SlotEvent::ProcessesGone) => {
                go(SlotState::Loading(LoadPhase::Spawning), [SlotEffect::Start])
            }
            (LoadPhase::Starting | LoadPhase::Loading, SlotEvent::Exited(exit))
                if exit.address_in_use =>
            {
                match self.ports_taken < PORT_RETRIES_MAX {
                    true => go(
                        SlotState::Loading(LoadPhase::Restarting),
                        [SlotEffect::Kill],
                    ),
                    false => self.fail_load(InstanceFailure::AddressInUse, now),
                }
            }
            (
                LoadPhase::Starting | LoadPhase::Loading | LoadPhase::Waking,
                SlotEvent::Exited(exit),
            ) => self.fail_load(InstanceFailure::from(exit), now),
            (LoadPhase::Waking, SlotEvent::WakeFailed) => {
                self.fail_load(InstanceFailure::Unresponsive, now)
            }
            (_, SlotEvent::ReadyTimeout) => self.fail_load(InstanceFailure::ReadyTimeout, now),
            (_, SlotEvent::DeviceLost) => self.fail_load(InstanceFailure::DeviceLost, now),
            (_, SlotEvent::Abort) => go(
                SlotState::Stopping(StopPhase::Terminating),
                [
                    SlotEffect::Stop,
                    SlotEffect::ReportSetup(SetupStatus::Aborted),
                ],
            ),
            _ => None,
        }
    }

    fn become_ready(&self, kind: LoadKind, now: Millis) -> Option<Transition> {
        let took = now.since(self.started_at);
        go(
            SlotState::Ready,
            [
                SlotEffect::RecordLoad { kind, took },
                SlotEffect::Open,
                SlotEffect::ReportSetup(SetupStatus::Ready),
            ],
        )
    }

    fn while_ready(&self, event: SlotEvent, now: Millis) -> Option<Transition> {
        match event {
            SlotEvent::Drain(reason) => go(SlotState::Draining(reason), [SlotEffect::Close]),
            _ => self.while_serving(event, now),
        }
    }

    fn while_draining(
        &self,
        reason: DrainReason,
        event: SlotEvent,
        now: Millis,
    ) -> Option<Transition> {
        match event {
            SlotEvent::Drain(other) => go(SlotState::Draining(reason.max(other)), []),
            SlotEvent::DrainCanceled if reason.can_be_canceled() => {
                go(SlotState::Ready, [SlotEffect::Open])
            }
            SlotEvent::InFlightZero(method) => {
                let (phase, effect) = match method == StopMethod::Sleep && reason.may_sleep() {
                    true => (StopPhase::Sleeping, SlotEffect::Sleep),
                    false => (StopPhase::Terminating, SlotEffect::Stop),
                };
                let ready_for = self.ready_for(now);
                let record = SlotEffect::RecordService { ready_for };
                go(SlotState::Stopping(phase), [effect, record])
            }
            _ => self.while_serving(event, now),
        }
    }

    /// Events of a server with permits, or with requests that finish.
    fn while_serving(&self, event: SlotEvent, now: Millis) -> Option<Transition> {
        match event {
            SlotEvent::ProbeSucceeded => go(self.state, []),
            SlotEvent::ProbeFailed(activity) => {
                let has_failed = match activity {
                    ServerActivity::Idle => self.bad_probes + 1 >= BAD_PROBES_MAX,
                    ServerActivity::Busy { without_progress } => without_progress >= PROGRESS_MAX,
                };
                match has_failed {
                    true => self.fail(InstanceFailure::Unresponsive, now),
                    false => go(self.state, []),
                }
            }
            SlotEvent::Exited(exit) => self.fail(InstanceFailure::from(exit), now),
            SlotEvent::DeviceLost => self.fail(InstanceFailure::DeviceLost, now),
            _ => None,
        }
    }

    fn while_asleep(&self, event: SlotEvent, now: Millis) -> Option<Transition> {
        match event {
            SlotEvent::WakeChosen => go(
                SlotState::Acquiring(LoadKind::Wake),
                [SlotEffect::Acquire(LoadKind::Wake)],
            ),
            SlotEvent::Drain(_) => go(
                SlotState::Stopping(StopPhase::Terminating),
                [SlotEffect::Stop],
            ),
            SlotEvent::Exited(exit) => self.fail(InstanceFailure::from(exit), now),
            SlotEvent::DeviceLost => self.fail(InstanceFailure::DeviceLost, now),
            _ => None,
        }
    }

    fn fail_load(&self, failure: InstanceFailure, now: Millis) -> Option<Transition> {
        let mut transition = self.fail(failure, now)?;
        let report = SlotEffect::ReportSetup(failure.setup_status());
        transition.effects.push(report);
        Some(transition)
    }

    fn fail(&self, failure: InstanceFailure, now: Millis) -> Option<Transition> {
        let mut effects = Vec::with_capacity(4);
        if self.state == SlotState::Ready {
            effects.push(SlotEffect::Close);
        }
        effects.push(SlotEffect::Kill);
        effects.push(self.failure_record(failure, now));
        Some(Transition {
            to: SlotState::Failed(FailedPhase::Killing),
            effects,
        })
    }

    fn failure_record(&self, failure: InstanceFailure, now: Millis) -> SlotEffect {
        let ready_for = self.ready_for(now);
        SlotEffect::RecordFailure { failure, ready_for }
    }
}

fn while_stopping(phase: StopPhase, event: SlotEvent) -> Option<Transition> {
    match (phase, event) {
        // A start that was given up may have failed anyway: then no process will ever be gone.
        (_, SlotEvent::ProcessesGone)
        | (StopPhase::Terminating | StopPhase::Killing, SlotEvent::NotStarted(_)) => {
            go(SlotState::Reclaiming, [SlotEffect::AwaitMemory])
        }
        (StopPhase::Sleeping, SlotEvent::Slept) => go(SlotState::Asleep, [SlotEffect::ShrinkLease]),
        (StopPhase::Sleeping, SlotEvent::StopTimeout | SlotEvent::SleepFailed) => go(
            SlotState::Stopping(StopPhase::Terminating),
            [SlotEffect::Stop],
        ),
        (StopPhase::Terminating, SlotEvent::StopTimeout)
        | (StopPhase::Sleeping, SlotEvent::Exited(_)) => {
            go(SlotState::Stopping(StopPhase::Killing), [SlotEffect::Kill])
        }
        (StopPhase::Terminating | StopPhase::Killing, SlotEvent::Exited(_)) => {
            go(SlotState::Stopping(phase), [])
        }
        (StopPhase::Killing, SlotEvent::AliveAfterKill) => {
            go(SlotState::Stuck, [SlotEffect::Alarm])
        }
        _ => None,
    }
}

fn while_failed(phase: FailedPhase, event: SlotEvent) -> Option<Transition> {
    match (phase, event) {
        (FailedPhase::Killing, SlotEvent::Exited(_)) => go(SlotState::Failed(phase), []),
        (FailedPhase::Killing, SlotEvent::ProcessesGone | SlotEvent::NotStarted(_)) => go(
            SlotState::Failed(FailedPhase::Reclaiming),
            [SlotEffect::AwaitMemory],
        ),
        (FailedPhase::Killing, SlotEvent::AliveAfterKill) => {
            go(SlotState::Stuck, [SlotEffect::Alarm])
        }
        (FailedPhase::Reclaiming, SlotEvent::MemoryReturned | SlotEvent::ReclaimTimeout) => go(
            SlotState::Failed(FailedPhase::Backoff),
            [SlotEffect::Release],
        ),
        (FailedPhase::Backoff, SlotEvent::Retry) => go(SlotState::Cold, []),
        _ => None,
    }
}

#[cfg(test)]
#[path = "slot/tests.rs"]
mod tests;
