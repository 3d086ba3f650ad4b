//! Selection of the node to forward a request to.
//!
//! Records nothing: a forward counts from [`ClusterView::record_forward`] on. A node is eligible when it is
//! reachable, when it has the needed capacity, and when this node's share of that is not used up.
//! The selection draws two eligible nodes of a tier at random and takes the better one; a tier
//! without an eligible node is skipped.

use std::sync::Arc;

use super::super::policy::SplitMix64;
use super::membership::{ClusterView, NODES_MAX};
use super::node::ClusterNode;
use super::node_model::NodeModelState;
use super::plan::ClusterModel;
use super::report::NodeId;
use super::rule::TRUST_FULL;
use super::site_order::SiteOrder;
use super::views::SkipReason;
use crate::Millis;

/// Capacity that a request needs on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A permit that is free now.
    Permit,
    /// A place in a queue with a permit in sight, for a request that can queue nowhere here.
    Queue {
        /// Longest acceptable wait.
        wait_max: Millis,
        /// Also nodes whose own clients wait, for a request without a queue here. Otherwise moving
        /// from a full queue to one that fills up anyway helps no request.
        crowded: bool,
    },
}

/// Query for a node to forward a request to.
#[derive(Clone, Copy, Debug)]
pub struct NodeQuery<'a> {
    /// Model of the request.
    pub model: &'a str,
    /// Visited nodes; none of them is tried again.
    pub visited: &'a [Arc<str>],
    /// Only nodes of this site, for requests that are to be served there or not at all.
    pub forced_site: Option<&'a str>,
    /// Site order of a policy; without one, this site comes first and the others follow by round
    /// trip.
    pub site_order: Option<&'a SiteOrder>,
    /// Needed capacity.
    pub need: Need,
}

/// Node to forward a request to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTarget {
    /// The node.
    pub node: NodeId,
    /// Its peers listener.
    pub address: Arc<str>,
    /// Its site.
    pub site: Arc<str>,
    /// Round trip, smoothed, microseconds; 0 when not measured.
    pub rtt_us: u32,
    /// Permits believed free there.
    pub free: u32,
    /// Expected wait there as reported, milliseconds.
    pub wait_ms: u32,
    /// Requests of this model in flight from here.
    pub in_flight: u32,
    /// No other node is eligible: the target may forward the request again, as it may see nodes
    /// unknown here. Otherwise the request is better returned to here.
    pub is_only_candidate: bool,
    pub(super) key: NodeModelKey,
}

/// Key of a model at a node, valid while both exist in the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeModelKey {
    pub slot: u16,
    pub node_epoch: u32,
    pub model: u32,
    pub model_epoch: u32,
}

/// Slots of nodes.
#[derive(Default)]
pub(super) struct NodeSet([u64; NODES_MAX / 64]);

impl NodeSet {
    fn insert(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64] |= 1 << (slot % 64);
    }

    fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot) / 64] & (1 << (slot % 64)) != 0
    }
}

/// A query resolved to indices once.
pub(super) struct ResolvedQuery<'a> {
    visited: NodeSet,
    forced_site: Option<&'a str>,
    need: Need,
    now: Millis,
}

impl ClusterView {
    /// Returns the node to forward to now, if there is one. Capacity there is not reserved: the
    /// node may refuse.
    pub fn next_target(
        &mut self,
        query: &NodeQuery<'_>,
        chance: u64,
        now: Millis,
    ) -> Option<ForwardTarget> {
        let model = *self.by_model.get(query.model)?;
        let plan = self.plan(model, query.site_order);
        let search = self.resolve(query, now);
        let view = &self.models[model as usize];
        let mut rng = SplitMix64::new(chance);
        let pick = |tier: &[u16], rng: &mut SplitMix64| self.pick(view, tier, &search, rng);
        let mut tiers = view.plan_by_id(plan).tiers();
        let found = tiers.find_map(|tier| pick(tier, &mut rng));
        let others =
            tiers.any(|tier| found.is_some_and(|(_, only)| only) && pick(tier, &mut rng).is_some());
        drop(tiers);
        let Some((at, only)) = found else {
            self.models[model as usize].has_unmet_demand = true;
            return None;
        };
        let only = only && !others;
        let chosen = self.target_of(model, &view.nodes[usize::from(at)])?;
        Some(ForwardTarget {
            is_only_candidate: only,
            ..chosen
        })
    }

    /// Returns whether a node may serve what is asked for, with room or without. One that failed a moment ago may.
    pub fn serves(&self, query: &NodeQuery<'_>, now: Millis) -> bool {
        let Some(&model) = self.by_model.get(query.model) else {
            return false;
        };
        let search = self.resolve(query, now);
        let mut states = self.models[model as usize].nodes.iter();
        states.any(|state| {
            let node = self.nodes[usize::from(state.node)].as_ref();
            node.is_some_and(|node| {
                let trust = self.rule.trust(node.report_age(now));
                let checked = self.check_node(node, trust, &search);
                let may_serve = matches!(checked, Ok(()) | Err(SkipReason::BackedOff));
                may_serve && !search.visited.contains(state.node)
            })
        })
    }

    /// Returns whether to stay in the queue here although `there` has a free permit: only while the
    /// expected wait is no longer than a forward takes.
    pub fn is_wait_here_shorter(&self, expected_wait: Millis, there: &ForwardTarget) -> bool {
        let forward_us = u64::from(there.rtt_us) + u64::from(self.rule.forward_floor_us);
        expected_wait.0.saturating_mul(1000) <= forward_us
    }

    pub(super) fn resolve<'a>(&self, query: &NodeQuery<'a>, now: Millis) -> ResolvedQuery<'a> {
        let mut visited = NodeSet::default();
        for name in query.visited {
            if let Some(&slot) = self.by_name.get(name) {
                visited.insert(slot);
            }
        }
        ResolvedQuery {
            visited,
            forced_site: query.forced_site,
            need: query.need,
            now,
        }
    }

    /// Returns the better of two random eligible nodes of a tier, and whether it is the only one.
    fn pick(
        &self,
        view: &ClusterModel,
        tier: &[u16],
        search: &ResolvedQuery<'_>,
        rng: &mut SplitMix64,
    ) -> Option<(u16, bool)> {
        let score = |at: u16| self.score(view, &view.nodes[usize::from(at)], search).ok();
        if tier.len() > 2 {
            let first = rng.next_below(tier.len() as u64) as usize;
            let second = first + 1 + rng.next_below(tier.len() as u64 - 1) as usize;
            let (one, other) = (tier[first], tier[second % tier.len()]);
            if let (Some(one_score), Some(other_score)) = (score(one), score(other)) {
                let better = if other_score > one_score { other } else { one };
                return Some((better, false));
            }
        }
        // One of the two was not fit: two of all that are, each pair as likely as any other
        // (algorithm R, <https://doi.org/10.1145/3147.3165>).
        let mut drawn: [Option<(u64, u16)>; 2] = [None, None];
        let mut fit = 0;
        for &at in tier {
            let Some(score) = score(at) else { continue };
            let place = match fit {
                0 | 1 => fit,
                _ => rng.next_below(fit + 1),
            };
            if let Some(kept) = drawn.get_mut(place as usize) {
                *kept = Some((score, at));
            }
            fit += 1;
        }
        // Among equals chance decides, not the order of the seats.
        if rng.next_below(2) == 0 {
            drawn.swap(0, 1);
        }
        let better = drawn.into_iter().flatten().max_by_key(|&(score, _)| score);
        better.map(|(_, at)| (at, fit == 1))
    }

    /// Returns the score of a node, higher is better, or the reason to skip it.
    pub(super) fn score(
        &self,
        view: &ClusterModel,
        state: &NodeModelState,
        search: &ResolvedQuery<'_>,
    ) -> Result<u64, SkipReason> {
        let now = search.now;
        let node = self.nodes[usize::from(state.node)].as_ref();
        let node = node.ok_or(SkipReason::Gone)?;
        let trust = self.rule.trust(node.report_age(now));
        if search.visited.contains(state.node) {
            return Err(SkipReason::Visited);
        }
        self.check_node(node, trust, search)?;
        if state.backoff.is_active(now) {
            return Err(SkipReason::Failing);
        }
        if state.has_refused(now) {
            return Err(SkipReason::Full);
        }
        match search.need {
            Need::Permit => {
                let free = state.free();
                if free == 0 {
                    return Err(SkipReason::NoneFree);
                }
                let returned = state.returned();
                if returned == 0 {
                    self.check_share(view, state, node, u64::from(free) * trust, now)?;
                }
                Ok(u64::from(free) * trust)
            }
            Need::Queue { wait_max, crowded } => {
                if state.load.unmet_demand > 0 && !crowded {
                    return Err(SkipReason::Crowded);
                }
                let room = state.queue_room();
                if room == 0 {
                    return Err(SkipReason::NoneFree);
                }
                let wait_us = u64::from(state.load.wait_ms) * 1000 + u64::from(node.rtt_us);
                if wait_us > wait_max.0.saturating_mul(1000) {
                    return Err(SkipReason::WaitTooLong);
                }
                self.check_share(view, state, node, u64::from(room) * trust, now)?;
                Ok(u64::MAX - wait_us)
            }
        }
    }

    fn check_node(
        &self,
        node: &ClusterNode,
        trust: u64,
        search: &ResolvedQuery<'_>,
    ) -> Result<(), SkipReason> {
        if let Some(site) = search.forced_site
            && *self.sites[usize::from(node.site)].name != *site
        {
            return Err(SkipReason::OtherSite);
        }
        if node.draining {
            return Err(SkipReason::Draining);
        }
        if node.is_lost {
            return Err(SkipReason::Gone);
        }
        if !self.is_trusted(node) {
            return Err(SkipReason::Unproven);
        }
        if trust == 0 {
            return Err(SkipReason::Stale);
        }
        if node.backoff.is_active(search.now) {
            return Err(SkipReason::BackedOff);
        }
        Ok(())
    }

    /// Checks that this node's share of `believed` thousandths of the capacity there is not used
    /// up: everything if no other node has unmet demand, else an equal share. The remainder of the
    /// division is assigned at random, so that all shares together match the capacity.
    fn check_share(
        &self,
        view: &ClusterModel,
        state: &NodeModelState,
        node: &ClusterNode,
        believed: u64,
        now: Millis,
    ) -> Result<(), SkipReason> {
        let span = self.span(now);
        let sent = u64::from(state.sent_in(span));
        let seekers = u64::from(view.nodes_with_waiters) + 1;
        let divisor = seekers * TRUST_FULL;
        // As it was when the span began: what was sent since is not there any more.
        let believed = believed + sent * TRUST_FULL;
        let (whole, rest) = (believed / divisor, believed % divisor);
        if sent < whole {
            return Ok(());
        }
        let ticket = self.seed ^ node.seed.rotate_left(16) ^ view.seed.rotate_left(32) ^ span;
        match sent == whole && rest > 0 && SplitMix64::new(ticket).next_below(divisor) < rest {
            true => Ok(()),
            false => Err(SkipReason::ShareUsed),
        }
    }

    /// Number of the span for which shares are assigned.
    pub(super) fn span(&self, now: Millis) -> u64 {
        now.0 / self.rule.share_period.0.max(1)
    }

    fn target_of(&self, model: u32, state: &NodeModelState) -> Option<ForwardTarget> {
        let node = self.nodes[usize::from(state.node)].as_ref()?;
        Some(ForwardTarget {
            node: node.id.clone(),
            address: node.address.clone(),
            site: self.sites[usize::from(node.site)].name.clone(),
            rtt_us: node.rtt_us,
            free: state.free(),
            wait_ms: state.load.wait_ms,
            in_flight: state.in_flight(),
            is_only_candidate: false,
            key: NodeModelKey {
                slot: state.node,
                node_epoch: node.epoch,
                model,
                model_epoch: self.models[model as usize].epoch,
            },
        })
    }
}
