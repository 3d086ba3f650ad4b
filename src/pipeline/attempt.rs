//! Step 10 of the request pipeline: the request to a model server or another node, and to a further one
//! when that is allowed.
//!
//! The number of attempts is the core's decision (retry budget). No attempt follows the first byte of a
//! response, or a server that may have started to work. Retries at servers without capacity wait before they ask for a
//! permit again.

mod arriving;
mod capacity_pause;
mod chat_form;
mod error;
mod local;
pub mod progress;
pub mod request;
mod response;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use infergate_core::admission::{EndpointId, PermitRequest};
use infergate_core::routing::{CapacityRetries, FallbackState, RetryTarget};
use infergate_core::{Millis, Refusal};

use crate::pipeline::admission::heartbeat::Heartbeat;
use crate::pipeline::admission::interim;
use crate::pipeline::admission::recheck::recheck;
use crate::pipeline::admission::{admit, has_peer_with_permit, may_serve_elsewhere, refund_tokens};
use crate::pipeline::attempt::capacity_pause::wait_for_capacity;
use crate::pipeline::attempt::error::AttemptError;
use crate::pipeline::attempt::local::LocalAttempt;
use crate::pipeline::attempt::request::ModelRequest;
use crate::pipeline::attempt::response::LocalResponse;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::fallback::{ModelError, ModelFallback};
use crate::pipeline::forwarding::ForwardPlan;
use crate::pipeline::forwarding::forward::{ForwardReply, forward};
use crate::pipeline::forwarding::response::ForwardedResponse;
use crate::pipeline::request::ReceivedRequest;
use crate::pipeline::upstream::Upstream;
use crate::plugin::TaskSession;
use crate::state::{Account, Shared};
use crate::trace::RetryDecision;
use crate::upstream::{ModelRuntime, Permit, RetryPlan};

/// Upstream whose response has started.
pub type RespondingUpstream = Upstream<LocalResponse, Box<ForwardedResponse>>;

impl RespondingUpstream {
    /// Sends the response to the client; what was taken for it goes back.
    ///
    /// # Errors
    /// The client left, or the response broke off.
    pub fn relay<'a>(
        self,
        shared: &'a Shared,
        downstream: &'a mut impl Downstream,
        ctx: &'a mut RequestContext,
        account: &'a Account,
    ) -> impl Future<Output = Result<(), RequestError>> + Send {
        match self {
            Upstream::Local(response) => {
                Either::Left(response.relay(shared, downstream, ctx, account))
            }
            // Boxed: a request that stays here has no room for the state of a forward.
            Upstream::Peer(response) => {
                Either::Right(Box::pin(response.relay(shared, downstream, ctx)))
            }
        }
    }
}

/// Attempts of one request at one model.
pub struct Attempts<'a> {
    shared: &'a Shared,
    model: &'a Arc<ModelRuntime>,
    /// For another node.
    received: &'a ReceivedRequest,
    /// For the model's servers.
    request: ModelRequest,
    /// For the response.
    task: Option<TaskSession>,
    /// The present attempt is a retry at a proven endpoint.
    at_proven: bool,
    /// Status of the latest answer of a server; 0 without one.
    status: u16,
    capacity_retries: CapacityRetries,
}

/// Next attempt, as decided.
enum NextAttempt {
    /// At once, and not at these endpoints while a proven one has room.
    AtOnce(Vec<EndpointId>),
    /// After a pause, at any endpoint.
    AfterPause(Millis),
}

impl<'a> Attempts<'a> {
    /// Creates the attempts; none is made yet.
    pub fn new(
        shared: &'a Shared,
        model: &'a Arc<ModelRuntime>,
        received: &'a ReceivedRequest,
        request: ModelRequest,
        task: Option<TaskSession>,
    ) -> Attempts<'a> {
        Attempts {
            shared,
            model,
            received,
            request,
            task,
            at_proven: false,
            status: 0,
            capacity_retries: CapacityRetries::default(),
        }
    }

    /// Returns the request in the form of the model's servers.
    pub fn request(&self) -> &ModelRequest {
        &self.request
    }

    /// Returns whether the request asks for a stream of events.
    pub fn is_streaming(&self) -> bool {
        self.request.is_streaming()
    }

    /// Waits for a permit and sends the request, until a server or another node responds. `fallback` says how many
    /// of the remaining attempts are this model's. A permit that was `granted` before is used first.
    ///
    /// # Errors
    /// Admission's refusals, [`Refusal::UpstreamFailed`] with the budget spent, or the client left.
    pub async fn run(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        wanted: &mut PermitRequest,
        heartbeat: Option<Duration>,
        fallback: &ModelFallback<'_>,
        granted: &mut Option<Permit>,
    ) -> Result<RespondingUpstream, ModelError> {
        let (shared, model) = (self.shared, self.model);
        let mut beat = match ctx.can.reports_status {
            true => Heartbeat::for_forward(),
            false => Heartbeat::new(heartbeat),
        };
        let first_us = shared.clock.recent_micros();
        if ctx.can.counts_demand {
            model.gate.count_request(Millis(first_us / 1000));
        }
        self.count_client(wanted, Millis(first_us / 1000));
        let mut first_us = Some(first_us);
        loop {
            let now_us = first_us
                .take()
                .unwrap_or_else(|| shared.clock.recent_micros());
            // 9. A permit here, or a node that has one.
            let grant = match granted.take() {
                Some(permit) => {
                    self.record_granted(ctx, &permit, now_us);
                    Ok(Upstream::Local(permit))
                }
                None => admit(shared, downstream, ctx, model, wanted, &mut beat, now_us).await,
            };
            let grant = recheck(shared, ctx, model, wanted, grant).await?;
            if fallback.is_barred() {
                if grant.local().is_some() {
                    refund_tokens(model, wanted);
                }
                let refusal = Refusal::NoHealthyEndpoint;
                return Err(ModelError::from_admission(refusal.into(), model));
            }
            // 10. The request goes out.
            let failed = match grant {
                Upstream::Local(permit) => {
                    interim::send_granted(shared, downstream, ctx).await?;
                    match self.try_local(downstream, ctx, wanted, permit).await? {
                        Ok(response) => return Ok(Upstream::Local(response)),
                        Err(failed) => failed,
                    }
                }
                Upstream::Peer(plan) => {
                    // Boxed: a request that stays here has no room for the state of a forward.
                    let replied = Box::pin(self.try_peer(downstream, ctx, plan, &mut beat));
                    match replied.await? {
                        Ok(response) => return Ok(Upstream::Peer(response)),
                        // The next node, or the queue here.
                        Err(None) => {
                            wanted.is_retry = true;
                            continue;
                        }
                        Err(Some(failed)) => failed,
                    }
                }
            };
            // Once more, at another server where there is one.
            let next = self.decide_retry(ctx, failed, wanted, fallback.state())?;
            self.prepare(downstream, ctx, wanted, next, &mut beat)
                .await?;
        }
    }

    /// Sends the request to another node. Without an error and without a response it has no room there.
    async fn try_peer(
        &self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        plan: ForwardPlan,
        beat: &mut Heartbeat,
    ) -> Result<Result<Box<ForwardedResponse>, Option<AttemptError>>, ModelError> {
        let (shared, model) = (self.shared, self.model);
        let sent = forward(shared, downstream, ctx, model, plan, self.received, beat);
        Ok(match sent.await? {
            ForwardReply::Response(response) => Ok(response),
            ForwardReply::NoRoom => Err(None),
            ForwardReply::Unfit(_) if may_serve_elsewhere(shared, ctx, model) => Err(None),
            ForwardReply::Unfit(cause) => return Err(ModelError::Unfit(cause.refusal())),
            ForwardReply::Failed(failure) => Err(Some(AttemptError::Peer(failure))),
            ForwardReply::Lost => Err(Some(AttemptError::Lost)),
        })
    }

    /// Prepares the request for the next attempt, and waits until it is due: a wait for a permit, to its event.
    async fn prepare(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        wanted: &mut PermitRequest,
        next: NextAttempt,
        beat: &mut Heartbeat,
    ) -> Result<(), ModelError> {
        match next {
            NextAttempt::AtOnce(unproven) => wanted.avoid.extend(unproven),
            NextAttempt::AfterPause(pause) => {
                let (shared, model) = (self.shared, self.model);
                ctx.trace.times.begin_pause(shared.clock.recent_micros());
                // Boxed: few requests wait for servers without capacity.
                let waiting = wait_for_capacity(shared, downstream, ctx, model, pause, beat);
                let waited = Box::pin(waiting).await;
                ctx.trace.times.end_wait(shared.clock.recent_micros());
                waited?;
                wanted.avoid.clear();
            }
        }
        wanted.is_retry = true;
        Ok(())
    }

    /// Counts a request for a model whose processes the gateway starts, where it names its client.
    fn count_client(&self, wanted: &PermitRequest, now: Millis) {
        let Some(client) = wanted.client.as_ref().filter(|_| !wanted.is_retry) else {
            return;
        };
        let is_cold = self.model.gate.is_cold();
        let mut clients = self.shared.client_demand.lock();
        clients.record_request(&client.id, &self.model.spec.id, is_cold, now);
    }

    /// Records a permit that was granted before the request began.
    fn record_granted(&self, ctx: &mut RequestContext, permit: &Permit, now_us: u64) {
        ctx.record_grant(now_us);
        ctx.trace.record_permit(now_us, permit);
        if permit.waited_us > 0 {
            let class = permit.turn.class;
            self.model
                .metrics
                .record_class_wait(class, permit.waited_us.into());
        }
    }

    /// Makes one attempt at a model server of this node. After a failure the permit is back, and the server is among
    /// those to avoid.
    async fn try_local(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        wanted: &mut PermitRequest,
        permit: Permit,
    ) -> Result<Result<LocalResponse, AttemptError>, RequestError> {
        ctx.record_attempt(&permit.target);
        if let Some(waited_us) = permit.load_wait_us {
            ctx.trace.times.record_load_wait(waited_us.into());
        }
        if let Some(keep_alive) = ctx.keep_alive() {
            self.model.gate.record_keep_alive(keep_alive);
        }
        self.model.metrics.record_endpoint_health(permit.health);
        let endpoint = permit.endpoint;
        let mut attempt = LocalAttempt::new(Arc::clone(self.model), permit);
        let sent = loop {
            {
                // In a scope of its own: the wait has no room for it.
                let sent = attempt
                    .send(self.shared, &mut self.request, downstream, ctx)
                    .await;
                if !attempt.is_slot_awaited() || self.request.is_partly_gone() {
                    break sent;
                }
            }
            // Boxed: few servers free a slot after their answer.
            Box::pin(attempt.wait_for_slot(self.shared, downstream, ctx)).await?;
        };
        ctx.trace.update_attempt(attempt.trace());
        self.status = attempt.trace().status;
        match sent? {
            Ok(response) => Ok(Ok(LocalResponse {
                attempt,
                response,
                transformer: self
                    .request
                    .response_transformer(self.model, self.task.take()),
                charged_tokens: wanted.tokens,
            })),
            Err(failed) => {
                // A server's failure is not its users' consumption.
                refund_tokens(self.model, wanted);
                ctx.record_local_failure();
                wanted.avoid.push(endpoint);
                Ok(Err(failed))
            }
        }
    }

    /// Returns whether the request may go to no other server and no other model: a WebSocket was asked for, or a part of the
    /// body is not here any more.
    fn is_sent_for_good(&self, failed: AttemptError) -> bool {
        let is_unsent = matches!(
            failed,
            AttemptError::NotConnected | AttemptError::NotTrusted
        );
        (self.request.is_upgrade() && !is_unsent) || self.request.is_partly_gone()
    }

    /// Returns the request's result at this model.
    fn unserved(&self, failed: AttemptError) -> ModelError {
        let gate = &self.model.gate;
        match failed.into_model_error(gate.expected_wait(), gate.pause_left()) {
            ModelError::Fallback(_, refusal) if self.is_sent_for_good(failed) => refusal.into(),
            error => error,
        }
    }

    /// Returns the pause before another attempt at servers without capacity; none where the client gets a refusal.
    fn plan_pause(
        &mut self,
        ctx: &RequestContext,
        failed: AttemptError,
        wanted: &PermitRequest,
        fallback: FallbackState,
    ) -> Option<Millis> {
        let tries = ctx.attempts_used();
        let may_wait = matches!(failed, AttemptError::Busy)
            && self.waits_for_capacity(ctx, wanted)
            && ctx.has_errors_left()
            && !self.is_sent_for_good(failed)
            && !fallback.may_fall_back(failed.fallback_reason(), tries);
        if !may_wait {
            return None;
        }
        let (spec, gate) = (&self.model.spec, &self.model.gate);
        let (retries, answer) = (&mut self.capacity_retries, (self.status, tries));
        gate.plan_capacity_retry(retries, spec.out_of_capacity_retries, answer, ctx.deadline)
    }

    /// Returns whether the request may be sent again to servers without capacity.
    fn waits_for_capacity(&self, ctx: &RequestContext, wanted: &PermitRequest) -> bool {
        let has_retries = self.model.spec.out_of_capacity_retries > 0;
        has_retries && ctx.can.retries_capacity && !wanted.no_wait
    }

    /// Decides on another attempt, or returns the request's result.
    fn decide_retry(
        &mut self,
        ctx: &mut RequestContext,
        failed: AttemptError,
        wanted: &PermitRequest,
        fallback: FallbackState,
    ) -> Result<NextAttempt, ModelError> {
        let gate = &self.model.gate;
        let tries = ctx.attempts_used();
        if std::mem::take(&mut self.at_proven) {
            gate.record_proven_retry_failure();
        }
        let has_fresh = match failed {
            // What another node has failed may be served here.
            AttemptError::Peer(_) => true,
            _ if gate.has_untried(&wanted.avoid) => true,
            // Its servers are not asked again at once.
            AttemptError::Busy if self.waits_for_capacity(ctx, wanted) => {
                has_peer_with_permit(self.shared, ctx, self.model)
            }
            _ => ctx.can.may_queue && ctx.may_forward(),
        };
        let retry = failed.retry_class();
        let has_try = ctx.has_errors_left()
            && !self.is_sent_for_good(failed)
            && fallback.may_retry_model(failed.fallback_reason(), tries, has_fresh)
            && (has_fresh || !failed.is_final());
        let after_node = matches!(failed, AttemptError::Peer(_));
        let decided = retry
            .filter(|_| has_try)
            .map(|failure| gate.plan_retry(tries, failure, &wanted.avoid, after_node));
        let again = decided.as_ref().is_some_and(|decided| decided.allowed);
        let proven = |decided: &RetryPlan| decided.target == RetryTarget::Proven;
        let pause = match again {
            true => None,
            false => self.plan_pause(ctx, failed, wanted, fallback),
        };
        ctx.trace.record_retry_decision(RetryDecision {
            failure: retry,
            allowed: again || pause.is_some(),
            proven: decided.as_ref().is_some_and(proven),
            pause,
            kept_for_next: !has_try,
            tries,
            model_left: gate.retries_left(),
        });
        match decided.filter(|decided| decided.allowed) {
            Some(decided) => {
                self.at_proven = proven(&decided);
                Ok(NextAttempt::AtOnce(decided.avoid))
            }
            None => match pause {
                Some(pause) => Ok(NextAttempt::AfterPause(pause)),
                None => Err(self.unserved(failed)),
            },
        }
    }
}
