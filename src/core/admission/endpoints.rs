//! The endpoints of one model: their limits, their use, and the choice of the next one.
//!
//! Independent of requests; health is reported by the shell. Choice goes by tier, then least in
//! flight: among all open endpoints of the tier when they are few, else the better of two random ones.
//! Two choices are nearly as even, and do not grow with the number of endpoints
//! (<https://www.eecs.harvard.edu/~michaelm/postscripts/tpds2001.pdf>). An endpoint is open when
//! configured, usable and below its limit. Open ones are kept in a list per tier, so that full and
//! unhealthy ones cost nothing. For endpoints that share their server's permits with other models
//! ([`server`](super::server)) the open list holds only the view of this model. The free permits of the
//! server are looked up there.

use std::sync::Arc;

use super::endpoint_id::EndpointId;
use super::order::EndpointOrder;
use super::server::{Handoff, ServerMember, ServerMembership};
use super::state::EndpointState;
use crate::model::{EndpointSpec, is_slot};

/// Open endpoints of a tier up to which all are compared.
const COMPARED_MAX: usize = 8;

/// Choices that may be lost to other models in a row before a request waits as if no permit was free.
/// Each loss is a permit that another model took during this call.
const CHOICES_MAX: usize = 8;

struct Endpoint {
    url: Arc<str>,
    limit: u32,
    used: u32,
    usable: bool,
    draining: bool,
    /// Index into `tiers`.
    tier: usize,
    /// Index into the tier's open list, while it is there.
    open_at: Option<usize>,
    /// Share in the permits of its server; none where its limit is its own.
    member: Option<ServerMember>,
    /// The server counts it among the members with waiters.
    is_awaited: bool,
}

impl Endpoint {
    /// Returns whether the endpoint may take a request, as far as this model knows; a shared server may be full.
    fn is_fit(&self) -> bool {
        let is_within = self.member.is_some() || self.used < self.limit;
        self.usable && !self.draining && is_within
    }

    /// Returns whether its server has a permit left.
    fn has_room(&self) -> bool {
        self.member.as_ref().is_none_or(ServerMember::has_room)
    }
}

/// Endpoints of equal priority.
struct EndpointTier {
    priority: u32,
    open: Vec<EndpointId>,
}

/// Sums over the endpoints, kept so that reads are O(1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointTotals {
    /// Permits in use, at draining endpoints too.
    pub used: u32,
    /// Permits of configured endpoints.
    pub limit: u32,
    /// Permits of configured endpoints that are usable.
    pub usable_limit: u32,
    /// Configured endpoints.
    pub configured: u32,
    /// Configured endpoints that are usable.
    pub usable: u32,
}

/// Table of the endpoints.
#[derive(Default)]
pub(super) struct Endpoints {
    slots: Vec<Option<Endpoint>>,
    /// Lowest number first.
    tiers: Vec<EndpointTier>,
    totals: EndpointTotals,
}

impl Endpoints {
    pub fn totals(&self) -> EndpointTotals {
        self.totals
    }

    /// Returns the endpoint with `url`, configured or draining.
    pub fn find(&self, url: &str) -> Option<EndpointId> {
        let found = |slot: &Option<Endpoint>| slot.as_ref().is_some_and(|e| &*e.url == url);
        self.slots
            .iter()
            .position(found)
            .map(|index| EndpointId(index as u32))
    }

    /// Returns whether any permit may be taken.
    pub fn has_open(&self) -> bool {
        let mut open = self.tiers.iter().flat_map(|tier| &tier.open);
        open.any(|&id| self.has_room(id))
    }

    /// Returns the endpoint for the next request; `None` when every permit is in use.
    pub fn choose(&self, avoid: &[EndpointId], random: u64) -> Option<EndpointId> {
        let preferred = self
            .tiers
            .iter()
            .find_map(|tier| self.least_used(tier, avoid, random));
        match preferred {
            None if !avoid.is_empty() => self
                .tiers
                .iter()
                .find_map(|tier| self.least_used(tier, &[], random)),
            _ => preferred,
        }
    }

    /// Returns the endpoint for the next request by `order`; `None` when each of its endpoints is closed or
    /// avoided, and the tiers decide. Within a step the least used of all, or of two random ones.
    pub fn choose_in_order(
        &self,
        order: &EndpointOrder,
        avoid: &[EndpointId],
        random: u64,
    ) -> Option<EndpointId> {
        let (low, high) = (random & u64::from(u32::MAX), random >> 32);
        order.steps().find_map(|step| {
            let fit = |id: &EndpointId| self.is_open(*id) && !avoid.contains(id);
            let first = draw(low, step.len());
            if step.len() > COMPARED_MAX {
                let second = (first + 1 + draw(high, step.len() - 1)) % step.len();
                let drawn = [step[first].1, step[second].1].into_iter().filter(fit);
                let better = drawn.min_by_key(|&id| self.used(id));
                if better.is_some() {
                    return better;
                }
            }
            let all = step[first..]
                .iter()
                .chain(&step[..first])
                .map(|&(_, id)| id);
            all.filter(fit).min_by_key(|&id| self.used(id))
        })
    }

    fn is_open(&self, id: EndpointId) -> bool {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        slot.is_some_and(|endpoint| endpoint.open_at.is_some() && endpoint.has_room())
    }

    fn has_room(&self, id: EndpointId) -> bool {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        slot.is_some_and(Endpoint::has_room)
    }

    fn least_used(
        &self,
        tier: &EndpointTier,
        avoid: &[EndpointId],
        random: u64,
    ) -> Option<EndpointId> {
        let open = &tier.open[..];
        let fit = |id: &EndpointId| !avoid.contains(id) && self.has_room(*id);
        let (low, high) = (random & u64::from(u32::MAX), random >> 32);
        let first = draw(low, open.len());
        if open.len() > COMPARED_MAX {
            let second = (first + 1 + draw(high, open.len() - 1)) % open.len();
            let drawn = [open[first], open[second]].into_iter();
            let better = drawn.filter(fit).min_by_key(|&id| self.used(id));
            if better.is_some() {
                return better;
            }
        }
        // Beginning anywhere, so that equals take turns.
        let all = open[first..].iter().chain(&open[..first]).copied();
        all.filter(fit).min_by_key(|&id| self.used(id))
    }

    /// Takes a permit for the next request; `None` when every permit is in use. Chooses again when another
    /// model takes the server's last permit meanwhile.
    pub fn take_one(
        &mut self,
        order: Option<&EndpointOrder>,
        avoid: &[EndpointId],
        random: u64,
    ) -> Option<EndpointId> {
        for _ in 0..CHOICES_MAX {
            let ordered = order.and_then(|order| self.choose_in_order(order, avoid, random));
            let id = ordered.or_else(|| self.choose(avoid, random))?;
            if self.take(id) {
                return Some(id);
            }
        }
        None
    }

    /// Takes a permit of the endpoint that [`Endpoints::choose`] returned. Returns false when another model
    /// took the server's last one in between.
    pub fn take(&mut self, id: EndpointId) -> bool {
        let member = self.endpoint_mut(id).member.as_mut();
        let taken = member.is_none_or(ServerMember::take);
        if taken {
            self.count_taken(id);
        }
        taken
    }

    /// Takes the permit that was handed to an endpoint here.
    ///
    /// # Errors
    /// No endpoint can use it: the handoff, to be passed on.
    pub fn take_handoff(&mut self, handoff: Handoff) -> Result<EndpointId, Handoff> {
        let mut slots = self.slots.iter_mut().enumerate();
        let meant = slots.find_map(|(index, slot)| {
            let endpoint = slot.as_mut().filter(|endpoint| endpoint.is_fit())?;
            let member = endpoint.member.as_mut()?;
            member
                .is_target_of(&handoff)
                .then_some((EndpointId(index as u32), member))
        });
        let Some((id, member)) = meant else {
            return Err(handoff);
        };
        member.accept(handoff);
        self.count_taken(id);
        Ok(id)
    }

    fn count_taken(&mut self, id: EndpointId) {
        let endpoint = self.endpoint_mut(id);
        endpoint.used += 1;
        let full = endpoint.used >= endpoint.limit;
        self.totals.used += 1;
        if full {
            self.update_open_list(id);
        }
    }

    /// Releases a permit; a draining endpoint is removed with its last one. Returns the permit as a handoff
    /// where requests of any model wait for the server.
    pub fn release(&mut self, id: EndpointId) -> Option<Handoff> {
        let endpoint = self.endpoint_mut(id);
        endpoint.used -= 1;
        let handoff = endpoint.member.as_mut().and_then(ServerMember::release);
        let forgotten = endpoint.draining && endpoint.used == 0;
        let closed = endpoint.open_at.is_none();
        self.totals.used -= 1;
        if forgotten {
            self.slots[id.index()] = None;
        } else if closed {
            self.update_open_list(id);
        }
        handoff
    }

    /// Notifies the servers whether requests wait here, and with which weight. Takes the permit of a
    /// server that has one and returns the endpoint: to be called again then. With `again` servers that were
    /// notified before are included.
    pub fn announce(&mut self, waiting: Option<u64>, again: bool) -> Option<EndpointId> {
        for index in 0..self.slots.len() {
            let Some(endpoint) = &mut self.slots[index] else {
                continue;
            };
            let fit = endpoint.is_fit();
            let Some(member) = &mut endpoint.member else {
                continue;
            };
            match waiting.filter(|_| fit) {
                Some(weight) if again || !endpoint.is_awaited => {
                    endpoint.is_awaited = true;
                    member.set_waiting(weight);
                    if member.take() {
                        let id = EndpointId(index as u32);
                        self.count_taken(id);
                        return Some(id);
                    }
                }
                None if endpoint.is_awaited => {
                    endpoint.is_awaited = false;
                    member.set_idle();
                }
                _ => {}
            }
        }
        None
    }

    /// Updates the weight of the waiters for `id`.
    pub fn set_weight(&self, id: EndpointId, weight: u64) {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        let endpoint = slot.filter(|endpoint| endpoint.is_awaited);
        if let Some(member) = endpoint.and_then(|endpoint| endpoint.member.as_ref()) {
            member.set_waiting(weight);
        }
    }

    /// Sets health or ejection. Ignores an endpoint that is not configured.
    pub fn set_usable(&mut self, id: EndpointId, usable: bool) {
        if let Some(Some(endpoint)) = self.slots.get_mut(id.index()) {
            endpoint.usable = usable;
            self.update_open_list(id);
            self.recount();
        }
    }

    /// Applies a new list. Endpoints that stay keep their permits and health; removed ones drain; new ones, and
    /// those added again while they drain, start as usable. Returns permits that became free at servers that
    /// others wait for.
    pub fn configure(
        &mut self,
        specs: &[EndpointSpec],
        servers: &ServerMembership<'_>,
    ) -> Vec<Handoff> {
        let mut handoffs = Vec::new();
        for slot in &mut self.slots {
            if let Some(endpoint) = slot {
                let stays = specs.iter().any(|spec| spec.url == endpoint.url);
                if endpoint.draining && stays {
                    endpoint.usable = !is_slot(&endpoint.url);
                }
                endpoint.draining = !stays;
            }
            slot.take_if(|endpoint| endpoint.draining && endpoint.used == 0);
        }
        let mut priorities: Vec<u32> = specs.iter().map(|spec| spec.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        self.tiers = priorities
            .iter()
            .map(|&priority| EndpointTier {
                priority,
                open: Vec::new(),
            })
            .collect();
        for spec in specs {
            let id = self.configure_one(spec);
            let endpoint = self.endpoint_mut(id);
            let server = (servers.server_of)(spec);
            let stays = match (&endpoint.member, &server) {
                (Some(member), Some(server)) => member.is_member_of(server),
                (None, None) => true,
                _ => false,
            };
            if !stays {
                endpoint.is_awaited = false;
                if let Some(mut former) = endpoint.member.take() {
                    handoffs.extend((0..endpoint.used).filter_map(|_| former.release()));
                }
                endpoint.member = server.map(|server| server.join(servers.gate, endpoint.used));
            }
        }
        for index in 0..self.slots.len() {
            if let Some(endpoint) = &mut self.slots[index] {
                endpoint.open_at = None;
                self.update_open_list(EndpointId(index as u32));
            }
        }
        self.recount();
        handoffs
    }

    fn configure_one(&mut self, spec: &EndpointSpec) -> EndpointId {
        let tier = self
            .tiers
            .partition_point(|tier| tier.priority < spec.priority);
        let limit = spec.max_concurrent_requests;
        if let Some(id) = self.find(&spec.url) {
            let endpoint = self.endpoint_mut(id);
            endpoint.limit = limit;
            endpoint.tier = tier;
            return id;
        }
        let endpoint = Endpoint {
            url: spec.url.clone(),
            limit,
            used: 0,
            // The owner of a slot says when it is ready.
            usable: !is_slot(&spec.url),
            draining: false,
            tier,
            open_at: None,
            member: None,
            is_awaited: false,
        };
        let vacant = self.slots.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[index] = Some(endpoint);
        EndpointId(index as u32)
    }

    /// Puts `id` on its tier's open list or removes it, according to its state.
    fn update_open_list(&mut self, id: EndpointId) {
        let endpoint = self.slots[id.index()].as_mut();
        let endpoint = endpoint.expect("endpoint exists: a permit or the configuration names it");
        let is_open = endpoint.is_fit();
        match endpoint.open_at {
            None if is_open => {
                let open = &mut self.tiers[endpoint.tier].open;
                endpoint.open_at = Some(open.len());
                open.push(id);
            }
            Some(at) if !is_open => {
                endpoint.open_at = None;
                let open = &mut self.tiers[endpoint.tier].open;
                open.swap_remove(at);
                if let Some(&moved) = open.get(at) {
                    self.endpoint_mut(moved).open_at = Some(at);
                }
            }
            _ => {}
        }
    }

    fn recount(&mut self) {
        let mut totals = EndpointTotals {
            used: self.totals.used,
            ..EndpointTotals::default()
        };
        for endpoint in self
            .slots
            .iter()
            .flatten()
            .filter(|endpoint| !endpoint.draining)
        {
            totals.configured += 1;
            totals.limit = totals.limit.saturating_add(endpoint.limit);
            if endpoint.usable {
                totals.usable += 1;
                totals.usable_limit = totals.usable_limit.saturating_add(endpoint.limit);
            }
        }
        self.totals = totals;
    }

    /// Permits used, by other models at its server too, and allowed at an endpoint that is
    /// configured.
    pub fn permits(&self, id: EndpointId) -> Option<(u32, u32)> {
        let endpoint = self.slots.get(id.index())?.as_ref()?;
        (!endpoint.draining).then_some((self.used(id), endpoint.limit))
    }

    /// Permits of this model in use at an endpoint.
    pub fn own_used(&self, id: EndpointId) -> u32 {
        let endpoint = self.slots.get(id.index()).and_then(Option::as_ref);
        endpoint.map_or(0, |endpoint| endpoint.used)
    }

    fn used(&self, id: EndpointId) -> u32 {
        self.slots[id.index()].as_ref().map_or(0, |endpoint| {
            let member = endpoint.member.as_ref();
            member.map_or(endpoint.used, ServerMember::server_used)
        })
    }

    fn endpoint_mut(&mut self, id: EndpointId) -> &mut Endpoint {
        let endpoint = self.slots[id.index()].as_mut();
        endpoint.expect("endpoint exists: a permit or the configuration names it")
    }

    /// Every endpoint, draining ones included.
    pub fn state(&self) -> Vec<EndpointState> {
        let slots = self.slots.iter().enumerate();
        let state = |(index, slot): (usize, &Option<Endpoint>)| {
            let endpoint = slot.as_ref()?;
            Some(EndpointState {
                id: EndpointId(index as u32),
                url: endpoint.url.clone(),
                used: endpoint.used,
                server_used: self.used(EndpointId(index as u32)),
                limit: endpoint.limit,
                usable: endpoint.usable,
                draining: endpoint.draining,
            })
        };
        slots.filter_map(state).collect()
    }

    /// Asserts that open lists, totals and endpoints agree.
    pub fn check(&self) {
        let mut used = 0;
        let mut open = 0;
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(endpoint) = slot else { continue };
            used += endpoint.used;
            let is_open = endpoint.is_fit();
            assert_eq!(
                endpoint.open_at.is_some(),
                is_open,
                "open exactly while a permit is free"
            );
            if let Some(at) = endpoint.open_at {
                let filed = self.tiers[endpoint.tier].open.get(at);
                assert_eq!(
                    filed,
                    Some(&EndpointId(index as u32)),
                    "open list names the endpoint"
                );
                open += 1;
            }
            assert!(
                !endpoint.draining || endpoint.used > 0,
                "a drained endpoint is forgotten"
            );
        }
        assert_eq!(
            used, self.totals.used,
            "used permits are the sum over endpoints"
        );
        let listed: usize = self.tiers.iter().map(|tier| tier.open.len()).sum();
        assert_eq!(open, listed, "open lists name nobody else");
    }
}

/// Returns a number of `0..count` from 32 random bits (<https://arxiv.org/abs/1805.10941>). Without the
/// rejection step the bias is below one in ten million for a thousand endpoints.
fn draw(bits: u64, count: usize) -> usize {
    ((bits * count as u64) >> 32) as usize
}

#[cfg(test)]
mod tests;
