//! Demand of a model from look to look at its queue: what the pool is given.
//!
//! Not the queue, which tells no change: each look takes the requests that wait, and counts of those that came and of
//! permits. Not the weights of waits either, which `demand.rs` has.

use std::collections::BTreeMap;

use super::demand::{Demand, DemandSettings, DemandWeight, WaiterDemand};
use super::pool::ModelDemand;
use crate::model::KeepLoaded;
use crate::{AccountId, Millis};

/// Time for which the urgency of a request counts.
const PRIORITY_MEMORY: Millis = Millis::from_secs(60);

/// Request that waits, as a look finds it. Ordered by its arrival.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenRequest {
    /// Moment at which it joined.
    pub joined: Millis,
    /// Moment at which it leaves without a permit.
    pub deadline: Millis,
    /// Account that its wait counts for.
    pub account: AccountId,
    /// Weight of its wait.
    pub weight: DemandWeight,
    /// 0 is first, 9 last.
    pub priority: u8,
}

/// Request that was refused because the model cannot be ready in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColdRefusal {
    /// Account that asked.
    pub account: AccountId,
    /// 0 is first, 9 last.
    pub priority: u8,
    /// Moment of the refusal.
    pub at: Millis,
}

/// Permits of requests that keep the model loaded for another time than its own, since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAlive {
    /// Permits of such requests.
    pub grants: u32,
    /// Time of the latest one.
    pub latest: KeepLoaded,
}

/// Findings of a look at the queue of a model: what waits now, and what has happened since the last look.
#[derive(Clone, Debug)]
pub struct DemandLook {
    /// Requests that wait.
    pub waiting: Vec<SeenRequest>,
    /// Refusals.
    pub refused: Vec<ColdRefusal>,
    /// Requests that came, refused ones included.
    pub arrivals: u32,
    /// Permits that were given.
    pub grants: u32,
    /// Most urgent priority of the requests that came.
    pub most_urgent: Option<u8>,
    /// Requests with a permit.
    pub in_flight: u32,
    /// Permits of all slots, loaded or not.
    pub permits: u32,
    /// Something serves the model.
    pub is_usable: bool,
    /// Word of requests on how long the model stays.
    pub kept_alive: Option<KeptAlive>,
    /// Time for which the model stays by its own settings.
    pub own_keep_alive: KeepLoaded,
}

/// Demand of a model from look to look.
#[derive(Debug)]
pub struct DemandMemory {
    demand: Demand,
    /// Requests of the latest look, in order.
    waiting: Vec<(SeenRequest, WaiterDemand)>,
    /// Requests of the load's first round of permits that have none yet.
    first_waiters: u32,
    last_used: Millis,
    /// Latest urgency that was seen, with its moment.
    urgent: Option<(u8, Millis)>,
    /// Time for which the latest requests keep it loaded, in place of its own.
    keep_alive: Option<KeepLoaded>,
}

impl DemandMemory {
    /// Returns the memory of a model that nothing was seen of.
    pub fn new(settings: DemandSettings) -> DemandMemory {
        DemandMemory {
            demand: Demand::new(settings),
            waiting: Vec::new(),
            first_waiters: 0,
            last_used: Millis::ZERO,
            urgent: None,
            keep_alive: None,
        }
    }

    /// Replaces the settings.
    pub fn configure(&mut self, settings: DemandSettings) {
        self.demand.configure(settings);
    }

    /// Takes a look in; returns the demand as of now.
    pub fn take(&mut self, look: DemandLook, now: Millis) -> ModelDemand {
        self.note_keep_alive(&look);
        let permits = look.permits.max(1);
        let is_served = look.grants > 0;
        self.demand.record_arrivals(look.arrivals, now);
        for refusal in &look.refused {
            let weight = DemandWeight::of_priority(refusal.priority);
            let account = &refusal.account;
            self.demand.refuse(account, weight, permits, refusal.at);
        }
        let refused = look.refused.iter().map(|refusal| refusal.priority);
        let waiting = look.waiting.iter().map(|request| request.priority);
        let urgent = refused.chain(waiting).chain(look.most_urgent).min();
        self.replace_waiting(look.waiting, permits, is_served, now);
        if is_served {
            self.demand.record_grant(now);
        }
        let is_usable = look.is_usable;
        if is_usable {
            self.demand.clear_memory();
        }
        self.demand.expire(now);
        let waiters = self.demand.waiters();
        self.first_waiters = match is_usable {
            true => self.first_waiters.saturating_sub(look.grants),
            false => permits,
        };
        self.first_waiters = self.first_waiters.min(waiters);
        if waiters > 0 || look.in_flight > 0 || look.arrivals > 0 {
            self.last_used = now;
        }
        self.note_urgency(urgent, now);
        ModelDemand {
            waiters: waiters.saturating_add(self.demand.remembered()),
            first_waiters: self.first_waiters,
            unserved_since: self.demand.unserved_since(),
            debt: self.demand.debt(now),
            arrivals_per_sec: self.demand.arrivals_per_sec(now),
            in_flight: look.in_flight,
            last_used: self.last_used,
            priority: self.urgent.map(|(priority, _)| priority),
            keep_alive: self.keep_alive,
        }
    }

    /// Takes the requests of a look for those of the former one. Of an account, the oldest round of permits is counted.
    ///
    /// A request that has gone at its deadline is remembered, unless permits were given meanwhile.
    fn replace_waiting(
        &mut self,
        mut seen: Vec<SeenRequest>,
        permits: u32,
        is_served: bool,
        now: Millis,
    ) {
        seen.sort_unstable();
        let former = std::mem::take(&mut self.waiting);
        let mut counted: BTreeMap<AccountId, u32> = BTreeMap::new();
        for request in seen {
            let count = counted.entry(request.account.clone()).or_default();
            let (weight, joined) = (request.weight, request.joined);
            let waiter = self.demand.join(weight, *count, permits, joined);
            *count += u32::from(waiter.is_counted());
            self.waiting.push((request, waiter));
        }
        // The new ones stand before the old ones leave, so that the wait does not begin anew.
        let mut present = self.waiting.iter().map(|(request, _)| request).peekable();
        for (request, waiter) in former {
            while present.next_if(|other| **other < request).is_some() {}
            let is_there = present.next_if(|other| **other == request).is_some();
            match !is_there && !is_served && request.deadline <= now {
                true => self.demand.time_out(waiter, &request.account, permits, now),
                false => self.demand.leave(waiter),
            }
        }
    }

    /// Sets the time of the latest requests; among those between two looks, the longest.
    fn note_keep_alive(&mut self, look: &DemandLook) {
        self.keep_alive = match look.kept_alive {
            Some(kept) if look.grants > kept.grants => Some(kept.latest.max(look.own_keep_alive)),
            Some(kept) => Some(kept.latest),
            None if look.grants > 0 => None,
            None => self.keep_alive,
        };
    }

    fn note_urgency(&mut self, urgent: Option<u8>, now: Millis) {
        let is_recent = |seen: &(u8, Millis)| now.since(seen.1) < PRIORITY_MEMORY;
        let kept = self.urgent.filter(is_recent);
        self.urgent = match (kept, urgent) {
            (Some(kept), Some(urgent)) if kept.0 < urgent => Some(kept),
            (_, Some(urgent)) => Some((urgent, now)),
            (kept, None) => kept,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERMITS: u32 = 4;

    fn secs(count: u64) -> Millis {
        Millis::from_secs(count)
    }

    fn request(account: &str, joined: u64, deadline: u64) -> SeenRequest {
        SeenRequest {
            joined: secs(joined),
            deadline: secs(deadline),
            account: AccountId::from(account),
            weight: DemandWeight::of_priority(5),
            priority: 5,
        }
    }

    fn look(waiting: Vec<SeenRequest>, arrivals: u32, grants: u32, is_ready: bool) -> DemandLook {
        DemandLook {
            waiting,
            refused: Vec::new(),
            arrivals,
            grants,
            most_urgent: None,
            in_flight: grants,
            permits: PERMITS,
            is_usable: is_ready,
            kept_alive: None,
            own_keep_alive: KeepLoaded::For(secs(300)),
        }
    }

    fn memory() -> DemandMemory {
        DemandMemory::new(DemandSettings::default())
    }

    #[test]
    fn the_debt_grows_from_look_to_look_and_a_flood_weighs_as_one_round_of_permits() {
        let mut own = memory();
        let four: Vec<_> = (0..4).map(|_| request("a", 10, 900)).collect();
        let flood: Vec<_> = (0..50).map(|_| request("a", 10, 900)).collect();
        let demand = own.take(look(four, 4, 0, false), secs(10));
        assert_eq!((demand.waiters, demand.debt), (4, 0.0));
        let demand = own.take(look(flood, 46, 0, false), secs(35));
        // 4 × 25 s × (1 + (25 s / 25 s)²).
        assert!((demand.debt - 200.0).abs() < 0.001, "{}", demand.debt);
        assert_eq!(demand.unserved_since, Some(secs(10)));
        assert_eq!((demand.waiters, demand.first_waiters), (50, PERMITS));
        assert!(demand.arrivals_per_sec > 0.2);
    }

    #[test]
    fn the_first_round_of_permits_protects_and_no_later_one() {
        let mut own = memory();
        let waiting = |count| vec![request("a", 10, 900); count];
        own.take(look(waiting(9), 9, 0, false), secs(10));
        let demand = own.take(look(waiting(9), 0, 0, true), secs(20));
        assert_eq!(demand.first_waiters, PERMITS);
        let demand = own.take(look(waiting(6), 0, 3, true), secs(21));
        assert_eq!(demand.first_waiters, 1);
        let demand = own.take(look(waiting(6), 1, 1, true), secs(22));
        assert_eq!((demand.first_waiters, demand.waiters), (0, 6));
        assert_eq!(demand.unserved_since, Some(secs(22)));
    }

    #[test]
    fn callers_that_give_up_count_for_a_while_and_those_that_leave_do_not() {
        let mut own = memory();
        let both = vec![request("a", 10, 20), request("b", 10, 900)];
        own.take(look(both, 2, 0, false), secs(10));
        let demand = own.take(look(Vec::new(), 0, 0, false), secs(21));
        assert_eq!(demand.waiters, 1);
        assert_eq!(demand.unserved_since, Some(secs(10)));
        let demand = own.take(look(Vec::new(), 0, 0, false), secs(82));
        assert_eq!((demand.waiters, demand.debt), (0, 0.0));
        assert_eq!(demand.unserved_since, None);
    }

    #[test]
    fn the_latest_requests_say_how_long_the_model_stays() {
        let mut own = memory();
        let mut after = |grants, kept: Option<(u32, KeepLoaded)>| {
            let mut served = look(Vec::new(), grants, grants, true);
            served.kept_alive = kept.map(|(grants, latest)| KeptAlive { grants, latest });
            own.take(served, secs(10)).keep_alive
        };
        let short = KeepLoaded::For(secs(5));
        assert_eq!(after(1, Some((1, short))), Some(short));
        assert_eq!(after(0, None), Some(short), "for as long as nothing comes");
        let both = Some(KeepLoaded::For(secs(300)));
        assert_eq!(after(2, Some((1, short))), both, "one was of no task");
        assert_eq!(after(1, None), None, "a request of the model's own");
        assert_eq!(
            after(1, Some((1, KeepLoaded::Always))),
            Some(KeepLoaded::Always)
        );
    }

    #[test]
    fn refusals_count_until_the_model_is_ready() {
        let mut own = memory();
        let mut refused = look(Vec::new(), 1, 0, false);
        refused.refused.push(ColdRefusal {
            account: AccountId::from("a"),
            priority: 3,
            at: secs(10),
        });
        let demand = own.take(refused, secs(10));
        assert_eq!((demand.waiters, demand.first_waiters), (1, 0));
        assert_eq!(demand.priority, Some(3));
        assert!(own.take(look(Vec::new(), 0, 0, false), secs(40)).debt > 0.0);
        let demand = own.take(look(Vec::new(), 0, 0, true), secs(41));
        assert_eq!((demand.waiters, demand.debt), (0, 0.0));
        assert_eq!(demand.priority, Some(3), "for a minute");
        let demand = own.take(look(Vec::new(), 0, 0, true), secs(71));
        assert_eq!(demand.priority, None);
    }
}
