//! Routing slot of a model: candidates in, an order out, by a plugin or a built-in policy.
//!
//! Does not choose an endpoint and keeps no table; in `cached` mode the caller keeps the result. No request
//! is refused because a policy failed: the built-in order stands in.

use std::sync::Arc;

use infergate_core::routing::{Candidate, Choice, Hints};

use crate::plugin::roles::chain::FallbackChain;
use crate::plugin::roles::traits::RoutingPolicy;
use crate::plugin::runtime::call::Caller;
use crate::telemetry::event::PluginUse;

/// Mode of calls to a model's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingMode {
    /// Never: the model has no policy.
    None,
    /// Off the request path, once for all requests with the same hints.
    Cached,
    /// For every request.
    PerRequest,
}

/// Routing policy of one model, in one configuration generation.
#[derive(Clone)]
pub struct RoutingSlot {
    pub(crate) chain: Arc<FallbackChain<dyn RoutingPolicy>>,
    pub(crate) mode: RoutingMode,
}

/// Order of the candidates, with the plugin that computed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyRanking {
    /// Best first; every candidate that is not down, once.
    pub choices: Vec<Choice>,
    /// The plugin that did; empty for a built-in order.
    pub uses: Vec<PluginUse>,
}

impl RoutingSlot {
    /// Mode of calls to the policy.
    pub fn mode(&self) -> RoutingMode {
        self.mode
    }

    /// True when a plugin ranks, unless it fails.
    pub fn is_plugin(&self) -> bool {
        !self.chain.revisions.is_empty()
    }

    /// The order of `candidates`. Without a caller the answer may be kept for others.
    pub fn rank(
        &self,
        caller: Option<Caller<'_>>,
        hints: &Hints,
        candidates: &[Candidate],
    ) -> PolicyRanking {
        for ranker in self.chain.candidates() {
            if let Ok(choices) = ranker.rank(caller, hints, candidates) {
                let mut uses = Vec::new();
                crate::plugin::runtime::identity::record_use(&mut uses, ranker.identity(), "rank");
                return PolicyRanking { choices, uses };
            }
        }
        // Not reached: a built-in order has no way to fail.
        PolicyRanking::default()
    }
}
