//! Wait for a slot to check or translate a large body off the workers.
//!
//! Not the check, which the model's task makes, nor the translation, which is the dialect's.

use std::pin::pin;
use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::routing::cluster::QUEUED_EVERY;
use tokio::sync::SemaphorePermit;
use tokio::time::{sleep, sleep_until};

use super::admission::interim;
use super::context::RequestContext;
use super::downstream::Downstream;
use super::error::RequestError;
use crate::state::{LARGE_BYTES, Shared};
use crate::upstream::ModelRuntime;

/// Returns whether the check of a body by the model's task is too long for a worker.
pub fn needs_slot(model: &ModelRuntime, body_bytes: usize) -> bool {
    model.task.is_active() && (body_bytes >= LARGE_BYTES || model.task.is_heavy())
}

/// Waits for a slot, until the deadline or the client's departure. A node that forwards is told meanwhile that
/// the request waits. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn acquire_slot<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<SemaphorePermit<'a>, RequestError> {
    let mut deadline = pin!(sleep_until(shared.clock.instant(ctx.deadline).into()));
    let mut slot = pin!(shared.body_checks.slots.acquire());
    loop {
        tokio::select! {
            biased;
            slot = &mut slot => return slot.map_err(|_| Refusal::Internal.into()),
            () = downstream.closed() => {
                ctx.record_client_gone();
                return Err(RequestError::Aborted);
            }
            () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
            () = sleep(Duration::from_millis(QUEUED_EVERY.0)), if ctx.can.reports_status => {}
        }
        // The node that forwards takes a longer silence for a loss.
        interim::send_queued(shared, downstream, ctx).await?;
    }
}
