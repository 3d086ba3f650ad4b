//! Fields of a whole `multipart/form-data` body, as ranges (<https://www.rfc-editor.org/rfc/rfc7578>).
//!
//! Not a copy of the parts, and not a reader of a body that arrives: the whole body is in memory. The body is searched for its
//! boundary once. At most [`PARTS_MAX`] parts; a head of a part has at most [`HEAD_BYTES_MAX`].

use std::ops::Range;

use memchr::memmem::{self, Finder};

/// Parts of a form: the largest known API has a dozen fields.
pub const PARTS_MAX: usize = 64;
/// Longest head of a part, and longest text before the first one, bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// Longest boundary, by the specification.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Parts of a form in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    parts: Vec<FormPart>,
}

/// Field that stands in a form more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatedField;

/// Part of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormPart {
    pub name: String,
    pub is_file: bool,
    /// Range of its bytes; empty at its beginning where the head alone was read.
    pub data: Range<usize>,
}

impl Form {
    /// Finds the parts of `body`.
    ///
    /// # Errors
    /// Problem, for the client.
    pub fn read(content_type: &str, body: &[u8]) -> Result<Form, &'static str> {
        let mark = format!("\r\n--{}", boundary(content_type)?);
        let finder = Finder::new(&mark);
        let mut at = first_part(body, &finder)?;
        let mut parts = Vec::new();
        while !body[at..].starts_with(b"--") {
            if parts.len() == PARTS_MAX {
                return Err("it has too many parts");
            }
            let (part, next) = part(body, at, &finder)?;
            parts.push(part);
            at = next + mark.len();
        }
        Ok(Form { parts })
    }

    /// The form of these parts.
    pub(super) fn of_parts(parts: Vec<FormPart>) -> Form {
        Form { parts }
    }

    /// Number of its parts.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the value of a field that is no file; none where there is no such field.
    ///
    /// # Errors
    /// The field stands twice: readers differ in which of them counts.
    pub fn field(&self, name: &str) -> Result<Option<Range<usize>>, RepeatedField> {
        let mut found = self.parts.iter().filter(|part| part.name == name);
        let first = found.next().filter(|part| !part.is_file);
        match found.next() {
            Some(_) => Err(RepeatedField),
            None => Ok(first.map(|part| part.data.clone())),
        }
    }

    /// Returns the data of the first file of this name.
    pub fn file(&self, name: &str) -> Option<Range<usize>> {
        let mut parts = self.parts.iter();
        let found = parts.find(|part| part.name == name && part.is_file)?;
        Some(found.data.clone())
    }
}

/// Returns the boundary of a form by its content type.
pub(super) fn boundary(content_type: &str) -> Result<String, &'static str> {
    let (kind, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err("its content type is not multipart/form-data");
    }
    if ambiguous(parameters, "boundary") || has_other_charset(parameters) {
        return Err("its content type has two meanings");
    }
    let boundary = parameter(parameters, "boundary").unwrap_or_default();
    match (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) {
        true => Ok(boundary),
        false => Err("its content type has no boundary"),
    }
}

/// Returns the end of the first boundary. `mark` is a line break and the boundary.
pub(super) fn first_part(body: &[u8], mark: &Finder<'_>) -> Result<usize, &'static str> {
    // The first boundary has no line break of its own.
    let first = &mark.needle()[2..];
    if body.starts_with(first) {
        return Ok(first.len());
    }
    let preamble = &body[..body.len().min(HEAD_BYTES_MAX)];
    let found = mark.find(preamble).ok_or("its boundary does not come")?;
    Ok(found + mark.needle().len())
}

/// Reads the part whose boundary ends at `at`; returns it with the place of the next boundary.
fn part(body: &[u8], at: usize, mark: &Finder<'_>) -> Result<(FormPart, usize), &'static str> {
    let mut part = part_head(body, at)?;
    let next = end_of_part(body, &part, mark).ok_or("its last boundary is missing")?;
    part.data.end = next.max(part.data.start);
    Ok((part, next))
}

/// Returns the place of the boundary behind a part.
pub(super) fn end_of_part(body: &[u8], part: &FormPart, mark: &Finder<'_>) -> Option<usize> {
    // Of an empty value the line break is the boundary's too.
    let from = part.data.start - 2;
    Some(from + mark.find(&body[from..])?)
}

/// Reads the head of the part whose boundary ends at `at`.
pub(super) fn part_head(body: &[u8], at: usize) -> Result<FormPart, &'static str> {
    let window = &body[at..body.len().min(at + HEAD_BYTES_MAX)];
    // No blanks, which the specification allows: for some readers they are data, and no client sends them.
    if !window.starts_with(b"\r\n") {
        return Err("a boundary is followed by other text");
    }
    // A head without lines ends with the line of its boundary.
    let end = memmem::find(window, b"\r\n\r\n").ok_or("the head of a part is too long")?;
    let head = String::from_utf8_lossy(&window[..end]);
    let begin = at + end + 4;
    let mut parameters = None;
    for line in head.split("\r\n").skip(1) {
        // What one reader takes for a part's head, a continued line or its end is something else for another.
        let is_plain = !line.starts_with([' ', '\t', '-']) && !line.contains(['\r', '\n', '\0']);
        let (name, value) = line
            .split_once(':')
            .filter(|_| is_plain)
            .ok_or("the head of a part is broken")?;
        let is_disposition = name.trim().eq_ignore_ascii_case("content-disposition");
        if is_disposition && parameters.replace(value).is_some() {
            return Err("a part has two dispositions");
        }
    }
    let parameters = parameters
        .and_then(|value| value.split_once(';'))
        .map_or("", |it| it.1);
    if ambiguous(parameters, "name") {
        return Err("a part has two names");
    }
    Ok(FormPart {
        name: parameter(parameters, "name").unwrap_or_default(),
        is_file: parameter(parameters, "filename").is_some(),
        data: begin..begin,
    })
}

/// Returns a parameter of a header's value, with its quotes taken off.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    all(parameters).find_map(|(key, value)| key.eq_ignore_ascii_case(name).then_some(value))
}

/// Names and values of all parameters.
fn all(parameters: &str) -> impl Iterator<Item = (&str, String)> {
    let mut rest = parameters;
    std::iter::from_fn(move || {
        let (key, after) = rest.split_once('=')?;
        let (value, after) = value(after.trim_start());
        rest = after.trim_start().trim_start_matches(';');
        Some((key.trim(), value))
    })
}

/// Returns whether readers may differ in the value of a parameter: it stands twice, or in the extended form of RFC 8187.
fn ambiguous(parameters: &str, name: &str) -> bool {
    let is_named = |key: &str| {
        key.split('*')
            .next()
            .is_some_and(|key| key.trim().eq_ignore_ascii_case(name))
    };
    let named: Vec<_> = all(parameters)
        .map(|(key, _)| key)
        .filter(|key| is_named(key))
        .collect();
    named.len() > 1 || named.iter().any(|key| key.contains('*'))
}

/// Returns whether names may be written otherwise than in UTF-8.
fn has_other_charset(parameters: &str) -> bool {
    let known = ["utf-8", "utf8", "us-ascii"];
    all(parameters).any(|(key, value)| {
        key.to_ascii_lowercase().starts_with("charset")
            && !known.iter().any(|known| value.eq_ignore_ascii_case(known))
    })
}

/// Reads a value, in quotes or not; returns it with what follows.
fn value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIND: &str = "multipart/form-data; boundary=\"b c\"";

    fn form(body: &str) -> Result<Form, &'static str> {
        Form::read(KIND, body.as_bytes())
    }

    #[test]
    fn fields_and_files_are_found_in_any_order() {
        let body = "--b c\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;name=model.wav\"\r\n\
                    Content-Type: audio/wav\r\n\r\nRI\r\n--b\r\nFF\r\n--b c\r\ncontent-disposition: form-data; \
                    name=model\r\n\r\nwhisper\r\n--b c\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n\r\n--b c--\r\n";
        let read = form(body).unwrap();
        assert_eq!(&body[read.file("file").unwrap()], "RI\r\n--b\r\nFF");
        assert_eq!(&body[read.field("model").unwrap().unwrap()], "whisper");
        assert_eq!(&body[read.field("prompt").unwrap().unwrap()], "");
        assert_eq!((read.field("file"), read.file("model")), (Ok(None), None));
        let preamble = format!("anything\r\n{body}");
        assert!(form(&preamble).unwrap().field("model").unwrap().is_some());
    }

    #[test]
    fn a_field_that_stands_twice_has_no_value() {
        let part = "--b c\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n";
        assert_eq!(
            form(&format!("{part}{part}--b c--"))
                .unwrap()
                .field("model"),
            Err(RepeatedField)
        );
    }

    #[test]
    fn a_form_that_readers_may_take_otherwise_is_refused() {
        let part = |head: &str| format!("--b c\r\n{head}\r\n\r\nm\r\n--b c--");
        let named = "Content-Disposition: form-data; name=\"prompt\"";
        for head in [
            &format!("{named}\r\ncontent-disposition: form-data; name=\"model\""),
            &format!("{named}; name=\"model\""),
            &format!("{named}; name*=utf-8''model"),
            &format!("{named}\r\n continued: x"),
            &format!("{named}\r\n--b c\r\nContent-Disposition: form-data; name=\"model\""),
            &format!("{named}\nContent-Disposition: form-data; name=\"model\""),
        ] {
            assert!(form(&part(head)).is_err(), "{head}");
        }
        assert!(form(&part(named).replacen("--b c", "--b c ", 1)).is_err());
        assert!(form(&part(&format!("{named}\r\nContent-Type: text/plain"))).is_ok());
        assert!(
            form(&part(&format!(
                "{named}; filename=\"a\"; filename*=utf-8''a"
            )))
            .is_ok()
        );
        let body = part(named);
        for (kind, is_read) in [
            ("multipart/form-data; boundary=\"b c\"; boundary=c", false),
            ("multipart/form-data; boundary=\"b c\"; boundary*=c", false),
            (
                "multipart/form-data; charset=utf-7; boundary=\"b c\"",
                false,
            ),
            ("multipart/form-data; charset=UTF-8; boundary=\"b c\"", true),
        ] {
            assert_eq!(Form::read(kind, body.as_bytes()).is_ok(), is_read, "{kind}");
        }
    }

    #[test]
    fn a_form_that_is_cut_or_too_large_is_refused() {
        let part = "--b c\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\nm\r\n";
        let head = format!(
            "--b c\r\nA: {}\r\n\r\nx\r\n--b c--",
            "x".repeat(HEAD_BYTES_MAX)
        );
        for bad in [
            "",
            "--b c",
            "--b cd\r\n\r\nx\r\n--b c--",
            "--b c\r\n",
            part,
            &head,
            &format!("{}--b c--", part.repeat(PARTS_MAX + 1)),
            &format!("{}{part}--b c--", "x".repeat(HEAD_BYTES_MAX + 1)),
        ] {
            assert!(form(bad).is_err(), "{}", &bad[..bad.len().min(40)]);
        }
        assert!(form(&format!("{}--b c--", part.repeat(PARTS_MAX))).is_ok());
        for kind in ["", "multipart/form-data", "application/json; boundary=b"] {
            assert!(Form::read(kind, part.as_bytes()).is_err(), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(picks in proptest::collection::vec(proptest::sample::select(vec![
            "--b c", "\r\n", "\r\n", "Content-Disposition: form-data; name=\"x\"", "; filename=", "\"", "\\", "--", " ", "data",
        ]), 0..40)) {
            let body = picks.concat();
            if let Ok(form) = form(&body) {
                for part in form.parts {
                    prop_assert!(part.data.end <= body.len());
                }
            }
        }
    }
}
