//! `random`: every order of the candidates is as likely as any other, within a class of fitness
//! and a tier. Known in the source as the default routing algorithm.
//!
//! Each candidate has a step of its own, since within a step the admission queue would level the load
//! instead of keeping a random order.

use alloc::vec::Vec;

use super::order::{fitness, in_order};
use super::{Candidate, Choice, Hints, RankCandidates, SettingsReader, SplitMix64};

/// The policy `random`, which has no settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random;

impl Random {
    /// Reads the settings, of which there are none.
    pub fn configure(_: &mut impl SettingsReader) -> Random {
        Random
    }
}

impl RankCandidates for Random {
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let mut random = SplitMix64::new(hints.seed);
        // Fisher–Yates, from the end.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.next_below(at as u64 + 1) as usize);
        }
        let keyed = order.into_iter().zip(candidates);
        let keyed = keyed.map(|(at, c)| ((fitness(c), c.tier, at), (), c.id));
        in_order(keyed.collect())
    }
}
