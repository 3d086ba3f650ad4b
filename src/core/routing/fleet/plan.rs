//! The order in which a model's seats are tried: tiers of seats, nearest sites first.
//!
//! A plan follows from who is there and how far away; loads do not matter to it, so it is made anew
//! only when a node comes or goes or a site's step changes.

use crate::ModelId;

use super::order::SiteOrder;
use super::seat::Seat;

/// Orders for which a model's plans are kept: the classes of requests a policy tells apart.
const RANKED_MAX: usize = 8;

/// Seats in tiers.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// [`Epoch`] it was made in.
    epoch: u64,
    /// Indices of seats.
    seats: Vec<u16>,
    /// Where each tier ends in `seats`.
    ends: Vec<u16>,
}

impl Plan {
    /// Seats by the step of their site; equal steps are a tier.
    fn make(epoch: u64, seats: &[Seat], step: impl Fn(&Seat) -> u32) -> Plan {
        let mut keyed: Vec<(u32, u16)> = seats.iter().map(&step).zip(0..).collect();
        keyed.sort_unstable();
        let mut plan = Plan {
            epoch,
            seats: keyed.iter().map(|&(_, seat)| seat).collect(),
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
            .map(|(begin, &end)| &self.seats[usize::from(begin)..usize::from(end)])
    }

    pub fn bytes(&self) -> usize {
        (self.seats.capacity() + self.ends.capacity()) * size_of::<u16>()
    }
}

/// What plans are made from, beside the seats.
pub(super) struct Ground<'a> {
    /// Rises whenever plans made before do not hold any more.
    pub epoch: u64,
    /// Step of a node's site by round trips.
    pub near: &'a dyn Fn(u16) -> u32,
    /// Step of a node's site in an order.
    pub ranked: &'a dyn Fn(u16, &SiteOrder) -> u32,
}

/// One model all over the fleet.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub id: ModelId,
    /// Of its name, for lots.
    pub seed: u64,
    /// Differs between all models that ever had its index.
    pub birth: u32,
    /// By slot of their node.
    pub seats: Vec<Seat>,
    /// Nodes that look for permits elsewhere.
    pub hungry: u32,
    /// Somebody found no room since the last wake.
    pub denied: bool,
    near: Plan,
    ranked: Vec<(u64, Plan)>,
    /// Where the next order goes when all places are taken.
    oldest: usize,
}

impl View {
    pub fn new(id: ModelId, birth: u32) -> View {
        View {
            seed: super::order::seed_of(id.as_str()),
            id,
            birth,
            seats: Vec::new(),
            hungry: 0,
            denied: false,
            near: Plan::default(),
            ranked: Vec::new(),
            oldest: 0,
        }
    }

    /// The seat at a node.
    pub fn at(&self, node: u16) -> Option<usize> {
        self.seats
            .binary_search_by_key(&node, |seat| seat.node)
            .ok()
    }

    /// Makes a seat for a node that has none.
    pub fn seat_at(&mut self, node: u16) -> usize {
        let at = self.seats.partition_point(|seat| seat.node < node);
        self.seats.insert(at, Seat::new(node));
        self.replan();
        at
    }

    /// Forgets its plans.
    pub fn replan(&mut self) {
        self.near.epoch = 0;
        self.ranked.clear();
    }

    /// The plan for an order, or by distance; made where there is none that holds.
    pub fn plan(&mut self, order: Option<&SiteOrder>, ground: &Ground<'_>) -> PlanId {
        let Some(order) = order else {
            if self.near.epoch != ground.epoch {
                let step = |seat: &Seat| (ground.near)(seat.node);
                self.near = Plan::make(ground.epoch, &self.seats, step);
            }
            return PlanId::Near;
        };
        let known = self.ranked.iter().position(|(key, _)| *key == order.key());
        if let Some(at) = known
            && self.ranked[at].1.epoch == ground.epoch
        {
            return PlanId::Ranked(at);
        }
        let step = |seat: &Seat| (ground.ranked)(seat.node, order);
        let plan = (order.key(), Plan::make(ground.epoch, &self.seats, step));
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

    /// A plan that [`View::plan`] has just named.
    pub fn planned(&self, id: PlanId) -> &Plan {
        match id {
            PlanId::Near => &self.near,
            PlanId::Ranked(at) => &self.ranked[at].1,
        }
    }

    pub fn bytes(&self) -> usize {
        let ranked: usize = self.ranked.iter().map(|(_, plan)| plan.bytes()).sum();
        self.id.as_str().len()
            + self.seats.capacity() * size_of::<Seat>()
            + self.near.bytes()
            + ranked
            + self.ranked.capacity() * size_of::<(u64, Plan)>()
    }
}

/// Which of a model's plans.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlanId {
    Near,
    Ranked(usize),
}
