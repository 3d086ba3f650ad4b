//! Header filter: which fields pass from a client to a model server, and back.
//!
//! Not the framing of a request, which `downstream` checks.

use bytes::BytesMut;
use http::header::HeaderName;
use infergate_core::trace_context::{TRACEPARENT, TRACESTATE};

use crate::http1::{Fields, encode};
use crate::peer::is_between_nodes;

/// Header lines of a client that model servers may see, in wire form. The content type is not among them.
#[derive(Default)]
pub struct PassedHeaders {
    lines: BytesMut,
    /// Offset of the lines that external servers may see as well.
    anywhere_at: usize,
}

impl PassedHeaders {
    /// Picks from the headers of a request; `listed` is `headers.pass`.
    pub fn of(headers: &Fields, listed: &[HeaderName]) -> PassedHeaders {
        PassedHeaders::pick(headers, listed, |_| true)
    }

    /// Picks from the headers of a request that is recorded: its `traceparent` is made anew for each server,
    /// and `state` is what is left of its `tracestate`.
    pub fn traced(headers: &Fields, listed: &[HeaderName], state: Option<&str>) -> PassedHeaders {
        let is_context =
            |name: &[u8]| name == TRACEPARENT.as_bytes() || name == TRACESTATE.as_bytes();
        let mut passed = PassedHeaders::pick(headers, listed, |name| !is_context(name));
        if let Some(state) = state {
            for part in [TRACESTATE, ": ", state, "\r\n"] {
                passed.lines.extend_from_slice(part.as_bytes());
            }
        }
        passed
    }

    fn pick(
        headers: &Fields,
        listed: &[HeaderName],
        passes: impl Fn(&[u8]) -> bool,
    ) -> PassedHeaders {
        let named = ConnectionNamed::of(headers);
        let mut anywhere = BytesMut::with_capacity(512);
        let mut lines = BytesMut::new();
        for (name, value) in headers.lines() {
            let out = match header_reach(name, listed) {
                HeaderReach::Nowhere => continue,
                HeaderReach::OwnServers => &mut lines,
                HeaderReach::Anywhere => &mut anywhere,
            };
            if !named.contains(name) && passes(name) {
                encode::field(name, value, out);
            }
        }
        // Many clients send nothing for the operator's own servers alone.
        let anywhere_at = lines.len();
        match anywhere_at {
            0 => lines = anywhere,
            _ => lines.extend_from_slice(&anywhere),
        }
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

/// Reach of a client's header.
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
fn header_reach(name: &[u8], listed: &[HeaderName]) -> HeaderReach {
    match name {
        b"accept" | b"traceparent" | b"tracestate" | b"user-agent" => HeaderReach::Anywhere,
        b"anthropic-beta"
        | b"anthropic-version"
        | b"baggage"
        | b"openai-beta"
        | b"x-client-request-id" => HeaderReach::OwnServers,
        text if text.starts_with(b"x-stainless-") => HeaderReach::OwnServers,
        _ if is_listed(name, listed) => HeaderReach::OwnServers,
        _ => HeaderReach::Nowhere,
    }
}

/// Fields the `Connection` header declares hop-by-hop (RFC 9110 section 7.6.1).
#[derive(Clone, Copy)]
pub struct ConnectionNamed<'a>(Option<&'a Fields>);

impl<'a> ConnectionNamed<'a> {
    /// Those that a head declares; most declare none.
    pub fn of(headers: &'a Fields) -> ConnectionNamed<'a> {
        let is_usual = |value: &[u8]| {
            value.eq_ignore_ascii_case(b"keep-alive") || value.eq_ignore_ascii_case(b"close")
        };
        let names_any = headers.get_all("connection").any(|value| !is_usual(value));
        ConnectionNamed(names_any.then_some(headers))
    }

    /// Returns whether this field is among them.
    pub fn contains(self, name: &[u8]) -> bool {
        let Some(headers) = self.0 else { return false };
        let lines = headers.get_all("connection");
        let mut names = lines.flat_map(|line| line.split(|byte| *byte == b','));
        names.any(|named| named.trim_ascii().eq_ignore_ascii_case(name))
    }
}

fn is_listed(name: &[u8], listed: &[HeaderName]) -> bool {
    let mut listed = listed.iter();
    listed.any(|listed| listed.as_str().as_bytes() == name)
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
pub fn passes_from_node(name: &str) -> bool {
    let of_connection = matches!(
        name,
        "connection" | "keep-alive" | "te" | "trailer" | "transfer-encoding" | "upgrade" | "date"
    );
    !of_connection && !is_between_nodes(name)
}

/// Returns whether a header of a model server's answer passes to the client; `listed` is `headers.pass`.
/// Headers that [describe bytes](describes_bytes) pass with bytes as they were. A server's rate limits do
/// not: they are those of the gateway's key.
pub fn passes_to_client(name: &[u8], listed: &[HeaderName]) -> bool {
    matches!(
        name,
        b"cache-control"
            | b"content-disposition"
            | b"content-language"
            | b"content-type"
            | b"expires"
            | b"openai-processing-ms"
            | b"openai-version"
            | b"retry-after"
            | b"retry-after-ms"
            | b"vary"
    ) || describes_bytes(name)
        || is_listed(name, listed)
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
pub fn describes_bytes(name: &[u8]) -> bool {
    matches!(
        name,
        b"accept-ranges"
            | b"content-digest"
            | b"content-encoding"
            | b"content-md5"
            | b"content-range"
            | b"digest"
            | b"etag"
            | b"last-modified"
            | b"repr-digest"
    )
}

/// Returns whether the body is compressed. Servers are asked not to: what an answer used could not be read.
pub fn is_compressed(headers: &Fields) -> bool {
    let coding = headers.get("content-encoding");
    coding.is_some_and(|coding| coding != b"identity")
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

    #[test]
    fn what_is_not_on_the_list_stays_here_and_less_goes_to_somebody_else() {
        let headers = Fields::from_lines(&[
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
            let passing = PassedHeaders::of(&headers, listed);
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
