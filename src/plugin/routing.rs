//! A model's routing policy: candidates in, an order out, whoever works it out.
//!
//! It does not choose an endpoint and keeps no table; whoever asks in `cached` mode keeps what it
//! got. No request is refused because a policy failed: the built-in order stands in.

use std::sync::Arc;

use infergate_core::routing::{Candidate, Choice, Hints};

use super::Caller;
use super::line::Line;
use super::rules::Ranker;
use crate::telemetry::event::PluginUse;

/// When a model's policy is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingMode {
    /// Never: the model has no policy.
    None,
    /// Off the request path, once for all requests with the same hints.
    Cached,
    /// For every request.
    PerRequest,
}

/// What orders the candidates of one model, in one configuration generation.
#[derive(Clone)]
pub struct RoutingSlot {
    pub(super) line: Arc<Line<dyn Ranker>>,
    pub(super) mode: RoutingMode,
}

/// An order, and who worked it out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranked {
    /// Best first; every candidate that is not down, once.
    pub choices: Vec<Choice>,
    /// The plugin that did; empty for a built-in order.
    pub uses: Vec<PluginUse>,
}

impl RoutingSlot {
    /// When to ask.
    pub fn mode(&self) -> RoutingMode {
        self.mode
    }

    /// Whether a plugin ranks, unless it fails.
    pub fn is_plugin(&self) -> bool {
        !self.line.revisions.is_empty()
    }

    /// The order of `candidates`. Without a caller the answer may be kept for others.
    pub fn rank(
        &self,
        caller: Option<Caller<'_>>,
        hints: &Hints,
        candidates: &[Candidate],
    ) -> Ranked {
        for ranker in self.line.answerers() {
            if let Ok(choices) = ranker.rank(caller, hints, candidates) {
                let mut uses = Vec::new();
                super::note(&mut uses, ranker.identity(), "rank");
                return Ranked { choices, uses };
            }
        }
        // Not reached: a built-in order has no way to fail.
        Ranked::default()
    }
}
