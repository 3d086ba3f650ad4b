//! Clients whose requests may cause a load only now and then: who is held from the demand, and what they are told.
//!
//! The rule is [`LoadCooldowns`](infergate_core::admission::LoadCooldowns)'s. A held request keeps its place in the
//! queue, and is served once the model is loaded.

use std::sync::Arc;

use infergate_core::admission::{DemandClient, LoadProgress};
use infergate_core::{Millis, Refusal};

use super::{AdmissionGate, GateState, Waiter};

/// Words of slots whose load is under way.
const LOADING: [&str; 2] = ["loading", "acquiring"];

impl GateState {
    /// Progress of the model towards its first ready slot.
    pub(super) fn load_progress(&self) -> LoadProgress {
        if !self.turnstile.is_cold() {
            LoadProgress::Ready
        } else if LOADING.contains(&self.slots.nearest()) {
            LoadProgress::Loading
        } else {
            LoadProgress::Cold
        }
    }

    /// Moment from which a request that came at `joined` counts as demand; none where it counts now.
    pub(super) fn held_until(
        &self,
        client: Option<&DemandClient>,
        joined: Millis,
        now: Millis,
    ) -> Option<Millis> {
        let cooldowns = &self.slots.cooldowns;
        cooldowns.held_until(client, joined, self.load_progress(), now)
    }
}

impl AdmissionGate {
    /// Records that a load begins while requests of these profiles count as demand.
    pub fn record_load(&self, profiles: &[Arc<str>]) {
        let now = self.clock.now();
        let mut inner = self.inner.lock();
        for profile in profiles {
            inner.slots.cooldowns.record_load(profile, now);
        }
    }

    /// Returns the refusal of a request whose time is over. A request that was held from the demand hears when to come
    /// again.
    pub fn late_refusal(&self, waiter: &Waiter) -> Refusal {
        let Some(client) = waiter.client.as_deref() else {
            return Refusal::DeadlinePassed;
        };
        let now = self.clock.now();
        let inner = self.inner.lock();
        let joined = Millis(waiter.joined_us / 1000);
        match inner.held_until(Some(client), joined, now) {
            Some(until) => {
                let retry_after = inner.turnstile.expected_wait(now);
                Refusal::CannotStartInTime { retry_after }.not_before(until.since(now))
            }
            None => Refusal::DeadlinePassed,
        }
    }
}
