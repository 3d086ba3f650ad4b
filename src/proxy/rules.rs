//! Edge rules: which heads are acceptable, and which of a client's headers a backend may see.
//!
//! It is stricter than the parser below it, because a gateway that reads a request differently
//! than the server behind it can be used to smuggle one. No body is read here.

use bytes::BytesMut;
use http::header::{self, HeaderMap, HeaderName};
use infergate_core::Refusal;
use pingora_http::RequestHeader;

use crate::peer::is_between_nodes;

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

/// Header lines a backend may see, in wire form: everything but what is ours to set, the client's
/// credentials, hop-by-hop fields and internal names. What the body is stands not among them.
pub fn passing_headers(headers: &HeaderMap) -> BytesMut {
    let named = connection_named(headers);
    let mut out = BytesMut::with_capacity(512);
    for (name, value) in headers {
        if is_withheld(name) || named.iter().any(|n| n == name) {
            continue;
        }
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Fields the `Connection` header declares hop-by-hop (RFC 9110 section 7.6.1).
pub(super) fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .filter(|name| name != "close" && *name != header::CONNECTION && name != "keep-alive")
        .collect()
}

fn is_withheld(name: &HeaderName) -> bool {
    match name.as_str() {
        // Set by the client that speaks to the backend.
        "host" | "content-length" | "transfer-encoding" | "expect" | "x-request-id" => true,
        // Told as it was read, whatever the client called it: the documented curl lines of Workers AI
        // call JSON a form, which vLLM refuses to read.
        "content-type" => true,
        // Hop-by-hop.
        "connection"
        | "keep-alive"
        | "proxy-connection"
        | "te"
        | "trailer"
        | "upgrade"
        | "proxy-authenticate"
        | "proxy-authorization"
        | "http2-settings" => true,
        // Credentials for this gateway, nobody else.
        "authorization" | "cookie" | "x-api-key" => true,
        // The answer is read on its way, so it must come as it is.
        "accept-encoding" => true,
        name => is_internal(name),
    }
}

/// Names that only this gateway may set. `_` counts as `-`: some servers fold one into the other.
fn is_internal(name: &str) -> bool {
    const PREFIXES: [&[u8]; 3] = [b"cf-ai-", b"x-infergate-", b"x-forwarded-"];
    let folds_to = |prefix: &[u8]| {
        name.len() >= prefix.len()
            && name
                .bytes()
                .zip(prefix)
                .all(|(b, p)| b == *p || (b == b'_' && *p == b'-'))
    };
    PREFIXES.iter().any(|prefix| folds_to(prefix))
        || (name.contains('_')
            && matches!(
                name.replace('_', "-").as_str(),
                "authorization" | "cookie" | "x-api-key" | "content-length" | "transfer-encoding"
            ))
}

/// Whether a header of another node's answer passes to the client: all that the node wrote for the
/// client, and nothing that was for this node.
pub fn passes_from_node(name: &HeaderName) -> bool {
    let of_connection = matches!(
        name.as_str(),
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "date"
    );
    !of_connection && !is_between_nodes(name.as_str())
}

/// Whether a backend's answer header goes on to the client: framing and hop-by-hop ones do not,
/// nor the names that only this gateway may set.
pub fn passes_to_client(name: &HeaderName) -> bool {
    !matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "content-length"
            | "date"
            | "x-request-id"
            | "set-cookie"
            | "location"
    ) && !is_internal(name.as_str())
        && !is_of_the_servers_host(name.as_str())
}

/// Fields by which a server speaks for its host: they would bind clients to this gateway's address, or
/// lead them past it.
fn is_of_the_servers_host(name: &str) -> bool {
    matches!(
        name,
        "alt-svc"
            | "clear-site-data"
            | "content-security-policy"
            | "location"
            | "proxy-authenticate"
            | "refresh"
            | "server"
            | "strict-transport-security"
            | "www-authenticate"
            | "x-upstream-host"
    ) || name.starts_with("access-control-")
}

/// Whether a header describes the server's bytes as they were: false of a body that was rewritten.
pub fn describes_bytes(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "accept-ranges"
            | "content-digest"
            | "content-encoding"
            | "content-md5"
            | "content-range"
            | "digest"
            | "etag"
            | "last-modified"
            | "repr-digest"
    )
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

    #[test]
    fn credentials_hop_by_hop_and_internal_names_stay_here() {
        let head = head(&[
            ("Host", "h"),
            ("Authorization", "Bearer k"),
            ("Cookie", "c"),
            ("X-Api-Key", "k"),
            ("x_api_key", "k"),
            ("Connection", "close, x-mine"),
            ("X-Mine", "1"),
            ("CF-AI-Neurons", "1"),
            ("cf_ai_neurons", "1"),
            ("X-Infergate-Site", "fra"),
            ("X-Forwarded-For", "1.2.3.4"),
            ("Accept-Encoding", "gzip"),
            ("Expect", "100-continue"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("traceparent", "00-1-2-3"),
            ("User-Agent", "t"),
        ]);
        let passed = passing_headers(&head.headers);
        let text = std::str::from_utf8(&passed).unwrap();
        assert_eq!(text, "traceparent: 00-1-2-3\r\nuser-agent: t\r\n");
    }
}
