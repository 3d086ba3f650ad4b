//! Membership: applies reports, forgets nodes, measures distances.
//!
//! Selects nothing, that is `choose.rs`. Bounds: [`NODES_MAX`] nodes and [`MODELS_MAX`] models,
//! beyond which reports and models are not taken in. O(models of the report) per report.

use std::sync::Arc;

use hashbrown::HashMap;

use super::super::load::smoothed;
use super::node::ClusterNode;
use super::plan::{ClusterModel, PlanId, PlanInput};
use super::report::{MembershipChange, ModelLoad, NodeId, NodeReport};
use super::rule::ClusterRule;
use super::site_order::{SiteOrder, seed_of};
use crate::{Millis, ModelId};

/// Nodes known at once beside this one. A cluster is five times smaller.
pub const NODES_MAX: usize = 256;

/// Models known at once. A catalogue is four times smaller.
pub const MODELS_MAX: usize = 4096;

/// A site keeps its step while its round trip is within this part of a step of it: otherwise plans
/// would be made anew with every sample at a border.
const STEP_SLACK_DIVISOR: u32 = 4;

/// Site of the cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterSite {
    pub name: Arc<str>,
    /// 0 is ours, others by round trip.
    pub step: u32,
    /// Round trip to its nearest node, microseconds; 0 when not measured.
    pub rtt_us: u32,
    nodes: u32,
}

/// View of the cluster from this node.
pub struct ClusterView {
    pub(super) here: NodeId,
    /// Hash of this node's name and generation, for shares.
    pub(super) seed: u64,
    pub(super) rule: ClusterRule,
    pub(super) nodes: Vec<Option<ClusterNode>>,
    pub(super) by_name: HashMap<Arc<str>, u16>,
    /// The first one is this node's.
    pub(super) sites: Vec<ClusterSite>,
    pub(super) models: Vec<ClusterModel>,
    pub(super) by_model: HashMap<ModelId, u32>,
    unused_models: Vec<u32>,
    /// Plans of an older epoch do not hold.
    plan_epoch: u64,
    epochs: u32,
    wakes: Vec<ModelId>,
}

/// Relation of a report to what is known.
enum ReportOrigin {
    New,
    Restarted,
    Same,
}

impl ClusterView {
    /// Returns an empty view.
    pub fn new(here: NodeId, site: Arc<str>, rule: ClusterRule) -> ClusterView {
        let own = ClusterSite {
            name: site,
            step: 0,
            rtt_us: 0,
            nodes: 1,
        };
        ClusterView {
            seed: seed_of(&here.name) ^ here.generation,
            here,
            rule,
            nodes: Vec::new(),
            by_name: HashMap::new(),
            sites: vec![own],
            models: Vec::new(),
            by_model: HashMap::new(),
            unused_models: Vec::new(),
            plan_epoch: 1,
            epochs: 0,
            wakes: Vec::new(),
        }
    }

    /// Applies a report, by whatever way it arrived. Returns `None` for a report of this node, of
    /// an older generation than a live one, of a version already known, or of one node too many.
    pub fn apply_report(&mut self, report: &NodeReport, now: Millis) -> Option<MembershipChange> {
        let (slot, known) = self.slot_for(report, now)?;
        self.set_site(slot, &report.site);
        let node = self.nodes[usize::from(slot)].as_mut()?;
        let (was_gone, was_draining) = (node.is_lost, node.draining);
        node.apply_report(report, now);
        let age = node.report_age(now);
        self.apply_models(slot, &report.models, report.version, age, now);
        let id = report.node.clone();
        Some(match known {
            ReportOrigin::New => MembershipChange::Appeared(id),
            ReportOrigin::Restarted => MembershipChange::Restarted(id),
            ReportOrigin::Same if report.draining && !was_draining => {
                MembershipChange::Draining(id)
            }
            ReportOrigin::Same if was_gone || (was_draining && !report.draining) => {
                MembershipChange::Returned(id)
            }
            ReportOrigin::Same => MembershipChange::Changed(id),
        })
    }

    /// Marks a node as lost: it is skipped until its next report. Returns false when the node is
    /// unknown or already lost.
    pub fn mark_lost(&mut self, name: &str) -> bool {
        let Some(&slot) = self.by_name.get(name) else {
            return false;
        };
        let Some(node) = self.nodes[usize::from(slot)].as_mut() else {
            return false;
        };
        let was_gone = std::mem::replace(&mut node.is_lost, true);
        let models = std::mem::take(&mut node.models);
        for &model in &models {
            self.set_unmet_demand(model, slot, false);
        }
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.models = models;
        }
        !was_gone
    }

    /// Marks a node of this generation as draining: it is skipped until a newer report says
    /// otherwise. Returns false when the node is unknown or already draining.
    pub fn mark_draining(&mut self, name: &str, generation: u64) -> bool {
        let Some(&slot) = self.by_name.get(name) else {
            return false;
        };
        let node = self.nodes[usize::from(slot)].as_mut();
        node.filter(|node| node.id.generation == generation)
            .is_some_and(|node| !std::mem::replace(&mut node.draining, true))
    }

    /// Forgets a node that left the list of nodes.
    pub fn forget(&mut self, name: &str) -> bool {
        let Some(slot) = self.by_name.remove(name) else {
            return false;
        };
        self.vacate(slot);
        true
    }

    /// Forgets nodes without a report for [`ClusterRule::forget_after`] and returns them. Call it about
    /// once a second.
    pub fn sweep(&mut self, now: Millis) -> Vec<NodeId> {
        let forgotten = self.rule.forget_after;
        let old = |node: &&ClusterNode| node.silence(now) >= forgotten;
        let nodes = self.nodes.iter().flatten().filter(old);
        let swept: Vec<NodeId> = nodes.map(|node| node.id.clone()).collect();
        for id in &swept {
            self.forget(&id.name);
        }
        swept
    }

    /// Records a measured round trip to a node.
    pub fn record_rtt(&mut self, name: &str, rtt_us: u32) {
        let Some(&slot) = self.by_name.get(name) else {
            return;
        };
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.rtt_us = smoothed(node.rtt_us, rtt_us);
            let site = node.site;
            self.update_site_distance(site);
        }
    }

    /// Returns models for which there may be capacity since a request found none: their waiters
    /// should look again. Call it after [`ClusterView::apply_report`] and [`ClusterView::finish_forward`]; each model is named
    /// once.
    ///
    /// Shares of scarce permits change as time passes without a notification: waiters also look
    /// again every [`ClusterRule::share_period`].
    pub fn take_wakes(&mut self) -> Vec<ModelId> {
        std::mem::take(&mut self.wakes)
    }

    /// Number of known nodes, lost ones included.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns whether no other node is known.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the slot of a report's node: found, emptied for a new generation, or newly taken.
    fn slot_for(&mut self, report: &NodeReport, now: Millis) -> Option<(u16, ReportOrigin)> {
        if report.node.name == self.here.name {
            return None;
        }
        if let Some(&slot) = self.by_name.get(&report.node.name) {
            let node = self.nodes[usize::from(slot)].as_ref()?;
            let (generation, version) = (node.id.generation, node.version);
            if report.node.generation == generation {
                return (report.version > version).then_some((slot, ReportOrigin::Same));
            }
            // Generations are times of a wall clock: a node whose clock was set back starts again with
            // an earlier one, and is accepted once the later one is lost.
            if report.node.generation < generation && !node.is_lost {
                return None;
            }
            self.vacate(slot);
            self.occupy(slot, report, now);
            return Some((slot, ReportOrigin::Restarted));
        }
        if self.by_name.len() >= NODES_MAX {
            let silent = self.nodes.iter().flatten();
            let silent = silent.max_by_key(|node| node.silence(now))?;
            if silent.report_age(now) < self.rule.stale {
                return None;
            }
            let name = silent.id.name.clone();
            self.forget(&name);
        }
        let vacant = self.nodes.iter().position(Option::is_none);
        let slot = vacant.unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        let slot = u16::try_from(slot).ok()?;
        self.occupy(slot, report, now);
        Some((slot, ReportOrigin::New))
    }

    fn occupy(&mut self, slot: u16, report: &NodeReport, now: Millis) {
        self.epochs = self.epochs.wrapping_add(1);
        let site = self.site(&report.site);
        self.sites[usize::from(site)].nodes += 1;
        self.nodes[usize::from(slot)] = Some(ClusterNode::new(report, site, self.epochs, now));
        self.by_name.insert(report.node.name.clone(), slot);
        self.plan_epoch += 1;
    }

    /// Empties a slot; the slot may be reused.
    fn vacate(&mut self, slot: u16) {
        let Some(node) = self.nodes[usize::from(slot)].take() else {
            return;
        };
        self.plan_epoch += 1;
        for model in node.models {
            self.remove_node_model(model, slot);
        }
        self.sites[usize::from(node.site)].nodes -= 1;
        self.update_site_distance(node.site);
    }

    /// Applies the site that a node reports.
    fn set_site(&mut self, slot: u16, name: &Arc<str>) {
        let Some(node) = &self.nodes[usize::from(slot)] else {
            return;
        };
        let former = node.site;
        if self.sites[usize::from(former)].name == *name {
            return;
        }
        let site = self.site(name);
        self.sites[usize::from(site)].nodes += 1;
        self.sites[usize::from(former)].nodes -= 1;
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.site = site;
        }
        self.plan_epoch += 1;
        self.update_site_distance(former);
        self.update_site_distance(site);
    }

    /// The index of a site; a new one takes the place of one without nodes. The number of sites is
    /// at most that of the nodes plus one.
    fn site(&mut self, name: &Arc<str>) -> u16 {
        if let Some(at) = self.sites.iter().position(|site| site.name == *name) {
            return at as u16;
        }
        let site = ClusterSite {
            name: name.clone(),
            step: 1,
            rtt_us: 0,
            nodes: 0,
        };
        let empty = self.sites.iter().skip(1).position(|site| site.nodes == 0);
        match empty {
            Some(at) => {
                self.sites[at + 1] = site;
                at as u16 + 1
            }
            None => {
                self.sites.push(site);
                self.sites.len() as u16 - 1
            }
        }
    }

    /// Updates the distance of a site from its nearest node.
    fn update_site_distance(&mut self, site: u16) {
        let there = self.nodes.iter().flatten().filter(|node| node.site == site);
        let measured = there.map(|node| node.rtt_us).filter(|&rtt_us| rtt_us > 0);
        let rtt_us = measured.min().unwrap_or(0);
        let place = &mut self.sites[usize::from(site)];
        place.rtt_us = rtt_us;
        if site == 0 {
            return;
        }
        let width = self.rule.site_step_us.max(1);
        let slack = width / STEP_SLACK_DIVISOR;
        // Step 1 takes what was never measured, or it never would be.
        let step = |rtt_us: u32| 1 + rtt_us / width;
        let within = step(rtt_us.saturating_sub(slack))..=step(rtt_us.saturating_add(slack));
        if !within.contains(&place.step) {
            place.step = step(rtt_us);
            self.plan_epoch += 1;
        }
    }

    /// Applies every model of a report and removes models it does not name.
    fn apply_models(
        &mut self,
        slot: u16,
        reported: &[(ModelId, ModelLoad)],
        version: u64,
        age: Millis,
        now: Millis,
    ) {
        let Some(node) = self.nodes[usize::from(slot)].as_mut() else {
            return;
        };
        let mut models = std::mem::take(&mut node.models);
        // The unmet demand of an unproven node reserves no share.
        let counts = !self.rule.proven_only || node.answered_at.is_some();
        for (at, (id, load)) in reported.iter().take(MODELS_MAX).enumerate() {
            // Nodes name their models in the same order each time, mostly.
            let same = |model: &&u32| self.models[**model as usize].id == *id;
            let Some(model) = models
                .get(at)
                .filter(same)
                .copied()
                .or_else(|| self.model(id))
            else {
                continue;
            };
            let view = &mut self.models[model as usize];
            let at = view.index_of(slot).unwrap_or_else(|| {
                models.insert(at.min(models.len()), model);
                view.insert(slot)
            });
            view.nodes[at].apply_report(*load, version, age, now);
            self.set_unmet_demand(model, slot, counts && load.has_unmet_demand());
            self.wake_if_room(model, slot);
        }
        models.retain(|&model| {
            let view = &self.models[model as usize];
            let stays = view
                .index_of(slot)
                .is_some_and(|at| view.nodes[at].version == version);
            if !stays {
                self.remove_node_model(model, slot);
            }
            stays
        });
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.models = models;
        }
    }

    /// The index of a model, new or known; none when there are too many.
    fn model(&mut self, id: &ModelId) -> Option<u32> {
        if let Some(&model) = self.by_model.get(id) {
            return Some(model);
        }
        self.epochs = self.epochs.wrapping_add(1);
        let view = ClusterModel::new(id.clone(), self.epochs);
        let model = match self.unused_models.pop() {
            Some(model) => {
                self.models[model as usize] = view;
                model
            }
            None if self.models.len() < MODELS_MAX => {
                self.models.push(view);
                self.models.len() as u32 - 1
            }
            None => return None,
        };
        self.by_model.insert(id.clone(), model);
        Some(model)
    }

    fn remove_node_model(&mut self, model: u32, slot: u16) {
        self.set_unmet_demand(model, slot, false);
        let view = &mut self.models[model as usize];
        if let Some(at) = view.index_of(slot) {
            view.nodes.remove(at);
            view.clear_plans();
        }
        if view.nodes.is_empty() && self.by_model.remove(&view.id).is_some() {
            self.unused_models.push(model);
        }
    }

    fn set_unmet_demand(&mut self, model: u32, slot: u16, has_demand: bool) {
        let view = &mut self.models[model as usize];
        let Some(at) = view.index_of(slot) else {
            return;
        };
        let former = std::mem::replace(&mut view.nodes[at].has_unmet_demand, has_demand);
        view.nodes_with_waiters =
            view.nodes_with_waiters + u32::from(has_demand) - u32::from(former);
    }

    /// Marks a model whose waiters may be forwarded to the node now.
    pub(super) fn wake_if_room(&mut self, model: u32, slot: u16) {
        let view = &mut self.models[model as usize];
        let Some(at) = view.index_of(slot).filter(|_| view.has_unmet_demand) else {
            return;
        };
        let state = &view.nodes[at];
        if state.free() > 0 || state.queue_room() > 0 {
            view.has_unmet_demand = false;
            self.wakes.push(view.id.clone());
        }
    }

    /// Returns the valid plan of a model.
    pub(super) fn plan(&mut self, model: u32, order: Option<&SiteOrder>) -> PlanId {
        let (nodes, sites) = (&self.nodes, &self.sites);
        let site = |slot: u16| {
            let node = nodes[usize::from(slot)].as_ref();
            node.map(|node| &sites[usize::from(node.site)])
        };
        let input = PlanInput {
            epoch: self.plan_epoch,
            near: &|slot| site(slot).map_or(u32::MAX, |site| site.step),
            ranked: &|slot, order| site(slot).map_or(u32::MAX, |site| order.step(&site.name)),
        };
        self.models[model as usize].plan(order, &input)
    }

    /// Returns the bytes that the view owns: names shared with reports are counted once a node.
    pub fn bytes(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        let nodes: usize = nodes
            .map(|node| {
                node.models.capacity() * size_of::<u32>() + node.id.name.len() + node.address.len()
            })
            .sum();
        let views: usize = self.models.iter().map(ClusterModel::bytes).sum();
        // Beside an entry there is a byte of control for each bucket.
        let by_name = self.by_name.capacity() * (size_of::<(Arc<str>, u16)>() + 1);
        let by_model = self.by_model.capacity() * (size_of::<(ModelId, u32)>() + 1);
        size_of::<ClusterView>()
            + nodes
            + self.nodes.capacity() * size_of::<Option<ClusterNode>>()
            + self.sites.capacity() * size_of::<ClusterSite>()
            + views
            + self.models.capacity() * size_of::<ClusterModel>()
            + by_name
            + by_model
    }

    /// Asserts that nodes, sites, models and their entries agree, visiting everything: for tests.
    pub fn check(&self) {
        let present = self.nodes.iter().flatten().count();
        assert_eq!(present, self.by_name.len(), "every node has its name");
        assert!(present <= NODES_MAX && self.by_model.len() <= MODELS_MAX);
        for (name, &slot) in &self.by_name {
            let node = self.nodes[usize::from(slot)].as_ref();
            let node = node.expect("a name has its node");
            assert_eq!(node.id.name, *name);
            for &model in &node.models {
                let seated = self.models[model as usize].index_of(slot).is_some();
                assert!(seated, "a node has a seat at each of its models");
            }
        }
        for (at, site) in self.sites.iter().enumerate() {
            let there = self.nodes.iter().flatten();
            let there = there.filter(|node| usize::from(node.site) == at).count();
            assert_eq!(site.nodes as usize, there + usize::from(at == 0));
        }
        let states: usize = self.models.iter().map(|view| view.nodes.len()).sum();
        let named: usize = self
            .nodes
            .iter()
            .flatten()
            .map(|node| node.models.len())
            .sum();
        assert_eq!(states, named, "every seat is named by its node, once");
        for (at, view) in self.models.iter().enumerate() {
            let has_demand = view
                .nodes
                .iter()
                .filter(|state| state.has_unmet_demand)
                .count();
            assert_eq!(
                view.nodes_with_waiters as usize, has_demand,
                "the hungry are counted"
            );
            assert!(view.nodes.is_sorted_by_key(|state| state.node));
            let named = self.by_model.get(&view.id) == Some(&(at as u32));
            assert_eq!(
                view.nodes.is_empty(),
                !named,
                "a model has seats or no name"
            );
        }
    }
}
