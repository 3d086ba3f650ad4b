//! Sleep of a server by its own calls, which its preset names.
//!
//! Decides nothing: when a server sleeps is the pool's. Each call goes to the loopback address of the instance with its key.

use std::time::Duration;

use bytes::Bytes;
use infergate_core::model::{ModelSpec, ProcessSpec};
use infergate_core::vram::SlotEvent;

use crate::gpu::preset_of;
use crate::gpu::presets::{HttpCall, SleepSupport};
use crate::upstream::{HttpClient, ServerPost, Target, post, read_json};

/// Longest call of a sleep; the slot gives up after as long.
const SLEEP_CALL_MAX: Duration = Duration::from_secs(60);

/// Step of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SleepStep {
    /// Fall asleep.
    FallAsleep,
    /// Stay asleep: nothing is asked of the server.
    Stay,
    /// Wake.
    Wake,
}

impl SleepStep {
    pub const fn name(self) -> &'static str {
        match self {
            SleepStep::FallAsleep => "fall asleep",
            SleepStep::Stay => "stay asleep",
            SleepStep::Wake => "wake",
        }
    }

    /// Step behind this one; a server that failed to is asked nothing more until it is ended.
    pub const fn next(self, is_done: bool) -> Option<SleepStep> {
        match (self, is_done) {
            (SleepStep::Wake, true) => None,
            _ => Some(SleepStep::Stay),
        }
    }

    pub const fn event(self, is_done: bool) -> SlotEvent {
        match (self, is_done) {
            (SleepStep::Wake, true) => SlotEvent::Woke,
            (SleepStep::Wake, false) => SlotEvent::WakeFailed,
            (_, true) => SlotEvent::Slept,
            (_, false) => SlotEvent::SleepFailed,
        }
    }
}

/// Performs a step to its end.
///
/// # Errors
/// A sentence: a call failed, or the server says that it has not done so.
pub(super) async fn perform_step(
    client: &HttpClient,
    target: &Target,
    spec: &ModelSpec,
    step: SleepStep,
) -> Result<(), String> {
    let process = spec.process.as_ref();
    let found = process.and_then(|process| Some((process, calls_of(process)?)));
    let (process, (support, sleep, wake)) = found.ok_or("its preset has no sleep")?;
    let (calls, is_asleep, longest) = match step {
        SleepStep::FallAsleep => (sleep, true, SLEEP_CALL_MAX),
        SleepStep::Wake => {
            let longest = Duration::from_secs(process.ready_timeout_secs);
            (wake, false, longest)
        }
        SleepStep::Stay => return std::future::pending().await,
    };
    for call in calls {
        let request = ServerPost {
            path: call.path,
            body: Bytes::from_static(call.body.unwrap_or("").as_bytes()),
            timeout: longest,
        };
        let posted = post(client, target, request).await;
        posted.map_err(|error| format!("{}: {error}", call.path))?;
    }
    let state = read_json(client, target, support.state_path).await;
    let reported = state.and_then(|state| state["is_sleeping"].as_bool());
    match reported == Some(is_asleep) {
        true => Ok(()),
        false => Err(format!("{} says otherwise", support.state_path)),
    }
}

/// Returns whether a server serves: one that could sleep has to say that it does not.
pub(super) async fn is_awake(client: &HttpClient, target: &Target, process: &ProcessSpec) -> bool {
    let Some((support, ..)) = calls_of(process) else {
        return true;
    };
    let state = read_json(client, target, support.state_path).await;
    state.and_then(|state| state["is_sleeping"].as_bool()) == Some(false)
}

type SleepCalls = (
    &'static SleepSupport,
    &'static [HttpCall],
    &'static [HttpCall],
);

/// Calls that let a server sleep, and that wake it.
fn calls_of(process: &ProcessSpec) -> Option<SleepCalls> {
    let support = preset_of(process)?.sleep.as_ref()?;
    let mut levels = support.levels.iter();
    let level = levels.find(|level| level.level == process.sleep)?;
    Some((support, level.sleep, level.wake))
}

/// Returns whether the process sleeps while it is idle.
pub(super) fn can_sleep(process: &ProcessSpec) -> bool {
    calls_of(process).is_some()
}
