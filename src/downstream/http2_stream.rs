//! Request and response on a stream of HTTP/2 (RFC 9113).
//!
//! Framing, windows and limits of the connection are h2's. The head takes the form of HTTP/1, so that one set of
//! rules judges both. Writes wait for the client's window, and a client that opens none for the idle
//! time is gone.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, request};
use tokio::time::{Sleep, sleep};

use super::session::RequestReadError;
use crate::http1::{BodyStep, MalformedHead, ParsedRequest, encode, framing};
use crate::pipeline::ResponseHead;

/// A stream whose head has come.
pub struct Http2Stream {
    request_body: RecvStream,
    /// Bytes of the body that have come and were not taken.
    received: Bytes,
    /// No more of the body comes.
    has_ended: bool,
    /// Bytes of the announced length that were not taken.
    length: Option<u64>,
    respond: SendResponse<Bytes>,
    /// Body of the response; none before its head.
    response_body: Option<SendStream<Bytes>>,
    /// Reason why the head could not be sent, for the next write.
    head_fault: Option<h2::Error>,
    /// A part of the response that no window had room for.
    unsent: Bytes,
    /// The response is whole.
    is_answered: bool,
    stall_max: Duration,
    /// Runs while no window has room.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Bytes that the client's windows have taken.
    bytes_sent: Arc<AtomicU64>,
}

impl Http2Stream {
    /// Takes over a request that was received, and writes its head in the form of HTTP/1: one that has none stays empty.
    pub fn new(
        request: http::Request<RecvStream>,
        respond: SendResponse<Bytes>,
        stall_max: Duration,
        head: &mut ParsedRequest,
    ) -> Http2Stream {
        let (parts, request_body) = request.into_parts();
        if write_head(&parts, head).is_err() {
            *head = ParsedRequest::default();
        }
        let length = parts.headers.get(CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        Http2Stream {
            has_ended: request_body.is_end_stream(),
            request_body,
            received: Bytes::new(),
            length,
            respond,
            response_body: None,
            head_fault: None,
            unsent: Bytes::new(),
            is_answered: false,
            stall_max,
            stall_timer: None,
            bytes_sent: Arc::default(),
        }
    }

    /// Returns whether the request's body was taken to its end.
    pub fn is_body_done(&self) -> bool {
        self.has_ended && self.received.is_empty()
    }

    /// The length of the body, or what is left of it; none where it is not announced.
    pub fn body_length(&self) -> Option<u64> {
        match self.is_body_done() {
            true => Some(0),
            false => self.length,
        }
    }

    /// Takes what has come of the body, and lets the client send as much again.
    ///
    /// # Errors
    /// [`RequestReadError::Closed`].
    pub fn take_body(&mut self) -> Result<BodyStep, RequestReadError> {
        if self.received.is_empty() && !self.has_ended {
            // What came together with the head is not waited for.
            let next = std::future::poll_fn(|cx| self.poll_body(cx)).now_or_never();
            next.unwrap_or(Ok(()))?;
        }
        if self.received.is_empty() {
            return Ok(match self.has_ended {
                true => BodyStep::End,
                false => BodyStep::Partial,
            });
        }
        let piece = std::mem::take(&mut self.received);
        if let Some(left) = &mut self.length {
            *left = left.saturating_sub(piece.len() as u64);
        }
        // Fails for a stream that has ended, which needs no more room.
        let _ = self
            .request_body
            .flow_control()
            .release_capacity(piece.len());
        self.has_ended |= self.request_body.is_end_stream();
        Ok(BodyStep::Data(piece))
    }

    /// Waits for more of the body, to be taken.
    ///
    /// # Errors
    /// [`RequestReadError::Closed`].
    pub async fn read_more(&mut self) -> Result<(), RequestReadError> {
        std::future::poll_fn(|cx| self.poll_body(cx)).await
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RequestReadError>> {
        // Frames without bytes are passed over: h2 bounds how many there may be.
        while self.received.is_empty() && !self.has_ended {
            match ready!(self.request_body.poll_data(cx)) {
                Some(Ok(data)) => self.received = data,
                Some(Err(_)) => return Poll::Ready(Err(RequestReadError::Closed)),
                None => self.has_ended = true,
            }
            self.has_ended |= self.request_body.is_end_stream();
        }
        Poll::Ready(Ok(()))
    }

    /// Asks a client that waits with the body to send it.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn send_continue(&mut self) -> io::Result<()> {
        let mut asked = Response::new(());
        *asked.status_mut() = StatusCode::CONTINUE;
        let sent = self.respond.send_informational(asked);
        sent.map_err(io::Error::other)
    }

    /// Begins the response. `is_bodiless` says that no body follows. The next write tells what is wrong with the head, or
    /// that the stream was reset meanwhile.
    pub fn start(&mut self, head: &ResponseHead, is_bodiless: bool, unix_secs: u64) {
        let mut response = Response::new(());
        *response.status_mut() = head.status;
        *response.headers_mut() = fields_of(head, unix_secs);
        match self.respond.send_response(response, is_bodiless) {
            Ok(body) => {
                self.is_answered = is_bodiless;
                self.response_body = Some(body);
            }
            Err(error) => self.head_fault = Some(error),
        }
    }

    /// Body of the response, once its head was sent.
    ///
    /// # Errors
    /// The head was not sent.
    fn body(&mut self) -> io::Result<&mut SendStream<Bytes>> {
        if let Some(error) = self.head_fault.take() {
            return Err(io::Error::other(error));
        }
        let body = self.response_body.as_mut();
        body.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Sends a part of the response's body, or the last one. Once the future is dropped, the next call sends what is
    /// left first.
    ///
    /// # Errors
    /// The stream was reset, or the client takes nothing.
    pub async fn send(&mut self, chunk: Bytes, is_last: bool) -> io::Result<()> {
        if self.is_answered {
            return Ok(());
        }
        if !self.unsent.is_empty() {
            std::future::poll_fn(|cx| self.poll_unsent(cx, false)).await?;
        }
        self.unsent = chunk;
        std::future::poll_fn(|cx| self.poll_unsent(cx, is_last)).await
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>, is_last: bool) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let room = ready!(self.poll_room(cx))?;
            let piece = self.unsent.split_to(room);
            self.bytes_sent.fetch_add(room as u64, Ordering::Relaxed);
            self.send_data(piece, is_last && self.unsent.is_empty())?;
        }
        if is_last && !self.is_answered {
            self.send_data(Bytes::new(), true)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for room in the client's windows: bytes of what is unsent. A timer runs while there is none.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let wanted = self.unsent.len();
        let body = self.body()?;
        body.reserve_capacity(wanted);
        if let Poll::Ready(granted) = body.poll_capacity(cx) {
            self.stall_timer = None;
            let granted = granted.ok_or(io::ErrorKind::BrokenPipe)?;
            let granted = granted.map_err(io::Error::other)?;
            return Poll::Ready(Ok(granted.min(wanted)));
        }
        let stall_max = self.stall_max;
        let timer = &mut self.stall_timer;
        let timer = timer.get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn send_data(&mut self, piece: Bytes, is_last: bool) -> io::Result<()> {
        let sent = self.body()?.send_data(piece, is_last);
        self.is_answered |= is_last;
        sent.map_err(io::Error::other)
    }

    /// Returns when the client has reset the stream, or its connection has ended.
    pub fn closed(&mut self) -> impl Future<Output = ()> + Send {
        // Whatever the reason is, nobody waits any more.
        std::future::poll_fn(|cx| {
            let reset = match &mut self.response_body {
                Some(body) => body.poll_reset(cx),
                None => self.respond.poll_reset(cx),
            };
            reset.map(|_| ())
        })
    }

    /// Ends the stream: a response that is not whole is reset, so that nobody takes it for one.
    pub fn end(&mut self) {
        if !self.is_answered {
            match &mut self.response_body {
                Some(body) => body.send_reset(Reason::INTERNAL_ERROR),
                None => self.respond.send_reset(Reason::INTERNAL_ERROR),
            }
        }
    }

    /// Bytes that the client's windows have taken, counted on while a write waits. The last of them may still wait in the
    /// connection for its socket, which h2 does not tell: as many as its buffer for one response holds.
    pub fn bytes_sent(&self) -> &Arc<AtomicU64> {
        &self.bytes_sent
    }
}

/// Writes the head as HTTP/1 does. The values have no line ends, which h2 sees to.
fn write_head(parts: &request::Parts, head: &mut ParsedRequest) -> Result<(), MalformedHead> {
    let target = parts.uri.path_and_query().map_or("", |path| path.as_str());
    let authority = parts.uri.authority().map(|authority| authority.as_str());
    let host = authority.map(str::as_bytes);
    let fields = parts.headers.iter();
    // Section 8.3.1: the same host twice is one, and two hosts are refused by the rules for heads.
    let fields = fields.filter(|(name, value)| **name != HOST || host != Some(value.as_bytes()));
    let fields = fields.map(|(name, value)| (name.as_str(), value.as_bytes()));
    let host = host.map(|host| (HOST.as_str(), host));
    head.write(&parts.method, target, fields.chain(host))
}

/// Fields of a response, with its length and date.
fn fields_of(head: &ResponseHead, unix_secs: u64) -> HeaderMap {
    let mut text = BytesMut::with_capacity(head.lines().len() + 64);
    text.put_slice(head.lines());
    encode::date(unix_secs, &mut text);
    let text = text.freeze();
    let mut fields = HeaderMap::with_capacity(16);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let line = line.trim_ascii_end();
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let value = text.slice_ref(line[colon + 1..].trim_ascii_start());
        let name = HeaderName::from_bytes(&line[..colon]);
        // Both are checked where responses are made and read: nothing is left out that HTTP/1 would pass.
        if let (Ok(name), Ok(mut value)) = (name, HeaderValue::from_maybe_shared(value))
            && !framing::CONNECTION_FIELDS.contains(&name.as_str())
        {
            value.set_sensitive(!has_value_again(&name));
            fields.append(name, value);
        }
    }
    let has_no_body = matches!(head.status.as_u16(), 204 | 304);
    if let Some(length) = head.length().filter(|_| !has_no_body) {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    fields
}

/// Returns whether the value of a field comes again in the next responses, so that the client keeps it. Others are sent as
/// they are and never kept (RFC 7541 section 6.2.3): each would push one out that comes again, and be compared with all
/// those before it.
fn has_value_again(name: &HeaderName) -> bool {
    use http::header::{
        ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS,
        ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
        ACCESS_CONTROL_MAX_AGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, SERVER, VARY, VIA,
    };
    matches!(
        *name,
        CONTENT_TYPE
            | CONTENT_ENCODING
            | CACHE_CONTROL
            | SERVER
            | VARY
            | VIA
            | ACCESS_CONTROL_ALLOW_CREDENTIALS
            | ACCESS_CONTROL_ALLOW_HEADERS
            | ACCESS_CONTROL_ALLOW_METHODS
            | ACCESS_CONTROL_ALLOW_ORIGIN
            | ACCESS_CONTROL_EXPOSE_HEADERS
            | ACCESS_CONTROL_MAX_AGE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(authority: &str, hosts: &[&str]) -> Result<ParsedRequest, &'static str> {
        let uri = format!("https://{authority}/v1/x?y=1");
        let mut request = http::Request::post(uri).header("x-a", " b");
        for host in hosts {
            request = request.header("host", *host);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut head = ParsedRequest::default();
        write_head(&parts, &mut head).unwrap();
        // As a parser reads what was written.
        let mut read = ParsedRequest::default();
        assert_eq!(read.parse(&mut BytesMut::from(head.text())), Ok(true));
        assert!(read.fields.lines().eq(head.fields.lines()));
        assert_eq!(
            (read.method(), read.target()),
            (head.method(), head.target())
        );
        framing::of_request(&head).map(|_| head)
    }

    #[test]
    fn a_head_is_read_by_the_rules_of_http1() {
        let head = parsed("h:1", &[]).unwrap();
        assert_eq!((head.method(), head.target()), ("POST", "/v1/x?y=1"));
        assert_eq!(head.fields.text_of("host"), Some("h:1"));
        assert_eq!(head.fields.text_of("x-a"), Some("b"));
        assert!(parsed("h:1", &["h:1"]).is_ok());
        for hosts in [&["other"][..], &["h:1", "other"]] {
            assert_eq!(
                parsed("h:1", hosts).err(),
                Some("more than one Host header")
            );
        }
    }

    #[test]
    fn a_response_has_no_fields_of_a_connection() {
        let mut head = ResponseHead::new(200);
        head.append("Vary", b"origin");
        for name in framing::CONNECTION_FIELDS {
            head.append(name, b"x-a");
        }
        head.append("set-cookie", b"a");
        head.append("set-cookie", b"b");
        head.set_length(3);
        let fields = fields_of(&head, 0);
        assert_eq!(fields["vary"], "origin");
        assert_eq!(fields["content-length"], "3");
        assert_eq!(fields["date"], "Thu, 01 Jan 1970 00:00:00 GMT");
        assert!(fields["date"].is_sensitive() && !fields["vary"].is_sensitive());
        assert_eq!(fields.get_all("set-cookie").iter().count(), 2);
        for name in framing::CONNECTION_FIELDS {
            assert!(!fields.contains_key(*name), "{name}");
        }
    }
}
