//! `resource-flow`: requests flow to where capacity is free. Known in the source as resource-flow
//! routing.
//!
//! The free capacity of a candidate is its free permits less the requests that wait there. The first
//! candidate is drawn in proportion to free capacity, so that gateways with the same view do not all
//! choose the same one; the others follow, the freest first. Candidates with recent out-of-capacity
//! responses come later, further back with each one in a row. Within a class of fitness and a tier; every
//! candidate has a step of its own.
//!
//! Settings: `ooc_max` (0 to 255; 0): out-of-capacity responses in a row that are ignored.

use alloc::vec::Vec;

use super::order::{fitness, in_order};
use super::{Candidate, Choice, Hints, RankCandidates, SettingsReader, SplitMix64};

/// The policy `resource-flow` with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFlow {
    ooc_max: u8,
}

impl ResourceFlow {
    /// Reads the settings.
    pub fn configure(settings: &mut impl SettingsReader) -> ResourceFlow {
        ResourceFlow {
            ooc_max: settings.number("ooc_max", (0, 255), 0) as u8,
        }
    }
}

impl RankCandidates for ResourceFlow {
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let class = |c: &Candidate| (fitness(c), c.tier, c.ooc.saturating_sub(self.ooc_max));
        let best = candidates.iter().map(class).min();
        let first = |c: &&Candidate| Some(class(c)) == best;
        let drawn = draw(candidates.iter().filter(first), hints.seed);
        let keyed = candidates.iter().map(|c| {
            let not_drawn = Some(c.id) != drawn;
            let key = (class(c), not_drawn, u32::MAX - free_capacity(c), c.id);
            (key, (), c.id)
        });
        in_order(keyed.collect())
    }
}

fn free_capacity(candidate: &Candidate) -> u32 {
    candidate.permits_free.saturating_sub(candidate.queue_len)
}

/// Draws one of `candidates` in proportion to free capacity; none when there is none.
fn draw<'a>(candidates: impl Iterator<Item = &'a Candidate> + Clone, seed: u64) -> Option<u32> {
    let total: u64 = candidates
        .clone()
        .map(|c| u64::from(free_capacity(c)))
        .sum();
    let mut share = SplitMix64::new(seed).next_below(total);
    for candidate in candidates {
        let capacity = u64::from(free_capacity(candidate));
        if share < capacity {
            return Some(candidate.id);
        }
        share -= capacity;
    }
    None
}
