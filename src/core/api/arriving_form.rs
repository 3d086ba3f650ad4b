//! Form whose file has not come yet: the fields before the file, and a check of what follows them.
//!
//! Nothing of the file is kept. What comes is looked through for the boundary, piece by piece, so that a part behind
//! the file cannot say anything else than the fields before it have said.

use memchr::memmem::{self, Finder};

use super::form::{self, Form, HEAD_BYTES_MAX, PARTS_MAX};

/// Beginning of a form, up to the data of its file.
#[derive(Debug)]
pub struct FormStart {
    /// Fields before the file, and the file as far as it has come.
    pub form: Form,
    /// Place of the file's first byte.
    pub file: usize,
    boundary: String,
}

impl FormStart {
    /// Finds the parts of `received` up to the file of this name; none where its first byte has not come, or what has
    /// come is no beginning of a form.
    pub fn read(content_type: &str, received: &[u8], file: &str) -> Option<FormStart> {
        let boundary = form::boundary(content_type).ok()?;
        let mark = format!("\r\n--{boundary}");
        let finder = Finder::new(&mark);
        let mut at = form::first_part(received, &finder).ok()?;
        let mut parts = Vec::new();
        while parts.len() < PARTS_MAX {
            let mut part = form::part_head(received, at).ok()?;
            let begin = part.data.start;
            if part.is_file && part.name == file {
                parts.push(part);
                return (begin < received.len()).then(|| FormStart {
                    form: Form::of_parts(parts),
                    file: begin,
                    boundary,
                });
            }
            let next = form::end_of_part(received, &part, &finder)?;
            part.data.end = next.max(begin);
            parts.push(part);
            at = next + mark.len();
        }
        None
    }

    /// Returns the length of the file in a form of `length` bytes that ends with it, bytes.
    pub fn file_bytes(&self, length: u64) -> u64 {
        // The line break, the boundary, two dashes and a line break.
        let behind = self.boundary.len() as u64 + 8;
        length.saturating_sub(self.file as u64 + behind)
    }

    /// Returns the check of the rest, for which `received` is what has come so far.
    ///
    /// # Errors
    /// As [`FormRest::push`].
    pub fn rest(
        &self,
        received: &[u8],
        once: &'static [&'static str],
    ) -> Result<FormRest, FormRestError> {
        let mut rest = FormRest {
            mark: format!("\r\n--{}", self.boundary),
            held: Vec::new(),
            place: FormPlace::Data,
            parts: self.form.len(),
            once,
        };
        // Of an empty file the line break is the boundary's too.
        rest.push(&received[self.file - 2..])?;
        Ok(rest)
    }
}

/// Fault of a form behind the beginning of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormRestError {
    /// A field that counts only before the file.
    Late(&'static str),
    /// The form is broken.
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormPlace {
    /// In the data of a part.
    Data,
    /// Behind a boundary.
    Head,
    /// Behind the last boundary.
    End,
}

/// Check of a form from its file on.
#[derive(Debug)]
pub struct FormRest {
    mark: String,
    /// Bytes that may be the beginning of a boundary, or of a head.
    held: Vec<u8>,
    place: FormPlace,
    parts: usize,
    once: &'static [&'static str],
}

impl FormRest {
    /// Looks a piece through, before it goes on.
    ///
    /// # Errors
    /// A part has a name that stands only before the file, or is none.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), FormRestError> {
        self.held.extend_from_slice(piece);
        let finder = Finder::new(&self.mark).into_owned();
        let mut at = 0;
        loop {
            let held = &self.held[at..];
            match self.place {
                FormPlace::End => at = self.held.len(),
                FormPlace::Data => match finder.find(held) {
                    Some(found) => {
                        at += found + self.mark.len();
                        self.place = FormPlace::Head;
                        continue;
                    }
                    None => at += (held.len() + 1).saturating_sub(self.mark.len()),
                },
                FormPlace::Head if held.starts_with(b"--") => {
                    self.place = FormPlace::End;
                    continue;
                }
                FormPlace::Head if may_be_short(held) => {}
                FormPlace::Head => {
                    if self.parts == PARTS_MAX {
                        return Err(FormRestError::Broken("it has too many parts"));
                    }
                    let part = form::part_head(&self.held, at).map_err(FormRestError::Broken)?;
                    if let Some(name) = self.once.iter().find(|name| part.name == **name) {
                        return Err(FormRestError::Late(name));
                    }
                    self.parts += 1;
                    at = part.data.start - 2;
                    self.place = FormPlace::Data;
                    continue;
                }
            }
            self.held.drain(..at);
            return Ok(());
        }
    }

    /// Returns whether the last boundary has come.
    pub fn is_whole(&self) -> bool {
        self.place == FormPlace::End
    }
}

/// Returns whether the head of a part may go on behind what has come.
fn may_be_short(held: &[u8]) -> bool {
    held.len() < HEAD_BYTES_MAX && memmem::find(held, b"\r\n\r\n").is_none()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KIND: &str = "multipart/form-data; boundary=b";
    const ONCE: &[&str] = &["model", "file", "stream"];

    fn field(name: &str, value: &str) -> String {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn file(data: &str) -> String {
        let head =
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n";
        format!("{head}{data}\r\n")
    }

    /// Checks a form that comes in pieces of `size` bytes.
    fn check(form: &str, size: usize) -> Option<Result<bool, FormRestError>> {
        let form = form.as_bytes();
        let come = (1..=form.len())
            .find(|come| FormStart::read(KIND, &form[..*come], "file").is_some())?;
        let start = FormStart::read(KIND, &form[..come], "file")?;
        let mut rest = match start.rest(&form[..come], ONCE) {
            Ok(rest) => rest,
            Err(error) => return Some(Err(error)),
        };
        for piece in form[come..].chunks(size) {
            if let Err(error) = rest.push(piece) {
                return Some(Err(error));
            }
        }
        Some(Ok(rest.is_whole()))
    }

    #[test]
    fn the_fields_before_the_file_are_there_once_its_first_byte_has_come() {
        let form = format!(
            "{}{}{}--b--\r\n",
            field("model", "whisper"),
            file("RIFF"),
            field("prompt", "x")
        );
        let at = form.find("RIFF").unwrap();
        assert!(FormStart::read(KIND, &form.as_bytes()[..at], "file").is_none());
        let start = FormStart::read(KIND, &form.as_bytes()[..=at], "file").unwrap();
        assert_eq!(start.file, at);
        let model = start.form.field("model").unwrap().unwrap();
        assert_eq!(&form[model], "whisper");
        let alone = format!("{}{}--b--\r\n", field("model", "w"), file("RIFF"));
        let start = FormStart::read(KIND, alone.as_bytes(), "file").unwrap();
        assert_eq!(start.file_bytes(alone.len() as u64), 4);
        assert!(FormStart::read(KIND, field("model", "w").as_bytes(), "file").is_none());
        assert!(FormStart::read("text/plain", form.as_bytes(), "file").is_none());
    }

    #[test]
    fn a_field_that_counts_once_does_not_stand_behind_the_file() {
        for name in ONCE {
            let late = match *name {
                "file" => file("again"),
                name => field(name, "x"),
            };
            let form = format!(
                "{}{}{late}--b--\r\n",
                field("model", "w"),
                file("RI\r\n--\r\nFF")
            );
            for size in [1, 3, 7, 4096] {
                assert_eq!(check(&form, size), Some(Err(FormRestError::Late(name))));
            }
        }
        let good = format!(
            "{}{}{}--b--\r\n",
            field("model", "w"),
            file(""),
            field("prompt", "\r\n--")
        );
        for size in [1, 2, 5, 4096] {
            assert_eq!(check(&good, size), Some(Ok(true)));
            assert_eq!(check(&good[..good.len() - 6], size), Some(Ok(false)));
        }
    }

    #[test]
    fn a_head_without_end_and_parts_without_end_are_refused() {
        let long = format!("{}--b\r\nA: {}", file("x"), "x".repeat(HEAD_BYTES_MAX));
        let many = format!("{}{}", file("x"), field("prompt", "x").repeat(PARTS_MAX));
        let other = format!("{}--bc\r\n\r\nx", file("x"));
        for form in [long, many, other] {
            assert!(matches!(
                check(&form, 1000),
                Some(Err(FormRestError::Broken(_)))
            ));
        }
    }

    proptest! {
        /// A form that comes in pieces is judged as the whole one.
        #[test]
        fn pieces_are_judged_as_the_whole(picks in proptest::collection::vec(proptest::sample::select(vec![
            "--b", "--b\r\n", "\r\n", "\r\n\r\n", "Content-Disposition: form-data; name=\"model\"", "name=\"x\"",
            "; filename=", "\"", "--", " ", "data", "\r\n--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n",
        ]), 0..24), size in 1usize..40) {
            let form = format!("{}{}", file("RIFF"), picks.concat());
            let whole = check(&form, usize::MAX >> 1);
            prop_assert_eq!(check(&form, size), whole);
            if whole == Some(Ok(true)) {
                let read = Form::read(KIND, form.as_bytes());
                prop_assert!(read.is_ok_and(|form| form.field("model") == Ok(None)));
            }
        }
    }
}
