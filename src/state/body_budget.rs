//! The memory that request bodies may take, all requests together and each account's part of it.
//!
//! Not a queue: above the bounds, which the core decides on, a request is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infergate_core::admission::bodies::BodyLimits;

/// Bytes of request bodies held at the moment.
#[derive(Default)]
pub struct BodyBudget {
    held_bytes: AtomicU64,
}

/// Bytes of one account's request bodies, shared by the generations of the account.
pub type AccountBytes = Arc<AtomicU64>;

impl BodyBudget {
    /// Bytes held at the moment.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Begins the share of one request, which holds nothing yet.
    pub fn share(self: &Arc<BodyBudget>, account: &AccountBytes, limits: BodyLimits) -> BodyShare {
        BodyShare {
            budget: Arc::clone(self),
            account: Arc::clone(account),
            limits,
            bytes: 0,
        }
    }
}

/// A request's part of the budget; given back by drop.
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    account: AccountBytes,
    limits: BodyLimits,
    bytes: u64,
}

impl BodyShare {
    /// Returns whether `bytes` more would fit now; nothing is taken.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let own = self.account.load(Ordering::Relaxed);
        self.limits.admit(own, self.budget.held_bytes(), bytes)
    }

    /// Takes `more` bytes too; false, and nothing taken, when the budget does not hold them.
    pub fn grow(&mut self, more: u64) -> bool {
        let own = self.account.fetch_add(more, Ordering::AcqRel);
        let held_after = |held: u64| self.limits.admit(own, held, more).then(|| held + more);
        let taken = self
            .budget
            .held_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, held_after)
            .is_ok();
        match taken {
            true => self.bytes += more,
            false => {
                self.account.fetch_sub(more, Ordering::AcqRel);
            }
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
        self.account.fetch_sub(bytes, Ordering::AcqRel);
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BodyLimits = BodyLimits {
        total_bytes: 100,
        share_bytes: 25,
        one_body_bytes: 1,
        is_alone: false,
    };

    #[test]
    fn a_share_is_given_back_by_drop_and_never_exceeds_the_budget() {
        let budget = Arc::new(BodyBudget::default());
        let only = BodyLimits {
            is_alone: true,
            ..LIMITS
        };
        let account = AccountBytes::default();
        let mut first = budget.share(&account, only);
        assert!(first.grow(60));
        assert!(!budget.share(&account, only).has_room_for(41));
        assert!(first.grow(40));
        assert!(!first.grow(1));
        first.shrink(40);
        assert_eq!(budget.held_bytes(), 60);
        assert!(first.grow(40));
        drop(first);
        assert_eq!(budget.held_bytes(), 0);
        assert_eq!(account.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requests_of_one_account_share_its_part_and_leave_another_its_own() {
        let budget = Arc::new(BodyBudget::default());
        let (mallory, alice) = (AccountBytes::default(), AccountBytes::default());
        let mut uploads: Vec<_> = (0..16).map(|_| budget.share(&mallory, LIMITS)).collect();
        let taken: usize = (0..16)
            .map(|_| {
                uploads
                    .iter_mut()
                    .filter_map(|one| one.grow(1).then_some(()))
                    .count()
            })
            .sum();
        assert_eq!(taken, 75, "an account alone leaves a share free");
        let mut body = budget.share(&alice, LIMITS);
        assert!(body.grow(25));
        uploads.pop();
        assert!(!uploads[0].grow(1), "beyond its share beside another");
    }
}
