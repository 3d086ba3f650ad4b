//! Form of the events of a stream, by which those are known that differ in their text alone.
//!
//! Not a parser, and no search: events are compared. Most events of a stream repeat the one before to the byte, but
//! for the token that is new. Such an event means what the other one means: neither names usage, an end or an
//! error, and both pass. An event of another form is read as ever, and may give the next form. At most
//! [`FORM_BYTES_MAX`] are kept, twice where the model has another name.

use std::ops::Range;

use bytes::BytesMut;
use infergate_core::billing::TextCount;

use super::event_text::{count_text, text_end};
use super::model_name::ModelNameRewriter;

/// The longest event that gives a form. One with the log probabilities of its tokens differs in more than a text.
const FORM_BYTES_MAX: usize = 2048;

/// Names that are searched for in quotes: where one of them is the text, an event is to be read.
const SEARCHED: [&[u8]; 8] = [
    b"usage",
    b"finish_reason",
    b"error",
    b"content",
    b"text",
    b"response",
    b"reasoning_content",
    b"reasoning",
];

/// Form of an event that passes: the bytes before and after its one text.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    as_received: Form,
    /// With the name of the model for the client; empty where events pass as they are.
    as_sent: Form,
    /// Index of the known place at which the text stands.
    place: usize,
}

#[derive(Debug, Default)]
struct Form {
    bytes: Vec<u8>,
    text_at: usize,
}

/// Event of the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownEvent<'a> {
    /// Bytes of the event, its blank line included.
    pub(super) len: usize,
    /// Its text, a JSON string without its quotes.
    text: &'a [u8],
}

impl EventTemplate {
    /// Recognizes an event of the form at the start of `bytes`, and counts its text, which stands at `place`.
    pub(super) fn recognize<'a>(
        &self,
        bytes: &'a [u8],
        place: Option<usize>,
        count: &mut TextCount,
    ) -> Option<KnownEvent<'a>> {
        if place != Some(self.place) || self.as_received.bytes.is_empty() {
            return None;
        }
        let rest = bytes.strip_prefix(self.as_received.before())?;
        let text = &rest[..text_end(rest)?];
        let after = self.as_received.after();
        if !rest[text.len()..].starts_with(after) || !may_differ(text) || !count_text(text, count) {
            return None;
        }
        let len = self.as_received.bytes.len() + text.len();
        Some(KnownEvent { len, text })
    }

    /// Appends the event as the client gets it, with its own name of the model.
    pub(super) fn write(&self, event: KnownEvent<'_>, out: &mut BytesMut) {
        out.reserve(self.as_sent.bytes.len() + event.text.len());
        out.extend_from_slice(self.as_sent.before());
        out.extend_from_slice(event.text);
        out.extend_from_slice(self.as_sent.after());
    }

    /// Takes the form of `event`, which was read and passes; `text` is the range of the only value at `place`.
    pub(super) fn learn(
        &mut self,
        event: &[u8],
        text: Range<usize>,
        place: usize,
        name: Option<&ModelNameRewriter>,
    ) {
        self.as_received.bytes.clear();
        if event.len() > FORM_BYTES_MAX || !may_differ(&event[text.clone()]) {
            return;
        }
        let (before, after) = (&event[..text.start], &event[text.end..]);
        if let Some(name) = name {
            let model = name.place(event);
            match model {
                None => self.as_sent.set(&[before], &[after]),
                Some(model) if model.end <= text.start => {
                    let (start, end) = (&before[..model.start], &before[model.end..]);
                    self.as_sent.set(&[start, name.as_json(), end], &[after]);
                }
                Some(model) => {
                    let (start, end) = (&event[text.end..model.start], &event[model.end..]);
                    self.as_sent.set(&[before], &[start, name.as_json(), end]);
                }
            }
        }
        self.place = place;
        self.as_received.set(&[before], &[after]);
    }
}

impl Form {
    fn set(&mut self, before: &[&[u8]], after: &[&[u8]]) {
        self.bytes.clear();
        for part in before {
            self.bytes.extend_from_slice(part);
        }
        self.text_at = self.bytes.len();
        for part in after {
            self.bytes.extend_from_slice(part);
        }
    }

    fn before(&self) -> &[u8] {
        &self.bytes[..self.text_at]
    }

    fn after(&self) -> &[u8] {
        &self.bytes[self.text_at..]
    }
}

/// Returns whether an event means the same with this text in place of another. The text is not empty and has no
/// control character, and no name that is searched for comes about with the quotes around it.
fn may_differ(text: &[u8]) -> bool {
    let Some(last) = text.last() else {
        return false;
    };
    // Each of the names ends with one of these; most words do not.
    let may_end_name = matches!(last, b'e' | b'g' | b'n' | b'r' | b't');
    text.iter().all(|byte| *byte >= b' ') && !(may_end_name && ends_with_name(text))
}

/// Returns whether what follows the last quote is a name that is searched for.
fn ends_with_name(text: &[u8]) -> bool {
    let last_quote = text.iter().rposition(|byte| *byte == b'"');
    SEARCHED.contains(&&text[last_quote.map_or(0, |at| at + 1)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_searched_for_end_as_the_look_at_a_text_assumes() {
        for name in SEARCHED {
            assert!(!may_differ(name));
            assert!(!may_differ(&[b"a \\\"", name].concat()));
            assert!(may_differ(&[b"a", name].concat()));
        }
    }
}
