//! `forced-site`: the candidates of one site first, for tests and for data that should stay there.
//! Known in the source as forced colo.
//!
//! The site is the request's, else the setting `site` (its name, or 0 for this one), else none. Other sites
//! follow in later steps: a request is served elsewhere rather than refused.

use infergate_sdk::standard::{self, ForcedSite};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings, export_routing};

struct Policy(ForcedSite);

impl Plugin for Policy {
    fn configure(settings: &mut Settings) -> Policy {
        Policy(ForcedSite::configure(settings))
    }
}

impl Routing for Policy {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        Ok(standard::rank(&self.0, hints, candidates))
    }
}

export_routing!(Policy);
