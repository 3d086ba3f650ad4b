//! Request pipeline, steps 3 to 12: one inference request from its account to its event.
//!
//! Not a connection: receivers are in `downstream`. [`run`] reads top to bottom; decisions are the core's and
//! the configuration's, and model servers are reached only through `upstream`.
//!
//! Guards hold what is taken on the way (body memory, permit, queue slot, in-flight count) and are released
//! by drop. Leaving early, cancellation and panic need no code.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::admission::PermitRequest;
use infergate_core::api::{Call, Operation, body};
use infergate_core::model::{Access, Algorithm, Catalog};
use infergate_core::routing::FallbackReason;

use super::attempt::progress::comment_interval;
use super::attempt::{Attempts, UpstreamReply};
use super::context::RequestContext;
use super::downstream::{Downstream, RequestHead};
use super::error::RequestError;
use super::fallback::{ModelError, ModelFallback};
use super::forwarding::response::ForwardedResponse;
use super::relay::{Relay, RelayResult};
use super::request::InferenceRequest;
use super::request_head::{AuthenticatedRequest, RequestedOperation};
use super::routing::EndpointPreference;
use super::{request_body, respond, task};
use crate::state::{Account, BodyShare, Shared};
use crate::telemetry::RequestOutcome;
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

/// A server of some model has.
struct LocalUpstream<'a> {
    attempts: Attempts<'a>,
    permit: Permit,
    response: UpstreamResponse,
    transformer: ResponseTransformer,
    /// Tokens charged ahead.
    charged_tokens: u32,
}

/// Step 3: what is looked at before the body, so that a request that cannot pass is not read. Gives
/// the model that stands in the path.
pub fn enter(
    shared: &Shared,
    ctx: &mut RequestContext,
    head: &AuthenticatedRequest,
    path_model: Option<&str>,
) -> Result<Option<Arc<ModelRuntime>>, Refusal> {
    let found = path_model.map(|model| find_model(ctx, model, &head.account));
    let lane = found.transpose()?;
    if ctx.can.charges_rate {
        let spec = &head.account.spec;
        if let Some(limit) = spec.neurons_per_day {
            shared.quota.check(&spec.id, limit)?;
        }
        if head.account.has_rates() {
            ctx.rate_account = Some(Arc::clone(&head.account));
        }
        head.account.take_unit(shared.clock.now())?;
    }
    Ok(lane)
}

/// Steps 4 to 12.
pub async fn run(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    request: InferenceRequest,
) -> Result<(), RequestError> {
    let InferenceRequest {
        authenticated: mut head,
        operation,
        path_model,
        model: path_lane,
        body: bytes,
        mut body_share,
        mut permit,
    } = request;
    // 4. The body, parsed as far as needed.
    if shared.cluster.has_joined() || ctx.forwarding.is_some() {
        ctx.begin_forwarding(head.replayable(downstream.request_head(), &bytes));
    }
    ctx.set_operation(operation);
    let head_of_request = downstream.request_head();
    let call = parse_call(
        head_of_request,
        ctx,
        (operation, path_model),
        &bytes,
        &mut body_share,
    )?;
    ctx.event().client_id = call.client_id.as_deref().map(Arc::from);
    // 5. The model, and whether this account may use it.
    let lane = match path_lane {
        Some(lane) => lane,
        None => find_model(ctx, &call.model, &head.account)?,
    };
    // 6. One deadline for queue, server and stream, and what the request may cost of the day.
    ctx.set_deadline(lane.spec.timeout_secs, head.requested_timeout);
    ctx.reserve_quota(&head.account.spec, &lane, &call)?;
    if ctx.can.charges_rate {
        let now = shared.clock.now();
        ctx.account_guard = head.account.enter(|| tokens_ahead(&call), now)?;
    }
    // 7 to 10, at the model, and as long as nobody has begun to work at those of its ladder.
    let mut ladder = ModelFallback::begin(shared, ctx, &head.account.spec, lane, call);
    let body_bytes = body_share.bytes();
    let begun = loop {
        let begun = start_at_model(
            shared,
            downstream,
            ctx,
            &head,
            &mut ladder,
            &mut body_share,
            &mut permit,
        );
        match begun.await {
            Ok(begun) => break begun,
            Err(ModelError::Outdated) => {
                (head, ladder) = reauthorize(shared, downstream, ctx, &bytes, ladder)?;
            }
            Err(unserved) => ladder.advance(ctx, unserved)?,
        }
        body_share.shrink(body_share.bytes() - body_bytes);
    };
    // 11. The answer, chunk by chunk.
    let begun = match begun {
        Upstream::Local(begun) => begun,
        Upstream::Peer(away) => return Box::pin(away.relay(shared, downstream, ctx)).await,
    };
    finish(shared, downstream, ctx, begun, &head.account).await
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

/// Steps 11 and 12: the answer, chunk by chunk, and what goes back.
async fn finish(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    begun: LocalUpstream<'_>,
    account: &Account,
) -> Result<(), RequestError> {
    let LocalUpstream {
        mut attempts,
        permit,
        response: mut exchange,
        transformer: mut answer,
        charged_tokens: charged,
    } = begun;
    let mut permit = Some(permit);
    let mut release = |relayed: RelayResult, ctx: &mut RequestContext| {
        if let Some(permit) = permit.take() {
            attempts.release(permit, relayed, ctx, account, charged);
        }
    };
    let face = ctx.dialect();
    let relay = Relay::new(shared, downstream, ctx, &mut exchange, &mut release);
    let (relayed, ended) = relay.run(&mut answer, face).await;
    // The connection and the permit go back, in this order so that the next request finds the
    // connection warm; tokens are settled.
    shared.client.finish(exchange).await;
    release(relayed, ctx);
    ended
}

/// Steps 2, 4 and 5 once more, under the configuration that holds now.
fn reauthorize<'a>(
    shared: &'a Shared,
    downstream: &impl Downstream,
    ctx: &mut RequestContext,
    bytes: &Bytes,
    former: ModelFallback<'a>,
) -> Result<(AuthenticatedRequest, ModelFallback<'a>), RequestError> {
    ctx.snapshot = shared.snapshot.load_full();
    let (head, wanted) = AuthenticatedRequest::read(downstream.request_head(), ctx)?;
    let RequestedOperation::Call(operation, path_model) = wanted else {
        return Err(Refusal::NoSuchRoute.into());
    };
    let path_model = path_model.map(|model| ctx.resolve_model_name(model));
    let mut call = request_body::read_call(
        downstream.request_head(),
        ctx,
        operation,
        path_model,
        bytes.clone(),
    )?;
    call.model = ctx.resolve_model_name(call.model);
    let lane = find_model(ctx, &call.model, &head.account)?;
    ctx.exchange_quota(&head.account.spec, &lane, &call);
    ctx.set_model(&lane, &lane);
    let mut ladder = ModelFallback::begin(shared, ctx, &head.account.spec, lane, call);
    ladder.resume_after(former.model());
    Ok((head, ladder))
}

/// Steps 7 to 10 at one model.
async fn start_at_model<'a>(
    shared: &'a Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    head: &AuthenticatedRequest,
    ladder: &mut ModelFallback<'_>,
    body_share: &mut BodyShare,
    permit: &mut Option<Permit>,
) -> Result<Upstream<'a>, ModelError> {
    let (call, lane) = (ladder.call()?, ladder.model());
    let call = with_parameters(call, lane, body_share)?;
    // 7. What the server will be asked.
    let mut ask = ask_for(ctx, &head.account, lane, &call, head.reject_if_busy);
    let account = &head.account.spec.id;
    let (asked, task) =
        task::prepare(shared, downstream, ctx, account, (lane, call), body_share).await?;
    let mut attempts =
        Attempts::new(shared, lane, asked, &head.passed_headers, ctx).map_err(ModelError::Unfit)?;
    if ctx.response_started && !attempts.is_streaming() {
        // The client has been told that events follow.
        return Err(ModelError::Unfit(Refusal::Internal));
    }
    if !body_share.grow(attempts.copied_bytes()) {
        return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
    }
    // 8. Where it should go. The turnstile picks among what is free, so that the choice
    // cannot go stale in the queue.
    let now = shared.clock.now();
    let route = EndpointPreference::find(lane, ctx, attempts.call(), ask.priority, now);
    ask.endpoint_order = route.order.clone();
    ask.is_retry = ladder.is_resumed();
    let descent = ladder.state();
    ask.has_alternative = descent.may_fall_back(FallbackReason::Unhealthy, ctx.event().attempts);
    let charged = ask.tokens;
    // 9, 10. A permit, then the request; again elsewhere while the budget allows.
    let heartbeat = Duration::from_secs(lane.spec.queue_heartbeat_secs);
    // A node that forwards gives its own signs of life, and takes a head for an answer.
    let hears = attempts.is_streaming() && downstream.can_stream() && ctx.can.heartbeats;
    let heartbeat = (hears && !heartbeat.is_zero()).then_some(heartbeat);
    ctx.comment_interval = comment_interval(&lane.spec).filter(|_| hears);
    let served = attempts
        .run(downstream, ctx, ask, heartbeat, ladder, permit.take())
        .await?;
    let (permit, exchange) = match served {
        UpstreamReply::Local(permit, exchange) => (permit, exchange),
        UpstreamReply::Peer(away) => return Ok(Upstream::Peer(away)),
    };
    route.record_choice(lane, &permit.target.url);
    let answer = attempts.response_transformer(task);
    Ok(Upstream::Local(LocalUpstream {
        attempts,
        permit,
        response: exchange,
        transformer: answer,
        charged_tokens: charged,
    }))
}

/// Settles the account's tokens after the request, and refunds its unit where the request cost nothing.
pub fn settle_account(
    shared: &Shared,
    ctx: &mut RequestContext,
    account: &Account,
    ended: &Result<(), RequestError>,
) {
    if let Some(guard) = ctx.account_guard.take()
        && has_worked(ctx, ended)
    {
        guard.settle(ctx.tokens_used(), shared.clock.now());
    }
    if let Err(RequestError::Refused(refusal)) = ended
        && cost_nothing(refusal)
        && ctx.can.charges_rate
    {
        account.refund_unit();
    }
}

/// Returns whether work for the account used up some of its tokens: what a server failed to do did not.
fn has_worked(ctx: &mut RequestContext, ended: &Result<(), RequestError>) -> bool {
    let outcome = match ended {
        _ if ctx.is_event_elsewhere() => return true,
        Err(RequestError::Refused(refusal)) => respond::outcome_of(refusal),
        _ => ctx.event().outcome,
    };
    ctx.event().attempts > 0 && !matches!(outcome, RequestOutcome::Failed | RequestOutcome::Refused)
}

/// Returns whether a refused request leaves its account's pace as it was: there was no room for it, here
/// or in the account's day.
fn cost_nothing(refusal: &Refusal) -> bool {
    let no_room = matches!(refusal, Refusal::BodyBudgetSpent | Refusal::QuotaUsed);
    no_room || refusal.is_out_of_capacity()
}

fn find_model(
    ctx: &mut RequestContext,
    model: &str,
    account: &Account,
) -> Result<Arc<ModelRuntime>, Refusal> {
    let found = ctx.snapshot.catalog.model(model);
    ctx.trace
        .set_requested_model(model, found.map(|(_, spec)| &spec.id));
    let (index, spec) = found.ok_or(Refusal::NoSuchModel)?;
    let model_id = spec.id.clone();
    let lane = Arc::clone(ctx.snapshot.models.get(index));
    // Another node has looked already, by the same rules.
    let access = match ctx.can.checks_access {
        true => Catalog::access(&account.spec, &lane.spec),
        false => Access::Allowed,
    };
    ctx.event().model_id = Some(model_id);
    ctx.model = Some(Arc::clone(&lane));
    match access {
        Access::Allowed => Ok(lane),
        Access::Denied => Err(Refusal::NotAllowed),
        Access::Hidden => Err(Refusal::NoSuchModel),
    }
}

/// Generated tokens assumed when the caller sets no bound, and the most that is charged ahead:
/// the rest is corrected when the server reports what it used.
const TOKENS_AHEAD_MAX: u64 = 256;
/// Upper bound of prompt tokens charged in advance: no model reads more, and a larger debt would be held
/// against other requests of the account.
const PROMPT_AHEAD_MAX: u64 = 1 << 20;
/// `x_priority` of requests that name none.
const PRIORITY_DEFAULT: u8 = 5;

/// The request with the parameters that the model's operator wants; a copy of its body has a part of
/// `body_share`.
fn with_parameters(
    call: Call,
    lane: &ModelRuntime,
    body_share: &mut BodyShare,
) -> Result<Call, ModelError> {
    let parameters = &lane.spec.parameters;
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

/// Tokens that an account is charged before they are known.
fn tokens_ahead(call: &Call) -> u64 {
    let generated = call.max_tokens.unwrap_or(TOKENS_AHEAD_MAX);
    let prompt = call.prompt_tokens().min(PROMPT_AHEAD_MAX);
    prompt.saturating_add(generated.min(TOKENS_AHEAD_MAX))
}

/// Builds the admission request of the client's request. A task's payload may hide the images in it.
fn ask_for(
    ctx: &RequestContext,
    account: &Account,
    lane: &ModelRuntime,
    call: &Call,
    reject_if_busy: bool,
) -> PermitRequest {
    // Nobody else looks at tokens.
    let prompt = match lane.spec.queue.algorithm {
        Algorithm::TokenFair => call.prompt_tokens().min(PROMPT_AHEAD_MAX),
        Algorithm::Fifo | Algorithm::Fair | Algorithm::Priority => 1,
    };
    let generated = call
        .max_tokens
        .unwrap_or(TOKENS_AHEAD_MAX)
        .min(TOKENS_AHEAD_MAX);
    // Lower is more urgent, so the account's best is a floor for the number.
    let priority = call
        .priority
        .unwrap_or(PRIORITY_DEFAULT)
        .max(account.spec.max_priority);
    PermitRequest {
        account: account.spec.id.clone(),
        weight: account.spec.weight,
        priority,
        is_warm: false,
        tokens: u32::try_from(prompt.saturating_add(generated)).unwrap_or(u32::MAX),
        deadline: ctx.deadline,
        no_wait: reject_if_busy || call.reject_if_busy,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        has_alternative: false,
    }
}
