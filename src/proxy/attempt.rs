//! Step 10 of the walk: the request to a model server, and to another one when that is allowed.
//!
//! The number of attempts is the core's decision (retry budget). No attempt follows the first byte of a
//! response, or a server that may have started to work.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::admission::{Ask, EndpointId};
use infergate_core::api::Call;
use infergate_core::model::{BackendKind, Task};
use infergate_core::routing::verdict::pause;
use infergate_core::routing::{
    Descent, Failure, FailureCause, Missed, PathOwner, RetryTarget, Seen, Verdict,
};
use infergate_core::{Millis, Refusal};
use pingora_core::protocols::http::ServerSession;

use super::Shared;
use super::accounts::Account;
use super::admit::{Turn, admit, uncharge};
use super::away::Away;
use super::beat::Beats;
use super::call::{Left, Trip};
use super::explain::{Again, Trace};
use super::forward::{Reply, forward};
use super::interim;
use super::ladder::{Ladder, Unserved};
use super::progress::{Waited, head_of_answer};
use super::regrant::look_again;
use super::relay::Relayed;
use super::rules::{Passing, is_web_page};
use super::task::Asked;
use crate::plugin::TaskSession;
use crate::telemetry::AttemptResult;
use crate::upstream::{
    Answer, Exchange, Lane, Outgoing, Permit, Retry, SendError, Shaped, saturated,
};

/// Content type of a body where the request names none.
const JSON: &str = "application/json";
const TIMEOUT: FailureCause = FailureCause::Named("timeout");
const FIRST_BYTE: FailureCause = FailureCause::Named("first byte late");
const BROKEN: FailureCause = FailureCause::Named("broken answer");

/// Why a try brought no answer worth passing on.
#[derive(Clone, Copy)]
enum NoAnswer {
    NotConnected,
    /// The server could not prove who it is, and was sent nothing.
    NotTrusted,
    /// The server, or one of a node that had granted a permit, may have begun to work on the request.
    Lost,
    /// The head of an answer did not come within the model's `first_byte_timeout_secs`.
    Late,
    Busy,
    Unavailable,
    /// The server refused the operator's path or key, and has not begun.
    Rejected,
    /// Another node could not be reached, was lost, or its servers failed.
    Elsewhere(Failure),
}

/// Where the answer comes from.
#[allow(
    clippy::large_enum_variant,
    reason = "moved twice a request; a box would cost requests that stay here an allocation"
)]
pub enum Served {
    /// From a model server of this node.
    Here(Permit, Exchange),
    /// From another node.
    There(Box<Away>),
}

impl NoAnswer {
    /// Returns the failure class for the retry budget; none when another attempt could do the work twice.
    fn retry(self) -> Option<Failure> {
        match self {
            NoAnswer::NotConnected | NoAnswer::NotTrusted => Some(Failure::NotConnected),
            NoAnswer::Busy | NoAnswer::Unavailable | NoAnswer::Rejected => Some(Failure::Failed),
            NoAnswer::Elsewhere(failure) => Some(failure),
            NoAnswer::Lost | NoAnswer::Late => None,
        }
    }

    /// The same server would say the same again at once.
    fn is_settled(self) -> bool {
        matches!(self, NoAnswer::Busy | NoAnswer::Rejected)
    }

    /// Returns the reason to leave the model for the next fallback.
    fn missed(self) -> Missed {
        match self {
            NoAnswer::Busy => Missed::OutOfCapacity,
            _ => Missed::Failed,
        }
    }

    /// Returns the request's result once its model makes no more attempts.
    fn unserved(self, expected_wait: Millis, pause: Option<Millis>) -> Unserved {
        match self {
            NoAnswer::Lost => Refusal::UpstreamLost.into(),
            NoAnswer::Late => Refusal::UpstreamTimeout.into(),
            NoAnswer::Busy => {
                let refusal = match pause {
                    Some(retry_after) => Refusal::EndpointsPaused { retry_after },
                    None => Refusal::QueueFull {
                        retry_after: expected_wait,
                    },
                };
                Unserved::Missed(Missed::OutOfCapacity, refusal)
            }
            NoAnswer::NotTrusted => Unserved::Missed(Missed::Failed, Refusal::UpstreamNotTrusted),
            NoAnswer::Rejected => Unserved::Missed(Missed::Failed, Refusal::UpstreamRejected),
            NoAnswer::NotConnected | NoAnswer::Unavailable | NoAnswer::Elsewhere(_) => {
                Unserved::Missed(Missed::Failed, Refusal::UpstreamFailed)
            }
        }
    }
}

/// The tries of one request at one model.
pub struct Attempts<'a> {
    shared: &'a Shared,
    lane: Arc<Lane>,
    asked: Asked,
    headers: Passing,
    /// The request as the last target wants it, and the model name it was shaped for.
    shaped: Shaped,
    shaped_for: Arc<str>,
    answered_ok: bool,
    /// The present try is a retry at a proven endpoint.
    at_proven: bool,
    /// When the last try began, and how it goes.
    sent_us: u64,
    trace: Trace,
}

impl<'a> Attempts<'a> {
    /// Shapes the request, so that input the server cannot take is refused before it waits.
    ///
    /// # Errors
    /// [`Refusal::BadRequest`].
    pub fn new(
        shared: &'a Shared,
        lane: &Arc<Lane>,
        asked: Asked,
        passing: &Passing,
        trip: &Trip,
    ) -> Result<Attempts<'a>, Refusal> {
        let first = lane
            .spec
            .endpoints
            .first()
            .and_then(|e| e.backend_model.clone());
        let model = first.unwrap_or_else(|| lane.spec.id.as_str().into());
        let shaped = shape(lane, &asked, &model)?;
        let content_type = shaped.content_type.as_deref().unwrap_or(JSON);
        let own = [
            ("content-type", content_type),
            ("x-request-id", trip.request_id()),
        ];
        let headers = passing.with(&own);
        Ok(Attempts {
            shared,
            lane: Arc::clone(lane),
            asked,
            headers,
            shaped,
            shaped_for: model,
            answered_ok: false,
            at_proven: false,
            sent_us: 0,
            trace: Trace::default(),
        })
    }

    /// The request as the model's task has made it.
    pub fn call(&self) -> &Call {
        &self.asked.call
    }

    /// Bytes this holds beside the client's own body.
    pub fn copied_bytes(&self) -> u64 {
        let own = &self.asked.call.body;
        let shaped = &self.shaped.body;
        let shared = own.as_ptr() == shaped.as_ptr();
        let copied = if shared { 0 } else { shaped.len() as u64 };
        self.asked.copied_bytes + copied
    }

    /// Returns whether the request asks for a stream of events.
    pub fn streams(&self) -> bool {
        self.shaped.streams
    }

    /// Waits for a permit and asks, until a server or another node answers. The tries made so far
    /// stand in the trip's event, and `descent` says how many of the rest are this model's.
    ///
    /// # Errors
    /// Admission's refusals, [`Refusal::UpstreamFailed`] with the budget spent, or the client left.
    pub async fn run(
        &mut self,
        session: &mut ServerSession,
        trip: &mut Trip,
        ask: Ask,
        heartbeat: Option<Duration>,
        ladder: &Ladder<'_>,
    ) -> Result<Served, Unserved> {
        let mut ask = ask;
        let mut beats = match trip.is_first() {
            true => Beats::new(heartbeat),
            false => Beats::of_forward(),
        };
        let lane = Arc::clone(&self.lane);
        if trip.is_first() {
            lane.gate.count_request();
        }
        loop {
            let turn = admit(self.shared, session, trip, &lane, ask.clone(), &mut beats).await;
            let turn = look_again(self.shared, trip, &lane, &ask, turn).await?;
            if ladder.is_barred() {
                if let Turn::Here(_) = turn {
                    uncharge(&lane, &ask);
                }
                return Err(Unserved::at_the_gate(Refusal::NoHealthyEndpoint.into()));
            }
            let failed = match turn {
                Turn::Here(permit) => {
                    interim::granted(self.shared, session, trip).await?;
                    match self.at(session, trip, &ask, &permit).await? {
                        Ok(exchange) => return Ok(Served::Here(permit, exchange)),
                        Err(failure) => {
                            ask.avoid.push(permit.endpoint);
                            failure
                        }
                    }
                }
                Turn::There(going) => {
                    let away = forward(self.shared, session, trip, &lane, going, &mut beats);
                    match away.await? {
                        Reply::Answer(away) => return Ok(Served::There(away)),
                        Reply::NoRoom => {
                            ask.resume = true;
                            continue;
                        }
                        Reply::Failed(failure) => NoAnswer::Elsewhere(failure),
                        Reply::Lost => NoAnswer::Lost,
                    }
                }
            };
            let unproven = self.again(trip, failed, &ask, ladder.descent())?;
            ask.avoid.extend(unproven);
            ask.resume = true;
        }
    }

    /// Makes one attempt at a local server and records its effect on health and tokens.
    async fn at(
        &mut self,
        session: &mut ServerSession,
        trip: &mut Trip,
        ask: &Ask,
        permit: &Permit,
    ) -> Result<Result<Exchange, NoAnswer>, Left> {
        trip.tries(&permit.target);
        self.lane.metrics.endpoint_given(permit.health);
        let tried = self.once(session, trip, permit).await;
        trip.story.tried(&self.trace);
        let tried = tried?;
        if tried.is_err() {
            // A server's failure is not its users' consumption.
            uncharge(&self.lane, ask);
            trip.failed_here();
        }
        Ok(tried)
    }

    /// Decides on another attempt and returns further endpoints to avoid, or the request's result.
    fn again(
        &mut self,
        trip: &mut Trip,
        failed: NoAnswer,
        ask: &Ask,
        descent: Descent,
    ) -> Result<Vec<EndpointId>, Unserved> {
        let gate = &self.lane.gate;
        let tries = trip.tried();
        if std::mem::take(&mut self.at_proven) {
            gate.proven_retry_failed();
        }
        // What another node has failed may be served here.
        let has_fresh = match failed {
            NoAnswer::Elsewhere(_) => true,
            _ => gate.has_fresh(&ask.avoid) || (trip.is_first() && trip.may_forward()),
        };
        let retry = failed.retry();
        let has_try = trip.has_errors_left()
            && descent.may_try_again(failed.missed(), tries, has_fresh)
            && (has_fresh || !failed.is_settled());
        let after_node = matches!(failed, NoAnswer::Elsewhere(_));
        let decided = retry
            .filter(|_| has_try)
            .map(|failure| gate.may_retry(tries, failure, &ask.avoid, after_node));
        let again = decided.as_ref().is_some_and(|decided| decided.allowed);
        let proven = |decided: &Retry| decided.target == RetryTarget::Proven;
        trip.story.judged(Again {
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
            None => Err(failed.unserved(gate.expected_wait(), gate.pause_left())),
        }
    }

    /// Sends the request once; returns the head of a usable response, or why there is none.
    async fn once(
        &mut self,
        session: &mut ServerSession,
        trip: &mut Trip,
        permit: &Permit,
    ) -> Result<Result<Exchange, NoAnswer>, Left> {
        let continuous_usage = self.lane.has_continuous_usage(&permit.target.url);
        let asked = &mut self.asked.call.continuous_usage;
        let changed = std::mem::replace(asked, continuous_usage) != continuous_usage;
        if changed || self.shaped_for != permit.target.backend_model {
            self.shaped_for = Arc::clone(&permit.target.backend_model);
            self.shaped = shape(&self.lane, &self.asked, &self.shaped_for)?;
        }
        let outgoing = Outgoing {
            method: "POST",
            path: &self.shaped.path,
            headers: self.headers.towards(permit.target.is_external),
            body: &self.shaped.body,
            fresh: trip.needs_fresh_connection,
        };
        let sent_at = self.shared.clock.now();
        self.sent_us = self.shared.clock.micros();
        self.trace = Trace::begin(self.shared.clock);
        trip.story.tries(self.sent_us, &permit.target);
        let head_by = self.head_deadline(sent_at, trip);
        let clock = self.shared.clock;
        let end = clock.instant(head_by).into();
        let deadline = clock.instant(trip.deadline).into();
        let client = &self.shared.client;
        let sending = client.send(&permit.target, outgoing, &mut self.trace.marks);
        let waited = head_of_answer(sending, session, trip, end, deadline).await;
        let sent = match waited {
            Ok(Waited::Sent(sent)) => sent,
            Err(left) => {
                trip.notice_work(&self.trace.marks);
                self.count(permit, Seen::Nothing, None, AttemptResult::Abandoned);
                return Err(left);
            }
            Ok(Waited::Deadline) => {
                if head_by < trip.deadline {
                    let result = AttemptResult::TimedOut;
                    self.count(permit, Seen::Failure, Some(FIRST_BYTE), result);
                    return Ok(Err(NoAnswer::Late));
                }
                trip.notice_work(&self.trace.marks);
                let seen = self.silence_since(sent_at, trip);
                let cause = (seen == Seen::Failure).then_some(TIMEOUT);
                self.count(permit, seen, cause, AttemptResult::TimedOut);
                return Err(Refusal::DeadlinePassed.into());
            }
        };
        // A request that met one crash shall meet no second one that looks like a closed connection.
        trip.needs_fresh_connection |= self.trace.marks.replaced;
        match sent {
            Ok(exchange) => Ok(self.judge(permit, exchange).await),
            Err(error) => Ok(Err(self.unsent(trip, permit, &error))),
        }
    }

    /// When the head of an answer must have come.
    fn head_deadline(&self, sent_at: Millis, trip: &Trip) -> Millis {
        match self.lane.spec.first_byte_timeout_secs {
            Some(secs) => trip.deadline.min(sent_at + Millis::from_secs(secs)),
            None => trip.deadline,
        }
    }

    /// Classifies a send that ended without a response head.
    fn unsent(&mut self, trip: &Trip, permit: &Permit, error: &SendError) -> NoAnswer {
        if let Some(repeated) = permit.target.warnings.due(self.shared.clock.now()) {
            tracing::warn!(
                request_id = &**trip.request_id(),
                url = &*permit.target.url,
                cause = error.cause(),
                error = error as &dyn std::error::Error,
                repeated,
                "no answer from a model server"
            );
        }
        let (seen, result, no_answer) = match error {
            SendError::Connect(_) => (
                Seen::Unusable,
                AttemptResult::ConnectFailed,
                NoAnswer::NotConnected,
            ),
            SendError::NotTrusted(_) => (
                Seen::Unusable,
                AttemptResult::NotTrusted,
                NoAnswer::NotTrusted,
            ),
            SendError::Lost(_) => (Seen::Failure, AttemptResult::ConnectionLost, NoAnswer::Lost),
        };
        let cause = Some(FailureCause::Named(error.cause()));
        self.count(permit, seen, cause, result);
        no_answer
    }

    /// Returns what silence until the deadline says about the server. A server is blamed only if it had most
    /// of the model's time: the queue or a short deadline of the caller may have used the rest.
    fn silence_since(&self, sent_at: Millis, trip: &Trip) -> Seen {
        let rule = trip.world.deadline;
        let given = rule.deadline(Millis::ZERO, self.lane.spec.timeout_secs, None);
        let had = self.shared.clock.now().since(sent_at);
        match had.0 * 2 >= given.0 {
            true => Seen::Failure,
            false => Seen::Nothing,
        }
    }

    async fn judge(&mut self, permit: &Permit, exchange: Exchange) -> Result<Exchange, NoAnswer> {
        self.trace.head_us = self.shared.clock.micros();
        let status = exchange.head().status.as_u16();
        self.trace.status = status;
        let headers = &exchange.head().headers;
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_useless =
            text("content-type").is_some_and(is_web_page) || text("content-length") == Some("0");
        let now = || self.shared.clock.wall().unix_timestamp();
        let pause = match status {
            429 | 503 => pause(text, now),
            _ => None,
        };
        let verdict = Verdict::of_head(status, is_useless, self.path_owner());
        if verdict == Verdict::Answer {
            self.answered_ok = true;
            return Ok(exchange);
        }
        let (result, no_answer) = match verdict {
            Verdict::Answer | Verdict::CallersFault | Verdict::ServerFailed => {
                (AttemptResult::Answered, None)
            }
            Verdict::Busy => {
                permit.target.load.lock().out_of_capacity();
                (AttemptResult::Rejected, Some(NoAnswer::Busy))
            }
            // A proxy in front of the server says this when the server broke while it worked.
            Verdict::Unavailable if status == 502 && self.trace.may_have_begun() => {
                (AttemptResult::Rejected, Some(NoAnswer::Lost))
            }
            Verdict::Unavailable => (AttemptResult::Rejected, Some(NoAnswer::Unavailable)),
            Verdict::Rejected => {
                permit.target.rejects(status);
                (AttemptResult::Rejected, Some(NoAnswer::Rejected))
            }
            Verdict::Unusable => (AttemptResult::Rejected, Some(NoAnswer::Lost)),
        };
        let cause = match (verdict.seen(), pause) {
            (Seen::Nothing, _) => None,
            (_, Some(_)) => Some(FailureCause::Paused(status)),
            (_, None) => Some(FailureCause::Status(status)),
        };
        self.count_with_pause(permit, verdict.seen(), cause, pause, result);
        let Some(no_answer) = no_answer else {
            return Ok(exchange);
        };
        // Under saturation most answers are these: without their connections a handshake a try.
        self.shared.client.discard(exchange).await;
        Err(no_answer)
    }

    /// Returns who chose the request's path.
    fn path_owner(&self) -> PathOwner {
        let spec = &self.lane.spec;
        let is_plain = spec.backend == BackendKind::Http || spec.task == Task::DumbPipe;
        match is_plain || self.asked.path.is_some() {
            true => PathOwner::Operator,
            false => PathOwner::Gateway,
        }
    }

    /// The reader of the answer, with the model's task for it.
    pub fn answer(&self, task: Option<TaskSession>) -> Answer {
        let (spec, call) = (&self.lane.spec, &self.asked.call);
        let answer = self.lane.backend.read_response(call, spec.task);
        answer.of_model(spec, task).named_for(call, spec)
    }

    /// Gives the permit back and settles what was charged ahead.
    pub fn release(
        &mut self,
        permit: Permit,
        relayed: Relayed,
        trip: &mut Trip,
        account: &Account,
        charged: u32,
    ) {
        if self.answered_ok {
            match relayed {
                Relayed::ServerFailed | Relayed::Compressed => {
                    if relayed == Relayed::Compressed {
                        permit.target.compresses(self.shared.clock.now());
                    }
                    let cause = Some(BROKEN);
                    self.count(&permit, Seen::Failure, cause, AttemptResult::ConnectionLost);
                }
                // It had begun to answer as it should.
                Relayed::Abandoned => {
                    self.count(&permit, Seen::Success, None, AttemptResult::Abandoned);
                }
                Relayed::Whole => {
                    self.count(&permit, Seen::Success, None, AttemptResult::Answered);
                    permit.target.accepts();
                    self.measured(&permit);
                    trip.warn_of_unmetered(&self.lane, &permit.target);
                }
            }
            trip.story.tried(&self.trace);
        }
        if let Some(used) = trip.tokens_used() {
            let account = &account.spec;
            self.lane
                .gate
                .correct_tokens(&account.id, account.weight, charged.into(), used);
        }
        drop(permit);
    }

    /// How fast the server was, for whoever ranks by it.
    fn measured(&self, permit: &Permit) {
        let since = |begin: u64, end: u64| saturated(end.saturating_sub(begin));
        let first_us = since(self.sent_us, self.trace.head_us);
        let whole_us = since(self.sent_us, self.shared.clock.micros());
        permit.target.load.lock().answered(first_us, whole_us);
    }

    fn count(
        &mut self,
        permit: &Permit,
        seen: Seen,
        cause: Option<FailureCause>,
        result: AttemptResult,
    ) {
        self.count_with_pause(permit, seen, cause, None, result);
    }

    fn count_with_pause(
        &mut self,
        permit: &Permit,
        seen: Seen,
        cause: Option<FailureCause>,
        pause: Option<Millis>,
        result: AttemptResult,
    ) {
        self.trace.result = Some(result);
        if result != AttemptResult::Answered {
            self.trace.failed_us = self.shared.clock.micros();
        }
        if matches!(seen, Seen::Failure | Seen::Unusable) {
            permit.target.load.lock().failed();
        }
        permit.saw(seen, cause, pause);
        self.lane.metrics.attempt_finished(result);
    }
}

/// The request as a target wants it that calls the model `name`.
fn shape(lane: &Lane, asked: &Asked, name: &str) -> Result<Shaped, Refusal> {
    let shaped = lane
        .backend
        .shape_request(&asked.call, lane.spec.task, name)?;
    Ok(match &asked.path {
        Some(path) => Shaped {
            path: path.clone().into(),
            ..shaped
        },
        None => shaped,
    })
}
