//! Step 11 of the walk where another node serves: its answer to the client, piece by piece.
//!
//! Not a parser: the bytes are in the client's dialect already, and the other node counts their cost. Memory
//! is bounded by one piece. Every wait also listens to the client, to the deadline, to silence, and to
//! whether the node still lives.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header;
use infergate_core::Refusal;
use infergate_core::routing::fleet::Ended;
use pingora_core::protocols::http::ServerSession;
use pingora_http::ResponseHeader;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::admit::client_gone;
use super::call::{Left, Trip};
use super::journey::last_word;
use super::{Shared, respond, rules};
use crate::peer::{Sent, Watch};
use crate::telemetry::Outcome;
use crate::upstream::Exchange;

/// An error that comes after a sign of life becomes an event; up to this size.
const ERROR_BODY_MAX_BYTES: usize = 64 * 1024;

/// An answer that another node has begun.
pub struct Away {
    exchange: Exchange,
    /// Its first piece; none when it has no body.
    first: Option<Bytes>,
    sent: Sent,
    watch: Watch,
    ttft_us: u32,
    /// How much longer than that node itself one waits for what it says.
    last_word: Duration,
}

/// Why the next piece does not come.
enum Stop {
    ClientGone,
    /// The node is late: its own end of the answer may still be on the way.
    Deadline,
    /// The node broke off or fell silent.
    Broken,
}

impl Away {
    /// Creates the response from its head and its first chunk.
    pub fn new(
        exchange: Exchange,
        first: Option<Bytes>,
        sent: Sent,
        watch: Watch,
        rtt_us: u32,
        ttft_us: u32,
    ) -> Away {
        Away {
            exchange,
            first,
            sent,
            watch,
            ttft_us,
            last_word: last_word(rtt_us),
        }
    }

    /// Sends it to the client. Whatever comes of it, the node that works tells the event, unless it
    /// is lost under way.
    ///
    /// # Errors
    /// The client left, or the answer broke off after its first byte.
    pub async fn relay(
        mut self,
        shared: &Shared,
        session: &mut ServerSession,
        trip: &mut Trip,
    ) -> Result<(), Left> {
        let relayed = match trip.committed && !self.exchange.head().status.is_success() {
            true => self.error_event(shared, session, trip).await,
            false => self.pass(shared, session, trip).await,
        };
        let Away { exchange, sent, .. } = self;
        let ttft_us = self.ttft_us;
        match relayed {
            Ok(()) => {
                shared.channel.finish(exchange).await;
                sent.ended(Ended::Answered { ttft_us });
                trip.ends_as(Outcome::Completed);
                Ok(())
            }
            Err(Stop::ClientGone) => {
                trip.client_gone();
                Err(Left::Cut)
            }
            // That node tells the event, as it knows the deadline.
            Err(Stop::Deadline) => {
                trip.refused(&Refusal::DeadlinePassed, Outcome::CutByDeadline);
                cut(session, trip, Refusal::DeadlinePassed).await
            }
            Err(Stop::Broken) => {
                sent.ended(Ended::Failed);
                // It is lost and cannot tell: the event is ours.
                if let Some(journey) = &mut trip.journey {
                    journey.set_told_elsewhere(false);
                }
                trip.refused(&Refusal::UpstreamLost, Outcome::CutByBackend);
                cut(session, trip, Refusal::UpstreamLost).await
            }
        }
    }

    async fn pass(
        &mut self,
        shared: &Shared,
        session: &mut ServerSession,
        trip: &mut Trip,
    ) -> Result<(), Stop> {
        if !trip.committed {
            let head = self.head(session, trip).map_err(|_| Stop::Broken)?;
            trip.event().flags.streamed = is_stream(&head);
            trip.event().status = head.status.as_u16();
            let written = session.write_response_header(Box::new(head)).await;
            written.map_err(|_| Stop::ClientGone)?;
            trip.committed = true;
        }
        trip.first_byte();
        let mut next = self.first.take();
        while let Some(piece) = next {
            // The end goes out together with the last piece where both are here.
            let after = self.exchange.chunk().now_or_never();
            let is_last = matches!(after, Some(Ok(None)));
            self.send(shared, session, trip, piece, is_last).await?;
            next = match after {
                Some(Ok(None)) => return Ok(()),
                Some(Ok(more)) => more,
                Some(Err(_)) => return Err(Stop::Broken),
                None => self.next(shared, session, trip).await?,
            };
        }
        self.send(shared, session, trip, Bytes::new(), true).await
    }

    /// The client has been told that events follow: an error is one as well.
    async fn error_event(
        &mut self,
        shared: &Shared,
        session: &mut ServerSession,
        trip: &mut Trip,
    ) -> Result<(), Stop> {
        let mut event = BytesMut::from(&b"data: "[..]);
        let mut next = self.first.take();
        while let Some(piece) = next {
            if event.len() + piece.len() > ERROR_BODY_MAX_BYTES {
                return Err(Stop::Broken);
            }
            event.extend_from_slice(&piece);
            next = self.next(shared, session, trip).await?;
        }
        event.extend_from_slice(b"\n\n");
        self.send(shared, session, trip, event.freeze(), true).await
    }

    async fn next(
        &mut self,
        shared: &Shared,
        session: &mut ServerSession,
        trip: &Trip,
    ) -> Result<Option<Bytes>, Stop> {
        let idle = Duration::from_secs(trip.world.timeouts.stream_idle_secs);
        let idle = Instant::now() + idle + self.last_word;
        let deadline = self.deadline(shared, trip);
        tokio::select! {
            biased;
            piece = self.exchange.chunk() => piece.map_err(|_| Stop::Broken),
            () = client_gone(session) => Err(Stop::ClientGone),
            () = self.watch.lost() => Err(Stop::Broken),
            () = sleep_until(deadline.min(idle)) => Err(match idle < deadline {
                true => Stop::Broken,
                false => Stop::Deadline,
            }),
        }
    }

    fn deadline(&self, shared: &Shared, trip: &Trip) -> Instant {
        Instant::from(shared.clock.instant(trip.deadline)) + self.last_word
    }

    async fn send(
        &self,
        shared: &Shared,
        session: &mut ServerSession,
        trip: &mut Trip,
        piece: Bytes,
        is_last: bool,
    ) -> Result<(), Stop> {
        if is_last {
            trip.leaves_account();
        }
        let writing = session.write_response_body(piece, is_last);
        match timeout_at(self.deadline(shared, trip), writing).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Stop::ClientGone),
        }
    }

    /// The head as the client gets it.
    fn head(&self, session: &ServerSession, trip: &Trip) -> pingora_error::Result<ResponseHeader> {
        let from = self.exchange.head();
        let mut head =
            ResponseHeader::build_no_case(from.status.as_u16(), Some(from.headers.len()))?;
        let named = rules::connection_named(&from.headers);
        for (name, value) in &from.headers {
            if rules::passes_from_node(name) && !named.contains(name) {
                head.append_header(name.clone(), value.clone())?;
            }
        }
        trip.page.write(&mut head)?;
        for (name, value) in trip.rate_lines() {
            head.insert_header(name, value)?;
        }
        let has_length = head.headers.contains_key(header::CONTENT_LENGTH);
        if !has_length && session.req_header().version == http::Version::HTTP_11 {
            head.insert_header(header::TRANSFER_ENCODING, "chunked")?;
        }
        Ok(head)
    }
}

fn is_stream(head: &ResponseHeader) -> bool {
    let kind = head.headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Ends what cannot be ended well: a stream in its dialect, other framings broken.
async fn cut(session: &mut ServerSession, trip: &mut Trip, refusal: Refusal) -> Result<(), Left> {
    if !trip.committed {
        return Err(Left::Refused(refusal));
    }
    if trip.event().flags.streamed {
        // The client may be gone as well; the event already says what happened.
        let _ = respond::refuse(session, trip, &refusal).await;
    }
    Err(Left::Cut)
}
