//! Read-only views of the cluster: for `/state`, `/explain`, and routing policies that rank sites.
//!
//! Decides nothing. Lists are built on each call, O(nodes).

use std::sync::Arc;

use super::super::breaker::Health;
use super::super::policy::{Candidate, site_number};
use super::choose::{Seek, Wants};
use super::report::{ModelLoad, NodeId};
use super::rule::WHOLE;
use super::world::Fleet;
use crate::Millis;

/// Reason why a node was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAsked {
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
    Doubted,
    /// The node's servers of the model failed a moment ago.
    Failing,
    /// The node refused a moment ago.
    Full,
    /// No permit, or no place in the queue, is estimated free there.
    NoneFree,
    /// Other nodes have unmet demand, and this node has used its share.
    NotDrawn,
    /// The node's own clients wait in its queue.
    Crowded,
    /// The wait there is too long.
    WaitTooLong,
}

impl NotAsked {
    /// The reason in one word, as `/explain` shows it.
    pub const fn name(self) -> &'static str {
        match self {
            NotAsked::Visited => "visited",
            NotAsked::OtherSite => "other-site",
            NotAsked::Draining => "draining",
            NotAsked::Gone => "gone",
            NotAsked::Unproven => "unproven",
            NotAsked::Stale => "stale",
            NotAsked::Doubted => "doubted",
            NotAsked::Failing => "failing",
            NotAsked::Full => "full",
            NotAsked::NoneFree => "none-free",
            NotAsked::NotDrawn => "not-drawn",
            NotAsked::Crowded => "crowded",
            NotAsked::WaitTooLong => "wait-too-long",
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
    pub not_asked: Option<NotAsked>,
}

impl Fleet {
    /// Every node, by name.
    pub fn nodes(&self, now: Millis) -> Vec<NodeView> {
        let slots = 0..self.nodes.len() as u16;
        let mut views: Vec<NodeView> = slots.filter_map(|slot| self.node(slot, now)).collect();
        views.sort_unstable_by(|one, other| one.node.name.cmp(&other.node.name));
        views
    }

    /// Returns the first `most` nodes that serve the model in the order of preference, each with
    /// its skip reason, and the number of further nodes.
    pub fn explain(&mut self, seek: &Seek<'_>, most: usize, now: Millis) -> (Vec<NodeView>, usize) {
        let Some(&model) = self.by_model.get(seek.model) else {
            return (Vec::new(), 0);
        };
        let plan = self.plan(model, seek.sites);
        let search = self.search(seek, now);
        let view = &self.views[model as usize];
        let left_out = view.seats.len().saturating_sub(most);
        let seats = view.planned(plan).tiers().flatten().take(most);
        let seats = seats.map(|&at| &view.seats[usize::from(at)]);
        let seen = seats.filter_map(|seat| {
            Some(NodeView {
                load: seat.load,
                free: seat.free(),
                in_flight: seat.in_flight(),
                not_asked: self.fit(view, seat, &search).err(),
                ..self.node(seat.node, now)?
            })
        });
        (seen.collect(), left_out)
    }

    /// Returns the sites that serve a model, as candidates for a policy: one a site, with the
    /// summed capacity of its eligible nodes, discounted by age. Site 0 is this one, others have
    /// the hash of their names; `id` is the index in the list.
    pub fn site_candidates(&mut self, model: &str, now: Millis) -> Vec<(Arc<str>, Candidate)> {
        let seek = Seek {
            model,
            visited: &[],
            forced_site: None,
            sites: None,
            wants: Wants::Permit,
        };
        let search = self.search(&seek, now);
        let Some(&model) = self.by_model.get(model) else {
            return Vec::new();
        };
        let view = &self.views[model as usize];
        let mut found: Vec<(Arc<str>, Candidate)> = Vec::new();
        for seat in &view.seats {
            let Some(node) = &self.nodes[usize::from(seat.node)] else {
                continue;
            };
            if !self.counts(node) {
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
                    nobody(found.len() as u32, number, site.rtt_us),
                ));
                found.len() - 1
            });
            let trust = self.rule.trust(node.age(now));
            let usable = !matches!(
                self.fit(view, seat, &search),
                Err(NotAsked::Draining | NotAsked::Gone | NotAsked::Stale | NotAsked::Doubted)
            );
            if usable {
                add(
                    &mut found[at].1,
                    seat.free(),
                    seat.load,
                    seat.ttft_us,
                    trust,
                );
            }
        }
        found
    }

    fn node(&self, slot: u16, now: Millis) -> Option<NodeView> {
        let node = self.nodes[usize::from(slot)].as_ref()?;
        let gone = node.gone.then_some(NotAsked::Gone);
        let unproven = (!self.counts(node)).then_some(NotAsked::Unproven);
        Some(NodeView {
            node: node.id.clone(),
            site: self.sites[usize::from(node.site)].name.clone(),
            address: node.address.clone(),
            draining: node.draining,
            gone: node.gone,
            age: node.age(now),
            rtt_us: node.rtt_us,
            models: node.models.len(),
            load: ModelLoad::default(),
            free: 0,
            in_flight: 0,
            not_asked: gone
                .or(unproven)
                .or(node.draining.then_some(NotAsked::Draining)),
        })
    }
}

/// Returns the candidate of a site without an eligible node.
fn nobody(id: u32, site: u32, rtt_us: u32) -> Candidate {
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
fn add(site: &mut Candidate, free: u32, load: ModelLoad, seen_ttft_us: u32, trust: u64) {
    let believed = u64::from(free) * trust / WHOLE;
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
