//! Ends of JSON strings.
//!
//! Not their text: escapes are checked, never decoded. Long strings are compared in blocks, by
//! `super::specials`; short ones, as most names are, in words of eight bytes. Called by `super::reader`.

use fearless_simd::Simd;

use super::specials::{BLOCK_BYTES, Specials, quotes_and_backslashes, with_vectors};

/// The reason why the reading of a string stops, and where.
pub(super) enum StringStop {
    /// Behind the closing quote.
    Closed(usize),
    /// At the first byte beyond ASCII in the whole text.
    Unicode(usize),
}

/// Returns the offset of the quote that ends a string of a JSON text, from any byte of it on that is not within an
/// escape. On other bytes it is any offset, or none.
pub fn string_end(text: &[u8], at: usize) -> Option<usize> {
    with_vectors!(vectors => vectors.vectorize(
        #[inline(always)]
        || closing_quote(vectors, text, at),
    ))
}

#[inline(always)]
fn closing_quote<S: Simd>(vectors: S, text: &[u8], mut at: usize) -> Option<usize> {
    let mut is_escaped = false;
    while let Some(block) = text.get(at..)?.first_chunk::<BLOCK_BYTES>() {
        let (quotes, backslashes) = quotes_and_backslashes(vectors, block);
        let ends = quotes & !escaped_bytes(backslashes, &mut is_escaped);
        if ends != 0 {
            return Some(at + ends.trailing_zeros() as usize);
        }
        at += BLOCK_BYTES;
    }
    for (offset, byte) in text[at..].iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return Some(at + offset),
            _ => {}
        }
    }
    None
}

/// Returns the bytes of a block that stand behind a backslash which is not escaped itself. `is_escaped` says so of
/// the first byte, and then of the first one behind the block.
///
/// Source: Langdale and Lemire, *Parsing Gigabytes of JSON per Second* (2019), section 3.1.1. Here it is one
/// subtraction: a run of backslashes ends where the borrow of its first bit stops.
#[inline(always)]
fn escaped_bytes(backslashes: u64, is_escaped: &mut bool) -> u64 {
    const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let before = u64::from(*is_escaped);
    let starts = backslashes & !before;
    let runs = ((starts << 1) | ODD).wrapping_sub(starts) ^ ODD;
    *is_escaped = (runs & backslashes) >> 63 != 0;
    runs ^ (backslashes | before)
}

/// Reads on in a string; none where it does not end well.
#[inline(always)]
pub(super) fn string_stop<S: Simd>(
    text: &[u8],
    mut at: usize,
    specials: Specials<S>,
) -> Option<StringStop> {
    while at < text.len() {
        let mut found = specials.find(text, at);
        if found == 0 {
            at = specials.skip_plain(text, at + BLOCK_BYTES);
            continue;
        }
        let rest = &text[at..];
        let mut passed = BLOCK_BYTES;
        while found != 0 {
            let first = found.trailing_zeros() as usize;
            match rest[first] {
                b'\\' => {
                    let next = *rest.get(first + 1)?;
                    let bytes = usize::from(ESCAPE_BYTES[usize::from(next)]);
                    // The escaped byte may be a special one.
                    found &= (found - 1) & !(2 << first);
                    if bytes != 2 {
                        is_unicode_escape(rest, first).then_some(())?;
                    }
                    if first + bytes > BLOCK_BYTES {
                        passed = first + bytes;
                    }
                }
                b'"' => return Some(StringStop::Closed(at + first + 1)),
                0x80.. => return Some(StringStop::Unicode(at + first)),
                _ => return None,
            }
        }
        at += passed;
    }
    None
}

/// Returns the offset behind the closing quote of a string that goes on at `at` for less than 16 bytes without
/// an escape, as most names do.
#[inline(always)]
pub(super) fn near_string_end(text: &[u8], at: usize) -> Option<usize> {
    let bytes: &[u8; 16] = text.get(at..)?.first_chunk()?;
    let (first, second) = bytes.split_at(8);
    let mut found = near_specials(first);
    let mut end = at;
    if found == 0 {
        found = near_specials(second);
        end += 8;
    }
    end += found.trailing_zeros() as usize / 8;
    (found != 0 && text[end] == b'"').then_some(end + 1)
}

/// Returns the special bytes of eight: the highest bit of each, exact for the first.
#[inline(always)]
fn near_specials(bytes: &[u8]) -> u64 {
    let bytes = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    // Below zero: quotes and control characters, as in `Specials`, and backslashes.
    let quotes = (bytes ^ (EACH * 0x02)).wrapping_sub(EACH * 0x21);
    let backslashes = (bytes ^ (EACH * 0x5c)).wrapping_sub(EACH);
    (quotes | backslashes | bytes) & (EACH * 0x80)
}

/// A one in each byte.
pub(super) const EACH: u64 = u64::MAX / 255;

/// Bytes of the escape that has this byte after the backslash; 0 where there is none.
const ESCAPE_BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut kinds: &[u8] = b"\"\\/bfnrt";
    while let [kind, rest @ ..] = kinds {
        bytes[*kind as usize] = 2;
        kinds = rest;
    }
    bytes[b'u' as usize] = 6;
    bytes
};

/// Returns whether an escape with four hex digits is at `at`. Any digits will do: halves of surrogate pairs are
/// refused in the names of the outermost object only, as serde_json does where it skips values.
#[inline(always)]
fn is_unicode_escape(text: &[u8], at: usize) -> bool {
    let Some([_, b'u', digits @ ..]) = text[at..].first_chunk::<6>() else {
        return false;
    };
    let mut are_hex = true;
    for digit in digits {
        are_hex &= digit.is_ascii_hexdigit();
    }
    are_hex
}
