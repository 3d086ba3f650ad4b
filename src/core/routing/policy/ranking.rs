//! Validation and completion of a policy's result, and its grouping by step.

use hashbrown::HashMap;

use super::{Candidate, Choice};
use crate::routing::Health;

/// Validates and completes a policy's result. The result has every candidate once, in the order of the
/// steps, which are numbered from 0 without gaps. Ids that are unknown, repeated or of a candidate that is
/// down are dropped where they stand. Missing candidates follow after the last step, in the order of
/// `candidates`, and those that are down one step later: a ranking may be kept until they are up again.
pub fn complete_ranking(choices: &[Choice], candidates: &[Candidate]) -> Vec<Choice> {
    // By id: may still be named.
    let mut open: HashMap<u32, bool> = candidates
        .iter()
        .map(|c| (c.id, c.health != Health::Down))
        .collect();
    let mut kept: Vec<Choice> = choices
        .iter()
        .copied()
        .filter(|choice| {
            let first = open.get(&choice.id) == Some(&true);
            if first {
                open.insert(choice.id, false);
            }
            first
        })
        .collect();
    kept.sort_by_key(|choice| choice.step);
    number(&mut kept);
    for down in [false, true] {
        let step = kept.last().map_or(0, |last| last.step.saturating_add(1));
        let missing = candidates
            .iter()
            .filter(|c| (c.health == Health::Down) == down && open.remove(&c.id) == Some(!down));
        let missing: Vec<Choice> = missing.map(|c| Choice { id: c.id, step }).collect();
        kept.extend(missing);
    }
    kept
}

/// Steps from 0 without gaps.
fn number(choices: &mut [Choice]) {
    let mut former = None;
    let mut step = 0u8;
    for choice in choices {
        if former.is_some_and(|former| former != choice.step) {
            // There are at most 256 different ones.
            step += 1;
        }
        former = Some(choice.step);
        choice.step = step;
    }
}
