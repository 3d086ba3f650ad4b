//! Queues of waiters by account, shared by the two fair disciplines.
//!
//! Not an order of accounts; `S` is the state a discipline keeps with each account to order them. An
//! account is forgotten with its last waiter, so memory follows the waiters and not the accounts ever
//! seen. O(1). The hash is keyed per process ([`DefaultHashBuilder`]), so that account names cannot be
//! chosen to collide.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::discipline::{QueueEstimate, Waiters, count_live};
use super::permit_request::PermitRequest;
use super::queue::Queue;
use super::slab::{Slab, SlotKey};
use crate::AccountId;

/// A table that empties is replaced by a new one unless it is this small; see `PLACES_KEPT`.
const TABLE_KEPT: usize = 1024;

/// An account that has waiters.
pub(super) struct AccountQueue<S> {
    pub id: AccountId,
    hash: u64,
    /// Share relative to the other accounts, at least 1; that of the newest request.
    pub weight: u32,
    pub waiting: Queue,
    /// Waiters that are bounded elsewhere.
    outside: usize,
    /// State of the discipline for the account.
    pub share: S,
}

/// Slot of an account's queue. The name stays with the queue; its hash is here, so that a table of
/// 100,000 accounts is moved without visiting them.
struct AccountSlot {
    hash: u64,
    queue: SlotKey,
}

/// All accounts that have waiters.
pub(super) struct AccountQueues<S> {
    table: HashTable<AccountSlot>,
    hasher: DefaultHashBuilder,
    queues: Slab<AccountQueue<S>>,
    weights: u64,
    /// Waiters in all queues.
    waiting: usize,
}

impl<S> AccountQueues<S> {
    pub fn new() -> AccountQueues<S> {
        AccountQueues {
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            queues: Slab::new(),
            weights: 0,
            waiting: 0,
        }
    }

    pub fn find(&self, account: &AccountId) -> Option<SlotKey> {
        let hash = self.hasher.hash_one(account);
        let is_same =
            |named: &AccountSlot| named.hash == hash && self.queues[named.queue].id == *account;
        self.table.find(hash, is_same).map(|named| named.queue)
    }

    /// Updates the account's weight.
    pub fn set_weight(&mut self, account: SlotKey, weight: u32) {
        let line = &mut self.queues[account];
        let weight = weight.max(1);
        self.weights = self.weights - u64::from(line.weight) + u64::from(weight);
        line.weight = weight;
    }

    /// Opens an empty queue for the account of `request`, which has none.
    pub fn open(&mut self, request: &PermitRequest, share: S) -> SlotKey {
        let weight = request.weight.max(1);
        self.weights += u64::from(weight);
        let hash = self.hasher.hash_one(&request.account);
        let line = self.queues.insert(AccountQueue {
            id: request.account.clone(),
            hash,
            weight,
            waiting: Queue::default(),
            outside: 0,
            share,
        });
        self.table
            .insert_unique(hash, AccountSlot { hash, queue: line }, |named| named.hash);
        line
    }

    /// Adds a waiter to its account's queue: at the end, or at the head for a retry.
    pub fn push(&mut self, waiters: &mut Waiters, account: SlotKey, place: SlotKey) {
        self.waiting += 1;
        let line = &mut self.queues[account];
        let request = &waiters[place].request;
        line.outside += usize::from(request.is_bounded_elsewhere);
        match request.is_retry {
            true => line.waiting.push_front(waiters, place),
            false => line.waiting.push_back(waiters, place),
        }
    }

    /// Removes a waiter from its account's queue.
    pub fn remove(&mut self, waiters: &mut Waiters, account: SlotKey, place: SlotKey) {
        self.waiting -= 1;
        let line = &mut self.queues[account];
        line.outside -= usize::from(waiters[place].request.is_bounded_elsewhere);
        line.waiting.remove(waiters, place);
    }

    /// Removes an account whose queue is empty.
    pub fn close(&mut self, account: SlotKey) -> (AccountId, S) {
        let line = self.queues.remove(account);
        self.weights -= u64::from(line.weight);
        if let Ok(entry) = self
            .table
            .find_entry(line.hash, |named| named.queue == account)
        {
            entry.remove();
        }
        if self.table.is_empty() && self.table.capacity() > TABLE_KEPT {
            self.table = HashTable::new();
        }
        (line.id, line.share)
    }

    /// Returns the account queues as a slab, for a discipline that orders them in queues of its own.
    pub fn queues_mut(&mut self) -> &mut Slab<AccountQueue<S>> {
        &mut self.queues
    }

    /// Sum of the weights of all accounts with waiters.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    pub fn queues(&self) -> &Slab<AccountQueue<S>> {
        &self.queues
    }

    /// Returns the estimate for one more request of the account, with accounts served in proportion to
    /// their weights. Every `weight` requests before it in its own queue take one round. In a round each
    /// other account gets its weight, or as many grants as it has waiters.
    pub fn estimate(&self, request: &PermitRequest) -> QueueEstimate {
        let weight = u64::from(request.weight.max(1));
        let account_line = self.find(&request.account);
        let (own, outside, others_weight, others_first) = match account_line {
            // On average it is half a round until its turn comes.
            Some(account) => {
                let line = &self.queues[account];
                let others = self.weights - u64::from(line.weight);
                (line.waiting.len(), line.outside, others, others / 2)
            }
            // A new account starts behind all others.
            None => (0, 0, self.weights, self.weights),
        };
        let before = if request.is_retry { 0 } else { own };
        let rounds = before as u64 / weight;
        let others = others_first.saturating_add(rounds.saturating_mul(others_weight));
        let others_waiting = self.waiting - own;
        let others = usize::try_from(others)
            .unwrap_or(usize::MAX)
            .min(others_waiting);
        QueueEstimate {
            queue_depth: own - outside,
            grants_ahead: before + others,
            account_queue: account_line,
        }
    }

    /// Asserts that table, queues and waiters agree.
    pub fn check(&self, waiters: &Waiters) {
        let mut waiting = 0;
        let mut weights = 0;
        for (account, line) in self.queues.iter() {
            line.waiting.check(waiters);
            assert!(
                !line.waiting.is_empty(),
                "an account without waiters is forgotten"
            );
            assert_eq!(
                self.find(&line.id),
                Some(account),
                "an account is found by its name"
            );
            for place in line.waiting.iter(waiters) {
                let waiter = &waiters[place];
                assert_eq!(
                    waiter.account_queue,
                    Some(account),
                    "a waiter knows its line"
                );
                assert_eq!(
                    waiter.request.account, line.id,
                    "a waiter stands in its account's line"
                );
            }
            waiting += line.waiting.len();
            weights += u64::from(line.weight);
        }
        assert_eq!(waiting, count_live(waiters), "every waiter is in line");
        assert_eq!(waiting, self.waiting, "waiters are the sum over accounts");
        assert_eq!(weights, self.weights, "weights are the sum over accounts");
        assert_eq!(
            self.table.len(),
            self.queues.len(),
            "the table names every account once"
        );
    }
}

impl<S> Index<SlotKey> for AccountQueues<S> {
    type Output = AccountQueue<S>;

    fn index(&self, account: SlotKey) -> &AccountQueue<S> {
        &self.queues[account]
    }
}

impl<S> IndexMut<SlotKey> for AccountQueues<S> {
    fn index_mut(&mut self, account: SlotKey) -> &mut AccountQueue<S> {
        &mut self.queues[account]
    }
}
