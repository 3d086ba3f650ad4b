//! Heads of requests and responses, parsed out of a connection's buffer.
//!
//! The grammar is httparse's; what it lets pass and two readers could understand differently, [`framing`]
//! refuses. Not bounds on the size of a head, which its reader has.
//!
//! [`framing`]: super::framing

use std::mem::MaybeUninit;

use bytes::BytesMut;
use httparse::{Header, ParserConfig, Status};

use super::fields::{FieldSpan, Fields, Line};

/// Fields of one head; a message with more is refused.
const FIELDS_MAX: usize = 256;
/// Room for the text of a usual head that is written.
const WRITTEN_BYTES: usize = 1000;

/// Version of a message. No other is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0: no chunks, and connections close unless told otherwise.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
}

/// Bytes that are no head, or one with too many fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the head of an HTTP/1 message")]
pub struct MalformedHead;

/// Head of a request as it was received. Made once for a connection, and filled for each request.
#[derive(Debug, Default)]
pub struct ParsedRequest {
    /// Its fields.
    pub fields: Fields,
    /// Its version.
    pub version: Version,
    method: FieldSpan,
    target: FieldSpan,
}

impl ParsedRequest {
    /// Takes a head from the begin of `buffer`; false, and nothing taken, where its end has not come.
    ///
    /// # Errors
    /// [`MalformedHead`].
    pub fn parse(&mut self, buffer: &mut BytesMut) -> Result<bool, MalformedHead> {
        let mut slots = [const { MaybeUninit::<Header<'_>>::uninit() }; FIELDS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let parsed = request.parse_with_uninit_headers(buffer, &mut slots);
        let length = match parsed.map_err(|_| MalformedHead)? {
            Status::Complete(length) => length,
            Status::Partial => return Ok(false),
        };
        let base = buffer.as_ptr() as usize;
        let (Some(method), Some(target)) = (request.method, request.path) else {
            return Err(MalformedHead);
        };
        self.method = FieldSpan::of(method.as_bytes(), base);
        self.target = FieldSpan::of(target.as_bytes(), base);
        self.version = version(request.version)?;
        place(&mut self.fields, request.headers, base);
        self.fields.end(buffer.split_to(length));
        Ok(true)
    }

    /// Writes the head of a request that came in another form of HTTP, as HTTP/1.1 writes it, for the rules of heads.
    /// Method, names and values are those of the `http` crate, which has the same grammar, names in lower case. White
    /// space around a value is left out.
    ///
    /// # Errors
    /// [`MalformedHead`] where there is no target, or more fields than a parser takes.
    pub fn write<'a>(
        &mut self,
        method: &http::Method,
        target: &str,
        fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<(), MalformedHead> {
        if target.is_empty() {
            return Err(MalformedHead);
        }
        let mut text = Vec::with_capacity(WRITTEN_BYTES);
        self.method = FieldSpan::write(method.as_str().as_bytes(), &mut text);
        text.push(b' ');
        self.target = FieldSpan::write(target.as_bytes(), &mut text);
        text.extend_from_slice(b" HTTP/1.1\r\n");
        self.version = Version::Http11;
        let places = self.fields.begin();
        for (name, value) in fields {
            if places.len() == FIELDS_MAX {
                return Err(MalformedHead);
            }
            let name = FieldSpan::write(name.as_bytes(), &mut text);
            text.extend_from_slice(b": ");
            let value = FieldSpan::write(value.trim_ascii(), &mut text);
            text.extend_from_slice(b"\r\n");
            places.push(Line { name, value });
        }
        text.extend_from_slice(b"\r\n");
        self.fields.end_written(text);
        Ok(())
    }

    /// The method.
    pub fn method(&self) -> &str {
        match self.method.of_text(self.fields.text()) {
            b"POST" => "POST",
            b"GET" => "GET",
            // A parser lets only tokens be methods.
            other => std::str::from_utf8(other).unwrap_or_default(),
        }
    }

    /// The target as it stands in the request line.
    pub fn target(&self) -> &str {
        std::str::from_utf8(self.target.of_text(self.fields.text())).unwrap_or_default()
    }

    /// The whole head, with names in lower case.
    pub fn text(&self) -> &[u8] {
        self.fields.text()
    }
}

/// Head of a response as it was received.
#[derive(Debug)]
pub struct ParsedResponse {
    /// Its status.
    pub status: http::StatusCode,
    /// Its version.
    pub version: Version,
    /// Its fields.
    pub fields: Fields,
}

impl Default for ParsedResponse {
    fn default() -> Self {
        ParsedResponse {
            status: http::StatusCode::OK,
            version: Version::Http11,
            fields: Fields::default(),
        }
    }
}

impl ParsedResponse {
    /// Takes a head from the begin of `buffer`; false, and nothing taken, where its end has not come. Spaces
    /// before a colon pass, for some servers send them.
    ///
    /// # Errors
    /// [`MalformedHead`].
    pub fn parse(&mut self, buffer: &mut BytesMut) -> Result<bool, MalformedHead> {
        let mut slots = [const { MaybeUninit::<Header<'_>>::uninit() }; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut []);
        let mut config = ParserConfig::default();
        config.allow_spaces_after_header_name_in_responses(true);
        let parsed = config.parse_response_with_uninit_headers(&mut response, buffer, &mut slots);
        let length = match parsed.map_err(|_| MalformedHead)? {
            Status::Complete(length) => length,
            Status::Partial => return Ok(false),
        };
        let base = buffer.as_ptr() as usize;
        let status = response.code.unwrap_or_default();
        self.status = http::StatusCode::from_u16(status).map_err(|_| MalformedHead)?;
        self.version = version(response.version)?;
        place(&mut self.fields, response.headers, base);
        self.fields.end(buffer.split_to(length));
        Ok(true)
    }
}

/// Returns whether the bytes from `from` on may have brought the end of a head. A head that drips is parsed only
/// then, so that it costs no more than one that comes at once.
pub fn may_end_head(received: &[u8], from: usize) -> bool {
    let tail = &received[from.saturating_sub(3)..];
    memchr::memchr_iter(b'\n', tail).any(|at| {
        let next = &tail[at + 1..];
        next.starts_with(b"\r\n") || next.starts_with(b"\n")
    })
}

fn version(minor: Option<u8>) -> Result<Version, MalformedHead> {
    match minor {
        Some(1) => Ok(Version::Http11),
        Some(0) => Ok(Version::Http10),
        _ => Err(MalformedHead),
    }
}

fn place(fields: &mut Fields, parsed: &[Header<'_>], base: usize) {
    let places = fields.begin();
    places.extend(parsed.iter().map(|header| Line {
        name: FieldSpan::of(header.name.as_bytes(), base),
        value: FieldSpan::of(header.value, base),
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_taken_whole_and_what_follows_it_stays() {
        let mut buffer = BytesMut::from(
            &b"POST /v1/x?y HTTP/1.1\r\nHost: h\r\nX-A:  b \r\nX-a: c\r\n\r\nbody"[..],
        );
        let mut head = ParsedRequest::default();
        assert_eq!(head.parse(&mut buffer), Ok(true));
        assert_eq!(buffer, "body");
        assert_eq!((head.method(), head.target()), ("POST", "/v1/x?y"));
        assert_eq!(head.version, Version::Http11);
        let values: Vec<&[u8]> = head.fields.get_all("x-a").collect();
        assert_eq!(values, [b"b", b"c"]);
        assert_eq!(head.fields.text_of("host"), Some("h"));
        assert!(!head.fields.contains("x-b"));
    }

    #[test]
    fn a_written_head_is_bounded_like_one_that_is_parsed() {
        let mut head = ParsedRequest::default();
        let lines = |count| std::iter::repeat_n(("a", &b" b "[..]), count);
        assert_eq!(
            head.write(&http::Method::PUT, "/x", lines(FIELDS_MAX)),
            Ok(())
        );
        assert_eq!((head.method(), head.target()), ("PUT", "/x"));
        assert_eq!(head.fields.count(), FIELDS_MAX);
        assert_eq!(head.fields.get("a"), Some(&b"b"[..]));
        let many = head.write(&http::Method::PUT, "/x", lines(FIELDS_MAX + 1));
        assert_eq!(many, Err(MalformedHead));
        assert_eq!(
            head.write(&http::Method::PUT, "", lines(0)),
            Err(MalformedHead)
        );
    }

    #[test]
    fn a_head_may_come_in_any_pieces() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX : y\r\n\r\n";
        for cut in 0..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            let mut head = ParsedResponse::default();
            assert_eq!(head.parse(&mut buffer), Ok(false), "{cut}");
            buffer.extend_from_slice(&whole[cut..]);
            assert_eq!(head.parse(&mut buffer), Ok(true), "{cut}");
            assert_eq!(head.status, 200);
            assert_eq!(head.fields.text_of("content-length"), Some("3"));
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_head_of_a_connection_replaces_the_one_before() {
        let mut head = ParsedRequest::default();
        for name in ["a", "b"] {
            let text = format!("GET / HTTP/1.0\r\n{name}: 1\r\n\r\n");
            assert_eq!(head.parse(&mut BytesMut::from(&*text)), Ok(true));
            assert_eq!(head.fields.count(), 1);
            assert!(head.fields.contains(name));
        }
        assert_eq!(head.version, Version::Http10);
    }

    #[test]
    fn the_end_of_a_head_is_noticed_in_any_pieces() {
        for text in [&b"GET / HTTP/1.1\r\nA: b\r\n\r\n"[..], b"GET /\n\n"] {
            let whole = text.len();
            for from in 0..whole {
                assert!(may_end_head(text, from), "{from}");
            }
            let unfinished = &text[..whole - 1];
            assert!((0..whole - 1).all(|from| !may_end_head(unfinished, from)));
        }
    }

    #[test]
    fn what_is_no_head_is_told_at_once() {
        for text in [&b"\x16\x03\x01"[..], b"GET / HTTP/2.0\r\n", b"GET /\r\n"] {
            let mut buffer = BytesMut::from(text);
            let parsed = ParsedRequest::default().parse(&mut buffer);
            assert_eq!(parsed, Err(MalformedHead), "{text:?}");
        }
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(FIELDS_MAX + 1)
        );
        let parsed = ParsedRequest::default().parse(&mut BytesMut::from(&*many));
        assert_eq!(parsed, Err(MalformedHead));
    }
}
