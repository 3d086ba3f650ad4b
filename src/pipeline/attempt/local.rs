//! Attempt at a model server of this node: the request goes out once, and its result is recorded.
//!
//! Not the decision on another attempt. Every result reaches three readers: the health of the endpoint, the metrics
//! of the model and the trace. The permit is held until the attempt is dropped or released.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use infergate_core::routing::verdict::{full_server_pause, retry_after};
use infergate_core::routing::{
    EndpointSignal, FAILED_DEPENDENCY, FailureCause, PathOwner, ResponseVerdict,
};
use infergate_core::{Millis, Refusal};
use tokio::time::sleep;

use crate::pipeline::arriving_body::BodyProgress;
use crate::pipeline::attempt::arriving::send_arriving;
use crate::pipeline::attempt::error::AttemptError;
use crate::pipeline::attempt::progress::{HeadWait, wait_for_head};
use crate::pipeline::attempt::request::ModelRequest;
use crate::pipeline::context::RequestContext;
use crate::pipeline::downstream::Downstream;
use crate::pipeline::error::RequestError;
use crate::pipeline::relay::RelayResult;
use crate::pipeline::websocket;
use crate::state::header_filter::is_web_page;
use crate::state::{Account, Shared};
use crate::telemetry::AttemptResult;
use crate::trace::AttemptTrace;
use crate::upstream::{
    ConnectionReport, ModelRuntime, Permit, SendError, UpstreamResponse, saturated,
};

const TIMEOUT: FailureCause = FailureCause::Named("timeout");
const FIRST_BYTE: FailureCause = FailureCause::Named("first byte late");
const BROKEN: FailureCause = FailureCause::Named("broken answer");
const BAD_HANDSHAKE: FailureCause = FailureCause::Named("broken handshake");

/// Attempt at one model server.
pub struct LocalAttempt {
    model: Arc<ModelRuntime>,
    permit: Permit,
    /// Last report about a WebSocket, of a server that has reports.
    connection_report: Option<Box<ConnectionReport>>,
    /// The server has accepted the request: what comes after the head counts for its health.
    is_accepted: bool,
    /// Start of the attempt, in microseconds on the clock.
    sent_us: u64,
    trace: AttemptTrace,
    /// Number of times that the server has had no free slot.
    full_times: u8,
    /// The request is to be sent to it again, after a pause.
    is_slot_awaited: bool,
    /// How far the body had come when the wait for the response ended.
    body: BodyProgress,
}

impl LocalAttempt {
    /// Creates the attempt with the permit it uses up.
    pub fn new(model: Arc<ModelRuntime>, permit: Permit) -> LocalAttempt {
        LocalAttempt {
            model,
            permit,
            connection_report: None,
            is_accepted: false,
            sent_us: 0,
            trace: AttemptTrace::default(),
            full_times: 0,
            is_slot_awaited: false,
            body: BodyProgress::Whole,
        }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> &Arc<str> {
        &self.permit.target.url
    }

    /// Sends the request; returns the head of a usable response, or the reason why there is none.
    ///
    /// # Errors
    /// The request ends: its deadline passed, the client left, or the server's form cannot hold it.
    pub async fn send(
        &mut self,
        shared: &Shared,
        request: &mut ModelRequest,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
    ) -> Result<Result<UpstreamResponse, AttemptError>, RequestError> {
        let clock = shared.clock;
        request.encode_for(&self.model, &self.permit.target)?;
        self.begin_at_server(shared, request, ctx);
        self.sent_us = clock.recent_micros();
        let sent_at = Millis(self.sent_us / 1000);
        self.trace = AttemptTrace::begin(clock);
        let target = &self.permit.target;
        if self.full_times == 0 {
            ctx.trace.begin_attempt(self.sent_us, target);
        }
        let headers = request.headers(target.is_external, ctx);
        let outbound = request.outbound(&self.model, &headers, ctx.needs_fresh_connection);
        let head_deadline = self.head_deadline(sent_at, ctx);
        let end = clock.instant(head_deadline).into();
        let deadline = clock.instant(ctx.deadline).into();
        let waited = {
            // Pinned here: as an argument it would take its room twice.
            let sending = pin!(shared.client.send(target, outbound, &mut self.trace.marks));
            match ctx.arriving.take() {
                None => wait_for_head(sending, downstream, ctx, end, deadline).await,
                Some(body) => {
                    send_arriving(sending, (shared, downstream, ctx), body, (end, deadline)).await
                }
            }
        };
        let sent_at = self.look_at_body(sent_at, ctx);
        let sent = match waited {
            Ok(HeadWait::Completed(sent)) => sent,
            Ok(HeadWait::Deadline) if self.head_deadline(sent_at, ctx) < ctx.deadline => {
                self.end_unsent_work();
                self.record_failure(clock.recent_micros(), FIRST_BYTE, AttemptResult::TimedOut);
                return Ok(Err(AttemptError::Late));
            }
            Ok(HeadWait::Deadline) => {
                self.mark_sent(ctx);
                self.end_unsent_work();
                self.record_silence(shared, sent_at, ctx);
                return Err(Refusal::DeadlinePassed.into());
            }
            Err(left) => {
                self.record_departure(clock.recent_micros(), ctx);
                return Err(left);
            }
        };
        // A request that met one crash shall meet no second one that looks like a closed connection.
        ctx.needs_fresh_connection |= self.trace.marks.replaced;
        match sent {
            Ok(mut response) => {
                // 202 tells of a run that goes on.
                if response.head().status != StatusCode::ACCEPTED {
                    self.permit.end_run();
                }
                response.measure_progress(&self.permit.target);
                if is_switched(request, &response) {
                    return Ok(self.accept_upgrade(shared, downstream, ctx, response));
                }
                let owner = request.path_owner(&self.model);
                Ok(self.classify_head(shared, response, owner).await)
            }
            Err(error) => Ok(Err(self.classify_send_error(shared, ctx, &error))),
        }
    }

    /// Begins what may go on at the server after the request: a run by name, or work whose end is reported.
    fn begin_at_server(
        &mut self,
        shared: &Shared,
        request: &mut ModelRequest,
        ctx: &RequestContext,
    ) {
        let is_upgrade = request.is_upgrade();
        match request.name_run(&self.model, ctx) {
            Some(path) => self.permit.begin_run(path.to_owned(), &shared.left_work),
            None if is_upgrade => {
                let report = self.permit.begin_connection(ctx.request_id());
                self.connection_report = report.map(Box::new);
            }
            None => self.permit.begin_work(ctx.request_id()),
        }
    }

    /// Records that nobody waits for the response any more.
    fn record_departure(&mut self, now_us: u64, ctx: &mut RequestContext) {
        self.mark_sent(ctx);
        self.end_unsent_work();
        let (signal, result) = (EndpointSignal::Neutral, AttemptResult::Abandoned);
        self.record(now_us, signal, None, result);
    }

    /// Looks how far a body has come that goes on as it comes, and returns the moment from which the server has had all.
    fn look_at_body(&mut self, sent_at: Millis, ctx: &RequestContext) -> Millis {
        let Some(body) = &ctx.arriving else {
            return sent_at;
        };
        self.body = body.progress();
        match body.came_us() {
            Some(came_us) => {
                self.sent_us = came_us;
                Millis(came_us / 1000)
            }
            None => sent_at,
        }
    }

    /// Marks the request as sent where a server may have worked on it, which it does not on a part of it.
    fn mark_sent(&self, ctx: &mut RequestContext) {
        if self.body == BodyProgress::Whole {
            ctx.mark_sent_if_started(&self.trace.marks);
        }
    }

    /// Ends the work of a request that was not sent whole: the permit is not held for it.
    fn end_unsent_work(&mut self) {
        if !self.trace.marks.is_head_sent() || self.body != BodyProgress::Whole {
            self.permit.end_work();
        }
    }

    /// Checks the 101 of a server: what does not fit the handshake is no answer.
    fn accept_upgrade(
        &mut self,
        shared: &Shared,
        downstream: &impl Downstream,
        ctx: &RequestContext,
        response: UpstreamResponse,
    ) -> Result<UpstreamResponse, AttemptError> {
        let now_us = shared.clock.recent_micros();
        self.trace.head_us = now_us;
        self.trace.status = response.head().status.as_u16();
        let asked = downstream.request_head().headers;
        let Err(fault) = websocket::check_answer(asked, &response.head().fields) else {
            self.is_accepted = true;
            return Ok(response);
        };
        let target = &self.permit.target;
        if let Some(repeated) = target.warnings.due(Millis(now_us / 1000)) {
            let (request_id, url) = (&**ctx.request_id(), &*target.url);
            tracing::warn!(
                request_id,
                url,
                fault,
                repeated,
                "a model server opens no WebSocket"
            );
        }
        self.permit.end_work();
        self.record_failure(now_us, BAD_HANDSHAKE, AttemptResult::Rejected);
        Err(AttemptError::Lost)
    }

    /// Returns whether the server had no free slot, and may have one soon.
    pub fn is_slot_awaited(&self) -> bool {
        self.is_slot_awaited
    }

    /// Waits until the request may be sent to its server again.
    ///
    /// # Errors
    /// The client left, or the deadline is over.
    pub async fn wait_for_slot(
        &mut self,
        shared: &Shared,
        downstream: &mut impl Downstream,
        ctx: &mut RequestContext,
    ) -> Result<(), RequestError> {
        self.is_slot_awaited = false;
        let pause = full_server_pause(self.full_times.into(), false).unwrap_or(Millis::ZERO);
        self.full_times += 1;
        let deadline = shared.clock.instant(ctx.deadline).into();
        let waiting = pin!(sleep(Duration::from_millis(pause.0)));
        match wait_for_head(waiting, downstream, ctx, deadline, deadline).await? {
            HeadWait::Completed(()) => Ok(()),
            HeadWait::Deadline => Err(Refusal::DeadlinePassed.into()),
        }
    }

    /// Deadline for the head of a response.
    fn head_deadline(&self, sent_at: Millis, ctx: &RequestContext) -> Millis {
        match self.model.spec.first_byte_timeout_secs {
            Some(secs) => ctx.deadline.min(sent_at + Millis::from_secs(secs)),
            None => ctx.deadline,
        }
    }

    /// Records silence until the deadline. The server is blamed only if it had most of the model's time: the queue
    /// or a short deadline of the caller may have used the rest.
    fn record_silence(&mut self, shared: &Shared, sent_at: Millis, ctx: &RequestContext) {
        let rule = ctx.snapshot.deadline;
        let given = rule.deadline(Millis::ZERO, self.model.spec.timeout_secs, None);
        let now_us = shared.clock.recent_micros();
        let had = Millis(now_us / 1000).since(sent_at);
        let (signal, cause) = match had.0 * 2 >= given.0 {
            true => (EndpointSignal::Failure, Some(TIMEOUT)),
            false => (EndpointSignal::Neutral, None),
        };
        self.record(now_us, signal, cause, AttemptResult::TimedOut);
    }

    /// Classifies a send that ended without a response head.
    fn classify_send_error(
        &mut self,
        shared: &Shared,
        ctx: &RequestContext,
        error: &SendError,
    ) -> AttemptError {
        if !matches!(error, SendError::Lost(_)) {
            self.permit.end_run();
            self.permit.end_work();
        }
        let target = &self.permit.target;
        let now_us = shared.clock.recent_micros();
        if let Some(repeated) = target.warnings.due(Millis(now_us / 1000)) {
            tracing::warn!(
                request_id = &**ctx.request_id(),
                url = &*target.url,
                cause = error.cause(),
                error = error as &dyn std::error::Error,
                repeated,
                "no answer from a model server"
            );
        }
        let (signal, result, failed) = match error {
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
        self.record(now_us, signal, cause, result);
        failed
    }

    /// Classifies the head of a response: for the client, or a failure of the attempt.
    async fn classify_head(
        &mut self,
        shared: &Shared,
        response: UpstreamResponse,
        path_owner: PathOwner,
    ) -> Result<UpstreamResponse, AttemptError> {
        self.trace.head_us = shared.clock.recent_micros();
        let status = response.head().status.as_u16();
        self.trace.status = status;
        let headers = &response.head().fields;
        let text = |name: &str| headers.text_of(name);
        // The operator says by retries that 424 is want of capacity.
        let has_retries = self.model.spec.out_of_capacity_retries > 0;
        let means_capacity = has_retries && !self.model.backend.fails_with_424();
        let is_useless =
            text("content-type").is_some_and(is_web_page) || text("content-length") == Some("0");
        let verdict = match self.model.backend.names_runs() {
            true => ResponseVerdict::of_prediction(status, is_useless),
            false => ResponseVerdict::of_head(status, is_useless, path_owner),
        };
        let verdict = verdict.with_failed_dependency(status, means_capacity);
        if status == 409 && verdict == ResponseVerdict::Busy {
            let has_others = self.model.gate.has_untried(&[self.permit.endpoint]);
            if full_server_pause(self.full_times.into(), has_others).is_some() {
                self.is_slot_awaited = true;
                Box::pin(shared.client.discard(response)).await;
                return Err(AttemptError::Busy);
            }
        }
        if verdict == ResponseVerdict::Accepted {
            self.is_accepted = true;
            return Ok(response);
        }
        self.permit.end_work();
        let now = || shared.clock.wall().unix_timestamp();
        let pause = match status {
            429 | 503 => retry_after(text, now),
            FAILED_DEPENDENCY if verdict == ResponseVerdict::Busy => retry_after(text, now),
            _ => None,
        };
        let failed = self.record_verdict(verdict, status, pause);
        let Some(failed) = failed else {
            return Ok(response);
        };
        // Boxed: few responses are read to their end here. Under saturation most are: without their connections
        // a handshake an attempt.
        Box::pin(shared.client.discard(response)).await;
        Err(failed)
    }

    /// Returns whether the server has had the whole request for long enough to have begun.
    fn may_have_started_work(&self) -> bool {
        self.body == BodyProgress::Whole && self.trace.may_have_started_work()
    }

    /// Records a head that was not accepted. Returns the failure; none where the response is the client's to read.
    fn record_verdict(
        &mut self,
        verdict: ResponseVerdict,
        status: u16,
        pause: Option<Millis>,
    ) -> Option<AttemptError> {
        let target = &self.permit.target;
        let failed = match verdict {
            ResponseVerdict::Accepted
            | ResponseVerdict::RequestInvalid
            | ResponseVerdict::ServerFailed => None,
            ResponseVerdict::Busy => {
                target.load.lock().record_out_of_capacity();
                Some(AttemptError::Busy)
            }
            // A proxy in front of the server says this when the server broke while it worked.
            ResponseVerdict::Unavailable if status == 502 && self.may_have_started_work() => {
                Some(AttemptError::Lost)
            }
            ResponseVerdict::Unavailable => Some(AttemptError::Unavailable),
            ResponseVerdict::Rejected => {
                target.record_rejection(status);
                Some(AttemptError::Rejected)
            }
            ResponseVerdict::Unusable => Some(AttemptError::Lost),
        };
        let cause = match (verdict.signal(), pause) {
            (EndpointSignal::Neutral, _) => None,
            (_, Some(_)) => Some(FailureCause::Paused(status)),
            (_, None) => Some(FailureCause::Status(status)),
        };
        let result = match failed {
            Some(_) => AttemptResult::Rejected,
            None => AttemptResult::Answered,
        };
        self.record_with_pause(self.trace.head_us, verdict.signal(), cause, pause, result);
        failed
    }

    /// Takes the last report about a WebSocket, which may still come.
    pub fn take_report(&mut self) -> Option<Box<ConnectionReport>> {
        self.connection_report.take()
    }

    /// Records how the relay of an accepted response ended, settles the tokens that were charged ahead, and gives
    /// the permit back.
    pub fn release(
        mut self,
        shared: &Shared,
        relayed: RelayResult,
        ctx: &mut RequestContext,
        account: &Account,
        charged_tokens: u32,
    ) {
        let now_us = shared.clock.recent_micros();
        if self.is_accepted {
            self.record_relay(now_us, relayed, ctx);
            ctx.trace.update_attempt(&self.trace);
        }
        if let Some(used) = ctx.tokens_used() {
            let (gate, account) = (&self.model.gate, &account.spec);
            gate.correct_tokens(&account.id, account.weight, charged_tokens.into(), used);
        }
        self.permit.release(Millis(now_us / 1000));
    }

    fn record_relay(&mut self, now_us: u64, relayed: RelayResult, ctx: &RequestContext) {
        match relayed {
            RelayResult::ServerFailed => {
                self.record_failure(now_us, BROKEN, AttemptResult::ConnectionLost);
            }
            RelayResult::Compressed => {
                self.permit.target.warn_compressed(Millis(now_us / 1000));
                self.record_failure(now_us, BROKEN, AttemptResult::ConnectionLost);
            }
            // The server had begun to answer as it should.
            RelayResult::Abandoned => {
                self.record(
                    now_us,
                    EndpointSignal::Success,
                    None,
                    AttemptResult::Abandoned,
                );
            }
            RelayResult::Upgraded => {
                self.record(
                    now_us,
                    EndpointSignal::Success,
                    None,
                    AttemptResult::Answered,
                );
                self.permit.target.record_acceptance();
            }
            RelayResult::Whole => {
                self.record(
                    now_us,
                    EndpointSignal::Success,
                    None,
                    AttemptResult::Answered,
                );
                let target = &self.permit.target;
                target.record_acceptance();
                self.record_latency(now_us);
                ctx.warn_of_unmetered(&self.model, target);
            }
        }
    }

    /// Records the latency of the server, for policies that rank by it.
    fn record_latency(&self, now_us: u64) {
        let since = |begin: u64, end: u64| saturated(end.saturating_sub(begin));
        let first_us = since(self.sent_us, self.trace.head_us);
        let whole_us = since(self.sent_us, now_us);
        let mut load = self.permit.target.load.lock();
        load.record_response(first_us, whole_us);
    }

    fn record_failure(&mut self, now_us: u64, cause: FailureCause, result: AttemptResult) {
        self.record(now_us, EndpointSignal::Failure, Some(cause), result);
    }

    fn record(
        &mut self,
        now_us: u64,
        signal: EndpointSignal,
        cause: Option<FailureCause>,
        result: AttemptResult,
    ) {
        self.record_with_pause(now_us, signal, cause, None, result);
    }

    /// Records the end of the attempt at `now_us`, which was read just now.
    fn record_with_pause(
        &mut self,
        now_us: u64,
        signal: EndpointSignal,
        cause: Option<FailureCause>,
        pause: Option<Millis>,
        result: AttemptResult,
    ) {
        // A server may be right not to wait for the rest of a body.
        let is_excused =
            self.body == BodyProgress::WaitsForClient && signal == EndpointSignal::Failure;
        let (signal, cause) = match is_excused {
            true => (EndpointSignal::Neutral, None),
            false => (signal, cause),
        };
        self.trace.result = Some(result);
        if result != AttemptResult::Answered {
            self.trace.failed_us = now_us;
        }
        if matches!(signal, EndpointSignal::Failure | EndpointSignal::Unusable) {
            self.permit.target.load.lock().record_failure();
        }
        self.permit
            .record_attempt(signal, cause, pause, Millis(now_us / 1000));
        self.model.metrics.record_attempt(result);
    }

    /// Returns the moments and the result so far, for the request's trace.
    pub fn trace(&self) -> &AttemptTrace {
        &self.trace
    }
}

/// Returns whether the response is a 101 to a request that asked for one.
fn is_switched(request: &ModelRequest, response: &UpstreamResponse) -> bool {
    request.is_upgrade() && response.head().status == StatusCode::SWITCHING_PROTOCOLS
}
