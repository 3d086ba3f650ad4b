//! A client's session: the head and body of the present request, and its response.
//!
//! On a connection of HTTP/1, which carries one request after the other, or on one stream of HTTP/2. Not the timers
//! around a request, nor what a request means. Framing, keep-alive and unread bodies of HTTP/1 are handled here; the
//! rules are `http1`'s.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use infergate_core::Refusal;
use infergate_core::client_address::ClientAddress;
use tokio::time::timeout;

use super::connection::DownstreamConnection;
use super::connections::ClientRequestGuard;
use super::http2_stream::Http2Stream;
use crate::http1::{
    BodyDecoder, BodyStep, BrokenBody, Fields, ParsedRequest, Version, encode, framing,
    may_end_head,
};
use crate::peer::PeerStream;
use crate::pipeline::{RequestHead, ResponseHead};
use crate::telemetry::Clock;
use crate::tls::CertificateNames;
use crate::upstream::Tunnel;

/// Time for reading an unread body, before or after the response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Scheme of the client, as a proxy tells it.
const FORWARDED_PROTO: &str = "x-forwarded-proto";

/// Header fields of one request of a client.
const CLIENT_FIELDS_MAX: usize = 100;

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

/// Carrier of the request and its response.
enum Transport {
    Http1(DownstreamConnection),
    Http2(Box<Http2Stream>),
}

/// Facts about a client's connection that are known before its first request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// Address of the other side, or of the client that a balancer tells.
    pub client: ClientAddress,
    /// `GET /healthz` is answered.
    pub serves_health: bool,
    /// The client has come under TLS.
    pub is_secure: bool,
}

/// Session of one connection, or of one stream.
pub struct Session {
    transport: Transport,
    clock: Clock,
    head: ParsedRequest,
    body: BodyDecoder,
    response: ResponseBody,
    keeps_alive: bool,
    /// More was read than a head may have, and no end.
    is_over_limit: bool,
    arrival: Arrival,
    /// Client of the present request, and its place among those of its address, where a trusted proxy tells it.
    forwarded: Option<(ClientAddress, ClientRequestGuard)>,
}

impl Session {
    /// A session over a connection; no request has come.
    pub fn new(connection: DownstreamConnection, arrival: Arrival, clock: Clock) -> Session {
        Session::over(Transport::Http1(connection), arrival, clock)
    }

    /// A session of a stream, whose request has come.
    pub fn of_stream(
        stream: Http2Stream,
        head: ParsedRequest,
        arrival: Arrival,
        clock: Clock,
    ) -> Session {
        let session = Session::over(Transport::Http2(Box::new(stream)), arrival, clock);
        Session { head, ..session }
    }

    fn over(transport: Transport, arrival: Arrival, clock: Clock) -> Session {
        Session {
            transport,
            clock,
            head: ParsedRequest::default(),
            body: BodyDecoder::Done,
            response: ResponseBody::NotStarted,
            keeps_alive: true,
            is_over_limit: false,
            arrival,
            forwarded: None,
        }
    }

    /// Forgets the last request.
    pub fn begin(&mut self) {
        self.head.fields.clear();
        self.body = BodyDecoder::Done;
        self.response = ResponseBody::NotStarted;
        self.keeps_alive = true;
        self.forwarded = None;
    }

    /// The other node's side; none of a client.
    pub fn peer_stream(&self) -> Option<&PeerStream> {
        match &self.transport {
            Transport::Http1(connection) => connection.peer_stream(),
            Transport::Http2(_) => None,
        }
    }

    /// The name of the other node; none of a client.
    pub fn peer(&self) -> Option<&CertificateNames> {
        self.peer_stream().map(|stream| &stream.proof().names)
    }

    /// Returns whether another node has sent this, as its certificate says.
    pub fn is_from_node(&self) -> bool {
        self.peer_stream().is_some()
    }

    /// Returns whether this is a stream of HTTP/2.
    pub fn is_stream(&self) -> bool {
        matches!(self.transport, Transport::Http2(_))
    }

    /// Returns whether `GET /healthz` is answered here.
    pub fn serves_health(&self) -> bool {
        self.arrival.serves_health
    }

    /// Returns whether the client speaks `https`: to this listener, or by the word of a trusted proxy.
    pub fn is_secure(&self) -> bool {
        let is_https = |scheme: &str| scheme.eq_ignore_ascii_case("https");
        let word_of_proxy = || self.request_head().headers.text_of(FORWARDED_PROTO);
        self.arrival.is_secure
            || (self.forwarded.is_some() && word_of_proxy().is_some_and(is_https))
    }

    /// Address of the other side of the connection.
    pub fn other_side(&self) -> ClientAddress {
        self.arrival.client
    }

    /// Address of the present request's client.
    pub fn client(&self) -> ClientAddress {
        let forwarded = self.forwarded.as_ref();
        forwarded.map_or(self.arrival.client, |(client, _)| *client)
    }

    /// Sets the client of the present request, as a trusted proxy tells it.
    pub fn set_client(&mut self, client: ClientAddress, guard: ClientRequestGuard) {
        self.forwarded = Some((client, guard));
    }

    /// Returns whether bytes have come that were not read.
    pub fn has_received(&self) -> bool {
        match &self.transport {
            Transport::Http1(connection) => connection.has_received(),
            Transport::Http2(_) => true,
        }
    }

    /// Waits until at least one byte of the next request is here; false when the client closed.
    pub async fn first_byte(&mut self) -> bool {
        match &mut self.transport {
            Transport::Http1(connection) => connection.first_byte().await,
            Transport::Http2(_) => false,
        }
    }

    /// Returns when the client has left.
    pub async fn closed(&mut self) {
        match &mut self.transport {
            Transport::Http1(connection) => connection.closed().await,
            Transport::Http2(stream) => stream.closed().await,
        }
    }

    /// Bytes that the client has taken, counted on while a write waits.
    pub fn bytes_sent(&self) -> &Arc<AtomicU64> {
        match &self.transport {
            Transport::Http1(connection) => connection.bytes_sent(),
            Transport::Http2(stream) => stream.bytes_sent(),
        }
    }

    /// Ends the session: no request follows, and a response that is not whole is none.
    pub async fn end(&mut self) {
        match &mut self.transport {
            Transport::Http1(connection) => {
                connection.shutdown().await;
                if self.is_over_limit {
                    Box::pin(connection.linger()).await;
                }
            }
            Transport::Http2(stream) => stream.end(),
        }
    }

    /// Ends a session at rest: no request has begun.
    pub async fn end_idle(&mut self) {
        if let Transport::Http1(connection) = &mut self.transport {
            connection.close_idle().await;
        }
    }

    /// Takes a head of at most `max` bytes from what was received; false before its end has come.
    ///
    /// # Errors
    /// [`RequestReadError::TooLarge`], [`RequestReadError::Malformed`].
    pub fn take_head(&mut self, max: usize) -> Result<bool, RequestReadError> {
        let Transport::Http1(connection) = &mut self.transport else {
            return self.check_head(max);
        };
        let received = connection.received();
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

    /// Checks the head that came with a stream.
    fn check_head(&mut self, max: usize) -> Result<bool, RequestReadError> {
        match self.head.text().len() {
            0 => Err(RequestReadError::Malformed),
            length if length > max => Err(RequestReadError::TooLarge),
            _ => Ok(true),
        }
    }

    /// Reads on until a head of at most `max` bytes is there.
    ///
    /// # Errors
    /// [`RequestReadError`], also when the client closes.
    pub async fn read_head(&mut self, max: usize) -> Result<(), RequestReadError> {
        loop {
            let Transport::Http1(connection) = &mut self.transport else {
                return Err(RequestReadError::Malformed);
            };
            let before = connection.received().len();
            let read = connection.fill().await;
            if read.map_err(|_| RequestReadError::Closed)? == 0 {
                return Err(RequestReadError::Closed);
            }
            let received = connection.received();
            // Parsed anew only where an end may have come: a head that drips costs no more.
            let is_worth_it = received.len() > max || may_end_head(received, before);
            if is_worth_it && self.take_head(max)? {
                return Ok(());
            }
        }
    }

    /// Applies the framing rules to the head, and the bound on the fields of a client.
    ///
    /// # Errors
    /// [`Refusal::BadFraming`] with what is wrong; [`Refusal::HeadersTooLarge`].
    pub fn check_framing(&mut self) -> Result<(), Refusal> {
        // Another node adds its own to those of its client.
        if self.head.fields.count() > CLIENT_FIELDS_MAX && !self.is_from_node() {
            return Err(Refusal::HeadersTooLarge);
        }
        self.body = framing::of_request(&self.head).map_err(Refusal::BadFraming)?;
        Ok(())
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

    /// Returns whether a client speaks that can leave HTTP: a node cannot, nor a stream or an older client.
    pub fn can_switch(&self) -> bool {
        self.is_http11() && !self.is_stream() && !self.is_from_node()
    }

    /// Sends the head of a 101 and leaves HTTP: nothing but the end of the session is asked of it from then on.
    ///
    /// # Errors
    /// The connection broke, or is a stream of HTTP/2.
    pub async fn switch_protocol(&mut self, head: &ResponseHead) -> io::Result<Tunnel<'_>> {
        self.keeps_alive = false;
        self.response = ResponseBody::UntilClose;
        let Transport::Http1(connection) = &mut self.transport else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let out = connection.queue();
        encode::status_line(head.status, out);
        out.extend_from_slice(head.lines());
        out.extend_from_slice(b"\r\n");
        connection.flush().await?;
        Ok(connection.tunnel())
    }

    /// Returns whether the connection may carry another request.
    pub fn is_reusable(&self) -> bool {
        self.keeps_alive
            && self.body.is_done()
            && self.response == ResponseBody::Ended
            && matches!(&self.transport, Transport::Http1(connection) if connection.is_flushed())
    }

    /// Returns whether the request's body was read to its end.
    pub fn is_body_done(&self) -> bool {
        match &self.transport {
            Transport::Http1(_) => self.body.is_done(),
            Transport::Http2(stream) => stream.is_body_done(),
        }
    }

    /// The length that the head announces, or what is left of it.
    pub fn body_length(&self) -> Option<u64> {
        if let Transport::Http2(stream) = &self.transport {
            return stream.body_length();
        }
        match self.body {
            BodyDecoder::Length(left) => Some(left),
            BodyDecoder::Done => Some(0),
            _ => None,
        }
    }

    /// Bytes of the body that the client has announced and not sent: of all of it, or of one chunk.
    pub fn announced_bytes(&self) -> u64 {
        match &self.transport {
            Transport::Http1(_) => self.body.announced(),
            Transport::Http2(stream) => stream.body_length().unwrap_or(0),
        }
    }

    /// Takes what has come of the body.
    ///
    /// # Errors
    /// [`RequestReadError::Broken`].
    pub fn take_body(&mut self) -> Result<BodyStep, RequestReadError> {
        match &mut self.transport {
            Transport::Http1(connection) => Ok(self.body.decode(connection.received())?),
            Transport::Http2(stream) => stream.take_body(),
        }
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
        let connection = match &mut self.transport {
            Transport::Http1(connection) => connection,
            Transport::Http2(stream) => return stream.read_more().await.map(|()| 0),
        };
        let left = match self.body {
            BodyDecoder::Length(left) => usize::try_from(left.min(max)).unwrap_or(usize::MAX),
            _ => 0,
        };
        let is_direct = left > 0 && into.capacity() > into.len();
        let read = match is_direct {
            true => connection.fill_into(into, left).await,
            false => connection.fill().await,
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
        if !framing::expects_continue(&self.head) || self.is_body_done() {
            return Ok(());
        }
        let connection = match &mut self.transport {
            Transport::Http1(connection) => connection,
            Transport::Http2(stream) => return stream.send_continue(),
        };
        encode::status_line(StatusCode::CONTINUE, connection.queue());
        connection.queue().extend_from_slice(b"\r\n");
        connection.flush().await
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
        self.drain_for(DRAIN_TIMEOUT, max_bytes).await;
    }

    /// Reads up to `max_bytes` of an unread body within `limit`.
    pub async fn drain_for(&mut self, limit: Duration, max_bytes: u64) {
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
        let _ = timeout(limit, reading).await;
    }

    /// Sends the head of an interim response to another node.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn send_interim(&mut self, head: &ResponseHead) -> io::Result<()> {
        // Nodes speak HTTP/1 with each other.
        let Transport::Http1(connection) = &mut self.transport else {
            return Ok(());
        };
        let out = connection.queue();
        encode::status_line(head.status, out);
        out.extend_from_slice(head.lines());
        out.extend_from_slice(b"\r\n");
        connection.flush().await
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
        let is_head = self.head.method() == "HEAD";
        let connection = match &mut self.transport {
            Transport::Http1(connection) => connection,
            Transport::Http2(stream) => {
                let is_bodiless = is_head || self.response == ResponseBody::Ended;
                return stream.start(head, is_bodiless, self.clock.unix_secs());
            }
        };
        // Before the request's end nobody can tell where the next one begins; an older client reads up to the
        // close where no length is told.
        self.keeps_alive &= self.body.is_done() && self.response != ResponseBody::UntilClose;
        let out = connection.queue();
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
        if is_head {
            self.response = ResponseBody::Ended;
        }
    }

    /// Sends a part of the response's body, or the last one, with what was queued.
    ///
    /// # Errors
    /// The connection broke, or the client takes nothing.
    pub async fn send_body(&mut self, mut chunk: Bytes, is_last: bool) -> io::Result<()> {
        let connection = match &mut self.transport {
            Transport::Http1(connection) => connection,
            Transport::Http2(stream) => return stream.send(chunk, is_last).await,
        };
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
                    if connection.has_body() {
                        connection.flush().await?;
                    }
                    encode::chunk_size(chunk.len(), connection.queue());
                }
            }
        }
        connection.send(chunk, end).await?;
        if is_last {
            self.response = ResponseBody::Ended;
        }
        Ok(())
    }
}
