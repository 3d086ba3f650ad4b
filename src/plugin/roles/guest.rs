//! Answers of guests, common to all roles: validated, absent or broken.
//!
//! The calls are made by one file per world: `task/guest.rs`, `billing/guest.rs`, `routing/guest.rs`.

use crate::plugin::failure::Failure;

/// The answer of a check, as a failure.
pub fn validated<T>(answer: T, verdict: Result<(), &'static str>) -> Result<T, Failure> {
    match verdict {
        Ok(()) => Ok(answer),
        Err(rule) => Err(Failure::Invalid(rule)),
    }
}

/// Failure of a call to a revision of another world. Worlds are checked when it is loaded.
pub const ABSENT: Failure = Failure::Unavailable("it does not export this interface");

/// Characters of a plugin's error text that reach the log.
const FAULT_MAX_CHARS: usize = 512;

pub fn broken(returned: String) -> Failure {
    Failure::Broken(returned.chars().take(FAULT_MAX_CHARS).collect())
}
