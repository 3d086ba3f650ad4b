//! Membership: applies reports, forgets nodes, measures distances.
//!
//! Selects nothing, that is `choose.rs`. Bounds: [`NODES_MAX`] nodes and [`MODELS_MAX`] models,
//! beyond which reports and models are not taken in. O(models of the report) per report.

use std::sync::Arc;

use hashbrown::HashMap;

use super::super::load::smoothed;
use super::node::Node;
use super::order::{SiteOrder, seed_of};
use super::plan::{Ground, PlanId, View};
use super::report::{Change, ModelLoad, NodeId, NodeReport};
use super::rule::FleetRule;
use crate::{Millis, ModelId};

/// Nodes known at once beside this one. A cluster is five times smaller.
pub const NODES_MAX: usize = 256;

/// Models known at once. A catalogue is four times smaller.
pub const MODELS_MAX: usize = 4096;

/// A site keeps its step while its round trip is within this part of a step of it: otherwise plans
/// would be made anew with every sample at a border.
const STEP_SLACK_DIVISOR: u32 = 4;

/// Where nodes stand.
#[derive(Clone, Debug)]
pub(super) struct Site {
    pub name: Arc<str>,
    /// 0 is ours, others by round trip.
    pub step: u32,
    /// Round trip to its nearest node, microseconds; 0 when not measured.
    pub rtt_us: u32,
    nodes: u32,
}

/// View of the cluster from this node.
pub struct Fleet {
    pub(super) here: NodeId,
    /// Hash of this node's name and generation, for shares.
    pub(super) seed: u64,
    pub(super) rule: FleetRule,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) by_name: HashMap<Arc<str>, u16>,
    /// The first one is this node's.
    pub(super) sites: Vec<Site>,
    pub(super) views: Vec<View>,
    pub(super) by_model: HashMap<ModelId, u32>,
    unused_views: Vec<u32>,
    /// Plans of an older epoch do not hold.
    epoch: u64,
    births: u32,
    wakes: Vec<ModelId>,
}

/// Relation of a report to what is known.
enum Known {
    New,
    Restarted,
    Same,
}

impl Fleet {
    /// Returns an empty view.
    pub fn new(here: NodeId, site: Arc<str>, rule: FleetRule) -> Fleet {
        let own = Site {
            name: site,
            step: 0,
            rtt_us: 0,
            nodes: 1,
        };
        Fleet {
            seed: seed_of(&here.name) ^ here.generation,
            here,
            rule,
            nodes: Vec::new(),
            by_name: HashMap::new(),
            sites: vec![own],
            views: Vec::new(),
            by_model: HashMap::new(),
            unused_views: Vec::new(),
            epoch: 1,
            births: 0,
            wakes: Vec::new(),
        }
    }

    /// Identity of this node.
    pub fn here(&self) -> &NodeId {
        &self.here
    }

    /// Applies a report, by whatever way it arrived. Returns `None` for a report of this node, of
    /// an older generation than a live one, of a version already known, or of one node too many.
    pub fn heard(&mut self, report: &NodeReport, now: Millis) -> Option<Change> {
        let (slot, known) = self.place(report, now)?;
        self.settle(slot, &report.site);
        let node = self.nodes[usize::from(slot)].as_mut()?;
        let (was_gone, was_draining) = (node.gone, node.draining);
        node.told(report, now);
        let age = node.age(now);
        self.take_in(slot, &report.models, report.version, age, now);
        let id = report.node.clone();
        Some(match known {
            Known::New => Change::Appeared(id),
            Known::Restarted => Change::Restarted(id),
            Known::Same if report.draining && !was_draining => Change::Draining(id),
            Known::Same if was_gone || (was_draining && !report.draining) => Change::Returned(id),
            Known::Same => Change::Changed(id),
        })
    }

    /// Marks a node as lost: it is skipped until its next report. Returns false when the node is
    /// unknown or already lost.
    pub fn lost(&mut self, name: &str) -> bool {
        let Some(&slot) = self.by_name.get(name) else {
            return false;
        };
        let Some(node) = self.nodes[usize::from(slot)].as_mut() else {
            return false;
        };
        let was_gone = std::mem::replace(&mut node.gone, true);
        let models = std::mem::take(&mut node.models);
        for &model in &models {
            self.set_hungry(model, slot, false);
        }
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.models = models;
        }
        !was_gone
    }

    /// Marks a node of this generation as draining: it is skipped until a newer report says
    /// otherwise. Returns false when the node is unknown or already draining.
    pub fn draining(&mut self, name: &str, generation: u64) -> bool {
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

    /// Forgets nodes without a report for [`FleetRule::forgotten`] and returns them. Call it about
    /// once a second.
    pub fn sweep(&mut self, now: Millis) -> Vec<NodeId> {
        let forgotten = self.rule.forgotten;
        let old = |node: &&Node| node.silence(now) >= forgotten;
        let nodes = self.nodes.iter().flatten().filter(old);
        let swept: Vec<NodeId> = nodes.map(|node| node.id.clone()).collect();
        for id in &swept {
            self.forget(&id.name);
        }
        swept
    }

    /// Records a measured round trip to a node.
    pub fn timed(&mut self, name: &str, rtt_us: u32) {
        let Some(&slot) = self.by_name.get(name) else {
            return;
        };
        if let Some(node) = self.nodes[usize::from(slot)].as_mut() {
            node.rtt_us = smoothed(node.rtt_us, rtt_us);
            let site = node.site;
            self.measure(site);
        }
    }

    /// Returns models for which there may be capacity since a request found none: their waiters
    /// should look again. Call it after [`Fleet::heard`] and [`Fleet::ended`]; each model is named
    /// once.
    ///
    /// Shares of scarce permits change as time passes without a notification: waiters also look
    /// again every [`FleetRule::drawn_every`].
    pub fn wakes(&mut self) -> Vec<ModelId> {
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
    fn place(&mut self, report: &NodeReport, now: Millis) -> Option<(u16, Known)> {
        if report.node.name == self.here.name {
            return None;
        }
        if let Some(&slot) = self.by_name.get(&report.node.name) {
            let node = self.nodes[usize::from(slot)].as_ref()?;
            let (generation, version) = (node.id.generation, node.version);
            if report.node.generation == generation {
                return (report.version > version).then_some((slot, Known::Same));
            }
            // Generations are times of a wall clock: a node whose clock was set back starts again with
            // an earlier one, and is accepted once the later one is lost.
            if report.node.generation < generation && !node.gone {
                return None;
            }
            self.vacate(slot);
            self.occupy(slot, report, now);
            return Some((slot, Known::Restarted));
        }
        if self.by_name.len() >= NODES_MAX {
            let silent = self.nodes.iter().flatten();
            let silent = silent.max_by_key(|node| node.silence(now))?;
            if silent.age(now) < self.rule.stale {
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
        Some((slot, Known::New))
    }

    fn occupy(&mut self, slot: u16, report: &NodeReport, now: Millis) {
        self.births = self.births.wrapping_add(1);
        let site = self.site(&report.site);
        self.sites[usize::from(site)].nodes += 1;
        self.nodes[usize::from(slot)] = Some(Node::new(report, site, self.births, now));
        self.by_name.insert(report.node.name.clone(), slot);
        self.epoch += 1;
    }

    /// Empties a slot; the slot may be reused.
    fn vacate(&mut self, slot: u16) {
        let Some(node) = self.nodes[usize::from(slot)].take() else {
            return;
        };
        self.epoch += 1;
        for model in node.models {
            self.remove_seat(model, slot);
        }
        self.sites[usize::from(node.site)].nodes -= 1;
        self.measure(node.site);
    }

    /// Applies the site that a node reports.
    fn settle(&mut self, slot: u16, name: &Arc<str>) {
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
        self.epoch += 1;
        self.measure(former);
        self.measure(site);
    }

    /// The index of a site; a new one takes the place of one without nodes. The number of sites is
    /// at most that of the nodes plus one.
    fn site(&mut self, name: &Arc<str>) -> u16 {
        if let Some(at) = self.sites.iter().position(|site| site.name == *name) {
            return at as u16;
        }
        let site = Site {
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
    fn measure(&mut self, site: u16) {
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
            self.epoch += 1;
        }
    }

    /// Applies every model of a report and removes models it does not name.
    fn take_in(
        &mut self,
        slot: u16,
        told: &[(ModelId, ModelLoad)],
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
        for (at, (id, load)) in told.iter().take(MODELS_MAX).enumerate() {
            // Nodes name their models in the same order each time, mostly.
            let same = |model: &&u32| self.views[**model as usize].id == *id;
            let Some(model) = models
                .get(at)
                .filter(same)
                .copied()
                .or_else(|| self.model(id))
            else {
                continue;
            };
            let view = &mut self.views[model as usize];
            let seat = view.at(slot).unwrap_or_else(|| {
                models.insert(at.min(models.len()), model);
                view.seat_at(slot)
            });
            view.seats[seat].told(*load, version, age, now);
            self.set_hungry(model, slot, counts && load.is_hungry());
            self.wake_if_room(model, slot);
        }
        models.retain(|&model| {
            let view = &self.views[model as usize];
            let stays = view
                .at(slot)
                .is_some_and(|at| view.seats[at].version == version);
            if !stays {
                self.remove_seat(model, slot);
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
        self.births = self.births.wrapping_add(1);
        let view = View::new(id.clone(), self.births);
        let model = match self.unused_views.pop() {
            Some(model) => {
                self.views[model as usize] = view;
                model
            }
            None if self.views.len() < MODELS_MAX => {
                self.views.push(view);
                self.views.len() as u32 - 1
            }
            None => return None,
        };
        self.by_model.insert(id.clone(), model);
        Some(model)
    }

    fn remove_seat(&mut self, model: u32, slot: u16) {
        self.set_hungry(model, slot, false);
        let view = &mut self.views[model as usize];
        if let Some(at) = view.at(slot) {
            view.seats.remove(at);
            view.replan();
        }
        if view.seats.is_empty() && self.by_model.remove(&view.id).is_some() {
            self.unused_views.push(model);
        }
    }

    fn set_hungry(&mut self, model: u32, slot: u16, hungry: bool) {
        let view = &mut self.views[model as usize];
        let Some(at) = view.at(slot) else { return };
        let former = std::mem::replace(&mut view.seats[at].hungry, hungry);
        view.hungry = view.hungry + u32::from(hungry) - u32::from(former);
    }

    /// Marks a model whose waiters may be forwarded to the node now.
    pub(super) fn wake_if_room(&mut self, model: u32, slot: u16) {
        let view = &mut self.views[model as usize];
        let Some(at) = view.at(slot).filter(|_| view.denied) else {
            return;
        };
        let seat = &view.seats[at];
        if seat.free() > 0 || seat.line_room() > 0 {
            view.denied = false;
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
        let ground = Ground {
            epoch: self.epoch,
            near: &|slot| site(slot).map_or(u32::MAX, |site| site.step),
            ranked: &|slot, order| site(slot).map_or(u32::MAX, |site| order.step(&site.name)),
        };
        self.views[model as usize].plan(order, &ground)
    }

    /// Returns the bytes that the view owns: names shared with reports are counted once a node.
    pub fn bytes(&self) -> usize {
        let nodes = self.nodes.iter().flatten();
        let nodes: usize = nodes
            .map(|node| {
                node.models.capacity() * size_of::<u32>() + node.id.name.len() + node.address.len()
            })
            .sum();
        let views: usize = self.views.iter().map(View::bytes).sum();
        // Beside an entry there is a byte of control for each bucket.
        let by_name = self.by_name.capacity() * (size_of::<(Arc<str>, u16)>() + 1);
        let by_model = self.by_model.capacity() * (size_of::<(ModelId, u32)>() + 1);
        size_of::<Fleet>()
            + nodes
            + self.nodes.capacity() * size_of::<Option<Node>>()
            + self.sites.capacity() * size_of::<Site>()
            + views
            + self.views.capacity() * size_of::<View>()
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
                let seated = self.views[model as usize].at(slot).is_some();
                assert!(seated, "a node has a seat at each of its models");
            }
        }
        for (at, site) in self.sites.iter().enumerate() {
            let there = self.nodes.iter().flatten();
            let there = there.filter(|node| usize::from(node.site) == at).count();
            assert_eq!(site.nodes as usize, there + usize::from(at == 0));
        }
        let seats: usize = self.views.iter().map(|view| view.seats.len()).sum();
        let named: usize = self
            .nodes
            .iter()
            .flatten()
            .map(|node| node.models.len())
            .sum();
        assert_eq!(seats, named, "every seat is named by its node, once");
        for (at, view) in self.views.iter().enumerate() {
            let hungry = view.seats.iter().filter(|seat| seat.hungry).count();
            assert_eq!(view.hungry as usize, hungry, "the hungry are counted");
            assert!(view.seats.is_sorted_by_key(|seat| seat.node));
            let named = self.by_model.get(&view.id) == Some(&(at as u32));
            assert_eq!(
                view.seats.is_empty(),
                !named,
                "a model has seats or no name"
            );
        }
    }
}
