//! Read-only views of the cluster: for `/state`, `/explain`, and routing policies that rank sites.
//!
//! Decides nothing. Lists are built on each call, O(nodes).

use std::sync::Arc;

use super::super::breaker::Health;
use super::super::policy::{Candidate, site_number};
use super::membership::ClusterView;
use super::report::{ModelLoad, NodeId};
use super::rule::TRUST_FULL;
use super::selection::{Need, NodeQuery};
use crate::Millis;

/// Reason why a node was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The node has been visited by the request.
    Visited,
    /// The node is at another site than the forced one.
    OtherSite,
    /// The node is draining.
    Draining,
    /// The failure detector reports the node lost.
    Gone,
    /// The node has not shown its certificate yet.
    Unproven,
    /// The report is too old.
    Stale,
    /// A forward to the node failed a moment ago.
    BackedOff,
    /// The node's servers of the model failed a moment ago.
    Failing,
    /// The node refused a moment ago.
    Full,
    /// No permit, or no place in the queue, is estimated free there.
    NoneFree,
    /// Other nodes have unmet demand, and this node has used its share.
    ShareUsed,
    /// The node's own clients wait in its queue.
    Crowded,
    /// The wait there is too long.
    WaitTooLong,
}

impl SkipReason {
    /// The reason in one word, as `/explain` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            SkipReason::Visited => "visited",
            SkipReason::OtherSite => "other-site",
            SkipReason::Draining => "draining",
            SkipReason::Gone => "gone",
            SkipReason::Unproven => "unproven",
            SkipReason::Stale => "stale",
            SkipReason::BackedOff => "backed-off",
            SkipReason::Failing => "failing",
            SkipReason::Full => "full",
            SkipReason::NoneFree => "none-free",
            SkipReason::ShareUsed => "share-used",
            SkipReason::Crowded => "crowded",
            SkipReason::WaitTooLong => "wait-too-long",
        }
    }
}

/// View of one node, with the load of one model if the query names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node.
    pub node: NodeId,
    /// Its site.
    pub site: Arc<str>,
    /// Its peers listener.
    pub address: Arc<str>,
    /// The node is draining.
    pub draining: bool,
    /// The failure detector reports the node lost.
    pub gone: bool,
    /// Age of the report.
    pub age: Millis,
    /// Round trip, smoothed, microseconds; 0 when not measured.
    pub rtt_us: u32,
    /// Models it serves.
    pub models: usize,
    /// Reported load of the model.
    pub load: ModelLoad,
    /// Estimated free permits.
    pub free: u32,
    /// Requests in flight from here.
    pub in_flight: u32,
    /// Reason why it would be skipped now; none if it would not, or if the query names no model.
    pub skip_reason: Option<SkipReason>,
}

impl ClusterView {
    /// Every node, by name.
    pub fn nodes(&self, now: Millis) -> Vec<NodeView> {
        let slots = 0..self.nodes.len() as u16;
        let mut views: Vec<NodeView> = slots.filter_map(|slot| self.node_view(slot, now)).collect();
        views.sort_unstable_by(|one, other| one.node.name.cmp(&other.node.name));
        views
    }

    /// Returns the first `most` nodes that serve the model in the order of preference, each with
    /// its skip reason, and the number of further nodes.
    pub fn explain(
        &mut self,
        query: &NodeQuery<'_>,
        most: usize,
        now: Millis,
    ) -> (Vec<NodeView>, usize) {
        let Some(&model) = self.by_model.get(query.model) else {
            return (Vec::new(), 0);
        };
        let plan = self.plan(model, query.site_order);
        let search = self.resolve(query, now);
        let view = &self.models[model as usize];
        let left_out = view.nodes.len().saturating_sub(most);
        let states = view.plan_by_id(plan).tiers().flatten().take(most);
        let states = states.map(|&at| &view.nodes[usize::from(at)]);
        let seen = states.filter_map(|state| {
            Some(NodeView {
                load: state.load,
                free: state.free(),
                in_flight: state.in_flight(),
                skip_reason: self.score(view, state, &search).err(),
                ..self.node_view(state.node, now)?
            })
        });
        (seen.collect(), left_out)
    }

    /// Returns the sites that serve a model, as candidates for a policy: one a site, with the
    /// summed capacity of its eligible nodes, discounted by age. Site 0 is this one, others have
    /// the hash of their names; `id` is the index in the list.
    pub fn site_candidates(&mut self, model: &str, now: Millis) -> Vec<(Arc<str>, Candidate)> {
        let query = NodeQuery {
            model,
            visited: &[],
            forced_site: None,
            site_order: None,
            need: Need::Permit,
        };
        let search = self.resolve(&query, now);
        let Some(&model) = self.by_model.get(model) else {
            return Vec::new();
        };
        let view = &self.models[model as usize];
        let mut found: Vec<(Arc<str>, Candidate)> = Vec::new();
        for state in &view.nodes {
            let Some(node) = &self.nodes[usize::from(state.node)] else {
                continue;
            };
            if !self.is_trusted(node) {
                continue;
            }
            let site = &self.sites[usize::from(node.site)];
            let known = found.iter().position(|(name, _)| *name == site.name);
            let at = known.unwrap_or_else(|| {
                let number = match node.site {
                    0 => 0,
                    _ => site_number(&site.name),
                };
                found.push((
                    site.name.clone(),
                    empty_site(found.len() as u32, number, site.rtt_us),
                ));
                found.len() - 1
            });
            let trust = self.rule.trust(node.report_age(now));
            let usable = !matches!(
                self.score(view, state, &search),
                Err(SkipReason::Draining
                    | SkipReason::Gone
                    | SkipReason::Stale
                    | SkipReason::BackedOff)
            );
            if usable {
                add_node(
                    &mut found[at].1,
                    state.free(),
                    state.load,
                    state.ttft_us,
                    trust,
                );
            }
        }
        found
    }

    fn node_view(&self, slot: u16, now: Millis) -> Option<NodeView> {
        let node = self.nodes[usize::from(slot)].as_ref()?;
        let gone = node.is_lost.then_some(SkipReason::Gone);
        let unproven = (!self.is_trusted(node)).then_some(SkipReason::Unproven);
        Some(NodeView {
            node: node.id.clone(),
            site: self.sites[usize::from(node.site)].name.clone(),
            address: node.address.clone(),
            draining: node.draining,
            gone: node.is_lost,
            age: node.report_age(now),
            rtt_us: node.rtt_us,
            models: node.models.len(),
            load: ModelLoad::default(),
            free: 0,
            in_flight: 0,
            skip_reason: gone
                .or(unproven)
                .or(node.draining.then_some(SkipReason::Draining)),
        })
    }
}

/// Returns the candidate of a site without an eligible node.
fn empty_site(id: u32, site: u32, rtt_us: u32) -> Candidate {
    Candidate {
        id,
        site,
        node: None,
        health: Health::Down,
        permits_free: 0,
        permits_total: 0,
        queue_len: 0,
        rtt_us,
        ttft_us: 0,
        latency_us: 0,
        error_ppm: 0,
        lora_affinity: 0,
        prefix_affinity: 0,
        tier: 0,
        ooc: 0,
    }
}

/// Adds a node to a site's candidate. The shortest time to first token stands for the site.
fn add_node(site: &mut Candidate, free: u32, load: ModelLoad, seen_ttft_us: u32, trust: u64) {
    let believed = u64::from(free) * trust / TRUST_FULL;
    site.health = Health::Healthy;
    site.permits_free = site.permits_free.saturating_add(believed as u32);
    site.permits_total = site.permits_total.saturating_add(load.permits);
    site.queue_len = site.queue_len.saturating_add(load.queued);
    let ttft_us = match seen_ttft_us {
        0 => load.ttft_us,
        seen => seen,
    };
    if ttft_us > 0 && (site.ttft_us == 0 || ttft_us < site.ttft_us) {
        site.ttft_us = ttft_us;
    }
}
