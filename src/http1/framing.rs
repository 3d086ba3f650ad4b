//! Framing rules: which heads are acceptable, how long their bodies are, and whether their connections stay.
//!
//! Stricter towards clients than the grammar: a gateway that reads a request differently than the server
//! behind it can be used to smuggle one. Sources: RFC 9112 sections 3.2, 6 and 9.3, RFC 9110 section 7.2.

use memchr::memchr;

use super::body::BodyDecoder;
use super::fields::Fields;
use super::head::{ParsedRequest, ParsedResponse, Version};

/// Sentence that says what is wrong with a head.
pub type FramingFault = &'static str;

/// Fields that belong to connections of HTTP/1, and have no place in HTTP/2 (RFC 9113 section 8.2.2).
pub const CONNECTION_FIELDS: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Returns the framing of a request's body.
///
/// # Errors
/// Two readers could understand the head differently; the sentence says where.
pub fn of_request(head: &ParsedRequest) -> Result<BodyDecoder, FramingFault> {
    if has_bare_line_feed(head.text()) {
        return Err("a header line ends in a bare line feed");
    }
    let target = head.target();
    if memchr(b'#', target.as_bytes()).is_some() {
        // A server that drops it would see another path.
        return Err("the request target has a fragment");
    }
    check_host(head, target)?;
    request_body(&head.fields, head.version)
}

/// Returns whether a line feed stands behind anything but a carriage return. Without an early end, which the compiler
/// turns into vectors: a head has a dozen line feeds.
fn has_bare_line_feed(text: &[u8]) -> bool {
    let pairs = text.iter().zip(text.iter().skip(1));
    let is_bare = pairs.fold(false, |found, (before, byte)| {
        found | ((*byte == b'\n') & (*before != b'\r'))
    });
    is_bare || text.first() == Some(&b'\n')
}

fn check_host(head: &ParsedRequest, target: &str) -> Result<(), FramingFault> {
    let mut hosts = head.fields.get_all("host");
    let host = match (hosts.next(), hosts.next()) {
        (None | Some(b""), None) => return Err("the Host header is missing or empty"),
        (Some(_), Some(_)) => return Err("more than one Host header"),
        (Some(host), None) if is_host(host) => host,
        _ => return Err("the Host header is not host[:port]"),
    };
    match absolute_authority(target) {
        Some(authority) if authority.as_bytes() != host => {
            Err("the request target names another host than the Host header")
        }
        _ => Ok(()),
    }
}

/// The authority of a target in absolute form (RFC 9112 section 3.2.2).
fn absolute_authority(target: &str) -> Option<&str> {
    // Nearly all name their path alone.
    if target.starts_with('/') {
        return None;
    }
    let (scheme, rest) = target.split_once("://")?;
    if scheme.contains(['/', '?']) {
        return None;
    }
    rest.split(['/', '?']).next()
}

/// The path and query that a target asks for: of one in absolute form, what follows the host.
pub fn path_of(target: &str) -> &str {
    match absolute_authority(target) {
        Some(_) => {
            let rest = target.split_once("://").map_or("", |(_, rest)| rest);
            // Without a path, what follows the host is a query, and a slash in it is none of a path.
            match rest.find(['/', '?']) {
                Some(path) if rest[path..].starts_with('/') => &rest[path..],
                _ => "/",
            }
        }
        None => target,
    }
}

/// Returns whether `host` is `uri-host [ ":" port ]`: a name, an IPv4 address or an IPv6 address in brackets. A comma,
/// which a name may have, is refused: some readers take it for the end of the first of several.
fn is_host(host: &[u8]) -> bool {
    let (name, rest, is_literal) = match host.strip_prefix(b"[") {
        Some(literal) => match memchr(b']', literal) {
            Some(end) => (&literal[..end], &literal[end + 1..], true),
            None => return false,
        },
        None => {
            let end = memchr(b':', host).unwrap_or(host.len());
            (&host[..end], &host[end..], false)
        }
    };
    let is_name_byte = |byte: &u8| match is_literal {
        true => byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'),
        false => byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(byte),
    };
    let is_port = match rest {
        [] => true,
        [b':', port @ ..] => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !name.is_empty() && name.iter().all(is_name_byte) && is_port
}

fn request_body(fields: &Fields, version: Version) -> Result<BodyDecoder, FramingFault> {
    let mut lengths = fields.get_all("content-length");
    let length = match (lengths.next(), lengths.next()) {
        (None, _) => None,
        (Some(length), None) => Some(digits(length).ok_or("Content-Length is not one number")?),
        (Some(_), Some(_)) => return Err("Content-Length is not one number"),
    };
    let mut encodings = fields.get_all("transfer-encoding");
    match (encodings.next(), encodings.next(), length) {
        (None, _, length) => Ok(BodyDecoder::with_length(length.unwrap_or(0))),
        (Some(_), _, Some(_)) => Err("both Content-Length and Transfer-Encoding"),
        (Some(_), _, None) if version == Version::Http10 => {
            Err("HTTP/1.0 has no Transfer-Encoding")
        }
        (Some(encoding), None, None) if encoding.eq_ignore_ascii_case(b"chunked") => {
            Ok(BodyDecoder::CHUNKED)
        }
        _ => Err("Transfer-Encoding is not exactly `chunked`"),
    }
}

/// A number of ASCII digits.
pub fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'9' => number.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })
}

/// Returns the framing of a response's body, for a request that was not `HEAD`.
///
/// # Errors
/// Lengths that contradict each other, or that are none.
pub fn of_response(head: &ParsedResponse) -> Result<BodyDecoder, FramingFault> {
    if matches!(head.status.as_u16(), 100..=199 | 204 | 304) {
        return Ok(BodyDecoder::Done);
    }
    if let Some(encoding) = head.fields.get_all("transfer-encoding").last() {
        let last = encoding
            .rsplit(|byte| *byte == b',')
            .next()
            .unwrap_or(encoding);
        return Ok(match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            true => BodyDecoder::CHUNKED,
            // Section 6.3: the length is only known by the close.
            false => BodyDecoder::UntilClose,
        });
    }
    let mut length = None;
    for line in head.fields.get_all("content-length") {
        for part in line.split(|byte| *byte == b',') {
            let part = digits(part.trim_ascii()).ok_or("Content-Length is no number")?;
            if length.is_some_and(|length| length != part) {
                return Err("two lengths");
            }
            length = Some(part);
        }
    }
    Ok(length.map_or(BodyDecoder::UntilClose, BodyDecoder::with_length))
}

/// Returns whether the sender of this head keeps its connection open after the message.
pub fn keeps_alive(fields: &Fields, version: Version) -> bool {
    let mut keeps = version == Version::Http11;
    for line in fields.get_all("connection") {
        for token in line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if token.eq_ignore_ascii_case(b"close") {
                return false;
            }
            keeps |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    keeps
}

/// Returns whether the client waits for `100 Continue` before it sends the body. Clients of HTTP/1.0 cannot
/// read an interim response (RFC 9110 section 10.1.1).
pub fn expects_continue(head: &ParsedRequest) -> bool {
    head.version == Version::Http11
        && head
            .fields
            .get("expect")
            .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    fn check(text: &str) -> Result<BodyDecoder, FramingFault> {
        let mut head = ParsedRequest::default();
        assert_eq!(head.parse(&mut BytesMut::from(text)), Ok(true), "{text}");
        of_request(&head)
    }

    fn with(lines: &str) -> Result<BodyDecoder, FramingFault> {
        check(&format!("POST /v1/x HTTP/1.1\r\n{lines}\r\n"))
    }

    #[test]
    fn heads_that_two_readers_could_understand_differently_are_refused() {
        assert_eq!(with("Host: h\r\n"), Ok(BodyDecoder::Done));
        assert!(check("POST / HTTP/1.1\nHost: h\r\n\r\n").is_err());
        assert!(check("POST /v1/x#y HTTP/1.1\r\nHost: h\r\n\r\n").is_err());
        assert!(with("Host: h\r\nA: #\r\n").is_ok());
        for lines in [
            "",
            "Host:\r\n",
            "Host: a\r\nHost: b\r\n",
            "Host: h\nA: b\r\n",
            "Host: h\r\nContent-Length: 3, 3\r\n",
            "Host: h\r\nContent-Length: +3\r\n",
            "Host: h\r\nContent-Length: 3 3\r\n",
            "Host: h\r\nContent-Length:\r\n",
            "Host: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
            "Host: h\r\nContent-Length: 99999999999999999999\r\n",
            "Host: h\r\nTransfer-Encoding: gzip, chunked\r\n",
            "Host: h\r\nTransfer-Encoding: identity\r\n",
            "Host: h\r\nTransfer-Encoding: xchunked\r\n",
            "Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        ] {
            assert!(with(lines).is_err(), "{lines}");
        }
        assert_eq!(
            with("Host: h\r\nTransfer-Encoding: Chunked\r\n"),
            Ok(BodyDecoder::CHUNKED)
        );
        assert_eq!(
            with("Host: h\r\nContent-Length: 007\r\n"),
            Ok(BodyDecoder::Length(7))
        );
        assert!(check("POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
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
            assert!(with(&format!("Host: {good}\r\n")).is_ok(), "{good}");
        }
        for bad in [
            "a/b", "a,b", "u@h", "h:80a", "h:1:2", "a b", "h#x", "h?x", ":80", "[::1", "[]",
            "[::1]x",
        ] {
            assert!(with(&format!("Host: {bad}\r\n")).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_absolute_target_asks_for_its_path_at_the_host_of_the_head() {
        let asked = |target: &str| check(&format!("POST {target} HTTP/1.1\r\nHost: h:1\r\n\r\n"));
        assert!(asked("http://h:1/v1/x").is_ok());
        assert!(asked("http://other/v1/x").is_err());
        assert!(asked("http://u@h:1/v1/x").is_err());
        assert!(asked("/v1/x?u=http://other/v1/y").is_ok());
        assert_eq!(path_of("http://h:1/v1/x?a=b"), "/v1/x?a=b");
        assert_eq!(path_of("http://h"), "/");
        assert_eq!(path_of("http://h?a=/v1/x"), "/");
        assert_eq!(path_of("/v1/x?u=http://h/v1/y"), "/v1/x?u=http://h/v1/y");
        assert_eq!(path_of("*"), "*");
    }

    #[test]
    fn a_response_has_the_length_that_its_head_says() {
        let framing = |status: u16, lines: &str| {
            let text = format!("HTTP/1.1 {status} X\r\n{lines}\r\n");
            let mut head = ParsedResponse::default();
            assert_eq!(head.parse(&mut BytesMut::from(&*text)), Ok(true));
            of_response(&head)
        };
        assert_eq!(
            framing(200, "content-length: 3\r\n"),
            Ok(BodyDecoder::Length(3))
        );
        assert_eq!(
            framing(200, "content-length: 3, 3\r\n"),
            Ok(BodyDecoder::Length(3))
        );
        assert!(framing(200, "content-length: 3\r\ncontent-length: 4\r\n").is_err());
        assert!(framing(200, "content-length: -1\r\n").is_err());
        assert_eq!(framing(204, "content-length: 3\r\n"), Ok(BodyDecoder::Done));
        assert_eq!(framing(200, ""), Ok(BodyDecoder::UntilClose));
        let chunked = "content-length: 3\r\ntransfer-encoding: gzip, Chunked\r\n";
        assert_eq!(framing(200, chunked), Ok(BodyDecoder::CHUNKED));
        assert_eq!(
            framing(200, "transfer-encoding: gzip\r\n"),
            Ok(BodyDecoder::UntilClose)
        );
    }

    #[test]
    fn a_connection_stays_as_its_version_and_its_field_say() {
        let keeps =
            |lines: &[(&str, &str)], version| keeps_alive(&Fields::from_lines(lines), version);
        assert!(keeps(&[], Version::Http11) && !keeps(&[], Version::Http10));
        assert!(keeps(&[("connection", "x, Keep-Alive")], Version::Http10));
        assert!(!keeps(
            &[("connection", "keep-alive, Close")],
            Version::Http11
        ));
        assert!(!keeps(
            &[("connection", "x"), ("connection", "close")],
            Version::Http11
        ));
    }
}
