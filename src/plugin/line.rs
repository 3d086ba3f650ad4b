//! Who answers, in order: the revision in force, the last good one, what is built in.
//!
//! It does not call anybody. Whether a revision may be asked is its own breaker's word, which it
//! gives as `Failure::Unavailable`.

use std::sync::Arc;

use super::spec::OnFailure;

/// The answerers of one plugin, or of none, for one model.
pub(super) struct Line<R: ?Sized> {
    /// At most two: the revision in force, then the last good one.
    pub revisions: Vec<Arc<R>>,
    /// The native one: alone when there is no plugin.
    pub builtin: Arc<R>,
    /// Whether the native one, or what else, stands in for a plugin that failed.
    pub on_failure: OnFailure,
}

impl<R: ?Sized> Line<R> {
    /// Only what is built in.
    pub fn native(builtin: Arc<R>) -> Line<R> {
        Line {
            revisions: Vec::new(),
            builtin,
            on_failure: OnFailure::Builtin,
        }
    }

    /// No plugin has a say: all that answers is built in.
    pub fn is_native(&self) -> bool {
        self.revisions.is_empty()
    }

    /// Everybody who may answer, in order.
    pub fn answerers(&self) -> impl Iterator<Item = &Arc<R>> {
        let native = (self.revisions.is_empty() || self.on_failure == OnFailure::Builtin)
            .then_some(&self.builtin);
        self.revisions.iter().chain(native)
    }
}
