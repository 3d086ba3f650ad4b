//! A request on its way to a model server or another node, and its head.
//!
//! Connections are [`client`](super::client)'s.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::mpsc;

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
    /// The body, or its beginning; the length of all is announced.
    pub body: &'a Bytes,
    /// Sent on a new connection, never on a kept one.
    pub fresh: bool,
    /// The connection is to leave HTTP: HTTP/2 is not offered on it.
    pub is_upgrade: bool,
    /// What follows `body`, as it comes from the client.
    pub rest: Option<&'a BodyRest>,
}

/// Pieces of a body that wait for the server: one is written, one is here, one is read meanwhile.
const PIECES_MAX: usize = 1;

/// Rest of a body, which goes on as it comes. Once one server has had a piece of it, no other can get the whole.
#[derive(Clone)]
pub struct BodyRest {
    shared: Arc<SharedRest>,
}

struct SharedRest {
    length: u64,
    /// Locked by the task of the request alone.
    pieces: Mutex<mpsc::Receiver<Bytes>>,
    is_taken: AtomicBool,
}

impl BodyRest {
    /// A rest of so many bytes, and the way for its pieces.
    pub fn new(length: u64) -> (mpsc::Sender<Bytes>, BodyRest) {
        let (sender, pieces) = mpsc::channel(PIECES_MAX);
        let shared = SharedRest {
            length,
            pieces: Mutex::new(pieces),
            is_taken: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        (sender, BodyRest { shared })
    }

    /// Bytes of it.
    pub fn length(&self) -> u64 {
        self.shared.length
    }

    /// Returns whether a server has had a piece of it.
    pub fn is_taken(&self) -> bool {
        self.shared.is_taken.load(Ordering::Relaxed)
    }

    /// Takes the next piece for a server; none once nothing comes any more.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = self.shared.pieces.lock().poll_recv(cx);
        if let Poll::Ready(Some(_)) = &next {
            self.shared.is_taken.store(true, Ordering::Relaxed);
        }
        next
    }
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
        let rest = outbound.rest.map_or(0, BodyRest::length);
        encode::number(outbound.body.len() as u64 + rest, head);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
}
