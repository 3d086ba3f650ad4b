//! Wait for a slot to check or translate a large body off the workers.
//!
//! Not the check, which the model's task makes, nor the translation, which is the dialect's.

use infergate_core::Refusal;
use tokio::sync::SemaphorePermit;
use tokio::time::sleep_until;

use super::context::RequestContext;
use super::downstream::Downstream;
use super::error::RequestError;
use crate::state::{LARGE_BYTES, Shared};
use crate::upstream::ModelRuntime;

/// Returns whether the check of a body by the model's task is too long for a worker.
pub fn needs_slot(model: &ModelRuntime, body_bytes: usize) -> bool {
    model.task.is_active() && (body_bytes >= LARGE_BYTES || model.task.is_heavy())
}

/// Waits for a turn, until the deadline or the client's departure. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn acquire_slot<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<SemaphorePermit<'a>, RequestError> {
    let deadline = sleep_until(shared.clock.instant(ctx.deadline).into());
    tokio::select! {
        biased;
        slot = shared.body_checks.slots.acquire() => slot.map_err(|_| Refusal::Internal.into()),
        () = downstream.closed() => {
            ctx.record_client_gone();
            Err(RequestError::Aborted)
        }
        () = deadline => Err(Refusal::DeadlinePassed.into()),
    }
}
