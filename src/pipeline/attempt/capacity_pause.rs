//! Pause of a request whose servers have no capacity, before it asks for a permit again.
//!
//! Not the decision, which is the core's. No permit is held meanwhile. The pause goes on for as long as every endpoint
//! in use is paused, and ends early when the client leaves, or when the rest would outlast the deadline.

use std::pin::pin;
use std::time::Duration;

use infergate_core::routing::{FallbackReason, ends_before};
use infergate_core::{Millis, Refusal};
use tokio::time::{sleep, sleep_until};

use crate::pipeline::admission::heartbeat::Heartbeat;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::fallback::ModelError;
use crate::pipeline::respond::SignOfLife;
use crate::state::Shared;
use crate::upstream::ModelRuntime;

/// Waits until an endpoint of the model may be asked again, for `pause` at least.
///
/// # Errors
/// The client left, or the deadline comes first.
pub async fn wait_for_capacity(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    mut pause: Millis,
    heartbeat: &mut Heartbeat,
) -> Result<(), ModelError> {
    loop {
        wait(shared, downstream, ctx, model, pause, heartbeat).await?;
        // Other requests may have found the servers full meanwhile.
        let Some(left) = model.gate.end_pauses() else {
            return Ok(());
        };
        if !ends_before(left, ctx.deadline, shared.clock.now()) {
            let refusal = Refusal::EndpointsPaused { retry_after: left };
            return Err(ModelError::Fallback(FallbackReason::OutOfCapacity, refusal));
        }
        pause = left;
    }
}

/// Waits for `pause`, with signs of life to a client that gets them.
async fn wait(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    pause: Millis,
    heartbeat: &mut Heartbeat,
) -> Result<(), RequestError> {
    let late = shared.clock.instant(ctx.deadline).into();
    let mut pause = pin!(sleep(Duration::from_millis(pause.0)));
    let mut deadline = pin!(sleep_until(late));
    loop {
        tokio::select! {
            biased;
            () = pause.as_mut() => return Ok(()),
            () = downstream.closed() => {
                ctx.record_client_gone();
                return Err(RequestError::Aborted);
            }
            () = deadline.as_mut() => return Err(Refusal::DeadlinePassed.into()),
            () = heartbeat.due() => {
                let sign = (model.spec.queue_heartbeat_secs > 0).then(SignOfLife::queued);
                Box::pin(heartbeat.send(shared, downstream, ctx, sign, late)).await?;
            }
        }
    }
}
