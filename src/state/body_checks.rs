//! Turns at checking and translating large bodies: a few at a time, off the workers.
//!
//! Not the work itself. A large body occupies a processor for as long as reading it several times
//! takes. Without a limit such bodies would leave no processor to other requests. Bodies below
//! [`LARGE_BYTES`] need no turn.

use std::thread::available_parallelism;

use tokio::sync::Semaphore;

/// Bytes of a body from which on it is checked off the worker: below, a check takes about a
/// millisecond.
pub const LARGE_BYTES: usize = 64 * 1024;

/// Turns at checking.
pub struct BodyCheckSlots {
    /// Free slots.
    pub slots: Semaphore,
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
