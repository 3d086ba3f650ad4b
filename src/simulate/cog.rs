//! The cog dialect: predictions under names of the client's, answered when they have ended, and the health of a
//! server by its body. The outputs are those of `task`.
//!
//! A run goes on when its client leaves, as with Cog 0.16: only a cancel ends it. At most as many runs are known as
//! there are slots.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::cog_runs::OpenRun;
use super::concurrency::WorkSlot;
use super::config::{Config, Task};
use super::dialect::{at_capacity, invalid_input, not_ready};
use super::fault::{Fault, FaultPoint};
use super::identity::FINGERPRINT;
use super::pace::TokenPace;
use super::state::SimulatorState;
use super::task::{self, TaskRequest};
use super::text::{SimulatedText, TextLength, hash};

/// Ends a run when it is dropped: the slot first, so that a client which is told finds it free.
struct RunEnd {
    state: Arc<SimulatorState>,
    name: String,
}

impl Drop for RunEnd {
    fn drop(&mut self) {
        self.state.runs.open.lock().remove(&self.name);
    }
}

/// The fault that a body names.
pub(super) fn named_fault(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let fault = &body["input"]["x_sim_fault"];
    fault.as_str().map(str::to_owned)
}

/// Status and body of the answer to a prediction.
pub(super) async fn predict(
    state: &Arc<SimulatorState>,
    name: &str,
    body: &Bytes,
    fault: Option<Fault>,
) -> (u16, Value) {
    match fault {
        Some(Fault::SetupFailed) => return (503, not_ready()),
        // Its slots are gone with its worker.
        Some(Fault::Unhealthy) => return (409, at_capacity()),
        _ if state.runs.is_unhealthy.load(Relaxed) => return (409, at_capacity()),
        _ => {}
    }
    let Some(input) = input_of(body) else {
        return (422, invalid_input("Field required"));
    };
    let name = match name {
        "" => format!("pred_{}", state.ordinal.fetch_add(1, Relaxed)),
        name => name.to_owned(),
    };
    if state.runs.open.lock().contains_key(&name) {
        return (
            202,
            json!({ "id": name, "status": "processing", "logs": "", "metrics": {} }),
        );
    }
    let Ok(slot) = state.gate.acquire().await else {
        return (409, at_capacity());
    };
    state.work_started.notify_one();
    let canceled = Arc::new(Notify::new());
    let run = OpenRun {
        canceled: Arc::clone(&canceled),
        cancels_to_lose: state.config.lost_cancels,
    };
    state.runs.open.lock().insert(name.clone(), run);
    let end = RunEnd {
        state: Arc::clone(state),
        name,
    };
    let (sender, answered) = oneshot::channel();
    #[allow(
        clippy::disallowed_methods,
        reason = "the client's departure must not end it, and its end is bounded by its slot"
    )]
    tokio::spawn(async move {
        let answer = work((end, slot), input, fault, &canceled).await;
        // A client that is gone needs no answer.
        let _ = sender.send(answer);
    });
    match answered.await {
        Ok(answer) => (200, answer),
        Err(_) => (
            500,
            json!({ "error": "prediction task lost", "status": "failed" }),
        ),
    }
}

/// Works on a run until it has ended or is canceled; returns its answer.
async fn work(
    (end, slot): (RunEnd, WorkSlot),
    input: Value,
    fault: Option<Fault>,
    canceled: &Notify,
) -> Value {
    let (state, name) = (Arc::clone(&end.state), end.name.clone());
    let start = Instant::now();
    let (output, mut metrics, tokens) = output(&state.config, input);
    let ordinal = state.ordinal.fetch_add(1, Relaxed);
    let jitter_seed = state.config.seed ^ hash(&ordinal.to_le_bytes());
    let pace = TokenPace::start(&state.config, fault == Some(Fault::Slow), jitter_seed);
    let working = async {
        if fault == Some(Fault::Stall) {
            pending::<()>().await;
        }
        if let Some(due) = pace.due(tokens.saturating_sub(1)) {
            sleep_until(due).await;
        }
    };
    let is_canceled = tokio::select! {
        () = working => false,
        () = canceled.notified() => true,
    };
    metrics.insert("predict_time".into(), start.elapsed().as_secs_f64().into());
    let failed = |error: &str| json!({ "id": name, "status": "failed", "error": error, "logs": "", "metrics": metrics });
    let answer = match fault {
        _ if is_canceled => json!({ "id": name, "status": "canceled", "metrics": metrics }),
        Some(Fault::ModelFails) => {
            failed("Prediction failed: ValueError: simulated failure of the model")
        }
        Some(Fault::WorkerCrash) => {
            state.runs.is_unhealthy.store(true, Relaxed);
            failed("Worker crashed")
        }
        _ => json!({ "id": name, "status": "succeeded", "output": output, "logs": "worked\n",
                     "metrics": metrics, "served_by": FINGERPRINT }),
    };
    match (is_canceled, fault) {
        (true, _) => drop(slot),
        (false, Some(Fault::ModelFails | Fault::WorkerCrash)) => slot.finish_faulted(),
        (false, _) => slot.finish(u64::from(tokens)),
    }
    drop(end);
    answer
}

/// Output for an input, with the metrics of the run but its time, and its tokens.
fn output(config: &Config, input: Value) -> (Value, Map<String, Value>, u32) {
    let mut metrics = Map::new();
    for metric in &config.cost_metrics {
        metrics.insert(metric.name.clone(), metric.value.into());
    }
    let task = config.task.unwrap_or_else(|| task::guess(&input, ""));
    if !matches!(task, Task::TextGeneration | Task::ImageTextToText) {
        let made = TaskRequest::of_json(task, input).answer(config);
        let output = serde_json::from_slice(&made.body).unwrap_or_default();
        return (output, metrics, made.tokens);
    }
    let prompt = input["prompt"].as_str().unwrap_or_default();
    let length = TextLength {
        natural: config.output_tokens,
        max: input["max_tokens"].as_u64().map(|max| max as u32),
        ignore_end: false,
    };
    let text = SimulatedText::answer(config.seed, prompt, length);
    let prompt_tokens = (prompt.len() as u64).div_ceil(4).max(1);
    metrics.insert("input_token_count".into(), prompt_tokens.into());
    metrics.insert("output_token_count".into(), text.tokens().into());
    let pieces: Vec<&str> = (0..text.tokens()).map(|at| text.token(at)).collect();
    (json!(pieces), metrics, text.tokens())
}

fn input_of(body: &[u8]) -> Option<Value> {
    let mut body: Value = serde_json::from_slice(body).ok()?;
    let input = body.get_mut("input")?.take();
    input.is_object().then_some(input)
}

/// Status and body of the answer to a cancel.
pub(super) fn cancel(state: &SimulatorState, name: &str) -> (u16, Value) {
    let mut open = state.runs.open.lock();
    let Some(run) = open.get_mut(name) else {
        return (404, json!({}));
    };
    match run.cancels_to_lose {
        0 => run.canceled.notify_one(),
        _ => run.cancels_to_lose -= 1,
    }
    (200, json!({}))
}

/// Body of the answer to a health check.
pub(super) fn health(state: &SimulatorState, is_loading: bool) -> Value {
    let config = &state.config;
    let setup = |status: &str, logs: &str| json!({ "status": status, "logs": logs });
    let fault = state.faults.draw(FaultPoint::Health);
    let (status, setup) = match fault {
        Some(Fault::SetupFailed) => (
            "SETUP_FAILED",
            setup("failed", "Traceback: simulated: no weights\n"),
        ),
        _ if is_loading => ("STARTING", setup("starting", "reading weights\n")),
        Some(Fault::Unhealthy) => ("UNHEALTHY", setup("succeeded", "")),
        _ if state.runs.is_unhealthy.load(Relaxed) => ("UNHEALTHY", setup("succeeded", "")),
        _ if state.stats.current.load(Relaxed) >= config.concurrency as u64 => {
            ("BUSY", setup("succeeded", ""))
        }
        _ => ("READY", setup("succeeded", "")),
    };
    json!({ "status": status, "setup": setup, "version": { "coglet": FINGERPRINT } })
}
