//! Plan of a schema: for each place of a body, the checks of all subschemas that look at it.
//!
//! Reads no body (`pass.rs` does) and no schema (`compile.rs` does). The keywords of one subschema itself are a
//! *shape*; the shapes at one place have a bit each, so that one visit of a value answers for all of them.

use std::ops::RangeInclusive;

/// Shapes at one place.
pub(super) const SHAPES_MAX: usize = 64;
/// Names of members that a place knows.
pub(super) const NAMES_MAX: usize = 64;
/// Bytes that a hash takes in at once.
const WORD: usize = 8;
/// Marks an empty slot.
const EMPTY: u8 = u8::MAX;

/// A schema as places of a body.
#[derive(Debug)]
pub(crate) struct SchemaPlan {
    pub(super) places: Vec<Place>,
    /// The way to the whole body: nothing that is asked for there may fail.
    pub(super) root: Edge,
}

/// Kinds of values that types tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Null,
    Boolean,
    /// A number without a fraction, however it is written.
    Integer,
    Fraction,
    String,
    Array,
    Object,
}

/// Checks of the values at one place. A set of shapes is a mask.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// Shapes that a value breaks by its kind alone.
    pub(super) wrong_kind: [u64; 7],
    /// Lengths of texts, characters.
    pub(super) lengths: Vec<(RangeInclusive<u64>, u64)>,
    pub(super) limits: Vec<(NumberLimit, u64)>,
    pub(super) item_counts: Vec<(RangeInclusive<u64>, u64)>,
    pub(super) member_counts: Vec<(RangeInclusive<u64>, u64)>,
    /// Values of `enum` and `const`.
    pub(super) options: Vec<(Vec<ScalarOption>, u64)>,
    pub(super) items: Edge,
    pub(super) names: NameTable,
    /// Members that `names` lacks.
    pub(super) others: Edge,
    /// Names, as a mask over `names`, that shapes require.
    pub(super) required: Vec<(u64, u64)>,
    /// Verdicts of the subschemas that were asked for here, by the shapes that failed.
    pub(super) verdicts: Vec<Formula>,
    /// A value that breaks no shape fits every subschema.
    pub(super) fits_unbroken: bool,
    /// The length or the characters of a text matter.
    pub(super) reads_strings: bool,
    /// The value of a number matters.
    pub(super) reads_numbers: bool,
    /// Steps of one visit.
    pub(super) steps: u64,
}

/// Way from a place to the place of values in it.
#[derive(Debug, Default)]
pub(super) struct Edge {
    pub(super) place: usize,
    /// Subschemas asked for there, with the shapes here that each of them belongs to.
    pub(super) asked: Vec<(usize, u64)>,
}

/// Bound of a number. Every limit and every value compared with it is exact as a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NumberLimit {
    AtLeast(f64),
    AtMost(f64),
    MoreThan(f64),
    LessThan(f64),
}

/// Value that is compared with.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ScalarOption {
    Null,
    Boolean(bool),
    /// Exact as a float.
    Integer(f64),
    Text(Box<str>),
}

/// Condition over the shapes that failed.
#[derive(Debug)]
pub(super) enum Formula {
    /// None of these failed.
    Unbroken(u64),
    Never,
    All(Vec<Formula>),
    Any(Vec<Formula>),
    One(Vec<Formula>),
    Not(Box<Formula>),
    /// Condition, then, else.
    If(Box<[Formula; 3]>),
}

/// Names of members, found by their hash.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    /// Indices of names, or [`EMPTY`].
    slots: Vec<u8>,
    names: Vec<KnownName>,
}

#[derive(Debug)]
struct KnownName {
    hash: u64,
    name: Box<str>,
    edge: Edge,
}

impl NumberLimit {
    pub(super) fn admits(self, value: f64) -> bool {
        match self {
            NumberLimit::AtLeast(limit) => value >= limit,
            NumberLimit::AtMost(limit) => value <= limit,
            NumberLimit::MoreThan(limit) => value > limit,
            NumberLimit::LessThan(limit) => value < limit,
        }
    }
}

impl Formula {
    /// Returns whether the condition holds when the shapes of `failed` failed.
    pub(super) fn holds(&self, failed: u64) -> bool {
        match self {
            Formula::Unbroken(shapes) => failed & shapes == 0,
            Formula::Never => false,
            Formula::All(parts) => parts.iter().all(|part| part.holds(failed)),
            Formula::Any(parts) => parts.iter().any(|part| part.holds(failed)),
            Formula::One(parts) => {
                let mut holding = parts.iter().filter(|part| part.holds(failed));
                holding.next().is_some() && holding.next().is_none()
            }
            Formula::Not(part) => !part.holds(failed),
            Formula::If(parts) => {
                let [condition, then, otherwise] = &**parts;
                match condition.holds(failed) {
                    true => then.holds(failed),
                    false => otherwise.holds(failed),
                }
            }
        }
    }
}

impl NameTable {
    /// Makes a table of at most [`NAMES_MAX`] names, each once.
    pub(super) fn new(names: Vec<(&str, Edge)>) -> NameTable {
        let mut table = NameTable {
            slots: vec![EMPTY; (names.len() * 4).next_power_of_two()],
            names: Vec::with_capacity(names.len()),
        };
        for (name, edge) in names {
            let hash = NameHash::of(name.as_bytes());
            let mask = table.slots.len() - 1;
            let mut slot = hash as usize & mask;
            while table.slots[slot] != EMPTY {
                slot = (slot + 1) & mask;
            }
            table.slots[slot] = table.names.len() as u8;
            table.names.push(KnownName {
                hash,
                name: name.into(),
                edge,
            });
        }
        table
    }

    /// The index of a name with its edge.
    #[inline]
    pub(super) fn find(&self, hash: u64, name: &[u8]) -> Option<(usize, &Edge)> {
        if self.names.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            // Three slots of four are empty.
            let index = usize::from(*self.slots.get(slot)?);
            let known = self.names.get(index)?;
            let is_same = known.hash == hash && known.name.len() == name.len();
            // The hash of one word tells all names of a length apart.
            if is_same && (name.len() <= WORD || known.name.as_bytes() == name) {
                return Some((index, &known.edge));
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// Hash of a name, by words of 8 bytes. Names of different hashes differ. So do names of one word, of the same
/// length, only if their hashes do: each step can be undone.
#[derive(Clone, Copy)]
pub(super) struct NameHash(u64);

impl NameHash {
    pub(super) fn begin() -> NameHash {
        NameHash(0x243f_6a88_85a3_08d3)
    }

    /// Adds up to 8 bytes of the name, the first one lowest.
    #[inline]
    pub(super) fn add(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 29);
    }

    #[inline]
    pub(super) fn end(mut self, bytes: usize) -> u64 {
        self.add(bytes as u64);
        self.0
    }

    fn of(name: &[u8]) -> u64 {
        let mut hash = NameHash::begin();
        for chunk in name.chunks(WORD) {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.add(u64::from_le_bytes(word));
        }
        hash.end(name.len())
    }
}
