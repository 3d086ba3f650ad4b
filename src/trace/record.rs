//! Trace of a request: every decision on its way, for `GET /explain/{request id}`.
//!
//! No step reads the trace, and nothing is formatted while a request runs. A [`TraceBuilder`] is filled by
//! the request itself without a lock; dropping the context hands the [`RequestTrace`] to the store. Rendering
//! happens in `render.rs`, on demand. No body, prompt, key or header stands in it; of the caller's words only the name
//! of a model, cut at `REQUESTED_MODEL_BYTES_MAX`.
//!
//! Bounds: at most [`STEPS_MAX`] steps of about 200 bytes, the usual two in place, and a kilobyte per
//! selection of a peer. `TRACES_KEPT` traces are kept: about 4 MiB of usual requests, 50 MiB of the most
//! eventful ones, twice that in a cluster. Requests that got past key, route and options have one. Requests
//! without a valid key leave none: they could push out the traces of others.

use std::net::IpAddr;
use std::sync::Arc;

use infergate_core::admission::ClassTurn;
use infergate_core::api::ApiDialect;
use infergate_core::deadline::DeadlineRule;
use infergate_core::routing::connection_reuse::may_resend;
use infergate_core::routing::{ATTEMPTS_MAX, AttemptFailure};
use infergate_core::trace_context::TraceContext;
use infergate_core::{AccountId, Millis, ModelId, Refusal};
use smallvec::SmallVec;

use super::cluster::{ForwardStep, PeerSelectionStep};
use super::identity::SpanIdentity;
use super::steps::{FallbackStep, PermitStep, RoutingStep};
use super::times::RequestTimes;
use crate::telemetry::event::PluginUse;
use crate::telemetry::{AttemptResult, Clock, RequestOutcome, TokenUsage};
use crate::upstream::{
    AdmissionSnapshot, ConnectTimings, GateEntry, ModelRuntime, Permit, RankingResult, Target,
};

/// Steps of one trace: more than a request takes that uses all fallbacks and all attempts. Further ones are
/// counted.
pub const STEPS_MAX: usize = 40;
/// Steps of an uneventful request: one admission, one attempt.
pub(super) const STEPS_USUAL: usize = 2;
/// Bytes of the name of a model that a caller asked for: longer than any model's.
pub(super) const REQUESTED_MODEL_BYTES_MAX: usize = 128;

/// Trace of one request. Moments are microseconds on the process's clock.
#[derive(Clone, Debug)]
pub struct RequestTrace {
    pub begin_us: u64,
    /// Generation of the configuration that the request started with.
    pub generation: u64,
    /// The model's name as the caller wrote it, where that is not the model's id.
    pub requested_model: Option<Arc<str>>,
    /// Pattern of the client profile that applied.
    pub client_profile: Option<Arc<str>>,
    pub deadline: Option<DeadlineInputs>,
    /// History of the request at other nodes, where one has forwarded it here.
    pub forwarded_from: Option<ForwardedFrom>,
    pub steps: SmallVec<[TraceStep; STEPS_USUAL]>,
    pub steps_left_out: u32,
    /// The last one recorded.
    pub refusal: Option<RefusalSummary>,
    pub summary: Option<TraceSummary>,
    /// The request in its distributed trace; none when it is not recorded for export.
    pub identity: Option<Box<SpanIdentity>>,
}

/// A request's way before it came here.
#[derive(Clone, Debug)]
pub struct ForwardedFrom {
    /// The node that has forwarded it.
    pub node: Arc<str>,
    /// Since its client sent it, microseconds; its event counts from there, its trace does not.
    pub elapsed_us: u64,
}

/// Inputs of the deadline.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineInputs {
    pub rule: DeadlineRule,
    pub model_secs: u64,
    pub requested: Option<Millis>,
}

/// Steps in order.
#[derive(Clone, Debug)]
pub enum TraceStep {
    Routing(RoutingStep),
    Admission(AdmissionStep),
    Permit(PermitStep),
    /// The permit's server served other weights before.
    WeightsChange {
        at_us: u64,
    },
    Attempt(AttemptStep),
    Fallback(FallbackStep),
    PeerSelection(Box<PeerSelectionStep>),
    Forward(Box<ForwardStep>),
}

/// A permit was asked for.
#[derive(Clone, Debug)]
pub struct AdmissionStep {
    pub snapshot: AdmissionSnapshot,
    pub result: AdmissionStepResult,
}

/// Result of asking for a permit.
#[derive(Clone, Copy, Debug)]
pub enum AdmissionStepResult {
    Leased,
    Queued {
        position: usize,
        expected_wait: Millis,
        /// End of the wait and its result; none when the request ended with it.
        ended: Option<(u64, &'static str)>,
        /// Class that the permit came from and why, of a wait that ended with one here.
        turn: Option<ClassTurn>,
    },
    Full {
        cause: &'static str,
        retry_after: Option<Millis>,
    },
}

/// End of a wait for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// A permit was granted here, in this turn.
    Granted(ClassTurn),
    /// Another node serves the request.
    Forwarded,
    /// The wait was refused for this cause.
    Refused(&'static str),
    /// The wait ended with the request; the refusal recorded before it has the cause.
    Aborted,
}

/// A model server was tried.
#[derive(Clone, Debug)]
pub struct AttemptStep {
    pub begin_us: u64,
    pub url: Arc<str>,
    /// Life of the slot that the endpoint is; none of an endpoint by URL.
    pub instance: Option<Arc<str>>,
    /// The model's name there.
    pub model: Arc<str>,
    pub trace: AttemptTrace,
    pub retry: Option<RetryDecision>,
}

/// Progress and result of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptTrace {
    /// Connection and request.
    pub marks: ConnectTimings,
    /// The head of the answer was there; 0 without one.
    pub head_us: u64,
    /// Its HTTP status; 0 without one.
    pub status: u16,
    /// Result; none while the attempt is open.
    pub result: Option<AttemptResult>,
    /// End of an attempt without a response for the client; 0 else.
    pub failed_us: u64,
}

impl AttemptTrace {
    /// Start of an attempt.
    pub fn begin(clock: Clock) -> AttemptTrace {
        AttemptTrace {
            marks: ConnectTimings::with_clock(clock),
            ..AttemptTrace::default()
        }
    }

    /// Returns whether the server may have started to work before it failed: a proxy before a server answers
    /// at once where it cannot reach it.
    pub fn may_have_started_work(&self) -> bool {
        let took_us = self.head_us.saturating_sub(self.marks.sent_us);
        !may_resend(false, Millis(took_us / 1000), Millis::ZERO)
    }
}

/// Retry decision and the budgets it was based on.
#[derive(Clone, Copy, Debug)]
pub struct RetryDecision {
    /// Class of the failure; none when another attempt could do the work twice.
    pub failure: Option<AttemptFailure>,
    /// Another attempt follows.
    pub allowed: bool,
    /// Another endpoint has room, and its latest try went well.
    pub proven: bool,
    /// Pause before an attempt at servers that had no capacity.
    pub pause: Option<Millis>,
    /// The next fallback has what is left.
    pub kept_for_next: bool,
    /// Servers tried so far.
    pub tries: u32,
    /// Retries that all requests of the model may still make.
    pub model_left: u32,
}

/// Refusal of the request.
#[derive(Clone, Copy, Debug)]
pub struct RefusalSummary {
    pub cause: &'static str,
    pub reason: &'static str,
    pub message: &'static str,
    pub retry_after: Option<Millis>,
}

/// Neurons that were to be held of the account's day.
#[derive(Clone, Copy, Debug)]
pub struct QuotaHold {
    /// Number of neurons.
    pub neurons: f64,
    /// The account's limit.
    pub per_day: u64,
    /// The reservation was granted; false when the day was used up.
    pub granted: bool,
}

/// Outcome of the request, built with its event: its fields, without those that only bills need.
#[derive(Clone, Debug)]
pub struct TraceSummary {
    pub at_us: u64,
    pub request_id: Arc<str>,
    pub client_address: Option<IpAddr>,
    pub account: Option<AccountId>,
    pub model: Option<ModelId>,
    /// The model asked for, where one of its fallbacks serves.
    pub asked_model: Option<ModelId>,
    pub dialect: ApiDialect,
    pub outcome: RequestOutcome,
    pub status: u16,
    pub code: Option<u32>,
    pub streamed: bool,
    pub queued_us: u64,
    pub load_wait_us: Option<u64>,
    pub first_byte_us: Option<u64>,
    pub neurons: Option<f64>,
    pub quota: Option<QuotaHold>,
    pub plugins: Vec<PluginUse>,
    /// `gen_ai.operation.name`.
    pub operation: &'static str,
    pub usage: TokenUsage,
}

/// Trace while it is collected: the times of every request, and its steps from [`TraceBuilder::begin`] on.
#[derive(Default)]
pub struct TraceBuilder {
    /// Times of the request.
    pub times: RequestTimes,
    /// Recorded steps; none of a request without a trace, which costs nothing more than its times.
    pub(super) recorded: Option<Box<RequestTrace>>,
}

impl TraceBuilder {
    /// Creates the trace of a request whose head is complete.
    pub fn new(begin_us: u64) -> TraceBuilder {
        TraceBuilder {
            times: RequestTimes::new(begin_us),
            recorded: None,
        }
    }

    /// Records the steps from here on. `forwarder` is the node that has forwarded the request here.
    pub fn begin(&mut self, generation: u64, forwarder: Option<Arc<str>>) {
        let times = &self.times;
        self.recorded = Some(Box::new(RequestTrace {
            begin_us: times.begin_us(),
            generation,
            requested_model: None,
            client_profile: None,
            deadline: None,
            forwarded_from: forwarder.map(|node| ForwardedFrom {
                node,
                elapsed_us: times.elsewhere_us(),
            }),
            steps: SmallVec::new(),
            steps_left_out: 0,
            refusal: None,
            summary: None,
            identity: None,
        }));
    }

    /// The model as the caller named it, and the one that was found by that name.
    pub fn set_requested_model(&mut self, name: &str, found: Option<&ModelId>) {
        let Some(trace) = &mut self.recorded else {
            return;
        };
        if found.is_none_or(|id| id.as_str() != name) {
            trace.requested_model =
                Some(name[..name.floor_char_boundary(REQUESTED_MODEL_BYTES_MAX)].into());
        }
    }

    /// The profile of the client applies, by its pattern.
    pub fn set_client_profile(&mut self, pattern: &Arc<str>) {
        if let Some(trace) = &mut self.recorded {
            trace.client_profile = Some(Arc::clone(pattern));
        }
    }

    /// The deadline was made of these.
    pub fn set_deadline(&mut self, rule: DeadlineRule, model_secs: u64, requested: Option<Millis>) {
        let Some(trace) = &mut self.recorded else {
            return;
        };
        trace.deadline = Some(DeadlineInputs {
            rule,
            model_secs,
            requested,
        });
    }

    /// Records a call of the model's policy, or a read of its cached ranking.
    pub fn record_routing(
        &mut self,
        now: Millis,
        model: &ModelRuntime,
        advice: Option<&Arc<RankingResult>>,
    ) {
        self.push_step(|| {
            TraceStep::Routing(RoutingStep {
                at_us: now.0 * 1000,
                policy: model.spec.plugins.routing.clone(),
                mode: model.routing.mode(),
                advice: advice.cloned(),
            })
        });
    }

    /// Records the next model of the fallback list and why the former one was left.
    pub fn record_fallback(&mut self, at_us: u64, to: &ModelId, cause: &'static str) {
        self.push_step(|| {
            TraceStep::Fallback(FallbackStep {
                at_us,
                to: to.clone(),
                cause,
            })
        });
    }

    /// Records a request for a permit and its result. A permit granted at once counts from here.
    pub fn record_admission(
        &mut self,
        found: AdmissionSnapshot,
        entry: &Result<GateEntry, Refusal>,
    ) {
        match entry {
            Ok(GateEntry::Leased(_)) => self.times.record_grant(found.at_us),
            Ok(GateEntry::Queued(_)) => self.times.begin_wait(found.at_us),
            Err(_) => {}
        }
        self.push_step(|| {
            let result = match entry {
                Ok(GateEntry::Leased(_)) => AdmissionStepResult::Leased,
                Ok(GateEntry::Queued(waiter)) => AdmissionStepResult::Queued {
                    position: waiter.position,
                    expected_wait: waiter.expected_wait,
                    ended: None,
                    turn: None,
                },
                Err(refusal) => AdmissionStepResult::Full {
                    cause: refusal.cause(),
                    retry_after: refusal.retry_after(),
                },
            };
            TraceStep::Admission(AdmissionStep {
                snapshot: found,
                result,
            })
        });
    }

    /// Records a permit that the request came with.
    pub fn record_permit(&mut self, at_us: u64, permit: &Permit) {
        self.push_step(|| {
            TraceStep::Permit(PermitStep {
                at_us,
                turn: permit.turn,
                waited_us: permit.waited_us,
            })
        });
    }

    /// Records that the permit's server served other weights before.
    pub fn record_weights_change(&mut self, at_us: u64) {
        self.push_step(|| TraceStep::WeightsChange { at_us });
    }

    /// Records the end of a wait for a permit.
    pub fn end_wait(&mut self, at_us: u64, end: WaitEnd) {
        self.times.end_wait(at_us);
        let turn = match end {
            WaitEnd::Granted(turn) => Some(turn),
            WaitEnd::Forwarded | WaitEnd::Refused(_) | WaitEnd::Aborted => None,
        };
        if turn.is_some() {
            self.times.record_grant(at_us);
        }
        let Some(trace) = &mut self.recorded else {
            return;
        };
        let how = match end {
            WaitEnd::Granted(_) => "granted",
            WaitEnd::Forwarded => "forwarded",
            WaitEnd::Refused(cause) => cause,
            WaitEnd::Aborted => trace.refusal.map_or("cut-off", |refusal| refusal.cause),
        };
        // A look at other nodes may have come after it.
        let steps = trace.steps.iter_mut().rev().take(2);
        let mut admissions = steps.filter_map(|step| match step {
            TraceStep::Admission(admission) => Some(admission),
            _ => None,
        });
        if trace.steps_left_out == 0
            && let Some(admission) = admissions.next()
            && let AdmissionStepResult::Queued {
                ended, turn: kept, ..
            } = &mut admission.result
        {
            *ended = Some((at_us, how));
            *kept = turn;
        }
    }

    /// Start of an attempt.
    pub fn begin_attempt(&mut self, began_us: u64, target: &Target) {
        self.push_step(|| {
            TraceStep::Attempt(AttemptStep {
                begin_us: began_us,
                url: Arc::clone(&target.url),
                instance: target.instance.clone(),
                model: Arc::clone(&target.backend_model),
                trace: AttemptTrace::default(),
                retry: None,
            })
        });
    }

    /// Updates the progress of the last attempt.
    pub fn update_attempt(&mut self, trace: &AttemptTrace) {
        if let Some(tried) = self.last_attempt() {
            tried.trace = *trace;
        }
    }

    /// Records the retry decision after the last attempt failed.
    pub fn record_retry_decision(&mut self, decision: RetryDecision) {
        if let Some(tried) = self.last_attempt() {
            tried.retry = Some(decision);
        } else if let Some(forward) = self.last_forward() {
            forward.set_retry_decision(decision);
        }
    }

    /// Records that the request is refused or cut.
    pub fn record_refusal(&mut self, refusal: &Refusal) {
        let Some(trace) = &mut self.recorded else {
            return;
        };
        let row = refusal.row();
        trace.refusal = Some(RefusalSummary {
            cause: refusal.cause(),
            reason: row.reason,
            message: row.message,
            retry_after: refusal.retry_after(),
        });
    }

    /// Completes the trace; `summary` is not asked for where no steps are recorded.
    pub fn finish(&mut self, summary: impl FnOnce(&RequestTimes) -> TraceSummary) {
        if let Some(trace) = &mut self.recorded {
            trace.summary = Some(summary(&self.times));
        }
    }

    /// Records the request for export under this identity.
    pub fn set_identity(&mut self, identity: Option<Box<SpanIdentity>>) {
        if let Some(trace) = &mut self.recorded {
            trace.identity = identity;
        }
    }

    /// Returns the identity under which the request is recorded, once the trace has begun; `Some(None)` when
    /// it is not recorded for export.
    pub fn identity(&self) -> Option<Option<&SpanIdentity>> {
        self.recorded
            .as_ref()
            .map(|trace| trace.identity.as_deref())
    }

    /// Returns the context that the request of the last step carries; none when the request is not
    /// recorded for export.
    pub fn outgoing_context(&self) -> Option<TraceContext> {
        let trace = self.recorded.as_ref()?;
        let context = trace.identity.as_ref()?.context;
        // A step without a place has no span of its own.
        let ordinal = trace.steps.len().checked_sub(1);
        match ordinal.filter(|_| trace.steps_left_out == 0) {
            Some(ordinal) => Some(context.with_span(context.span_id.child(ordinal as u64))),
            None => Some(context),
        }
    }

    /// Takes the trace for the store; none where none was recorded.
    pub fn take(&mut self) -> Option<Box<RequestTrace>> {
        self.recorded.take()
    }

    pub(super) fn push_step(&mut self, step: impl FnOnce() -> TraceStep) {
        let Some(trace) = &mut self.recorded else {
            return;
        };
        if trace.steps.len() < STEPS_MAX {
            trace.steps.push(step());
        } else {
            trace.steps_left_out += 1;
        }
    }

    pub(super) fn last_attempt(&mut self) -> Option<&mut AttemptStep> {
        match self.recorded.as_mut()?.last_step()? {
            TraceStep::Attempt(tried) => Some(tried),
            _ => None,
        }
    }
}

impl RequestTrace {
    /// The step that goes on; none when it had no place any more.
    pub(super) fn last_step(&mut self) -> Option<&mut TraceStep> {
        match self.steps_left_out {
            0 => self.steps.last_mut(),
            _ => None,
        }
    }

    /// Returns whether the request was uneventful: a permit at once, one attempt, a response.
    pub(super) fn is_plain(&self) -> bool {
        let goes_on = |step: &TraceStep| match step {
            TraceStep::Routing(_) | TraceStep::WeightsChange { .. } => true,
            TraceStep::Permit(permit) => permit.waited_us == 0,
            TraceStep::Admission(admission) => {
                matches!(admission.result, AdmissionStepResult::Leased)
            }
            TraceStep::Attempt(tried) => {
                tried.retry.is_none() && tried.trace.result == Some(AttemptResult::Answered)
            }
            TraceStep::Fallback(_) | TraceStep::PeerSelection(_) | TraceStep::Forward(_) => false,
        };
        let is_whole =
            |end: &TraceSummary| end.outcome == RequestOutcome::Completed && end.status < 400;
        // A forwarded request's trace is looked up here by its first node.
        self.refusal.is_none()
            && self.forwarded_from.is_none()
            && self.summary.as_ref().is_some_and(is_whole)
            && self.steps.iter().all(goes_on)
    }

    /// Microseconds on the process's clock; 0 while it is open.
    pub(super) fn ended_us(&self) -> u64 {
        self.summary.as_ref().map_or(0, |end| end.at_us)
    }

    /// The client's name for the request; empty while it is open.
    pub(super) fn request_id(&self) -> &str {
        self.summary.as_ref().map_or("", |end| &end.request_id)
    }
}

impl RetryDecision {
    /// The failed try counts against the retries that all requests of the model share.
    pub(super) fn is_counted(&self) -> bool {
        self.allowed && !self.proven && self.failure == Some(AttemptFailure::Failed)
    }

    pub(super) fn attempts_left(&self) -> u32 {
        ATTEMPTS_MAX.saturating_sub(self.tries)
    }

    /// Reason for another attempt, or for none.
    pub(super) fn reason(&self) -> &'static str {
        match self.failure {
            None => "the server may have begun to work",
            Some(_) if self.attempts_left() == 0 => "the request has used its attempts",
            Some(_) if self.pause.is_some() => "the servers may have capacity after a pause",
            Some(_) if self.kept_for_next => "the next fallback gets the request instead",
            Some(_) if self.allowed && self.proven => {
                "another server has a free permit and its latest attempt succeeded"
            }
            Some(_) if !self.allowed => "the model's retries are used up",
            Some(AttemptFailure::Failed) => "the server has not begun to work",
            Some(AttemptFailure::NotConnected) => "no server has seen the request",
        }
    }
}
