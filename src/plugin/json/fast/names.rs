//! Names of the members of open objects, as hashes: whether a name stands twice in an object.
//!
//! Holds no text. Hashes that are equal count as a name that stands twice, which the caller looks into.

/// Names that need no list on the heap.
const INLINE: usize = 16;
/// Up to so many names are compared with each other rather than sorted.
const PAIRS_UP_TO: usize = 6;

/// Hashes of names, those of inner objects behind those of outer ones.
#[derive(Default)]
pub(super) struct NameStack {
    pub(super) len: usize,
    inline: [u64; INLINE],
    /// All of them, once there are more than [`INLINE`].
    list: Vec<u64>,
}

impl NameStack {
    #[inline]
    pub(super) fn push(&mut self, hash: u64) {
        match self.inline.get_mut(self.len) {
            Some(place) if self.list.is_empty() => *place = hash,
            _ => self.push_to_list(hash),
        }
        self.len += 1;
    }

    #[inline(never)]
    fn push_to_list(&mut self, hash: u64) {
        if self.list.is_empty() {
            self.list.extend_from_slice(&self.inline);
        }
        self.list.push(hash);
    }

    /// Forgets the names from `first` on; false when one of them stands twice among these.
    pub(super) fn leave(&mut self, first: usize) -> bool {
        let names = match self.list.is_empty() {
            true => &mut self.inline[first..self.len],
            false => &mut self.list[first..],
        };
        let stands_twice = match names.len() {
            0 | 1 => false,
            2..=PAIRS_UP_TO => {
                let mut rests = (1..names.len()).map(|at| names.split_at(at));
                rests.any(|(before, rest)| before.last().is_some_and(|one| rest.contains(one)))
            }
            _ => {
                names.sort_unstable();
                names.windows(2).any(|pair| pair[0] == pair[1])
            }
        };
        self.len = first;
        self.list.truncate(first);
        !stands_twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_stand_once_in_each_object_however_many_are_open() {
        for (outer, inner) in [(1, 1), (3, 5), (10, 10), (40, 7), (0, 100)] {
            let mut names = NameStack::default();
            (0..outer).for_each(|name| names.push(name));
            for _ in 0..3 {
                let first = names.len;
                (0..inner).for_each(|name| names.push(name));
                assert!(names.leave(first));
            }
            let first = names.len;
            (0..inner)
                .chain([inner / 2])
                .for_each(|name| names.push(name));
            assert!(!names.leave(first));
            (outer..outer + 3).for_each(|name| names.push(name));
            assert!(names.leave(0));
        }
    }
}
