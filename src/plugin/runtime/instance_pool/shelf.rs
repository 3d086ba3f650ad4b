//! A shelf of the pool: idle instances of a thread, by owner.
//!
//! Holds no lock and knows no other shelf; generic, so that its order is tested without guests. The list of an owner
//! stays for as long as its next instance may come, so that a call in flight costs no allocation.

use std::collections::HashMap;

use hashbrown::HashTable;
use infergate_core::{AccountId, Millis};

use crate::plugin::runtime::call::account_digest;

/// Owner of an instance. Rankings off the request path have no account.
#[derive(Clone, Copy, Debug)]
pub struct InstanceOwner<'a> {
    pub revision: u64,
    pub account: Option<&'a AccountId>,
    /// Digest of the account; 0 without one.
    digest: u64,
}

impl<'a> InstanceOwner<'a> {
    /// Owner of the instances of a revision for an account.
    pub fn of(revision: u64, account: Option<&'a AccountId>) -> InstanceOwner<'a> {
        InstanceOwner {
            revision,
            account,
            digest: account.map_or(0, account_digest),
        }
    }

    /// Digest of the account, if there is one.
    pub fn account_digest(&self) -> Option<u64> {
        self.account.map(|_| self.digest)
    }

    fn hash(&self) -> u64 {
        hash(self.revision, self.digest)
    }
}

/// The digest is well mixed; revisions are counted from 0.
fn hash(revision: u64, digest: u64) -> u64 {
    digest.wrapping_add(revision.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Idle instances, or anything in tests.
pub struct Shelf<T> {
    owners: HashTable<OwnerInstances<T>>,
    count: usize,
    /// Counts what was put here: the order of waiting.
    puts: u64,
    /// Time of the latest [`Shelf::set_now`].
    now: Millis,
}

/// Instances of one owner.
struct OwnerInstances<T> {
    revision: u64,
    account: Option<AccountId>,
    digest: u64,
    /// The longest waiting first; used from the end.
    idle: Vec<IdleInstance<T>>,
}

struct IdleInstance<T> {
    since: WaitStart,
    bytes: usize,
    instance: T,
}

/// Moment since which an instance waits. Between shelves as exact as the calls of [`Shelf::set_now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitStart {
    since: Millis,
    put: u64,
}

impl<T> Default for Shelf<T> {
    fn default() -> Shelf<T> {
        Shelf {
            owners: HashTable::new(),
            count: 0,
            puts: 0,
            now: Millis(0),
        }
    }
}

impl<T> OwnerInstances<T> {
    fn is_of(&self, owner: &InstanceOwner<'_>) -> bool {
        self.revision == owner.revision
            && self.digest == owner.digest
            && self.account.as_ref() == owner.account
    }

    fn oldest(&self) -> Option<WaitStart> {
        self.idle.first().map(|first| first.since)
    }
}

impl<T> Shelf<T> {
    /// Instances on it.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Instances that are put here from now on wait since `now`.
    pub fn set_now(&mut self, now: Millis) {
        self.now = now;
    }

    /// The owner's instance that was used last, with its bytes.
    pub fn take(&mut self, owner: InstanceOwner<'_>) -> Option<(T, usize)> {
        let own = self
            .owners
            .find_mut(owner.hash(), |known| known.is_of(&owner))?;
        let IdleInstance {
            bytes, instance, ..
        } = own.idle.pop()?;
        self.count -= 1;
        Some((instance, bytes))
    }

    /// Keeps an instance of so many bytes.
    pub fn put(&mut self, owner: InstanceOwner<'_>, instance: T, bytes: usize) {
        self.puts += 1;
        self.count += 1;
        let since = WaitStart {
            since: self.now,
            put: self.puts,
        };
        let idle = IdleInstance {
            since,
            bytes,
            instance,
        };
        let is_own = |known: &OwnerInstances<T>| known.is_of(&owner);
        let rehash = |known: &OwnerInstances<T>| hash(known.revision, known.digest);
        let entry = self.owners.entry(owner.hash(), is_own, rehash);
        let own = entry.or_insert_with(|| OwnerInstances {
            revision: owner.revision,
            account: owner.account.cloned(),
            digest: owner.digest,
            idle: Vec::new(),
        });
        own.into_mut().idle.push(idle);
    }

    /// Adds the bytes of each revision.
    pub fn add_bytes(&self, of: &mut HashMap<u64, usize>) {
        for owner in &self.owners {
            let bytes: usize = owner.idle.iter().map(|waiting| waiting.bytes).sum();
            if bytes > 0 {
                *of.entry(owner.revision).or_default() += bytes;
            }
        }
    }

    /// Since when the longest waiting instance waits, of this revision where one is named.
    pub fn oldest(&self, of: Option<u64>) -> Option<WaitStart> {
        let owners = self.owners.iter();
        owners
            .filter(|owner| of.is_none_or(|of| owner.revision == of))
            .filter_map(OwnerInstances::oldest)
            .min()
    }

    /// Removes the longest waiting instance, of this revision where one is named; it and its bytes.
    pub fn remove_oldest(&mut self, of: Option<u64>) -> Option<(T, usize)> {
        let oldest = self.oldest(of)?;
        let mut owners = self.owners.iter_mut();
        let own = owners.find(|owner| owner.oldest() == Some(oldest))?;
        let waiting = own.idle.remove(0);
        self.count -= 1;
        Some((waiting.instance, waiting.bytes))
    }

    /// Removes what is gone by its revision or since when it waits, and owners that have none left. Returns the
    /// bytes that were removed.
    pub fn remove_where(
        &mut self,
        is_gone: impl Fn(u64, Millis) -> bool,
        removed: &mut Vec<T>,
    ) -> usize {
        let mut bytes = 0;
        let before = removed.len();
        self.owners.retain(|owner| {
            let revision = owner.revision;
            let gone = owner
                .idle
                .extract_if(.., |waiting| is_gone(revision, waiting.since.since));
            for waiting in gone {
                bytes += waiting.bytes;
                removed.push(waiting.instance);
            }
            !owner.idle.is_empty()
        });
        self.count -= removed.len() - before;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put<T>(shelf: &mut Shelf<T>, revision: u64, account: &str, instance: T, bytes: usize) {
        let account = AccountId::from(account);
        shelf.put(InstanceOwner::of(revision, Some(&account)), instance, bytes);
    }

    fn take<T>(shelf: &mut Shelf<T>, revision: u64, account: &str) -> Option<T> {
        let account = AccountId::from(account);
        let taken = shelf.take(InstanceOwner::of(revision, Some(&account)));
        taken.map(|(instance, _)| instance)
    }

    #[test]
    fn the_longest_waiting_instance_goes_first_and_of_one_revision_where_it_is_named() {
        let mut shelf = Shelf::default();
        put(&mut shelf, 1, "a", "small", 10);
        put(&mut shelf, 2, "a", "large, old", 40);
        put(&mut shelf, 2, "b", "large, new", 50);
        let mut bytes = HashMap::new();
        shelf.add_bytes(&mut bytes);
        assert_eq!(bytes, HashMap::from([(1, 10), (2, 90)]));
        assert_eq!(shelf.remove_oldest(Some(2)), Some(("large, old", 40)));
        assert_eq!(shelf.remove_oldest(Some(2)), Some(("large, new", 50)));
        assert_eq!(shelf.remove_oldest(Some(2)), None);
        assert_eq!(shelf.remove_oldest(None), Some(("small", 10)));
        assert_eq!((shelf.len(), shelf.remove_oldest(None)), (0, None));
    }

    #[test]
    fn an_instance_is_found_by_its_revision_and_its_account_alone() {
        let mut shelf = Shelf::default();
        put(&mut shelf, 1, "a", "first", 1);
        put(&mut shelf, 1, "a", "second", 1);
        shelf.put(InstanceOwner::of(1, None), "nobody's", 1);
        for (revision, account) in [(2, "a"), (1, "b"), (1, "")] {
            assert_eq!(take(&mut shelf, revision, account), None, "{account}");
        }
        assert_eq!(take(&mut shelf, 1, "a"), Some("second"));
        assert_eq!(take(&mut shelf, 1, "a"), Some("first"));
        assert_eq!(take(&mut shelf, 1, "a"), None);
        let nobodys = shelf.take(InstanceOwner::of(1, None));
        assert_eq!((nobodys, shelf.len()), (Some(("nobody's", 1)), 0));
    }

    #[test]
    fn a_guest_that_was_used_since_is_not_idle() {
        let mut shelf = Shelf::default();
        put(&mut shelf, 1, "a", "idle", 1);
        put(&mut shelf, 1, "b", "used", 2);
        shelf.set_now(Millis(50_000));
        let used = take(&mut shelf, 1, "b").unwrap();
        put(&mut shelf, 1, "b", used, 2);
        let mut removed = Vec::new();
        let bytes = shelf.remove_where(|_, since| since.0 <= 1_000, &mut removed);
        assert_eq!((bytes, removed), (1, vec!["idle"]));
        assert_eq!((take(&mut shelf, 1, "b"), shelf.len()), (Some("used"), 0));
    }
}
