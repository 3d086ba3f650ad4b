//! Least weighted tokens first: the virtual token counter of Sheng et al., "Fairness in Serving
//! Large Language Models" (OSDI 2024, <https://www.usenix.org/conference/osdi24/presentation/sheng>).
//!
//! Not a live token count: a request is charged an estimate at its grant and corrected when it has
//! ended. Each account has a counter of the tokens it was served, divided by its weight; the waiting
//! account with the lowest counter is next. An account that starts to wait is lifted to the lowest
//! counter among the waiting accounts, or to that of the last account that waited. So an idle account
//! saves nothing up, and use of an idle machine is not held against an account.
//!
//! Counters are in 1/1,024 token. O(log accounts) per operation: the accounts are sorted, and one
//! moves at each grant; with 100,000 accounts waiting that is some 17 comparisons. Counters of
//! accounts that do not wait are remembered up to a bound. Called by the admission queue.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::accounts::AccountQueues;
use super::discipline::{Discipline, QueueEstimate, Waiter, Waiters};
use super::permit_request::PermitRequest;
use super::slab::SlotKey;
use crate::AccountId;

/// Parts of a token in a counter: weights go up to 1,000.
const TOKEN: u64 = 1024;

/// Counters kept for accounts without waiters: as many as may have requests in flight at a large model,
/// to be corrected later. A forgotten account starts like the one served least, as the lift would nearly
/// always decide.
const IDLE_COUNTERS_MAX: usize = 1024;

/// Weighted tokens an account was served, in parts of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TokenCounter(u64);

impl TokenCounter {
    fn charged(self, tokens: u64, weight: u32) -> TokenCounter {
        TokenCounter(self.0.saturating_add(weighted_tokens(tokens, weight)))
    }

    fn corrected(self, charged: u64, actual: u64, weight: u32) -> TokenCounter {
        let raised = self.0.saturating_add(weighted_tokens(actual, weight));
        TokenCounter(raised.saturating_sub(weighted_tokens(charged, weight)))
    }
}

fn weighted_tokens(tokens: u64, weight: u32) -> u64 {
    tokens.saturating_mul(TOKEN) / u64::from(weight.max(1))
}

/// Accounts by weighted tokens served.
pub(super) struct TokenFair {
    accounts: AccountQueues<TokenCounter>,
    /// Waiting accounts, least served first.
    order: BTreeSet<(TokenCounter, SlotKey)>,
    /// Counters of accounts without waiters.
    idle: IdleCounters,
    /// Starting counter of an account that starts to wait while no other one waits.
    last_served: TokenCounter,
}

impl TokenFair {
    pub fn new() -> TokenFair {
        TokenFair {
            accounts: AccountQueues::new(),
            order: BTreeSet::new(),
            idle: IdleCounters::default(),
            last_served: TokenCounter::default(),
        }
    }

    /// Returns the counter with which an account starts to wait.
    fn starting_counter(&mut self, account: &AccountId) -> TokenCounter {
        let remembered = self.idle.take(account).unwrap_or_default();
        remembered.max(self.lowest_counter())
    }

    fn lowest_counter(&self) -> TokenCounter {
        self.order
            .first()
            .map_or(self.last_served, |&(counter, _)| counter)
    }

    /// Removes an account whose queue is empty.
    fn forget(&mut self, account: SlotKey) {
        let (id, counter) = self.accounts.close(account);
        self.idle.put(id, counter);
        if self.order.is_empty() {
            self.last_served = self.last_served.max(counter);
        }
    }

    fn move_to(&mut self, account: SlotKey, counter: TokenCounter) {
        let share = &mut self.accounts[account].share;
        self.order.remove(&(*share, account));
        *share = counter;
        self.order.insert((counter, account));
    }
}

impl Discipline for TokenFair {
    fn estimate(&self, request: &PermitRequest) -> QueueEstimate {
        // By weights, as if all requests had the same number of tokens: that of the others is
        // not known before they are served.
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
                let counter = self.starting_counter(&request.account);
                let account = self.accounts.open(request, counter);
                self.order.insert((counter, account));
                account
            }
        };
        waiters[place].account_queue = Some(account);
        self.accounts.push(waiters, account, place);
    }

    fn next(&self) -> Option<SlotKey> {
        let &(_, account) = self.order.first()?;
        self.accounts[account].waiting.head()
    }

    fn weight(&self, _waiters: &Waiters) -> u64 {
        self.accounts.weights()
    }

    fn serve_next(&mut self, waiters: &mut Waiters) {
        let Some((counter, account)) = self.order.pop_first() else {
            return;
        };
        let line = &mut self.accounts[account];
        if let Some(place) = line.waiting.head() {
            line.share = counter.charged(waiters[place].request.tokens.into(), line.weight);
            self.accounts.remove(waiters, account, place);
        }
        let line = &self.accounts[account];
        if line.waiting.is_empty() {
            self.forget(account);
        } else {
            self.order.insert((line.share, account));
        }
    }

    fn cancel(&mut self, waiters: &mut Waiters, place: SlotKey) {
        let account = waiters[place].account_queue;
        let account = account.expect("waiter knows its account's line: set when it joined");
        self.accounts.remove(waiters, account, place);
        let line = &self.accounts[account];
        if line.waiting.is_empty() {
            self.order.remove(&(line.share, account));
            self.forget(account);
        }
    }

    fn charge_immediate(&mut self, request: &PermitRequest) {
        let counter = self
            .starting_counter(&request.account)
            .charged(request.tokens.into(), request.weight);
        self.idle.put(request.account.clone(), counter);
        self.last_served = counter;
    }

    fn correct_tokens(&mut self, account: &AccountId, weight: u32, charged: u64, actual: u64) {
        if let Some(place) = self.accounts.find(account) {
            let counter = self.accounts[place]
                .share
                .corrected(charged, actual, weight);
            self.move_to(place, counter);
            return;
        }
        let counter = self
            .idle
            .take(account)
            .unwrap_or_else(|| self.lowest_counter());
        self.idle
            .put(account.clone(), counter.corrected(charged, actual, weight));
    }

    fn check(&self, waiters: &Waiters) {
        self.accounts.check(waiters);
        assert_eq!(
            self.order.len(),
            self.accounts.queues().len(),
            "every account has its place"
        );
        for (account, line) in self.accounts.queues().iter() {
            assert!(
                self.order.contains(&(line.share, account)),
                "sorted by its counter"
            );
            assert!(
                !self.idle.counters.contains_key(&line.id),
                "waiting or idle, not both"
            );
        }
        self.idle.check();
    }
}

/// Counters of accounts that do not wait. Beyond the bound, the least served is forgotten.
#[derive(Default)]
struct IdleCounters {
    counters: HashMap<AccountId, TokenCounter>,
    order: BTreeSet<(TokenCounter, AccountId)>,
}

impl IdleCounters {
    fn take(&mut self, account: &AccountId) -> Option<TokenCounter> {
        let (id, counter) = self.counters.remove_entry(account)?;
        self.order.remove(&(counter, id));
        Some(counter)
    }

    fn put(&mut self, account: AccountId, counter: TokenCounter) {
        self.counters.insert(account.clone(), counter);
        self.order.insert((counter, account));
        if self.counters.len() > IDLE_COUNTERS_MAX
            && let Some((_, least)) = self.order.pop_first()
        {
            self.counters.remove(&least);
        }
    }

    fn check(&self) {
        assert!(
            self.counters.len() <= IDLE_COUNTERS_MAX,
            "what is remembered has a bound"
        );
        assert_eq!(self.counters.len(), self.order.len(), "each is sorted once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tests::{QueueFixture, request};

    #[test]
    fn the_account_served_least_is_next() {
        let mut line = QueueFixture::new(TokenFair::new());
        for n in 1..=3 {
            line.join(&format!("a{n}"), request("a").tokens(100));
            line.join(&format!("b{n}"), request("b").tokens(40));
        }
        assert_eq!(line.serve_all(), "a1 b1 b2 b3 a2 a3");
    }

    #[test]
    fn twice_the_weight_makes_a_token_cost_half() {
        let mut line = QueueFixture::new(TokenFair::new());
        for n in 1..=4 {
            line.join(&format!("a{n}"), request("a").tokens(100).weight(2));
            line.join(&format!("b{n}"), request("b").tokens(100).weight(1));
        }
        assert_eq!(line.serve(6), "a1 b1 a2 a3 b2 a4");
    }

    #[test]
    fn a_newcomer_does_not_catch_up_on_what_others_got_before() {
        let mut line = QueueFixture::new(TokenFair::new());
        for n in 1..=20 {
            line.join(&format!("a{n}"), request("a").tokens(1000));
        }
        line.serve(10);
        for n in 1..=4 {
            line.join(&format!("b{n}"), request("b").tokens(1000));
        }
        assert_eq!(line.serve(4), "a11 b1 a12 b2");
    }

    #[test]
    fn an_account_that_keeps_leaving_the_line_does_not_lose_its_debt() {
        let mut line = QueueFixture::new(TokenFair::new());
        line.join("a1", request("a").tokens(1000));
        for n in 1..=5 {
            line.join(&format!("b{n}"), request("b").tokens(300));
        }
        assert_eq!(line.serve(1), "a1");
        line.join("a2", request("a").tokens(1000));
        assert_eq!(line.serve_all(), "b1 b2 b3 b4 a2 b5");
    }

    #[test]
    fn a_correction_moves_a_waiting_account_either_way() {
        let mut line = QueueFixture::new(TokenFair::new());
        for n in 1..=3 {
            line.join(&format!("a{n}"), request("a").tokens(10));
            line.join(&format!("b{n}"), request("b").tokens(10));
        }
        assert_eq!(line.serve(2), "a1 b1");
        line.discipline.correct_tokens(&"a".into(), 1, 10, 500);
        assert_eq!(line.serve(1), "b2");
        line.discipline.correct_tokens(&"a".into(), 1, 500, 0);
        assert_eq!(line.serve(1), "a2");
    }

    #[test]
    fn accounts_that_have_passed_are_remembered_up_to_a_bound() {
        let mut discipline = TokenFair::new();
        for n in 0..10 * IDLE_COUNTERS_MAX {
            discipline.charge_immediate(&request(&format!("account{n}")).tokens(100).build());
        }
        discipline.check(&Waiters::new());
        assert_eq!(discipline.idle.counters.len(), IDLE_COUNTERS_MAX);
    }
}
