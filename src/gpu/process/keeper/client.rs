//! Connections to a keeper: commands in, events out, never waited for.
//!
//! Not the effect of a command. A client that does not read is let go once [`OUTPUT_BYTES_MAX`] bytes wait for it.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::gpu::process::protocol::{KeeperCommand, KeeperEvent, LineBuffer, decode, encode};

/// Bytes that wait for a client: a few events with the last lines of an output.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes that are read at a time.
const READ_BYTES: usize = 4096;

/// A client of a keeper.
#[derive(Debug)]
pub struct KeeperClient {
    stream: UnixStream,
    input: LineBuffer,
    output: Vec<u8>,
    is_closed: bool,
    /// The end of this connection is the end of a gateway.
    pub is_life_line: bool,
}

impl KeeperClient {
    /// Takes a connection, which is never waited for from now on.
    ///
    /// # Errors
    /// The descriptor is no socket.
    pub fn new(stream: UnixStream) -> io::Result<KeeperClient> {
        stream.set_nonblocking(true)?;
        Ok(KeeperClient {
            stream,
            input: LineBuffer::default(),
            output: Vec::new(),
            is_closed: false,
            is_life_line: false,
        })
    }

    /// Returns whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether events wait to be read.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the commands that have come. Lines that cannot be read are answered here.
    pub fn receive(&mut self) -> Vec<KeeperCommand> {
        let mut bytes = [0; READ_BYTES];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.input.push(&bytes[..count]),
            Err(error) if is_transient(&error) => {}
            Err(_) => self.is_closed = true,
        }
        let mut commands = Vec::new();
        loop {
            match self.input.next_line() {
                Ok(Some(line)) => match decode(&line) {
                    Ok(command) => commands.push(command),
                    Err(error) => self.send(&KeeperEvent::Rejected {
                        reason: error.to_string(),
                    }),
                },
                Ok(None) => return commands,
                Err(_) => {
                    self.is_closed = true;
                    return commands;
                }
            }
        }
    }

    /// Sends an event, now or when the client reads again.
    pub fn send(&mut self, event: &KeeperEvent) {
        match encode(event) {
            Ok(line) if self.output.len() + line.len() <= OUTPUT_BYTES_MAX => {
                self.output.extend_from_slice(&line);
                self.flush();
            }
            _ => self.is_closed = true,
        }
    }

    /// Writes what waits, as far as the client has room.
    pub fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_transient(&error) => return,
                Err(_) => {
                    self.is_closed = true;
                    return;
                }
            }
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
