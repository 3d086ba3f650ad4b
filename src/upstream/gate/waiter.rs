//! Wait of one request in the queue of a gate.

use std::sync::Arc;

use infergate_core::admission::{DemandClient, QueueTicket, Readiness};
use infergate_core::routing::AccountKey;
use infergate_core::{Millis, Refusal};
use tokio::sync::oneshot;

use super::cold_requests::ColdResult;
use super::{AdmissionGate, GrantResult, Permit, WAIT_US_MAX};

/// Wait of a request for a model with slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitProgress {
    /// No process of the model is ready.
    Loading {
        /// Time for which the request has waited.
        waited: Millis,
        /// Time until a process is expected to be ready; zero where that is overdue or unknown.
        left: Millis,
    },
    /// A process is ready, and its permits are in use.
    Queued {
        /// Position now: 1 is next. An estimate where others may come in between.
        position: usize,
    },
}

/// A place in the queue; left by drop.
pub struct Waiter {
    pub(super) gate: Arc<AdmissionGate>,
    pub(super) account: AccountKey,
    pub(super) ticket: QueueTicket,
    /// Joined while nothing served the model, with a result that is not counted yet.
    pub(super) is_uncounted: bool,
    /// Client that it names, of a model with slots.
    pub(super) client: Option<Arc<DemandClient>>,
    pub(super) joined_us: u64,
    pub(super) grant: oneshot::Receiver<GrantResult>,
    /// Waiters of all accounts when it joined.
    pub waiting_before: usize,
    /// Its position when it joined: 1 is next. An estimate where others may come in between.
    pub position: usize,
    /// Expected time until its turn when it joined.
    pub expected_wait: Millis,
    /// No process of the model was ready when it joined.
    pub has_found_cold: bool,
}

impl Waiter {
    /// Waits for the turn. Dropping the future keeps the place; dropping the waiter leaves it.
    ///
    /// # Errors
    /// The turnstile gave up on this waiter: late, evicted, or nowhere to go.
    pub async fn granted(&mut self) -> Result<Permit, Refusal> {
        let outcome = (&mut self.grant).await;
        if std::mem::take(&mut self.is_uncounted) {
            self.gate.cold.record(match &outcome {
                Ok(Ok(_)) => ColdResult::Served,
                Ok(Err(_)) | Err(_) => ColdResult::Refused,
            });
        }
        match outcome {
            Ok(Ok((grant, given))) => {
                let now_us = self.gate.clock.recent_micros();
                let waited_us = now_us.saturating_sub(self.joined_us).clamp(1, WAIT_US_MAX);
                let ready_us = given.ready_at.0 * 1000;
                let load_us = ready_us.saturating_sub(self.joined_us).min(waited_us);
                let mut permit = Permit::new(&self.gate, grant, given, self.account);
                let short = |us: u64| u32::try_from(us).unwrap_or(u32::MAX);
                permit.waited_us = short(waited_us);
                permit.load_wait_us = self.has_found_cold.then(|| short(load_us));
                Ok(permit)
            }
            Ok(Err(refusal)) => Err(refusal),
            // The sender lives in the gate until it speaks or this waiter leaves.
            Err(_) => Err(Refusal::Evicted),
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // After `close` a grant either sits here already or bounces back to its sender.
        self.grant.close();
        if self.is_uncounted {
            self.gate.cold.record(ColdResult::Left);
        }
        if let Ok(Ok((grant, _))) = self.grant.try_recv() {
            self.gate.release(grant.permit, self.gate.clock.now());
            return;
        }
        let now = self.gate.clock.now();
        let mut inner = self.gate.inner.lock();
        inner.turnstile.cancel(self.ticket, now);
        inner.waiting.remove(&self.ticket);
    }
}

impl AdmissionGate {
    /// Wait of a request, as its client may hear of it; none once it waits no more.
    pub fn wait_progress(&self, waiter: &Waiter) -> Option<WaitProgress> {
        let now = self.clock.now();
        let inner = self.inner.lock();
        match inner.turnstile.cold_readiness() {
            Some(Readiness::Expected { expected, .. }) => inner
                .waiting
                .contains_key(&waiter.ticket)
                .then(|| WaitProgress::Loading {
                    waited: now.since(Millis(waiter.joined_us / 1000)),
                    left: expected.since(now),
                }),
            // Its refusal is under way.
            Some(Readiness::Never) => None,
            None => {
                let before = inner.turnstile.joined_before(waiter.ticket)?;
                // Those that joined earlier may not be ahead of it, and those that joined later may be.
                let position = waiter.position.min(before + 1);
                Some(WaitProgress::Queued { position })
            }
        }
    }
}
