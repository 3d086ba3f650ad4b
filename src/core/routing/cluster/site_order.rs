//! Order of sites from a routing policy, and hashes on which all nodes agree.

use std::sync::Arc;

use super::super::policy::{Candidate, Choice, SplitMix64};

/// Sites in steps: within a step load is spread, and the next is used only when there is no room in
/// those before. Sites it does not name come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteOrder {
    steps: Vec<(Arc<str>, u16)>,
    /// Hash of the content, so that plans made for it are found again.
    key: u64,
}

impl SiteOrder {
    /// Sites with their steps, 0 first. A site named twice has its first step.
    #[cfg(test)]
    pub fn new(steps: Vec<(Arc<str>, u8)>) -> SiteOrder {
        let steps = steps.into_iter();
        SiteOrder::from_steps(steps.map(|(site, step)| (site, step.into())).collect())
    }

    /// Builds the order from a policy's ranking of
    /// [`ClusterView::site_candidates`](super::ClusterView::site_candidates): choices name sites by their index
    /// in that list. Within a step our own site comes first: the others are further away, and the
    /// policy did not mind.
    pub fn from_choices(choices: &[Choice], sites: &[(Arc<str>, Candidate)]) -> SiteOrder {
        let named = choices.iter().filter_map(|choice| {
            let (site, candidate) = sites.get(choice.id as usize)?;
            let is_other = u16::from(candidate.site != 0);
            Some((site.clone(), u16::from(choice.step) * 2 + is_other))
        });
        SiteOrder::from_steps(named.collect())
    }

    fn from_steps(steps: Vec<(Arc<str>, u16)>) -> SiteOrder {
        let mut key = 0;
        for (site, step) in &steps {
            key = SplitMix64::new(key ^ seed_of(site) ^ u64::from(*step)).next_u64();
        }
        SiteOrder { steps, key }
    }

    /// The step of a site.
    pub(super) fn step(&self, site: &str) -> u32 {
        let named = self.steps.iter().find(|(name, _)| **name == *site);
        named.map_or(u32::MAX, |(_, step)| u32::from(*step))
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }
}

/// Hash of a name: FNV-1a (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>).
pub(super) fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
