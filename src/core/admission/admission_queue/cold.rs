//! Requests for a model whose servers the gateway starts itself, while none of them is ready.
//!
//! Such a model has a queue although nothing is loaded: its endpoints are slots, which are configured and not usable.
//! Nothing is loaded here. The owner of the slots says when one is expected to be ready.

use std::sync::Arc;

use super::{AdmissionQueue, retry_after};
use crate::admission::cooldown::DemandClient;
use crate::admission::permit_class::PermitClass;
use crate::admission::permit_request::{PermitRequest, WaiterUpdates};
use crate::admission::slab::SlotKey;
use crate::{AccountId, Millis, Refusal};

/// Expectation for a model none of whose slots is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// A slot may be ready at `earliest`, and is expected to be at `expected`.
    Expected {
        /// Moment before which none is ready, however fast its load is.
        earliest: Millis,
        /// Moment that is told to clients.
        expected: Millis,
    },
    /// No load can serve the model: it does not fit, or its process keeps failing.
    Never,
}

/// Request that waits, as the owner of the slots sees it.
#[derive(Clone, Copy, Debug)]
pub struct WaitingRequest<'a> {
    /// Its class.
    pub class: PermitClass,
    /// Account that asked.
    pub account: &'a AccountId,
    /// 0 is first, 9 last.
    pub priority: u8,
    /// Moment at which it joined.
    pub joined: Millis,
    /// Moment at which it leaves without a permit.
    pub deadline: Millis,
    /// Client that it names.
    pub client: Option<&'a Arc<DemandClient>>,
}

/// Requests and permits of a model between two looks at its demand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests that came, refused ones included.
    pub arrivals: u32,
    /// Permits that were given.
    pub grants: u32,
    /// Most urgent priority of the requests that came.
    pub most_urgent: Option<u8>,
    /// Mean time with a permit of the latest requests, older ones included; none before the first has ended.
    pub mean_hold: Option<Millis>,
}

impl RequestCounts {
    pub(super) fn record_arrival(&mut self, priority: u8) {
        self.arrivals = self.arrivals.saturating_add(1);
        self.most_urgent = Some(self.most_urgent.map_or(priority, |it| it.min(priority)));
    }

    pub(super) fn record_grant(&mut self) {
        self.grants = self.grants.saturating_add(1);
    }
}

impl Default for Readiness {
    /// Nothing is known yet: no request is refused for a late load.
    fn default() -> Readiness {
        Readiness::Expected {
            earliest: Millis::ZERO,
            expected: Millis::ZERO,
        }
    }
}

impl AdmissionQueue {
    /// Sets what is expected of a model with slots while none of them is ready.
    pub fn set_readiness(&mut self, readiness: Readiness, wakes: &mut WaiterUpdates) {
        self.readiness = self.readiness.map(|_| readiness);
        if self.is_cold() && readiness == Readiness::Never {
            let live = self.waiters.iter();
            let live = live.filter(|(_, waiter)| waiter.request.class == PermitClass::Live);
            let mut places: Vec<SlotKey> = live.map(|(place, _)| place).collect();
            places.sort_unstable_by_key(|&place| self.waiters.key(place));
            for place in places {
                self.refuse(place, Refusal::UpstreamFailed, wakes);
            }
        }
    }

    /// Returns whether the model has slots, and none is ready.
    pub fn is_cold(&self) -> bool {
        self.readiness.is_some() && self.is_unusable()
    }

    /// Returns what is expected of a model with slots none of which is ready; none of any other model.
    pub fn cold_readiness(&self) -> Option<Readiness> {
        self.readiness.filter(|_| self.is_unusable())
    }

    /// Returns the counts since the last call.
    pub fn take_counts(&mut self) -> RequestCounts {
        let holds =
            [PermitClass::Live, PermitClass::Durable].map(|class| self.classes.holds(class));
        RequestCounts {
            mean_hold: holds.iter().find_map(|holds| holds.known_mean()),
            ..std::mem::take(&mut self.counts)
        }
    }

    /// Visits the requests that wait, in no order, at most `limit` of them.
    pub fn for_each_waiting(&self, limit: usize, mut each: impl FnMut(WaitingRequest<'_>)) {
        for (_, waiter) in self.waiters.iter().take(limit) {
            let request = &waiter.request;
            each(WaitingRequest {
                class: request.class,
                account: &request.account,
                priority: request.priority,
                joined: waiter.joined,
                deadline: request.deadline,
                client: request.client.as_ref(),
            });
        }
    }

    /// Returns the time until a slot is expected to be ready; zero for a model that is served.
    pub(super) fn load_wait(&self, now: Millis) -> Millis {
        match self.cold_readiness() {
            Some(Readiness::Expected { expected, .. }) => expected.since(now),
            Some(Readiness::Never) | None => Millis::ZERO,
        }
    }

    /// Returns the refusal of a request that a load cannot serve in time, however fast it is. `wait` is that behind
    /// the requests ahead of it, once a slot is ready.
    pub(super) fn cold_refusal(
        &self,
        request: &PermitRequest,
        wait: Millis,
        now: Millis,
    ) -> Option<Refusal> {
        let earliest = match self.cold_readiness()? {
            Readiness::Never => return Some(Refusal::UpstreamFailed),
            Readiness::Expected { earliest, .. } => earliest.max(now),
        };
        let holds = self.live_holds();
        // Before the first permits nothing is known of the model's own time.
        let served = match holds.is_reliable() {
            true => wait + holds.optimistic_service(),
            false => Millis::ZERO,
        };
        (earliest + served > request.deadline).then(|| Refusal::CannotStartInTime {
            retry_after: retry_after(self.load_wait(now) + wait),
        })
    }
}
