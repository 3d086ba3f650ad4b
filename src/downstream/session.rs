//! A client's HTTP/1 session on its connection: the head and body of the present request, and its response.
//!
//! Not the timers around a request, nor what a request means. Framing, keep-alive and unread bodies are handled
//! here; the rules are `http1`'s.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use infergate_core::Refusal;
use tokio::time::timeout;

use super::connection::DownstreamConnection;
use crate::http1::{
    BodyDecoder, BodyStep, BrokenBody, Fields, ParsedRequest, Version, encode, framing,
    may_end_head,
};
use crate::pipeline::{RequestHead, ResponseHead};
use crate::telemetry::Clock;
use crate::tls::CertificateNames;

/// Time for reading an unread body, before or after the response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Failure to read a head or a body.
#[derive(Debug, thiserror::Error)]
pub enum RequestReadError {
    /// The client has closed, or its connection broke.
    #[error("the connection ended")]
    Closed,
    /// More bytes than a head may have.
    #[error("the head is too large")]
    TooLarge,
    /// Bytes that are no head.
    #[error("not a head")]
    Malformed,
    /// The body's chunks are broken.
    #[error(transparent)]
    Broken(#[from] BrokenBody),
}

/// State of the response to the present request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseBody {
    NotStarted,
    /// Bytes of the announced length that are still to come.
    Length(u64),
    Chunked,
    UntilClose,
    /// The response is whole, or has no body.
    Ended,
}

/// Session of one connection.
pub struct Session {
    connection: DownstreamConnection,
    clock: Clock,
    head: ParsedRequest,
    body: BodyDecoder,
    response: ResponseBody,
    keeps_alive: bool,
    /// More was read than a head may have, and no end.
    is_over_limit: bool,
}

impl Session {
    /// A session over a connection; no request has come.
    pub fn new(connection: DownstreamConnection, clock: Clock) -> Session {
        Session {
            connection,
            clock,
            head: ParsedRequest::default(),
            body: BodyDecoder::Done,
            response: ResponseBody::NotStarted,
            keeps_alive: true,
            is_over_limit: false,
        }
    }

    /// Forgets the last request.
    pub fn begin(&mut self) {
        self.head.fields.clear();
        self.body = BodyDecoder::Done;
        self.response = ResponseBody::NotStarted;
        self.keeps_alive = true;
    }

    /// The connection below.
    pub fn connection_mut(&mut self) -> &mut DownstreamConnection {
        &mut self.connection
    }

    /// The name of the other node; none of a client.
    pub fn peer(&self) -> Option<&CertificateNames> {
        self.connection.peer_name()
    }

    /// Returns whether another node has sent this, as its certificate says.
    pub fn is_from_node(&self) -> bool {
        self.peer().is_some()
    }

    /// The connection below, to be looked at.
    pub fn connection(&self) -> &DownstreamConnection {
        &self.connection
    }

    /// Takes a head of at most `max` bytes from what was received; false before its end has come.
    ///
    /// # Errors
    /// [`RequestReadError::TooLarge`], [`RequestReadError::Malformed`].
    pub fn take_head(&mut self, max: usize) -> Result<bool, RequestReadError> {
        let received = self.connection.received();
        let is_whole = self
            .head
            .parse(received)
            .map_err(|_| RequestReadError::Malformed)?;
        let length = match is_whole {
            true => self.head.text().len(),
            false => received.len(),
        };
        if length > max {
            self.is_over_limit = !is_whole;
            return Err(RequestReadError::TooLarge);
        }
        if is_whole {
            self.keeps_alive = framing::keeps_alive(&self.head.fields, self.head.version);
        }
        Ok(is_whole)
    }

    /// Reads on until a head of at most `max` bytes is there.
    ///
    /// # Errors
    /// [`RequestReadError`], also when the client closes.
    pub async fn read_head(&mut self, max: usize) -> Result<(), RequestReadError> {
        loop {
            let before = self.connection.received().len();
            if self
                .connection
                .fill()
                .await
                .map_err(|_| RequestReadError::Closed)?
                == 0
            {
                return Err(RequestReadError::Closed);
            }
            let received = self.connection.received();
            // Parsed anew only where an end may have come: a head that drips costs no more.
            let is_worth_it = received.len() > max || may_end_head(received, before);
            if is_worth_it && self.take_head(max)? {
                return Ok(());
            }
        }
    }

    /// Applies the framing rules to the head.
    ///
    /// # Errors
    /// [`Refusal::BadFraming`] with what is wrong.
    pub fn check_framing(&mut self) -> Result<(), Refusal> {
        self.body = framing::of_request(&self.head).map_err(Refusal::BadFraming)?;
        Ok(())
    }

    /// Returns whether more than a head's bytes came without its end.
    pub fn is_over_limit(&self) -> bool {
        self.is_over_limit
    }

    /// The fields of the request.
    pub fn fields(&self) -> &Fields {
        &self.head.fields
    }

    /// The request's head as the pipeline reads it.
    pub fn request_head(&self) -> RequestHead<'_> {
        RequestHead {
            method: self.head.method(),
            target: framing::path_of(self.head.target()),
            headers: &self.head.fields,
        }
    }

    /// Older clients know no chunks and no interim responses.
    pub fn is_http11(&self) -> bool {
        self.head.version == Version::Http11
    }

    /// Closes the connection after this response.
    pub fn close_after(&mut self) {
        self.keeps_alive = false;
    }

    /// Returns whether the connection may carry another request.
    pub fn is_reusable(&self) -> bool {
        self.keeps_alive
            && self.body.is_done()
            && self.response == ResponseBody::Ended
            && self.connection.is_flushed()
    }

    /// Returns whether the request's body was read to its end.
    pub fn is_body_done(&self) -> bool {
        self.body.is_done()
    }

    /// The length that the head announces, or what is left of it.
    pub fn body_length(&self) -> Option<u64> {
        match self.body {
            BodyDecoder::Length(left) => Some(left),
            BodyDecoder::Done => Some(0),
            _ => None,
        }
    }

    /// Bytes of the body that the client has announced and not sent: of all of it, or of one chunk.
    pub fn announced_bytes(&self) -> u64 {
        self.body.announced()
    }

    /// Takes what has come of the body.
    ///
    /// # Errors
    /// [`RequestReadError::Broken`].
    pub fn take_body(&mut self) -> Result<BodyStep, RequestReadError> {
        Ok(self.body.decode(self.connection.received())?)
    }

    /// Reads more of the body: up to `max` bytes behind `into` where it has room and the length is known, else to be
    /// taken. Returns the bytes that are in `into`.
    ///
    /// # Errors
    /// [`RequestReadError::Closed`].
    pub async fn read_more(
        &mut self,
        into: &mut BytesMut,
        max: u64,
    ) -> Result<usize, RequestReadError> {
        let left = match self.body {
            BodyDecoder::Length(left) => usize::try_from(left.min(max)).unwrap_or(usize::MAX),
            _ => 0,
        };
        let is_direct = left > 0 && into.capacity() > into.len();
        let read = match is_direct {
            true => self.connection.fill_into(into, left).await,
            false => self.connection.fill().await,
        };
        match read.map_err(|_| RequestReadError::Closed)? {
            0 => Err(RequestReadError::Closed),
            read if is_direct => {
                self.body.record_taken(read as u64);
                Ok(read)
            }
            _ => Ok(0),
        }
    }

    /// Asks a client that waits with the body to send it.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send_continue(&mut self) -> io::Result<()> {
        if !framing::expects_continue(&self.head) || self.body.is_done() {
            return Ok(());
        }
        encode::status_line(StatusCode::CONTINUE, self.connection.queue());
        self.connection.queue().extend_from_slice(b"\r\n");
        self.connection.flush().await
    }

    /// Discards what has come of an unread body. Returns the bytes; none where the body is over, or broken.
    pub fn discard_received(&mut self) -> Option<u64> {
        let mut read = 0;
        loop {
            match self.take_body() {
                Ok(BodyStep::Data(data)) => read += data.len() as u64,
                Ok(BodyStep::Partial) => return Some(read),
                Ok(BodyStep::End) | Err(_) => return None,
            }
        }
    }

    /// Reads up to `max_bytes` of an unread body, for a moment.
    pub async fn drain(&mut self, max_bytes: u64) {
        let reading = async {
            let mut read = 0;
            while let Some(more) = self.discard_received() {
                read += more;
                if read > max_bytes || self.read_more(&mut BytesMut::new(), 0).await.is_err() {
                    return;
                }
            }
        };
        // Past the limit the connection is closed with bytes unread, which is the client's doing.
        let _ = timeout(DRAIN_TIMEOUT, reading).await;
    }

    /// Queues the head of an interim response.
    pub fn queue_interim(&mut self, head: &ResponseHead) {
        let out = self.connection.queue();
        encode::status_line(head.status, out);
        out.extend_from_slice(head.lines());
        out.extend_from_slice(b"\r\n");
    }

    /// Queues the head of the response, with the fields of the connection.
    pub fn queue_head(&mut self, head: &ResponseHead) {
        let has_no_body = matches!(head.status.as_u16(), 204 | 304);
        self.response = match head.length() {
            _ if has_no_body => ResponseBody::Ended,
            Some(0) => ResponseBody::Ended,
            Some(length) => ResponseBody::Length(length),
            None if self.is_http11() => ResponseBody::Chunked,
            None => ResponseBody::UntilClose,
        };
        // Before the request's end nobody can tell where the next one begins; an older client reads up to the
        // close where no length is told.
        self.keeps_alive &= self.body.is_done() && self.response != ResponseBody::UntilClose;
        let out = self.connection.queue();
        encode::status_line(head.status, out);
        out.extend_from_slice(head.lines());
        match self.response {
            ResponseBody::Chunked => encode::field("transfer-encoding", b"chunked", out),
            _ => {
                if let Some(length) = head.length().filter(|_| !has_no_body) {
                    out.extend_from_slice(b"content-length: ");
                    encode::number(length, out);
                    out.extend_from_slice(b"\r\n");
                }
            }
        }
        encode::date(self.clock.unix_secs(), out);
        out.extend_from_slice(match self.keeps_alive {
            true => b"connection: keep-alive\r\n\r\n",
            false => b"connection: close\r\n\r\n",
        });
        if self.head.method() == "HEAD" {
            self.response = ResponseBody::Ended;
        }
    }

    /// Sends a part of the response's body, or the last one, with what was queued.
    ///
    /// # Errors
    /// The connection broke, or the client takes nothing.
    pub async fn send_body(&mut self, mut chunk: Bytes, is_last: bool) -> io::Result<()> {
        let mut end: &'static [u8] = b"";
        match &mut self.response {
            ResponseBody::NotStarted | ResponseBody::Ended => chunk = Bytes::new(),
            ResponseBody::UntilClose => {}
            ResponseBody::Length(left) => {
                // More than was announced would be read as another response.
                chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= chunk.len() as u64;
                self.keeps_alive &= !is_last || *left == 0;
            }
            ResponseBody::Chunked => {
                end = match (chunk.is_empty(), is_last) {
                    (true, false) => b"",
                    (true, true) => encode::LAST_CHUNK,
                    (false, false) => encode::CHUNK_END,
                    (false, true) => encode::CHUNK_END_AND_LAST,
                };
                if !chunk.is_empty() {
                    if self.connection.has_body() {
                        self.connection.flush().await?;
                    }
                    encode::chunk_size(chunk.len(), self.connection.queue());
                }
            }
        }
        self.connection.send(chunk, end).await?;
        if is_last {
            self.response = ResponseBody::Ended;
        }
        Ok(())
    }
}
