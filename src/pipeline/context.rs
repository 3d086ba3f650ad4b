//! Context of one request: everything known about it so far, and the guards to release.
//!
//! Not an actor: the pipeline is. However the pipeline ends (response, refusal, client gone, panic),
//! dropping the context leaves exactly one event, and one trace where the request has one.

mod cluster;
mod distributed;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use infergate_core::api::{ApiDialect, Call};
use infergate_core::billing::{Charge, Usage};
use infergate_core::model::AccountSpec;
use infergate_core::refusal::Refusal;
use infergate_core::{Millis, ModelId};
use tokio::time::timeout;

use crate::pipeline::billing::{QuotaLimit, RequestBilling};
use crate::pipeline::forwarding::ForwardState;
use crate::pipeline::origin::{Capabilities, EventOwner, JobHeader, Origin};
use crate::plugin::Caller;
use crate::state::ConfigSnapshot;
use crate::state::InFlight;
use crate::state::PageOrigin;
use crate::state::Shared;
use crate::state::{Account, AccountGuard};
use crate::telemetry::event::{EventFlags, PluginUse};
use crate::telemetry::{Clock, InferenceEvent, MetricsSource, RequestOutcome, TokenUsage};
use crate::trace::{ForwardedFrom, SpanIdentity, TraceBuilder};
use crate::upstream::{ConnectTimings, ModelRuntime, ResponseTransformer, Target};

/// The most an answer waits for its event to be on the disk: longer than a busy disk takes, and a
/// hanging one must not keep permits for ever.
const EVENT_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// A request between its head and its event.
pub struct RequestContext {
    /// Capabilities of the request, by its origin.
    pub can: Capabilities,
    origin: Origin,
    /// The snapshot it began with.
    pub snapshot: Arc<ConfigSnapshot>,
    /// Moment at which its head was complete.
    pub arrival: Millis,
    /// Moment at which everything ends.
    pub deadline: Millis,
    /// The web page that makes it.
    pub page_origin: PageOrigin,
    /// The model it goes to, once known.
    pub model: Option<Arc<ModelRuntime>>,
    /// The site it must be served at.
    pub only_site: Option<Arc<str>>,
    /// The account whose limits its answer tells of.
    pub rate_account: Option<Arc<Account>>,
    /// Its place among the requests under way of its account, where that has limits.
    pub account_guard: Option<AccountGuard>,
    /// Nodes it visited and may be forwarded to; none at a node that knows no other.
    pub forwarding: Option<Box<ForwardState>>,
    /// The answer's head has been written; from then on a refusal is an event of the stream.
    pub response_started: bool,
    /// The span between two signs of life while a model server is silent; none for who gets none.
    pub comment_interval: Option<Duration>,
    /// A kept connection broke under it: further tries go out on new ones only.
    pub needs_fresh_connection: bool,
    /// Trace of the request.
    pub trace: TraceBuilder,
    /// The request in its distributed trace, until the trace begins.
    span_identity: Option<Box<SpanIdentity>>,
    /// Text is completed, not a conversation.
    is_completion: bool,
    shared: Arc<Shared>,
    /// Taken by the drop only.
    event: Option<InferenceEvent>,
    /// The event has been handed over: what is noted from then on is not recorded.
    recorded: bool,
    arrival_us: u64,
    /// Since its client sent it, at nodes before this one.
    elapsed_us: u64,
    queued_since_us: Option<u64>,
    granted_us: Option<u64>,
    billing: RequestBilling,
    _in_flight: InFlight,
}

impl RequestContext {
    /// Begins a job, which its worker has queued and charged.
    pub fn for_job(shared: &Arc<Shared>, in_flight: InFlight, job: JobHeader) -> RequestContext {
        let mut ctx = RequestContext::begin(shared, in_flight);
        ctx.deadline = job.deadline;
        let event = ctx.event();
        event.request_id = Arc::clone(&job.event_id);
        event.account_id = Some(job.account.clone());
        ctx.set_origin(Origin::Job(job));
        ctx
    }

    /// Returns where the request comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    fn set_origin(&mut self, origin: Origin) {
        self.can = origin.capabilities();
        self.origin = origin;
    }

    /// Completes the event and returns it, for a caller that owns it; none of other origins, and
    /// none where another node answered.
    pub fn take_event(&mut self) -> Option<InferenceEvent> {
        if self.can.event_owner != EventOwner::Caller {
            return None;
        }
        self.complete();
        // The node that answered a forwarded job has written it.
        if self.is_event_elsewhere() {
            return None;
        }
        self.event.take()
    }

    /// Begins with a complete head.
    pub fn begin(shared: &Arc<Shared>, in_flight: InFlight) -> RequestContext {
        let world = shared.snapshot.load_full();
        let arrival_us = shared.clock.micros();
        let arrival = Clock::millis_ceil(arrival_us);
        let event = InferenceEvent {
            ended_us: 0,
            request_id: request_id(),
            account_id: None,
            client_id: None,
            client_request_id: None,
            model_id: None,
            asked_model_id: None,
            face: ApiDialect::OpenAi,
            node: Arc::clone(&world.node),
            site: Arc::clone(&world.site),
            status: 0,
            error_code: None,
            reason: None,
            outcome: RequestOutcome::Failed,
            queued: false,
            request_time_us: 0,
            queuing_time_us: 0,
            inference_time_us: 0,
            time_to_first_token_us: None,
            metrics: TokenUsage::default(),
            extra_metrics: Vec::new(),
            metrics_source: MetricsSource::None,
            comparison: Vec::new(),
            neurons: None,
            priced_by: None,
            attempts: 0,
            upstream: None,
            path: Arc::clone(&world.path),
            local_queue_size: 0,
            source_site: Arc::clone(&world.site),
            container_id: None,
            flags: EventFlags::default(),
            request_source: "rest",
            plugins: Vec::new(),
            trace_id: None,
        };
        RequestContext {
            can: Origin::Client.capabilities(),
            origin: Origin::Client,
            deadline: arrival + Millis::from_secs(world.timeouts.ceiling_secs),
            snapshot: world,
            arrival,
            page_origin: PageOrigin::None,
            model: None,
            only_site: None,
            rate_account: None,
            account_guard: None,
            forwarding: None,
            response_started: false,
            comment_interval: None,
            needs_fresh_connection: false,
            trace: TraceBuilder::default(),
            span_identity: None,
            is_completion: false,
            shared: Arc::clone(shared),
            event: Some(event),
            recorded: false,
            arrival_us,
            elapsed_us: 0,
            queued_since_us: None,
            granted_us: None,
            billing: RequestBilling::default(),
            _in_flight: in_flight,
        }
    }

    /// Lines of the answer's head that tell how much of its account's limits is left.
    pub fn rate_lines(&self) -> Vec<(&'static str, String)> {
        let account = self.rate_account.as_ref();
        account.map_or_else(Vec::new, |account| {
            account.rate_lines(self.shared.clock.now())
        })
    }

    /// The event as filled so far.
    pub fn event(&mut self) -> &mut InferenceEvent {
        self.event
            .as_mut()
            .expect("the event leaves only when the ctx ends")
    }

    /// The client's name for this request.
    pub fn request_id(&self) -> &Arc<str> {
        &self
            .event
            .as_ref()
            .expect("the event leaves only when the ctx ends")
            .request_id
    }

    /// Since its client sent it, microseconds.
    pub fn elapsed_us(&self) -> u64 {
        let here = self.shared.clock.micros().saturating_sub(self.arrival_us);
        self.elapsed_us + here
    }

    /// Dialect of the answer.
    pub fn dialect(&self) -> ApiDialect {
        self.event
            .as_ref()
            .expect("the event leaves only when the ctx ends")
            .face
    }

    /// Starts the trace of an authenticated inference request.
    pub fn begin_trace(&mut self) {
        let node = self
            .forwarding
            .as_ref()
            .and_then(|journey| journey.forwarder());
        let queued_us = self.event().queuing_time_us;
        let before = node.map(|node| ForwardedFrom {
            node,
            elapsed_us: self.elapsed_us,
            queued_us,
        });
        self.trace
            .begin(self.arrival_us, self.snapshot.generation, before);
        self.trace.set_identity(self.span_identity.take());
    }

    /// Sets the deadline from model, configuration and caller; a forwarded request keeps that of the node
    /// before.
    pub fn set_deadline(&mut self, model_secs: u64, wish: Option<Millis>) {
        if !self.can.sets_deadline {
            return;
        }
        let rule = self.snapshot.deadline;
        self.deadline = rule.deadline(self.arrival, model_secs, wish);
        self.trace.set_deadline(rule, model_secs, wish);
    }

    /// Records the number of requests that waited on arrival.
    pub fn record_queue_length(&mut self, waiting: usize) {
        let event = self.event();
        // A second try comes to the line from inside; the first look counts.
        if event.attempts == 0 {
            event.local_queue_size = u32::try_from(waiting).unwrap_or(u32::MAX);
        }
    }

    /// Sets the model to `lane`, where `asked` is the one the client asked for.
    pub fn set_model(&mut self, lane: &Arc<ModelRuntime>, asked: &ModelRuntime) {
        let event = self.event();
        let (model, asked) = (&lane.spec.id, &asked.spec.id);
        event.model_id = Some(model.clone());
        event.asked_model_id = (model != asked).then(|| asked.clone());
        self.model = Some(Arc::clone(lane));
        // What it waits for here is not the work of a server before.
        self.granted_us = None;
        if let Some(journey) = &mut self.forwarding {
            journey.reset_visited();
        }
    }

    /// The model that answers, where it is not the one that was asked for.
    pub fn substitute_model(&self) -> Option<&ModelId> {
        let event = self.event.as_ref()?;
        event.asked_model_id.as_ref()?;
        event.model_id.as_ref()
    }

    /// Records an attempt at this server.
    pub fn record_attempt(&mut self, target: &Target) -> u32 {
        let event = self.event();
        event.attempts += 1;
        event.upstream = Some(Arc::clone(&target.url));
        event.flags.external_endpoint = target.is_external;
        event.attempts
    }

    /// Starts the queue wait.
    pub fn begin_queue_wait(&mut self) {
        self.queued_since_us = Some(self.shared.clock.micros());
        let event = self.event();
        event.queued = true;
        event.flags.queued_in_site = true;
    }

    /// Ends the queue wait: granted, refused or cancelled.
    pub fn end_queue_wait(&mut self) {
        let now = self.shared.clock.micros();
        if let Some(since) = self.queued_since_us.take() {
            self.event().queuing_time_us += now.saturating_sub(since);
        }
    }

    /// A permit is held from now on.
    pub fn record_grant(&mut self) {
        self.granted_us.get_or_insert(self.shared.clock.micros());
    }

    /// The first byte of the answer's body goes to the client.
    pub fn record_first_byte(&mut self) {
        let elapsed = self.elapsed_us();
        self.event().time_to_first_token_us.get_or_insert(elapsed);
    }

    /// Records the usage that the model server reports.
    pub fn set_usage(&mut self, usage: Option<Usage>) {
        let Some(usage) = usage else { return };
        if self.billing.is_settled() {
            return;
        }
        let event = self.event();
        event.metrics_source = MetricsSource::Reported;
        event.metrics = TokenUsage {
            input_tokens: Some(usage.input_tokens),
            output_tokens: Some(usage.output_tokens),
            cached_tokens: usage.cached_tokens,
        };
    }

    /// Holds what the request may come to of its account's day.
    ///
    /// # Errors
    /// [`Refusal::QuotaUsed`], [`Refusal::QuotaHeld`].
    pub fn reserve_quota(
        &mut self,
        account: &AccountSpec,
        lane: &ModelRuntime,
        call: &Call,
    ) -> Result<(), Refusal> {
        let ledger = &self.shared.quota;
        let limit = match &self.forwarding {
            // The node its client speaks to has looked at the limit, and prices by its own tariff. Here the
            // charge counts where there is a limit here, and never where nobody knows the account.
            Some(journey) if !journey.is_from_client() => {
                self.billing.set_tariff(journey.tariff(), lane)?;
                let is_known = self.snapshot.accounts.known(&account.id).is_some();
                let is_limited = journey.is_limited() || account.neurons_per_day.is_some();
                (is_known && is_limited).then_some(QuotaLimit::CheckedByPeer)
            }
            _ => account.neurons_per_day.map(QuotaLimit::PerDay),
        };
        self.billing.reserve(ledger, account, limit, lane, call)
    }

    /// Holds what it may come to at another model, in place of what was held for the former one.
    pub fn exchange_quota(&mut self, account: &AccountSpec, lane: &ModelRuntime, call: &Call) {
        self.billing.exchange(account, lane, call);
    }

    /// Records the usage of the response so far, where that is priced or counted here.
    pub fn record_usage(&mut self, answer: &ResponseTransformer) {
        let (Some(lane), Some(event)) = (&self.model, &self.event) else {
            return;
        };
        if let Some(account) = &event.account_id {
            let caller = Caller {
                account,
                request_id: &event.request_id,
            };
            self.billing.record_usage(answer, lane, caller);
        }
    }

    /// A server was sent it, and no other will be.
    pub fn mark_sent(&mut self) {
        self.billing.mark_sent();
    }

    /// Records that bytes of the response, if any, go to the client.
    pub fn mark_received(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.billing.mark_received();
        }
    }

    /// Marks the request as sent if a server has it: its work is paid.
    pub fn mark_sent_if_started(&mut self, marks: &ConnectTimings) {
        if marks.is_head_sent() {
            self.mark_sent();
        }
    }

    /// Counts an answer whose server has not said what it used, and says so once for each server.
    pub fn warn_of_unmetered(&self, lane: &ModelRuntime, target: &Target) {
        if !self.billing.is_unmetered() {
            return;
        }
        lane.metrics.record_unmetered_response();
        if !target.is_unmetered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                model = lane.spec.id.as_str(),
                url = &*target.url,
                "the server answers without usage: its answers are billed by estimates"
            );
        }
    }

    /// Records the progress of a stream, which is billed should the pipeline end here.
    pub fn record_progress(&mut self, answer: &ResponseTransformer) {
        if answer.is_stream() {
            self.set_usage(answer.usage());
            self.billing.record_progress(answer);
        }
    }

    /// Prices the request, once.
    pub fn price(&mut self) -> Option<&Charge> {
        let now = self.shared.clock.micros();
        let lane = self.model.as_ref()?;
        let event = self.event.as_mut()?;
        event.inference_time_us = self.granted_us.map_or(0, |since| now.saturating_sub(since));
        self.billing.price(lane, event)
    }

    /// Returns the charge, once priced.
    pub fn charge(&self) -> Option<&Charge> {
        self.billing.charge()
    }

    /// All plugins that had a say so far.
    pub fn record_plugins(&mut self, uses: &[PluginUse]) {
        let known = &mut self.event().plugins;
        for one in uses {
            if !known.contains(one) {
                known.push(one.clone());
            }
        }
    }

    /// Tokens of prompt and answer together: what the model server reported, else what was counted here of
    /// an answer that was cut or says nothing.
    pub fn tokens_used(&self) -> Option<u64> {
        let metrics = self.event.as_ref()?.metrics;
        match metrics.input_tokens {
            Some(input) => Some(input.saturating_add(metrics.output_tokens.unwrap_or(0))),
            None => self.billing.tokens(self.model.as_ref()?),
        }
    }

    /// Releases the account's concurrency unit. To be called before the client has the last byte: who has
    /// its answer may ask again at once.
    pub fn release_concurrency(&mut self) {
        if let Some(entered) = &mut self.account_guard {
            entered.release_concurrency();
        }
    }

    /// Discards the trace and the event: the bytes were not a valid request.
    pub fn discard(&mut self) {
        self.recorded = true;
        self.event = None;
    }

    /// Sets the outcome so far; the last call before the drop counts.
    pub fn set_outcome(&mut self, outcome: RequestOutcome) {
        self.event().outcome = outcome;
    }

    /// Records the refusal and the outcome in the event and the trace.
    pub fn record_refusal(&mut self, refusal: &Refusal, outcome: RequestOutcome) {
        let row = refusal.row();
        let event = self.event();
        event.error_code = Some(row.code);
        event.reason = Some(row.reason);
        event.outcome = outcome;
        self.trace.record_refusal(refusal);
    }

    /// The client left before the end.
    pub fn record_client_gone(&mut self) {
        self.record_refusal(&Refusal::ClientGone, RequestOutcome::CutByClient);
    }

    /// Completes the event and hands it over, so that the answer's last byte may wait for the disk.
    /// The ctx goes on: its tokens are still to be settled.
    pub async fn persist_event(&mut self) {
        if self.complete() {
            let event = self.event().clone();
            let stored = self.shared.sink.write_durable(event);
            // Whether stored, lost or late: the sink counts, and the client gets its answer.
            let _ = timeout(EVENT_WRITE_TIMEOUT, stored).await;
        }
    }

    /// Fills in what is known at the end; true once.
    fn complete(&mut self) -> bool {
        if std::mem::replace(&mut self.recorded, true) {
            return false;
        }
        self.end_queue_wait();
        let now = self.shared.clock.micros();
        let elapsed = self.elapsed_us();
        let Some(event) = &mut self.event else {
            return false;
        };
        event.ended_us = now;
        event.request_time_us = elapsed;
        event.inference_time_us = self.granted_us.map_or(0, |since| now.saturating_sub(since));
        self.price();
        self.billing.close(self.model.as_deref());
        if !self.owns_event() {
            self.finish_trace();
            return false;
        }
        let Some(event) = &self.event else {
            return false;
        };
        let metrics = &self.shared.metrics;
        self.model
            .as_ref()
            .map_or(metrics.no_model(), |lane| &lane.metrics)
            .record_request(event);
        self.record_gen_ai(event);
        // Strangers are counted: they must not be able to write into the file of what is billed.
        let is_known = event.account_id.is_some();
        self.finish_trace();
        is_known
    }

    fn finish_trace(&mut self) {
        if let Some(event) = &self.event {
            self.trace
                .finish(event, self.billing.quota(), self.operation_name());
        }
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let is_ours = self.complete();
        // Before the event, so that whoever has seen that finds this.
        if let Some(story) = self.trace.take() {
            if story.identity.is_some() {
                self.shared.exports.push(story.clone());
            }
            self.shared.traces.keep(story);
        }
        if is_ours && let Some(event) = self.event.take() {
            self.shared.sink.write(event);
        }
    }
}

/// 128 bits of chance in hex: an id to find a request by, not a secret.
pub fn request_id() -> Arc<str> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let chance = fastrand::u128(..);
    let mut text = [0_u8; 32];
    for (index, digit) in text.iter_mut().enumerate() {
        *digit = DIGITS[(chance >> (index * 4) & 0xf) as usize];
    }
    std::str::from_utf8(&text)
        .expect("hex digits are ASCII")
        .into()
}
