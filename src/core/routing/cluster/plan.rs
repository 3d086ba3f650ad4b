//! Order in which a model's nodes are tried: tiers of nodes, nearest sites first.
//!
//! Plans depend on membership and distance only, not on load.

use crate::ModelId;

use super::node_model::NodeModelState;
use super::site_order::SiteOrder;

/// Site orders for which a model keeps plans: the classes of requests that a policy distinguishes.
const RANKED_MAX: usize = 8;

/// Nodes of a model in tiers.
#[derive(Clone, Debug, Default)]
pub(super) struct TierPlan {
    /// Epoch it was made in.
    epoch: u64,
    /// Indices of nodes of the model.
    order: Vec<u16>,
    /// End of each tier in `order`.
    ends: Vec<u16>,
}

impl TierPlan {
    /// Seats by the step of their site; equal steps are a tier.
    fn make(
        epoch: u64,
        states: &[NodeModelState],
        step: impl Fn(&NodeModelState) -> u32,
    ) -> TierPlan {
        let mut keyed: Vec<(u32, u16)> = states.iter().map(&step).zip(0..).collect();
        keyed.sort_unstable();
        let mut plan = TierPlan {
            epoch,
            order: keyed.iter().map(|&(_, at)| at).collect(),
            ends: Vec::new(),
        };
        for tier in keyed.chunk_by(|one, next| one.0 == next.0) {
            let end = plan.ends.last().unwrap_or(&0) + tier.len() as u16;
            plan.ends.push(end);
        }
        plan
    }

    pub fn tiers(&self) -> impl Iterator<Item = &[u16]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins
            .zip(&self.ends)
            .map(|(begin, &end)| &self.order[usize::from(begin)..usize::from(end)])
    }

    pub fn bytes(&self) -> usize {
        (self.order.capacity() + self.ends.capacity()) * size_of::<u16>()
    }
}

/// Inputs of a plan, beside the nodes of the model.
pub(super) struct PlanInput<'a> {
    /// Rises whenever plans made before do not hold any more.
    pub epoch: u64,
    /// Step of a node's site by round trips.
    pub near: &'a dyn Fn(u16) -> u32,
    /// Step of a node's site in an order.
    pub ranked: &'a dyn Fn(u16, &SiteOrder) -> u32,
}

/// State of one model across the cluster.
#[derive(Clone, Debug)]
pub(super) struct ClusterModel {
    pub id: ModelId,
    /// Hash of its name, for shares.
    pub seed: u64,
    /// Differs between all models that ever had its index.
    pub epoch: u32,
    /// By slot of their node.
    pub nodes: Vec<NodeModelState>,
    /// Nodes that look for permits elsewhere.
    pub nodes_with_waiters: u32,
    /// A request found no capacity since the last wake.
    pub has_unmet_demand: bool,
    near: TierPlan,
    ranked: Vec<(u64, TierPlan)>,
    /// Index in `ranked` that the next plan replaces when all are taken.
    oldest: usize,
}

impl ClusterModel {
    pub fn new(id: ModelId, birth: u32) -> ClusterModel {
        ClusterModel {
            seed: super::site_order::seed_of(id.as_str()),
            id,
            epoch: birth,
            nodes: Vec::new(),
            nodes_with_waiters: 0,
            has_unmet_demand: false,
            near: TierPlan::default(),
            ranked: Vec::new(),
            oldest: 0,
        }
    }

    /// Index of the entry of a node.
    pub fn index_of(&self, node: u16) -> Option<usize> {
        self.nodes
            .binary_search_by_key(&node, |state| state.node)
            .ok()
    }

    /// Adds an entry for a node that has none.
    pub fn insert(&mut self, node: u16) -> usize {
        let at = self.nodes.partition_point(|state| state.node < node);
        self.nodes.insert(at, NodeModelState::new(node));
        self.clear_plans();
        at
    }

    /// Clears its plans.
    pub fn clear_plans(&mut self) {
        self.near.epoch = 0;
        self.ranked.clear();
    }

    /// Returns the plan for a site order, or by distance; builds it if there is no valid one.
    pub fn plan(&mut self, order: Option<&SiteOrder>, input: &PlanInput<'_>) -> PlanId {
        let Some(order) = order else {
            if self.near.epoch != input.epoch {
                let step = |state: &NodeModelState| (input.near)(state.node);
                self.near = TierPlan::make(input.epoch, &self.nodes, step);
            }
            return PlanId::Near;
        };
        let known = self.ranked.iter().position(|(key, _)| *key == order.key());
        if let Some(at) = known
            && self.ranked[at].1.epoch == input.epoch
        {
            return PlanId::Ranked(at);
        }
        let step = |state: &NodeModelState| (input.ranked)(state.node, order);
        let plan = (order.key(), TierPlan::make(input.epoch, &self.nodes, step));
        let at = match known {
            Some(at) => at,
            None if self.ranked.len() < RANKED_MAX => self.ranked.len(),
            None => {
                self.oldest = (self.oldest + 1) % RANKED_MAX;
                self.oldest
            }
        };
        match self.ranked.get_mut(at) {
            Some(place) => *place = plan,
            None => self.ranked.push(plan),
        }
        PlanId::Ranked(at)
    }

    /// Returns a plan that [`ClusterModel::plan`] has just named.
    pub fn plan_by_id(&self, id: PlanId) -> &TierPlan {
        match id {
            PlanId::Near => &self.near,
            PlanId::Ranked(at) => &self.ranked[at].1,
        }
    }

    pub fn bytes(&self) -> usize {
        let ranked: usize = self.ranked.iter().map(|(_, plan)| plan.bytes()).sum();
        self.id.as_str().len()
            + self.nodes.capacity() * size_of::<NodeModelState>()
            + self.near.bytes()
            + ranked
            + self.ranked.capacity() * size_of::<(u64, TierPlan)>()
    }
}

/// Identifies one of a model's plans.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlanId {
    Near,
    Ranked(usize),
}
