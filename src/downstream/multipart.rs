//! Reader of `multipart/form-data` (<https://www.rfc-editor.org/rfc/rfc7578>), piece by piece.
//!
//! Not a collector: data leaves as it comes. The reader holds at most the last piece, a head of a part and a boundary.

use bytes::{Bytes, BytesMut};
use memchr::memmem;

/// Longest head of a part, and longest text before the first part.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest boundary.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Head of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartHead {
    /// Name of the field.
    pub name: String,
    /// Name of the file.
    pub filename: Option<String>,
    /// Content type.
    pub content_type: Option<String>,
}

/// Next of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartEvent {
    /// A part begins.
    Head(PartHead),
    /// Data of the part.
    Data(Bytes),
    /// The body has no further part.
    End,
}

/// Body that is no form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no multipart form: {0}")]
pub struct BrokenForm(pub &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormState {
    /// Before the first boundary.
    Preamble,
    /// Behind a boundary.
    Boundary,
    /// Within the data of a part.
    Data,
    End,
}

/// Reader of one body.
pub struct FormReader {
    /// Line break, two dashes, and the boundary.
    mark: Vec<u8>,
    buffer: BytesMut,
    state: FormState,
}

impl FormReader {
    /// Creates the reader of a body with this content type.
    ///
    /// # Errors
    /// [`BrokenForm`].
    pub fn new(content_type: &str) -> Result<FormReader, BrokenForm> {
        let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return Err(BrokenForm("its content type is not multipart/form-data"));
        }
        let boundary = parameter(parameters, "boundary").unwrap_or_default();
        if !(1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) {
            return Err(BrokenForm("its content type has no boundary"));
        }
        Ok(FormReader {
            mark: format!("\r\n--{boundary}").into_bytes(),
            // The first boundary begins like the others.
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: FormState::Preamble,
        })
    }

    /// Adds a piece of the body.
    pub fn push(&mut self, piece: &[u8]) {
        if self.state != FormState::End {
            self.buffer.extend_from_slice(piece);
        }
    }

    /// Returns what is next; none before more has come.
    ///
    /// # Errors
    /// [`BrokenForm`].
    pub fn next(&mut self) -> Result<Option<PartEvent>, BrokenForm> {
        if self.state == FormState::Preamble {
            match memmem::find(&self.buffer, &self.mark) {
                Some(at) => self.pass(at),
                None if self.buffer.len() > HEAD_BYTES_MAX => {
                    return Err(BrokenForm("its boundary does not come"));
                }
                None => return Ok(None),
            }
        }
        match self.state {
            FormState::Boundary => self.head(),
            FormState::Data => self.data(),
            FormState::Preamble | FormState::End => Ok(Some(PartEvent::End)),
        }
    }

    /// Drops what is before a boundary, and the boundary.
    fn pass(&mut self, at: usize) {
        let _ = self.buffer.split_to(at + self.mark.len());
        self.state = FormState::Boundary;
    }

    fn head(&mut self) -> Result<Option<PartEvent>, BrokenForm> {
        if self.buffer.len() < 2 {
            return Ok(None);
        }
        if self.buffer.starts_with(b"--") {
            self.buffer.clear();
            self.state = FormState::End;
            return Ok(Some(PartEvent::End));
        }
        let Some(end) = memmem::find(&self.buffer, b"\r\n\r\n") else {
            return match self.buffer.len() > HEAD_BYTES_MAX {
                true => Err(BrokenForm("the head of a part is too long")),
                false => Ok(None),
            };
        };
        let head = self.buffer.split_to(end + 4);
        let text = String::from_utf8_lossy(&head).into_owned();
        if !text.trim_start_matches([' ', '\t']).starts_with("\r\n") {
            return Err(BrokenForm("a boundary is followed by other text"));
        }
        self.state = FormState::Data;
        Ok(Some(PartEvent::Head(part_head(&text))))
    }

    fn data(&mut self) -> Result<Option<PartEvent>, BrokenForm> {
        if let Some(at) = memmem::find(&self.buffer, &self.mark) {
            let data = self.buffer.split_to(at).freeze();
            self.pass(0);
            return match data.is_empty() {
                true => self.head(),
                false => Ok(Some(PartEvent::Data(data))),
            };
        }
        // The end may be the beginning of a boundary.
        let kept = self.mark.len() - 1;
        let ready = self.buffer.len().saturating_sub(kept);
        Ok((ready > 0).then(|| PartEvent::Data(self.buffer.split_to(ready).freeze())))
    }
}

/// Reads the head of a part.
fn part_head(text: &str) -> PartHead {
    let mut head = PartHead::default();
    for line in text.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-disposition") {
            let parameters = value.split_once(';').map_or("", |(_, rest)| rest);
            head.name = parameter(parameters, "name").unwrap_or_default();
            head.filename = parameter(parameters, "filename");
        } else if name.eq_ignore_ascii_case("content-type") {
            head.content_type = Some(value.trim().to_owned());
        }
    }
    head
}

/// Returns a parameter of a header's value, with its quotes taken off.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    let mut rest = parameters;
    loop {
        let (key, after) = rest.split_once('=')?;
        let (value, after) = parameter_value(after.trim_start());
        if key
            .trim_matches([' ', '\t', ';'])
            .eq_ignore_ascii_case(name)
        {
            return Some(value);
        }
        rest = after;
    }
}

/// Splits the value of a parameter from what follows.
fn parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(letters.next().map(|(_, letter)| letter)),
            letter => value.push(letter),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"ignored\r\n--b\r\nContent-Disposition: form-data; name=\"content\"; filename=\"a \\\"b\\\".png\"\r\nContent-Type: image/png\r\n\r\nx\r\n--\r\ny\r\n--b \r\ncontent-disposition: form-data; name=metadata\r\n\r\n\r\n--b--\r\nepilogue";

    fn reader() -> FormReader {
        FormReader::new("Multipart/Form-Data; charset=x; boundary=\"b\"").unwrap()
    }

    /// Parts with their data, joined.
    fn parts(pieces: &[&[u8]]) -> Result<Vec<(PartHead, Vec<u8>)>, BrokenForm> {
        let mut reader = reader();
        let mut parts: Vec<(PartHead, Vec<u8>)> = Vec::new();
        for piece in pieces {
            reader.push(piece);
            while let Some(event) = reader.next()? {
                match event {
                    PartEvent::Head(head) => parts.push((head, Vec::new())),
                    PartEvent::Data(data) => parts.last_mut().unwrap().1.extend_from_slice(&data),
                    PartEvent::End => return Ok(parts),
                }
            }
        }
        Err(BrokenForm("no end"))
    }

    #[test]
    fn a_form_is_the_same_wherever_it_is_cut() {
        let expected = parts(&[BODY]).unwrap();
        assert_eq!(expected.len(), 2);
        assert_eq!(expected[0].0.filename.as_deref(), Some("a \"b\".png"));
        assert_eq!(expected[0].0.content_type.as_deref(), Some("image/png"));
        assert_eq!(expected[0].1, b"x\r\n--\r\ny");
        assert_eq!(
            (&*expected[1].0.name, &*expected[1].1),
            ("metadata", &b""[..])
        );
        for at in 0..BODY.len() {
            let (first, second) = BODY.split_at(at);
            assert_eq!(parts(&[first, second]).unwrap(), expected, "cut at {at}");
        }
        let bytes: Vec<&[u8]> = BODY.chunks(1).collect();
        assert_eq!(parts(&bytes).unwrap(), expected);
    }

    #[test]
    fn data_leaves_as_it_comes() {
        let mut reader = reader();
        reader.push(b"--b\r\n\r\n");
        assert_eq!(
            reader.next(),
            Ok(Some(PartEvent::Head(PartHead::default())))
        );
        for _ in 0..100 {
            reader.push(&[b'x'; 10_000]);
            assert!(matches!(reader.next(), Ok(Some(PartEvent::Data(_)))));
            assert!(reader.buffer.len() < 5);
        }
    }

    #[test]
    fn what_is_no_form_is_refused_before_it_fills_memory() {
        for kind in [
            "",
            "text/plain",
            "multipart/form-data",
            "multipart/form-data; boundary=",
        ] {
            assert!(FormReader::new(kind).is_err(), "{kind}");
        }
        let long = vec![b'x'; HEAD_BYTES_MAX + 1];
        assert!(parts(&[&long]).is_err());
        assert!(parts(&[b"--b\r\n", &long]).is_err());
        assert!(parts(&[b"--bc\r\n\r\n"]).is_err());
        assert!(parts(&[b"--b\r\n\r\nno end"]).is_err());
    }
}
