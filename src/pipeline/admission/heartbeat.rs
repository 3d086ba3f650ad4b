//! Signs of life while a request waits, for a permit here or for another node: comments for a streaming client, interim answers for a node that forwards.
//!
//! Not the wait itself. A client that did not ask for events gets none.

use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::routing::cluster::QUEUED_EVERY;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout_at};

use crate::pipeline::admission::interim;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::respond;
use crate::state::Shared;
use crate::telemetry::RequestOutcome;

/// Comment for a client whose request waits for a permit.
const QUEUED: &[u8] = b": queued\n\n";

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
        deadline: Instant,
    ) -> Result<(), RequestError> {
        if self.is_forward {
            return interim::send_queued(shared, downstream, ctx).await;
        }
        send_comment(downstream, ctx, QUEUED, deadline).await
    }
}

/// Sends a comment, until the deadline.
///
/// # Errors
/// The client is gone, or takes nothing.
pub async fn send_comment(
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    text: &'static [u8],
    deadline: Instant,
) -> Result<(), RequestError> {
    match timeout_at(deadline, respond::comment(downstream, ctx, text)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => {
            ctx.record_client_gone();
            Err(RequestError::Aborted)
        }
        // Half a comment may be out: nothing can follow it.
        Err(_) => {
            ctx.record_refusal(&Refusal::DeadlinePassed, RequestOutcome::CutByDeadline);
            Err(RequestError::Aborted)
        }
    }
}
