//! `latency`: the nearest candidates first, in steps. Known in the source as the latency-sensitive
//! routing of its step-based router.
//!
//! A cost is the round trip plus, for a stream, the time to the first token, else that of a whole
//! response. Costs count from the cheapest fit candidate's. A candidate that was never measured is in the
//! first step, because otherwise it would never be. Settings: `step_ms`, `steps`, `measure`.

use infergate_sdk::standard::{self, Latency};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings, export_routing};

struct Policy(Latency);

impl Plugin for Policy {
    fn configure(settings: &mut Settings) -> Policy {
        Policy(Latency::configure(settings))
    }
}

impl Routing for Policy {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        Ok(standard::rank(&self.0, hints, candidates))
    }
}

export_routing!(Policy);
