//! `affinity`: where the adapter is loaded and the prompt's beginning is cached, unless that place is
//! overloaded.
//!
//! Overloaded as in consistent hashing with bounded loads (<https://arxiv.org/abs/1608.01350>): with
//! this request, a candidate may have at most `load_percent` of its fair share of all load, by permits,
//! rounded up. Order: not overloaded, the adapter, the prefix in steps of `prefix_step`, the least load.

use infergate_sdk::standard::{self, Affinity};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings, export_routing};

struct Policy(Affinity);

impl Plugin for Policy {
    fn configure(settings: &mut Settings) -> Policy {
        Policy(Affinity::configure(settings))
    }
}

impl Routing for Policy {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        Ok(standard::rank(&self.0, hints, candidates))
    }
}

export_routing!(Policy);
