//! Wait for a slot to check a large body off the workers.
//!
//! Not the check, which the model's task makes.

use infergate_core::Refusal;
use pingora_core::protocols::http::ServerSession;
use tokio::sync::SemaphorePermit;
use tokio::time::sleep_until;

use super::admission::client_gone;
use super::context::{RequestContext, RequestError};
use crate::state::Shared;

/// Waits for a turn, until the deadline or the client's departure. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn acquire_slot<'a>(
    shared: &'a Shared,
    session: &mut ServerSession,
    ctx: &mut RequestContext,
) -> Result<SemaphorePermit<'a>, RequestError> {
    let deadline = sleep_until(shared.clock.instant(ctx.deadline).into());
    tokio::select! {
        biased;
        turn = shared.body_checks.slots.acquire() => turn.map_err(|_| Refusal::Internal.into()),
        () = client_gone(session) => {
            ctx.record_client_gone();
            Err(RequestError::Aborted)
        }
        () = deadline => Err(Refusal::DeadlinePassed.into()),
    }
}
