//! Interim responses to the node that forwards a request: queued, and granted (a model server may start).
//!
//! Not for clients. A node that receives none for a while repeats the request elsewhere, so no work starts
//! before the message is out. A process that was stopped and resumed finds its forwards given up and starts
//! none of them.

use std::time::Duration;

use futures_util::FutureExt;
use infergate_core::Millis;
use infergate_core::routing::cluster::{GIVEN_UP_AFTER, QUEUED_EVERY};
use tokio::time::timeout;

use crate::peer::ForwardStatus;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::state::Shared;

/// Says that the request is in line, unless that was said a moment ago, or more than that.
///
/// # Errors
/// The other node is gone.
pub async fn send_queued(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<(), RequestError> {
    let Some(word) = ctx.interim_state() else {
        return Ok(());
    };
    let due = Millis(QUEUED_EVERY.0 / 2);
    let is_due = |at| shared.clock.now().since(at) >= due;
    if word.is_granted || !word.sent_at.is_none_or(is_due) {
        return Ok(());
    }
    send(shared, downstream, ctx, ForwardStatus::Queued).await
}

/// Says that a model server may begin, once: before anything is sent to one. Clients get no message.
///
/// # Errors
/// The other node has given the request up, and nothing may begin here.
pub async fn send_granted(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<(), RequestError> {
    match ctx.interim_state() {
        Some(word) if !word.is_granted => {}
        _ => return Ok(()),
    }
    check_awaited(shared, downstream, ctx)?;
    send(shared, downstream, ctx, ForwardStatus::Granted).await
}

/// Checks that the forwarding node still waits: its connection stands, and the last message is younger than
/// the time after which it gives up.
///
/// # Errors
/// The forwarding node does not wait any more.
pub fn check_awaited(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<(), RequestError> {
    let Some(word) = ctx.interim_state().filter(|word| !word.is_granted) else {
        return Ok(());
    };
    let age = word.sent_at.map(|at| shared.clock.now().since(at));
    let is_old = age.is_some_and(|age| age >= GIVEN_UP_AFTER);
    if is_old || downstream.closed().now_or_never().is_some() {
        ctx.record_client_gone();
        return Err(RequestError::Aborted);
    }
    Ok(())
}

async fn send(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    interim: ForwardStatus,
) -> Result<(), RequestError> {
    let limit = Duration::from_millis(GIVEN_UP_AFTER.0);
    // Noted as of before: the other node counts from when it hears it.
    let at = shared.clock.now();
    match timeout(limit, downstream.report(interim)).await {
        Ok(Ok(())) => {
            ctx.record_interim(interim, at);
            Ok(())
        }
        Ok(Err(_)) | Err(_) => {
            ctx.record_client_gone();
            Err(RequestError::Aborted)
        }
    }
}
