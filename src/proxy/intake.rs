//! Step 3 of the walk: the request's body, whole, within its bounds, and what it asks.
//!
//! The core reads it; an image or a sound is not looked into. The bytes count against one budget for
//! all requests until the trip ends.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Version, header};
use infergate_core::Refusal;
use infergate_core::api::{Call, Operation, body, opaque};
use pingora_core::protocols::http::ServerSession;
use pingora_error::ErrorType;
use tokio::time::timeout_at;

use super::Shared;
use super::budget::BodyShare;
use super::call::{Left, Trip};

/// How Pingora names chunks and trailers it cannot read; the constants themselves are private there.
const BROKEN_CHUNKS: [&str; 2] = ["InvalidChunk", "InvalidTrailerEnd"];
/// Reserved for a body that does not announce its length; grows as it comes.
const UNKNOWN_LENGTH_BYTES: u64 = 64 * 1024;

/// Reads the body; the share holds its bytes in the budget.
///
/// # Errors
/// Too large, too slow, no budget; or the client left.
pub async fn read_body(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
) -> Result<(Bytes, BodyShare), Left> {
    let limit = trip.world.limits.request_body_bytes();
    let budget = trip.world.limits.buffered_bodies_bytes();
    let announced = announced_length(session);
    if announced.is_some_and(|length| length > limit) {
        return Err(Refusal::BodyTooLarge.into());
    }
    let mut held = announced.unwrap_or(UNKNOWN_LENGTH_BYTES);
    let mut share = shared
        .bodies
        .take(held, budget)
        .ok_or(Left::Refused(Refusal::BodyBudgetSpent))?;
    let idle = Duration::from_secs(trip.world.timeouts.request_body_idle_secs);
    session.set_read_timeout(Some(idle));
    if asks_first(session) && !session.is_body_done() {
        let keepalive = session.get_keepalive();
        session
            .write_continue_response()
            .await
            .map_err(|_| gone(trip))?;
        // Pingora takes an answer before the body's end for the last one; an interim one is not.
        session.set_keepalive(keepalive);
    }
    let deadline = shared.clock.instant(trip.deadline).into();
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    loop {
        let read = timeout_at(deadline, session.read_request_body()).await;
        let piece = match read {
            Ok(Ok(Some(piece))) => piece,
            Ok(Ok(None)) => break,
            Ok(Err(e)) if *e.etype() == ErrorType::ReadTimedout => {
                return Err(Refusal::TooSlow.into());
            }
            Ok(Err(e)) if BROKEN_CHUNKS.contains(&e.etype().as_str()) => {
                return Err(Refusal::BadFraming("the body's chunked encoding is broken").into());
            }
            Ok(Err(_)) => return Err(gone(trip)),
            Err(_) => return Err(Refusal::DeadlinePassed.into()),
        };
        let length = (first.as_ref().map_or(0, Bytes::len) + rest.len() + piece.len()) as u64;
        if length > limit {
            return Err(Refusal::BodyTooLarge.into());
        }
        if length > held {
            let more = (length - held).max(held).min(limit - held);
            if !share.grow(more, budget) {
                return Err(Refusal::BodyBudgetSpent.into());
            }
            held += more;
        }
        match &first {
            // Small bodies come in one piece, which is kept as it is.
            None if rest.is_empty() => first = Some(piece),
            _ => {
                if let Some(first) = first.take() {
                    rest.reserve(announced.unwrap_or(length) as usize);
                    rest.extend_from_slice(&first);
                }
                rest.extend_from_slice(&piece);
            }
        }
    }
    Ok((first.unwrap_or_else(|| rest.freeze()), share))
}

/// Reads what `body` asks. A model that stands in the path may take bytes instead of JSON.
///
/// # Errors
/// [`Refusal::BadRequest`].
pub fn read_call(
    session: &ServerSession,
    trip: &Trip,
    operation: Operation,
    path_model: Option<String>,
    body: Bytes,
) -> Result<Call, Refusal> {
    // A model that does not exist is refused when it is looked for.
    let named = path_model
        .as_ref()
        .and_then(|model| trip.world.catalog.model(model));
    if let (Some((_, spec)), Some(model)) = (named, &path_model) {
        let told = session.get_header(header::CONTENT_TYPE);
        let told = told.and_then(|value| value.to_str().ok());
        if let Some(kind) = opaque::content_type(spec.task, told, &body)? {
            return Ok(Call::opaque(model.clone(), kind, body));
        }
    }
    body::parse(trip.face(), operation, path_model, body)
}

/// Whether the client waits for a go-ahead before it sends the body. One that speaks HTTP/1.0
/// cannot read an interim answer (RFC 9110 section 10.1.1).
fn asks_first(session: &ServerSession) -> bool {
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

fn gone(trip: &mut Trip) -> Left {
    trip.client_gone();
    Left::Cut
}
