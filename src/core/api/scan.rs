//! Incremental scanner for a member of a JSON object: extracts `usage` from a response that is relayed
//! and never buffered.
//!
//! Not a validator: well-formed JSON is followed exactly, and the search stops where anything else is
//! noticed. The value is at most [`VALUE_BYTES_MAX`]. Long texts and lists of numbers cost
//! a tenth of a nanosecond a byte, dense small objects one to two. Called by the relay of responses.

use std::ops::Range;

use memchr::{memchr2, memchr3};

/// The longest value kept. A usage object is a few hundred bytes; what is longer is not one.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes looked at in words of eight before a vector search, whose start costs as much. In text with
/// escapes and in lists of small objects the next hit is nearer.
const NEAR_BYTES: usize = 32;

/// The longest key compared, in bytes as written (every character of a name may be an escape of six bytes).
const KEY_BYTES_MAX: usize = 256;

/// Captures the value of one member of the JSON object it is fed: at the top level, or also one level
/// below a named member.
///
/// A key or a value that lies within one chunk is not copied.
#[derive(Debug)]
pub struct MemberScanner {
    member: &'static str,
    /// Name of a member whose value is not kept; empty for none.
    watched: &'static str,
    has_watched: bool,
    /// Name of a top-level member whose object is looked into as well.
    within: Option<&'static str>,
    /// The key that was read last is that of `within`.
    is_way_in: bool,
    /// The object of `within` is being read.
    is_inside: bool,
    state: ScanState,
    /// The beginning of a key that the end of a chunk has cut, without its quotes.
    key: Vec<u8>,
    /// The value of the requested member, as far as it stood in earlier chunks.
    value: Vec<u8>,
    /// The key that was read last is the requested one.
    is_named: bool,
    /// The value now being read is that of the requested member.
    is_requested: bool,
    /// Its first byte in this chunk.
    value_from: usize,
    /// The last value that became whole in this chunk.
    whole: Option<Whole>,
}

/// Place of a whole value.
#[derive(Debug)]
enum Whole {
    /// In the chunk.
    Chunk(Range<usize>),
    /// A copy: the value began in an earlier chunk.
    Kept(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScanState {
    BeforeObject,
    BeforeKey,
    Key {
        escaped: bool,
    },
    BeforeColon,
    BeforeValue,
    Text {
        escaped: bool,
    },
    /// Within an object or array. Only the outermost kind of bracket is counted: in well-formed
    /// JSON the other kind is balanced inside it.
    Nested {
        open: u8,
        close: u8,
        depth: usize,
        text: Option<Escape>,
    },
    /// A number, `true`, `false` or `null`.
    Scalar,
    /// The object has ended, or the bytes are not one.
    Over,
}

/// Within a string of a nested value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    No,
    Yes,
}

/// Blanks, and bytes of a byte order mark, which some servers write.
fn mark(bytes: &[u8]) -> usize {
    let is_mark = |byte: &&u8| b"\xef\xbb\xbf \t\r\n".contains(byte);
    bytes.iter().take_while(is_mark).count()
}

impl MemberScanner {
    /// Looks for the member of this name.
    pub fn new(member: &'static str) -> MemberScanner {
        MemberScanner {
            member,
            watched: "",
            has_watched: false,
            within: None,
            is_way_in: false,
            is_inside: false,
            state: ScanState::BeforeObject,
            key: Vec::new(),
            value: Vec::new(),
            is_named: false,
            is_requested: false,
            value_from: 0,
            whole: None,
        }
    }

    /// Notices as well whether the object names this member.
    pub fn watching(mut self, name: &'static str) -> MemberScanner {
        self.watched = name;
        self
    }

    /// Looks for the member in the object of this top-level member too.
    pub fn within(mut self, name: &'static str) -> MemberScanner {
        self.within = Some(name);
        self
    }

    /// Returns whether the object has named the member that is watched, or one with an escape in its name.
    pub fn has_watched(&self) -> bool {
        self.has_watched
    }

    /// Reads on. Returns the member's value, as it stands in the object, with the chunk that makes it whole; the
    /// last one where the name is repeated.
    pub fn push<'a>(&'a mut self, chunk: &'a [u8]) -> Option<&'a [u8]> {
        self.value_from = 0;
        self.whole = None;
        let mut at = 0;
        while at < chunk.len() && self.state != ScanState::Over {
            at += self.step(chunk, at);
        }
        if self.is_requested {
            self.keep(&chunk[self.value_from..]);
        }
        match self.whole.as_ref()? {
            Whole::Chunk(range) => Some(&chunk[range.clone()]),
            Whole::Kept(value) => Some(value),
        }
    }

    /// Returns whether the object has ended, or the bytes are not one: no chunk that follows has a value.
    pub fn is_over(&self) -> bool {
        self.state == ScanState::Over
    }

    /// Reads at least one byte from `at` on, unless the state changes, and returns their number.
    fn step(&mut self, chunk: &[u8], at: usize) -> usize {
        let bytes = &chunk[at..];
        match self.state {
            ScanState::BeforeObject => match mark(bytes) {
                0 => self.expect(bytes, b"{", ScanState::BeforeKey),
                mark => mark,
            },
            ScanState::BeforeColon => self.expect(bytes, b":", ScanState::BeforeValue),
            ScanState::BeforeKey => self.begin_key(bytes, at),
            ScanState::Key { escaped } => self.read_key(bytes, escaped),
            ScanState::BeforeValue => self.begin_value(bytes, at),
            ScanState::Text { escaped } => {
                let (taken, end) = text(bytes, escaped);
                match end {
                    TextEnd::Closed => self.end_value(chunk, at + taken),
                    TextEnd::Open { escaped } => self.state = ScanState::Text { escaped },
                }
                taken
            }
            ScanState::Nested {
                open,
                close,
                depth,
                text,
            } => {
                let (taken, depth, text) = nested(bytes, open, close, depth, text);
                if depth == 0 {
                    self.end_value(chunk, at + taken);
                } else {
                    self.state = ScanState::Nested {
                        open,
                        close,
                        depth,
                        text,
                    };
                }
                taken
            }
            ScanState::Scalar => {
                let end = bytes
                    .iter()
                    .position(|&byte| matches!(byte, b',' | b'}' | b' ' | b'\t' | b'\r' | b'\n'));
                let taken = end.unwrap_or(bytes.len());
                if end.is_some() {
                    self.end_value(chunk, at + taken);
                }
                taken
            }
            ScanState::Over => bytes.len(),
        }
    }

    /// Skips blanks up to the one byte that may follow.
    fn expect(&mut self, bytes: &[u8], byte: &[u8; 1], next: ScanState) -> usize {
        let space = blanks(bytes, b' ');
        match bytes.get(space) {
            None => return space,
            Some(found) => {
                self.state = if found == &byte[0] {
                    next
                } else {
                    ScanState::Over
                }
            }
        }
        space + 1
    }

    fn begin_key(&mut self, bytes: &[u8], at: usize) -> usize {
        let space = blanks(bytes, b',');
        match bytes.get(space) {
            None => return space,
            Some(b'"') => {}
            // The object around it goes on.
            Some(b'}') if self.is_inside => {
                self.is_inside = false;
                return space + 1;
            }
            Some(_) => {
                self.state = ScanState::Over;
                return space + 1;
            }
        }
        self.key.clear();
        let from = space + 1;
        let rest = &bytes[from..];
        // Nearly always: a key without escapes, and its colon.
        if let Some(end) = quote_or_backslash(rest, 0)
            && let [b'"', b':', after @ ..] = &rest[end..]
        {
            let key = &rest[..end];
            self.is_named = key == self.member.as_bytes();
            self.is_way_in = self.leads_in(key);
            self.has_watched |= key == self.watched.as_bytes();
            self.state = ScanState::BeforeValue;
            let taken = from + end + 2;
            return taken + self.begin_value(after, at + taken);
        }
        from + self.read_key(rest, false)
    }

    fn read_key(&mut self, bytes: &[u8], escaped: bool) -> usize {
        let (taken, end) = text(bytes, escaped);
        let room = KEY_BYTES_MAX.saturating_sub(self.key.len());
        self.key.extend_from_slice(&bytes[..taken.min(room)]);
        self.state = match end {
            TextEnd::Closed => {
                let key = std::mem::take(&mut self.key);
                // Ends with its closing quote, unless it is too long.
                self.set_key(key.strip_suffix(b"\"").unwrap_or_default());
                self.key = key;
                ScanState::BeforeColon
            }
            TextEnd::Open { escaped } => ScanState::Key { escaped },
        };
        taken
    }

    /// Takes a key that may have escapes.
    fn set_key(&mut self, key: &[u8]) {
        let has_escapes = key.contains(&b'\\');
        self.is_named = key == self.member.as_bytes();
        self.is_way_in = self.leads_in(key);
        self.has_watched |= has_escapes || key == self.watched.as_bytes();
        if has_escapes {
            let quoted = [b"\"", key, b"\""].concat();
            let key = serde_json::from_slice::<String>(&quoted).unwrap_or_default();
            self.is_named = key == self.member;
            self.is_way_in = self.leads_in(key.as_bytes());
        }
    }

    /// Returns whether the object of this key is looked into.
    fn leads_in(&self, key: &[u8]) -> bool {
        let within = self.within.filter(|_| !self.is_inside);
        within.is_some_and(|name| key == name.as_bytes())
    }

    fn begin_value(&mut self, bytes: &[u8], at: usize) -> usize {
        let space = blanks(bytes, b' ');
        let Some(&first) = bytes.get(space) else {
            return space;
        };
        self.is_requested = self.is_named;
        if self.is_requested {
            self.value.clear();
            self.value_from = at + space;
        }
        self.state = match first {
            b'"' => ScanState::Text { escaped: false },
            b'{' if self.is_way_in => {
                self.is_requested = false;
                self.is_inside = true;
                ScanState::BeforeKey
            }
            b'{' => ScanState::Nested {
                open: b'{',
                close: b'}',
                depth: 1,
                text: None,
            },
            b'[' => ScanState::Nested {
                open: b'[',
                close: b']',
                depth: 1,
                text: None,
            },
            b',' | b'}' | b']' | b':' => {
                self.is_requested = false;
                ScanState::Over
            }
            _ => ScanState::Scalar,
        };
        space + 1
    }

    /// Ends a value before `end`, a place in the chunk.
    fn end_value(&mut self, chunk: &[u8], end: usize) {
        self.state = ScanState::BeforeKey;
        if !self.is_requested {
            return;
        }
        let range = self.value_from..end;
        if !self.value.is_empty() {
            self.keep(&chunk[range]);
            let value = std::mem::take(&mut self.value);
            self.whole = self.is_requested.then_some(Whole::Kept(value));
        } else if range.len() <= VALUE_BYTES_MAX {
            self.whole = Some(Whole::Chunk(range));
        }
        self.is_requested = false;
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.value.len() + bytes.len() > VALUE_BYTES_MAX {
            self.is_requested = false;
            self.value.clear();
            return;
        }
        self.value.extend_from_slice(bytes);
    }
}

/// Number of leading blanks, and of bytes that are `also`.
fn blanks(bytes: &[u8], also: u8) -> usize {
    bytes
        .iter()
        .position(|&byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') && byte != also)
        .unwrap_or(bytes.len())
}

/// Bytes of a string after its opening quote, its closing one included; none where it does not end.
pub(super) fn text_end(bytes: &[u8]) -> Option<usize> {
    match text(bytes, false) {
        (taken, TextEnd::Closed) => Some(taken),
        _ => None,
    }
}

/// Bytes of an object or array after its opening bracket, its closing one included; none where it
/// does not end.
pub(super) fn nested_end(bytes: &[u8], open: u8, close: u8) -> Option<usize> {
    let (taken, depth, _) = nested(bytes, open, close, 1, None);
    (depth == 0).then_some(taken)
}

enum TextEnd {
    /// The closing quote is the last byte taken.
    Closed,
    /// The bytes ran out; `escaped`: the next one belongs to a backslash.
    Open { escaped: bool },
}

/// Reads within a string, after its opening quote.
fn text(bytes: &[u8], escaped: bool) -> (usize, TextEnd) {
    let mut at = usize::from(escaped);
    while let Some(found) = quote_or_backslash(bytes, at) {
        if bytes[found] == b'"' {
            return (found + 1, TextEnd::Closed);
        }
        at = found + 2;
        if at > bytes.len() {
            return (bytes.len(), TextEnd::Open { escaped: true });
        }
    }
    (bytes.len(), TextEnd::Open { escaped: false })
}

/// Reads within an object or array until it closes or the bytes run out: bytes taken, depth left,
/// and whether a string is open.
fn nested(
    bytes: &[u8],
    open: u8,
    close: u8,
    mut depth: usize,
    mut string: Option<Escape>,
) -> (usize, usize, Option<Escape>) {
    let mut at = 0;
    while at < bytes.len() {
        if let Some(escape) = string {
            let (taken, end) = text(&bytes[at..], escape == Escape::Yes);
            at += taken;
            string = match end {
                TextEnd::Closed => None,
                TextEnd::Open { escaped: true } => Some(Escape::Yes),
                TextEnd::Open { escaped: false } => Some(Escape::No),
            };
            continue;
        }
        let Some(found) = quote_or_bracket(bytes, at, open, close) else {
            return (bytes.len(), depth, None);
        };
        at = found + 1;
        match bytes[found] {
            b'"' => string = Some(Escape::No),
            byte if byte == open => depth += 1,
            _ => depth -= 1,
        }
        if depth == 0 {
            break;
        }
    }
    (at, depth, string)
}

/// Place of the first quote or backslash from `at` on.
#[inline]
fn quote_or_backslash(bytes: &[u8], at: usize) -> Option<usize> {
    let far = match near(bytes, at, |word| {
        zeros(word ^ every(b'"')) | zeros(word ^ every(b'\\'))
    }) {
        Near::Found(found) => return Some(found),
        Near::None(far) => far,
    };
    Some(far + memchr2(b'"', b'\\', &bytes[far..])?)
}

/// Place of the first quote or bracket of this kind from `at` on.
#[inline]
fn quote_or_bracket(bytes: &[u8], at: usize, open: u8, close: u8) -> Option<usize> {
    let (open_word, close_word) = (every(open), every(close));
    let far = match near(bytes, at, |word| {
        zeros(word ^ every(b'"')) | zeros(word ^ open_word) | zeros(word ^ close_word)
    }) {
        Near::Found(found) => return Some(found),
        Near::None(far) => far,
    };
    Some(far + memchr3(b'"', open, close, &bytes[far..])?)
}

/// Result of a look at the next [`NEAR_BYTES`].
enum Near {
    Found(usize),
    /// None up to here.
    None(usize),
}

/// Looks for the first byte whose high bit `hits` sets in a word.
#[inline]
fn near(bytes: &[u8], from: usize, hits: impl Fn(u64) -> u64) -> Near {
    let mut at = from;
    while at < from + NEAR_BYTES
        && let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>())
    {
        let found = hits(u64::from_le_bytes(*word));
        if found != 0 {
            return Near::Found(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    Near::None(at)
}

/// The byte, eight times.
const fn every(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

/// Sets the high bit of the lowest byte that is zero; bits above it may be set too.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(every(1)) & !word & every(0x80)
}

#[cfg(test)]
mod tests;
