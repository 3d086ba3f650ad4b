//! Victims: which residents leave so that a model fits, and what that costs.
//!
//! Not the choice among models that wait, nor where memory suffices, which `fit.rs` says. Costs are request-seconds:
//! the waits of requests that a victim would have served until it is loaded again.

mod growth;
mod sums;

use std::cmp::Ordering;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use sums::{BestFigures, Summary};

use super::contender::{ColdModel, Resident};
use super::fit::{DeviceRoom, DeviceShare, Placement, PlacementRequest, place};
use crate::Millis;

/// Greatest exponent of two by which a turn is longer against a less urgent model.
const TURN_DOUBLINGS_MAX: u8 = 3;

/// Policy by which residents leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapPolicy {
    /// Turns in units of load time, and waits against what an eviction costs.
    Turns,
    /// Idle residents only: the least urgent first, then the least recently used. Kept to compare with.
    Lru,
}

impl SwapPolicy {
    /// Returns the name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            SwapPolicy::Turns => "turns",
            SwapPolicy::Lru => "lru",
        }
    }
}

/// Reason why a model with debt is not loaded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// No device takes a load now: each loads, is reserved or closed.
    NoDevice,
    /// The devices that take a load now could not hold it if they were empty.
    DoesNotFit,
    /// Residents that are never victims hold the memory.
    Protected,
    /// Residents are busy, and their turn is not over or the model has not waited as long.
    TurnNotOver,
    /// The debt is below what the eviction costs.
    DebtBelowCost,
    /// Another model was chosen in this decision.
    OtherFirst,
}

impl WaitReason {
    /// Returns the name in `/gpu`.
    pub const fn name(self) -> &'static str {
        match self {
            WaitReason::NoDevice => "no_device",
            WaitReason::DoesNotFit => "does_not_fit",
            WaitReason::Protected => "protected",
            WaitReason::TurnNotOver => "turn_not_over",
            WaitReason::DebtBelowCost => "debt_below_cost",
            WaitReason::OtherFirst => "other_first",
        }
    }
}

/// Residents that leave, and the memory that the model then has.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Eviction {
    /// Places in the list of residents, ascending.
    pub victims: Vec<usize>,
    /// Memory of the model once they are gone.
    pub shares: Vec<DeviceShare>,
    /// Cost of all.
    pub cost: f64,
    /// A victim leaves because its turn is over.
    pub ends_turn: bool,
}

/// Limits of evictions.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionLimits {
    pub policy: SwapPolicy,
    /// Turn in units of both load times.
    pub turn: u32,
    /// Time from ready on in which a resident is no victim.
    pub min_warm: Millis,
}

/// A resident on one device that is not protected.
#[derive(Clone, Copy, Debug)]
struct Place {
    room: usize,
    resident: usize,
    mib: u64,
    /// Order in which residents leave, the lowest first: arrivals per MiB, or the inverse of urgency.
    rank: f64,
    last_used: Millis,
}

impl Place {
    fn order(&self, other: &Place) -> Ordering {
        let by_rank = self.rank.total_cmp(&other.rank);
        let by_use = self.last_used.cmp(&other.last_used);
        let by_place = self.resident.cmp(&other.resident);
        by_rank.then(by_use).then(by_place)
    }
}

/// A resident that may leave for one model.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    place: Place,
    cost: f64,
    ends_turn: bool,
}

impl Candidate {
    fn order(&self, other: &Candidate) -> Ordering {
        self.place.order(&other.place)
    }

    /// Orders the dearest first; among equals the one that would leave last.
    fn dearest(&self, other: &Candidate) -> Ordering {
        let by_cost = other.cost.total_cmp(&self.cost);
        by_cost.then_with(|| other.order(self))
    }
}

/// Terms of the model that is searched for, whatever the residents.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    waited: Millis,
    load: Millis,
    /// The same in seconds: a division for each device would be most of a search.
    load_secs: f64,
    cost_max: f64,
}

/// Terms on which residents leave for one model.
struct SearchTerms {
    places: Range<usize>,
    /// Request-seconds that an eviction costs for each arrival per second.
    cost_of_rate: f64,
    waited: Millis,
    /// Least load time of residents that are not protected, which makes the shortest turn.
    load_min: Millis,
    /// The model has waited as long as the shortest turn.
    may_end_turn: bool,
}

/// Evictions that are possible at one moment.
pub(super) struct Evictions<'a> {
    limits: EvictionLimits,
    residents: &'a [Resident<'a>],
    rooms: &'a [DeviceRoom],
    now: Millis,
    places: Vec<Place>,
    /// Turn of each resident against models that come before those which are searched for now.
    reserved: Vec<Millis>,
    of_room: Vec<Summary>,
    of_all: Summary,
    best: BestFigures,
    asked: Asked,
    /// Memory for one search, kept for the next.
    candidates: Vec<Candidate>,
}

impl<'a> Evictions<'a> {
    pub fn new(
        limits: EvictionLimits,
        residents: &'a [Resident<'a>],
        rooms: &'a [DeviceRoom],
        now: Millis,
    ) -> Evictions<'a> {
        let mut evictions = Evictions {
            limits,
            residents,
            rooms,
            now,
            places: Vec::with_capacity(residents.len()),
            reserved: Vec::new(),
            of_room: rooms.iter().map(Summary::of).collect(),
            of_all: Summary::NONE,
            best: BestFigures::NONE,
            asked: Asked::default(),
            candidates: Vec::with_capacity(residents.len()),
        };
        for (nth, resident) in residents.iter().enumerate() {
            evictions.add(nth, resident);
        }
        evictions
            .places
            .sort_unstable_by(|a, b| a.room.cmp(&b.room).then_with(|| a.order(b)));
        let mut start = 0;
        for (room, summary) in evictions.of_room.iter_mut().enumerate() {
            let behind = evictions.places.partition_point(|place| place.room <= room);
            summary.places = start..behind;
            summary.cost_of_rate_min = summary.cost_of_rate(0.0);
            evictions.best.add(summary);
            start = behind;
        }
        evictions.of_all.cost_of_rate_min = evictions.of_all.cost_of_rate(0.0);
        evictions.of_all.places = 0..start;
        evictions
    }

    fn add(&mut self, nth: usize, resident: &Resident<'_>) {
        let warm_for = self.now.since(resident.ready_since);
        let is_protected = resident.protection.is_some() || warm_for < self.limits.min_warm;
        let mut is_there = false;
        let in_all_mib: u64 = resident.shares.iter().map(|share| share.mib).sum();
        for share in resident.shares.iter() {
            let ids = self.rooms.iter().map(|room| &room.id);
            let Some(room) = share.device.place_in(ids) else {
                continue;
            };
            is_there = true;
            let summary = &mut self.of_room[room];
            summary.count += 1;
            summary.load_secs += secs(resident.load);
            let place = Place {
                room,
                resident: nth,
                mib: share.mib,
                rank: match self.limits.policy {
                    SwapPolicy::Turns => resident.arrivals_per_sec / share.mib.max(1) as f64,
                    SwapPolicy::Lru => -f64::from(resident.priority),
                },
                last_used: resident.last_used,
            };
            if !is_protected {
                summary.add(&place, resident);
                // One end frees all shares, so that a MiB of all costs less than one of a share.
                let part = share.mib as f64 / in_all_mib.max(1) as f64;
                let of_all = Place {
                    rank: place.rank * part,
                    ..place
                };
                self.of_all.add(&of_all, resident);
                self.places.push(place);
            }
        }
        if is_there {
            self.of_all.count += 1;
            self.of_all.load_secs += secs(resident.load);
        }
    }

    /// Returns the cheapest eviction after which a model fits: on one device, else over several.
    ///
    /// # Errors
    /// No eviction, or none that costs at most `cost_max`.
    pub fn cheapest(&mut self, model: &ColdModel, cost_max: f64) -> Result<Eviction, WaitReason> {
        self.asked = Asked {
            waited: self.now.since(model.unserved_since),
            load: model.load,
            load_secs: secs(model.load),
            cost_max,
        };
        if !model.growth.is_empty() {
            return self.for_growth(model, cost_max);
        }
        let mut best: Option<(f64, usize, u64, usize)> = None;
        let mut reason = WaitReason::NoDevice;
        let is_dear_everywhere = self.is_dear_everywhere(&model.placement);
        debug_assert!(!is_dear_everywhere || self.is_dear_in_each(&model.placement));
        if is_dear_everywhere {
            reason = WaitReason::DebtBelowCost;
        }
        let rooms = if is_dear_everywhere {
            0
        } else {
            self.of_room.len()
        };
        for room in 0..rooms {
            if let Some(other) = self.refusal_in(room, &model.placement) {
                reason = reason.max(other);
                continue;
            }
            match self.choose_in(model, room, cost_max) {
                Ok((cost, left_mib)) => {
                    let victims = self.candidates.len();
                    let is_better = best.is_none_or(|(least, fewest, tightest, _)| {
                        let by_cost = cost.total_cmp(&least);
                        let by_room = (victims, left_mib).cmp(&(fewest, tightest));
                        by_cost.then(by_room).is_lt()
                    });
                    if is_better {
                        best = Some((cost, victims, left_mib, room));
                    }
                }
                Err(other) => reason = reason.max(other),
            }
        }
        if let Some((_, _, _, room)) = best {
            self.choose_in(model, room, cost_max)?;
            return self.eviction(model, room..room + 1);
        }
        if model.placement.can_spread() && !self.rooms.is_empty() {
            return self
                .spread(model, cost_max)
                .map_err(|other| reason.max(other));
        }
        Err(reason)
    }

    /// Reserves the end of turns for a model that waits for it: models behind it, for which turns are shorter, would have the
    /// memory each time before it is due. Turns of more urgent residents are not prolonged.
    pub fn reserve(&mut self, model: &ColdModel) {
        let waited = self.now.since(model.unserved_since);
        self.reserved.resize(self.residents.len(), Millis::ZERO);
        for place in &self.places {
            let resident = &self.residents[place.resident];
            let turn = self.turn(model, resident.load, resident.priority);
            let empty_mib = self.of_room[place.room].empty_mib;
            let is_for_it = model.placement.can_spread() || model.placement.fits_in(empty_mib);
            let is_urgent = resident.priority < model.priority;
            if resident.is_busy && is_for_it && !is_urgent && waited >= turn {
                self.reserved[place.resident] = self.reserved[place.resident].max(turn);
            }
        }
    }

    /// Leaves the victims on one device in `candidates`; returns their cost and the room left over.
    fn choose_in(
        &mut self,
        model: &ColdModel,
        room: usize,
        cost_max: f64,
    ) -> Result<(f64, u64), WaitReason> {
        let placement = &model.placement;
        if let Some(reason) = self.refusal_in(room, placement) {
            return Err(reason);
        }
        let summary = &self.of_room[room];
        let mut free_mib = summary.free_mib;
        let missing_mib = placement.mib.saturating_sub(free_mib);
        let terms = self.terms(summary, missing_mib)?;
        self.collect(model, terms);
        let mut taken = 0;
        while !placement.fits_in(free_mib) {
            let next = self.candidates.get(taken);
            free_mib += next.ok_or(WaitReason::TurnNotOver)?.place.mib;
            taken += 1;
        }
        self.candidates.truncate(taken);
        self.candidates.sort_unstable_by(Candidate::dearest);
        self.candidates.retain(|candidate| {
            let is_superfluous = placement.fits_in(free_mib - candidate.place.mib);
            if is_superfluous {
                free_mib -= candidate.place.mib;
            }
            !is_superfluous
        });
        Ok((self.cost_within(cost_max)?, free_mib - placement.mib))
    }

    /// Chooses victims on all devices for a need that one device does not hold.
    fn spread(&mut self, model: &ColdModel, cost_max: f64) -> Result<Eviction, WaitReason> {
        let placement = &model.placement;
        let need_mib = placement.mib.saturating_mul(u64::from(placement.devices));
        let free_mib: u64 = self.rooms.iter().map(|room| room.free_mib).sum();
        let empty_mib: u64 = self.rooms.iter().map(|room| room.empty_mib).sum();
        if empty_mib < need_mib {
            return Err(WaitReason::DoesNotFit);
        }
        let missing_mib = need_mib.saturating_sub(free_mib);
        let terms = self.terms(&self.of_all, missing_mib)?;
        self.collect(model, terms);
        let mut is_taken = vec![false; self.residents.len()];
        self.candidates
            .retain(|candidate| !std::mem::replace(&mut is_taken[candidate.place.resident], true));
        if !self.fits_without(model, &self.candidates) {
            return Err(match place(placement, self.rooms) {
                Placement::DoesNotFit { .. } => WaitReason::DoesNotFit,
                Placement::NoRoom | Placement::Fits(_) => WaitReason::TurnNotOver,
            });
        }
        // The fewest of the cheapest that suffice: more of them never fit worse.
        let (mut too_few, mut enough) = (0, self.candidates.len());
        while too_few + 1 < enough {
            let middle = usize::midpoint(too_few, enough);
            if self.fits_without(model, &self.candidates[..middle]) {
                enough = middle;
            } else {
                too_few = middle;
            }
        }
        self.candidates.truncate(enough);
        self.candidates.sort_unstable_by(Candidate::dearest);
        let mut nth = 0;
        while nth < self.candidates.len() {
            let candidate = self.candidates.remove(nth);
            if !self.fits_without(model, &self.candidates) {
                self.candidates.insert(nth, candidate);
                nth += 1;
            }
        }
        self.cost_within(cost_max)?;
        self.eviction(model, 0..self.rooms.len())
    }

    /// Returns whether the search on each device finds nothing, and on one of them for its cost. Most searches end here.
    fn is_dear_everywhere(&self, placement: &PlacementRequest) -> bool {
        let best = &self.best;
        let missing_mib = placement.mib.saturating_sub(best.free_mib);
        placement.fits_in(best.idle_room_mib)
            && !self.may_end_turn(best.load_min)
            && self.is_too_dear(missing_mib, best.rank_min, best.cost_of_rate_min)
    }

    /// Returns the same by a look at each device.
    fn is_dear_in_each(&self, placement: &PlacementRequest) -> bool {
        let rooms = 0..self.of_room.len();
        let reasons = rooms.map(|room| self.refusal_in(room, placement));
        let reasons: Option<Vec<WaitReason>> = reasons.collect();
        reasons.and_then(|them| them.into_iter().max()) == Some(WaitReason::DebtBelowCost)
    }

    /// Returns why a search on one device finds nothing, where the sums show that.
    #[inline]
    fn refusal_in(&self, room: usize, placement: &PlacementRequest) -> Option<WaitReason> {
        let summary = &self.of_room[room];
        if !placement.fits_in(summary.empty_mib) {
            return Some(WaitReason::DoesNotFit);
        }
        let missing_mib = placement.mib.saturating_sub(summary.free_mib);
        self.refusal(summary, missing_mib)
    }

    /// Returns why a search finds nothing, where the sums and the least cost show that.
    #[inline]
    fn refusal(&self, summary: &Summary, missing_mib: u64) -> Option<WaitReason> {
        if summary.idle_mib + summary.busy_mib < missing_mib {
            return Some(WaitReason::Protected);
        }
        if self.may_end_turn(summary.load_min) {
            return None;
        }
        if summary.idle_mib < missing_mib {
            return Some(WaitReason::TurnNotOver);
        }
        self.is_too_dear(missing_mib, summary.rank_min, summary.cost_of_rate_min)
            .then_some(WaitReason::DebtBelowCost)
    }

    /// Returns whether the model has waited as long as the shortest turn.
    #[inline]
    fn may_end_turn(&self, load_min: Millis) -> bool {
        let loads = (self.asked.load + load_min).0;
        let turn = Millis(loads.saturating_mul(u64::from(self.limits.turn)));
        self.limits.policy == SwapPolicy::Turns && self.asked.waited >= turn
    }

    /// Returns whether memory of idle residents costs too much, each MiB of which has so many arrivals per second at least.
    #[inline]
    fn is_too_dear(&self, missing_mib: u64, rank_min: f64, cost_of_rate: f64) -> bool {
        missing_mib as f64 * rank_min * cost_of_rate > self.asked.cost_max
    }

    /// Returns the terms of a search, unless the sums show that it finds nothing.
    fn terms(&self, summary: &Summary, missing_mib: u64) -> Result<SearchTerms, WaitReason> {
        if let Some(reason) = self.refusal(summary, missing_mib) {
            return Err(reason);
        }
        let may_end_turn = self.may_end_turn(summary.load_min);
        let cost_of_rate = summary.cost_of_rate(self.asked.load_secs);
        if !may_end_turn && self.is_too_dear(missing_mib, summary.rank_min, cost_of_rate) {
            return Err(WaitReason::DebtBelowCost);
        }
        Ok(SearchTerms {
            places: summary.places.clone(),
            cost_of_rate,
            waited: self.asked.waited,
            load_min: summary.load_min,
            may_end_turn,
        })
    }

    /// Leaves all that may leave for a model in `candidates`, in their order.
    fn collect(&mut self, model: &ColdModel, terms: SearchTerms) {
        self.candidates.clear();
        for at in terms.places {
            let mut place = self.places[at];
            let resident = &self.residents[place.resident];
            // Idle ones have one turn in common: with turns of their own, the one that loads fastest would go first,
            // however long others have not been used.
            let (load, priority) = match resident.is_busy {
                true => (resident.load, resident.priority),
                false => (terms.load_min, u8::MAX),
            };
            let turn = self.turn(model, load, priority);
            let ready_for = self.now.since(resident.ready_since);
            let is_spared = model.spares_urgent && priority < model.priority;
            let is_over = terms.waited >= turn && ready_for >= turn;
            let reserved = self.reserved.get(place.resident);
            let is_over = is_over && reserved.is_none_or(|turn| ready_for >= *turn);
            let ends_turn = terms.may_end_turn && is_over && !is_spared;
            if ends_turn {
                place.rank = 0.0;
            }
            if ends_turn || !resident.is_busy {
                let is_free = ends_turn || self.limits.policy == SwapPolicy::Lru;
                let rate = if is_free {
                    0.0
                } else {
                    resident.arrivals_per_sec
                };
                self.candidates.push(Candidate {
                    place,
                    cost: rate * terms.cost_of_rate,
                    ends_turn,
                });
            }
        }
        self.candidates.sort_unstable_by(Candidate::order);
    }

    fn cost_within(&self, cost_max: f64) -> Result<f64, WaitReason> {
        let cost = self.candidates.iter().map(|victim| victim.cost).sum();
        if cost > cost_max {
            return Err(WaitReason::DebtBelowCost);
        }
        Ok(cost)
    }

    /// Returns the eviction of `candidates` for a model that is then placed on some of the rooms.
    fn eviction(&self, model: &ColdModel, rooms: Range<usize>) -> Result<Eviction, WaitReason> {
        let rooms = &self.rooms_without(&self.candidates)[rooms];
        let Placement::Fits(shares) = place(&model.placement, rooms) else {
            return Err(WaitReason::DoesNotFit);
        };
        Ok(self.eviction_with(shares))
    }

    fn eviction_with(&self, shares: Vec<DeviceShare>) -> Eviction {
        let victims = self.candidates.iter();
        let mut victims: Vec<usize> = victims.map(|victim| victim.place.resident).collect();
        victims.sort_unstable();
        Eviction {
            victims,
            shares,
            cost: self.candidates.iter().map(|victim| victim.cost).sum(),
            ends_turn: self.candidates.iter().any(|victim| victim.ends_turn),
        }
    }

    fn fits_without(&self, model: &ColdModel, victims: &[Candidate]) -> bool {
        let rooms = self.rooms_without(victims);
        model.placement.may_fit(&rooms)
            && matches!(place(&model.placement, &rooms), Placement::Fits(_))
    }

    fn rooms_without(&self, victims: &[Candidate]) -> Vec<DeviceRoom> {
        let mut rooms = self.rooms.to_vec();
        for Candidate { place, .. } in victims {
            if self.residents[place.resident].shares.len() == 1 {
                rooms[place.room].free_mib += place.mib;
                continue;
            }
            let places = self.places.iter();
            for all in places.filter(|other| other.resident == place.resident) {
                rooms[all.room].free_mib += all.mib;
            }
        }
        rooms
    }

    /// Time that a resident may serve while a model waits: longer, the less urgent that model is.
    fn turn(&self, model: &ColdModel, load: Millis, priority: u8) -> Millis {
        let doublings = model.priority.saturating_sub(priority);
        let factor = u64::from(self.limits.turn) << doublings.min(TURN_DOUBLINGS_MAX);
        Millis((model.load + load).0.saturating_mul(factor))
    }
}

fn secs(span: Millis) -> f64 {
    span.0 as f64 / 1000.0
}
