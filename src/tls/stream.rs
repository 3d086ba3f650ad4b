//! A TLS connection together with the identity that its other end has proved.
//!
//! Handshakes are made by [`ServerIdentity`](super::ServerIdentity) and [`MutualTls`](super::MutualTls).

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsStream;

/// Protocol that is offered in each handshake.
pub(super) const ALPN: &[u8] = b"http/1.1";
/// Protocol that is offered before it where an endpoint asks for it (RFC 9113 section 3.2).
pub(super) const ALPN_HTTP2: &[u8] = b"h2";
/// For the last record of a connection: it is a courtesy.
const CLOSE_NOTIFY_LIMIT: Duration = Duration::from_secs(1);

/// A connection whose other end has proved `P`.
pub struct TlsConnection<P> {
    tls: TlsStream<TcpStream>,
    proof: P,
}

impl<P> TlsConnection<P> {
    pub(super) fn new(tls: TlsStream<TcpStream>, proof: P) -> TlsConnection<P> {
        TlsConnection { tls, proof }
    }

    /// Identity that the other end has proved.
    pub fn proof(&self) -> &P {
        &self.proof
    }

    /// Returns whether the handshake has chosen HTTP/2.
    pub fn is_http2(&self) -> bool {
        self.tls.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2)
    }

    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        self.tls.get_ref().0
    }
}

impl<P: Unpin> TlsConnection<P> {
    /// Sends the last record. The other end may be gone already, or take no more bytes, and a permit must
    /// not wait for that.
    pub async fn close_notify(&mut self) {
        let _ = timeout(CLOSE_NOTIFY_LIMIT, AsyncWriteExt::shutdown(self)).await;
    }
}

impl<P: fmt::Debug> fmt::Debug for TlsConnection<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TlsConnection").field(&self.proof).finish()
    }
}

impl<P: Unpin> AsyncRead for TlsConnection<P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl<P: Unpin> AsyncWrite for TlsConnection<P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tls).poll_write_vectored(cx, pieces)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}
