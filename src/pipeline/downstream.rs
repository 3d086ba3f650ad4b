//! Receiver of a response: an HTTP/1 client, a forwarding node, a durable job, a test.
//!
//! Not a connection: the pipeline names no protocol and no socket. Each write is back-pressure; the pipeline
//! bounds it by the deadline, the receiver by its own idle timeout.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::peer::ForwardStatus;

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
    pub headers: &'a HeaderMap,
}

/// Head of a response. Fields of the connection (framing, keep-alive, date) are the receiver's to add.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    /// HTTP status.
    pub status: StatusCode,
    /// Header fields; with `content-length` where the length is known.
    pub headers: HeaderMap,
}

impl ResponseHead {
    /// Creates a head without fields, with memory for `capacity` of them.
    pub fn new(status: u16, capacity: usize) -> ResponseHead {
        ResponseHead {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            headers: HeaderMap::with_capacity(capacity),
        }
    }

    /// Sets a field to text that has no control characters; leaves it out otherwise.
    pub fn set(&mut self, name: &'static str, value: &str) {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.insert(HeaderName::from_static(name), value);
        }
    }

    /// Sets `content-length`.
    pub fn set_length(&mut self, length: usize) {
        self.headers.insert(header::CONTENT_LENGTH, length.into());
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

    /// Returns the count of bytes that the receiver has taken, where it is known while a write waits.
    fn bytes_taken(&self) -> Option<Arc<AtomicU64>> {
        None
    }
}
