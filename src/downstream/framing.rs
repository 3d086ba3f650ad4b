//! Framing rules: which request heads are acceptable.
//!
//! Stricter than the parser below it: a gateway that reads a request differently than the server behind it
//! can be used to smuggle one. Not the body.

use http::header::{self, HeaderMap};
use infergate_core::Refusal;
use pingora_http::RequestHeader;

/// Refuses heads that two readers could understand differently. `raw` is the head as received.
///
/// # Errors
/// [`Refusal::BadFraming`] with what is wrong, [`Refusal::HeadersTooLarge`].
pub fn check_head(head: &RequestHeader, raw: &[u8], max_bytes: usize) -> Result<(), Refusal> {
    if raw.len() > max_bytes {
        return Err(Refusal::HeadersTooLarge);
    }
    for at in memchr::memchr_iter(b'\n', raw) {
        if at == 0 || raw[at - 1] != b'\r' {
            return Err(Refusal::BadFraming(
                "a header line ends in a bare line feed",
            ));
        }
    }
    let request_line = memchr::memchr(b'\n', raw).map_or(raw, |end| &raw[..end]);
    if memchr::memchr(b'#', request_line).is_some() {
        // The parser below drops it; a server that does not would see another path.
        return Err(Refusal::BadFraming("the request target has a fragment"));
    }
    let headers = &head.headers;
    check_host(headers)?;
    check_lengths(headers, raw)
}

fn check_host(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if host.is_empty() => {
            Err(Refusal::BadFraming("the Host header is missing or empty"))
        }
        (Some(host), None) if is_host(host.as_bytes()) => Ok(()),
        (Some(_), None) => Err(Refusal::BadFraming("the Host header is not host[:port]")),
        (Some(_), Some(_)) => Err(Refusal::BadFraming("more than one Host header")),
        _ => Err(Refusal::BadFraming("the Host header is missing or empty")),
    }
}

/// Returns whether `host` is `uri-host [ ":" port ]` (RFC 9110 section 7.2): a name, an IPv4 address or an
/// IPv6 address in brackets.
fn is_host(host: &[u8]) -> bool {
    let (name, rest, is_literal) = match host.strip_prefix(b"[") {
        Some(literal) => match memchr::memchr(b']', literal) {
            Some(end) => (&literal[..end], &literal[end + 1..], true),
            None => return false,
        },
        None => {
            let end = memchr::memchr(b':', host).unwrap_or(host.len());
            (&host[..end], &host[end..], false)
        }
    };
    let is_name_byte = |byte: &u8| match is_literal {
        true => byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'),
        false => byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte),
    };
    let is_port = match rest {
        [] => true,
        [b':', port @ ..] => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !name.is_empty() && name.iter().all(is_name_byte) && is_port
}

fn check_lengths(headers: &HeaderMap, raw: &[u8]) -> Result<(), Refusal> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    if let Some(length) = lengths.next() {
        let digits = !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
        if lengths.next().is_some() || !digits {
            return Err(Refusal::BadFraming("Content-Length is not one number"));
        }
    }
    let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else {
        return Ok(());
    };
    if encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Err(Refusal::BadFraming(
            "Transfer-Encoding is not exactly `chunked`",
        ));
    }
    // The parser drops Content-Length beside Transfer-Encoding, so only the raw head shows it.
    if raw
        .split(|b| *b == b'\n')
        .any(|line| has_name(line, b"content-length"))
    {
        return Err(Refusal::BadFraming(
            "both Content-Length and Transfer-Encoding",
        ));
    }
    Ok(())
}

fn has_name(line: &[u8], name: &[u8]) -> bool {
    line.len() > name.len()
        && line[..name.len()].eq_ignore_ascii_case(name)
        && matches!(line[name.len()], b':' | b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &[(&'static str, &'static str)]) -> RequestHeader {
        let mut head = RequestHeader::build("POST", b"/v1/x", None).unwrap();
        for (name, value) in lines {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    fn check(lines: &[(&'static str, &'static str)], raw: &str) -> Result<(), Refusal> {
        check_head(&head(lines), raw.as_bytes(), 1024)
    }

    #[test]
    fn heads_that_two_readers_could_understand_differently_are_refused() {
        let ok = [("Host", "h")];
        assert!(check(&ok, "POST / HTTP/1.1\r\nHost: h\r\n\r\n").is_ok());
        assert!(check(&ok, "POST / HTTP/1.1\nHost: h\r\n\r\n").is_err());
        assert!(check(&ok, "POST /v1/x#y HTTP/1.1\r\nHost: h\r\n\r\n").is_err());
        assert!(check(&ok, "POST / HTTP/1.1\r\nHost: h\r\nA: #\r\n\r\n").is_ok());
        assert!(check(&[], "").is_err());
        assert!(check(&[("Host", "")], "").is_err());
        assert!(check(&[("Host", "a"), ("Host", "b")], "").is_err());
        for length in ["3, 3", "+3", "3 ", ""] {
            assert!(
                check(&[("Host", "h"), ("Content-Length", length)], "").is_err(),
                "{length}"
            );
        }
        let twice = [
            ("Host", "h"),
            ("Content-Length", "3"),
            ("Content-Length", "3"),
        ];
        assert!(check(&twice, "").is_err());
        for encoding in ["gzip, chunked", "identity", "xchunked"] {
            assert!(check(&[("Host", "h"), ("Transfer-Encoding", encoding)], "").is_err());
        }
        let both = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
        assert!(check(&[("Host", "h"), ("Transfer-Encoding", "chunked")], both).is_err());
        assert!(check(&[("Host", "h"), ("Transfer-Encoding", "Chunked")], "").is_ok());
    }

    #[test]
    fn a_host_is_a_host_and_a_port_and_nothing_else() {
        for good in [
            "h",
            "h:80",
            "a.b-c_d:8080",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:80",
            "h:",
        ] {
            assert!(check(&[("Host", good)], "").is_ok(), "{good}");
        }
        for bad in [
            "a/b", "u@h", "h:80a", "h:1:2", "a b", "h#x", "h?x", ":80", "[::1", "[]", "[::1]x",
        ] {
            assert!(check(&[("Host", bad)], "").is_err(), "{bad}");
        }
    }

    #[test]
    fn a_head_over_the_limit_is_refused() {
        let big = check_head(&head(&[("Host", "h")]), &[b'x'; 1025], 1024);
        assert_eq!(big, Err(Refusal::HeadersTooLarge));
    }
}
