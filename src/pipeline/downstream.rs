//! Receiver of a response: an HTTP/1 client, a forwarding node, a durable job, a test.
//!
//! Not a connection: the pipeline names no protocol and no socket. Each write is back-pressure; the pipeline
//! bounds it by the deadline, the receiver by its own idle timeout.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::{Bytes, BytesMut};
use http::StatusCode;

use crate::http1::{Fields, encode};
use crate::peer::ForwardStatus;
use crate::upstream::Tunnel;

/// Room for the fields of a usual response.
const LINES_BYTES: usize = 256;

/// The receiver has left, or takes nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownstreamClosed;

/// Head of the request, as the receiver keeps it until the response ends.
#[derive(Clone, Copy)]
pub struct RequestHead<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// Header fields.
    pub headers: &'a Fields,
}

/// Head of a response. Fields of the connection (framing, keep-alive, date) are the receiver's to add.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: StatusCode,
    /// Fields in wire form, each ending in CRLF.
    lines: BytesMut,
    length: Option<u64>,
}

impl ResponseHead {
    /// Creates a head without fields.
    pub fn new(status: u16) -> ResponseHead {
        ResponseHead {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            lines: BytesMut::with_capacity(LINES_BYTES),
            length: None,
        }
    }

    /// Adds a field of a received head, whose parser has let no control characters pass.
    pub fn pass(&mut self, name: &[u8], value: &[u8]) {
        encode::field(name, value, &mut self.lines);
    }

    /// Adds a field; leaves it out where the value has control characters, which would begin another one.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: &[u8]) {
        // Without an early end, which the compiler turns into vectors: values that are left out are rare.
        let is_clean = |byte: u8| ((byte >= b' ') & (byte != 0x7f)) | (byte == b'\t');
        if value.iter().fold(true, |all, byte| all & is_clean(*byte)) {
            encode::field(name, value, &mut self.lines);
        }
    }

    /// Adds fields as [`append`](Self::append) does.
    pub fn extend<'n, 'v>(&mut self, lines: impl Iterator<Item = (&'n str, &'v [u8])>) {
        for (name, value) in lines {
            self.append(name, value);
        }
    }

    /// Returns the first value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut lines = self.lines.split_inclusive(|byte| *byte == b'\n');
        lines.find_map(|line| value_of(line, name))
    }

    /// Sets the length of the body, bytes.
    pub fn set_length(&mut self, length: u64) {
        self.length = Some(length);
    }

    /// Returns the length of the body, where it is known.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns the fields in wire form, without the length.
    pub fn lines(&self) -> &[u8] {
        &self.lines
    }
}

fn value_of<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    match found.eq_ignore_ascii_case(name.as_bytes()) {
        true => Some(value.strip_prefix(b": ")?.trim_ascii_end()),
        false => None,
    }
}

/// Receiver of one response.
pub trait Downstream: Send {
    /// Returns the head of the request.
    fn request_head(&self) -> RequestHead<'_>;

    /// Returns whether the response may start before its length is known, and go on for long.
    fn can_stream(&self) -> bool;

    /// Completes when the receiver has left; never for a job. Safe to drop and call again.
    fn closed(&mut self) -> impl Future<Output = ()> + Send;

    /// Starts the response.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left.
    fn start(
        &mut self,
        head: ResponseHead,
    ) -> impl Future<Output = Result<(), DownstreamClosed>> + Send;

    /// Sends a part of the body.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left.
    fn write(&mut self, chunk: Bytes) -> impl Future<Output = Result<(), DownstreamClosed>> + Send;

    /// Sends the last part of the body, which may be empty, and ends the response.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left.
    fn finish(&mut self, chunk: Bytes)
    -> impl Future<Output = Result<(), DownstreamClosed>> + Send;

    /// Sends a part of the body, or the last one.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left.
    fn send(
        &mut self,
        chunk: Bytes,
        is_last: bool,
    ) -> impl Future<Output = Result<(), DownstreamClosed>> + Send {
        async move {
            match is_last {
                true => self.finish(chunk).await,
                false => self.write(chunk).await,
            }
        }
    }

    /// Sends a whole response that is not a model's. The request's body may not have been read.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left.
    fn respond(
        &mut self,
        head: ResponseHead,
        body: Bytes,
    ) -> impl Future<Output = Result<(), DownstreamClosed>> + Send {
        async move {
            self.start(head).await?;
            self.finish(body).await
        }
    }

    /// Sends the head of a 101 and leaves HTTP; only a client's connection over HTTP/1.1 can.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left, or is none.
    fn switch(
        &mut self,
        head: ResponseHead,
    ) -> impl Future<Output = Result<Tunnel<'_>, DownstreamClosed>> + Send {
        let _ = head;
        std::future::ready(Err(DownstreamClosed))
    }

    /// Reports the state of a forwarded request to the node that forwards it; ignored by others.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the node has left.
    fn report(
        &mut self,
        status: ForwardStatus,
    ) -> impl Future<Output = Result<(), DownstreamClosed>> + Send {
        let _ = status;
        std::future::ready(Ok(()))
    }

    /// Returns the next piece of a request's body that is still coming; none behind the last.
    ///
    /// # Errors
    /// [`DownstreamClosed`]: the receiver has left, or its body is broken.
    fn read_piece(
        &mut self,
    ) -> impl Future<Output = Result<Option<Bytes>, DownstreamClosed>> + Send {
        std::future::ready(Ok(None))
    }

    /// Returns the count of bytes that the receiver has taken, where it is known while a write waits.
    fn bytes_taken(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_never_begins_another() {
        let mut head = ResponseHead::new(200);
        head.append("vary", b"a");
        head.append("x-a", b"1");
        head.append("Vary", b"b");
        head.append("x-b", b"1\r\nx-c: 2");
        assert_eq!(head.get("vary"), Some(&b"a"[..]));
        assert_eq!(head.lines(), b"vary: a\r\nx-a: 1\r\nVary: b\r\n");
        assert_eq!((head.get("x"), head.get("x-b")), (None, None));
    }
}
