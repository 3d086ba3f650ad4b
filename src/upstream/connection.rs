//! A connection to a model server or another node as Pingora's sessions see it: plain TCP or TLS.
//!
//! HTTP is [`client`](super::client)'s, keeping connections [`pool`](super::pool)'s. A request is
//! handed over once and goes out while the session reads, so that a response that comes before the
//! request was taken is seen. Bounds are those of its [`ConnectionUse`].

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use infergate_core::Millis;
use infergate_core::routing::connection_reuse::ConnectionUse;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::unconstrained;

use crate::telemetry::Clock;
use crate::tls::{ProvedIdentity, ServerIdentity, TlsConnection};

/// Looks at a TLS connection that has bytes waiting: records between answers (session tickets) are
/// taken by the first look, and there are at most two of them in practice.
const LOOKS_MAX: usize = 3;

#[derive(Debug)]
enum UpstreamStream {
    Plain(TcpStream),
    Sealed(Box<TlsConnection<ProvedIdentity>>),
}

/// Unwritten part of a request.
#[derive(Default)]
struct UnsentRequest {
    head: BytesMut,
    body: Bytes,
    /// Written to TLS and perhaps not yet to the socket.
    is_unflushed: bool,
}

impl UnsentRequest {
    fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_empty() && !self.is_unflushed
    }
}

/// An open connection.
pub(super) struct UpstreamConnection {
    io: UpstreamStream,
    /// Idle time, age and answers.
    pub usage: ConnectionUse,
    /// To connect there, for servers outside the own network; zero else.
    pub round_trip: Millis,
    unsent: UnsentRequest,
    write_error: Option<io::Error>,
    clock: Clock,
    /// Moment at which the request was written whole; until then, at which writing began.
    written_us: u64,
    /// Bytes of the response to the present request, interim responses included.
    bytes_read: u64,
}

impl UpstreamConnection {
    /// A new connection without TLS.
    pub fn plain(tcp: TcpStream, usage: ConnectionUse, clock: Clock) -> Box<UpstreamConnection> {
        UpstreamConnection::over(UpstreamStream::Plain(tcp), usage, clock)
    }

    /// A new connection to a server that has proved its identity.
    pub fn tls(
        sealed: TlsConnection<ProvedIdentity>,
        usage: ConnectionUse,
        clock: Clock,
    ) -> Box<UpstreamConnection> {
        UpstreamConnection::over(UpstreamStream::Sealed(Box::new(sealed)), usage, clock)
    }

    fn over(io: UpstreamStream, usage: ConnectionUse, clock: Clock) -> Box<UpstreamConnection> {
        Box::new(UpstreamConnection {
            io,
            usage,
            round_trip: Millis::ZERO,
            unsent: UnsentRequest::default(),
            write_error: None,
            clock,
            written_us: 0,
            bytes_read: 0,
        })
    }

    /// Returns whether the server has proved an equal identity, or need not.
    pub fn has_identity(&self, identity: Option<&Arc<ServerIdentity>>) -> bool {
        match (&self.io, identity) {
            (UpstreamStream::Plain(_), None) => true,
            (UpstreamStream::Sealed(sealed), Some(identity)) => sealed.proof().is(identity),
            _ => false,
        }
    }

    /// Begins a request: `head` and `body` are written from now on, also by reads.
    pub fn begin(&mut self, head: BytesMut, body: Bytes) {
        self.unsent = UnsentRequest {
            head,
            body,
            is_unflushed: true,
        };
        self.write_error = None;
        self.written_us = self.clock.micros();
        self.bytes_read = 0;
    }

    /// Returns once the request is written whole, writing has failed, or the server may have begun to
    /// answer; reads go on with the rest.
    pub async fn write_ahead(&mut self) {
        std::future::poll_fn(|cx| match self.poll_unsent(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            // An error is found by the read that follows.
            Poll::Pending => self.tcp().poll_read_ready(cx).map(|_| ()),
        })
        .await;
    }

    /// Returns whether the whole request has gone out.
    pub fn is_written(&self) -> bool {
        self.unsent.is_empty() && self.write_error.is_none()
    }

    /// Microseconds since the request was written whole; before that, since writing began.
    pub fn since_written_us(&self) -> u64 {
        self.clock.micros().saturating_sub(self.written_us)
    }

    /// Returns whether bytes of a response have come, interim responses included.
    pub fn has_answered(&self) -> bool {
        self.bytes_read > 0
    }

    /// Returns whether the socket is open and silent. Asks the kernel: a close that has not come
    /// through the runtime yet counts too.
    pub fn is_open_and_silent(&mut self) -> bool {
        for _ in 0..LOOKS_MAX {
            let mut byte = [MaybeUninit::uninit(); 1];
            match SockRef::from(self.tcp()).peek(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(1..) if matches!(self.io, UpstreamStream::Sealed(_)) => {
                    // Anything but a record without content is an end, or a response to no request.
                    if unconstrained(self.read_u8()).now_or_never().is_some() {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    fn tcp(&self) -> &TcpStream {
        match &self.io {
            UpstreamStream::Plain(tcp) => tcp,
            UpstreamStream::Sealed(sealed) => sealed.tcp(),
        }
    }

    /// Writes what the socket takes; ready once nothing is left or writing has failed.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unsent.is_empty() {
            return Poll::Ready(());
        }
        match ready!(self.poll_unsent_to_end(cx)) {
            Ok(()) => self.written_us = self.clock.micros(),
            // Bytes that the server sent before it are still to be read.
            Err(error) => {
                self.write_error = Some(error);
                self.unsent = UnsentRequest::default();
            }
        }
        Poll::Ready(())
    }

    fn poll_unsent_to_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let UpstreamConnection { io, unsent, .. } = self;
        loop {
            let is_head = !unsent.head.is_empty();
            let part: &[u8] = match is_head {
                true => &unsent.head,
                false => &unsent.body,
            };
            if part.is_empty() {
                break;
            }
            let written = ready!(match io {
                UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_write(cx, part),
                UpstreamStream::Sealed(sealed) => Pin::new(&mut **sealed).poll_write(cx, part),
            })?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            match is_head {
                true => unsent.head.advance(written),
                false => unsent.body.advance(written),
            }
        }
        if let UpstreamStream::Sealed(sealed) = io {
            ready!(Pin::new(&mut **sealed).poll_flush(cx))?;
        }
        // The response may take minutes: what was written is not kept for so long.
        *unsent = UnsentRequest::default();
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for UpstreamConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.fmt(f)
    }
}

/// A TLS connection closed without its last record is what TCP calls a reset, and may be met on a kept
/// connection as there. Such a close is no end of a body.
fn as_reset(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Errno::CONNRESET.into(),
        _ => error,
    }
}

impl AsyncRead for UpstreamConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let _ = this.poll_unsent(cx);
        let before = buf.filled().len();
        let read = match &mut this.io {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            UpstreamStream::Sealed(sealed) => {
                Pin::new(&mut **sealed).poll_read(cx, buf).map_err(as_reset)
            }
        };
        this.bytes_read += (buf.filled().len() - before) as u64;
        read
    }
}

impl AsyncWrite for UpstreamConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().io {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            UpstreamStream::Sealed(sealed) => Pin::new(&mut **sealed).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            UpstreamStream::Sealed(sealed) => Pin::new(&mut **sealed).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            UpstreamStream::Sealed(sealed) => Pin::new(&mut **sealed).poll_shutdown(cx),
        }
    }
}

#[async_trait]
impl Shutdown for UpstreamConnection {
    async fn shutdown(&mut self) {
        match &mut self.io {
            // Closed by the drop; nothing waits for what is left to be written.
            UpstreamStream::Plain(tcp) => drop(AsyncWriteExt::shutdown(tcp).await),
            UpstreamStream::Sealed(sealed) => sealed.close_notify().await,
        }
    }
}

impl UniqueID for UpstreamConnection {
    fn id(&self) -> UniqueIDType {
        self.tcp().as_raw_fd()
    }
}

impl Ssl for UpstreamConnection {}

impl Peek for UpstreamConnection {}

impl GetTimingDigest for UpstreamConnection {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for UpstreamConnection {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl GetSocketDigest for UpstreamConnection {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        None
    }
}
