//! The gate's part in retries, and the log line of an endpoint whose health has changed.
//!
//! The core decides: its budget on another attempt, the ejector on which endpoints are proven.

use std::sync::Arc;

use infergate_core::Millis;
use infergate_core::admission::EndpointId;
use infergate_core::routing::{
    ATTEMPTS_MAX, AttemptFailure, CapacityAnswer, CapacityRetries, Health, HealthChange,
    RetryTarget,
};

use super::AdmissionGate;
use super::readings::in_u32;
use crate::upstream::target::Target;

/// Decision on another attempt.
#[derive(Debug)]
pub struct RetryPlan {
    /// True when another attempt is allowed.
    pub allowed: bool,
    /// Kind of endpoint it goes to.
    pub target: RetryTarget,
    /// Endpoints it does not go to while a proven one has room, beside those that were tried.
    pub avoid: Vec<EndpointId>,
}

impl AdmissionGate {
    /// Returns whether an endpoint in use is not among `tried`.
    pub fn has_untried(&self, tried: &[EndpointId]) -> bool {
        let inner = self.inner.lock();
        let in_use = |target: &Target| {
            let health = inner.ejector.health(&target.url);
            matches!(health, Health::Healthy | Health::Degraded)
        };
        let is_fresh = |(index, target): (usize, &Option<Arc<Target>>)| {
            let was_tried = tried.iter().any(|id| id.0 as usize == index);
            !was_tried && target.as_deref().is_some_and(in_use)
        };
        inner.targets.iter().enumerate().any(is_fresh)
    }

    /// Counts a request that begins at `now`: retries are a share of these.
    pub fn count_request(&self, now: Millis) {
        self.inner.lock().retries.record_request(now);
    }

    /// Decides whether a request that has made `tries` attempts, at the endpoints `tried`, may make
    /// another one. With `after_node` the last one was at another node.
    pub fn plan_retry(
        &self,
        tries: u32,
        failure: AttemptFailure,
        tried: &[EndpointId],
        after_node: bool,
    ) -> RetryPlan {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let (mut has_proven, mut unproven) = (false, Vec::new());
        for (index, target) in inner.targets.iter().enumerate() {
            let id = EndpointId(in_u32(index));
            let Some(target) = target.as_ref().filter(|_| !tried.contains(&id)) else {
                continue;
            };
            let permits = inner.turnstile.permits(id);
            // Waiting for a permit costs a server nothing where none has seen the request.
            let has_room = failure == AttemptFailure::NotConnected
                || permits.is_some_and(|(used, limit)| used < limit);
            match has_room && inner.ejector.is_proven(&target.url) {
                true => has_proven = true,
                false => unproven.push(id),
            }
        }
        let target = match has_proven {
            true => RetryTarget::Proven,
            false if after_node => RetryTarget::AfterNode,
            false => RetryTarget::Unproven,
        };
        if !has_proven {
            unproven.clear();
        }
        // The process of its slot is gone: it waits for the next one, which costs no server anything.
        let awaits_process = failure == AttemptFailure::NotConnected
            && tries < ATTEMPTS_MAX
            && inner.turnstile.is_cold();
        RetryPlan {
            allowed: awaits_process || inner.retries.may_retry(tries, failure, target, now),
            target,
            avoid: unproven,
        }
    }

    /// Decides on another attempt of a request whose servers have no capacity, of which its model allows `limit`;
    /// returns the pause before it.
    pub fn plan_capacity_retry(
        &self,
        retries: &mut CapacityRetries,
        limit: u32,
        (status, tries): (u16, u32),
        deadline: Millis,
    ) -> Option<Millis> {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        let answer = CapacityAnswer {
            status,
            tries,
            pause: inner.ejector.pause_left(now),
            deadline,
        };
        retries.next_pause(limit, answer, &mut inner.retries, now, fastrand::u64(..))
    }

    /// Ends the pauses that are over, for a request that has waited for one. Returns the rest of the shortest, where
    /// every endpoint in use is paused.
    pub fn end_pauses(&self) -> Option<Millis> {
        let mut left = None;
        self.decide(|inner, now| {
            let changes = inner.ejector.tick(now);
            inner.apply(changes, now);
            left = inner.ejector.pause_left(now);
        });
        left
    }

    /// Counts a retry at a proven endpoint that has failed.
    pub fn record_proven_retry_failure(&self) {
        let now = self.clock.now();
        self.inner.lock().retries.record_proven_retry_failure(now);
    }

    /// The time until the shortest pause ends, where every endpoint in use has asked for one.
    pub fn pause_left(&self) -> Option<Millis> {
        let now = self.clock.now();
        self.inner.lock().ejector.pause_left(now)
    }

    /// Retries that the model's requests may still make together.
    pub fn retries_left(&self) -> u32 {
        let now = self.clock.now();
        self.inner.lock().retries.retries_left(now)
    }

    /// Logs a change of an endpoint's health, one line.
    pub(super) fn log_health_change(&self, change: &HealthChange) {
        let (model, url) = (self.model.as_str(), &*change.url);
        let (from, to) = (change.from.name(), change.to.name());
        let unreported = change.unreported;
        match change.cause {
            Some(cause) => {
                tracing::warn!(model, url, from, to, %cause, unreported, "an endpoint's health changed");
            }
            None => tracing::info!(
                model,
                url,
                from,
                to,
                unreported,
                "an endpoint's health changed"
            ),
        }
    }
}
