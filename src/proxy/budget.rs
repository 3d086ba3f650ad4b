//! The memory that request bodies may take, all requests together.
//!
//! It does not queue: above the budget a request is refused before its body is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of request bodies held at the moment.
#[derive(Default)]
pub struct BodyBudget {
    held_bytes: AtomicU64,
}

impl BodyBudget {
    /// Bytes held at the moment.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` of a budget of `limit_bytes`, or nothing.
    pub fn take(self: &Arc<BodyBudget>, bytes: u64, limit_bytes: u64) -> Option<BodyShare> {
        let mut share = BodyShare {
            budget: Arc::clone(self),
            bytes: 0,
        };
        share.grow(bytes, limit_bytes).then_some(share)
    }
}

/// A request's part of the budget; given back by drop.
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BodyShare {
    /// Takes `more` bytes too; false, and nothing taken, when the budget does not hold them.
    pub fn grow(&mut self, more: u64, limit_bytes: u64) -> bool {
        let fits = |held: u64| held.checked_add(more).filter(|sum| *sum <= limit_bytes);
        let taken = self
            .budget
            .held_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .is_ok();
        if taken {
            self.bytes += more;
        }
        taken
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives `bytes` of it back early.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.held_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget
            .held_bytes
            .fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_back_by_drop_and_never_exceeds_the_budget() {
        let budget = Arc::new(BodyBudget::default());
        let mut first = budget.take(60, 100).unwrap();
        assert!(budget.take(41, 100).is_none());
        assert!(first.grow(40, 100));
        assert!(!first.grow(1, 100));
        first.shrink(40);
        assert_eq!(budget.held_bytes(), 60);
        assert!(first.grow(40, 100));
        drop(first);
        assert_eq!(budget.held_bytes(), 0);
    }
}
