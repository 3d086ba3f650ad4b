//! Selection of the node to forward a request to.
//!
//! Records nothing: a forward counts from [`Fleet::sent`] on. A node is eligible when it is
//! reachable, when it has the needed capacity, and when this node's share of that is not used up.
//! The selection draws two eligible nodes of a tier at random and takes the better one; a tier
//! without an eligible node is skipped.

use std::sync::Arc;

use super::super::policy::Dice;
use super::node::Node;
use super::order::SiteOrder;
use super::plan::View;
use super::report::NodeId;
use super::rule::WHOLE;
use super::seat::Seat;
use super::views::NotAsked;
use super::world::{Fleet, NODES_MAX};
use crate::Millis;

/// Capacity that a request needs on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// A permit that is free now.
    Permit,
    /// A place in a queue with a permit in sight, for a request that can queue nowhere here.
    Line {
        /// Longest acceptable wait.
        wait_max: Millis,
        /// Also nodes whose own clients wait, for a request without a queue here. Otherwise moving
        /// from a full queue to one that fills up anyway helps no request.
        crowded: bool,
    },
}

/// Query for a node to forward a request to.
#[derive(Clone, Copy, Debug)]
pub struct Seek<'a> {
    /// Model of the request.
    pub model: &'a str,
    /// Visited nodes; none of them is tried again.
    pub visited: &'a [Arc<str>],
    /// Only nodes of this site, for requests that are to be served there or not at all.
    pub forced_site: Option<&'a str>,
    /// Site order of a policy; without one, this site comes first and the others follow by round
    /// trip.
    pub sites: Option<&'a SiteOrder>,
    /// Needed capacity.
    pub wants: Wants,
}

/// Node to forward a request to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
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
    pub only: bool,
    pub(super) place: Place,
}

/// Key of a model at a node, valid while both exist in the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub slot: u16,
    pub node_birth: u32,
    pub model: u32,
    pub model_birth: u32,
}

/// Slots of nodes.
#[derive(Default)]
pub(super) struct Slots([u64; NODES_MAX / 64]);

impl Slots {
    fn add(&mut self, slot: u16) {
        self.0[usize::from(slot) / 64] |= 1 << (slot % 64);
    }

    fn has(&self, slot: u16) -> bool {
        self.0[usize::from(slot) / 64] & (1 << (slot % 64)) != 0
    }
}

/// A query resolved to indices once.
pub(super) struct Search<'a> {
    visited: Slots,
    forced_site: Option<&'a str>,
    wants: Wants,
    now: Millis,
}

impl Fleet {
    /// Returns the node to forward to now, if there is one. Capacity there is not reserved: the
    /// node may refuse.
    pub fn next(&mut self, seek: &Seek<'_>, chance: u64, now: Millis) -> Option<Chosen> {
        let model = *self.by_model.get(seek.model)?;
        let plan = self.plan(model, seek.sites);
        let search = self.search(seek, now);
        let view = &self.views[model as usize];
        let mut dice = Dice::new(chance);
        let pick = |tier: &[u16], dice: &mut Dice| self.pick(view, tier, &search, dice);
        let mut tiers = view.planned(plan).tiers();
        let found = tiers.find_map(|tier| pick(tier, &mut dice));
        let others = tiers
            .any(|tier| found.is_some_and(|(_, only)| only) && pick(tier, &mut dice).is_some());
        drop(tiers);
        let Some((seat, only)) = found else {
            self.views[model as usize].denied = true;
            return None;
        };
        let only = only && !others;
        let chosen = self.chosen(model, &view.seats[usize::from(seat)])?;
        Some(Chosen { only, ..chosen })
    }

    /// Returns whether to stay in the queue here although `there` has a free permit: only while the
    /// expected wait is no longer than a forward takes.
    pub fn worth_waiting_here(&self, expected_wait: Millis, there: &Chosen) -> bool {
        let forward_us = u64::from(there.rtt_us) + u64::from(self.rule.forward_floor_us);
        expected_wait.0.saturating_mul(1000) <= forward_us
    }

    pub(super) fn search<'a>(&self, seek: &Seek<'a>, now: Millis) -> Search<'a> {
        let mut visited = Slots::default();
        for name in seek.visited {
            if let Some(&slot) = self.by_name.get(name) {
                visited.add(slot);
            }
        }
        Search {
            visited,
            forced_site: seek.forced_site,
            wants: seek.wants,
            now,
        }
    }

    /// Returns the better of two random eligible nodes of a tier, and whether it is the only one.
    fn pick(
        &self,
        view: &View,
        tier: &[u16],
        search: &Search<'_>,
        dice: &mut Dice,
    ) -> Option<(u16, bool)> {
        let score = |at: u16| self.fit(view, &view.seats[usize::from(at)], search).ok();
        if tier.len() > 2 {
            let first = dice.below(tier.len() as u64) as usize;
            let second = first + 1 + dice.below(tier.len() as u64 - 1) as usize;
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
                _ => dice.below(fit + 1),
            };
            if let Some(kept) = drawn.get_mut(place as usize) {
                *kept = Some((score, at));
            }
            fit += 1;
        }
        // Among equals chance decides, not the order of the seats.
        if dice.below(2) == 0 {
            drawn.swap(0, 1);
        }
        let better = drawn.into_iter().flatten().max_by_key(|&(score, _)| score);
        better.map(|(_, at)| (at, fit == 1))
    }

    /// Returns the score of a node, higher is better, or the reason to skip it.
    pub(super) fn fit(
        &self,
        view: &View,
        seat: &Seat,
        search: &Search<'_>,
    ) -> Result<u64, NotAsked> {
        let now = search.now;
        let node = self.nodes[usize::from(seat.node)].as_ref();
        let node = node.ok_or(NotAsked::Gone)?;
        let trust = self.rule.trust(node.age(now));
        if search.visited.has(seat.node) {
            return Err(NotAsked::Visited);
        }
        self.may_ask(node, trust, search)?;
        if seat.doubt.is_on(now) {
            return Err(NotAsked::Failing);
        }
        if seat.is_full(now) {
            return Err(NotAsked::Full);
        }
        match search.wants {
            Wants::Permit => {
                let free = seat.free();
                if free == 0 {
                    return Err(NotAsked::NoneFree);
                }
                let returned = seat.returned();
                if returned == 0 {
                    self.may_send(view, seat, node, u64::from(free) * trust, now)?;
                }
                Ok(u64::from(free) * trust)
            }
            Wants::Line { wait_max, crowded } => {
                if seat.load.wanting > 0 && !crowded {
                    return Err(NotAsked::Crowded);
                }
                let room = seat.line_room();
                if room == 0 {
                    return Err(NotAsked::NoneFree);
                }
                let wait_us = u64::from(seat.load.wait_ms) * 1000 + u64::from(node.rtt_us);
                if wait_us > wait_max.0.saturating_mul(1000) {
                    return Err(NotAsked::WaitTooLong);
                }
                self.may_send(view, seat, node, u64::from(room) * trust, now)?;
                Ok(u64::MAX - wait_us)
            }
        }
    }

    fn may_ask(&self, node: &Node, trust: u64, search: &Search<'_>) -> Result<(), NotAsked> {
        if let Some(site) = search.forced_site
            && *self.sites[usize::from(node.site)].name != *site
        {
            return Err(NotAsked::OtherSite);
        }
        if node.draining {
            return Err(NotAsked::Draining);
        }
        if node.gone {
            return Err(NotAsked::Gone);
        }
        if !self.counts(node) {
            return Err(NotAsked::Unproven);
        }
        if trust == 0 {
            return Err(NotAsked::Stale);
        }
        if node.doubt.is_on(search.now) {
            return Err(NotAsked::Doubted);
        }
        Ok(())
    }

    /// Checks that this node's share of `believed` thousandths of the capacity there is not used
    /// up: everything if no other node has unmet demand, else an equal share. The remainder of the
    /// division is assigned at random, so that all shares together match the capacity.
    fn may_send(
        &self,
        view: &View,
        seat: &Seat,
        node: &Node,
        believed: u64,
        now: Millis,
    ) -> Result<(), NotAsked> {
        let span = self.span(now);
        let sent = u64::from(seat.sent_in(span));
        let seekers = u64::from(view.hungry) + 1;
        let divisor = seekers * WHOLE;
        // As it was when the span began: what was sent since is not there any more.
        let believed = believed + sent * WHOLE;
        let (whole, rest) = (believed / divisor, believed % divisor);
        if sent < whole {
            return Ok(());
        }
        let ticket = self.seed ^ node.seed.rotate_left(16) ^ view.seed.rotate_left(32) ^ span;
        match sent == whole && rest > 0 && Dice::new(ticket).below(divisor) < rest {
            true => Ok(()),
            false => Err(NotAsked::NotDrawn),
        }
    }

    /// Number of the span for which shares are assigned.
    pub(super) fn span(&self, now: Millis) -> u64 {
        now.0 / self.rule.drawn_every.0.max(1)
    }

    fn chosen(&self, model: u32, seat: &Seat) -> Option<Chosen> {
        let node = self.nodes[usize::from(seat.node)].as_ref()?;
        Some(Chosen {
            node: node.id.clone(),
            address: node.address.clone(),
            site: self.sites[usize::from(node.site)].name.clone(),
            rtt_us: node.rtt_us,
            free: seat.free(),
            wait_ms: seat.load.wait_ms,
            in_flight: seat.in_flight(),
            only: false,
            place: Place {
                slot: seat.node,
                node_birth: node.birth,
                model,
                model_birth: self.views[model as usize].birth,
            },
        })
    }
}
