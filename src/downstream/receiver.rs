//! A session as a receiver of responses: a client, or a node that forwards.
//!
//! The framing is the session's. On HTTP/1 an unread body is read for a moment here, so that the client sees the
//! response; a stream of HTTP/2 is told that its body is not wanted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::{Bytes, BytesMut};

use super::session::Session;
use crate::http1::BodyStep;
use crate::peer::ForwardStatus;
use crate::pipeline::{Downstream, DownstreamClosed, RequestHead, ResponseHead};
use crate::upstream::Tunnel;

/// An unread body up to this size is read before the response, which keeps the connection usable.
const DRAIN_BEFORE_MAX_BYTES: u64 = 64 * 1024;
/// Bytes of a larger body that are read after the response, so that the client gets to see it.
const DRAIN_AFTER_MAX_BYTES: u64 = 1024 * 1024;
/// Piece of a body that goes on as it comes, at most.
const PIECE_BYTES: usize = 64 * 1024;

impl Session {
    /// Returns the bytes of the body that are still to come, where the client has announced them and does
    /// not wait for `100 Continue`.
    fn unread_bytes(&self) -> Option<u64> {
        match self.fields().contains("expect") || self.is_stream() {
            true => None,
            false => self.body_length().filter(|left| *left > 0),
        }
    }
}

impl Downstream for Session {
    fn request_head(&self) -> RequestHead<'_> {
        Session::request_head(self)
    }

    fn can_stream(&self) -> bool {
        self.is_http11()
    }

    fn closed(&mut self) -> impl Future<Output = ()> + Send {
        Session::closed(self)
    }

    async fn start(&mut self, head: ResponseHead) -> Result<(), DownstreamClosed> {
        self.queue_head(&head);
        Ok(())
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.send(chunk, false).await
    }

    async fn finish(&mut self, chunk: Bytes) -> Result<(), DownstreamClosed> {
        self.send(chunk, true).await
    }

    // One future in place of two: this is called for every event of a stream.
    async fn send(&mut self, chunk: Bytes, is_last: bool) -> Result<(), DownstreamClosed> {
        let sent = self.send_body(chunk, is_last).await;
        sent.map_err(|_| DownstreamClosed)
    }

    async fn respond(&mut self, head: ResponseHead, body: Bytes) -> Result<(), DownstreamClosed> {
        let is_small = self
            .unread_bytes()
            .is_some_and(|left| left <= DRAIN_BEFORE_MAX_BYTES);
        // A small one has mostly come already.
        if is_small && self.discard_received().is_some() {
            Box::pin(self.drain(DRAIN_BEFORE_MAX_BYTES)).await;
        }
        let is_unread = !self.is_body_done() && !self.is_stream();
        self.queue_head(&head);
        self.send(body, true).await?;
        if is_unread {
            Box::pin(self.drain(DRAIN_AFTER_MAX_BYTES)).await;
        }
        Ok(())
    }

    async fn switch(&mut self, head: ResponseHead) -> Result<Tunnel<'_>, DownstreamClosed> {
        let switched = self.switch_protocol(&head).await;
        switched.map_err(|_| DownstreamClosed)
    }

    async fn report(&mut self, status: ForwardStatus) -> Result<(), DownstreamClosed> {
        let mut head = ResponseHead::new(status.status());
        let (name, value) = status.line();
        head.append(name, value.as_bytes());
        let sent = self.send_interim(&head).await;
        sent.map_err(|_| DownstreamClosed)
    }

    async fn read_piece(&mut self) -> Result<Option<Bytes>, DownstreamClosed> {
        let mut piece = BytesMut::new();
        loop {
            match self.take_body().map_err(|_| DownstreamClosed)? {
                BodyStep::Data(piece) => return Ok(Some(piece)),
                BodyStep::End => return Ok(None),
                BodyStep::Partial => {}
            }
            piece.reserve(PIECE_BYTES);
            let read = self.read_more(&mut piece, PIECE_BYTES as u64).await;
            if read.map_err(|_| DownstreamClosed)? > 0 {
                return Ok(Some(piece.freeze()));
            }
        }
    }

    fn bytes_taken(&self) -> Option<Arc<AtomicU64>> {
        Some(Arc::clone(self.bytes_sent()))
    }
}
