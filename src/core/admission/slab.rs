//! Values in stable slots, each with a key that is never reused.
//!
//! Not a queue: [`Queue`](super::queue::Queue) makes an order of the two links that every slot carries.
//! Insert, remove and look-up are O(1). A key outlives its value safely: a later look-up finds nothing,
//! so that a permit released twice or a ticket of a client that left is harmless.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// Bits of a key that hold the slot. The other 40 count insertions: at 100,000 a second for one model
/// a count repeats after 127 days, and then two keys differ unless their slots are equal.
const SLOT_BITS: u32 = 24;

/// Most slots of a slab: with the endpoint's bound of 65,536 permits that is 255 endpoints of the
/// largest kind, and sixteen times the largest `total_capacity`.
const SLOTS_MAX: usize = (1 << SLOT_BITS) - 1;

/// Slots that an empty slab keeps; a larger one frees its memory. A model that was busy once does not
/// cost memory for ever, and a model with short bursts does not allocate each time.
const SLOTS_KEPT: usize = 1024;

/// Slot of a value. An index plus one, so that an `Option<Place>` is four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SlotKey(NonZeroU32);

impl SlotKey {
    fn at(index: usize) -> SlotKey {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        SlotKey(number.expect("index is below PLACES_MAX: checked on insertion"))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Neighbours of a slot in the only queue it may be in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotLinks {
    pub before: Option<SlotKey>,
    pub behind: Option<SlotKey>,
}

struct SlabSlot<T> {
    key: u64,
    /// In a vacant slot, `behind` is the next vacant one.
    links: SlotLinks,
    value: Option<T>,
}

/// The store. `T` is a waiter, a permit or an account's queue.
pub(super) struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    vacant: Option<SlotKey>,
    len: usize,
    insertions: u64,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            vacant: None,
            len: 0,
            insertions: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether [`Slab::insert`] has no slot left.
    pub fn is_full(&self) -> bool {
        self.len >= SLOTS_MAX
    }

    /// Puts `value` into a vacant slot. The caller has checked that the slab is not full.
    pub fn insert(&mut self, value: T) -> SlotKey {
        self.insertions += 1;
        self.len += 1;
        let place = match self.vacant {
            Some(place) => {
                self.vacant = self.slots[place.index()].links.behind;
                place
            }
            None => {
                let place = SlotKey::at(self.slots.len());
                self.slots.push(SlabSlot {
                    key: 0,
                    links: SlotLinks::default(),
                    value: None,
                });
                place
            }
        };
        let slot = &mut self.slots[place.index()];
        slot.key = self.insertions << SLOT_BITS | place.index() as u64;
        slot.links = SlotLinks::default();
        slot.value = Some(value);
        place
    }

    /// Removes the value at `place`, which is in no queue any more.
    pub fn remove(&mut self, place: SlotKey) -> T {
        let slot = &mut self.slots[place.index()];
        let value = slot
            .value
            .take()
            .expect("place is taken: whoever keeps a place keeps it alive");
        slot.links = SlotLinks {
            before: None,
            behind: self.vacant,
        };
        self.vacant = Some(place);
        self.len -= 1;
        if self.len == 0 && self.slots.len() > SLOTS_KEPT {
            self.slots = Vec::new();
            self.vacant = None;
        }
        value
    }

    /// The key of the value at `place`. Keys grow with every insertion.
    pub fn key(&self, place: SlotKey) -> u64 {
        self.slots[place.index()].key
    }

    /// Returns the slot of `key`'s value, when it is still there.
    pub fn find(&self, key: u64) -> Option<SlotKey> {
        let index = (key & ((1 << SLOT_BITS) - 1)) as usize;
        let slot = self.slots.get(index)?;
        (slot.key == key && slot.value.is_some()).then(|| SlotKey::at(index))
    }

    pub fn links(&self, place: SlotKey) -> SlotLinks {
        self.slots[place.index()].links
    }

    pub fn links_mut(&mut self, place: SlotKey) -> &mut SlotLinks {
        &mut self.slots[place.index()].links
    }

    /// All values, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (SlotKey, &T)> + Clone {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| Some((SlotKey::at(index), slot.value.as_ref()?)))
    }
}

impl<T> Index<SlotKey> for Slab<T> {
    type Output = T;

    fn index(&self, place: SlotKey) -> &T {
        let value = self.slots[place.index()].value.as_ref();
        value.expect("place is taken: whoever keeps a place keeps it alive")
    }
}

impl<T> IndexMut<SlotKey> for Slab<T> {
    fn index_mut(&mut self, place: SlotKey) -> &mut T {
        let value = self.slots[place.index()].value.as_mut();
        value.expect("place is taken: whoever keeps a place keeps it alive")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_finds_its_value_until_it_is_removed_and_never_another_one() {
        let mut slab = Slab::new();
        let place = slab.insert("first");
        let key = slab.key(place);
        assert_eq!(slab.find(key).map(|found| slab[found]), Some("first"));

        assert_eq!(slab.remove(place), "first");
        let reused = slab.insert("second");

        assert_eq!(reused, place);
        assert_eq!(slab.find(key), None);
        assert!(slab.key(reused) > key);
    }

    #[test]
    fn a_slab_that_was_large_gives_its_memory_back_when_it_empties() {
        let mut slab = Slab::new();
        let places: Vec<SlotKey> = (0..100_000).map(|value| slab.insert(value)).collect();
        let keys: Vec<u64> = places.iter().map(|&place| slab.key(place)).collect();
        for place in places {
            slab.remove(place);
        }
        assert_eq!(slab.slots.capacity(), 0);
        slab.insert(1);
        assert!(keys.iter().all(|&key| slab.find(key).is_none()));
    }
}
