//! A client's or another node's connection as bytes: what was received and not yet read, what is to be sent.
//!
//! A message leaves in one system call: what was queued, a body that is not copied, and what ends it. No protocol
//! is spoken here, and the kinds of sockets are `Socket`'s.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Sleep, sleep, timeout};

use super::socket::Socket;
use crate::http1::spare;
use crate::peer::PeerStream;
use crate::upstream::Tunnel;

/// Room for heads that is kept between requests.
const QUEUE_KEPT_BYTES: usize = 4 * 1024;
/// After a refused head this much more is read and discarded, so that the client sees the answer and not
/// a reset (RFC 9112 section 9.6).
const LINGER_MAX_BYTES: usize = 1024 * 1024;
/// For this long at most.
const LINGER_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the socket to take a goodbye, which is a record under TLS: a courtesy.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// A message on its way out: its parts follow each other.
#[derive(Debug, Default)]
struct Outbound {
    queued: BytesMut,
    body: Bytes,
    end: &'static [u8],
    /// Bytes of all three that the socket has taken.
    sent: usize,
}

impl Outbound {
    fn len(&self) -> usize {
        self.queued.len() + self.body.len() + self.end.len()
    }

    fn is_sent(&self) -> bool {
        self.sent == self.len()
    }

    /// The unsent rest of each part.
    fn rest(&self) -> [IoSlice<'_>; 3] {
        let mut skipped = self.sent;
        [&self.queued[..], &self.body[..], self.end].map(|part| {
            let skip = skipped.min(part.len());
            skipped -= skip;
            IoSlice::new(&part[skip..])
        })
    }

    /// Forgets what was sent, and keeps room for the next head.
    fn clear(&mut self) {
        match self.queued.capacity() > QUEUE_KEPT_BYTES {
            true => self.queued = BytesMut::new(),
            false => self.queued.clear(),
        }
        self.body = Bytes::new();
        self.end = b"";
        self.sent = 0;
    }
}

/// A connection to be served.
#[derive(Debug)]
pub struct DownstreamConnection {
    socket: Socket,
    /// Bytes received and not yet read.
    received: BytesMut,
    outbound: Outbound,
    /// A client that takes nothing for this long is gone.
    stall_max: Duration,
    /// Runs while the socket takes nothing.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Bytes the socket has taken since it was accepted.
    bytes_sent: Arc<AtomicU64>,
}

impl DownstreamConnection {
    /// Takes over an accepted connection.
    pub fn new(socket: Socket, stall_max: Duration) -> DownstreamConnection {
        DownstreamConnection {
            socket,
            received: BytesMut::new(),
            outbound: Outbound::default(),
            stall_max,
            stall_timer: None,
            bytes_sent: Arc::default(),
        }
    }

    /// Bytes the socket has taken since it was accepted, counted on while a write waits.
    pub fn bytes_sent(&self) -> &Arc<AtomicU64> {
        &self.bytes_sent
    }

    /// The other node's side; none of a client.
    pub fn peer_stream(&self) -> Option<&PeerStream> {
        self.socket.peer()
    }

    /// Returns when the other side has closed or reset its connection, whatever bytes it has left behind.
    // Not an `async fn`: the state of a request has no room for another layer.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + '_ {
        self.socket.closed(!self.received.is_empty())
    }

    /// Returns whether bytes were received that are not yet read.
    pub fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// Bytes received and not yet read.
    pub fn received(&mut self) -> &mut BytesMut {
        &mut self.received
    }

    /// Reads what there is; 0 when the other side has closed. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn fill(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let DownstreamConnection {
            socket, received, ..
        } = self;
        // As much again as has come, so that a large message needs few reads.
        spare::make_room(received, spare::READ_BYTES.max(received.len()));
        let read = pin!(socket.read_buf(received)).poll(cx);
        if read.is_pending() {
            spare::give_back(received);
        }
        read
    }

    /// Reads up to `max` bytes past what was received, behind `into`, whose room bounds it too.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn fill_into(&mut self, into: &mut BytesMut, max: usize) -> io::Result<usize> {
        let room = into.capacity() - into.len();
        let mut into = into.limit(max.min(room));
        self.socket.read_buf(&mut into).await
    }

    /// Returns the connection once it has left HTTP.
    pub fn tunnel(&mut self) -> Tunnel<'_> {
        Tunnel {
            received: self.received.split(),
            stream: &mut self.socket,
        }
    }

    /// Gives the socket back, with the bytes that were received and not yet read.
    pub fn into_parts(self) -> (BytesMut, Socket) {
        (self.received, self.socket)
    }

    /// Waits until at least one byte of the next request is here; false when the client closed.
    pub async fn first_byte(&mut self) -> bool {
        !self.received.is_empty() || matches!(self.fill().await, Ok(read) if read > 0)
    }

    /// Buffer for the head of a message, which leaves with the next [`send`](Self::send).
    pub fn queue(&mut self) -> &mut BytesMut {
        &mut self.outbound.queued
    }

    /// Sends what was queued, then `body`, then `end`. Once the future is dropped, the next call sends what is
    /// left first.
    ///
    /// # Errors
    /// The connection broke, or takes nothing.
    pub async fn send(&mut self, body: Bytes, end: &'static [u8]) -> io::Result<()> {
        if self.has_body() {
            self.flush().await?;
        }
        self.outbound.body = body;
        self.outbound.end = end;
        self.flush().await
    }

    /// Returns whether a body is on its way, behind which nothing may be queued before it is sent.
    pub fn has_body(&self) -> bool {
        !self.outbound.body.is_empty() || !self.outbound.end.is_empty()
    }

    /// Returns whether nothing is left to be sent.
    pub fn is_flushed(&self) -> bool {
        self.outbound.is_sent()
    }

    /// Sends what is left.
    ///
    /// # Errors
    /// The connection broke, or takes nothing.
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_flush(cx)).await
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbound.is_sent() {
            let sent = ready!(self.poll_send(cx, |wire, cx| {
                let rest = wire.outbound.rest();
                Pin::new(&mut wire.socket).poll_write_vectored(cx, &rest)
            }))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outbound.sent += sent;
        }
        self.outbound.clear();
        self.poll_flush_tls(cx)
    }

    /// Every write passes here: what the socket does not take starts a timer, and what it takes
    /// ends it.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        send: impl FnOnce(&mut DownstreamConnection, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let sent = send(self, cx);
        if let Poll::Ready(sent) = sent {
            self.stall_timer = None;
            if let Ok(bytes) = sent {
                self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
            }
            return Poll::Ready(sent);
        }
        let stall_max = self.stall_max;
        let stalled = self
            .stall_timer
            .get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Under TLS, what was written may still wait for the socket; TCP keeps nothing back.
    fn poll_flush_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.socket.keeps_back() {
            return Poll::Ready(Ok(()));
        }
        let passed = self.poll_send(cx, |wire, cx| {
            Pin::new(&mut wire.socket).poll_flush(cx).map_ok(|()| 0)
        });
        passed.map_ok(|_| ())
    }

    /// Says goodbye: what is left is sent, and nothing follows.
    pub async fn shutdown(&mut self) {
        // The client may be gone already; then there is nobody to say goodbye to.
        if self.flush().await.is_err() {
            return;
        }
        match self.socket.keeps_back() {
            true => self.send_goodbye().await,
            false => drop(self.socket.shutdown().await),
        }
    }

    /// Sends the last record under TLS. Boxed: connections in plain text have no room for it.
    fn send_goodbye(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            // A client that takes nothing does without.
            let _ = timeout(GOODBYE_TIMEOUT, self.socket.shutdown()).await;
        })
    }

    /// Says goodbye on a connection at rest, where a client could not tell its close from one that cuts something off
    /// (RFC 8446 section 6.1). The close of a socket without TLS says as much by itself.
    pub async fn close_idle(&mut self) {
        if self.socket.keeps_back() {
            self.shutdown().await;
        }
    }

    /// Reads on for a moment after the last answer, and discards it.
    pub async fn linger(&mut self) {
        let reading = async {
            let mut read = 0;
            while read < LINGER_MAX_BYTES {
                self.received.clear();
                match self.fill().await {
                    Ok(0) | Err(_) => return,
                    Ok(more) => read += more,
                }
            }
        };
        let _ = timeout(LINGER_TIMEOUT, reading).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    async fn pair(stall_max: Duration) -> (DownstreamConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (served, _) = listener.accept().await.unwrap();
        let socket = Socket::Tcp(served);
        (DownstreamConnection::new(socket, stall_max), client)
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (mut wire, _client) = pair(Duration::from_millis(20)).await;
        let piece = Bytes::from(vec![b'x'; 32 * 1024]);
        let failed = loop {
            if let Err(failed) = wire.send(piece.clone(), b"").await {
                break failed;
            }
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn the_parts_of_a_message_leave_together() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        wire.queue().extend_from_slice(b"head ");
        assert!(client.try_read(&mut [0; 1]).is_err());
        let large = Bytes::from(vec![b'y'; 100_000]);
        let mut seen = vec![0; 10 + large.len()];
        let (sent, read) = tokio::join!(
            wire.send(large.clone(), b" tail"),
            client.read_exact(&mut seen)
        );
        sent.unwrap();
        read.unwrap();
        assert_eq!(&seen[..5], b"head ");
        assert_eq!(&seen[5..5 + large.len()], &large[..]);
        assert_eq!(&seen[5 + large.len()..], b" tail");
    }

    #[tokio::test]
    async fn what_a_dropped_send_left_is_sent_before_what_follows() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        let large = Bytes::from(vec![b'z'; 8 * 1024 * 1024]);
        assert!(futures_util::poll!(Box::pin(wire.send(large.clone(), b"1"))).is_pending());
        let mut seen = vec![0; large.len() + 5];
        let (sent, read) = tokio::join!(
            wire.send(Bytes::from_static(b"end"), b"2"),
            client.read_exact(&mut seen)
        );
        sent.unwrap();
        read.unwrap();
        assert_eq!(&seen[large.len()..], b"1end2");
    }

    #[tokio::test]
    async fn a_body_is_read_behind_what_has_come_and_no_further_than_its_end() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        client.write_all(b"0123456789next").await.unwrap();
        let mut body = BytesMut::with_capacity(64);
        body.extend_from_slice(b"ab");
        while body.len() < 12 {
            let left = 12 - body.len();
            assert!(wire.fill_into(&mut body, left).await.unwrap() > 0);
        }
        assert_eq!(body, "ab0123456789");
        assert!(wire.first_byte().await);
        assert_eq!(wire.received(), "next");
    }

    #[tokio::test]
    async fn a_client_that_leaves_without_a_byte_is_noticed() {
        for has_room in [false, true] {
            let (mut wire, client) = pair(Duration::from_secs(20)).await;
            if has_room {
                wire.received().reserve(8);
            }
            drop(client);
            assert!(!wire.first_byte().await);
        }
    }

    #[tokio::test]
    async fn a_connection_that_waits_holds_no_read_buffer() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        for _ in 0..2 {
            client.write_all(b"request").await.unwrap();
            assert!(wire.first_byte().await);
            assert!(wire.received().capacity() > 0);
            drop(wire.received().split());
            assert!(futures_util::poll!(Box::pin(wire.first_byte())).is_pending());
            assert_eq!(wire.received().capacity(), 0);
        }
    }

    #[tokio::test]
    async fn a_close_behind_unread_bytes_is_a_departure() {
        for received in [&b""[..], b"G"] {
            let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
            wire.received().extend_from_slice(received);
            client.write_all(b"\r\n").await.unwrap();
            assert!(futures_util::poll!(Box::pin(wire.closed())).is_pending());
            drop(client);
            wire.closed().await;
        }
    }
}
