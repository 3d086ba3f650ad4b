//! A request on its way to a model server or another node, and its head.
//!
//! Connections are [`client`](super::client)'s.

use bytes::{Bytes, BytesMut};

use super::target::Target;
use crate::http1::encode;

/// Request to a model server or another node.
pub struct OutboundRequest<'a> {
    /// `POST` or `GET`.
    pub method: &'static str,
    /// The backend's path; the target's prefix goes before it. Empty is the base URL itself.
    pub path: &'a str,
    /// Header lines already in wire form, each ending in CRLF: what may pass from the client.
    pub headers: &'a [u8],
    /// The body; its length is announced.
    pub body: &'a Bytes,
    /// Sent on a new connection, never on a kept one.
    pub fresh: bool,
    /// The connection is to leave HTTP: HTTP/2 is not offered on it.
    pub is_upgrade: bool,
}

/// Writes the head of a request to a target.
pub(super) fn encode_head(target: &Target, outbound: &OutboundRequest<'_>, head: &mut BytesMut) {
    head.reserve(256 + outbound.headers.len());
    // A request line names at least the root.
    let path = match outbound.path {
        "" if target.prefix.is_empty() => "/",
        path => path,
    };
    for part in [outbound.method, " ", &target.prefix] {
        head.extend_from_slice(part.as_bytes());
    }
    target.credentials.write_path(path, head);
    for part in [" HTTP/1.1\r\nhost: ", &target.authority, "\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    head.extend_from_slice(target.credentials.lines());
    // Answers are read here: metered, converted, passed on in another framing.
    head.extend_from_slice(b"accept-encoding: identity\r\n");
    match target.credentials.replaces_any() {
        true => {
            let lines = outbound.headers.split_inclusive(|&byte| byte == b'\n');
            for line in lines.filter(|line| !target.credentials.replaces(line)) {
                head.extend_from_slice(line);
            }
        }
        false => head.extend_from_slice(outbound.headers),
    }
    if outbound.method != "GET" {
        head.extend_from_slice(b"content-length: ");
        encode::number(outbound.body.len() as u64, head);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}
