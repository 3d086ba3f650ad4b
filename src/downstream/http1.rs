//! HTTP/1.1 and HTTP/1.0 as a receiver of responses: a client, or a node that forwards.
//!
//! Not the reading of requests. Framing, keep-alive and unread bodies are handled here and nowhere else.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use tokio::time::timeout;

use super::connection::DownstreamConnection;
use super::session;
use crate::peer::ForwardStatus;
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};

/// An unread body up to this size is read before the response, which keeps the connection usable.
const DRAIN_BEFORE_MAX_BYTES: u64 = 64 * 1024;
/// Bytes of a larger body that are read after the response, so that the client gets to see it.
const DRAIN_AFTER_MAX_BYTES: u64 = 1024 * 1024;
/// Time for reading an unread body, before or after the response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Receiver over an HTTP/1 session.
pub struct Http1Downstream<'a> {
    session: &'a mut ServerSession,
}

impl<'a> Http1Downstream<'a> {
    /// Creates a receiver for the response to the session's request.
    pub fn new(session: &'a mut ServerSession) -> Http1Downstream<'a> {
        Http1Downstream { session }
    }

    fn connection(&self) -> Option<&DownstreamConnection> {
        session::connection(self.session)
    }

    /// Older clients know no chunks.
    fn is_http11(&self) -> bool {
        self.session.req_header().version == http::Version::HTTP_11
    }

    /// Returns the bytes of the body that are still to come, where the client has announced them and does
    /// not wait for `100 Continue`.
    fn unread_bytes(&mut self) -> Option<u64> {
        if self.session.is_body_done() || self.session.get_header(header::EXPECT).is_some() {
            return None;
        }
        let length = self.session.get_header(header::CONTENT_LENGTH)?;
        length.to_str().ok()?.parse().ok()
    }

    async fn drain(&mut self, max_bytes: u64) {
        let reading = async {
            let mut read = 0;
            while read <= max_bytes {
                match self.session.read_request_body().await {
                    Ok(Some(chunk)) => read += chunk.len() as u64,
                    _ => return,
                }
            }
        };
        // Past the limit the connection is closed with bytes unread, which is the client's doing.
        let _ = timeout(DRAIN_TIMEOUT, reading).await;
    }

    async fn write_head(&mut self, head: ResponseHead) -> Result<(), DownstreamClosed> {
        let head = Box::new(into_pingora(head));
        let written = self.session.write_response_header(head).await;
        written.map_err(|_| DownstreamClosed)
    }

    async fn write_body(&mut self, chunk: Bytes, is_last: bool) -> Result<(), DownstreamClosed> {
        let written = self.session.write_response_body(chunk, is_last).await;
        written.map_err(|_| DownstreamClosed)
    }
}

fn into_pingora(head: ResponseHead) -> ResponseHeader {
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = head.status;
    parts.headers = head.headers;
    ResponseHeader::from(parts)
}

impl Downstream for Http1Downstream<'_> {
    fn request_head(&self) -> RequestHead<'_> {
        session::request_head(self.session)
    }

    fn can_stream(&self) -> bool {
        self.is_http11()
    }

    async fn closed(&mut self) {
        if let Some(connection) = self.connection() {
            return connection.closed().await;
        }
        while self.session.read_body_or_idle(true).await.is_ok() {}
    }

    async fn start(&mut self, mut head: ResponseHead) -> Result<(), DownstreamClosed> {
        if !head.headers.contains_key(header::CONTENT_LENGTH) {
            match self.is_http11() {
                true => {
                    let chunked = HeaderValue::from_static("chunked");
                    head.headers.insert(header::TRANSFER_ENCODING, chunked);
                }
                // An older client reads until the connection closes, so nothing else is promised.
                false => self.session.set_keepalive(None),
            }
        }
        self.write_head(head).await
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.write_body(chunk, false).await
    }

    async fn finish(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.write_body(chunk, true).await
    }

    // One future in place of two: this is called for every event of a stream.
    async fn send(&mut self, chunk: Bytes, is_last: bool) -> Result<(), DownstreamClosed> {
        let written = self.session.write_response_body(chunk, is_last).await;
        written.map_err(|_| DownstreamClosed)
    }

    async fn respond(&mut self, head: ResponseHead, body: Bytes) -> Result<(), DownstreamClosed> {
        let is_small = self
            .unread_bytes()
            .is_some_and(|left| left <= DRAIN_BEFORE_MAX_BYTES);
        if is_small {
            self.drain(DRAIN_BEFORE_MAX_BYTES).await;
        }
        let is_unread = !self.session.is_body_done();
        if is_unread {
            self.session.set_keepalive(None);
        }
        self.write_head(head).await?;
        self.write_body(body, true).await?;
        if is_unread {
            self.drain(DRAIN_AFTER_MAX_BYTES).await;
        }
        Ok(())
    }

    async fn report(&mut self, status: ForwardStatus) -> Result<(), DownstreamClosed> {
        let mut head = ResponseHead::new(status.status(), 1);
        let (name, value) = status.line();
        head.headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
        let keepalive = self.session.get_keepalive();
        self.write_head(head).await?;
        // Pingora takes a response before the body's end for the last one; an interim one is not.
        self.session.set_keepalive(keepalive);
        Ok(())
    }

    fn bytes_taken(&self) -> Option<Arc<AtomicU64>> {
        let connection = self.connection()?;
        Some(Arc::clone(connection.bytes_sent()))
    }
}
