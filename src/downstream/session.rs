//! A Pingora session as this module uses it: the connection below it, the peer, and its request head.
//!
//! Not the reading of a body and not the response.

use infergate_core::Refusal;
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

use super::connection::DownstreamConnection;
use crate::pipeline::RequestHead;
use crate::tls::CertificateNames;

/// Returns whether another node has sent this, as its certificate says.
pub fn is_from_node(session: &ServerSession) -> bool {
    peer(session).is_some()
}

/// Returns the name of the other node; none of a client.
pub fn peer(session: &ServerSession) -> Option<&CertificateNames> {
    connection(session)?.peer_name()
}

/// Returns the connection; none where the session is not one of our own.
pub fn connection(session: &ServerSession) -> Option<&DownstreamConnection> {
    let stream = session.stream()?;
    stream.as_any().downcast_ref::<DownstreamConnection>()
}

/// Begins to count the bytes of a head; beyond `max` reading it fails.
pub fn begin_count(session: &ServerSession, max: usize) {
    if let Some(connection) = connection(session) {
        connection.begin_head(max);
    }
}

/// Ends the count.
pub fn end_count(session: &ServerSession) {
    if let Some(connection) = connection(session) {
        connection.end_head();
    }
}

/// Returns whether a head has reached its limit without an end.
pub fn is_over_limit(session: &ServerSession) -> bool {
    connection(session).is_some_and(DownstreamConnection::is_head_over)
}

/// Drops a session, then reads on for a moment, so that the client sees why it was refused.
pub async fn linger(session: ServerSession) {
    let ServerSession::H1(session) = session else {
        return;
    };
    let stream = session.into_inner().into_any();
    let Some(mut connection) = stream.downcast::<DownstreamConnection>().ok() else {
        return;
    };
    connection.linger().await;
}

/// Returns why there is no head.
pub fn unreadable(session: &ServerSession) -> Refusal {
    match is_over_limit(session) {
        true => Refusal::HeadersTooLarge,
        false => Refusal::BadFraming("the request head could not be read"),
    }
}

/// Returns the head of the session's request.
pub fn request_head(session: &ServerSession) -> RequestHead<'_> {
    let head = session.req_header();
    RequestHead {
        method: head.method.as_str(),
        target: target_path(head),
        headers: &head.headers,
    }
}

/// The path and query asked for: of an absolute URI, whose host the parser has compared with the
/// `Host` header, what follows that host (RFC 9112 section 3.2.2).
fn target_path(head: &RequestHeader) -> &str {
    let target = std::str::from_utf8(head.raw_path()).unwrap_or("");
    match target.split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("/", |path| &rest[path..])
        }
        _ => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absolute_uri_asks_for_its_path() {
        let path = |target: &str| {
            let head = RequestHeader::build("POST", target.as_bytes(), None).unwrap();
            target_path(&head).to_owned()
        };
        assert_eq!(path("http://h:1/v1/x?a=b"), "/v1/x?a=b");
        assert_eq!(path("http://h"), "/");
        assert_eq!(path("/v1/x?u=http://h/v1/y"), "/v1/x?u=http://h/v1/y");
        assert_eq!(path("*"), "*");
    }
}
