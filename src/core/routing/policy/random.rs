//! `random`: every order of the candidates is as likely as any other, within a class of fitness
//! and a tier. Known in the source as the default routing algorithm.
//!
//! Each candidate has a step of its own, since within a step the admission queue would level the load
//! instead of keeping a random order.

use serde_json::{Map, Value};

use super::order::{SplitMix64, fitness, in_order};
use super::settings::{PolicySettings, SettingProblem};
use super::values::{Candidate, Choice, Hints};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Random;

impl Random {
    pub(super) fn configure(given: &Map<String, Value>) -> Result<Random, Vec<SettingProblem>> {
        PolicySettings::of(given).finish(Random)
    }

    pub(super) fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let mut random = SplitMix64::new(hints.seed);
        // Fisher–Yates, from the end.
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.next_below(at as u64 + 1) as usize);
        }
        let keyed = order.into_iter().zip(candidates);
        let keyed = keyed.map(|(lot, c)| ((fitness(c), c.tier, lot), (), c.id));
        in_order(keyed.collect())
    }
}
