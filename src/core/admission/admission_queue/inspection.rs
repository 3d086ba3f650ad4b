//! Views of an admission queue: numbers for metrics, the state for operators, and the invariants for tests.
//!
//! Changes nothing.

use hashbrown::HashMap;

use super::AdmissionQueue;
use crate::admission::state::{AdmissionGauges, AdmissionState};
use crate::{AccountId, Millis};

impl AdmissionQueue {
    /// Returns the numbers for metrics.
    pub fn gauges(&self) -> AdmissionGauges {
        let totals = self.endpoints.totals();
        AdmissionGauges {
            used: totals.used,
            limit: totals.limit,
            depth: self.waiters.len(),
            endpoints: totals.configured,
            usable_endpoints: totals.usable,
        }
    }

    /// Returns the state for `GET /state`. Visits every waiter: for operators, not for requests.
    pub fn state(&self, now: Millis) -> AdmissionState {
        let mut accounts: HashMap<&AccountId, usize> = HashMap::new();
        for (_, waiter) in self.waiters.iter() {
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
        let outside = outside.filter(|(_, waiter)| waiter.request.is_bounded_elsewhere);
        assert_eq!(
            outside.count(),
            self.outside,
            "waiters bounded elsewhere are counted"
        );
        let waiting = !self.waiters.is_empty();
        assert_eq!(
            self.discipline.next().is_some(),
            waiting,
            "somebody who waits is next"
        );
        assert!(
            !waiting || !self.endpoints.has_open(),
            "no permit is free while somebody waits"
        );
        assert!(!waiting || !self.is_closed(), "nobody waits at a shut door");
        assert!(
            !self.is_unusable() || self.waiters.iter().all(|(_, w)| !w.request.has_alternative),
            "nobody who has somewhere else to go waits where nothing can be served"
        );
    }
}
