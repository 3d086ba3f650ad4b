//! Weighted round robin over accounts: each turn of an account is worth `weight` permits.
//!
//! Costs of requests are ignored; [`token_fair`](super::token_fair) counts them. An account takes its
//! turn whole, then goes to the end of the rotation. In any round (every waiting account's turn once)
//! a backlogged account gets exactly its weight. An account that joins waits at most one round for its
//! first permit, however many waiters the others have. The rest of a turn is not saved up: an account
//! whose queue empties leaves the rotation, and joins again at the end. Deficit round robin with every
//! request of size one (<https://dl.acm.org/doi/10.1145/217391.217453>); known in the source system as
//! the fair queue.
//!
//! Weights are 1 to 1,000. Bounds are per account and the admission queue's. O(1) in accounts and
//! waiters, measured with 100,000 accounts in `benches/core.rs`. Called by the admission queue.
//!
//! ```text
//! rotation:  acme (2 left)  →  zenith  →  lone
//!              a1 a2 a3         z1 z2      l1          next permits: a1 a2 z1 l1 a3 z2
//! ```

use super::accounts::AccountQueues;
use super::discipline::{Discipline, QueueEstimate, Waiter, Waiters};
use super::permit_request::PermitRequest;
use super::queue::Queue;
use super::slab::SlotKey;

/// Permits left in the account's turn; a full turn while it is not at the head.
struct RotationTurn {
    left: u32,
}

/// Accounts taking turns.
pub(super) struct Fair {
    accounts: AccountQueues<RotationTurn>,
    /// Accounts in the order of their turns; the head's turn is on.
    rotation: Queue,
}

impl Fair {
    pub fn new() -> Fair {
        Fair {
            accounts: AccountQueues::new(),
            rotation: Queue::default(),
        }
    }

    /// Removes an account whose queue is empty from the rotation.
    fn forget(&mut self, account: SlotKey) {
        self.rotation.remove(self.accounts.queues_mut(), account);
        self.accounts.close(account);
    }

    /// Ends the account's turn: it moves behind all others, with a full turn to come.
    fn end_turn(&mut self, account: SlotKey) {
        let line = &mut self.accounts[account];
        line.share.left = line.weight;
        self.rotation.remove(self.accounts.queues_mut(), account);
        self.rotation.push_back(self.accounts.queues_mut(), account);
    }
}

impl Discipline for Fair {
    fn estimate(&self, request: &PermitRequest) -> QueueEstimate {
        self.accounts.estimate(request)
    }

    fn join(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let Waiter {
            request,
            account_queue: account_line,
            ..
        } = &waiters[place];
        let account = match *account_line {
            Some(account) => {
                self.accounts.set_weight(account, request.weight);
                account
            }
            None => {
                let account = self.accounts.open(
                    request,
                    RotationTurn {
                        left: request.weight.max(1),
                    },
                );
                self.rotation.push_back(self.accounts.queues_mut(), account);
                account
            }
        };
        waiters[place].account_queue = Some(account);
        self.accounts.push(waiters, account, place);
    }

    fn next(&self) -> Option<SlotKey> {
        let account = self.rotation.head()?;
        self.accounts[account].waiting.head()
    }

    fn weight(&self, _waiters: &Waiters) -> u64 {
        self.accounts.weights()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        let Some(account) = self.rotation.head() else {
            return;
        };
        if let Some(place) = self.accounts[account].waiting.head() {
            self.accounts.remove(waiters, account, place);
        }
        let line = &mut self.accounts[account];
        line.share.left -= 1;
        if line.waiting.is_empty() {
            self.forget(account);
        } else if line.share.left == 0 {
            self.end_turn(account);
        }
    }

    fn cancel(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let account = waiters[place].account_queue;
        let account = account.expect("waiter knows its account's line: set when it joined");
        self.accounts.remove(waiters, account, place);
        if self.accounts[account].waiting.is_empty() {
            self.forget(account);
        }
    }

    fn check(&self, waiters: &Waiters) {
        self.accounts.check(waiters);
        self.rotation.check(self.accounts.queues());
        assert_eq!(
            self.rotation.len(),
            self.accounts.queues().len(),
            "every account has its turn"
        );
        let turns = self
            .accounts
            .queues()
            .iter()
            .map(|(_, line)| line.share.left);
        assert!(turns.min() != Some(0), "a turn that is used up has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tests::{QueueFixture, request};

    #[test]
    fn accounts_take_turns_however_many_requests_each_has() {
        let mut line = QueueFixture::new(Fair::new());
        line.join_all("a1 a2 a3 a4 b1 b2 c1");
        assert_eq!(line.serve_all(), "a1 b1 c1 a2 b2 a3 a4");
    }

    #[test]
    fn a_turn_is_worth_the_weight() {
        let mut line = QueueFixture::new(Fair::new());
        for n in 1..=4 {
            line.join(&format!("a{n}"), request("a").weight(3));
            line.join(&format!("b{n}"), request("b").weight(1));
        }
        assert_eq!(line.serve_all(), "a1 a2 a3 b1 a4 b2 b3 b4");
    }

    #[test]
    fn whoever_joins_waits_for_one_round_only() {
        let mut line = QueueFixture::new(Fair::new());
        line.join_all("a1 a2 a3 a4 a5 b1 b2 b3");
        assert_eq!(line.serve(2), "a1 b1");
        line.join_all("c1");
        assert_eq!(line.serve(3), "a2 b2 c1");
    }

    #[test]
    fn the_rest_of_a_turn_is_lost_when_the_line_empties() {
        let mut line = QueueFixture::new(Fair::new());
        line.join("a1", request("a").weight(9));
        line.join_all("b1 b2");
        assert_eq!(line.serve(1), "a1");
        line.join("a2", request("a").weight(9));
        assert_eq!(line.serve_all(), "b1 a2 b2");
    }

    #[test]
    fn who_leaves_the_middle_of_a_line_or_of_the_rotation_delays_nobody() {
        let mut line = QueueFixture::new(Fair::new());
        line.join_all("a1 a2 a3 b1 c1");
        line.cancel("a2");
        line.cancel("b1");
        assert_eq!(line.serve_all(), "a1 c1 a3");
    }

    #[test]
    fn a_resumed_request_is_first_in_its_own_line_only() {
        let mut line = QueueFixture::new(Fair::new());
        line.join_all("a1 b1 b2");
        line.join("b0", request("b").resumed());
        assert_eq!(line.serve_all(), "a1 b0 b1 b2");
    }

    #[test]
    fn a_newcomer_expects_one_round_and_a_long_line_one_round_for_each_turn() {
        let mut line = QueueFixture::new(Fair::new());
        line.join_all("a1 a2 a3 a4 b1 b2 c1 c2");
        let expected = |request| {
            let QueueEstimate {
                queue_depth: line_depth,
                grants_ahead,
                ..
            } = line.estimate(request);
            (line_depth, grants_ahead)
        };
        assert_eq!(expected(request("d")), (0, 3));
        assert_eq!(expected(request("b")), (2, 2 + 1 + 4));
    }
}
