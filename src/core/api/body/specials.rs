//! Positions of the bytes of a string that are not plain text: quotes, backslashes, control characters and,
//! until the text is known to be UTF-8, all beyond ASCII.
//!
//! Not a reader of JSON: `super::strings` knows what these bytes mean. [`BLOCK_BYTES`] are compared at once, with
//! the widest vectors that the processor has: docs/decisions/022-bodies-without-trees.md.

use fearless_simd::{Bytes, Simd, SimdBase, SimdMask, i8x64, mask8x64, u8x64};

/// Bytes compared at once: one bit of a `u64` for each.
pub(super) const BLOCK_BYTES: usize = 64;

/// Calls `$read` with the vectors of this processor as `$vectors`.
macro_rules! with_vectors {
    ($vectors:ident => $read:expr) => {
        fearless_simd::dispatch!(fearless_simd::Level::new(), $vectors => $read)
    };
}
pub(super) use with_vectors;

/// Bytes that are looked for.
#[derive(Clone, Copy)]
pub(super) struct Specials<S> {
    pub(super) vectors: S,
    /// Bits that are turned over before the comparison with `limit`.
    turned: u8,
    /// Bytes below are special, as signed numbers.
    limit: i8,
}

impl<S: Simd> Specials<S> {
    /// Every byte beyond ASCII is special.
    ///
    /// With this bit turned over, the quote and the control characters are the bytes below 0x21. Bytes beyond
    /// ASCII are negative: one comparison serves all three.
    #[inline(always)]
    pub(super) fn with_unicode(vectors: S) -> Specials<S> {
        Specials {
            vectors,
            turned: 0x02,
            limit: 0x21,
        }
    }

    /// No byte beyond ASCII is special: with the sign turned over too, they are the greatest numbers.
    #[inline(always)]
    pub(super) fn without_unicode(self) -> Specials<S> {
        Specials {
            vectors: self.vectors,
            turned: 0x82,
            limit: 0xa1_u8 as i8,
        }
    }

    /// Returns the special bytes among the [`BLOCK_BYTES`] of `text` from `at` on, the first in the lowest bit.
    #[inline(always)]
    pub(super) fn find(&self, text: &[u8], at: usize) -> u64 {
        if let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk()) {
            return self.find_in(block).to_bitmask();
        }
        // The last bytes are few: the block before the end is read, and what stands before `at` left out.
        let Some(block) = text.last_chunk() else {
            return self.find_in_short(text, at);
        };
        let before = at + BLOCK_BYTES - text.len();
        let specials = self.find_in(block).to_bitmask();
        specials.checked_shr(before as u32).unwrap_or(0)
    }

    /// Returns the offset behind the pairs of blocks without a special byte that `text` has from `at` on.
    #[inline(always)]
    pub(super) fn skip_plain(&self, text: &[u8], mut at: usize) -> usize {
        while let Some((first, second)) = two_blocks(text, at) {
            if (self.find_in(first) | self.find_in(second)).any_true() {
                break;
            }
            at += 2 * BLOCK_BYTES;
        }
        at
    }

    #[inline(always)]
    fn find_in(&self, block: &[u8; BLOCK_BYTES]) -> mask8x64<S> {
        let turned = u8x64::from_slice(self.vectors, block) ^ self.turned;
        let is_below = turned.bitcast::<i8x64<S>>().simd_lt(self.limit);
        is_below | turned.simd_eq(b'\\' ^ self.turned)
    }

    /// A text of less than a block.
    #[cold]
    fn find_in_short(&self, text: &[u8], at: usize) -> u64 {
        let rest = text.get(at..).unwrap_or_default();
        let bits = rest.iter().enumerate().map(|(i, &byte)| {
            let is_special = ((byte ^ self.turned) as i8) < self.limit || byte == b'\\';
            u64::from(is_special) << i
        });
        bits.fold(0, |all, bit| all | bit)
    }
}

/// Returns the quotes and the backslashes of a block, the first byte in the lowest bit.
#[inline(always)]
pub(super) fn quotes_and_backslashes<S: Simd>(vectors: S, block: &[u8; BLOCK_BYTES]) -> (u64, u64) {
    let bytes = u8x64::from_slice(vectors, block);
    let of = |byte: u8| bytes.simd_eq(byte).to_bitmask();
    (of(b'"'), of(b'\\'))
}

#[inline(always)]
fn two_blocks(text: &[u8], at: usize) -> Option<(&[u8; BLOCK_BYTES], &[u8; BLOCK_BYTES])> {
    let (first, rest) = text.get(at..)?.split_first_chunk()?;
    Some((first, rest.first_chunk()?))
}
