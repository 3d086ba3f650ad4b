//! Helpers for routing policies: classes of fitness, an order from keys, random numbers from a seed.
//!
//! Whole numbers only, so that a ranking is the same on every machine.

use crate::{Candidate, Choice, Health};

/// The full share: affinities are given in thousandths.
pub const WHOLE: u16 = 1000;

/// 0 healthy, 1 degraded, 2 ejected, 3 draining, 4 down. Order within a class, never across.
pub fn fitness(candidate: &Candidate) -> u8 {
    match candidate.health {
        Health::Healthy => 0,
        Health::Degraded => 1,
        Health::Ejected => 2,
        Health::Draining => 3,
        Health::Down => 4,
    }
}

/// The number by which a candidate names another site: 32 bits of FNV-1a over the site's name, and 1
/// instead of 0, which is the gateway's own site.
pub fn site_number(name: &str) -> u32 {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1)
}

/// Returns whether requests should go there at all.
pub fn is_fit(candidate: &&Candidate) -> bool {
    matches!(candidate.health, Health::Healthy | Health::Degraded)
}

/// Candidates in the order of their keys, the lower id first where keys are equal. `step` says which
/// share a step, `within` orders inside one.
pub fn by_steps<S: Ord, W: Ord>(
    candidates: &[Candidate],
    mut key: impl FnMut(&Candidate) -> (S, W),
) -> Vec<Choice> {
    let mut keyed: Vec<((S, W), u32)> = candidates.iter().map(|c| (key(c), c.id)).collect();
    keyed.sort_unstable();
    let mut choices: Vec<Choice> = Vec::with_capacity(keyed.len());
    for (at, ((step, _), id)) in keyed.iter().enumerate() {
        let next = match choices.last() {
            Some(last) if keyed[at - 1].0.0 == *step => last.step,
            Some(last) => last.step.saturating_add(1),
            None => 0,
        };
        choices.push(Choice {
            id: *id,
            step: next,
        });
    }
    choices
}

/// Numbers drawn from [`Hints::seed`](crate::Hints): splitmix64,
/// <https://prng.di.unimi.it/splitmix64.c>. A plugin has no other source of randomness.
pub struct Dice(u64);

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number below `bound`, 0 when that is 0: the high half of a product,
    /// <https://lemire.me/blog/2016/06/27/a-fast-alternative-to-the-modulo-reduction/>.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.roll()) * u128::from(bound)) >> 64) as u64
    }
}
