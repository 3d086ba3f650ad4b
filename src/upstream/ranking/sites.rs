//! The order of other sites, as a model's policy ranks them.
//!
//! The cluster is not known here: candidates come in as values, one a site, and an order goes out.
//! The policy is called off the request path only, also a `per-request` one. A site's load is
//! published ten times a second, and no prompt is known to be cached there.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::routing::Candidate;
use infergate_core::routing::cluster::SiteOrder;

use super::{Ranking, RankingClass, hints};
use crate::telemetry::event::PluginUse;

/// Sites of an order that traces show, as of endpoints.
const EXPLAINED_SITES_MAX: usize = 16;

/// A site that serves the model, with what its nodes have in sum; `id` is its place in the list, site 0
/// is ours.
pub type Site = (Arc<str>, Candidate);

/// An order of sites, and the call of the policy that made it.
#[derive(Debug)]
pub struct SiteRanking {
    /// For the cluster.
    pub order: SiteOrder,
    /// Moment at which the policy was called.
    pub at: Millis,
    /// The plugins that ranked; none for a built-in policy.
    pub uses: Vec<PluginUse>,
    /// Name, step and measurements of the first `EXPLAINED_SITES_MAX` sites, the best one first.
    pub ranked: Vec<(Arc<str>, u8, Candidate)>,
}

/// The orders of requests whose class is not ranked by itself: of those that stream, and of others.
#[derive(Default)]
pub(super) struct SiteTable {
    streamed: Option<Arc<SiteRanking>>,
    whole: Option<Arc<SiteRanking>>,
}

impl SiteTable {
    pub fn of(rank: impl Fn(RankingClass) -> Option<Arc<SiteRanking>>) -> SiteTable {
        let of = |streaming| {
            rank(RankingClass {
                streaming,
                ..RankingClass::default()
            })
        };
        SiteTable {
            streamed: of(true),
            whole: of(false),
        }
    }

    pub fn of_class(&self, class: RankingClass) -> Option<&Arc<SiteRanking>> {
        match class.streaming {
            true => self.streamed.as_ref(),
            false => self.whole.as_ref(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.streamed.is_none() && self.whole.is_none()
    }
}

/// Returns whether there is anything to order.
pub(super) fn worth_ranking(sites: &[Site]) -> bool {
    sites.len() > 1
}

impl Ranking {
    pub(super) fn rank_sites(
        &self,
        class: RankingClass,
        sites: &[Site],
        now: Millis,
    ) -> Option<Arc<SiteRanking>> {
        if !worth_ranking(sites) {
            return None;
        }
        let list: Vec<Candidate> = sites.iter().map(|(_, candidate)| *candidate).collect();
        let ranked = self.slot.rank(None, &hints(class), &list);
        // What stands in for a plugin that failed knows no distances.
        if self.slot.is_plugin() && ranked.uses.is_empty() {
            return None;
        }
        let explained = ranked
            .choices
            .iter()
            .take(EXPLAINED_SITES_MAX)
            .filter_map(|choice| {
                let (name, candidate) = sites.get(choice.id as usize)?;
                Some((Arc::clone(name), choice.step, *candidate))
            });
        Some(Arc::new(SiteRanking {
            order: SiteOrder::from_choices(&ranked.choices, sites),
            at: now,
            ranked: explained.collect(),
            uses: ranked.uses,
        }))
    }
}
