//! The built-in routing policies by name, and what becomes of a ranking; no algorithm and no choice.
//!
//! The policies themselves are in `infergate_tasks::policy`, shared with the Wasm guests. The admission queue takes
//! the first candidate of the ranking with a free permit. A policy ranks [`CANDIDATES_MAX`] candidates at most.

mod builtin;
mod ranking;
mod settings;

pub use builtin::BuiltinPolicy;
pub use infergate_tasks::policy::{
    CANDIDATES_MAX, Candidate, Choice, Hints, SplitMix64, WHOLE, site_number,
};
pub use ranking::complete_ranking;
pub use settings::SettingProblem;

#[cfg(test)]
mod tests;
