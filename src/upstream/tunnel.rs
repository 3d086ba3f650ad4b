//! Connection that has left HTTP: bytes in both directions, whatever carries them.
//!
//! No protocol is spoken here. Model servers and clients have one each.

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

/// Stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connection that has left HTTP.
pub struct Tunnel<'a> {
    /// Bytes that came behind the head.
    pub received: BytesMut,
    /// The rest of them, and the way back.
    pub stream: &'a mut dyn Duplex,
}
