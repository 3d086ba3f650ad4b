//! Pool of idle instances: used again by the same revision for the same account, never by another.
//!
//! Makes no instance and checks none: all of them have answered well. Bounded by the slots of the engine, by
//! [`InstancePool::allow_bytes`] and by [`IDLE_MAX`], which [`InstancePool::expire`] enforces whenever it is
//! called. Over its bytes, the revision that keeps most memory gives up its longest idle instance.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use infergate_core::{AccountId, Millis};
use parking_lot::Mutex;

use crate::plugin::runtime::store::GuestInstance;

/// Memory of all idle instances together, unless the configuration says otherwise. Two MiB for each of 128
/// slots: an instance from the usual tools needs a little more than one.
pub const IDLE_MIB_DEFAULT: u64 = 256;
/// A guest not asked for so long is dropped: the next call makes one in well under a millisecond.
pub const IDLE_MAX: Millis = Millis(60_000);

/// Owner of a guest. Rankings off the request path have no account.
pub type InstanceOwner = (u64, Option<AccountId>);

/// Idle instances of the process.
pub struct InstancePool {
    /// Guards the map only; taken twice a call, for a lookup each. Guests are dropped outside it.
    idle: Mutex<IdleInstances<Box<GuestInstance>>>,
    bytes_max: AtomicUsize,
}

impl Default for InstancePool {
    fn default() -> InstancePool {
        InstancePool {
            idle: Mutex::default(),
            bytes_max: AtomicUsize::new((IDLE_MIB_DEFAULT as usize) << 20),
        }
    }
}

impl InstancePool {
    /// The owner's guest that was used last.
    pub fn take(&self, owner: &InstanceOwner) -> Option<Box<GuestInstance>> {
        self.idle.lock().take(owner)
    }

    /// Keeps a guest for its owner's next call, as far as memory for waiting guests lasts.
    pub fn put(&self, owner: InstanceOwner, instance: Box<GuestInstance>) {
        let bytes = instance.held_bytes();
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if bytes > bytes_max {
            return;
        }
        let mut idle = self.idle.lock();
        idle.put(owner, instance, bytes);
        while idle.bytes > bytes_max {
            let gone = idle.remove_of_largest();
            parking_lot::MutexGuard::unlocked(&mut idle, || drop(gone));
        }
    }

    /// Drops the guest that has waited longest; false when none waits.
    pub fn evict(&self) -> bool {
        let oldest = self.idle.lock().remove_oldest();
        oldest.is_some()
    }

    /// Drops all guests of a revision: it is gone.
    pub fn forget(&self, revision: u64) {
        let gone = self.idle.lock().remove_where(|(of, _), _| *of == revision);
        drop(gone);
    }

    /// Removes instances that are idle since [`IDLE_MAX`] before `now`, for the caller to drop where it may take
    /// time.
    /// Instances that are put here afterwards are idle since `now`, so that putting reads no clock.
    pub fn expire(&self, now: Millis) -> ExpiredInstances {
        let mut idle = self.idle.lock();
        idle.now = now;
        let idle_since = now.0.saturating_sub(IDLE_MAX.0);
        if idle_since == 0 {
            return ExpiredInstances::default();
        }
        ExpiredInstances(idle.remove_where(|_, since| since.0 <= idle_since))
    }

    /// Memory for all waiting guests together from now on. Less than is kept now takes effect with the
    /// next guest that is put here, or expires.
    pub fn allow_bytes(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Memory of all waiting guests together.
    pub fn held_bytes(&self) -> usize {
        self.idle.lock().bytes
    }
}

/// Instances that were idle too long, dropped with this value.
#[derive(Default)]
#[allow(clippy::vec_box)] // as they lay in the map: instances are not moved
pub struct ExpiredInstances(Vec<Box<GuestInstance>>);

impl ExpiredInstances {
    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The map, of guests or of anything in tests.
struct IdleInstances<T> {
    /// The longest waiting first; used from the end.
    by_owner: HashMap<InstanceOwner, Vec<IdleInstance<T>>>,
    /// Counts what was put here: the order of waiting.
    puts: u64,
    /// Memory of all idle instances.
    bytes: usize,
    /// Time of the latest [`InstancePool::expire`].
    now: Millis,
}

struct IdleInstance<T> {
    put: u64,
    since: Millis,
    bytes: usize,
    instance: T,
}

impl<T> Default for IdleInstances<T> {
    fn default() -> IdleInstances<T> {
        IdleInstances {
            by_owner: HashMap::new(),
            puts: 0,
            bytes: 0,
            now: Millis(0),
        }
    }
}

impl<T> IdleInstances<T> {
    fn take(&mut self, owner: &InstanceOwner) -> Option<T> {
        let own = self.by_owner.get_mut(owner)?;
        let last = own.pop();
        if own.is_empty() && last.is_none() {
            self.by_owner.remove(owner);
        }
        let IdleInstance {
            bytes,
            instance: guest,
            ..
        } = last?;
        self.bytes -= bytes;
        Some(guest)
    }

    fn put(&mut self, owner: InstanceOwner, guest: T, bytes: usize) {
        self.puts += 1;
        self.bytes += bytes;
        let waiting = IdleInstance {
            put: self.puts,
            since: self.now,
            bytes,
            instance: guest,
        };
        self.by_owner.entry(owner).or_default().push(waiting);
    }

    fn remove_oldest(&mut self) -> Option<T> {
        let oldest = self
            .by_owner
            .iter()
            .filter_map(|(owner, own)| Some((own.first()?.put, owner)))
            .min_by_key(|(put, _)| *put)
            .map(|(_, owner)| owner.clone())?;
        self.remove_first(&oldest)
    }

    /// The longest waiting guest of the revision that keeps most memory: a plugin of large guests
    /// makes room at its own cost, not at that of its neighbours.
    fn remove_of_largest(&mut self) -> Option<T> {
        let mut of: HashMap<u64, usize> = HashMap::new();
        for ((revision, _), own) in &self.by_owner {
            let bytes: usize = own.iter().map(|waiting| waiting.bytes).sum();
            *of.entry(*revision).or_default() += bytes;
        }
        let (largest, _) = of.into_iter().max_by_key(|(of, bytes)| (*bytes, *of))?;
        let oldest = self
            .by_owner
            .iter()
            .filter(|((of, _), _)| *of == largest)
            .filter_map(|(owner, own)| Some((own.first()?.put, owner)))
            .min_by_key(|(put, _)| *put)
            .map(|(_, owner)| owner.clone())?;
        self.remove_first(&oldest)
    }

    fn remove_first(&mut self, owner: &InstanceOwner) -> Option<T> {
        let own = self.by_owner.get_mut(owner)?;
        let waiting = own.remove(0);
        if own.is_empty() {
            self.by_owner.remove(owner);
        }
        self.bytes -= waiting.bytes;
        Some(waiting.instance)
    }

    fn remove_where(&mut self, gone: impl Fn(&InstanceOwner, Millis) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        self.by_owner.retain(|owner, own| {
            removed.extend(own.extract_if(.., |waiting| gone(owner, waiting.since)));
            // An owner without a guest keeps its empty list for as long as its next guest may come.
            !own.is_empty()
        });
        self.bytes -= removed.iter().map(|waiting| waiting.bytes).sum::<usize>();
        removed
            .into_iter()
            .map(|waiting| waiting.instance)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(revision: u64, account: &str) -> InstanceOwner {
        (revision, Some(AccountId::from(account)))
    }

    #[test]
    fn the_revision_with_most_memory_makes_room_with_its_longest_waiting_guest() {
        let mut idle = IdleInstances::default();
        idle.put(owner(1, "a"), "small", 10);
        idle.put(owner(2, "a"), "large, old", 40);
        idle.put(owner(2, "b"), "large, new", 50);
        assert_eq!(idle.bytes, 100);
        assert_eq!(idle.remove_of_largest(), Some("large, old"));
        assert_eq!(idle.remove_of_largest(), Some("large, new"));
        assert_eq!(idle.remove_of_largest(), Some("small"));
        assert_eq!((idle.bytes, idle.remove_of_largest()), (0, None));
    }

    #[test]
    fn a_guest_that_was_used_since_is_not_idle() {
        let mut idle = IdleInstances::default();
        idle.put(owner(1, "a"), "idle", 1);
        idle.put(owner(1, "b"), "used", 1);
        idle.now = Millis(50_000);
        let used = idle.take(&owner(1, "b")).unwrap();
        idle.put(owner(1, "b"), used, 1);
        assert_eq!(idle.remove_where(|_, since| since.0 <= 1_000), ["idle"]);
        assert_eq!((idle.bytes, idle.take(&owner(1, "b"))), (1, Some("used")));
        assert_eq!(idle.bytes, 0);
    }
}
