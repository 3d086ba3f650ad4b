//! Order of fallback for one role of one model: the revision in force, the last good one, the built-in one.
//!
//! Calls none of them. A revision whose breaker is open answers `Failure::Unavailable` by itself.

use std::sync::Arc;

use crate::plugin::roles::traits::TaskHandler;
use crate::plugin::spec::OnFailure;

/// Chain of one role for one model.
pub(crate) struct FallbackChain<R: ?Sized> {
    /// At most two: the revision in force, then the last good one.
    pub revisions: Vec<Arc<R>>,
    /// The native one: alone when there is no plugin.
    pub builtin: Arc<R>,
    /// Fallback of a plugin that failed: the built-in one, or another.
    pub on_failure: OnFailure,
}

impl<R: ?Sized> FallbackChain<R> {
    /// Only what is built in.
    pub fn native(builtin: Arc<R>) -> FallbackChain<R> {
        FallbackChain {
            revisions: Vec::new(),
            builtin,
            on_failure: OnFailure::Builtin,
        }
    }

    /// True when no plugin is in the chain.
    pub fn is_native(&self) -> bool {
        self.revisions.is_empty()
    }

    /// Candidates for a call, in order.
    pub fn candidates(&self) -> impl Iterator<Item = &Arc<R>> {
        let native = (self.revisions.is_empty() || self.on_failure == OnFailure::Builtin)
            .then_some(&self.builtin);
        self.revisions.iter().chain(native)
    }
}

impl FallbackChain<dyn TaskHandler> {
    /// Handler that would be called now: a revision whose breaker is open is skipped. The first if
    /// all are skipped: the fallback policy is about its failure.
    pub fn first_available(&self) -> Option<&Arc<dyn TaskHandler>> {
        let available = self.candidates().find(|handler| handler.is_available());
        available.or_else(|| self.candidates().next())
    }
}
