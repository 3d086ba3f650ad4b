//! An intrusive queue of values in a shared [`Slab`]: insertion at either end and removal from
//! anywhere, all O(1).
//!
//! Not an owner of values, and free of allocation: head, tail and length live here, the links live in
//! the slab. A value is in at most one queue at a time, and the same slab is passed to every call; the
//! caller guarantees both. Used for queues of waiters and rotations of accounts.

use super::slab::{Slab, SlotKey, SlotLinks};

/// First come, first in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    head: Option<SlotKey>,
    tail: Option<SlotKey>,
    len: u32,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value at the head.
    pub fn head(&self) -> Option<SlotKey> {
        self.head
    }

    /// Joins at the end.
    pub fn push_back<T>(&mut self, slab: &mut Slab<T>, place: SlotKey) {
        *slab.links_mut(place) = SlotLinks {
            before: self.tail,
            behind: None,
        };
        match self.tail {
            Some(tail) => slab.links_mut(tail).behind = Some(place),
            None => self.head = Some(place),
        }
        self.tail = Some(place);
        self.len += 1;
    }

    /// Joins at the head.
    pub fn push_front<T>(&mut self, slab: &mut Slab<T>, place: SlotKey) {
        *slab.links_mut(place) = SlotLinks {
            before: None,
            behind: self.head,
        };
        match self.head {
            Some(head) => slab.links_mut(head).before = Some(place),
            None => self.tail = Some(place),
        }
        self.head = Some(place);
        self.len += 1;
    }

    /// Leaves, from wherever it stands in this line.
    pub fn remove<T>(&mut self, slab: &mut Slab<T>, place: SlotKey) {
        let SlotLinks { before, behind } = slab.links(place);
        match before {
            Some(before) => slab.links_mut(before).behind = behind,
            None => self.head = behind,
        }
        match behind {
            Some(behind) => slab.links_mut(behind).before = before,
            None => self.tail = before,
        }
        *slab.links_mut(place) = SlotLinks::default();
        self.len -= 1;
    }

    /// From head to tail.
    pub fn iter<'a, T>(&self, slab: &'a Slab<T>) -> impl Iterator<Item = SlotKey> + use<'a, T> {
        std::iter::successors(self.head, |&place| slab.links(place).behind)
    }

    /// Asserts that links, ends and length agree.
    pub fn check<T>(&self, slab: &Slab<T>) {
        let mut before = None;
        let mut len = 0;
        for place in self.iter(slab) {
            assert_eq!(
                slab.links(place).before,
                before,
                "links of a line agree both ways"
            );
            before = Some(place);
            len += 1;
            assert!(len <= self.len, "a line is as long as it says");
        }
        assert_eq!(
            (before, len),
            (self.tail, self.len),
            "a line ends at its tail"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(line: &Queue, slab: &Slab<char>) -> String {
        line.check(slab);
        line.iter(slab).map(|place| slab[place]).collect()
    }

    #[test]
    fn a_line_keeps_its_order_whoever_leaves() {
        let mut slab = Slab::new();
        let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(|value| slab.insert(value));
        let mut line = Queue::default();
        for place in [b, c, d] {
            line.push_back(&mut slab, place);
        }
        line.push_front(&mut slab, a);
        assert_eq!(values(&line, &slab), "abcd");

        line.remove(&mut slab, c);
        assert_eq!(values(&line, &slab), "abd");
        line.remove(&mut slab, a);
        assert_eq!(values(&line, &slab), "bd");
        line.remove(&mut slab, d);
        assert_eq!(values(&line, &slab), "b");
        line.remove(&mut slab, b);
        assert_eq!(values(&line, &slab), "");
        assert_eq!(line.head(), None);
    }
}
