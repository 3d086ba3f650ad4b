//! Place of the check and the translation of a body: its worker, or one of a few slots off the workers.
//!
//! Not the check, which the model's task makes, nor the translation, which is the dialect's.

use std::pin::pin;
use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::routing::cluster::QUEUED_EVERY;
use tokio::sync::SemaphorePermit;
use tokio::time::{sleep, sleep_until};

use super::admission::interim;
use super::context::RequestContext;
use super::downstream::Downstream;
use super::error::RequestError;
use super::fallback::ModelFallback;
use super::task::passes_task;
use crate::state::{LARGE_BYTES, Shared};

/// Place of the check of a body by the model's task.
pub enum BodyCheck<'a> {
    /// On the worker: it is short.
    OnWorker,
    /// Done: the body was found to fit, which took less than the wait for a slot.
    Passed,
    /// Off the worker; the slot is held until the check has ended.
    OffWorker { _slot: SemaphorePermit<'a> },
}

/// Decides where the body for the present model is checked, and waits for a slot where one is needed.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn begin<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    fallback: &ModelFallback<'_>,
) -> Result<BodyCheck<'a>, RequestError> {
    let Some(call) = fallback.untaken_call() else {
        return Ok(BodyCheck::OnWorker);
    };
    let model = fallback.model();
    let is_large = call.body.len() >= LARGE_BYTES;
    let is_checked = model.task.is_active() && !passes_task(call);
    if !is_checked || !(is_large || model.task.is_heavy()) {
        return Ok(BodyCheck::OnWorker);
    }
    // Parameters of the operator make another body.
    let checked = call
        .plain_json()
        .filter(|_| model.spec.parameters.is_empty());
    if checked.is_some_and(|body| model.task.passes_at_once(body)) {
        return Ok(BodyCheck::Passed);
    }
    // Boxed: few bodies wait for a slot.
    let slot = Box::pin(acquire_slot(shared, downstream, ctx)).await?;
    Ok(BodyCheck::OffWorker { _slot: slot })
}

/// Waits for a slot, until the deadline or the client's departure. A node that forwards is told meanwhile that
/// the request waits. Dropping the slot releases it.
///
/// # Errors
/// The deadline passed, or the client left.
pub async fn acquire_slot<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
) -> Result<SemaphorePermit<'a>, RequestError> {
    let mut deadline = pin!(sleep_until(shared.clock.instant(ctx.deadline).into()));
    let mut slot = pin!(shared.body_checks.slots.acquire());
    loop {
        tokio::select! {
            biased;
            slot = &mut slot => return slot.map_err(|_| Refusal::Internal.into()),
            () = downstream.closed() => {
                ctx.record_client_gone();
                return Err(RequestError::Aborted);
            }
            () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
            () = sleep(Duration::from_millis(QUEUED_EVERY.0)), if ctx.can.reports_status => {}
        }
        // The node that forwards takes a longer silence for a loss.
        interim::send_queued(shared, downstream, ctx).await?;
    }
}
