//! Element types of the key and value cache, by the names that servers use.
//!
//! Not the types of weights.

/// Size of the elements of a cache, which are kept in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType {
    elements: u64,
    bytes: u64,
}

/// Name, elements of a block, bytes of a block.
const NAMES: &[(&str, u64, u64)] = &[
    ("f32", 1, 4),
    ("f16", 1, 2),
    ("bf16", 1, 2),
    ("fp8", 1, 1),
    ("q8_0", 32, 34),
    ("q5_1", 32, 24),
    ("q5_0", 32, 22),
    ("q4_1", 32, 20),
    ("q4_0", 32, 18),
    ("iq4_nl", 32, 18),
];

impl CacheType {
    /// Two bytes an element: what servers use unless configured otherwise.
    pub const F16: CacheType = CacheType {
        elements: 1,
        bytes: 2,
    };

    /// Four bytes an element.
    pub(super) const F32: CacheType = CacheType {
        elements: 1,
        bytes: 4,
    };

    /// Returns the type that servers call `name`.
    pub fn of_name(name: &str) -> Option<Self> {
        let row = NAMES.iter().find(|(known, _, _)| *known == name)?;
        Some(CacheType {
            elements: row.1,
            bytes: row.2,
        })
    }

    /// Names of all types.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _, _)| *name)
    }

    /// Returns the bytes of a row of `width` elements.
    pub(super) fn row_bytes(self, width: u64) -> u128 {
        u128::from(width.div_ceil(self.elements)) * u128::from(self.bytes)
    }
}
