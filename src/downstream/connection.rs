//! A client's or another node's connection as Pingora's sessions see it, with two habits of our own.
//!
//! The first byte of the next request ends the keep-alive timer and starts the header timer. Writes are
//! gathered until the session flushes, so that head and body leave in one system call. No protocol is spoken
//! here; TLS with other nodes is `peer`'s.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

use crate::peer::PeerStream;
use crate::tls::CertificateNames;

/// Read at once while waiting for a request: a usual head with a small body.
const AHEAD_BYTES: usize = 4 * 1024;
/// Gathered before it is written without waiting for the flush: bounds the memory of one
/// connection and keeps large answers flowing.
const GATHER_MAX_BYTES: usize = 64 * 1024;
/// A write of this size is not copied behind what was gathered but sent beside it.
const COPY_MAX_BYTES: usize = 8 * 1024;

/// No head is being read: bytes pass uncounted.
const NO_HEAD: usize = usize::MAX;
/// After a refused head this much more is read and discarded, so that the client sees the answer and not
/// a reset (RFC 9112 section 9.6).
const LINGER_MAX_BYTES: usize = 1024 * 1024;
/// For this long at most.
const LINGER_TIMEOUT: Duration = Duration::from_millis(200);

/// Other side of the connection.
#[derive(Debug)]
enum PeerKind {
    Client(TcpStream),
    Peer(Box<PeerStream>),
}

/// A connection to be served.
#[derive(Debug)]
pub struct DownstreamConnection {
    peer: PeerKind,
    /// Bytes received and not yet read by a session.
    read_ahead: BytesMut,
    /// Bytes written by a session and not yet sent.
    pending: BytesMut,
    /// A client that takes nothing for this long is gone.
    stall_max: Duration,
    /// Runs while the socket takes nothing.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Bytes of a request's head that may still be read; [`NO_HEAD`] while none is read.
    head_left: AtomicUsize,
    /// Bytes the socket has taken since it was accepted.
    bytes_sent: Arc<AtomicU64>,
}

impl DownstreamConnection {
    /// Takes over an accepted connection of a client.
    pub fn new(tcp: TcpStream, stall_max: Duration) -> DownstreamConnection {
        DownstreamConnection::with_peer(PeerKind::Client(tcp), stall_max)
    }

    /// Takes over the connection of another node.
    pub fn of_peer(stream: PeerStream, stall_max: Duration) -> DownstreamConnection {
        DownstreamConnection::with_peer(PeerKind::Peer(Box::new(stream)), stall_max)
    }

    fn with_peer(end: PeerKind, stall_max: Duration) -> DownstreamConnection {
        DownstreamConnection {
            peer: end,
            read_ahead: BytesMut::new(),
            pending: BytesMut::new(),
            stall_max,
            stall_timer: None,
            head_left: AtomicUsize::new(NO_HEAD),
            bytes_sent: Arc::default(),
        }
    }

    /// Bytes the socket has taken since it was accepted, counted on while a session writes.
    pub fn bytes_sent(&self) -> &Arc<AtomicU64> {
        &self.bytes_sent
    }

    /// The other node as its certificate names it; none of a client.
    pub fn peer_name(&self) -> Option<&CertificateNames> {
        self.peer_stream().map(|stream| &stream.proof().names)
    }

    /// The other node's side; none of a client.
    pub fn peer_stream(&self) -> Option<&PeerStream> {
        match &self.peer {
            PeerKind::Client(_) => None,
            PeerKind::Peer(peer) => Some(peer),
        }
    }

    /// Returns when the other side has closed or reset its connection, whatever bytes it has left behind.
    /// Bytes of a client's pipelined request are not a departure. Nodes send nothing before they are
    /// answered.
    pub async fn closed(&self) {
        let tcp = match &self.peer {
            PeerKind::Client(tcp) => tcp,
            PeerKind::Peer(peer) => return peer.closed().await,
        };
        #[cfg(target_os = "linux")]
        {
            // Ready with the end of the other side's bytes, however many of them are unread (the kernel's
            // EPOLLRDHUP). An error of the wait is as good as what it waits for.
            let _ = tcp.ready(Interest::PRIORITY | Interest::ERROR).await;
        }
        #[cfg(not(target_os = "linux"))]
        {
            let waiting = tcp.peek(&mut [0; 1]).await.unwrap_or(0);
            if waiting > 0 || !self.ahead.is_empty() {
                let _ = tcp.ready(Interest::ERROR).await;
            }
        }
    }

    /// Begins to count what a session reads: more than `max` bytes are no head.
    pub fn begin_head(&self, max: usize) {
        self.head_left.store(max, Ordering::Relaxed);
    }

    /// Ends the count: the head is there.
    pub fn end_head(&self) {
        self.head_left.store(NO_HEAD, Ordering::Relaxed);
    }

    /// Returns whether a head has reached its limit without an end.
    pub fn is_head_over(&self) -> bool {
        self.head_left.load(Ordering::Relaxed) == 0
    }

    /// Reads on for a moment after the last answer, and discards it.
    pub async fn linger(&mut self) {
        self.end_head();
        let mut discarded = vec![0; AHEAD_BYTES];
        let reading = async {
            let mut read = 0;
            while read < LINGER_MAX_BYTES {
                match AsyncReadExt::read(self, &mut discarded).await {
                    Ok(0) | Err(_) => return,
                    Ok(more) => read += more,
                }
            }
        };
        let _ = timeout(LINGER_TIMEOUT, reading).await;
    }

    /// Puts back bytes that were read beyond the end of a request: a pipelined one follows.
    pub fn put_back(&mut self, bytes: BytesMut) {
        match self.read_ahead.is_empty() {
            true => self.read_ahead = bytes,
            false => {
                let rest = std::mem::replace(&mut self.read_ahead, bytes);
                self.read_ahead.extend_from_slice(&rest);
            }
        }
    }

    /// Waits until at least one byte of the next request is here; false when the client closed.
    pub async fn first_byte(&mut self) -> bool {
        if !self.read_ahead.is_empty() {
            return true;
        }
        self.read_ahead.reserve(AHEAD_BYTES);
        let read = match &mut self.peer {
            PeerKind::Client(tcp) => tcp.read_buf(&mut self.read_ahead).await,
            PeerKind::Peer(peer) => peer.read_buf(&mut self.read_ahead).await,
        };
        matches!(read, Ok(read) if read > 0)
    }

    /// Gives what was read ahead, then what the socket has.
    fn poll_take(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read_ahead.is_empty() {
            return match &mut self.peer {
                PeerKind::Client(tcp) => Pin::new(tcp).poll_read(cx, buf),
                PeerKind::Peer(peer) => Pin::new(peer).poll_read(cx, buf),
            };
        }
        let length = self.read_ahead.len().min(buf.remaining());
        buf.put_slice(&self.read_ahead[..length]);
        self.read_ahead.advance(length);
        Poll::Ready(Ok(()))
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

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let sent = ready!(self.poll_send(cx, |wire, cx| match &mut wire.peer {
                PeerKind::Client(tcp) => Pin::new(tcp).poll_write(cx, &wire.pending),
                PeerKind::Peer(peer) => Pin::new(peer).poll_write(cx, &wire.pending),
            }))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.advance(sent);
        }
        Poll::Ready(Ok(()))
    }

    /// Under TLS, what was written may still wait for the socket; TCP keeps nothing back.
    fn poll_flush_tls(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.peer, PeerKind::Client(_)) {
            return Poll::Ready(Ok(()));
        }
        let passed = self.poll_send(cx, |wire, cx| match &mut wire.peer {
            PeerKind::Client(_) => Poll::Ready(Ok(0)),
            PeerKind::Peer(peer) => Pin::new(peer).poll_flush(cx).map_ok(|()| 0),
        });
        passed.map_ok(|_| ())
    }
}

impl AsyncRead for DownstreamConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let head_left = self.head_left.load(Ordering::Relaxed);
        if head_left == NO_HEAD {
            return self.poll_take(cx, buf);
        }
        // A session asks for more only where what it has got holds no head's end.
        if head_left == 0 {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        }
        let before = buf.filled().len();
        ready!(self.poll_take(cx, buf))?;
        let left = head_left.saturating_sub(buf.filled().len() - before);
        self.head_left.store(left, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for DownstreamConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.len() <= COPY_MAX_BYTES {
            if self.pending.len() + bytes.len() > GATHER_MAX_BYTES {
                ready!(self.poll_drain(cx))?;
            }
            self.pending.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        let sent = ready!(self.poll_send(cx, |wire, cx| {
            let both = [IoSlice::new(&wire.pending), IoSlice::new(bytes)];
            match &mut wire.peer {
                PeerKind::Client(tcp) => Pin::new(tcp).poll_write_vectored(cx, &both),
                PeerKind::Peer(peer) => Pin::new(peer).poll_write_vectored(cx, &both),
            }
        }))?;
        let before = sent.min(self.pending.len());
        self.pending.advance(before);
        match sent - before {
            // Nothing of `bytes` left yet; the socket says so again once it is full.
            0 => self.poll_write(cx, bytes),
            written => Poll::Ready(Ok(written)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        self.poll_flush_tls(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        let shut = self.poll_send(cx, |wire, cx| {
            let shut = match &mut wire.peer {
                PeerKind::Client(tcp) => Pin::new(tcp).poll_shutdown(cx),
                PeerKind::Peer(peer) => Pin::new(peer).poll_shutdown(cx),
            };
            shut.map_ok(|()| 0)
        });
        shut.map_ok(|_| ())
    }
}

#[async_trait]
impl Shutdown for DownstreamConnection {
    async fn shutdown(&mut self) {
        // The client may be gone already; then there is nobody to say goodbye to.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for DownstreamConnection {
    fn id(&self) -> UniqueIDType {
        match &self.peer {
            PeerKind::Client(tcp) => tcp.as_raw_fd(),
            PeerKind::Peer(peer) => peer.id(),
        }
    }
}

impl Ssl for DownstreamConnection {}

impl Peek for DownstreamConnection {}

impl GetTimingDigest for DownstreamConnection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for DownstreamConnection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for DownstreamConnection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn pair(stall_max: Duration) -> (DownstreamConnection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (served, _) = listener.accept().await.unwrap();
        (DownstreamConnection::new(served, stall_max), client)
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (mut wire, _client) = pair(Duration::from_millis(20)).await;
        let piece = vec![b'x'; 32 * 1024];
        let failed = loop {
            if let Err(failed) = wire.write_all(&piece).await {
                break failed;
            }
        };
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn small_writes_leave_together_with_the_flush_and_a_large_one_beside_them() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        wire.write_all(b"head ").await.unwrap();
        assert!(client.try_read(&mut [0; 1]).is_err());
        let large = vec![b'y'; COPY_MAX_BYTES + 1];
        wire.write_all(&large).await.unwrap();
        wire.write_all(b" tail").await.unwrap();
        wire.flush().await.unwrap();
        let mut seen = vec![0; 10 + large.len()];
        client.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen[..5], b"head ");
        assert_eq!(&seen[5..5 + large.len()], &large[..]);
        assert_eq!(&seen[5 + large.len()..], b" tail");
    }

    #[tokio::test]
    async fn bytes_put_back_are_read_first() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        wire.put_back(BytesMut::from(&b"second"[..]));
        wire.put_back(BytesMut::from(&b"first "[..]));
        assert!(wire.first_byte().await);
        client.write_all(b" third").await.unwrap();
        let mut seen = [0; 18];
        wire.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"first second third");
    }

    #[tokio::test]
    async fn a_close_is_a_departure_and_a_pipelined_byte_is_not() {
        let (wire, client) = pair(Duration::from_secs(20)).await;
        assert!(futures_util::poll!(Box::pin(wire.closed())).is_pending());
        drop(client);
        wire.closed().await;

        let (mut wire, _client) = pair(Duration::from_secs(20)).await;
        wire.put_back(BytesMut::from(&b"G"[..]));
        assert!(futures_util::poll!(Box::pin(wire.closed())).is_pending());
    }

    #[tokio::test]
    async fn a_close_behind_unread_bytes_is_a_departure() {
        for ahead in [&b""[..], b"G"] {
            let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
            wire.put_back(BytesMut::from(ahead));
            client.write_all(b"\r\n").await.unwrap();
            assert!(futures_util::poll!(Box::pin(wire.closed())).is_pending());
            drop(client);
            wire.closed().await;
        }
    }

    #[tokio::test]
    async fn a_head_ends_at_its_limit_and_what_follows_a_head_is_not_counted() {
        let (mut wire, mut client) = pair(Duration::from_secs(20)).await;
        client.write_all(&[b'x'; 300]).await.unwrap();
        wire.begin_head(100);
        let mut some = [0; 60];
        wire.read_exact(&mut some).await.unwrap();
        assert!(!wire.is_head_over());
        wire.read_exact(&mut some).await.unwrap();
        assert!(wire.is_head_over());
        assert!(wire.read_exact(&mut some).await.is_err());
        wire.end_head();
        wire.read_exact(&mut some).await.unwrap();
        assert!(!wire.is_head_over());
    }
}
