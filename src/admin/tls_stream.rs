//! An operator's connection under TLS, in the form that the framework's HTTP server takes.
//!
//! The handshake is over. Called by the thread that accepts operators.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::tls::ClientStream;

/// A connection with what the framework asks of one.
#[derive(Debug)]
pub struct AdminTlsStream {
    tls: ClientStream,
    socket: Arc<SocketDigest>,
}

impl AdminTlsStream {
    /// Takes over a connection.
    pub fn new(tls: ClientStream) -> AdminTlsStream {
        let socket = Arc::new(SocketDigest::from_raw_fd(tls.tcp().as_raw_fd()));
        AdminTlsStream { tls, socket }
    }
}

impl AsyncRead for AdminTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_read(cx, buf)
    }
}

impl AsyncWrite for AdminTlsStream {
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

#[async_trait]
impl Shutdown for AdminTlsStream {
    async fn shutdown(&mut self) {
        self.tls.close_notify().await;
    }
}

impl UniqueID for AdminTlsStream {
    fn id(&self) -> UniqueIDType {
        self.tls.tcp().as_raw_fd()
    }
}

impl GetSocketDigest for AdminTlsStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        Some(Arc::clone(&self.socket))
    }
}

impl GetTimingDigest for AdminTlsStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        Vec::new()
    }
}

impl GetProxyDigest for AdminTlsStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        None
    }
}

impl Ssl for AdminTlsStream {}

impl Peek for AdminTlsStream {}
