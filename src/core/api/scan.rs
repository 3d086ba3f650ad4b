//! Incremental scanner for a member of a JSON object: extracts `usage` from a response that is relayed
//! and never buffered.
//!
//! Not a validator: well-formed JSON is followed exactly, and the search stops where anything else is
//! noticed. The value is at most [`VALUE_BYTES_MAX`]. Long texts and lists of numbers cost
//! a tenth of a nanosecond a byte, dense small objects one to two. Called by the relay of responses.

use memchr::{memchr2, memchr3};

/// The longest value kept. A usage object is a few hundred bytes; what is longer is not one.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes compared one by one before a vector search, whose start costs about as much. In text with
/// escapes and in lists of small objects the next hit is nearer.
const NEAR_BYTES: usize = 24;

/// The longest key compared, in bytes as written (every character of a name may be an escape of six bytes).
const KEY_BYTES_MAX: usize = 256;

/// Captures the value of one top-level member of the JSON object it is fed.
#[derive(Debug)]
pub struct MemberScanner {
    member: &'static str,
    state: ScanState,
    /// The key being read, without its quotes.
    key: Vec<u8>,
    /// The value of the last member of that name.
    value: Vec<u8>,
    /// The value now being read is that of the requested member.
    is_requested: bool,
    /// `value` is whole.
    found: bool,
    /// `value` became whole since it was last taken.
    is_new: bool,
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

/// Bytes of a byte order mark, which some servers write.
fn mark(bytes: &[u8]) -> usize {
    let is_mark = |byte: &&u8| b"\xef\xbb\xbf".contains(byte);
    bytes.iter().take_while(is_mark).count()
}

impl MemberScanner {
    /// Looks for the member of this name.
    pub fn new(member: &'static str) -> MemberScanner {
        MemberScanner {
            member,
            state: ScanState::BeforeObject,
            key: Vec::new(),
            value: Vec::new(),
            is_requested: false,
            found: false,
            is_new: false,
        }
    }

    /// Reads on.
    pub fn push(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while !rest.is_empty() && self.state != ScanState::Over {
            let taken = self.step(rest);
            rest = &rest[taken..];
        }
    }

    /// The member's value as it stands in the object; the last one, when the name is repeated.
    pub fn value(&self) -> Option<&[u8]> {
        self.found.then_some(&self.value[..])
    }

    /// The member's value once it is whole, and again only where the name is repeated: so that it is parsed once.
    pub fn take_value(&mut self) -> Option<&[u8]> {
        std::mem::take(&mut self.is_new).then_some(&self.value[..])
    }

    /// Reads at least one byte, unless the state changes, and returns their number.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            ScanState::BeforeObject => match mark(bytes) {
                0 => self.expect(bytes, b"{", ScanState::BeforeKey),
                mark => mark,
            },
            ScanState::BeforeColon => self.expect(bytes, b":", ScanState::BeforeValue),
            ScanState::BeforeKey => {
                self.key.clear();
                let space = blanks(bytes, b",");
                match bytes.get(space) {
                    None => return space,
                    Some(b'"') => self.state = ScanState::Key { escaped: false },
                    Some(_) => self.state = ScanState::Over,
                }
                space + 1
            }
            ScanState::Key { escaped } => {
                let (taken, end) = text(bytes, escaped);
                let room = KEY_BYTES_MAX.saturating_sub(self.key.len());
                self.key.extend_from_slice(&bytes[..taken.min(room)]);
                self.state = match end {
                    TextEnd::Closed => ScanState::BeforeColon,
                    TextEnd::Open { escaped } => ScanState::Key { escaped },
                };
                taken
            }
            ScanState::BeforeValue => self.begin_value(bytes),
            ScanState::Text { escaped } => {
                let (taken, end) = text(bytes, escaped);
                self.keep(&bytes[..taken]);
                match end {
                    TextEnd::Closed => self.end_value(),
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
                self.keep(&bytes[..taken]);
                if depth == 0 {
                    self.end_value();
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
                let end = bytes.iter().position(|b| b",} \t\r\n".contains(b));
                let taken = end.unwrap_or(bytes.len());
                self.keep(&bytes[..taken]);
                if end.is_some() {
                    self.end_value();
                }
                taken
            }
            ScanState::Over => bytes.len(),
        }
    }

    /// Skips blanks up to the one byte that may follow.
    fn expect(&mut self, bytes: &[u8], byte: &[u8; 1], next: ScanState) -> usize {
        let space = blanks(bytes, b"");
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

    fn begin_value(&mut self, bytes: &[u8]) -> usize {
        let space = blanks(bytes, b"");
        let Some(&first) = bytes.get(space) else {
            return space;
        };
        self.is_requested = self.is_requested_key();
        if self.is_requested {
            (self.found, self.is_new) = (false, false);
            self.value.clear();
        }
        self.state = match first {
            b'"' => ScanState::Text { escaped: false },
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
            b',' | b'}' | b']' | b':' => ScanState::Over,
            _ => ScanState::Scalar,
        };
        self.keep(&bytes[space..space + 1]);
        space + 1
    }

    fn end_value(&mut self) {
        self.found |= self.is_requested;
        self.is_new |= self.is_requested;
        self.is_requested = false;
        self.state = ScanState::BeforeKey;
    }

    fn keep(&mut self, bytes: &[u8]) {
        if !self.is_requested {
            return;
        }
        if self.value.len() + bytes.len() > VALUE_BYTES_MAX {
            self.is_requested = false;
            self.value.clear();
            return;
        }
        self.value.extend_from_slice(bytes);
    }

    /// `key` ends with its closing quote here, unless it was too long to keep.
    fn is_requested_key(&self) -> bool {
        let Some(key) = self.key.strip_suffix(b"\"") else {
            return false;
        };
        if memchr::memchr(b'\\', key).is_none() {
            return key == self.member.as_bytes();
        }
        let quoted = [b"\"", key, b"\""].concat();
        serde_json::from_slice::<String>(&quoted).is_ok_and(|key| key == self.member)
    }
}

/// Number of leading blanks, and of bytes of `also`.
fn blanks(bytes: &[u8], also: &[u8]) -> usize {
    bytes
        .iter()
        .position(|b| !b" \t\r\n".contains(b) && !also.contains(b))
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
    while let Some(found) = quote_or_backslash(&bytes[at..]) {
        at += found + 1;
        if bytes[at - 1] == b'"' {
            return (at, TextEnd::Closed);
        }
        if at == bytes.len() {
            return (at, TextEnd::Open { escaped: true });
        }
        at += 1;
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
        let Some(found) = quote_or_bracket(&bytes[at..], open, close) else {
            return (bytes.len(), depth, None);
        };
        at += found + 1;
        match bytes[at - 1] {
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

fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR_BYTES));
    near.iter()
        .position(|&byte| byte == b'"' || byte == b'\\')
        .or_else(|| memchr2(b'"', b'\\', far).map(|at| near.len() + at))
}

fn quote_or_bracket(bytes: &[u8], open: u8, close: u8) -> Option<usize> {
    let (near, far) = bytes.split_at(bytes.len().min(NEAR_BYTES));
    near.iter()
        .position(|&byte| byte == b'"' || byte == open || byte == close)
        .or_else(|| memchr3(b'"', open, close, far).map(|at| near.len() + at))
}

#[cfg(test)]
mod tests;
