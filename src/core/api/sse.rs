//! Server-sent events as bytes: where one ends, what it carries, how one is written.
//!
//! Independent of dialects: the data is opaque here. Lines end in LF or CR LF; a bare CR, which the
//! specification permits and no model server sends, does not end a line. At most [`EVENT_BYTES_MAX`] of
//! one event are held by default. Called by the relay of streamed responses.
//! Specification: <https://html.spec.whatwg.org/multipage/server-sent-events.html>.

use std::borrow::Cow;

use bytes::BytesMut;
use memchr::{memchr, memchr_iter};

/// The longest event held while its end is awaited. A chunk with the logprobs of a long tool call
/// is tens of kilobytes; images and sounds in base64 are longer, and pass in pieces.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// An event that has to be held whole grew over its bound without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is longer than its bound")]
pub struct EventTooLong;

/// An event or a part of one, as a [`EventSplitter`] emits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPart<'a> {
    /// A whole event with its blank line.
    Event(&'a [u8]),
    /// A piece of an event over the bound, its first one included; the last one ends in its blank line.
    Piece {
        bytes: &'a [u8],
        /// The event begins here.
        begins: bool,
    },
}

/// Finds whole events in bytes that arrive cut anywhere.
#[derive(Debug)]
pub struct EventSplitter {
    /// The beginning of an event whose end has not arrived.
    held: Vec<u8>,
    /// Bytes of one event that are held.
    max: usize,
    /// In an event over the bound: its last bytes, in which its blank line may have started.
    long: Option<[u8; 2]>,
}

impl Default for EventSplitter {
    fn default() -> EventSplitter {
        EventSplitter::with_limit(EVENT_BYTES_MAX)
    }
}

impl EventSplitter {
    /// Holds at most `max` bytes of one event.
    pub fn with_limit(max: usize) -> EventSplitter {
        EventSplitter {
            held: Vec::new(),
            max,
            long: None,
        }
    }

    /// Hands each event that `chunk` completes to `sink`, as it came and with its blank line, and
    /// holds what is left over. Events that lie within the chunk are not copied.
    ///
    /// # Errors
    /// An event over the bound has not ended.
    pub fn push(&mut self, chunk: &[u8], sink: &mut impl FnMut(&[u8])) -> Result<(), EventTooLong> {
        let mut is_too_long = false;
        self.push_parts(chunk, &mut |part| match part {
            EventPart::Event(event) if !is_too_long => sink(event),
            EventPart::Event(_) => {}
            EventPart::Piece { .. } => is_too_long = true,
        });
        match is_too_long {
            true => Err(EventTooLong),
            false => Ok(()),
        }
    }

    /// The same, but an event over the bound is handed on in pieces as they come, and none of it is held.
    pub fn push_parts(&mut self, chunk: &[u8], sink: &mut impl FnMut(EventPart<'_>)) {
        let mut rest = self.push_long(chunk, sink);
        if !self.held.is_empty() {
            let end = first_end_after(&self.held, rest);
            let (taken, after) = rest.split_at(end.unwrap_or(rest.len()));
            if self.held.len() + taken.len() > self.max {
                self.long = end
                    .is_none()
                    .then(|| last_two(last_two([0; 2], &self.held), taken));
                let held = std::mem::take(&mut self.held);
                sink(EventPart::Piece {
                    bytes: &held,
                    begins: true,
                });
                sink(EventPart::Piece {
                    bytes: taken,
                    begins: false,
                });
            } else {
                self.held.extend_from_slice(taken);
                if end.is_some() {
                    sink(EventPart::Event(&self.held));
                    self.held.clear();
                }
            }
            rest = after;
        }
        while let Some(end) = first_end(rest) {
            sink(EventPart::Event(&rest[..end]));
            rest = &rest[end..];
        }
        if rest.len() > self.max {
            self.long = Some(last_two([0; 2], rest));
            sink(EventPart::Piece {
                bytes: rest,
                begins: true,
            });
            return;
        }
        self.held.extend_from_slice(rest);
    }

    /// Hands on the part of `chunk` that belongs to an event over the bound, and returns the rest.
    fn push_long<'a>(&mut self, chunk: &'a [u8], sink: &mut impl FnMut(EventPart<'_>)) -> &'a [u8] {
        let Some(tail) = self.long else { return chunk };
        let end = first_end_after(&tail, chunk);
        let (bytes, rest) = chunk.split_at(end.unwrap_or(chunk.len()));
        self.long = end.is_none().then(|| last_two(tail, bytes));
        if !bytes.is_empty() {
            sink(EventPart::Piece {
                bytes,
                begins: false,
            });
        }
        rest
    }

    /// Returns the incomplete event; empty where it is over the bound.
    pub fn held(&self) -> &[u8] {
        &self.held
    }

    /// Returns whether the next byte begins an event.
    pub fn is_between_events(&self) -> bool {
        self.held.is_empty() && self.long.is_none()
    }

    /// Returns whether an event over the bound is incomplete.
    pub fn is_in_long_event(&self) -> bool {
        self.long.is_some()
    }
}

/// The last two bytes of what came before and `bytes`.
fn last_two(before: [u8; 2], bytes: &[u8]) -> [u8; 2] {
    match bytes {
        [.., last_but_one, last] => [*last_but_one, *last],
        [last] => [before[1], *last],
        [] => before,
    }
}

/// Length of the first event in `bytes`, its blank line included.
fn first_end(bytes: &[u8]) -> Option<usize> {
    memchr_iter(b'\n', bytes).find_map(|lf| match bytes[lf + 1..] {
        [b'\n', ..] => Some(lf + 2),
        [b'\r', b'\n', ..] => Some(lf + 3),
        _ => None,
    })
}

/// As [`first_end`], where a blank line may have started at the end of `held`.
fn first_end_after(held: &[u8], bytes: &[u8]) -> Option<usize> {
    match (held, bytes) {
        ([.., b'\n'], [b'\n', ..]) | ([.., b'\n', b'\r'], [b'\n', ..]) => Some(1),
        ([.., b'\n'], [b'\r', b'\n', ..]) => Some(2),
        _ => first_end(bytes),
    }
}

/// Returns the data of an event: its `data` lines, joined by line feeds. `None` for a comment or an
/// event without data. Other fields are ignored.
pub fn data(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut found: Option<Cow<'_, [u8]>> = None;
    for line in lines(raw) {
        let Some(value) = line.strip_prefix(b"data") else {
            continue;
        };
        let value = match value {
            [] => value,
            [b':', b' ', value @ ..] | [b':', value @ ..] => value,
            _ => continue, // another field, whose name begins with `data`
        };
        match &mut found {
            None => found = Some(Cow::Borrowed(value)),
            Some(joined) => {
                let joined = joined.to_mut();
                joined.push(b'\n');
                joined.extend_from_slice(value);
            }
        }
    }
    found
}

/// Returns the type of an event: its last `event` line.
pub fn name(raw: &[u8]) -> Option<&str> {
    let value = lines(raw)
        .filter_map(|line| line.strip_prefix(b"event:"))
        .last()?;
    std::str::from_utf8(value.strip_prefix(b" ").unwrap_or(value)).ok()
}

/// Returns whether `data` is the `[DONE]` that ends OpenAI-style streams.
pub fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}

/// Appends an event with this data.
pub fn event(data: &[u8], out: &mut BytesMut) {
    write_lines(b"data: ", data, out);
}

fn write_lines(prefix: &[u8], text: &[u8], out: &mut BytesMut) {
    out.reserve(prefix.len() + text.len() + 2);
    // `lines` sees no last line where there are no bytes.
    let empty = text.is_empty().then_some(text);
    for line in lines(text).chain(empty) {
        out.extend_from_slice(prefix);
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"\n");
}

/// The lines of `bytes`, without their ends.
fn lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let lf = memchr(b'\n', bytes);
        let line = &bytes[..lf.unwrap_or(bytes.len())];
        bytes = lf.map_or(&[][..], |lf| &bytes[lf + 1..]);
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, Vec<u8>) {
        let mut splitter = EventSplitter::default();
        let mut events = Vec::new();
        for chunk in chunks {
            splitter
                .push(chunk, &mut |event| events.push(event.to_vec()))
                .unwrap();
        }
        (events, splitter.held().to_vec())
    }

    const MIXED: &[u8] =
        b"data: a\n\n: note\r\n\r\nevent: x\r\ndata: b\n\r\ndata: c\r\n\n\n\r\ndata: [DONE]\n\nrest";

    #[test]
    fn events_end_at_a_blank_line_of_either_kind() {
        let (events, held) = split([MIXED]);
        let expected: [&[u8]; 6] = [
            b"data: a\n\n",
            b": note\r\n\r\n",
            b"event: x\r\ndata: b\n\r\n",
            b"data: c\r\n\n",
            b"\n\r\n",
            b"data: [DONE]\n\n",
        ];
        assert_eq!(events, expected);
        assert_eq!(held, b"rest");
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let whole = split([MIXED]);
        for cut in 0..=MIXED.len() {
            assert_eq!(split([&MIXED[..cut], &MIXED[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(split(MIXED.chunks(1)), whole);
    }

    proptest! {
        #[test]
        fn any_bytes_split_alike_in_any_pieces(
            picks in proptest::collection::vec(0..4usize, 0..60), size in 1..9usize,
        ) {
            let bytes: Vec<u8> = picks.iter().map(|&pick| b"\n\r:x"[pick]).collect();
            let whole = split([&bytes[..]]);
            let (events, held) = split(bytes.chunks(size));
            prop_assert_eq!(&events, &whole.0);
            prop_assert_eq!(&held, &whole.1);
            prop_assert_eq!([events.concat(), held].concat(), bytes);
        }
    }

    #[test]
    fn an_event_without_an_end_is_held_up_to_the_bound() {
        let mut splitter = EventSplitter::default();
        let piece = vec![b'x'; EVENT_BYTES_MAX / 2];
        let mut sink = |_: &[u8]| panic!("no event has ended");
        splitter.push(&piece, &mut sink).unwrap();
        splitter.push(&piece, &mut sink).unwrap();
        assert_eq!(splitter.push(b"x", &mut sink), Err(EventTooLong));
        let whole = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert_eq!(
            EventSplitter::default().push(&whole, &mut sink),
            Err(EventTooLong)
        );
    }

    #[test]
    fn an_event_over_the_bound_passes_in_pieces_and_those_around_it_whole() {
        let long = b"data: 0123456789\r\n\r\n";
        let stream = [&b"data: a\n\n"[..], long, b"data: b\n\n", long, b"data: c"].concat();
        for size in 1..stream.len() {
            let mut splitter = EventSplitter::with_limit(12);
            let (mut all, mut events, mut starts) = (Vec::new(), Vec::new(), 0);
            for chunk in stream.chunks(size) {
                splitter.push_parts(chunk, &mut |part| match part {
                    EventPart::Event(event) => {
                        all.extend_from_slice(event);
                        events.push(event.to_vec());
                    }
                    EventPart::Piece { bytes, begins } => {
                        all.extend_from_slice(bytes);
                        starts += usize::from(begins);
                    }
                });
                assert!(splitter.held().len() <= 12, "{size}");
            }
            all.extend_from_slice(splitter.held());
            assert_eq!(all, stream, "{size}");
            assert!(!splitter.is_in_long_event());
            // What lies within one chunk is an event, however long it is.
            events.retain(|event| event != long);
            assert_eq!(events, [b"data: a\n\n", b"data: b\n\n"], "{size}");
            assert!(starts <= 2 && (size > 8 || starts == 2), "{size}");
        }
    }

    #[test]
    fn one_data_line_is_borrowed_and_several_are_joined() {
        assert!(matches!(data(b"data: {}\n\n"), Some(Cow::Borrowed(b"{}"))));
        assert_eq!(data(b"data:{}\r\n\r\n").unwrap(), &b"{}"[..]);
        assert_eq!(
            data(b"id: 1\ndata: a\n: note\ndata\ndata:  b\n\n").unwrap(),
            &b"a\n\n b"[..]
        );
        assert_eq!(data(b": keep-alive\n\n"), None);
        assert_eq!(data(b"event: done\ndatabase: x\n\n"), None);
    }

    #[test]
    fn an_event_is_called_by_its_last_name() {
        assert_eq!(name(b"event: a\r\nevent:b\r\ndata: c\n\n"), Some("b"));
        assert_eq!(name(b"data: event: a\n\n"), None);
        assert_eq!(name(b"event: \xff\n\n"), None);
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in [&b"{\"a\":1}"[..], b"", b"two\nlines", b"two\r\nlines"] {
            let mut out = BytesMut::new();
            event(text, &mut out);
            let (events, held) = split([&out[..]]);
            assert_eq!((events.len(), held.len()), (1, 0));
            let read = data(&events[0]).unwrap();
            assert_eq!(
                read.to_vec(),
                text.iter()
                    .copied()
                    .filter(|&b| b != b'\r')
                    .collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn the_end_mark_is_recognised_with_and_without_spaces() {
        assert!(is_done(b"[DONE]") && is_done(b" [DONE] "));
        assert!(!is_done(b"{}") && !is_done(b"\"[DONE]\""));
    }
}
