//! Helpers for routing policies: classes of fitness, an order from keys, random numbers from a seed.
//!
//! Whole numbers only, so that a ranking is the same on every machine. No logic of its own: the rules are those of
//! the standard policies, in `infergate-tasks`.

use infergate_tasks::policy::in_order;

pub use infergate_tasks::policy::{SplitMix64, WHOLE, site_number};

use crate::standard::health_in;
use crate::{Candidate, Choice};

/// 0 healthy, 1 degraded, 2 ejected, 3 draining, 4 down. Order within a class, never across.
pub fn fitness(candidate: &Candidate) -> u8 {
    health_in(candidate.health).fitness()
}

/// Returns whether requests should go there at all.
pub fn is_fit(candidate: &&Candidate) -> bool {
    health_in(candidate.health).is_fit()
}

/// Candidates in the order of their keys, the lower id first where keys are equal. `step` says which
/// share a step, `within` orders inside one.
pub fn by_steps<S: Ord, W: Ord>(
    candidates: &[Candidate],
    mut key: impl FnMut(&Candidate) -> (S, W),
) -> Vec<Choice> {
    let keyed = candidates.iter().map(|candidate| {
        let (step, within) = key(candidate);
        (step, within, candidate.id)
    });
    let choices = in_order(keyed.collect()).into_iter();
    choices
        .map(|choice| Choice {
            id: choice.id,
            step: choice.step,
        })
        .collect()
}
