//! `resource-flow`: requests flow to where capacity is free. Known in the source as resource-flow routing.
//!
//! Free capacity is free permits less the requests that wait there. The first candidate is drawn in
//! proportion to it, so that gateways with the same view do not all choose the same one; the others follow,
//! the freest first. Candidates with recent out-of-capacity responses come later, with each one in a row.
//! Settings: `ooc_max`, the responses in a row that are ignored.

use infergate_sdk::standard::{self, ResourceFlow};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings, export_routing};

struct Policy(ResourceFlow);

impl Plugin for Policy {
    fn configure(settings: &mut Settings) -> Policy {
        Policy(ResourceFlow::configure(settings))
    }
}

impl Routing for Policy {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        Ok(standard::rank(&self.0, hints, candidates))
    }
}

export_routing!(Policy);
