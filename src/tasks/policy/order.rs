//! Rankings from keys, shared by the policies.

use alloc::vec::Vec;

use super::values::{Candidate, Choice};

/// Class of fitness of a candidate, the fittest is 0: policies order within a class, never across.
pub(super) fn fitness(candidate: &Candidate) -> u8 {
    candidate.health.fitness()
}

/// Returns whether requests should go there at all.
pub(super) fn is_fit(candidate: &&Candidate) -> bool {
    candidate.health.is_fit()
}

/// Candidates in the order of their keys: `(step, within, id)`. Equal first parts share a step, the
/// second orders within it; equal there, the lower id is first.
pub fn in_order<S: Ord, W: Ord>(mut keyed: Vec<(S, W, u32)>) -> Vec<Choice> {
    keyed.sort_unstable();
    let mut step = 0u8;
    let mut previous = None;
    let mut choices = Vec::with_capacity(keyed.len());
    for (key, _, id) in keyed {
        if previous.is_some_and(|previous| previous != key) {
            step = step.saturating_add(1);
        }
        previous = Some(key);
        choices.push(Choice { id, step });
    }
    choices
}
