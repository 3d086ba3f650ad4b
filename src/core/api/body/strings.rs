//! Ends of JSON strings.
//!
//! Not their text: escapes are checked, never decoded. Long strings are compared in blocks, by
//! `super::specials`; short ones, as most names are, in words of eight bytes. Called by `super::reader`.

use fearless_simd::Simd;

use super::specials::{BLOCK_BYTES, Specials};

/// The reason why the reading of a string stops, and where.
pub(super) enum StringStop {
    /// Behind the closing quote.
    Closed(usize),
    /// At the first byte beyond ASCII in the whole text.
    Unicode(usize),
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
            // Behind the last string there is a bracket.
            let next = *rest.get(first + 1)?;
            match rest[first] {
                b'\\' => {
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
