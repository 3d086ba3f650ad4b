//! Interim responses to the node that forwards a request: queued, and granted (a model server may start).
//!
//! Not for clients. A node that receives none for a while repeats the request elsewhere, so no work starts
//! before the message is out. A process that was stopped and resumed finds its forwards given up and starts
//! none of them.

use std::time::Duration;

use futures_util::FutureExt;
use infergate_core::Millis;
use infergate_core::routing::fleet::{GIVEN_UP_AFTER, QUEUED_EVERY};
use pingora_core::protocols::http::ServerSession;
use pingora_error::Result;
use pingora_http::ResponseHeader;
use tokio::time::timeout;

use super::Shared;
use super::admit::client_gone;
use super::call::{Left, Trip};
use crate::peer::Interim;

/// Says that the request is in line, unless that was said a moment ago, or more than that.
///
/// # Errors
/// The other node is gone.
pub async fn queued(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
) -> Result<(), Left> {
    let now = shared.clock.now();
    let due = Millis(QUEUED_EVERY.0 / 2);
    match trip.forwarded() {
        Some(word) if !word.granted && word.at.is_none_or(|at| now.since(at) >= due) => {}
        _ => return Ok(()),
    }
    say(shared, session, trip, Interim::Queued).await
}

/// Says that a model server may begin, once: before anything is sent to one. Clients get no message.
///
/// # Errors
/// The other node has given the request up, and nothing may begin here.
pub async fn granted(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
) -> Result<(), Left> {
    match trip.forwarded() {
        Some(word) if !word.granted => {}
        _ => return Ok(()),
    }
    still_wanted(shared, session, trip)?;
    say(shared, session, trip, Interim::Granted).await
}

/// Checks that the forwarding node still waits: its connection stands, and the last message is younger than
/// the time after which it gives up.
///
/// # Errors
/// It does not.
pub fn still_wanted(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
) -> Result<(), Left> {
    let Some(word) = trip.forwarded().filter(|word| !word.granted) else {
        return Ok(());
    };
    let age = word.at.map(|at| shared.clock.now().since(at));
    let is_old = age.is_some_and(|age| age >= GIVEN_UP_AFTER);
    if is_old || client_gone(session).now_or_never().is_some() {
        trip.client_gone();
        return Err(Left::Cut);
    }
    Ok(())
}

async fn say(
    shared: &Shared,
    session: &mut ServerSession,
    trip: &mut Trip,
    interim: Interim,
) -> Result<(), Left> {
    let limit = Duration::from_millis(GIVEN_UP_AFTER.0);
    // Noted as of before: the other node counts from when it hears it.
    let at = shared.clock.now();
    match timeout(limit, write(session, interim)).await {
        Ok(Ok(())) => {
            trip.has_said(interim, at);
            Ok(())
        }
        Ok(Err(_)) | Err(_) => {
            trip.client_gone();
            Err(Left::Cut)
        }
    }
}

async fn write(session: &mut ServerSession, interim: Interim) -> Result<()> {
    let mut head = ResponseHeader::build_no_case(interim.status(), Some(1))?;
    let (name, value) = interim.line();
    head.insert_header(name, value)?;
    let keepalive = session.get_keepalive();
    session.write_response_header(Box::new(head)).await?;
    // Pingora takes an answer before the body's end for the last one; an interim one is not.
    session.set_keepalive(keepalive);
    Ok(())
}
