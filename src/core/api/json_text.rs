//! Text as a JSON string, written without a serializer.
//!
//! Nearly all texts have no character to escape and are copied; the others are left to `serde_json`. Called
//! wherever JSON is written member by member: errors, translated bodies, event lines.

/// Appends `text` as a JSON string, quotes included.
#[inline]
pub fn push_text(out: &mut Vec<u8>, text: &str) {
    if has_escapes(text.as_bytes()) {
        // Writing to memory does not fail.
        let _ = serde_json::to_writer(out, text);
        return;
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// Appends a whole number in decimal.
#[inline]
pub fn push_whole(out: &mut Vec<u8>, number: u64) {
    /// Digits of the largest number.
    const DIGITS_MAX: usize = 20;
    let digit = |number: u64| b'0' + (number % 10) as u8;
    if number < 10 {
        out.push(digit(number));
        return;
    }
    let mut text = [0; DIGITS_MAX];
    let (mut begin, mut left) = (DIGITS_MAX, number);
    while left > 0 {
        begin -= 1;
        text[begin] = digit(left);
        left /= 10;
    }
    out.extend_from_slice(&text[begin..]);
}

/// Returns whether JSON escapes a byte of the text: a control character, a quote or a backslash.
#[inline]
fn has_escapes(text: &[u8]) -> bool {
    let is_escaped = |byte: &u8| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    // Two words that overlap cover what is no multiple of a word.
    let Some(last) = text.last_chunk::<8>() else {
        let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) else {
            return text.iter().any(is_escaped);
        };
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return escapes_of(u64::from(first) << 32 | u64::from(last)) != 0;
    };
    let (words, _) = text.as_chunks::<8>();
    let mut found = escapes_of(u64::from_le_bytes(*last));
    for word in words {
        found |= escapes_of(u64::from_le_bytes(*word));
    }
    found != 0
}

/// Returns a word that is not zero where one of eight bytes is escaped
/// (<https://graphics.stanford.edu/~seander/bithacks.html#HasLessInWord>).
#[inline]
fn escapes_of(word: u64) -> u64 {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES * 0x80;
    let below = |word: u64, bound: u64| word.wrapping_sub(ONES * bound) & !word;
    let equals = |byte: u8| below(word ^ (ONES * u64::from(byte)), 1);
    (below(word, 0x20) | equals(b'"') | equals(b'\\')) & HIGH
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_byte_at_every_place_is_written_as_serde_writes_it() {
        for length in 1..20 {
            for at in 0..length {
                for byte in 0..0x80_u8 {
                    let mut text = vec![b'a'; length];
                    text[at] = byte;
                    let text = String::from_utf8(text).unwrap();
                    let mut out = Vec::new();
                    push_text(&mut out, &text);
                    assert_eq!(out, serde_json::to_vec(&text).unwrap());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_serde_writes_it(text: String) {
            let mut out = Vec::new();
            push_text(&mut out, &text);
            prop_assert_eq!(out, serde_json::to_vec(&text).unwrap());
        }
    }
}
