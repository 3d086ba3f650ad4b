//! A connection that blocks, to a server that has proved itself: for commands, which ask one question and wait.
//!
//! Time is bounded by the timeouts of the socket. Gateways use [`ServerIdentity::handshake`] instead.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ClientConnection, StreamOwned};

use super::server_identity::ServerIdentity;

/// A TLS connection that blocks.
pub struct BlockingTls(StreamOwned<ClientConnection, TcpStream>);

impl ServerIdentity {
    /// Makes the handshake on a connection.
    ///
    /// # Errors
    /// No proof of the identity, or the socket's timeout.
    pub fn handshake_blocking(&self, plain: TcpStream) -> io::Result<BlockingTls> {
        let (name, config) = self.parts();
        let connection = ClientConnection::new(Arc::clone(config), name.clone());
        let mut tls = StreamOwned::new(connection.map_err(io::Error::other)?, plain);
        tls.conn.complete_io(&mut tls.sock)?;
        Ok(BlockingTls(tls))
    }
}

impl Read for BlockingTls {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read(room)
    }
}

impl Write for BlockingTls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
