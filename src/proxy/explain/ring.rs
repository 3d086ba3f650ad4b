//! The last stories, in a ring of fixed size.
//!
//! It keeps no index: keeping a story is one counter and one short lock of its slot alone, and
//! looking one up reads all slots, newest first, which operators can wait a millisecond for. A
//! story that is overwritten is freed outside the lock.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::Story;

/// Stories kept: some minutes at ten requests a second, enough of a burst at thousands to find an
/// example of everything in it, and a few MiB.
pub const STORIES_KEPT: usize = 4096;

/// The ring.
pub struct Stories {
    /// Each guards a pointer; held by the request that leaves its story there, and for one copy of
    /// it by who asks.
    slots: Box<[Mutex<Option<Box<Story>>>]>,
    /// Stories kept so far; the next one's slot by the remainder.
    kept: AtomicUsize,
}

impl Default for Stories {
    fn default() -> Stories {
        Stories::with_capacity(STORIES_KEPT)
    }
}

impl Stories {
    pub(super) fn with_capacity(capacity: usize) -> Stories {
        Stories {
            slots: (0..capacity).map(|_| Mutex::default()).collect(),
            kept: AtomicUsize::new(0),
        }
    }

    /// Keeps a story; the oldest goes.
    pub fn keep(&self, story: Box<Story>) {
        let number = self.kept.fetch_add(1, Ordering::Relaxed);
        let overwritten = self.slots[number % self.slots.len()].lock().replace(story);
        drop(overwritten);
    }

    /// The story of a request, if it is still there.
    pub fn find(&self, request_id: &str) -> Option<Story> {
        self.newest_first().find_map(|slot| {
            let slot = slot.lock();
            let story = slot.as_deref()?;
            (story.request_id() == request_id).then(|| story.clone())
        })
    }

    /// The last `count` stories, the newest first. One that is just being left may be missing.
    pub fn newest(&self, count: usize) -> Vec<Story> {
        let stories = self
            .newest_first()
            .filter_map(|slot| slot.lock().as_deref().cloned());
        stories.take(count).collect()
    }

    fn newest_first(&self) -> impl Iterator<Item = &Mutex<Option<Box<Story>>>> {
        let capacity = self.slots.len();
        let newest = self.kept.load(Ordering::Relaxed).wrapping_sub(1);
        (0..capacity).map(move |age| &self.slots[newest.wrapping_sub(age) % capacity])
    }
}
