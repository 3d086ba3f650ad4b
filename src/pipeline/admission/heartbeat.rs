//! Signs of life while a request waits, for a permit here or for another node: comments for a streaming client, interim answers for a node that forwards.
//!
//! Not the wait itself. A client that did not ask for events gets none.

use std::time::Duration;

use bytes::Bytes;
use infergate_core::model::{LoadingState, ModelSpec};
use infergate_core::routing::cluster::QUEUED_EVERY;
use infergate_core::{Millis, Refusal};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};

use crate::pipeline::admission::interim;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::respond::{self, SignOfLife};
use crate::state::Shared;
use crate::telemetry::RequestOutcome;
use crate::upstream::{ModelRuntime, WaitProgress, Waiter};

/// Comment for a client whose request waits for a permit.
const QUEUED: &[u8] = b": queued\n\n";
/// Interval of chunks about a load, for a model with `loading_state: reasoning` and no `queue_heartbeat_secs`.
const LOADING_INTERVAL: Duration = Duration::from_secs(2);

impl SignOfLife {
    /// Sign for a client whose request waits for a permit.
    pub fn queued() -> SignOfLife {
        SignOfLife::Comment(Bytes::from_static(QUEUED))
    }

    /// Sign for a client whose request waits for a permit of this model; none where the model sends none now.
    pub fn of_wait(
        ctx: &RequestContext,
        model: &ModelRuntime,
        waiter: &Waiter,
    ) -> Option<SignOfLife> {
        let spec = &model.spec;
        if spec.process.is_none() {
            return Some(SignOfLife::queued());
        }
        let text = match model.gate.wait_progress(waiter)? {
            WaitProgress::Loading { .. } if spec.loading_state == LoadingState::None => {
                return None;
            }
            WaitProgress::Loading { waited, left } => {
                let text = loading_text(waited, left);
                if spec.loading_state == LoadingState::Reasoning && ctx.takes_chat_chunks() {
                    return Some(SignOfLife::Event(chat_chunk(ctx, spec.id.as_str(), &text)));
                }
                text
            }
            WaitProgress::Queued { position } => format!("waiting, position {position}"),
        };
        let has_comments = spec.queue_heartbeat_secs > 0;
        has_comments.then(|| SignOfLife::Comment(format!(": {text}\n\n").into()))
    }
}

/// Interval of the signs of life while a request waits for a permit of this model; none where it has none.
pub fn wait_interval(spec: &ModelSpec) -> Option<Duration> {
    match spec.queue_heartbeat_secs {
        0 if spec.process.is_some() && spec.loading_state == LoadingState::Reasoning => {
            Some(LOADING_INTERVAL)
        }
        0 => None,
        secs => Some(Duration::from_secs(secs)),
    }
}

/// Text such as `loading, 12 s of about 47 s`; without the whole where that is unknown or overdue.
fn loading_text(waited: Millis, left: Millis) -> String {
    let secs = waited.0 / 1000;
    match left {
        Millis::ZERO => format!("loading, {secs} s"),
        left => {
            let whole = (waited.0 + left.0).div_ceil(1000);
            format!("loading, {secs} s of about {whole} s")
        }
    }
}

/// Chunk of a chat completion with a line of reasoning: made here, so that it is neither counted nor billed.
fn chat_chunk(ctx: &RequestContext, model: &str, text: &str) -> Bytes {
    let chunk = serde_json::json!({
        "id": format!("chatcmpl-{}", ctx.request_id()),
        "object": "chat.completion.chunk",
        "created": ctx.wall_secs(),
        "model": model,
        "choices": [{
            "index": 0,
            "delta": { "reasoning_content": format!("{text}\n") },
            "finish_reason": null,
        }],
    });
    format!("data: {chunk}\n\n").into()
}

/// The signs of life of one request.
pub struct Heartbeat {
    every: Option<Interval>,
    is_forward: bool,
}

impl Heartbeat {
    /// Creates a heartbeat with this interval; silent without one.
    pub fn new(every: Option<Duration>) -> Heartbeat {
        Heartbeat {
            every: every.map(|every| {
                let mut ticks = interval_at(Instant::now() + every, every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                ticks
            }),
            is_forward: false,
        }
    }

    /// Creates the heartbeat of a forwarded request.
    pub fn for_forward() -> Heartbeat {
        Heartbeat {
            is_forward: true,
            ..Heartbeat::new(Some(Duration::from_millis(QUEUED_EVERY.0)))
        }
    }

    /// Returns when the next one is due.
    pub async fn due(&mut self) {
        match &mut self.every {
            Some(ticks) => {
                ticks.tick().await;
            }
            None => std::future::pending().await,
        }
    }

    /// Puts the next one off: the client has just heard something.
    pub fn reset(&mut self) {
        if let Some(ticks) = &mut self.every {
            ticks.reset();
        }
    }

    /// Sends one of a request that waits for its turn, until the deadline.
    ///
    /// # Errors
    /// The client is gone, or takes nothing.
    pub async fn send(
        &self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        sign: Option<SignOfLife>,
        deadline: Instant,
    ) -> Result<(), RequestError> {
        if self.is_forward {
            return interim::send_queued(shared, downstream, ctx).await;
        }
        match sign {
            Some(sign) => send_sign(downstream, ctx, sign, deadline).await,
            None => Ok(()),
        }
    }
}

/// Sends a sign of life, until the deadline.
///
/// # Errors
/// The client is gone, or takes nothing.
pub async fn send_sign(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    sign: SignOfLife,
    deadline: Instant,
) -> Result<(), RequestError> {
    match timeout_at(deadline, respond::sign_of_life(downstream, ctx, sign)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => {
            ctx.record_client_gone();
            Err(RequestError::Aborted)
        }
        // Half of it may be out: nothing can follow it.
        Err(_) => {
            ctx.record_refusal(&Refusal::DeadlinePassed, RequestOutcome::CutByDeadline);
            Err(RequestError::Aborted)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_told_in_whole_seconds_and_its_end_only_while_it_is_expected() {
        let text = |waited, left| loading_text(Millis(waited), Millis(left));
        assert_eq!(text(12_300, 34_000), "loading, 12 s of about 47 s");
        assert_eq!(text(999, 1), "loading, 0 s of about 1 s");
        assert_eq!(text(50_000, 0), "loading, 50 s");
    }

    #[test]
    fn chunks_about_a_load_need_no_heartbeat_and_comments_do() {
        let interval = |more: &str| {
            let text = format!(
                r#"{{"id":"m","task":"text-generation","backend":"openai","process":{{"preset":"simulate"}}{more}}}"#
            );
            wait_interval(&serde_json::from_str(&text).unwrap())
        };
        assert_eq!(interval(""), None);
        assert_eq!(
            interval(r#","loading_state":"reasoning""#),
            Some(LOADING_INTERVAL)
        );
        let secs = Some(Duration::from_secs(7));
        assert_eq!(interval(r#","queue_heartbeat_secs":7"#), secs);
    }
}
