//! Step 10 of the request pipeline where another node serves: the request goes there, and its answer begins or it
//! comes back.
//!
//! The request is held by its owner meanwhile, not here. The node that responds owns the event. A request that is rejected,
//! or whose node is lost before a permit was granted, goes on here with the rest of its budget. A request
//! that is given up is reset, so that the other node does not start it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use infergate_core::routing::cluster::{ForwardOutcome, ForwardTarget};
use infergate_core::routing::{AttemptFailure, Hops};
use infergate_core::trace_context::TRACEPARENT;
use infergate_core::{Millis, Refusal};
use tokio::time::{Instant, sleep_until};

use crate::peer::{
    ForwardGuard, ForwardProgress, ForwardRejection, ForwardedHead, NodeWatch, RejectionCause,
    UnfitCause,
};
use crate::pipeline::admission::heartbeat::Heartbeat;
use crate::pipeline::admission::interim;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::forwarding::response::ForwardedResponse;
use crate::pipeline::forwarding::{ForwardPlan, final_message_grace};
use crate::pipeline::request::ReceivedRequest;
use crate::pipeline::respond::SignOfLife;
use crate::state::Shared;
use crate::telemetry::ForwardResult;
use crate::trace::ForwardStepEnd;
use crate::upstream::{ModelRuntime, OutboundRequest, SendError, UpstreamResponse, saturated};

/// Room for the header lines of a forwarded request: those of an SDK, and the metadata.
const FORWARDED_LINES_BYTES: usize = 1024;

/// Result of a forward.
pub enum ForwardReply {
    /// The node has begun to answer.
    Response(Box<ForwardedResponse>),
    /// The node has no capacity.
    NoRoom,
    /// The node does not serve such a request.
    Unfit(UnfitCause),
    /// The node could not be reached, was lost before it had granted a permit, or its model servers failed.
    /// The value is the class of failure for the retry budget.
    Failed(AttemptFailure),
    /// The node was lost after it had granted a permit: a model server may have started to work.
    Lost,
}

/// Forward in flight.
struct ForwardAttempt<'a> {
    shared: &'a Shared,
    model: &'a ModelRuntime,
    plan: ForwardPlan,
    guard: ForwardGuard,
    lent_hops: Hops,
    begin_us: u64,
    progress: ForwardProgress,
    watch: NodeWatch,
}

/// Sends the request to another node and waits until it answers or rejects it. The client gets
/// heartbeats while the request waits there.
///
/// # Errors
/// The deadline, or the client left.
pub async fn forward(
    shared: &Shared,
    downstream: &mut impl Downstream,
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    plan: ForwardPlan,
    received: &ReceivedRequest,
    heartbeat: &mut Heartbeat,
) -> Result<ForwardReply, RequestError> {
    let began_us = shared.clock.micros();
    // The way there and back is not the other node's to use up.
    let left = ctx.deadline.since(Millis(began_us / 1000));
    let left = left.since(Millis(u64::from(plan.target.rtt_us).div_ceil(1000)));
    let sent = shared.cluster.begin_forward(&plan.target);
    let generation = shared.cluster.here().generation;
    let head = downstream.request_head();
    let target = head.target.to_owned();
    let mut headers = BytesMut::with_capacity(FORWARDED_LINES_BYTES);
    received.authenticated.write_forwarded(head, &mut headers);
    let lent = write_metadata(ctx, model, &plan, (generation, left), &mut headers)?;
    let forward = ForwardAttempt {
        shared,
        model,
        progress: ForwardProgress::new(shared.clock),
        watch: shared.cluster.watch(&plan.target.node),
        plan,
        guard: sent,
        lent_hops: lent,
        begin_us: began_us,
    };
    ctx.trace
        .begin_forward(began_us, &forward.plan.target, forward.plan.wait_max);
    if let Some(context) = ctx.trace.outgoing_context() {
        let line = format!("{TRACEPARENT}: {context}\r\n");
        headers.extend_from_slice(line.as_bytes());
    }
    let outbound = OutboundRequest {
        method: "POST",
        path: &target,
        headers: &headers,
        body: &received.body,
        fresh: false,
        is_upgrade: false,
        rest: None,
    };
    forward.run(downstream, ctx, outbound, heartbeat).await
}

/// Writes what the other node has to know of the request beside its head; returns what it takes along.
fn write_metadata(
    ctx: &mut RequestContext,
    model: &ModelRuntime,
    plan: &ForwardPlan,
    (generation, left): (u64, Millis),
    lines: &mut BytesMut,
) -> Result<Hops, Refusal> {
    let request_id = Arc::clone(ctx.request_id());
    let (elapsed_us, is_limited) = (ctx.elapsed_us(), ctx.has_reservation());
    let client = ctx.client();
    let account = ctx.account().cloned().ok_or(Refusal::Internal)?;
    let requested_model = ctx.replaced_model().cloned();
    let (attempts, queued_us) = (ctx.attempts, ctx.trace.times.queued_us());
    let (from, forced_site) = (Arc::clone(&ctx.snapshot.node), ctx.forced_site.clone());
    let state = ctx.begin_forward();
    let lent = state.advance(plan, left);
    let metadata = ForwardedHead {
        from,
        generation,
        hops: lent,
        request_id,
        client,
        account,
        is_limited,
        model: model.spec.id.clone(),
        requested_model,
        path: state.path.clone(),
        attempts,
        elapsed_us,
        queued_us,
        forced_site,
        tariff: match state.is_from_client() {
            true => model.tariff_text.clone(),
            false => state.tariff().cloned(),
        },
    };
    metadata.write(lines);
    Ok(metadata.hops)
}

impl ForwardAttempt<'_> {
    async fn run(
        mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        outbound: OutboundRequest<'_>,
        heartbeat: &mut Heartbeat,
    ) -> Result<ForwardReply, RequestError> {
        match self.wait(downstream, ctx, outbound, heartbeat).await {
            Ok(Ok((response, first))) => self.handle_head(ctx, response, first).await,
            Ok(Err(error)) => Ok(self.record_loss(ctx, &error)),
            Err(left) => {
                self.model.metrics.record_forward(ForwardResult::CutOff);
                // It had all the time there was, and then some for its word to arrive.
                if let RequestError::Refused(Refusal::DeadlinePassed) = left {
                    self.guard.finish(ForwardOutcome::Failed);
                }
                Err(left)
            }
        }
    }

    /// The head of an answer and its first piece, while listening to client, deadline, and whether the
    /// node still lives.
    async fn wait(
        &mut self,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
        outbound: OutboundRequest<'_>,
        heartbeat: &mut Heartbeat,
    ) -> Result<Result<(UpstreamResponse, Option<Bytes>), SendError>, RequestError> {
        let ForwardAttempt {
            shared,
            plan: ForwardPlan { target: chosen, .. },
            progress: hearing,
            watch,
            ..
        } = self;
        let answering = send_and_read_head(shared, chosen, outbound, hearing);
        tokio::pin!(answering);
        let progress_deadline =
            Instant::from(shared.clock.instant(ctx.deadline)) + final_message_grace(chosen.rtt_us);
        let deadline = sleep_until(progress_deadline);
        tokio::pin!(deadline);
        let lost_in_queue = shared.cluster.lost_while_queued(&chosen.node, hearing);
        let lost_at_server = watch.lost();
        tokio::pin!(lost_in_queue, lost_at_server);
        let mut is_granted = false;
        loop {
            tokio::select! {
                biased;
                answered = &mut answering => return Ok(answered),
                () = downstream.closed() => {
                    ctx.record_client_gone();
                    return Err(RequestError::Aborted);
                }
                () = &mut deadline => return Err(Refusal::DeadlinePassed.into()),
                () = hearing.wait_granted(), if !is_granted => {
                    is_granted = true;
                    // The node that forwards it here may not repeat it from now on.
                    interim::send_granted(shared, downstream, ctx).await?;
                }
                () = &mut lost_in_queue, if !is_granted => return Ok(Err(silence_error())),
                () = &mut lost_at_server, if is_granted => return Ok(Err(silence_error())),
                () = heartbeat.due() => {
                    let sign = Some(SignOfLife::queued());
                    heartbeat.send(shared, downstream, ctx, sign, progress_deadline).await?;
                }
            }
        }
    }

    /// A head came: an answer for the client, or the request comes back.
    async fn handle_head(
        self,
        ctx: &mut RequestContext,
        response: UpstreamResponse,
        first: Option<Bytes>,
    ) -> Result<ForwardReply, RequestError> {
        let rejection = match ForwardRejection::read(&response.head().fields) {
            Ok(None) => {
                return Ok(ForwardReply::Response(Box::new(
                    self.into_response(ctx, response, first),
                )));
            }
            Ok(Some(rejection)) => rejection,
            Err(error) => return Ok(self.record_loss(ctx, &SendError::Lost(error.into()))),
        };
        let forwarding = ctx.forwarding.as_mut().ok_or(Refusal::Internal)?;
        if let Err(error) = forwarding
            .hops
            .settle_returned(&self.lent_hops, &rejection.hops)
        {
            return Ok(self.record_loss(ctx, &SendError::Lost(error.into())));
        }
        self.shared.peer_client.finish(response).await;
        let (reply, ended, result) = match rejection.cause {
            RejectionCause::NoCapacity { free, wait_ms } => {
                forwarding.hops.budget.record_out_of_capacity();
                let ended = ForwardOutcome::Refused { free, wait_ms };
                (ForwardReply::NoRoom, ended, ForwardResult::NoRoom)
            }
            RejectionCause::Unfit(cause) => {
                forwarding.hops.budget.record_out_of_capacity();
                forwarding.record_unfit(&self.plan.target.node.name);
                (
                    ForwardReply::Unfit(cause),
                    ForwardOutcome::Unfit,
                    ForwardResult::Unfit,
                )
            }
            RejectionCause::Failed => {
                let reply = ForwardReply::Failed(AttemptFailure::Failed);
                (reply, ForwardOutcome::ServersFailed, ForwardResult::Failed)
            }
        };
        ctx.attempts = ctx.attempts.max(rejection.attempts);
        self.finish(ctx, ended, result);
        Ok(reply)
    }

    fn into_response(
        self,
        ctx: &mut RequestContext,
        response: UpstreamResponse,
        first: Option<Bytes>,
    ) -> ForwardedResponse {
        let now_us = self.shared.clock.micros();
        let status = response.head().status.as_u16();
        ctx.trace
            .end_forward(now_us, ForwardStepEnd::Answered(status));
        self.model.metrics.record_forward(ForwardResult::Answered);
        self.guard.record_response();
        if let Some(forwarding) = &mut ctx.forwarding {
            forwarding.set_event_elsewhere(true);
        }
        let ttft_us = saturated(now_us.saturating_sub(self.begin_us));
        let rtt_us = self.plan.target.rtt_us;
        ForwardedResponse::new(response, first, self.guard, self.watch, rtt_us, ttft_us)
    }

    /// Records that the node could not be reached or was lost. No server has started to work unless a permit
    /// was granted.
    fn record_loss(self, ctx: &mut RequestContext, error: &SendError) -> ForwardReply {
        let is_granted = self.progress.is_granted();
        tracing::warn!(
            request_id = &**ctx.request_id(),
            node = &*self.plan.target.node.name,
            granted = is_granted,
            error = error as &dyn std::error::Error,
            "no answer from another node"
        );
        let result = match error {
            SendError::Connect(_) => ForwardResult::ConnectFailed,
            SendError::NotTrusted(_) => ForwardResult::NotTrusted,
            SendError::Lost(_) => ForwardResult::Lost,
        };
        if let Some(forwarding) = &mut ctx.forwarding {
            match result {
                ForwardResult::Lost if is_granted => forwarding.hops.settle_lost(&self.lent_hops),
                ForwardResult::Lost => forwarding.hops.settle_lost_in_queue(),
                _ => forwarding.hops.budget.record_error(),
            };
        }
        self.finish(ctx, ForwardOutcome::Failed, result);
        match is_granted {
            true => ForwardReply::Lost,
            false => ForwardReply::Failed(AttemptFailure::NotConnected),
        }
    }

    fn finish(self, ctx: &mut RequestContext, ended: ForwardOutcome, result: ForwardResult) {
        let how = match ended {
            ForwardOutcome::Refused { free, wait_ms } => ForwardStepEnd::Rejected {
                result,
                free,
                wait_ms,
            },
            _ => ForwardStepEnd::Ended(result),
        };
        ctx.trace.end_forward(self.shared.clock.micros(), how);
        self.model.metrics.record_forward(result);
        if !matches!(result, ForwardResult::NoRoom | ForwardResult::Unfit) {
            let site = &self.plan.target.site;
            self.shared.metrics.record_forward_failure(site, result);
        }
        self.guard.finish(ended);
    }
}

/// Sends it, and reads the head of an answer with its first piece.
async fn send_and_read_head(
    shared: &Shared,
    chosen: &ForwardTarget,
    outbound: OutboundRequest<'_>,
    hearing: &ForwardProgress,
) -> Result<(UpstreamResponse, Option<Bytes>), SendError> {
    let channel = &shared.peer_client;
    let sending = channel.forward(&chosen.node, &chosen.address, outbound, hearing);
    let mut response = sending.await?;
    // The client has seen nothing before this.
    let first = response.chunk().await;
    let first = first.map_err(|error| SendError::Lost(error.into()))?;
    Ok((response, first))
}

fn silence_error() -> SendError {
    SendError::Lost("the node fell silent".into())
}
