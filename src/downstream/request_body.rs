//! Body of an HTTP/1 request: whole, within its bounds.
//!
//! Not parsed here. The bytes that have arrived count against one budget for all requests, and its account's
//! part of it, until the request ends.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Version, header};
use infergate_core::admission::bodies::BodyPace;
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;
use pingora_error::ErrorType;
use tokio::time::timeout_at;

use super::http1::Http1Downstream;
use crate::pipeline::{RequestContext, RequestError, interim};
use crate::state::Account;
use crate::state::BodyShare;
use crate::state::Shared;

/// Pingora's names for chunks and trailers it cannot read; the constants themselves are private there.
const BROKEN_CHUNKS: [&str; 2] = ["InvalidChunk", "InvalidTrailerEnd"];
/// Memory for a body that comes in several pieces, at least; from there it doubles.
const SEVERAL_PIECES_BYTES: u64 = 64 * 1024;

/// Reads the body; the share holds its bytes in the budget, as they arrive.
///
/// # Errors
/// Too large, too slow, no budget; or the client left.
pub async fn read_body(
    shared: &Shared,
    session: &mut ServerSession,
    ctx: &mut RequestContext,
    account: &Account,
) -> Result<(Bytes, BodyShare), RequestError> {
    let limit = ctx.snapshot.limits.request_body_bytes();
    let length = announced_length(session);
    if length.is_some_and(|length| length > limit) {
        return Err(Refusal::BodyTooLarge.into());
    }
    let mut share = shared
        .bodies
        .share(&account.bodies, ctx.snapshot.body_limits());
    // A body that does not fit now is refused before it is sent; nothing is taken for its length.
    if !share.has_room_for(length.unwrap_or(0)) {
        return Err(Refusal::BodyBudgetSpent.into());
    }
    let idle_secs = ctx.snapshot.timeouts.request_body_idle_secs;
    session.set_read_timeout(Some(Duration::from_secs(idle_secs)));
    send_continue(session, ctx).await?;
    let floor = ctx.snapshot.limits.body_min_kib_per_sec;
    let mut pace = BodyPace::new(ctx.arrival, Millis::from_secs(idle_secs), floor);
    let deadline = shared.clock.instant(ctx.deadline).into();
    let mut body = BodyBuffer {
        length_max: length.unwrap_or(limit),
        ..BodyBuffer::default()
    };
    loop {
        let read = timeout_at(deadline, session.read_request_body()).await;
        let piece = match read {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => break,
            Ok(Err(e)) if *e.etype() == ErrorType::ReadTimedout => {
                return Err(Refusal::RequestTimeout.into());
            }
            Ok(Err(e)) if BROKEN_CHUNKS.contains(&e.etype().as_str()) => {
                return Err(Refusal::BadFraming("the body's chunked encoding is broken").into());
            }
            Ok(Err(_)) => return Err(client_left(ctx)),
            Err(_) => return Err(Refusal::DeadlinePassed.into()),
        };
        interim::send_queued(shared, &mut Http1Downstream::new(session), ctx).await?;
        if body.length + piece.len() as u64 > limit {
            return Err(Refusal::BodyTooLarge.into());
        }
        // Small bodies come in one piece, for which no clock is read.
        let now = match body.length {
            0 => ctx.arrival,
            _ => shared.clock.now(),
        };
        if !pace.record(piece.len() as u64, now) {
            return Err(Refusal::RequestTimeout.into());
        }
        if !body.push(piece, &mut share) {
            return Err(Refusal::BodyBudgetSpent.into());
        }
    }
    Ok((body.into_whole(), share))
}

/// A body as far as it has come.
#[derive(Default)]
struct BodyBuffer {
    /// The only piece so far, kept as it is.
    first: Option<Bytes>,
    rest: BytesMut,
    length: u64,
    /// The length that was announced, or else the largest there may be, bytes.
    length_max: u64,
}

impl BodyBuffer {
    /// Adds a piece and takes memory for it; false, and nothing added, where there is none.
    fn push(&mut self, piece: Bytes, share: &mut BodyShare) -> bool {
        let length = self.length + piece.len() as u64;
        let held = share.bytes();
        // Of a body in several pieces as much again as has come, so that it is seldom moved.
        let target = match held {
            0 => length,
            _ => (2 * held)
                .max(SEVERAL_PIECES_BYTES)
                .min(self.length_max)
                .max(length),
        };
        if length > held {
            let more = [target - held, length - held];
            if !more.into_iter().any(|more| share.grow(more)) {
                return false;
            }
        }
        self.length = length;
        if held == 0 && self.rest.is_empty() {
            self.first = Some(piece);
            return true;
        }
        let capacity = usize::try_from(share.bytes()).unwrap_or(usize::MAX);
        self.rest.reserve(capacity.saturating_sub(self.rest.len()));
        if let Some(first) = self.first.take() {
            self.rest.extend_from_slice(&first);
        }
        self.rest.extend_from_slice(&piece);
        true
    }

    fn into_whole(self) -> Bytes {
        self.first.unwrap_or_else(|| self.rest.freeze())
    }
}

/// Asks a client that waits with the body to send it.
async fn send_continue(
    session: &mut ServerSession,
    ctx: &mut RequestContext,
) -> Result<(), RequestError> {
    if expects_continue(session) && !session.is_body_done() {
        let keepalive = session.get_keepalive();
        let written = session.write_continue_response().await;
        written.map_err(|_| client_left(ctx))?;
        // Pingora takes an answer before the body's end for the last one; an interim one is not.
        session.set_keepalive(keepalive);
    }
    Ok(())
}

/// Returns whether the client waits for `100 Continue` before it sends the body. Clients of HTTP/1.0 cannot
/// read an interim response (RFC 9110 section 10.1.1).
fn expects_continue(session: &ServerSession) -> bool {
    session.req_header().version == Version::HTTP_11
        && session
            .get_header(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

fn announced_length(session: &ServerSession) -> Option<u64> {
    session
        .get_header(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

fn client_left(ctx: &mut RequestContext) -> RequestError {
    ctx.record_client_gone();
    RequestError::Aborted
}
