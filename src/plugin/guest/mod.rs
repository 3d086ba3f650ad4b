//! Calls of guests, one file a world: typed call in, typed and checked answer out.
//!
//! No state is held here. A revision of a world implements the role's trait as the built-in ones do.

mod args;
mod billing;
mod routing;
mod task;

pub(super) use task::describe;

use super::failure::Failure;

/// The answer of a check, as a failure.
fn validated<T>(answer: T, verdict: Result<(), &'static str>) -> Result<T, Failure> {
    match verdict {
        Ok(()) => Ok(answer),
        Err(rule) => Err(Failure::Invalid(rule)),
    }
}

/// Failure of a call to a revision of another world. Worlds are checked when it is loaded.
const ABSENT: Failure = Failure::Unavailable("it does not export this interface");

/// Characters of a plugin's error text that reach the log.
const FAULT_MAX_CHARS: usize = 512;

fn broken(said: String) -> Failure {
    Failure::Broken(said.chars().take(FAULT_MAX_CHARS).collect())
}
