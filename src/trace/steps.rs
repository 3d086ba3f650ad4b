//! Decisions of a request: the ranking of endpoints, a change of the model, a permit that it came with.
//!
//! Not their recording, which the builder does.

use std::sync::Arc;

use infergate_core::ModelId;
use infergate_core::admission::ClassTurn;

use crate::plugin::RoutingMode;
use crate::upstream::RankingResult;

/// Ranking by the model's routing policy.
#[derive(Clone, Debug)]
pub struct RoutingStep {
    pub at_us: u64,
    pub policy: Option<Arc<str>>,
    pub mode: RoutingMode,
    /// None where the policy has not been asked yet: tier and load decide.
    pub advice: Option<Arc<RankingResult>>,
}

/// The request moved to the next fallback.
#[derive(Clone, Debug)]
pub struct FallbackStep {
    pub at_us: u64,
    pub to: ModelId,
    /// Reason to leave the former model.
    pub cause: &'static str,
}

/// A permit was granted before the request began, as runs of jobs have it.
#[derive(Clone, Copy, Debug)]
pub struct PermitStep {
    pub at_us: u64,
    /// Class that was served, and why.
    pub turn: ClassTurn,
    /// Wait for it; 0 where it was free at once.
    pub waited_us: u32,
}
