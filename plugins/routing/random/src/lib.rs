//! `random`: every order of the candidates is as likely as any other, within a class of fitness and a
//! tier. Known in the source as the default routing algorithm.
//!
//! Each candidate has a step of its own: inside a step the gateway would level the load instead of
//! keeping a random order. No settings; the random number is `hints.seed`.

use infergate_sdk::standard::{self, Random};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings, export_routing};

struct Policy(Random);

impl Plugin for Policy {
    fn configure(settings: &mut Settings) -> Policy {
        Policy(Random::configure(settings))
    }
}

impl Routing for Policy {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        Ok(standard::rank(&self.0, hints, candidates))
    }
}

export_routing!(Policy);
