//! Demand for managed models, read from their gates when the driver decides.
//!
//! Not the weights of waits, which are the core's. A gate tells no change: each look takes the requests that wait, and
//! counts of those that came and of permits. Requests of jobs weigh together as one account with their share.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::admission::{AdmissionGauges, DemandClient, PermitClass, RequestCounts};
use infergate_core::model::{CLIENT_PROFILES_MAX, KeepLoaded};
use infergate_core::vram::{Demand, DemandSettings, DemandWeight, ModelDemand, WaiterDemand};
use infergate_core::{AccountId, Millis, ModelId};

use crate::upstream::{ColdRefusal, KeptAlive, ModelRuntime};

/// Requests of a model that are looked at: more of them would change no decision.
const WAITING_MAX: usize = 4096;
/// Time for which the urgency of a request counts.
const PRIORITY_MEMORY: Millis = Millis::from_secs(60);
/// Account of all jobs of a model; no account has this name.
const JOBS: &str = "";

/// Demand of each model, and what is remembered of it.
#[derive(Default)]
pub(super) struct DemandBook {
    settings: DemandSettings,
    models: BTreeMap<ModelId, ModelMemory>,
}

impl DemandBook {
    /// Replaces the settings, and forgets models that are not managed any more.
    pub fn configure(&mut self, settings: DemandSettings, is_managed: impl Fn(&ModelId) -> bool) {
        self.settings = settings;
        self.models.retain(|id, _| is_managed(id));
        for model in self.models.values_mut() {
            model.demand.configure(settings);
        }
    }

    /// Returns the demand of a model.
    pub fn read(&mut self, model: &ModelRuntime, now: Millis) -> ModelDemand {
        let jobs = AccountId::from(JOBS);
        let share = model.spec.jobs.share_percent;
        let kept_alive = model.gate.take_kept_alive();
        let mut waiting = Vec::new();
        let mut asked = Askers::default();
        let (refused, counts) = model.gate.look_at_demand(WAITING_MAX, |request| {
            let weight = DemandWeight::of_priority(request.priority);
            let (account, weight) = match request.class {
                PermitClass::Live => (request.account.clone(), weight),
                PermitClass::Durable => (jobs.clone(), weight.scaled(share)),
            };
            asked.add(request.joined, request.client);
            waiting.push(SeenRequest {
                joined: request.joined,
                deadline: request.deadline,
                account,
                weight,
                priority: request.priority,
            });
        });
        for refusal in &refused {
            asked.add(refusal.at, refusal.client.as_ref());
        }
        let look = DemandLook {
            waiting,
            asked,
            refused,
            counts,
            gauges: model.gate.gauges(),
            kept_alive,
            own_keep_alive: match model.spec.keep_alive_secs() {
                Some(secs) => KeepLoaded::For(Millis::from_secs(secs)),
                None => KeepLoaded::Always,
            },
        };
        let own = self.models.entry(model.spec.id.clone());
        let own = own.or_insert_with(|| ModelMemory::new(self.settings));
        own.take(look, now)
    }

    /// Takes who has asked for a model since nothing serves it, to be called as its load begins.
    pub fn take_askers(&mut self, model: &ModelId) -> Askers {
        let memory = self.models.get_mut(model);
        memory.map_or_else(Askers::default, |it| std::mem::take(&mut it.askers))
    }
}

/// Clients whose requests count for the load of a model.
#[derive(Default)]
pub(super) struct Askers {
    /// Moment of the first request, with its client where it names one.
    first: Option<(Millis, Option<Arc<DemandClient>>)>,
    /// Profiles with a cooldown, each once.
    pub profiles: Vec<Arc<str>>,
}

impl Askers {
    /// Client that was the first to ask; none where that request named none.
    pub fn first_client(&self) -> Option<&DemandClient> {
        self.first.as_ref()?.1.as_deref()
    }

    fn add(&mut self, at: Millis, client: Option<&Arc<DemandClient>>) {
        if self.first.as_ref().is_none_or(|(first, _)| at < *first) {
            self.first = Some((at, client.cloned()));
        }
        let cooldown = client.and_then(|client| client.cooldown.as_ref());
        if let Some(cooldown) = cooldown {
            self.add_profile(&cooldown.profile);
        }
    }

    fn add_profile(&mut self, profile: &Arc<str>) {
        // Those of former configurations may come on top: what does not fit causes loads as if it had no cooldown.
        if self.profiles.len() < CLIENT_PROFILES_MAX && !self.profiles.contains(profile) {
            self.profiles.push(Arc::clone(profile));
        }
    }

    /// Adds those of a later look. The first request stays the first, though it has left.
    fn merge(&mut self, later: &Askers) {
        if let Some((at, client)) = &later.first {
            self.add(*at, client.as_ref());
        }
        for profile in &later.profiles {
            self.add_profile(profile);
        }
    }
}

/// Request that waits, as a look finds it. Ordered by its arrival.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SeenRequest {
    joined: Millis,
    deadline: Millis,
    account: AccountId,
    weight: DemandWeight,
    priority: u8,
}

/// Findings of a look at a gate.
struct DemandLook {
    waiting: Vec<SeenRequest>,
    asked: Askers,
    refused: Vec<ColdRefusal>,
    counts: RequestCounts,
    gauges: AdmissionGauges,
    kept_alive: Option<KeptAlive>,
    own_keep_alive: KeepLoaded,
}

/// Demand of a model from look to look.
struct ModelMemory {
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
    /// Clients that have asked since nothing serves it.
    askers: Askers,
}

impl ModelMemory {
    fn new(settings: DemandSettings) -> ModelMemory {
        ModelMemory {
            demand: Demand::new(settings),
            waiting: Vec::new(),
            first_waiters: 0,
            last_used: Millis::ZERO,
            urgent: None,
            keep_alive: None,
            askers: Askers::default(),
        }
    }

    fn take(&mut self, look: DemandLook, now: Millis) -> ModelDemand {
        self.note_keep_alive(&look);
        self.askers.merge(&look.asked);
        let permits = look.gauges.limit.max(1);
        let is_served = look.counts.grants > 0;
        self.demand.record_arrivals(look.counts.arrivals, now);
        for refusal in &look.refused {
            let weight = DemandWeight::of_priority(refusal.priority);
            let account = &refusal.account;
            self.demand.refuse(account, weight, permits, refusal.at);
        }
        let refused = look.refused.iter().map(|refusal| refusal.priority);
        let waiting = look.waiting.iter().map(|request| request.priority);
        let urgent = refused.chain(waiting).chain(look.counts.most_urgent).min();
        self.replace_waiting(look.waiting, permits, is_served, now);
        if is_served {
            self.demand.record_grant(now);
        }
        let is_usable = look.gauges.usable_endpoints > 0;
        if is_usable {
            self.demand.clear_memory();
        }
        self.demand.expire(now);
        if is_usable || self.demand.unserved_since().is_none() {
            self.askers = Askers::default();
        }
        let waiters = self.demand.waiters();
        self.first_waiters = match is_usable {
            true => self.first_waiters.saturating_sub(look.counts.grants),
            false => permits,
        };
        self.first_waiters = self.first_waiters.min(waiters);
        if waiters > 0 || look.gauges.used > 0 || look.counts.arrivals > 0 {
            self.last_used = now;
        }
        self.note_urgency(urgent, now);
        ModelDemand {
            waiters: waiters.saturating_add(self.demand.remembered()),
            first_waiters: self.first_waiters,
            unserved_since: self.demand.unserved_since(),
            debt: self.demand.debt(now),
            arrivals_per_sec: self.demand.arrivals_per_sec(now),
            in_flight: look.gauges.used,
            last_used: self.last_used,
            priority: self.urgent.map(|(priority, _)| priority),
            keep_alive: self.keep_alive,
        }
    }

    /// Takes the requests of a look for those of the former one. Of an account, the oldest round of permits is counted.
    ///
    /// One that has gone at its deadline is remembered, unless permits were given meanwhile.
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
            Some(kept) if look.counts.grants > kept.grants => {
                Some(kept.latest.max(look.own_keep_alive))
            }
            Some(kept) => Some(kept.latest),
            None if look.counts.grants > 0 => None,
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
    use infergate_core::admission::ClientCooldown;

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
            asked: Askers::default(),
            refused: Vec::new(),
            counts: RequestCounts {
                arrivals,
                grants,
                most_urgent: None,
            },
            gauges: AdmissionGauges {
                used: grants,
                durable_used: 0,
                limit: PERMITS,
                depth: 0,
                durable_waiting: 0,
                endpoints: 1,
                usable_endpoints: u32::from(is_ready),
            },
            kept_alive: None,
            own_keep_alive: KeepLoaded::For(secs(300)),
        }
    }

    fn memory() -> ModelMemory {
        ModelMemory::new(DemandSettings::default())
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
    fn the_first_to_ask_stays_the_first_until_the_model_serves() {
        let client = |id: &str, profile: Option<&str>| {
            let cooldown = profile.map(|profile| ClientCooldown {
                profile: profile.into(),
                span: secs(60),
            });
            let id = id.into();
            Arc::new(DemandClient { id, cooldown })
        };
        let mut own = memory();
        let mut ask = |at: u64, by: Option<Arc<DemandClient>>, is_ready| {
            let mut asked = look(vec![request("a", at, 900)], 1, 0, is_ready);
            asked.asked.add(secs(at), by.as_ref());
            own.take(asked, secs(at));
            let first = own.askers.first_client().map(|it| it.id.to_string());
            (first, own.askers.profiles.len())
        };
        let tagger = client("tagger-1", Some("tagger*"));
        assert_eq!(ask(10, Some(tagger), false), (Some("tagger-1".into()), 1));
        let second = client("tagger-2", Some("tagger*"));
        assert_eq!(ask(11, Some(second), false), (Some("tagger-1".into()), 1));
        assert_eq!(ask(12, Some(client("chat", None)), true), (None, 0));
        assert_eq!(ask(13, None, false), (None, 0), "nobody is named");
        assert_eq!(ask(14, Some(client("chat", None)), false), (None, 0));
    }

    #[test]
    fn refusals_count_until_the_model_is_ready() {
        let mut own = memory();
        let mut refused = look(Vec::new(), 1, 0, false);
        refused.refused.push(ColdRefusal {
            account: AccountId::from("a"),
            priority: 3,
            at: secs(10),
            client: None,
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
