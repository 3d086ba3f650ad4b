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
use super::call::{Left, Trip};

/// Bytes of a body from which on it is checked off the worker: below, a check takes about a
/// millisecond.
pub const LARGE_BYTES: usize = 64 * 1024;

/// Turns at checking.
pub struct Checks {
    turns: Semaphore,
}

impl Default for Checks {
    /// Half of the processors, one at least.
    fn default() -> Checks {
        let processors = available_parallelism().map_or(1, usize::from);
        Checks {
            turns: Semaphore::new((processors / 2).max(1)),
        }
    }
}

/// Waits for a turn, until the deadline or the client's departure. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn turn<'a>(
    shared: &'a Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
) -> Result<SemaphorePermit<'a>, Left> {
    let deadline = sleep_until(shared.clock.instant(trip.deadline).into());
    tokio::select! {
        biased;
        turn = shared.checks.turns.acquire() => turn.map_err(|_| Refusal::Internal.into()),
        () = client_gone(session) => {
            trip.client_gone();
            Err(Left::Cut)
        }
        () = deadline => Err(Refusal::DeadlinePassed.into()),
    }
}
