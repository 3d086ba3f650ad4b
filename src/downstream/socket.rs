//! Socket of a client or of another node: plain, local to the machine, or under TLS.
//!
//! Bytes alone. Buffers and timers are the connection's.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::peer::PeerStream;
use crate::tls::ClientStream;

/// Other side of a connection.
#[derive(Debug)]
pub enum Socket {
    /// A client in plain text.
    Tcp(TcpStream),
    /// A client on this machine.
    Unix(UnixStream),
    /// A client under TLS.
    Tls(Box<ClientStream>),
    /// Another node.
    Peer(Box<PeerStream>),
}

impl Socket {
    /// The other node's side; none of a client.
    pub fn peer(&self) -> Option<&PeerStream> {
        match self {
            Socket::Peer(peer) => Some(peer),
            _ => None,
        }
    }

    /// Returns whether written bytes may wait here until they are flushed.
    pub fn keeps_back(&self) -> bool {
        matches!(self, Socket::Tls(_) | Socket::Peer(_))
    }

    /// Returns when the other side has closed or reset its connection, whatever bytes it has left behind.
    /// Bytes of a client's pipelined request are not a departure, and `has_unread` says that some were read. Nodes
    /// send nothing before they are answered.
    pub async fn closed(&self, has_unread: bool) {
        let tcp = match self {
            Socket::Tcp(tcp) => tcp,
            Socket::Tls(tls) => tls.tcp(),
            Socket::Unix(unix) => {
                let _ = unix.ready(END).await;
                return;
            }
            Socket::Peer(peer) => return peer.closed().await,
        };
        #[cfg(not(target_os = "linux"))]
        {
            let waiting = tcp.peek(&mut [0; 1]).await.unwrap_or(0);
            if waiting == 0 && !has_unread {
                return;
            }
        }
        #[cfg(target_os = "linux")]
        let _ = has_unread;
        // An error of the wait is as good as what it waits for.
        let _ = tcp.ready(END).await;
    }
}

/// Ready with the end of the other side's bytes, however many of them are unread (the kernel's EPOLLRDHUP).
#[cfg(target_os = "linux")]
const END: Interest = Interest::PRIORITY.add(Interest::ERROR);
/// Ready with an error of the connection.
#[cfg(not(target_os = "linux"))]
const END: Interest = Interest::ERROR;

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Socket::Unix(unix) => Pin::new(unix).poll_read(cx, buf),
            Socket::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
            Socket::Peer(peer) => Pin::new(peer).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, pieces),
            Socket::Unix(unix) => Pin::new(unix).poll_write_vectored(cx, pieces),
            Socket::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, pieces),
            Socket::Peer(peer) => Pin::new(peer).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(_) | Socket::Unix(_) => Poll::Ready(Ok(())),
            Socket::Tls(tls) => Pin::new(tls).poll_flush(cx),
            Socket::Peer(peer) => Pin::new(peer).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Socket::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            Socket::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            Socket::Peer(peer) => Pin::new(peer).poll_shutdown(cx),
        }
    }
}
