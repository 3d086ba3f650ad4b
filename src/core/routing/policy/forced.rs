//! `forced-site`: the candidates of one site first, for tests and for data that should stay there.
//! Known in the source as forced colo.
//!
//! The site is the request's ([`Hints::forced_site`]), else the setting `site` (its name, or 0 for this
//! one), else none. Other sites follow in later steps: a request is served elsewhere rather than refused.

use serde_json::{Map, Value};

use super::order::{fitness, in_order};
use super::settings::{PolicySettings, SettingProblem};
use super::values::{Candidate, Choice, Hints};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForcedSite {
    site: Option<u32>,
}

impl ForcedSite {
    pub(super) fn configure(given: &Map<String, Value>) -> Result<ForcedSite, Vec<SettingProblem>> {
        let mut settings = PolicySettings::of(given);
        let site = settings.optional_site("site");
        settings.finish(ForcedSite { site })
    }

    pub(super) fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let site = hints.forced_site.or(self.site);
        let keyed = candidates.iter().map(|c| {
            let elsewhere = site.is_some_and(|site| site != c.site);
            ((elsewhere, fitness(c), c.tier), (), c.id)
        });
        in_order(keyed.collect())
    }
}
