//! Turns at checking large bodies: a few at a time, off the workers.
//!
//! Not the checks themselves. A large body occupies a processor for as long as reading it several times
//! takes. Without a limit such bodies would leave no processor to other requests. Bodies below
//! [`LARGE_BYTES`] need no turn.

use std::thread::available_parallelism;

use infergate_core::Refusal;
use pingora_core::protocols::http::ServerSession;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep_until;

use super::Shared;
use super::admit::client_gone;
use super::call::{RequestContext, RequestError};

/// Bytes of a body from which on it is checked off the worker: below, a check takes about a
/// millisecond.
pub const LARGE_BYTES: usize = 64 * 1024;

/// Turns at checking.
pub struct BodyCheckSlots {
    slots: Semaphore,
}

impl Default for BodyCheckSlots {
    /// Half of the processors, one at least.
    fn default() -> BodyCheckSlots {
        let processors = available_parallelism().map_or(1, usize::from);
        BodyCheckSlots {
            slots: Semaphore::new((processors / 2).max(1)),
        }
    }
}

/// Waits for a turn, until the deadline or the client's departure. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn acquire_slot<'a>(
    shared: &'a Shared,
    session: &mut ServerSession,
    trip: &mut RequestContext,
) -> Result<SemaphorePermit<'a>, RequestError> {
    let deadline = sleep_until(shared.clock.instant(trip.deadline).into());
    tokio::select! {
        biased;
        turn = shared.body_checks.slots.acquire() => turn.map_err(|_| Refusal::Internal.into()),
        () = client_gone(session) => {
            trip.record_client_gone();
            Err(RequestError::Aborted)
        }
        () = deadline => Err(Refusal::DeadlinePassed.into()),
    }
}
