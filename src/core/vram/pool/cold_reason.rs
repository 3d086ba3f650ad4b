//! Reasons why models with demand are not ready, for operators.
//!
//! Decides nothing: the rule's reasons come from its decision, the others from the states of slots.

use crate::vram::evict::WaitReason;

/// Reason why a model with demand is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColdReason {
    /// Choice of the rule, which does not load it now.
    Rule(WaitReason),
    /// Choice whose victims have not ended.
    AwaitsVictims,
    /// Choice whose leases the ledger has been asked for.
    AwaitsLease,
    /// Load that runs.
    Loading,
    /// Former process that has not ended.
    Leaving,
    /// Failure whose next try is not due.
    Backoff,
    /// Failures that were too many.
    Broken,
    /// The ledger granted nothing; the next samples say more.
    LeaseRefused,
    /// The node drains, and loads nothing.
    NodeDrain,
}

impl ColdReason {
    /// Returns whether it waits for memory that others have.
    pub fn is_want_of_memory(self) -> bool {
        let ColdReason::Rule(reason) = self else {
            return false;
        };
        !matches!(reason, WaitReason::DoesNotFit | WaitReason::OtherFirst)
    }

    /// Returns the name in `/gpu`.
    pub const fn name(self) -> &'static str {
        match self {
            ColdReason::Rule(reason) => reason.name(),
            ColdReason::AwaitsVictims => "awaits_victims",
            ColdReason::AwaitsLease => "awaits_lease",
            ColdReason::Loading => "loading",
            ColdReason::Leaving => "leaving",
            ColdReason::Backoff => "backoff",
            ColdReason::Broken => "broken",
            ColdReason::LeaseRefused => "lease_refused",
            ColdReason::NodeDrain => "node_drain",
        }
    }
}
