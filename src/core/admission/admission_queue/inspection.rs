//! Views of an admission queue: numbers for metrics, the state for operators, and the invariants for tests.
//!
//! Changes nothing.

use hashbrown::HashMap;

use super::{AdmissionQueue, is_outside};
use crate::admission::permit_class::PermitClass;
use crate::admission::permit_request::QueueTicket;
use crate::admission::state::{AdmissionGauges, AdmissionState};
use crate::{AccountId, Millis};

impl AdmissionQueue {
    /// Returns the numbers for metrics.
    pub fn gauges(&self) -> AdmissionGauges {
        let totals = self.endpoints.totals();
        AdmissionGauges {
            used: totals.used,
            durable_used: self.durable_used,
            limit: totals.limit,
            depth: self.waiters.len(),
            durable_waiting: self.durable.len(),
            endpoints: totals.configured,
            usable_endpoints: totals.usable,
        }
    }

    /// Returns the number of live requests that wait and joined before this one; visits all that wait. None once it
    /// waits no more.
    pub fn joined_before(&self, ticket: QueueTicket) -> Option<usize> {
        self.waiters.find(ticket.0)?;
        let waiters = self.waiters.iter();
        let live = waiters.filter(|(_, waiter)| waiter.request.class == PermitClass::Live);
        let before = live.filter(|&(place, _)| self.waiters.key(place) < ticket.0);
        Some(before.count())
    }

    /// Returns the state for `GET /state`. Visits every waiter: for operators, not for requests.
    pub fn state(&self, now: Millis) -> AdmissionState {
        let mut accounts: HashMap<&AccountId, usize> = HashMap::new();
        let waiters = self.waiters.iter().map(|(_, waiter)| waiter);
        for waiter in waiters.filter(|w| w.request.class == PermitClass::Live) {
            *accounts.entry(&waiter.request.account).or_default() += 1;
        }
        let mut accounts: Vec<(AccountId, usize)> = accounts
            .into_iter()
            .map(|(account, depth)| (account.clone(), depth))
            .collect();
        accounts.sort_unstable();
        AdmissionState {
            algorithm: self.algorithm,
            depth: self.waiters.len(),
            durable_waiting: self.durable.len(),
            durable_used: self.durable_used,
            durable_max: self.durable_max,
            last_turn: self.last_turn,
            capacity: self.account_capacity,
            expected_wait: self.expected_wait(now),
            accounts,
            endpoints: self.endpoints.state(),
        }
    }

    /// Asserts every invariant that one moment can show, visiting everything: for tests.
    pub fn check(&self) {
        self.endpoints.check();
        self.permits.check();
        self.discipline.check(&self.waiters);
        for endpoint in self.endpoints.state() {
            let out = self.permits.count_at(endpoint.id);
            assert_eq!(
                out, endpoint.used as usize,
                "an endpoint counts the permits that are out"
            );
        }
        let outside = self.waiters.iter();
        let outside = outside.filter(|(_, waiter)| is_outside(&waiter.request));
        assert_eq!(
            outside.count(),
            self.outside,
            "waiters bounded elsewhere are counted"
        );
        self.check_classes();
        let waiting = self.live_waiting() > 0;
        assert_eq!(
            self.discipline.next().is_some(),
            waiting,
            "a live waiter is next"
        );
        assert!(
            !self.wants_permit() || !self.endpoints.has_open(),
            "no permit is free while a waiter could use it"
        );
        assert!(!waiting || !self.is_closed(), "nobody waits at a shut door");
        let live = self.waiters.iter().map(|(_, waiter)| &waiter.request);
        let mut live = live.filter(|request| request.class == PermitClass::Live);
        assert!(
            !self.is_unusable() || live.all(|request| !request.has_alternative),
            "nobody who has somewhere else to go waits where nothing can be served"
        );
    }

    fn check_classes(&self) {
        self.durable.check(&self.waiters);
        assert!(
            self.durable
                .iter(&self.waiters)
                .all(|place| self.waiters[place].request.class == PermitClass::Durable),
            "durable waiters stand in their own line"
        );
        let [live, durable] = PermitClass::ALL.map(|class| self.permits.count_of(class));
        assert_eq!(
            durable.0, self.durable_used as usize,
            "permits of durable requests are counted"
        );
        self.classes.check([live.1, durable.1]);
        let is_idle = self.durable.is_empty() && self.durable_used == 0;
        assert!(
            is_idle || self.classes.is_active(),
            "grants are charged while there are durable requests"
        );
        assert!(
            self.durable.is_empty() || self.endpoints.totals().configured > 0,
            "durable requests leave with the last endpoint"
        );
    }
}
