//! Permits that are held before there is a request for them, or after the request has ended.
//!
//! Not the table of permits, which is in [`permits`](crate::admission::permits). Leases are bounded by their
//! owners; the shell expires them about once a second.

use super::AdmissionQueue;
use crate::Millis;
use crate::admission::endpoint_id::EndpointId;
use crate::admission::permit_class::PermitClass;
use crate::admission::permit_request::{PermitId, WaiterUpdates};

impl AdmissionQueue {
    /// Reserves an unassigned permit: a slot held before there is a request for it. Waiters come first.
    pub fn reserve(&mut self, now: Millis, random: u64) -> Option<(PermitId, EndpointId)> {
        if !self.may_take(PermitClass::Live) {
            return None;
        }
        let endpoint = self.take_endpoint(&[], None, random)?;
        self.classes.record_grant(PermitClass::Live, now);
        let permit = self.permits.reserve(endpoint, now);
        self.update_demand(now);
        Some((permit, endpoint))
    }

    /// Assigns an unassigned permit to a request.
    pub fn assign(&mut self, permit: PermitId) {
        self.permits.assign(permit);
    }

    /// Detaches `permit` for work that outlives its request. [`AdmissionQueue::release`] releases it, or the end
    /// of its lease at `lease_until`. Returns false when the permit is not in use.
    pub fn detach(&mut self, permit: PermitId, lease_until: Millis) -> bool {
        self.permits.lease(permit, lease_until)
    }

    /// Moves the end of a detached permit's lease. Returns false when the lease has expired.
    pub fn renew(&mut self, permit: PermitId, lease_until: Millis) -> bool {
        self.permits.is_detached(permit) && self.permits.lease(permit, lease_until)
    }

    /// Returns whether `permit` is still in use.
    pub fn is_held(&self, permit: PermitId) -> bool {
        self.permits.is_held(permit)
    }

    /// Releases detached permits with expired leases and returns their number. To be called about once a
    /// second.
    pub fn expire_detached(
        &mut self,
        now: Millis,
        random: u64,
        wakes: &mut WaiterUpdates,
    ) -> usize {
        let mut expired = 0;
        while let Some(permit) = self.permits.expired(now) {
            if let Some(returned) = self.permits.release(permit, now) {
                let handoff = self.take_back(permit, &returned, now);
                wakes.handoffs.extend(handoff);
            }
            expired += 1;
        }
        self.admit(now, random, wakes);
        expired
    }
}
