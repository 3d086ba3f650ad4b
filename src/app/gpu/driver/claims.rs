//! Claims in the ledger: those of other holders for the pool, and those of models of this gateway for the others.
//!
//! Decides nothing. The first of the commands that wait counts alone: the ledger grants nothing to those behind it.

use std::collections::BTreeMap;
use std::sync::Arc;

use infergate_core::vram::{Claim, HolderKind, PoolClaim, debt_of_wait};
use infergate_core::{Millis, ModelId};

use super::Driver;
use crate::app::gpu::leases::{self, ModelClaim};

/// Wait from which on a model's need is told to others: its own pool has decided meanwhile.
const CLAIM_AFTER: Millis = Millis::from_secs(1);
/// Time between two renewals of a claim.
const RENEW_EVERY: Millis = Millis::from_secs(5);

/// Claims of this gateway as the ledger was last given them.
#[derive(Default)]
pub(super) struct OwnClaims {
    claims: BTreeMap<ModelId, ModelClaim>,
    renewed: Millis,
}

impl Driver {
    /// Passes the claims of others on to the pool.
    pub(super) fn take_claims(&mut self) {
        let host = self.parts.ledger.host();
        let (now, host_now) = (self.parts.shared.clock.now(), host.now());
        let aging = Millis::from_secs(self.parts.gpu.swap.aging_secs);
        let claims = self.reading.claims.iter();
        let others = claims.filter(|claim| !host.is_own(&claim.holder));
        let mut has_job = false;
        let is_next = |claim: &&Claim| match claim.holder.kind {
            HolderKind::Slot => true,
            HolderKind::Job => !std::mem::replace(&mut has_job, true),
        };
        let of_pool = |claim: &Claim| {
            let waited = host_now.since(claim.since_ms);
            PoolClaim {
                id: claim.id.clone(),
                placement: claim.placement(),
                priority: claim.priority,
                debt: debt_of_wait(claim.priority, waited, aging),
                since: now - waited,
            }
        };
        let claims = others.filter(is_next).map(of_pool).collect();
        self.pool.set_claims(claims);
    }

    /// Writes the needs of models that wait for memory of others as claims.
    pub(super) fn write_claims(&mut self) {
        let now = self.parts.shared.clock.now();
        let needs = self.pool.needs(now - CLAIM_AFTER);
        let claims = needs.into_iter().map(|(model, placement, priority)| {
            let claim = ModelClaim {
                placement,
                priority,
            };
            (model, claim)
        });
        let claims: BTreeMap<ModelId, ModelClaim> = claims.collect();
        let is_due = !claims.is_empty() && now.since(self.claims.renewed) >= RENEW_EVERY;
        if claims == self.claims.claims && !is_due {
            return;
        }
        self.put_claims(claims, now);
    }

    /// Takes back the claims of this gateway: others are not to make room for it.
    pub(super) fn withdraw_claims(&mut self) {
        if !self.claims.claims.is_empty() {
            self.put_claims(BTreeMap::new(), self.parts.shared.clock.now());
        }
    }

    fn put_claims(&mut self, claims: BTreeMap<ModelId, ModelClaim>, now: Millis) {
        self.claims = OwnClaims {
            claims: claims.clone(),
            renewed: now,
        };
        let ledger = Arc::clone(&self.parts.ledger);
        self.changes.add(&mut self.tasks, move || {
            leases::write_claims(&ledger, &claims)
        });
    }
}
