//! A connection to a model server or another node: plain TCP, a Unix socket, TLS or a stream of HTTP/2, and the state of one exchange on it.
//!
//! HTTP is [`client`](super::client)'s, keeping connections [`pool`](super::pool)'s. A request is
//! handed over once and goes out while the response is read, so that a response that comes before the
//! request was taken is seen. Bounds are those of its [`ConnectionUse`].

use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use infergate_core::Millis;
use infergate_core::routing::connection_reuse::ConnectionUse;
use rustix::io::Errno;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::unconstrained;

use super::http2_stream::Http2Exchange;
use super::outbound::BodyRest;
use super::tunnel::Tunnel;
use crate::http1::{BodyDecoder, ParsedResponse, spare};
use crate::telemetry::Clock;
use crate::tls::{ProvedIdentity, ServerIdentity, TlsConnection};

/// Looks at a TLS connection that has bytes waiting: records between answers (session tickets) are
/// taken by the first look, and there are at most two of them in practice.
const LOOKS_MAX: usize = 3;
/// Room for what is read at once of a large answer.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Room for heads that is kept between requests.
const HEAD_KEPT_BYTES: usize = 4 * 1024;
/// After so long a wait the kernel is asked whether a connection is still open, and not the runtime alone: a
/// close may have come while no worker looked.
const ASKED_AFTER: Millis = Millis(500);

#[derive(Debug)]
enum UpstreamStream {
    Plain(TcpStream),
    /// A socket in the file system.
    Local(UnixStream),
    Sealed(Box<TlsConnection<ProvedIdentity>>),
    /// A stream of a connection of HTTP/2, for one request.
    Shared(Box<Http2Exchange>),
}

/// The socket below a connection of HTTP/1.
enum RawSocket<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
}

impl RawSocket<'_> {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            RawSocket::Tcp(tcp) => tcp.poll_read_ready(cx),
            RawSocket::Unix(unix) => unix.poll_read_ready(cx),
        }
    }

    fn peek(&self, byte: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        match self {
            RawSocket::Tcp(tcp) => SockRef::from(*tcp).peek(byte),
            RawSocket::Unix(unix) => SockRef::from(*unix).peek(byte),
        }
    }
}

/// Unwritten part of a request.
#[derive(Default)]
struct UnsentRequest {
    head: BytesMut,
    body: Bytes,
    /// Bytes of both that were written.
    sent: usize,
    /// What follows them, and how many bytes of it have not come.
    rest: Option<(BodyRest, u64)>,
    /// Written to TLS and perhaps not yet to the socket.
    is_unflushed: bool,
}

impl UnsentRequest {
    fn is_empty(&self) -> bool {
        self.sent == self.head.len() + self.body.len() && !self.is_unflushed && self.rest.is_none()
    }

    /// Goes on with the next piece of the rest; ready with false where there is no rest.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some((rest, left)) = &mut self.rest else {
            return Poll::Ready(Ok(false));
        };
        let piece = ready!(rest.poll_next(cx)).ok_or(io::ErrorKind::BrokenPipe)?;
        *left = left.saturating_sub(piece.len() as u64);
        if *left == 0 {
            self.rest = None;
        }
        self.head.clear();
        (self.body, self.sent) = (piece, 0);
        Poll::Ready(Ok(true))
    }

    fn slices(&self) -> [IoSlice<'_>; 2] {
        let of_head = self.sent.min(self.head.len());
        [
            IoSlice::new(&self.head[of_head..]),
            IoSlice::new(&self.body[self.sent - of_head..]),
        ]
    }

    /// Forgets the request, and keeps room for the next head. The response may take minutes: a body is not
    /// kept for so long.
    fn clear(&mut self) {
        match self.head.capacity() > HEAD_KEPT_BYTES {
            true => self.head = BytesMut::new(),
            false => self.head.clear(),
        }
        self.body = Bytes::new();
        self.sent = 0;
        self.rest = None;
        self.is_unflushed = false;
    }
}

/// An open connection.
pub(super) struct UpstreamConnection {
    io: UpstreamStream,
    /// Idle time, age and answers.
    pub usage: ConnectionUse,
    /// To connect there, for servers outside the own network; zero else.
    pub round_trip: Millis,
    /// Bytes received and not yet read.
    pub received: BytesMut,
    /// Head of the response to the present request.
    pub head: ParsedResponse,
    /// Rest of its body.
    pub body: BodyDecoder,
    unsent: UnsentRequest,
    write_error: Option<io::Error>,
    clock: Clock,
    /// Moment at which the request was written whole; until then, at which writing began.
    written_us: u64,
    /// Bytes of a response to the present request have come, interim responses included.
    has_answered: bool,
    /// Room for the next read: grows with a response that fills it.
    read_bytes: usize,
    /// The last read took all that there was room for.
    is_read_full: bool,
    /// Counter of the bytes of the present response, of servers whose progress is watched.
    meter: Option<Arc<AtomicU64>>,
}

impl UpstreamConnection {
    /// A new connection without TLS.
    pub fn plain(tcp: TcpStream, usage: ConnectionUse, clock: Clock) -> Box<UpstreamConnection> {
        UpstreamConnection::over(UpstreamStream::Plain(tcp), usage, clock)
    }

    /// A new connection to a server of this host.
    pub fn local(
        socket: UnixStream,
        usage: ConnectionUse,
        clock: Clock,
    ) -> Box<UpstreamConnection> {
        UpstreamConnection::over(UpstreamStream::Local(socket), usage, clock)
    }

    /// A new connection to a server that has proved its identity.
    pub fn tls(
        sealed: TlsConnection<ProvedIdentity>,
        usage: ConnectionUse,
        clock: Clock,
    ) -> Box<UpstreamConnection> {
        UpstreamConnection::over(UpstreamStream::Sealed(Box::new(sealed)), usage, clock)
    }

    /// A stream of a connection that others use too.
    pub fn stream(
        exchange: Box<Http2Exchange>,
        now: Millis,
        clock: Clock,
    ) -> Box<UpstreamConnection> {
        let usage = ConnectionUse::new(now, Millis::ZERO);
        UpstreamConnection::over(UpstreamStream::Shared(exchange), usage, clock)
    }

    fn over(io: UpstreamStream, usage: ConnectionUse, clock: Clock) -> Box<UpstreamConnection> {
        Box::new(UpstreamConnection {
            io,
            usage,
            round_trip: Millis::ZERO,
            received: BytesMut::new(),
            head: ParsedResponse::default(),
            body: BodyDecoder::Done,
            unsent: UnsentRequest::default(),
            write_error: None,
            clock,
            written_us: 0,
            has_answered: false,
            read_bytes: spare::READ_BYTES,
            is_read_full: false,
            meter: None,
        })
    }

    /// Counts the bytes of the present response, also what has come of it.
    pub fn set_meter(&mut self, meter: Arc<AtomicU64>) {
        // At least one: the head has come.
        meter.fetch_add(self.received.len().max(1) as u64, Ordering::Relaxed);
        self.meter = Some(meter);
    }

    /// Returns whether the connection is this request's alone, as those of HTTP/1 are.
    pub fn is_exclusive(&self) -> bool {
        !matches!(self.io, UpstreamStream::Shared(_))
    }

    /// Returns whether the server has proved an equal identity, or need not.
    pub fn has_identity(&self, identity: Option<&Arc<ServerIdentity>>) -> bool {
        match (&self.io, identity) {
            (UpstreamStream::Plain(_) | UpstreamStream::Local(_), None) => true,
            (UpstreamStream::Sealed(sealed), Some(identity)) => sealed.proof().is(identity),
            _ => false,
        }
    }

    /// Begins a request: its head is written by `encode`, then the body with its rest, from now on and also by reads.
    pub fn begin(
        &mut self,
        (body, rest): (Bytes, Option<BodyRest>),
        encode: impl FnOnce(&mut BytesMut),
    ) {
        self.unsent.clear();
        encode(&mut self.unsent.head);
        self.unsent.body = body;
        self.unsent.rest = rest.map(|rest| {
            let length = rest.length();
            (rest, length)
        });
        self.unsent.is_unflushed = matches!(self.io, UpstreamStream::Sealed(_));
        self.write_error = None;
        self.written_us = self.clock.recent_micros();
        self.has_answered = false;
        self.head.fields.clear();
        self.body = BodyDecoder::Done;
        self.read_bytes = spare::READ_BYTES;
        if let UpstreamStream::Shared(exchange) = &mut self.io {
            let head = std::mem::take(&mut self.unsent.head);
            exchange.begin(&head, self.unsent.body.is_empty());
        }
    }

    /// Returns once the request is written whole, writing has failed, or the server may have begun to
    /// answer; reads go on with the rest.
    pub async fn write_ahead(&mut self) {
        std::future::poll_fn(|cx| match self.poll_unsent(cx) {
            Poll::Ready(()) => Poll::Ready(()),
            // An error is found by the read that follows.
            Poll::Pending => match &mut self.io {
                UpstreamStream::Plain(tcp) => tcp.poll_read_ready(cx).map(|_| ()),
                UpstreamStream::Local(socket) => socket.poll_read_ready(cx).map(|_| ()),
                UpstreamStream::Sealed(sealed) => sealed.tcp().poll_read_ready(cx).map(|_| ()),
                UpstreamStream::Shared(exchange) => exchange.poll_head(cx),
            },
        })
        .await;
    }

    /// Returns once the request is written whole, or writing has failed.
    pub async fn write_rest(&mut self) {
        std::future::poll_fn(|cx| self.poll_unsent(cx)).await;
    }

    /// Returns whether the whole request has gone out.
    pub fn is_written(&self) -> bool {
        self.unsent.is_empty() && self.write_error.is_none()
    }

    /// Microseconds since the request was written whole; before that, since writing began.
    pub fn since_written_us(&self) -> u64 {
        self.clock.recent_micros().saturating_sub(self.written_us)
    }

    /// Returns whether bytes of a response have come, interim responses included.
    pub fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Returns whether the connection is open and silent. Soon after its last answer the runtime is asked, which
    /// takes no system call; later the kernel.
    pub fn is_usable(&mut self, now: Millis) -> bool {
        let is_recent = self.usage.idle_for(now) < ASKED_AFTER;
        let mut no_task = Context::from_waker(Waker::noop());
        let is_silent = |socket: RawSocket<'_>| socket.poll_read_ready(&mut no_task).is_pending();
        (is_recent && self.socket().is_some_and(is_silent)) || self.is_open_and_silent()
    }

    /// Returns whether the socket is open and silent. Asks the kernel: a close that has not come
    /// through the runtime yet counts too.
    pub fn is_open_and_silent(&mut self) -> bool {
        for _ in 0..LOOKS_MAX {
            let Some(socket) = self.socket() else {
                return false;
            };
            let mut byte = [MaybeUninit::uninit(); 1];
            match socket.peek(&mut byte) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(1..) if matches!(self.io, UpstreamStream::Sealed(_)) => {
                    // Anything but a record without content is an end, or a response to no request.
                    if unconstrained(self.fill()).now_or_never().is_some() {
                        return false;
                    }
                }
                _ => return false,
            }
        }
        false
    }

    /// Gives memory back that a connection without a request does not need.
    pub fn rest(&mut self) {
        self.head.fields.clear();
        self.meter = None;
        spare::give_back(&mut self.received);
    }

    /// Returns whether bytes may lie decrypted behind the last read, where no look at the socket finds them.
    pub fn may_hold_more(&self) -> bool {
        self.is_read_full && matches!(self.io, UpstreamStream::Sealed(_))
    }

    /// Reads what there is, and writes what is left of the request; 0 when the server has closed. Dropping the
    /// future loses nothing.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn fill(&mut self) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_fill(cx)).await
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let _ = self.poll_unsent(cx);
        let UpstreamConnection { io, received, .. } = self;
        if received.capacity() - received.len() < self.read_bytes / 2 {
            spare::make_room(received, self.read_bytes);
        }
        let room = received.capacity() - received.len();
        let read = match io {
            UpstreamStream::Plain(tcp) => pin!(tcp.read_buf(received)).poll(cx),
            UpstreamStream::Local(socket) => pin!(socket.read_buf(received)).poll(cx),
            UpstreamStream::Sealed(sealed) => {
                let read = pin!(sealed.read_buf(received)).poll(cx);
                read.map_err(as_reset)
            }
            UpstreamStream::Shared(exchange) => exchange.poll_read(cx, received),
        };
        // Between two parts of a body: the first bytes of an answer find the buffer that is here.
        if read.is_pending() && !self.body.is_done() {
            spare::give_back(received);
        }
        let read = ready!(read)?;
        self.has_answered |= read > 0;
        if let Some(meter) = &self.meter {
            meter.fetch_add(read as u64, Ordering::Relaxed);
        }
        self.is_read_full = read == room;
        if self.is_read_full {
            self.read_bytes = (2 * self.read_bytes).min(READ_BYTES_MAX);
        }
        Poll::Ready(Ok(read))
    }

    /// The socket of a connection of HTTP/1.
    fn socket(&self) -> Option<RawSocket<'_>> {
        match &self.io {
            UpstreamStream::Plain(tcp) => Some(RawSocket::Tcp(tcp)),
            UpstreamStream::Local(socket) => Some(RawSocket::Unix(socket)),
            UpstreamStream::Sealed(sealed) => Some(RawSocket::Tcp(sealed.tcp())),
            UpstreamStream::Shared(_) => None,
        }
    }

    /// Writes what the socket takes; ready once nothing is left or writing has failed.
    fn poll_unsent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.unsent.is_empty() {
            return Poll::Ready(());
        }
        match ready!(self.poll_unsent_to_end(cx)) {
            Ok(()) => self.written_us = self.clock.recent_micros(),
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
            while unsent.sent < unsent.head.len() + unsent.body.len() {
                let slices = unsent.slices();
                let written = ready!(match io {
                    UpstreamStream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, &slices),
                    UpstreamStream::Local(socket) => {
                        Pin::new(socket).poll_write_vectored(cx, &slices)
                    }
                    UpstreamStream::Sealed(sealed) => {
                        Pin::new(&mut **sealed).poll_write_vectored(cx, &slices)
                    }
                    UpstreamStream::Shared(exchange) => {
                        let is_last = unsent.rest.is_none();
                        ready!(exchange.poll_send(cx, &mut unsent.body, is_last))?;
                        break;
                    }
                })?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                unsent.sent += written;
            }
            if !ready!(unsent.poll_rest(cx))? {
                break;
            }
        }
        if let UpstreamStream::Sealed(sealed) = io {
            ready!(Pin::new(&mut **sealed).poll_flush(cx))?;
        }
        unsent.clear();
        Poll::Ready(Ok(()))
    }

    /// Returns the connection once it has left HTTP.
    pub fn tunnel(&mut self) -> Tunnel<'_> {
        Tunnel {
            received: self.received.split(),
            stream: match &mut self.io {
                UpstreamStream::Plain(tcp) => tcp,
                UpstreamStream::Local(socket) => socket,
                UpstreamStream::Sealed(sealed) => &mut **sealed,
                UpstreamStream::Shared(exchange) => exchange.nothing(),
            },
        }
    }

    /// Closes the connection; under TLS the server is told.
    pub async fn shutdown(&mut self) {
        match &mut self.io {
            // Closed by the drop; nothing waits for what is left to be written.
            UpstreamStream::Plain(tcp) => drop(AsyncWriteExt::shutdown(tcp).await),
            UpstreamStream::Local(socket) => drop(AsyncWriteExt::shutdown(socket).await),
            UpstreamStream::Sealed(sealed) => sealed.close_notify().await,
            // Reset by the drop, where it has not ended.
            UpstreamStream::Shared(_) => {}
        }
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
