//! Index of one JSON text: where its containers and members stand.
//!
//! Values in lists are not stored, but found again by walking the text. The text is checked for grammar
//! first, so that the scan itself cannot fail. Work over an index is counted in steps, which are bounded; at
//! the bound every container looks empty.

use std::cell::Cell;

use bytes::Bytes;
use memchr::memchr2;

use crate::plugin::json::pointer;

/// Containers and members of objects together in one text. The largest real body known, a
/// conversation of 2,000 messages with tools, has 30,000.
pub const PARTS_MAX: usize = 200_000;
/// Nesting of containers; readers in other languages stop at about as many.
pub const DEPTH_MAX: usize = 128;
/// Bytes of the index for one part.
const PART_BYTES: u64 = size_of::<Member>() as u64 + size_of::<u32>() as u64;
/// Steps of work over a text: a few for each of its bytes, …
const STEPS_PER_BYTE: u64 = 8;
/// … and some for a short one, which a large schema may look at often.
const STEPS_MIN: u64 = 1_000_000;
/// From so many members on, a lookup by key goes through the sorted order.
const SORTED_FROM: usize = 8;
/// Marks the absence of a container.
const NONE: u32 = u32::MAX;

/// True when the bytes are one JSON value. Stores nothing.
pub fn is_json(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok()
        && serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// Memory of the index over a text of this length, bytes at most.
pub fn bytes_max(text_bytes: usize) -> u64 {
    // A part takes two bytes of text at least.
    (text_bytes as u64 / 2 + 1).min(PARTS_MAX as u64) * PART_BYTES
}

/// Reason why a text has no index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutlineError {
    /// Not JSON; the reader's sentence.
    Syntax(String),
    /// More than [`PARTS_MAX`] parts, or deeper than [`DEPTH_MAX`].
    TooComplex,
}

/// A member name that stands twice in one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicateMember {
    /// Place of the later one, RFC 6901.
    pub pointer: String,
    /// The name.
    pub key: String,
}

/// A JSON text with its index.
#[derive(Debug)]
pub struct Outline {
    text: Bytes,
    containers: Vec<Container>,
    /// Members of each object together, in the order of the text.
    members: Vec<Member>,
    /// Places in `members`, sorted by key within each object of [`SORTED_FROM`] members and more.
    sorted: Vec<u32>,
    pub(super) root: ValueSpan,
    duplicate: Option<DuplicateMember>,
    steps_left: Cell<u64>,
    /// Errors that a listing may still report.
    errors_left: Cell<u32>,
}

/// An object or a list.
#[derive(Clone, Copy, Debug)]
pub struct Container {
    pub start: u32,
    /// Behind its last byte.
    pub end: u32,
    /// The first container behind this one's own.
    pub next: u32,
    /// The first container inside, if there is one.
    pub inner: u32,
    /// First member of an object.
    pub first: u32,
    /// Members, or items of a list.
    pub len: u32,
    pub is_object: bool,
}

/// Member of an object.
#[derive(Debug)]
pub(crate) struct Member {
    /// Its name, where that is written with escapes.
    escaped: Option<Box<str>>,
    key: (u32, u32),
    pub value: ValueSpan,
}

/// Span of a value in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueSpan {
    pub start: u32,
    pub end: u32,
    /// Its container, or [`NONE`].
    container: u32,
}

impl ValueSpan {
    pub fn container(self) -> Option<u32> {
        (self.container != NONE).then_some(self.container)
    }
}

impl Outline {
    /// Reads a text.
    ///
    /// # Errors
    /// `OutlineError`.
    pub fn read(text: Bytes) -> Result<Outline, OutlineError> {
        Outline::read_within(text, &mut PARTS_MAX.clone())
    }

    /// As [`Outline::read`], where several texts share one allowance of parts.
    ///
    /// # Errors
    /// `OutlineError`.
    pub fn read_within(text: Bytes, parts_left: &mut usize) -> Result<Outline, OutlineError> {
        let wrong = |why: String| Err(OutlineError::Syntax(why));
        let checked = match std::str::from_utf8(&text) {
            Ok(checked) => checked,
            Err(_) => return wrong("it is not UTF-8".into()),
        };
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(checked) {
            return wrong(error.to_string());
        }
        if u32::try_from(text.len()).is_err() {
            return Err(OutlineError::TooComplex);
        }
        let mut scan = Scan::new(checked, *parts_left);
        let root = scan.run()?;
        *parts_left = scan.parts_left;
        let Scan {
            containers,
            members,
            sorted,
            duplicate,
            ..
        } = scan;
        let outline = Outline {
            containers,
            members,
            sorted,
            root,
            duplicate,
            steps_left: Cell::new(0),
            errors_left: Cell::new(u32::MAX),
            text,
        };
        outline.refill(u32::MAX);
        Ok(outline)
    }

    /// The text.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The first member name found twice in one object.
    pub fn duplicate(&self) -> Option<&DuplicateMember> {
        self.duplicate.as_ref()
    }

    /// Begins a piece of work: as many steps as the text is worth, and so many errors to list.
    pub fn refill(&self, errors_max: u32) {
        let steps = STEPS_MIN + STEPS_PER_BYTE * self.text.len() as u64;
        self.steps_left.set(steps);
        self.errors_left.set(errors_max);
    }

    /// True when the work since [`Outline::refill`] took more steps than allowed: its result means nothing
    /// then.
    pub fn is_exhausted(&self) -> bool {
        self.steps_left.get() == 0
    }

    pub(crate) fn spend(&self, steps: u64) -> bool {
        let left = self.steps_left.get().saturating_sub(steps);
        self.steps_left.set(left);
        left > 0
    }

    pub(crate) fn count_error(&self) {
        self.errors_left
            .set(self.errors_left.get().saturating_sub(1));
    }

    /// True when a loop over items or members should continue.
    pub(crate) fn may_continue(&self) -> bool {
        self.spend(1) && self.errors_left.get() > 0
    }

    pub(crate) fn container(&self, at: u32) -> Container {
        self.containers[at as usize]
    }

    pub(crate) fn members_of(&self, of: Container) -> &[Member] {
        &self.members[of.first as usize..(of.first + of.len) as usize]
    }

    pub(crate) fn key<'a>(&'a self, member: &'a Member) -> &'a str {
        std::str::from_utf8(member.key_in(&self.text)).unwrap_or_default()
    }

    /// The member of this name; of several the last.
    pub(crate) fn member(&self, of: Container, key: &str) -> Option<&Member> {
        let members = self.members_of(of);
        if members.len() < SORTED_FROM {
            let mut own = members.iter();
            return own.rfind(|member| member.key_in(&self.text) == key.as_bytes());
        }
        let sorted = &self.sorted[of.first as usize..(of.first + of.len) as usize];
        let key = key.as_bytes();
        let name = |at: &u32| self.members[*at as usize].key_in(&self.text);
        let behind = sorted.partition_point(|at| name(at) <= key);
        let found = sorted[behind.checked_sub(1)?];
        (name(&found) == key).then_some(&self.members[found as usize])
    }

    /// The item that begins at or behind `at` in a list, with the first container from there on.
    pub(crate) fn item(&self, mut at: u32, next: u32) -> Option<ValueSpan> {
        let bytes = &self.text[..];
        while matches!(bytes[at as usize], b',' | b' ' | b'\n' | b'\r' | b'\t') {
            at += 1;
        }
        match bytes[at as usize] {
            b']' => None,
            b'[' | b'{' => Some(ValueSpan {
                start: at,
                end: self.containers[next as usize].end,
                container: next,
            }),
            _ => Some(ValueSpan {
                start: at,
                end: scalar_end(bytes, at as usize) as u32,
                container: NONE,
            }),
        }
    }
}

impl Member {
    fn key_in<'a>(&'a self, text: &'a [u8]) -> &'a [u8] {
        match &self.escaped {
            Some(key) => key.as_bytes(),
            None => &text[self.key.0 as usize..self.key.1 as usize],
        }
    }
}

/// Behind a value that is no container.
fn scalar_end(bytes: &[u8], at: usize) -> usize {
    if bytes[at] == b'"' {
        return string_end(bytes, at);
    }
    let is_end = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t');
    let length = bytes[at..].iter().position(is_end);
    length.map_or(bytes.len(), |length| at + length)
}

/// Behind a text that begins with its quote at `at`.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    at += 1;
    loop {
        match memchr2(b'"', b'\\', &bytes[at..]) {
            Some(found) if bytes[at + found] == b'"' => return at + found + 1,
            Some(found) => at += found + 2,
            // The text was checked: a quote comes.
            None => return bytes.len(),
        }
    }
}

/// A container that is not closed yet.
struct OpenContainer {
    container: u32,
    /// Number of members of outer objects that wait before its own.
    mark: usize,
    items: u32,
    /// The name whose value comes next.
    key: Option<(u32, u32)>,
}

/// Pass over a text.
struct Scan<'a> {
    text: &'a str,
    parts_left: usize,
    containers: Vec<Container>,
    members: Vec<Member>,
    sorted: Vec<u32>,
    duplicate: Option<DuplicateMember>,
    open: Vec<OpenContainer>,
    /// Members of objects that are open.
    waiting: Vec<Member>,
    root: Option<ValueSpan>,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str, parts_left: usize) -> Scan<'a> {
        Scan {
            text,
            parts_left,
            containers: Vec::new(),
            members: Vec::new(),
            sorted: Vec::new(),
            duplicate: None,
            open: Vec::new(),
            waiting: Vec::new(),
            root: None,
        }
    }

    fn run(&mut self) -> Result<ValueSpan, OutlineError> {
        let bytes = self.text.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b' ' | b'\n' | b'\r' | b'\t' | b',' | b':' => at += 1,
                first @ (b'{' | b'[') => {
                    self.enter(at, first == b'{')?;
                    at += 1;
                }
                b'}' | b']' => {
                    at += 1;
                    self.leave(at);
                }
                b'"' if self.awaits_key() => {
                    let end = string_end(bytes, at);
                    self.part()?;
                    if let Some(open) = self.open.last_mut() {
                        open.key = Some((at as u32 + 1, end as u32 - 1));
                    }
                    at = end;
                }
                _ => {
                    let end = scalar_end(bytes, at);
                    self.value(ValueSpan {
                        start: at as u32,
                        end: end as u32,
                        container: NONE,
                    });
                    at = end;
                }
            }
        }
        self.root
            .ok_or_else(|| OutlineError::Syntax("there is no value in it".into()))
    }

    fn awaits_key(&self) -> bool {
        self.open.last().is_some_and(|open| {
            open.key.is_none() && self.containers[open.container as usize].is_object
        })
    }

    fn part(&mut self) -> Result<(), OutlineError> {
        let left = self.parts_left.checked_sub(1);
        self.parts_left = left.ok_or(OutlineError::TooComplex)?;
        Ok(())
    }

    fn enter(&mut self, at: usize, is_object: bool) -> Result<(), OutlineError> {
        self.part()?;
        if self.open.len() == DEPTH_MAX {
            return Err(OutlineError::TooComplex);
        }
        self.open.push(OpenContainer {
            container: self.containers.len() as u32,
            mark: self.waiting.len(),
            items: 0,
            key: None,
        });
        self.containers.push(Container {
            start: at as u32,
            end: 0,
            next: 0,
            inner: self.containers.len() as u32 + 1,
            first: 0,
            len: 0,
            is_object,
        });
        Ok(())
    }

    fn leave(&mut self, end: usize) {
        let Some(open) = self.open.pop() else {
            return;
        };
        let next = self.containers.len() as u32;
        let first = self.members.len() as u32;
        let own = self.waiting.len() - open.mark;
        self.members.extend(self.waiting.drain(open.mark..));
        let container = &mut self.containers[open.container as usize];
        container.end = end as u32;
        container.next = next;
        container.first = first;
        container.len = match container.is_object {
            true => own as u32,
            false => open.items,
        };
        let place = ValueSpan {
            start: container.start,
            end: container.end,
            container: open.container,
        };
        self.sort(first);
        self.value(place);
    }

    /// Sorts the members from `first` on by name, and finds a name that stands twice.
    fn sort(&mut self, first: u32) {
        let Scan {
            text,
            members,
            sorted,
            ..
        } = self;
        let from = sorted.len();
        sorted.extend(first..members.len() as u32);
        let own = &mut sorted[from..];
        let key = |at: &u32| members[*at as usize].key_in(text.as_bytes());
        // Stable: of equal names the later one stays behind.
        own.sort_by(|one, other| key(one).cmp(key(other)));
        let twice = own.windows(2).find(|pair| key(&pair[0]) == key(&pair[1]));
        if let Some(pair) = twice
            && self.duplicate.is_none()
        {
            let key = String::from_utf8_lossy(key(&pair[1])).into_owned();
            let pointer = format!("{}/{}", self.here(), pointer::escape(&key));
            self.duplicate = Some(DuplicateMember { pointer, key });
        }
    }

    /// The place of the value that comes next, RFC 6901.
    fn here(&self) -> String {
        let mut pointer = String::new();
        for open in &self.open {
            pointer.push('/');
            match open.key {
                Some((start, end)) => {
                    let key = unescaped(&self.text[start as usize..end as usize]);
                    let key = key.as_deref();
                    let raw = &self.text[start as usize..end as usize];
                    pointer.push_str(&pointer::escape(key.unwrap_or(raw)));
                }
                None => pointer.push_str(&open.items.to_string()),
            }
        }
        pointer
    }

    fn value(&mut self, place: ValueSpan) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(place);
            return;
        };
        match open.key.take() {
            Some(key) => {
                let raw = &self.text[key.0 as usize..key.1 as usize];
                self.waiting.push(Member {
                    escaped: unescaped(raw),
                    key,
                    value: place,
                });
            }
            None => open.items += 1,
        }
    }
}

/// A name without its escapes; none where it has none.
fn unescaped(raw: &str) -> Option<Box<str>> {
    memchr::memchr(b'\\', raw.as_bytes())?;
    // Half a surrogate pair is no text: such a name stands for itself.
    Some(serde_json::from_str(&format!("\"{raw}\"")).unwrap_or_else(|_| raw.into()))
}
