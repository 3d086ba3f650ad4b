//! `forced-site`: the candidates of one site first, for tests and for data that should stay there.
//! Known in the source as forced colo.
//!
//! The site is the request's, else the setting `site` (its name, or 0 for this one), else none. Other sites
//! follow in later steps: a request is served elsewhere rather than refused.

use infergate_sdk::rank::{by_steps, fitness};
use infergate_sdk::{Candidate, Choice, Hints, Plugin, Routing, Settings};

struct ForcedSite {
    site: Option<u32>,
}

impl Plugin for ForcedSite {
    fn configure(settings: &mut Settings) -> ForcedSite {
        ForcedSite {
            site: settings.maybe_site("site"),
        }
    }
}

impl Routing for ForcedSite {
    fn rank(&self, hints: Hints, candidates: Vec<Candidate>) -> Result<Vec<Choice>, String> {
        let wanted = hints.forced_site.or(self.site);
        Ok(by_steps(&candidates, |c| {
            let is_elsewhere = wanted.is_some_and(|site| c.site != site);
            ((is_elsewhere, fitness(c), c.tier), ())
        }))
    }
}

infergate_sdk::export_routing!(ForcedSite);
