//! Reader of JSON text: one pass that checks a body and finds the members of its object.
//!
//! Not a parser of values: a value is its range, and numbers and strings stay text. Not a judge of faults
//! either: text that is refused here is read again by serde_json, whose message the client gets. Accepted is
//! the text that serde_json accepts, of at most [`DEPTH_MAX`] levels; a test compares them.
//!
//! Strings are nearly all of a body. Their bytes are compared 64 at once, in `specials`. The first byte beyond
//! ASCII has the whole text checked to be UTF-8.

use std::borrow::Cow;
use std::ops::Range;

use fearless_simd::Simd;

use super::specials::{Specials, with_vectors};
use super::strings::{EACH, StringStop, near_string_end, string_stop};

/// Objects and lists within each other: real bodies have fewer than 20, and servers' readers end at 100 to
/// 1,000. At most 128, the bits of [`Nesting`].
pub(super) const DEPTH_MAX: usize = 128;

/// Calls `each` for each member of the object in `text`, in its order, with its name in UTF-8 and the range of
/// its value. Returns the offset behind the opening brace; none where the text is not one JSON object, too
/// deep, or where `each` returns none.
pub(super) fn read_members<'a>(
    text: &'a [u8],
    each: impl FnMut(Cow<'a, [u8]>, Range<usize>) -> Option<()>,
) -> Option<usize> {
    with_vectors!(vectors => read_members_with(vectors, text, each))
}

/// The same, with these vectors.
#[inline(always)]
pub(super) fn read_members_with<'a>(
    vectors: impl Simd,
    text: &'a [u8],
    mut each: impl FnMut(Cow<'a, [u8]>, Range<usize>) -> Option<()>,
) -> Option<usize> {
    let mut reader = Reader {
        text,
        at: 0,
        specials: Specials::with_unicode(vectors),
    };
    reader.expect(b'{')?;
    let first_member = reader.at;
    if !reader.skip_close(b'}')? {
        loop {
            let name = reader.name()?;
            reader.expect(b':')?;
            reader.skip_blanks();
            let start = reader.at;
            reader.skip_value()?;
            each(name, start..reader.at)?;
            match reader.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
    }
    reader.skip_blanks();
    (reader.at == text.len()).then_some(first_member)
}

/// Position in a text. Every method returns none where the text is not JSON.
struct Reader<'a, S> {
    text: &'a [u8],
    at: usize,
    specials: Specials<S>,
}

impl<'a, S: Simd> Reader<'a, S> {
    /// Reads the next byte that is not blank.
    #[inline(always)]
    fn next(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            self.at += 1;
            if !is_blank(byte) {
                return Some(byte);
            }
        }
    }

    #[inline(always)]
    fn skip_blanks(&mut self) {
        while self.text.get(self.at).copied().is_some_and(is_blank) {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    /// Skips the bracket that ends an empty object or list; returns false where there is something in it.
    #[inline(always)]
    fn skip_close(&mut self, close: u8) -> Option<bool> {
        self.skip_blanks();
        let is_close = *self.text.get(self.at)? == close;
        self.at += usize::from(is_close);
        Some(is_close)
    }

    /// Reads the name of a member of the outermost object.
    #[inline(always)]
    fn name(&mut self) -> Option<Cow<'a, [u8]>> {
        self.expect(b'"')?;
        let start = self.at;
        let length = self.skip_string()?;
        let name = &self.text[start..self.at - 1];
        match length {
            StringLength::Long if name.contains(&b'\\') => {
                unescaped(&self.text[start - 1..self.at])
            }
            _ => Some(Cow::Borrowed(name)),
        }
    }

    /// Skips a value of any kind.
    #[inline(always)]
    fn skip_value(&mut self) -> Option<()> {
        let mut nesting = Nesting::default();
        loop {
            if nesting.is_in_object() == Some(true) {
                self.expect(b'"')?;
                self.skip_string()?;
                self.expect(b':')?;
            }
            match self.next()? {
                b'"' => {
                    self.skip_string()?;
                }
                open @ (b'{' | b'[') => {
                    nesting.open(open == b'{')?;
                    // The closing bracket is two above the opening one.
                    if !self.skip_close(open + 2)? {
                        continue;
                    }
                    nesting.close();
                }
                first => self.at = scalar_end(self.text, self.at, first)?,
            }
            loop {
                let Some(is_object) = nesting.is_in_object() else {
                    return Some(());
                };
                match (self.next()?, is_object) {
                    (b',', _) => break,
                    (b'}', true) | (b']', false) => nesting.close(),
                    _ => return None,
                }
            }
        }
    }

    /// Skips a string behind its opening quote.
    #[inline(always)]
    fn skip_string(&mut self) -> Option<StringLength> {
        if let Some(at) = near_string_end(self.text, self.at) {
            self.at = at;
            return Some(StringLength::Short);
        }
        loop {
            // A function of its own: inlined everywhere, its vectors would not stay in registers.
            let (text, at, specials) = (self.text, self.at, self.specials);
            let stop = specials.vectors.vectorize(
                #[inline(always)]
                || string_stop(text, at, specials),
            )?;
            match stop {
                StringStop::Closed(at) => {
                    self.at = at;
                    return Some(StringLength::Long);
                }
                StringStop::Unicode(at) => {
                    simdutf8::basic::from_utf8(text).ok()?;
                    self.specials = specials.without_unicode();
                    self.at = at;
                }
            }
        }
    }
}

enum StringLength {
    /// Less than 16 bytes, without escapes.
    Short,
    /// Any other.
    Long,
}

#[inline(always)]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\t' | b'\r')
}

/// Returns the text of a string with escapes, in UTF-8. Halves of surrogate pairs are refused.
#[cold]
fn unescaped<'a>(string: &[u8]) -> Option<Cow<'a, [u8]>> {
    let text: String = serde_json::from_slice(string).ok()?;
    Some(Cow::Owned(text.into_bytes()))
}

/// Returns the offset behind a number or a word, which begins with the byte `first` in front of `at`.
fn scalar_end(text: &[u8], at: usize, first: u8) -> Option<usize> {
    let word: &[u8] = match first {
        b't' => b"rue",
        b'f' => b"alse",
        b'n' => b"ull",
        _ => return number_end(text, at, first),
    };
    text[at..].starts_with(word).then_some(at + word.len())
}

fn number_end(text: &[u8], mut at: usize, mut first: u8) -> Option<usize> {
    let byte = |at: usize| text.get(at).copied().unwrap_or(0);
    if first == b'-' {
        first = byte(at);
        at += 1;
    }
    match first {
        b'0' => {}
        b'1'..=b'9' => at += digits(text, at),
        _ => return None,
    }
    let mut next = byte(at);
    if next == b'.' {
        at = some_digits_end(text, at + 1)?;
        next = byte(at);
    }
    if matches!(next, b'e' | b'E') {
        let sign = usize::from(matches!(byte(at + 1), b'+' | b'-'));
        at = some_digits_end(text, at + 1 + sign)?;
    }
    Some(at)
}

/// Returns how many digits stand from `at` on.
#[inline(always)]
fn digits(text: &[u8], at: usize) -> usize {
    let mut digits = 0;
    let rest = text.get(at..).unwrap_or_default();
    let (words, last) = rest.as_chunks::<8>();
    for word in words {
        // Only digits are below ten with these bits turned over.
        let turned = u64::from_le_bytes(*word) ^ (EACH * 0x30);
        let others = (turned.wrapping_add(EACH * 0x76) | turned) & (EACH * 0x80);
        if others != 0 {
            return digits + others.trailing_zeros() as usize / 8;
        }
        digits += 8;
    }
    let is_digit = |byte: &&u8| byte.is_ascii_digit();
    digits + last.iter().take_while(is_digit).count()
}

fn some_digits_end(text: &[u8], at: usize) -> Option<usize> {
    let digits = digits(text, at);
    (digits > 0).then_some(at + digits)
}

/// Kinds of the objects and lists that are open within the outermost object.
#[derive(Default)]
struct Nesting {
    /// A bit for each level: 1 for an object. The innermost is the lowest.
    kinds: u128,
    levels: usize,
}

impl Nesting {
    /// Adds a level; none where there are too many.
    #[inline(always)]
    fn open(&mut self, is_object: bool) -> Option<()> {
        self.kinds = self.kinds << 1 | u128::from(is_object);
        self.levels += 1;
        // The outermost object is a level too.
        (self.levels < DEPTH_MAX).then_some(())
    }

    #[inline(always)]
    fn close(&mut self) {
        self.kinds >>= 1;
        self.levels -= 1;
    }

    /// Returns whether the innermost level is an object; none outside of every level.
    #[inline(always)]
    fn is_in_object(&self) -> Option<bool> {
        (self.levels > 0).then_some(self.kinds & 1 == 1)
    }
}
