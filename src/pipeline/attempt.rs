//! Step 10 of the walk: the request to a model server, and to another one when that is allowed.
//!
//! The number of attempts is the core's decision (retry budget). No attempt follows the first byte of a
//! response, or a server that may have started to work.

mod error;
pub mod progress;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::{EndpointId, PermitRequest};
use infergate_core::api::Call;
use infergate_core::model::{Payload, Task};
use infergate_core::routing::verdict::retry_after;
use infergate_core::routing::{
    EndpointSignal, FailureCause, FallbackState, PathOwner, ResponseVerdict, RetryTarget,
};
use infergate_core::trace_context::TRACEPARENT;
use infergate_core::{Millis, Refusal};

use crate::pipeline::admission::heartbeat::Heartbeat;
use crate::pipeline::admission::interim;
use crate::pipeline::admission::recheck::recheck;
use crate::pipeline::admission::{AdmissionGrant, admit, refund_tokens};
use crate::pipeline::attempt::error::AttemptError;
use crate::pipeline::attempt::progress::{HeadWait, wait_for_head};
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::fallback::{ModelError, ModelFallback};
use crate::pipeline::forwarding::forward::{ForwardReply, forward};
use crate::pipeline::forwarding::response::ForwardedResponse;
use crate::pipeline::relay::RelayResult;
use crate::pipeline::task::PreparedRequest;
use crate::plugin::TaskSession;
use crate::state::Account;
use crate::state::Shared;
use crate::state::header_filter::{PassedHeaders, is_web_page};
use crate::telemetry::AttemptResult;
use crate::trace::{AttemptTrace, RetryDecision};
use crate::upstream::{
    ModelRuntime, OutboundRequest, Permit, ResponseTransformer, RetryPlan, SendError,
    UpstreamRequest, UpstreamResponse, saturated,
};

/// Content type of a body where the request names none.
const JSON: &str = "application/json";
const TIMEOUT: FailureCause = FailureCause::Named("timeout");
const FIRST_BYTE: FailureCause = FailureCause::Named("first byte late");
const BROKEN: FailureCause = FailureCause::Named("broken answer");

/// Source of the response.
#[allow(
    clippy::large_enum_variant,
    reason = "moved twice a request; a box would cost requests that stay here an allocation"
)]
pub enum UpstreamReply {
    /// From a model server of this node.
    Local(Permit, UpstreamResponse),
    /// From another node.
    Peer(Box<ForwardedResponse>),
}

/// The tries of one request at one model.
pub struct Attempts<'a> {
    shared: &'a Shared,
    model: Arc<ModelRuntime>,
    prepared: PreparedRequest,
    headers: PassedHeaders,
    /// The request as the last target wants it, and the model name it was shaped for.
    upstream_request: UpstreamRequest,
    encoded_for: Arc<str>,
    answered_ok: bool,
    /// The present try is a retry at a proven endpoint.
    at_proven: bool,
    /// Start of the last attempt.
    sent_us: u64,
    trace: AttemptTrace,
}

impl<'a> Attempts<'a> {
    /// Shapes the request, so that input the server cannot take is refused before it waits.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`].
    pub fn new(
        shared: &'a Shared,
        model: &Arc<ModelRuntime>,
        prepared: PreparedRequest,
        passing: &PassedHeaders,
        ctx: &RequestContext,
    ) -> Result<Attempts<'a>, Refusal> {
        let first = model
            .spec
            .endpoints
            .first()
            .and_then(|e| e.backend_model.clone());
        let name = first.unwrap_or_else(|| model.spec.id.as_str().into());
        let request = shape(model, &prepared, &name)?;
        let content_type = request.content_type.as_deref().unwrap_or(JSON);
        let own = [
            ("content-type", content_type),
            ("x-request-id", ctx.request_id()),
        ];
        let headers = passing.with_lines(&own);
        Ok(Attempts {
            shared,
            model: Arc::clone(model),
            prepared,
            headers,
            upstream_request: request,
            encoded_for: name,
            answered_ok: false,
            at_proven: false,
            sent_us: 0,
            trace: AttemptTrace::default(),
        })
    }

    /// The request as the model's task has made it.
    pub fn call(&self) -> &Call {
        &self.prepared.call
    }

    /// Bytes this holds beside the client's own body.
    pub fn copied_bytes(&self) -> u64 {
        let own = &self.prepared.call.body;
        let request = &self.upstream_request.body;
        let shared = own.as_ptr() == request.as_ptr();
        let copied = if shared { 0 } else { request.len() as u64 };
        self.prepared.copied_bytes + copied
    }

    /// Returns whether the request asks for a stream of events.
    pub fn is_streaming(&self) -> bool {
        self.upstream_request.streams
    }

    /// Waits for a permit and asks, until a server or another node answers. The tries made so far
    /// stand in the ctx's event, and `fallback` says how many of the rest are this model's.
    ///
    /// # Errors
    /// Admission's refusals, [`Refusal::UpstreamFailed`] with the budget spent, or the client left.
    pub async fn run(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        request: PermitRequest,
        heartbeat: Option<Duration>,
        fallback: &ModelFallback<'_>,
        granted: Option<Permit>,
    ) -> Result<UpstreamReply, ModelError> {
        let shared = self.shared;
        let mut request = request;
        let mut granted = granted;
        let mut beat = match ctx.can.reports_status {
            true => Heartbeat::for_forward(),
            false => Heartbeat::new(heartbeat),
        };
        let model = Arc::clone(&self.model);
        if ctx.can.counts_demand {
            model.gate.count_request();
        }
        loop {
            let grant = match granted.take() {
                Some(permit) => {
                    ctx.record_grant();
                    Ok(AdmissionGrant::Local(permit))
                }
                None => admit(shared, downstream, ctx, &model, request.clone(), &mut beat).await,
            };
            let grant = recheck(shared, ctx, &model, &request, grant).await?;
            if fallback.is_barred() {
                if let AdmissionGrant::Local(_) = grant {
                    refund_tokens(&model, &request);
                }
                return Err(ModelError::from_admission(
                    Refusal::NoHealthyEndpoint.into(),
                ));
            }
            let failed = match grant {
                AdmissionGrant::Local(permit) => {
                    interim::send_granted(self.shared, downstream, ctx).await?;
                    match self.try_local(downstream, ctx, &request, &permit).await? {
                        Ok(response) => return Ok(UpstreamReply::Local(permit, response)),
                        Err(failure) => {
                            request.avoid.push(permit.endpoint);
                            failure
                        }
                    }
                }
                AdmissionGrant::Peer(plan) => {
                    // Boxed: a request that stays here has no room for the state of a forward.
                    let response = forward(shared, downstream, ctx, &model, plan, &mut beat);
                    match Box::pin(response).await? {
                        ForwardReply::Response(peer) => return Ok(UpstreamReply::Peer(peer)),
                        ForwardReply::NoRoom => {
                            request.is_retry = true;
                            continue;
                        }
                        ForwardReply::Failed(failure) => AttemptError::Peer(failure),
                        ForwardReply::Lost => AttemptError::Lost,
                    }
                }
            };
            let unproven = self.decide_retry(ctx, failed, &request, fallback.state())?;
            request.avoid.extend(unproven);
            request.is_retry = true;
        }
    }

    /// Makes one attempt at a local server and records its effect on health and tokens.
    async fn try_local(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        request: &PermitRequest,
        permit: &Permit,
    ) -> Result<Result<UpstreamResponse, AttemptError>, RequestError> {
        ctx.record_attempt(&permit.target);
        self.model.metrics.record_endpoint_health(permit.health);
        let tried = self.send_once(downstream, ctx, permit).await;
        ctx.trace.update_attempt(&self.trace);
        let tried = tried?;
        if tried.is_err() {
            // A server's failure is not its users' consumption.
            refund_tokens(&self.model, request);
            ctx.record_local_failure();
        }
        Ok(tried)
    }

    /// Decides on another attempt and returns further endpoints to avoid, or the request's result.
    fn decide_retry(
        &mut self,
        ctx: &mut RequestContext,
        failed: AttemptError,
        request: &PermitRequest,
        state: FallbackState,
    ) -> Result<Vec<EndpointId>, ModelError> {
        let gate = &self.model.gate;
        let tries = ctx.attempts_used();
        if std::mem::take(&mut self.at_proven) {
            gate.record_proven_retry_failure();
        }
        // What another node has failed may be served here.
        let has_fresh = match failed {
            AttemptError::Peer(_) => true,
            _ => gate.has_untried(&request.avoid) || (ctx.can.may_queue && ctx.may_forward()),
        };
        let retry = failed.retry_class();
        let has_try = ctx.has_errors_left()
            && state.may_retry_model(failed.fallback_reason(), tries, has_fresh)
            && (has_fresh || !failed.is_final());
        let after_node = matches!(failed, AttemptError::Peer(_));
        let decided = retry
            .filter(|_| has_try)
            .map(|failure| gate.plan_retry(tries, failure, &request.avoid, after_node));
        let again = decided.as_ref().is_some_and(|decided| decided.allowed);
        let proven = |decided: &RetryPlan| decided.target == RetryTarget::Proven;
        ctx.trace.record_retry_decision(RetryDecision {
            failure: retry,
            allowed: again,
            proven: decided.as_ref().is_some_and(proven),
            kept_for_next: !has_try,
            tries,
            model_left: gate.retries_left(),
        });
        match decided.filter(|decided| decided.allowed) {
            Some(decided) => {
                self.at_proven = proven(&decided);
                Ok(decided.avoid)
            }
            None => Err(failed.into_model_error(gate.expected_wait(), gate.pause_left())),
        }
    }

    /// Sends the request once; returns the head of a usable response, or why there is none.
    async fn send_once(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        permit: &Permit,
    ) -> Result<Result<UpstreamResponse, AttemptError>, RequestError> {
        let continuous_usage = self.model.has_continuous_usage(&permit.target.url);
        let prepared = &mut self.prepared.call.continuous_usage;
        let changed = std::mem::replace(prepared, continuous_usage) != continuous_usage;
        if changed || self.encoded_for != permit.target.backend_model {
            self.encoded_for = Arc::clone(&permit.target.backend_model);
            self.upstream_request = shape(&self.model, &self.prepared, &self.encoded_for)?;
        }
        let sent_at = self.shared.clock.now();
        self.sent_us = self.shared.clock.micros();
        self.trace = AttemptTrace::begin(self.shared.clock);
        ctx.trace.begin_attempt(self.sent_us, &permit.target);
        let headers = self.headers.towards(permit.target.is_external);
        let headers = with_trace_context(headers, ctx);
        let outbound = OutboundRequest {
            method: "POST",
            path: &self.upstream_request.path,
            headers: &headers,
            body: &self.upstream_request.body,
            fresh: ctx.needs_fresh_connection,
        };
        let head_by = self.head_deadline(sent_at, ctx);
        let clock = self.shared.clock;
        let end = clock.instant(head_by).into();
        let deadline = clock.instant(ctx.deadline).into();
        let client = &self.shared.client;
        let sending = client.send(&permit.target, outbound, &mut self.trace.marks);
        let waited = wait_for_head(sending, downstream, ctx, end, deadline).await;
        let sent = match waited {
            Ok(HeadWait::Completed(sent)) => sent,
            Err(left) => {
                ctx.mark_sent_if_started(&self.trace.marks);
                self.record_result(
                    permit,
                    EndpointSignal::Neutral,
                    None,
                    AttemptResult::Abandoned,
                );
                return Err(left);
            }
            Ok(HeadWait::Deadline) => {
                if head_by < ctx.deadline {
                    let result = AttemptResult::TimedOut;
                    self.record_result(permit, EndpointSignal::Failure, Some(FIRST_BYTE), result);
                    return Ok(Err(AttemptError::Late));
                }
                ctx.mark_sent_if_started(&self.trace.marks);
                let seen = self.blame_for_silence(sent_at, ctx);
                let cause = (seen == EndpointSignal::Failure).then_some(TIMEOUT);
                self.record_result(permit, seen, cause, AttemptResult::TimedOut);
                return Err(Refusal::DeadlinePassed.into());
            }
        };
        // A request that met one crash shall meet no second one that looks like a closed connection.
        ctx.needs_fresh_connection |= self.trace.marks.replaced;
        match sent {
            Ok(response) => Ok(self.classify_head(permit, response).await),
            Err(error) => Ok(Err(self.classify_send_error(ctx, permit, &error))),
        }
    }

    /// Deadline for the head of a response.
    fn head_deadline(&self, sent_at: Millis, ctx: &RequestContext) -> Millis {
        match self.model.spec.first_byte_timeout_secs {
            Some(secs) => ctx.deadline.min(sent_at + Millis::from_secs(secs)),
            None => ctx.deadline,
        }
    }

    /// Classifies a send that ended without a response head.
    fn classify_send_error(
        &mut self,
        ctx: &RequestContext,
        permit: &Permit,
        error: &SendError,
    ) -> AttemptError {
        if let Some(repeated) = permit.target.warnings.due(self.shared.clock.now()) {
            tracing::warn!(
                request_id = &**ctx.request_id(),
                url = &*permit.target.url,
                cause = error.cause(),
                error = error as &dyn std::error::Error,
                repeated,
                "no answer from a model server"
            );
        }
        let (seen, result, no_answer) = match error {
            SendError::Connect(_) => (
                EndpointSignal::Unusable,
                AttemptResult::ConnectFailed,
                AttemptError::NotConnected,
            ),
            SendError::NotTrusted(_) => (
                EndpointSignal::Unusable,
                AttemptResult::NotTrusted,
                AttemptError::NotTrusted,
            ),
            SendError::Lost(_) => (
                EndpointSignal::Failure,
                AttemptResult::ConnectionLost,
                AttemptError::Lost,
            ),
        };
        let cause = Some(FailureCause::Named(error.cause()));
        self.record_result(permit, seen, cause, result);
        no_answer
    }

    /// Returns what silence until the deadline says about the server. A server is blamed only if it had most
    /// of the model's time: the queue or a short deadline of the caller may have used the rest.
    fn blame_for_silence(&self, sent_at: Millis, ctx: &RequestContext) -> EndpointSignal {
        let rule = ctx.snapshot.deadline;
        let given = rule.deadline(Millis::ZERO, self.model.spec.timeout_secs, None);
        let had = self.shared.clock.now().since(sent_at);
        match had.0 * 2 >= given.0 {
            true => EndpointSignal::Failure,
            false => EndpointSignal::Neutral,
        }
    }

    async fn classify_head(
        &mut self,
        permit: &Permit,
        response: UpstreamResponse,
    ) -> Result<UpstreamResponse, AttemptError> {
        self.trace.head_us = self.shared.clock.micros();
        let status = response.head().status.as_u16();
        self.trace.status = status;
        let headers = &response.head().headers;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_useless =
            text("content-type").is_some_and(is_web_page) || text("content-length") == Some("0");
        let now = || self.shared.clock.wall().unix_timestamp();
        let pause = match status {
            429 | 503 => retry_after(text, now),
            _ => None,
        };
        let verdict = ResponseVerdict::of_head(status, is_useless, self.path_owner());
        if verdict == ResponseVerdict::Accepted {
            self.answered_ok = true;
            return Ok(response);
        }
        let (result, no_answer) = match verdict {
            ResponseVerdict::Accepted
            | ResponseVerdict::RequestInvalid
            | ResponseVerdict::ServerFailed => (AttemptResult::Answered, None),
            ResponseVerdict::Busy => {
                permit.target.load.lock().record_out_of_capacity();
                (AttemptResult::Rejected, Some(AttemptError::Busy))
            }
            // A proxy in front of the server says this when the server broke while it worked.
            ResponseVerdict::Unavailable if status == 502 && self.trace.may_have_started_work() => {
                (AttemptResult::Rejected, Some(AttemptError::Lost))
            }
            ResponseVerdict::Unavailable => {
                (AttemptResult::Rejected, Some(AttemptError::Unavailable))
            }
            ResponseVerdict::Rejected => {
                permit.target.record_rejection(status);
                (AttemptResult::Rejected, Some(AttemptError::Rejected))
            }
            ResponseVerdict::Unusable => (AttemptResult::Rejected, Some(AttemptError::Lost)),
        };
        let cause = match (verdict.signal(), pause) {
            (EndpointSignal::Neutral, _) => None,
            (_, Some(_)) => Some(FailureCause::Paused(status)),
            (_, None) => Some(FailureCause::Status(status)),
        };
        self.record_result_with_pause(permit, verdict.signal(), cause, pause, result);
        let Some(no_answer) = no_answer else {
            return Ok(response);
        };
        // Under saturation most answers are these: without their connections a handshake a try.
        self.shared.client.discard(response).await;
        Err(no_answer)
    }

    /// Returns who chose the request's path.
    fn path_owner(&self) -> PathOwner {
        let spec = &self.model.spec;
        let is_plain = spec.backend.payload() == Payload::Task || spec.task == Task::DumbPipe;
        match is_plain || self.prepared.path.is_some() {
            true => PathOwner::Operator,
            false => PathOwner::Gateway,
        }
    }

    /// The reader of the answer, with the model's task for it.
    pub fn response_transformer(&self, task: Option<TaskSession>) -> ResponseTransformer {
        let (spec, call) = (&self.model.spec, &self.prepared.call);
        let answer = self.model.backend.decoder(call, spec.task);
        answer.for_model(spec, task).with_model_name(call, spec)
    }

    /// Gives the permit back and settles what was charged ahead.
    pub fn release(
        &mut self,
        permit: Permit,
        relayed: RelayResult,
        ctx: &mut RequestContext,
        account: &Account,
        charged: u32,
    ) {
        if self.answered_ok {
            match relayed {
                RelayResult::ServerFailed | RelayResult::Compressed => {
                    if relayed == RelayResult::Compressed {
                        permit.target.warn_compressed(self.shared.clock.now());
                    }
                    let cause = Some(BROKEN);
                    self.record_result(
                        &permit,
                        EndpointSignal::Failure,
                        cause,
                        AttemptResult::ConnectionLost,
                    );
                }
                // It had begun to answer as it should.
                RelayResult::Abandoned => {
                    self.record_result(
                        &permit,
                        EndpointSignal::Success,
                        None,
                        AttemptResult::Abandoned,
                    );
                }
                RelayResult::Whole => {
                    self.record_result(
                        &permit,
                        EndpointSignal::Success,
                        None,
                        AttemptResult::Answered,
                    );
                    permit.target.record_acceptance();
                    self.record_latency(&permit);
                    ctx.warn_of_unmetered(&self.model, &permit.target);
                }
            }
            ctx.trace.update_attempt(&self.trace);
        }
        if let Some(used) = ctx.tokens_used() {
            let account = &account.spec;
            self.model
                .gate
                .correct_tokens(&account.id, account.weight, charged.into(), used);
        }
        drop(permit);
    }

    /// Records the latency of the server, for policies that rank by it.
    fn record_latency(&self, permit: &Permit) {
        let since = |begin: u64, end: u64| saturated(end.saturating_sub(begin));
        let first_us = since(self.sent_us, self.trace.head_us);
        let whole_us = since(self.sent_us, self.shared.clock.micros());
        permit
            .target
            .load
            .lock()
            .record_response(first_us, whole_us);
    }

    fn record_result(
        &mut self,
        permit: &Permit,
        seen: EndpointSignal,
        cause: Option<FailureCause>,
        result: AttemptResult,
    ) {
        self.record_result_with_pause(permit, seen, cause, None, result);
    }

    fn record_result_with_pause(
        &mut self,
        permit: &Permit,
        seen: EndpointSignal,
        cause: Option<FailureCause>,
        pause: Option<Millis>,
        result: AttemptResult,
    ) {
        self.trace.result = Some(result);
        if result != AttemptResult::Answered {
            self.trace.failed_us = self.shared.clock.micros();
        }
        if matches!(seen, EndpointSignal::Failure | EndpointSignal::Unusable) {
            permit.target.load.lock().record_failure();
        }
        permit.record_attempt(seen, cause, pause);
        self.model.metrics.record_attempt(result);
    }
}

/// Adds the trace context of a recorded request to its header lines.
fn with_trace_context<'h>(lines: &'h [u8], ctx: &RequestContext) -> Cow<'h, [u8]> {
    match ctx.trace.outgoing_context() {
        Some(context) => {
            let own = format!("{TRACEPARENT}: {context}\r\n");
            Cow::Owned([lines, own.as_bytes()].concat())
        }
        None => Cow::Borrowed(lines),
    }
}

/// The request as a target wants it that calls the model `name`.
fn shape(
    model: &ModelRuntime,
    prepared: &PreparedRequest,
    name: &str,
) -> Result<UpstreamRequest, Refusal> {
    let request = model
        .backend
        .encode(&prepared.call, model.spec.task, name)?;
    Ok(match &prepared.path {
        Some(path) => UpstreamRequest {
            path: path.clone().into(),
            ..request
        },
        None => request,
    })
}
