//! `forced-site`: the candidates of one site first, for tests and for data that should stay there.
//! Known in the source as forced colo.
//!
//! The site is the request's ([`Hints::forced_site`]), else the setting `site` (its name, or 0 for this
//! one), else none. Other sites follow in later steps: a request is served elsewhere rather than refused.

use alloc::vec::Vec;

use super::order::{fitness, in_order};
use super::{Candidate, Choice, Hints, RankCandidates, SettingsReader};

/// The policy `forced-site` with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForcedSite {
    site: Option<u32>,
}

impl ForcedSite {
    /// Reads the settings.
    pub fn configure(settings: &mut impl SettingsReader) -> ForcedSite {
        ForcedSite {
            site: settings.optional_site("site"),
        }
    }
}

impl RankCandidates for ForcedSite {
    fn rank(&self, hints: &Hints, candidates: &[Candidate]) -> Vec<Choice> {
        let site = hints.forced_site.or(self.site);
        let keyed = candidates.iter().map(|c| {
            let elsewhere = site.is_some_and(|site| site != c.site);
            ((elsewhere, fitness(c), c.tier), (), c.id)
        });
        in_order(keyed.collect())
    }
}
