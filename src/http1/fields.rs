//! Fields of a head: one buffer, and the places of its lines in it.
//!
//! Names are in lower case, in the order of the message. Not the meaning of any field.

use std::fmt;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Lines whose places need no memory of their own: those of a usual request.
const LINES_INLINE: usize = 16;

/// Part of the buffer. Heads have bounds far below 4 GiB.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FieldSpan {
    at: u32,
    length: u32,
}

impl FieldSpan {
    /// FieldSpan of `part` in the text that begins at `base`.
    pub fn of(part: &[u8], base: usize) -> FieldSpan {
        FieldSpan {
            at: (part.as_ptr() as usize).wrapping_sub(base) as u32,
            length: part.len() as u32,
        }
    }

    /// Writes `part` to the end of `text` and returns its place there.
    pub fn write(part: &[u8], text: &mut Vec<u8>) -> FieldSpan {
        let at = text.len() as u32;
        text.extend_from_slice(part);
        FieldSpan {
            at,
            length: part.len() as u32,
        }
    }

    /// The part of `text` at this place; nothing where the text has no such place.
    pub fn of_text(self, text: &[u8]) -> &[u8] {
        let at = self.at as usize;
        text.get(at..at + self.length as usize).unwrap_or(b"")
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub name: FieldSpan,
    pub value: FieldSpan,
}

/// Fields of a received head.
#[derive(Clone, Default)]
pub struct Fields {
    text: Bytes,
    lines: SmallVec<[Line; LINES_INLINE]>,
}

impl Fields {
    /// Fields with these names and values.
    pub fn from_lines(lines: &[(&str, &str)]) -> Fields {
        let mut text = BytesMut::new();
        let mut places = SmallVec::new();
        for (name, value) in lines {
            let at = text.len() as u32;
            text.extend_from_slice(name.to_ascii_lowercase().as_bytes());
            text.extend_from_slice(value.as_bytes());
            let (name, value) = (name.len() as u32, value.len() as u32);
            places.push(Line {
                name: FieldSpan { at, length: name },
                value: FieldSpan {
                    at: at + name,
                    length: value,
                },
            });
        }
        Fields {
            text: text.freeze(),
            lines: places,
        }
    }

    /// Returns the places of the lines, to be filled anew by a parser.
    pub(super) fn begin(&mut self) -> &mut SmallVec<[Line; LINES_INLINE]> {
        self.text = Bytes::new();
        self.lines.clear();
        &mut self.lines
    }

    /// Takes the head that the places are in: names get lower case.
    pub(super) fn end(&mut self, mut head: BytesMut) {
        for line in &self.lines {
            let at = line.name.at as usize;
            if let Some(name) = head.get_mut(at..at + line.name.length as usize) {
                name.make_ascii_lowercase();
            }
        }
        self.text = head.freeze();
    }

    /// Takes the head that the places are in, whose names are in lower case.
    pub(super) fn end_written(&mut self, head: Vec<u8>) {
        self.text = head.into();
    }

    /// The whole head as it was received, but for the case of names.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Gives the buffer back: there are no fields any more.
    pub fn clear(&mut self) {
        self.begin();
    }

    /// Moves the head to memory of its own, so that a head that is kept for long does not keep the buffer it came in.
    pub fn detach(&mut self) {
        self.text = Bytes::copy_from_slice(&self.text);
    }

    /// Returns the value of the first line with this name, which is in lower case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// Returns the values of all lines with this name, which is in lower case.
    pub fn get_all<'a>(&'a self, name: &str) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        self.lines
            .iter()
            .filter(move |line| line.name.length as usize == name.len())
            .filter(move |line| line.name.of_text(&self.text) == name.as_bytes())
            .map(|line| line.value.of_text(&self.text))
    }

    /// Returns the value of the first line with this name as text; nothing where it has bytes beyond ASCII.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        as_text(self.get(name)?)
    }

    /// Returns whether there is a line with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Returns names and values as bytes in the order of the message.
    pub fn lines(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| {
            (
                line.name.of_text(&self.text),
                line.value.of_text(&self.text),
            )
        })
    }

    /// Returns names and values in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lines.iter().map(|line| {
            // A parser lets only tokens be names.
            let name = as_text(line.name.of_text(&self.text)).unwrap_or_default();
            (name, line.value.of_text(&self.text))
        })
    }

    /// Returns the number of lines.
    pub fn count(&self) -> usize {
        self.lines.len()
    }
}

/// Returns a value as text; nothing where it has bytes beyond ASCII, whose meaning no rule says.
pub fn as_text(value: &[u8]) -> Option<&str> {
    match value.is_ascii() {
        true => std::str::from_utf8(value).ok(),
        false => None,
    }
}

// Values may be credentials.
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.iter().map(|(name, _)| name))
            .finish()
    }
}
