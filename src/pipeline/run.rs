//! Request pipeline, steps 4 to 12: one inference request from its body to its event.
//!
//! Not a connection: receivers are in `downstream`. [`run`] reads top to bottom; decisions are the core's and
//! the configuration's, and model servers are reached only through `upstream`.
//!
//! Guards hold what is taken on the way (body memory, permit, queue slot, in-flight count) and are released
//! by drop. Leaving early, cancellation and panic need no code.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::admission::PermitRequest;
use infergate_core::api::{Call, Operation, body};
use tokio::sync::SemaphorePermit;

use super::admission::heartbeat::wait_interval;
use super::attempt::progress::comment_interval;
use super::attempt::request::ModelRequest;
use super::attempt::{Attempts, RespondingUpstream};
use super::body_check::{self, BodyCheck};
use super::context::RequestContext;
use super::downstream::{Downstream, RequestHead};
use super::entry::{charge_account, find_model};
use super::error::RequestError;
use super::fallback::{ModelError, ModelFallback};
use super::permit_request::permit_request;
use super::request::{InferenceRequest, ReceivedRequest};
use super::request_head::{AuthenticatedRequest, RequestedOperation};
use super::routing::EndpointPreference;
use super::{lora, request_body, task, terms};
use crate::plugin::TaskSession;
use crate::state::{BodyShare, Shared};
use crate::upstream::{ModelRuntime, Permit};

/// Steps 4 to 12.
pub async fn run(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    request: InferenceRequest,
) -> Result<(), RequestError> {
    let InferenceRequest {
        authenticated,
        operation,
        path_model,
        model,
        body,
        mut body_share,
        mut permit,
    } = request;
    let mut received = ReceivedRequest {
        authenticated,
        body,
    };
    // 4. The body, parsed as far as needed.
    let may_forward =
        ctx.can.may_forward && may_forward(shared, operation) && ctx.arriving.is_none();
    ctx.set_cluster(may_forward, received.body.len());
    ctx.set_operation(operation);
    let slot = translation_slot(shared, downstream, ctx, &received.body).await?;
    let named = (operation, path_model);
    let head = downstream.request_head();
    let mut call = parse_call(head, ctx, named, &received.body, &mut body_share)?;
    drop(slot);
    terms::apply_profile(ctx, &mut call);
    // 5. The model, and whether this account may use it.
    let account = &received.authenticated.account;
    let requested_timeout = received.authenticated.requested_timeout;
    let model = match model {
        Some(model) => model,
        None => find_model(ctx, &call.model, account)?,
    };
    call = terms::fill_in(ctx, call, &mut body_share)?;
    // 6. One deadline for queue, server and stream, and what the request may cost of the day.
    ctx.set_deadline(model.spec.timeout_secs, requested_timeout);
    ctx.reserve_quota(&account.spec, &model, &call)?;
    charge_account(shared, ctx, account, (&model, &call))?;
    terms::record_passed_over(ctx, account, &call);
    // 7 to 10, at the model, and at its fallbacks for as long as no server has started to work.
    let mut fallback = ModelFallback::begin(shared, ctx, &account.spec, model, call);
    let (body_share, permit) = (&mut body_share, &mut permit);
    let body_bytes = body_share.bytes();
    let upstream = loop {
        let (request, models) = (&received, &mut fallback);
        let started = start_at_model(shared, downstream, ctx, request, models, body_share, permit);
        let is_outdated = match started.await {
            Ok(upstream) => break upstream,
            Err(ModelError::Outdated) => true,
            Err(error) => fallback.advance(ctx, error).map(|()| false)?,
        };
        if is_outdated {
            let slot = translation_slot(shared, downstream, ctx, &received.body).await?;
            let models = &mut fallback;
            reauthorize(shared, downstream, ctx, &mut received, models, body_share)?;
            drop(slot);
        }
        body_share.shrink(body_share.bytes() - body_bytes);
    };
    // 11, 12. The response, chunk by chunk, and what is given back. No other server can need the request.
    drop((fallback, received.body));
    let account = received.authenticated.account;
    upstream.relay(shared, downstream, ctx, &account).await
}

/// Returns whether other nodes may serve the request: they forward no WebSocket.
fn may_forward(shared: &Shared, operation: Operation) -> bool {
    operation != Operation::WebSocket && shared.cluster.has_joined()
}

/// Slot for step 4, where parsing the body takes long; held until that is done.
async fn translation_slot<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    body: &Bytes,
) -> Result<Option<SemaphorePermit<'a>>, RequestError> {
    match request_body::is_costly(ctx, body) {
        true => {
            let slot = Box::pin(body_check::acquire_slot(shared, downstream, ctx)).await?;
            Ok(Some(slot))
        }
        false => Ok(None),
    }
}

/// Step 4: the body as a call, with the model that the request is to be served by.
fn parse_call(
    head: RequestHead<'_>,
    ctx: &RequestContext,
    (operation, path_model): (Operation, Option<String>),
    body: &Bytes,
    body_share: &mut BodyShare,
) -> Result<Call, Refusal> {
    let mut call = request_body::read_call(head, ctx, operation, path_model, body.clone())?;
    // A dialect that was translated has a copy of the body.
    if call.body.as_ptr() != body.as_ptr() && !body_share.grow(call.body.len() as u64) {
        return Err(Refusal::BodyBudgetSpent);
    }
    call.model = ctx.resolve_model_name(call.model);
    Ok(call)
}

/// Steps 7 to 10 at one model.
async fn start_at_model(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    received: &ReceivedRequest,
    fallback: &mut ModelFallback<'_>,
    body_share: &mut BodyShare,
    permit: &mut Option<Permit>,
) -> Result<RespondingUpstream, ModelError> {
    // 7. A large body that takes long is checked off the worker.
    let check = body_check::begin(shared, downstream, ctx, fallback).await?;
    let call = fallback.call()?;
    let model = fallback.model();
    let (request, task, mut wanted) =
        prepare_request(ctx, received, (model, call), body_share, check)?;
    let mut attempts = Attempts::new(shared, model, received, request, task);
    // 8. The order of endpoints. The gate picks among those that are free, so that the choice cannot go
    // stale in the queue.
    let (request, clock) = (attempts.request(), shared.clock);
    let held = permit.as_ref().filter(|held| held.is_of(&model.gate));
    let urgency = (wanted.priority, held.map(|held| held.endpoint));
    let preference = EndpointPreference::find(model, ctx, request, urgency, clock);
    wanted.endpoint_order = preference.order.clone();
    wanted.is_retry = fallback.is_resumed();
    wanted.has_alternative = fallback.has_alternative(ctx.attempts);
    if ctx.can.exchanges_permit {
        *permit = permit
            .take()
            .map(|held| preference.exchange(model, &wanted, held, clock));
    }
    // 9, 10. A permit, then the request; again elsewhere while the budget allows. A node that forwards sends
    // its own signs of life, and takes a head for an answer.
    let has_comments = attempts.is_streaming() && downstream.can_stream() && ctx.can.heartbeats;
    let heartbeat = wait_interval(&model.spec).filter(|_| has_comments);
    ctx.comment_interval = comment_interval(&model.spec).filter(|_| has_comments);
    let upstream = attempts
        .run(downstream, ctx, &mut wanted, heartbeat, fallback, permit)
        .await?;
    if let Some(response) = upstream.local() {
        preference.record_choice(model, response.attempt.url());
    }
    Ok(upstream)
}

/// Step 7: the request as the model's servers get it, the session of its task, and what it asks of admission.
fn prepare_request(
    ctx: &mut RequestContext,
    received: &ReceivedRequest,
    (model, call): (&ModelRuntime, Call),
    body_share: &mut BodyShare,
    check: BodyCheck<'_>,
) -> Result<(ModelRequest, Option<TaskSession>, PermitRequest), ModelError> {
    let AuthenticatedRequest {
        account,
        passed_headers,
        reject_if_busy,
        ..
    } = &received.authenticated;
    let call = with_parameters(call, model, body_share)?;
    let payer = &account.spec.id;
    let adapter = lora::find_adapter(payer, model, &call).map_err(ModelError::Unfit)?;
    // Before the task, whose payload may hide the images.
    let wanted = permit_request(ctx, account, model, &call, *reject_if_busy);
    let (mut prepared, task) = task::prepare(ctx, payer, (model, call), body_share, check)?;
    if let Some(adapter) = adapter {
        prepared = adapter.apply(prepared).map_err(ModelError::Unfit)?;
    }
    let request = ModelRequest::new(model, prepared, passed_headers, ctx);
    let request = request.map_err(ModelError::Unfit)?;
    if ctx.response_started && !request.is_streaming() {
        // The client has been told that events follow.
        return Err(ModelError::Unfit(Refusal::Internal));
    }
    if !body_share.grow(request.copied_bytes()) {
        return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
    }
    Ok((request, task, wanted))
}

/// The request with the parameters that the model's operator wants; a copy of its body has a part of
/// `body_share`.
fn with_parameters(
    call: Call,
    model: &ModelRuntime,
    body_share: &mut BodyShare,
) -> Result<Call, ModelError> {
    let parameters = &model.spec.parameters;
    if parameters.is_empty() {
        return Ok(call);
    }
    let before = call.body.as_ptr();
    let call = body::with_parameters(call, parameters).map_err(ModelError::Unfit)?;
    if call.body.as_ptr() != before && !body_share.grow(call.body.len() as u64) {
        return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
    }
    Ok(call)
}

/// Steps 2, 4 and 5 once more, under the configuration that holds now.
fn reauthorize<'a>(
    shared: &'a Shared,
    downstream: &impl Downstream,
    ctx: &mut RequestContext,
    received: &mut ReceivedRequest,
    models: &mut ModelFallback<'a>,
    body_share: &mut BodyShare,
) -> Result<(), RequestError> {
    ctx.snapshot = shared.snapshot.load_full();
    ctx.terms = None;
    let head = downstream.request_head();
    let (authenticated, requested) = AuthenticatedRequest::read(head, ctx)?;
    let RequestedOperation::Call(operation, path_model) = requested else {
        return Err(Refusal::NoSuchRoute.into());
    };
    let path_model = path_model.map(|model| ctx.resolve_model_name(model));
    let body = received.body.clone();
    let mut call = request_body::read_call(head, ctx, operation, path_model, body)?;
    call.model = ctx.resolve_model_name(call.model);
    terms::apply_profile(ctx, &mut call);
    received.authenticated = authenticated;
    let account = &received.authenticated.account;
    let model = find_model(ctx, &call.model, account)?;
    let call = terms::fill_in(ctx, call, body_share)?;
    ctx.exchange_quota(&account.spec, &model, &call);
    ctx.set_model(&model, &model);
    let mut resumed = ModelFallback::begin(shared, ctx, &account.spec, model, call);
    resumed.resume_after(models.model());
    *models = resumed;
    Ok(())
}
