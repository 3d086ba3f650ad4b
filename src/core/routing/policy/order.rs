//! Helpers shared by the policies: classes of fitness, rankings from keys, random numbers from a seed.

use super::values::{Candidate, Choice};
use crate::routing::Health;

/// How fit a candidate is, least first: policies order within a class, never across.
pub(super) fn fitness(candidate: &Candidate) -> u32 {
    match candidate.health {
        Health::Healthy => 0,
        Health::Degraded => 1,
        Health::Ejected => 2,
        Health::Draining => 3,
        Health::Down => 4,
    }
}

/// Candidates in the order of their keys: `(step, within, id)`. Equal first parts share a step, the
/// second orders within it; equal there, the lower id is first.
pub(super) fn in_order<S: Ord + Copy, W: Ord>(mut keyed: Vec<(S, W, u32)>) -> Vec<Choice> {
    keyed.sort_unstable();
    let mut step = 0u8;
    let mut former = None;
    let mut choices = Vec::with_capacity(keyed.len());
    for (key, _, id) in keyed {
        if former.is_some_and(|former| former != key) {
            step = step.saturating_add(1);
        }
        former = Some(key);
        choices.push(Choice { id, step });
    }
    choices
}

/// Numbers drawn from a seed: splitmix64, <https://prng.di.unimi.it/splitmix64.c>.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number below `bound`; 0 when that is 0. The high half of a product
    /// (<https://lemire.me/blog/2016/06/27/a-fast-alternative-to-the-modulo-reduction/>): its bias
    /// is below `bound` / 2^64.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
