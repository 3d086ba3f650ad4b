//! Edge rules: which heads are acceptable, and which of a client's headers a backend may see.
//!
//! Stricter than the parser below it: a gateway that reads a request differently than the server behind it
//! can be used to smuggle one. No body is read here.

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

/// Header lines of a client that model servers may see, in wire form. The content type is not among them.
#[derive(Default)]
pub struct PassedHeaders {
    lines: BytesMut,
    /// Where the lines begin that somebody else's server may see as well.
    anywhere_at: usize,
}

impl PassedHeaders {
    /// Picks from the headers of a request; `listed` is `headers.pass`.
    pub fn of(headers: &HeaderMap, listed: &[HeaderName]) -> PassedHeaders {
        let named = connection_named(headers);
        let mut lines = BytesMut::with_capacity(512);
        let mut append = |wanted: HeaderReach| {
            for (name, value) in headers {
                if header_reach(name, listed) == wanted && !named.contains(name) {
                    lines.extend_from_slice(name.as_str().as_bytes());
                    lines.extend_from_slice(b": ");
                    lines.extend_from_slice(value.as_bytes());
                    lines.extend_from_slice(b"\r\n");
                }
            }
            lines.len()
        };
        let anywhere_at = append(HeaderReach::OwnServers);
        append(HeaderReach::Anywhere);
        PassedHeaders { lines, anywhere_at }
    }

    /// The same with lines of the gateway's own.
    pub fn with_lines(&self, own: &[(&str, &str)]) -> PassedHeaders {
        let mut lines = BytesMut::with_capacity(self.lines.len() + 128);
        lines.extend_from_slice(&self.lines);
        for &(name, value) in own {
            for part in [name, ": ", value, "\r\n"] {
                lines.extend_from_slice(part.as_bytes());
            }
        }
        PassedHeaders {
            lines,
            anywhere_at: self.anywhere_at,
        }
    }

    /// The lines for the operator's own servers and nodes, or for somebody else's.
    pub fn towards(&self, is_external: bool) -> &[u8] {
        &self.lines[if is_external { self.anywhere_at } else { 0 }..]
    }
}

/// How far a client's header goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeaderReach {
    Nowhere,
    /// Servers of the operator.
    OwnServers,
    /// External endpoints as well.
    Anywhere,
}

/// A list of what passes: names of credentials and of addresses are invented faster than a list of what
/// does not pass could follow.
fn header_reach(name: &HeaderName, listed: &[HeaderName]) -> HeaderReach {
    match name.as_str() {
        "accept" | "traceparent" | "tracestate" | "user-agent" => HeaderReach::Anywhere,
        "anthropic-beta"
        | "anthropic-version"
        | "baggage"
        | "openai-beta"
        | "x-client-request-id" => HeaderReach::OwnServers,
        text if text.starts_with("x-stainless-") => HeaderReach::OwnServers,
        _ if listed.contains(name) => HeaderReach::OwnServers,
        _ => HeaderReach::Nowhere,
    }
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

/// Names that never pass, whatever the configuration lists.
pub fn is_reserved(name: &HeaderName) -> bool {
    is_of_this_hop(name) || is_of_the_servers_host(name.as_str()) || is_internal(name.as_str())
}

fn is_of_this_hop(name: &HeaderName) -> bool {
    match name.as_str() {
        // Set by the client that speaks to the backend.
        "host" | "content-length" | "date" | "expect" | "origin" | "transfer-encoding"
        | "x-request-id" => true,
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
        "authorization" | "cookie" | "cookie2" | "x-api-key" => true,
        // The answer is read on its way, so it must come as it is.
        "accept-encoding" => true,
        _ => false,
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

/// Returns whether a header of another node's response passes to the client: everything but fields between
/// nodes and of the connection.
pub fn passes_from_node(name: &HeaderName) -> bool {
    let of_connection = matches!(
        name.as_str(),
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "date"
    );
    !of_connection && !is_between_nodes(name.as_str())
}

/// Returns whether a header of a model server's answer passes to the client; `listed` is `headers.pass`.
/// Headers that [describe bytes](describes_bytes) pass with bytes as they were. A server's rate limits do
/// not: they are those of the gateway's key.
pub fn passes_to_client(name: &HeaderName, listed: &[HeaderName]) -> bool {
    matches!(
        name.as_str(),
        "cache-control"
            | "content-disposition"
            | "content-language"
            | "content-type"
            | "expires"
            | "openai-processing-ms"
            | "openai-version"
            | "retry-after"
            | "retry-after-ms"
            | "vary"
    ) || describes_bytes(name)
        || listed.contains(name)
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
            | "set-cookie"
            | "set-cookie2"
            | "strict-transport-security"
            | "www-authenticate"
    ) || name.starts_with("access-control-")
}

/// Returns whether a header describes the server's bytes as they were: false of a body that was rewritten.
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

/// Names and values of all headers.
pub fn lines(headers: &http::HeaderMap) -> impl Iterator<Item = (&str, &[u8])> {
    let lines = headers.iter();
    lines.map(|(name, value)| (name.as_str(), value.as_bytes()))
}

/// Returns whether the body is compressed. Servers are asked not to: what an answer used could not be read.
pub fn is_compressed(headers: &http::HeaderMap) -> bool {
    let coding = headers.get(http::header::CONTENT_ENCODING);
    coding.is_some_and(|coding| coding != "identity")
}

/// Returns whether an answer of this `content-type` is a web page: an error page of something in front of the
/// server.
pub fn is_web_page(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("text/html")
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

    #[test]
    fn what_is_not_on_the_list_stays_here_and_less_goes_to_somebody_else() {
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
            ("X-Auth-Key", "k"),
            ("api-key", "k"),
            ("OpenAI-Organization", "o"),
            ("X-Real-IP", "1.2.3.4"),
            ("Range", "bytes=0-1"),
            ("baggage", "a=b"),
            ("x-stainless-lang", "python"),
            ("x-tenant", "t"),
        ]);
        let passed = |listed: &[HeaderName]| {
            let passing = PassedHeaders::of(&head.headers, listed);
            let text =
                |is_external| String::from_utf8(passing.towards(is_external).to_vec()).unwrap();
            (text(false), text(true))
        };
        let anywhere = "traceparent: 00-1-2-3\r\nuser-agent: t\r\n";
        let own = "baggage: a=b\r\nx-stainless-lang: python\r\n";
        assert_eq!(
            passed(&[]),
            (format!("{own}{anywhere}"), anywhere.to_owned())
        );
        let listed = [HeaderName::from_static("x-tenant")];
        let all = format!("{own}x-tenant: t\r\n{anywhere}");
        assert_eq!(passed(&listed), (all, anywhere.to_owned()));
    }

    #[test]
    fn names_of_credentials_of_the_connection_and_of_this_gateway_cannot_be_listed() {
        let is_reserved = |name: &str| is_reserved(&HeaderName::try_from(name).unwrap());
        for name in [
            "authorization",
            "cookie",
            "x-api-key",
            "x_api_key",
            "connection",
            "te",
            "host",
            "content-length",
            "content-type",
            "x-infergate-site",
            "cf-ai-neurons",
            "cf_ai_neurons",
            "x-forwarded-for",
            "set-cookie",
            "location",
            "access-control-allow-origin",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        assert!(!is_reserved("x-tenant") && !is_reserved("x-ratelimit-limit-requests"));
    }
}
