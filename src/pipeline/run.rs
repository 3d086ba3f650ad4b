//! Request pipeline, steps 4 to 12: one inference request from its body to its event.
//!
//! Not a connection: receivers are in `downstream`. [`run`] reads top to bottom; decisions are the core's and
//! the configuration's, and model servers are reached only through `upstream`.
//!
//! Guards hold what is taken on the way (body memory, permit, queue slot, in-flight count) and are released
//! by drop. Leaving early, cancellation and panic need no code.

use std::time::Duration;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::{Call, Operation, body};
use infergate_core::routing::FallbackReason;

use super::attempt::progress::comment_interval;
use super::attempt::{Attempts, UpstreamReply};
use super::context::RequestContext;
use super::downstream::{Downstream, RequestHead};
use super::entry::find_model;
use super::error::RequestError;
use super::fallback::{ModelError, ModelFallback};
use super::forwarding::response::ForwardedResponse;
use super::permit_request::{permit_request, tokens_ahead};
use super::relay::{Relay, RelayResult};
use super::request::InferenceRequest;
use super::request_head::{AuthenticatedRequest, RequestedOperation};
use super::routing::EndpointPreference;
use super::{body_check, request_body, task};
use crate::state::{Account, BodyShare, Shared};
use crate::upstream::{ModelRuntime, Permit, ResponseTransformer, UpstreamResponse};

/// Source of a response that has started.
#[allow(
    clippy::large_enum_variant,
    reason = "moved once a request; a box would cost requests that stay here an allocation"
)]
enum Upstream<'a> {
    Local(LocalUpstream<'a>),
    Peer(Box<ForwardedResponse>),
}

/// A model server of this node that has sent its head.
struct LocalUpstream<'a> {
    attempts: Attempts<'a>,
    permit: Permit,
    response: UpstreamResponse,
    transformer: ResponseTransformer,
    /// Tokens charged ahead.
    charged_tokens: u32,
}

/// Steps 4 to 12.
pub async fn run(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    request: InferenceRequest,
) -> Result<(), RequestError> {
    let InferenceRequest {
        mut authenticated,
        operation,
        path_model,
        model,
        body,
        mut body_share,
        mut permit,
    } = request;
    // 4. The body, parsed as far as needed.
    if shared.cluster.has_joined() || ctx.forwarding.is_some() {
        ctx.begin_forwarding(authenticated.replayable(downstream.request_head(), &body));
    }
    ctx.set_operation(operation);
    let slot = match request_body::is_costly(ctx, &body) {
        true => Some(Box::pin(body_check::acquire_slot(shared, downstream, ctx)).await?),
        false => None,
    };
    let head = downstream.request_head();
    let call = parse_call(head, ctx, (operation, path_model), &body, &mut body_share)?;
    drop(slot);
    ctx.set_end_user(call.client_id.as_deref());
    // 5. The model, and whether this account may use it.
    let model = match model {
        Some(model) => model,
        None => find_model(ctx, &call.model, &authenticated.account)?,
    };
    // 6. One deadline for queue, server and stream, and what the request may cost of the day.
    ctx.set_deadline(model.spec.timeout_secs, authenticated.requested_timeout);
    ctx.reserve_quota(&authenticated.account.spec, &model, &call)?;
    if ctx.can.charges_rate {
        let now = shared.clock.now();
        ctx.account_guard = authenticated.account.enter(|| tokens_ahead(&call), now)?;
    }
    // 7 to 10, at the model, and at its fallbacks for as long as no server has started to work.
    let mut fallback = ModelFallback::begin(shared, ctx, &authenticated.account.spec, model, call);
    let body_bytes = body_share.bytes();
    let upstream = loop {
        let started = start_at_model(
            shared,
            downstream,
            ctx,
            &authenticated,
            &mut fallback,
            &mut body_share,
            &mut permit,
        );
        match started.await {
            Ok(upstream) => break upstream,
            Err(ModelError::Outdated) => {
                (authenticated, fallback) = reauthorize(shared, downstream, ctx, &body, fallback)?;
            }
            Err(error) => fallback.advance(ctx, error)?,
        }
        body_share.shrink(body_share.bytes() - body_bytes);
    };
    // 11, 12. The response, chunk by chunk, and what is given back.
    match upstream {
        Upstream::Local(upstream) => {
            relay_response(shared, downstream, ctx, upstream, &authenticated.account).await
        }
        Upstream::Peer(response) => Box::pin(response.relay(shared, downstream, ctx)).await,
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
async fn start_at_model<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    authenticated: &AuthenticatedRequest,
    fallback: &mut ModelFallback<'_>,
    body_share: &mut BodyShare,
    permit: &mut Option<Permit>,
) -> Result<Upstream<'a>, ModelError> {
    let AuthenticatedRequest {
        account,
        passed_headers,
        reject_if_busy,
        ..
    } = authenticated;
    let (call, model) = (fallback.call()?, fallback.model());
    let call = with_parameters(call, model, body_share)?;
    // 7. The request as the server gets it.
    let mut wanted = permit_request(ctx, account, model, &call, *reject_if_busy);
    let payer = &account.spec.id;
    let (prepared, task) =
        task::prepare(shared, downstream, ctx, payer, (model, call), body_share).await?;
    let mut attempts =
        Attempts::new(shared, model, prepared, passed_headers, ctx).map_err(ModelError::Unfit)?;
    if ctx.response_started && !attempts.is_streaming() {
        // The client has been told that events follow.
        return Err(ModelError::Unfit(Refusal::Internal));
    }
    if !body_share.grow(attempts.copied_bytes()) {
        return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
    }
    // 8. The order of endpoints. The gate picks among those that are free, so that the choice cannot go
    // stale in the queue.
    let now = shared.clock.now();
    let preference = EndpointPreference::find(model, ctx, attempts.call(), wanted.priority, now);
    wanted.endpoint_order = preference.order.clone();
    wanted.is_retry = fallback.is_resumed();
    let state = fallback.state();
    wanted.has_alternative = state.may_fall_back(FallbackReason::Unhealthy, ctx.attempts);
    let charged_tokens = wanted.tokens;
    // 9, 10. A permit, then the request; again elsewhere while the budget allows. A node that forwards sends
    // its own signs of life, and takes a head for an answer.
    let has_comments = attempts.is_streaming() && downstream.can_stream() && ctx.can.heartbeats;
    let heartbeat = Duration::from_secs(model.spec.queue_heartbeat_secs);
    let heartbeat = (has_comments && !heartbeat.is_zero()).then_some(heartbeat);
    ctx.comment_interval = comment_interval(&model.spec).filter(|_| has_comments);
    let reply = attempts
        .run(downstream, ctx, wanted, heartbeat, fallback, permit.take())
        .await?;
    let (permit, response) = match reply {
        UpstreamReply::Local(permit, response) => (permit, response),
        UpstreamReply::Peer(response) => return Ok(Upstream::Peer(response)),
    };
    preference.record_choice(model, &permit.target.url);
    let transformer = attempts.response_transformer(task);
    Ok(Upstream::Local(LocalUpstream {
        attempts,
        permit,
        response,
        transformer,
        charged_tokens,
    }))
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
    body: &Bytes,
    former: ModelFallback<'a>,
) -> Result<(AuthenticatedRequest, ModelFallback<'a>), RequestError> {
    ctx.snapshot = shared.snapshot.load_full();
    let head = downstream.request_head();
    let (authenticated, requested) = AuthenticatedRequest::read(head, ctx)?;
    let RequestedOperation::Call(operation, path_model) = requested else {
        return Err(Refusal::NoSuchRoute.into());
    };
    let path_model = path_model.map(|model| ctx.resolve_model_name(model));
    let mut call = request_body::read_call(head, ctx, operation, path_model, body.clone())?;
    call.model = ctx.resolve_model_name(call.model);
    let account = &authenticated.account;
    let model = find_model(ctx, &call.model, account)?;
    ctx.exchange_quota(&account.spec, &model, &call);
    ctx.set_model(&model, &model);
    let mut fallback = ModelFallback::begin(shared, ctx, &account.spec, model, call);
    fallback.resume_after(former.model());
    Ok((authenticated, fallback))
}

/// Steps 11 and 12: the response, chunk by chunk; then the connection, the permit and tokens are given back.
async fn relay_response(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    upstream: LocalUpstream<'_>,
    account: &Account,
) -> Result<(), RequestError> {
    let LocalUpstream {
        mut attempts,
        permit,
        mut response,
        mut transformer,
        charged_tokens,
    } = upstream;
    let mut permit = Some(permit);
    // Called with the server's last byte, which may be long before the client's.
    let mut release = |relayed: RelayResult, ctx: &mut RequestContext| {
        if let Some(permit) = permit.take() {
            attempts.release(permit, relayed, ctx, account, charged_tokens);
        }
    };
    let relay = Relay::new(shared, downstream, ctx, &mut response, &mut release);
    let (relayed, result) = relay.run(&mut transformer).await;
    // The connection before the permit, so that the next request finds the connection warm.
    shared.client.finish(response).await;
    release(relayed, ctx);
    result
}
