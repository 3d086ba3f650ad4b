//! One line of waiters per account: what the two fair disciplines have in common.
//!
//! It does not order the accounts; `S` is what a discipline keeps with each to do so. An account
//! is known while it has somebody waiting and forgotten with the last one, so memory follows the
//! waiters and not the accounts ever seen. O(1); the hash is keyed per process
//! ([`DefaultHashBuilder`]), so that account names cannot be chosen to collide.

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::ask::Ask;
use super::discipline::{Prospect, Waiters};
use super::line::Line;
use super::slab::{Place, Slab};
use crate::AccountId;

/// A table that empties is replaced by a new one unless it is this small; see `PLACES_KEPT`.
const TABLE_KEPT: usize = 1024;

/// An account that has somebody waiting.
pub(super) struct AccountLine<S> {
    pub id: AccountId,
    hash: u64,
    /// Its share relative to the others, at least 1; the one its newest request came with.
    pub weight: u32,
    pub waiting: Line,
    /// What the discipline keeps with it.
    pub share: S,
}

/// Where an account's line is. The name stays with the line; its hash is here, so that a table of
/// 100,000 accounts is moved without visiting them.
struct Named {
    hash: u64,
    line: Place,
}

/// All accounts that have somebody waiting.
pub(super) struct AccountLines<S> {
    table: HashTable<Named>,
    hasher: DefaultHashBuilder,
    lines: Slab<AccountLine<S>>,
    weights: u64,
}

impl<S> AccountLines<S> {
    pub fn new() -> AccountLines<S> {
        AccountLines {
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            lines: Slab::new(),
            weights: 0,
        }
    }

    pub fn find(&self, account: &AccountId) -> Option<Place> {
        let hash = self.hasher.hash_one(account);
        let is_same = |named: &Named| named.hash == hash && self.lines[named.line].id == *account;
        self.table.find(hash, is_same).map(|named| named.line)
    }

    /// Brings the account's weight up to date.
    pub fn set_weight(&mut self, account: Place, weight: u32) {
        let line = &mut self.lines[account];
        let weight = weight.max(1);
        self.weights = self.weights - u64::from(line.weight) + u64::from(weight);
        line.weight = weight;
    }

    /// Opens a line, still empty, for the account of `ask`, which has none.
    pub fn open(&mut self, ask: &Ask, share: S) -> Place {
        let weight = ask.weight.max(1);
        self.weights += u64::from(weight);
        let hash = self.hasher.hash_one(&ask.account);
        let line = self.lines.insert(AccountLine {
            id: ask.account.clone(),
            hash,
            weight,
            waiting: Line::default(),
            share,
        });
        self.table
            .insert_unique(hash, Named { hash, line }, |named| named.hash);
        line
    }

    /// Forgets an account whose line has become empty.
    pub fn close(&mut self, account: Place) -> (AccountId, S) {
        let line = self.lines.remove(account);
        self.weights -= u64::from(line.weight);
        if let Ok(entry) = self
            .table
            .find_entry(line.hash, |named| named.line == account)
        {
            entry.remove();
        }
        if self.table.is_empty() && self.table.capacity() > TABLE_KEPT {
            self.table = HashTable::new();
        }
        (line.id, line.share)
    }

    /// The lines as a slab, for a discipline that keeps them in lines of their own.
    pub fn lines_mut(&mut self) -> &mut Slab<AccountLine<S>> {
        &mut self.lines
    }

    /// Weights of all accounts that have somebody waiting.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    pub fn lines(&self) -> &Slab<AccountLine<S>> {
        &self.lines
    }

    /// What one more request of the account would find when accounts are served in proportion to
    /// their weights: of those before it in its own line each `weight` take one round of the
    /// others, who get their weights in it as far as they have that many waiting.
    pub fn prospect(&self, ask: &Ask, waiters: &Waiters) -> Prospect {
        let weight = u64::from(ask.weight.max(1));
        let account_line = self.find(&ask.account);
        let (own, others_weight, others_first) = match account_line {
            // On average it is half a round until its turn comes.
            Some(account) => {
                let line = &self.lines[account];
                let others = self.weights - u64::from(line.weight);
                (line.waiting.len(), others, others / 2)
            }
            // It begins behind everybody.
            None => (0, self.weights, self.weights),
        };
        let before = if ask.resume { 0 } else { own };
        let rounds = before as u64 / weight;
        let others = others_first.saturating_add(rounds.saturating_mul(others_weight));
        let others_waiting = waiters.len() - own;
        let others = usize::try_from(others)
            .unwrap_or(usize::MAX)
            .min(others_waiting);
        Prospect {
            line_depth: own,
            grants_ahead: before + others,
            account_line,
        }
    }

    /// Asserts that table, lines and waiters agree.
    pub fn check(&self, waiters: &Waiters) {
        let mut waiting = 0;
        let mut weights = 0;
        for (account, line) in self.lines.iter() {
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
                    waiter.account_line,
                    Some(account),
                    "a waiter knows its line"
                );
                assert_eq!(
                    waiter.ask.account, line.id,
                    "a waiter stands in its account's line"
                );
            }
            waiting += line.waiting.len();
            weights += u64::from(line.weight);
        }
        assert_eq!(waiting, waiters.len(), "every waiter is in line");
        assert_eq!(weights, self.weights, "weights are the sum over accounts");
        assert_eq!(
            self.table.len(),
            self.lines.len(),
            "the table names every account once"
        );
    }
}

impl<S> Index<Place> for AccountLines<S> {
    type Output = AccountLine<S>;

    fn index(&self, account: Place) -> &AccountLine<S> {
        &self.lines[account]
    }
}

impl<S> IndexMut<Place> for AccountLines<S> {
    fn index_mut(&mut self, account: Place) -> &mut AccountLine<S> {
        &mut self.lines[account]
    }
}
