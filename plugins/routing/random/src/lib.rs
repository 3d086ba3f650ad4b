//! `random`: every order of the candidates is as likely as any other, within a class of fitness and a
//! tier. Known in the source as the default routing algorithm.
//!
//! Each candidate has a step of its own: inside a step the gateway would level load instead of drawing
//! lots. No settings; chance is `hints.seed`.

use infergate_sdk::rank::{Dice, by_steps, fitness};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings};

struct Random;

impl Plugin for Random {
    fn configure(_: &mut Settings) -> Random {
        Random
    }
}

impl Routing for Random {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        // Fisher–Yates, from the end.
        let mut dice = Dice::new(hints.seed);
        let mut lots: Vec<usize> = (0..candidates.len()).collect();
        for at in (1..lots.len()).rev() {
            let other = dice.below(at as u64 + 1) as usize;
            lots.swap(at, other);
        }
        let mut lots = lots.into_iter();
        Ok(by_steps(&candidates, |c| {
            ((fitness(c), c.tier, lots.next()), ())
        }))
    }
}

infergate_sdk::export_routing!(Random);
