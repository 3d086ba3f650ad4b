//! A client of one connection: sends a request, reads its response to the end.
//!
//! Not a general HTTP client: the gateway's own framing is all that it reads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A connection, and the bytes read from it that belong to nothing yet.
pub struct Connection {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// The end of the last chunk.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// The end of an event.
const EVENT_END: &[u8] = b"\n\n";

impl Connection {
    pub fn open(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the gateway listens");
        stream.set_nodelay(true).expect("an option of a socket");
        Connection {
            stream,
            unread: Vec::new(),
        }
    }

    pub fn send(&mut self, request: &[u8]) {
        self.stream.write_all(request).expect("the gateway reads");
    }

    /// Reads the head of a response and returns it in lower case.
    pub fn read_head(&mut self) -> String {
        let end = self.read_past(b"\r\n\r\n");
        let head: Vec<u8> = self.unread.drain(..end).collect();
        String::from_utf8_lossy(&head).to_lowercase()
    }

    /// Reads the body that the head announces.
    pub fn read_body(&mut self, head: &str) {
        if head.contains("transfer-encoding: chunked") {
            self.read_last_chunk();
            return;
        }
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .expect("a response has a length");
        let length: usize = length.parse().expect("a length is a number");
        while self.unread.len() < length {
            self.read_more();
        }
        self.unread.drain(..length);
    }

    /// Reads one event of a stream.
    pub fn read_event(&mut self) {
        let end = self.read_past(EVENT_END);
        self.unread.drain(..end);
    }

    /// Reads a chunked body to its end.
    pub fn read_last_chunk(&mut self) {
        let end = self.read_past(LAST_CHUNK);
        self.unread.drain(..end);
    }

    /// Reads until `mark` is there; returns where the bytes after it begin.
    fn read_past(&mut self, mark: &[u8]) -> usize {
        loop {
            let at = self
                .unread
                .windows(mark.len())
                .position(|part| part == mark);
            if let Some(at) = at {
                return at + mark.len();
            }
            self.read_more();
        }
    }

    fn read_more(&mut self) {
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer).expect("the gateway answers");
        assert!(count > 0, "the gateway closed the connection");
        self.unread.extend_from_slice(&buffer[..count]);
    }
}
