//! A request and its response on a stream of HTTP/2 towards a model server (RFC 9113).
//!
//! Both heads have the form of HTTP/1 for the rest of the gateway, so that one parser and one set of rules judge every
//! response. A stream that is dropped before its end is reset, which is how an abandoned generation is stopped.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderName, HeaderValue, Request, Response, Uri, Version, response};
use infergate_core::Millis;
use tokio::io::{Empty, empty};

use super::http2::StreamPlace;
use crate::http1::{encode, framing};

/// The server has not begun the request: it refused the stream, or had said goodbye before (sections 6.8, 8.7).
#[derive(Debug, thiserror::Error)]
#[error("the server did not begin the request")]
struct UnstartedRequest(#[source] h2::Error);

/// Returns whether the server has not begun the request that this error ended.
pub(super) fn is_unstarted(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<UnstartedRequest>())
}

fn unstarted(error: h2::Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, UnstartedRequest(error))
}

/// The end of a stream in words of the socket.
fn as_io(error: h2::Error) -> io::Error {
    let is_refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // Streams that a goodbye names as begun go on, and end with the connection.
    if error.is_remote() && (error.is_go_away() || is_refused) {
        return unstarted(error);
    }
    match error.is_io() {
        true => error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        false => io::Error::new(io::ErrorKind::ConnectionReset, error),
    }
}

/// Silence before a response after which its connection gets no further request. Servers that work for longer lose
/// nothing but a kept connection.
const SILENCE_MAX: Millis = Millis(5_000);

/// One request and its response.
pub(super) struct Http2Exchange {
    /// Moment at which the request began.
    sent_at: Millis,
    /// The response, until its head is there.
    awaited: Option<ResponseFuture>,
    /// Its head, until it is read.
    arrived: Option<io::Result<Response<RecvStream>>>,
    /// Way of the request's body.
    request_body: Option<SendStream<Bytes>>,
    /// The response's body, once its head was read.
    response_body: Option<RecvStream>,
    /// No stream leaves HTTP.
    nothing: Empty,
    /// The last field: free for another request once the stream has been reset.
    place: StreamPlace,
}

impl Http2Exchange {
    /// An exchange that has not begun.
    pub fn new(place: StreamPlace) -> Box<Http2Exchange> {
        Box::new(Http2Exchange {
            sent_at: place.now(),
            place,
            awaited: None,
            arrived: None,
            request_body: None,
            response_body: None,
            nothing: empty(),
        })
    }

    /// Begins with a head in the form of HTTP/1. The next read tells what is wrong with it.
    pub fn begin(&mut self, head: &[u8], is_bodiless: bool) {
        let sent = request_of(head).and_then(|request| {
            let requests = &mut self.place.requests;
            requests
                .send_request(request, is_bodiless)
                .map_err(unstarted)
        });
        match sent {
            Ok((response, body)) => {
                self.awaited = Some(response);
                self.request_body = (!is_bodiless).then_some(body);
            }
            Err(error) => self.arrived = Some(Err(error)),
        }
    }

    /// Hands what the server's windows have room for of `body` over; ready once all of it has gone. The last piece ends the
    /// request.
    ///
    /// # Errors
    /// The stream has ended; its response says why.
    pub fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Bytes,
        is_last: bool,
    ) -> Poll<io::Result<()>> {
        while !body.is_empty() {
            let Some(way) = &mut self.request_body else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            way.reserve_capacity(body.len());
            let room = ready!(way.poll_capacity(cx));
            let room = room.ok_or(io::ErrorKind::BrokenPipe)?.map_err(as_io)?;
            let piece = body.split_to(room.min(body.len()));
            let is_end = is_last && body.is_empty();
            way.send_data(piece, is_end).map_err(as_io)?;
        }
        if is_last {
            self.request_body = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns once the head of the response is there, or there will be none.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(awaited) = &mut self.awaited {
            let response = ready!(Pin::new(awaited).poll(cx));
            self.awaited = None;
            self.arrived = Some(response.map_err(as_io));
        }
        Poll::Ready(())
    }

    /// Reads the head of the response, or what has come of its body; 0 at its end.
    ///
    /// # Errors
    /// The stream was reset, or its connection broke.
    pub fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        received: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_head(cx));
        let before = received.len();
        if let Some(arrived) = self.arrived.take() {
            let (parts, body) = arrived?.into_parts();
            write_head(&parts, received);
            self.response_body = Some(body);
            return Poll::Ready(Ok(received.len() - before));
        }
        let Some(body) = &mut self.response_body else {
            return Poll::Ready(Ok(0));
        };
        // Frames without bytes are passed over: h2 bounds how many there may be.
        while received.len() == before {
            let Some(data) = ready!(body.poll_data(cx)) else {
                break;
            };
            let data = data.map_err(as_io)?;
            received.extend_from_slice(&data);
            // Fails for a stream that has ended, which needs no more room.
            let _ = body.flow_control().release_capacity(data.len());
        }
        Poll::Ready(Ok(received.len() - before))
    }

    /// A way that ends at once, where a connection of its own would leave HTTP.
    pub fn nothing(&mut self) -> &mut Empty {
        &mut self.nothing
    }
}

impl Drop for Http2Exchange {
    fn drop(&mut self) {
        let is_silent = self.awaited.is_some();
        if is_silent && self.place.now().since(self.sent_at) >= SILENCE_MAX {
            self.place.distrust();
        }
    }
}

impl fmt::Debug for Http2Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2Exchange").finish_non_exhaustive()
    }
}

/// Reads a head that was written for HTTP/1.
fn request_of(head: &[u8]) -> io::Result<Request<()>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let first = std::str::from_utf8(first).map_err(|_| invalid())?;
    let mut words = first.split_ascii_whitespace();
    let (method, target) = words.next().zip(words.next()).ok_or_else(invalid)?;
    let mut request = Request::builder().method(method).version(Version::HTTP_2);
    let mut authority = None;
    for line in lines {
        let line = line.trim_ascii_end();
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| invalid())?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii_start());
        let value = value.map_err(|_| invalid())?;
        if name == http::header::HOST {
            authority = Some(value);
        } else if !framing::CONNECTION_FIELDS.contains(&name.as_str()) {
            request = request.header(name, value);
        }
    }
    let authority = authority.ok_or_else(invalid)?;
    let uri = Uri::builder()
        .scheme("https")
        .authority(authority.as_bytes())
        .path_and_query(target);
    let uri = uri.build().map_err(io::Error::other)?;
    request.uri(uri).body(()).map_err(io::Error::other)
}

/// Writes a head as HTTP/1 does.
fn write_head(parts: &response::Parts, out: &mut BytesMut) {
    encode::status_line(parts.status, out);
    // None is a field of a connection: h2 refuses such a head.
    for (name, value) in &parts.headers {
        encode::field(name.as_str(), value.as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::ParsedResponse;

    #[test]
    fn a_head_of_http1_becomes_a_request_without_fields_of_a_connection() {
        let head = b"POST /v1/x?y=1 HTTP/1.1\r\nhost: gpu:443\r\nX-A: 1\r\nx-a: 2\r\n\
                     Connection: close\r\nTransfer-Encoding: chunked\r\ncontent-length: 3\r\n\r\n";
        let request = request_of(head).unwrap();
        assert_eq!(request.method(), "POST");
        assert_eq!(request.uri(), "https://gpu:443/v1/x?y=1");
        let values = request.headers().get_all("x-a").iter();
        assert_eq!(values.collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(request.headers()["content-length"], "3");
        assert_eq!(request.headers().len(), 3);
    }

    #[test]
    fn a_head_without_a_host_or_with_a_bad_field_is_refused() {
        for head in [
            &b"GET / HTTP/1.1\r\nx-a: 1\r\n\r\n"[..],
            b"GET / HTTP/1.1\r\nhost: a\r\nx a: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: a\r\nx-a: \x01\r\n\r\n",
            b"GET\r\nhost: a\r\n\r\n",
            b"",
        ] {
            assert!(request_of(head).is_err(), "{head:?}");
        }
    }

    #[test]
    fn a_response_is_read_by_the_rules_of_http1() {
        let response = Response::builder()
            .status(429)
            .header("retry-after", "1")
            .header("content-length", "2");
        let (parts, ()) = response.body(()).unwrap().into_parts();
        let mut text = BytesMut::new();
        write_head(&parts, &mut text);
        text.extend_from_slice(b"{}");
        let mut head = ParsedResponse::default();
        assert_eq!(head.parse(&mut text), Ok(true));
        assert_eq!(head.status, 429);
        assert_eq!(head.fields.text_of("retry-after"), Some("1"));
        assert_eq!(&text[..], b"{}");
        let body = framing::of_response(&head).unwrap();
        assert_eq!(body, crate::http1::BodyDecoder::with_length(2));
    }
}
