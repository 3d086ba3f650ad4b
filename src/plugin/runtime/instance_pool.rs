//! Pool of idle instances: used again by the same revision for the same account, never by another.
//!
//! Makes no instance and checks none: all of them have answered well. Each thread that calls guests has a shelf of
//! its own, so that two of them do not wait for one lock. A caller whose shelf has none takes from another one:
//! no more instances are kept than calls have run at once. Bounded, all shelves together, by the slots of the
//! engine, by [`InstancePool::allow_bytes`] and by [`IDLE_MAX`], which [`InstancePool::expire`] enforces whenever it
//! is called. Over its bytes, the revision that keeps most memory gives up its longest idle instance.

mod shelf;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use infergate_core::Millis;
use parking_lot::Mutex;

use crate::plugin::runtime::store::GuestInstance;

pub use shelf::InstanceOwner;
use shelf::Shelf;

/// Memory of all idle instances together, unless the configuration says otherwise. Two MiB for each of 128
/// slots: an instance from the usual tools needs a little more than one.
pub const IDLE_MIB_DEFAULT: u64 = 256;
/// A guest not asked for so long is dropped: the next call makes one in well under a millisecond.
pub const IDLE_MAX: Millis = Millis(60_000);
/// Looks for a guest that waits, while the count says that there is one.
const EVICTION_LOOKS_MAX: u32 = 1_000;
/// Shelves of a pool. Beyond so many threads two of them share one.
const SHELVES: usize = 32;

thread_local! {
    /// Shelf of this thread, given in the order in which threads first ask.
    static SHELF: Cell<usize> = {
        static GIVEN: AtomicUsize = AtomicUsize::new(0);
        Cell::new(GIVEN.fetch_add(1, Ordering::Relaxed) % SHELVES)
    };
}

/// Idle instances of the process.
pub struct InstancePool {
    shelves: [SharedShelf; SHELVES],
    /// Memory of all idle instances.
    bytes: AtomicUsize,
    bytes_max: AtomicUsize,
}

/// A shelf, on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct SharedShelf {
    /// Guards this shelf only; taken twice a call by its own thread, for a lookup each. Guests are dropped
    /// outside it, and no two shelves are locked at once.
    idle: Mutex<Shelf<Box<GuestInstance>>>,
    /// Instances on it, written under the lock: nothing is looked for on an empty shelf.
    count: AtomicUsize,
}

impl SharedShelf {
    /// Changes the shelf.
    fn with<R>(&self, change: impl FnOnce(&mut Shelf<Box<GuestInstance>>) -> R) -> R {
        let mut idle = self.idle.lock();
        let changed = change(&mut idle);
        self.count.store(idle.len(), Ordering::Relaxed);
        changed
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }
}

impl Default for InstancePool {
    fn default() -> InstancePool {
        InstancePool {
            shelves: Default::default(),
            bytes: AtomicUsize::new(0),
            bytes_max: AtomicUsize::new((IDLE_MIB_DEFAULT as usize) << 20),
        }
    }
}

impl InstancePool {
    /// The owner's guest that was used last on this thread, or else one that another thread has kept.
    pub fn take(&self, owner: InstanceOwner<'_>) -> Option<Box<GuestInstance>> {
        let own = SHELF.get();
        let others = (own + 1..SHELVES).chain(0..own);
        let mut shelves = std::iter::once(own).chain(others);
        let taken = shelves.find_map(|at| {
            let shelf = &self.shelves[at];
            match shelf.is_empty() {
                true => None,
                false => shelf.with(|idle| idle.take(owner)),
            }
        });
        taken.map(|(instance, bytes)| {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            instance
        })
    }

    /// Keeps a guest for its owner's next call, as far as memory for waiting guests lasts.
    pub fn put(&self, owner: InstanceOwner<'_>, instance: Box<GuestInstance>) {
        let bytes = instance.held_bytes();
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if bytes > bytes_max {
            return;
        }
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.shelves[SHELF.get()].with(|idle| idle.put(owner, instance, bytes));
        if before + bytes > bytes_max {
            self.shrink(bytes_max);
        }
    }

    /// Drops guests of the revisions that keep most memory until the others fit.
    fn shrink(&self, bytes_max: usize) {
        while self.bytes.load(Ordering::Relaxed) > bytes_max {
            let mut of: HashMap<u64, usize> = HashMap::new();
            for shelf in &self.shelves {
                shelf.idle.lock().add_bytes(&mut of);
            }
            let largest = of.into_iter().max_by_key(|(of, bytes)| (*bytes, *of));
            let Some((largest, _)) = largest else { return };
            if !self.drop_oldest(Some(largest)) {
                return;
            }
        }
    }

    /// Drops the guest that has waited longest; false when none waits.
    pub fn evict(&self) -> bool {
        // Guests that other threads take and put back may be behind the look and then before it. Their memory is
        // counted as long as one of them waits.
        (0..EVICTION_LOOKS_MAX)
            .take_while(|look| *look == 0 || self.held_bytes() > 0)
            .any(|_| self.drop_oldest(None))
    }

    /// Drops the longest waiting guest, of this revision where one is named.
    fn drop_oldest(&self, of: Option<u64>) -> bool {
        let waiting = self.shelves.iter().filter(|shelf| !shelf.is_empty());
        let oldest = waiting
            .filter_map(|shelf| Some((shelf.idle.lock().oldest(of)?, shelf)))
            .min_by_key(|(since, _)| *since);
        // Another thread may have taken it meanwhile: then any shelf that still has one.
        let first = oldest.map(|(_, shelf)| shelf);
        let mut shelves = first.into_iter().chain(&self.shelves);
        let removed = shelves.find_map(|shelf| shelf.with(|idle| idle.remove_oldest(of)));
        removed.is_some_and(|(instance, bytes)| {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            drop(instance);
            true
        })
    }

    /// Drops all guests of a revision: it is gone.
    pub fn forget(&self, revision: u64) {
        drop(self.remove_where(|of, _| of == revision));
    }

    /// Removes instances that are idle since [`IDLE_MAX`] before `now`, for the caller to drop where it may take
    /// time.
    /// Instances that are put here afterwards are idle since `now`, so that putting reads no clock.
    pub fn expire(&self, now: Millis) -> ExpiredInstances {
        for shelf in &self.shelves {
            shelf.idle.lock().set_now(now);
        }
        match now.0.saturating_sub(IDLE_MAX.0) {
            0 => ExpiredInstances::default(),
            idle_since => ExpiredInstances(self.remove_where(|_, since| since.0 <= idle_since)),
        }
    }

    /// Memory for all waiting guests together from now on. Less than is kept now takes effect with the
    /// next guest that is put here, or expires.
    pub fn allow_bytes(&self, bytes: usize) {
        self.bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Memory of all waiting guests together.
    pub fn held_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    #[allow(clippy::vec_box)] // as they lay on the shelf: instances are not moved
    fn remove_where(&self, is_gone: impl Fn(u64, Millis) -> bool) -> Vec<Box<GuestInstance>> {
        let mut removed = Vec::new();
        for shelf in &self.shelves {
            let bytes = shelf.with(|idle| idle.remove_where(&is_gone, &mut removed));
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        removed
    }
}

/// Instances that were idle too long, dropped with this value.
#[derive(Default)]
#[allow(clippy::vec_box)] // as they lay on the shelf: instances are not moved
pub struct ExpiredInstances(Vec<Box<GuestInstance>>);

impl ExpiredInstances {
    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
