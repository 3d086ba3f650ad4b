//! Context of one request: its control state, and the guards to release.
//!
//! Not an actor: the pipeline is. Steps read and write the fields here. The event and the trace are built from
//! them at the end (`event.rs`) and steer nothing. However the pipeline ends (response, refusal, client gone,
//! panic), dropping the context leaves exactly one event, and one trace where the request has one.

mod cluster;
mod connection;
mod distributed;
mod event;
mod facts;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use infergate_core::api::{ApiDialect, Call};
use infergate_core::billing::Charge;
use infergate_core::client_address::ClientAddress;
use infergate_core::deadline::DeadlineRule;
use infergate_core::model::{AccountSpec, KeepLoaded, NamedTask, Task};
use infergate_core::refusal::Refusal;
use infergate_core::{AccountId, Millis, ModelId};

use crate::pipeline::arriving_body::ArrivingBody;
use crate::pipeline::billing::{JobTimes, PriceInput, QuotaLimit, RequestBilling};
use crate::pipeline::context::facts::EventFacts;
use crate::pipeline::forwarding::ForwardState;
use crate::pipeline::origin::{Capabilities, JobHeader, Origin};
use crate::pipeline::terms::RequestTerms;
use crate::plugin::Caller;
use crate::state::ConfigSnapshot;
use crate::state::InFlight;
use crate::state::PageOrigin;
use crate::state::Shared;
use crate::state::{Account, AccountGuard, RateLines};
use crate::telemetry::event::PluginUse;
use crate::telemetry::{Clock, RequestOutcome};
use crate::trace::{SpanIdentity, TraceBuilder};
use crate::upstream::{ConnectTimings, ModelRuntime, RankingClass, ResponseTransformer, Target};

/// A request between its head and its event.
pub struct RequestContext {
    /// Capabilities of the request, by its origin.
    pub can: Capabilities,
    origin: Origin,
    /// Id that the client gets as `x-request-id`.
    request_id: Arc<str>,
    /// Dialect of the response.
    dialect: ApiDialect,
    /// Account that pays; none before it is known.
    account: Option<AccountId>,
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
    /// Model that the client named, where another one takes its place.
    replaced_model: Option<ModelId>,
    /// Terms beside those of the model; none for most requests.
    pub terms: Option<Box<RequestTerms>>,
    /// The site it must be served at.
    pub forced_site: Option<Arc<str>>,
    /// Account whose limits stand in the head of the response.
    pub rate_account: Option<Arc<Account>>,
    /// Task of which it took a unit of its account's pace.
    pub charged_task: Option<Task>,
    /// Its place among the requests under way of its account, where that has limits.
    pub account_guard: Option<AccountGuard>,
    /// The node is one of a cluster: another one may serve the request.
    pub in_cluster: bool,
    /// Size of the body as received.
    body_bytes: u64,
    /// Class of the request for the ranking of sites.
    pub ranking_class: RankingClass,
    /// Visited nodes and budget; none while the request was not forwarded.
    pub forwarding: Option<Box<ForwardState>>,
    /// Attempts at model servers so far, those at nodes before this one included.
    pub attempts: u32,
    /// The answer's head has been written; from then on a refusal is an event of the stream.
    pub response_started: bool,
    /// The server's good answer told a failure of its own, or had a form that is none of its kind's.
    pub has_model_failed: bool,
    /// HTTP status of the response; 0 before there is one.
    pub status: u16,
    /// The response is a stream of events.
    pub is_streaming: bool,
    /// Outcome so far; the last one before the end counts.
    outcome: RequestOutcome,
    /// The span between two signs of life while a model server is silent; none for who gets none.
    pub comment_interval: Option<Duration>,
    /// A kept connection broke under it: further tries go out on new ones only.
    pub needs_fresh_connection: bool,
    /// Rest of the body, where it goes on as it comes. Boxed: few requests have one.
    pub arriving: Option<Box<ArrivingBody>>,
    /// Trace of the request, with its times.
    pub trace: TraceBuilder,
    /// The request in its distributed trace, until the trace begins.
    span_identity: Option<Box<SpanIdentity>>,
    /// Text is completed, not a conversation.
    is_completion: bool,
    /// Bodies pass: the stream is no chat's.
    is_passed: bool,
    /// Facts that no step reads.
    facts: EventFacts,
    /// The event is built: changes from then on are not recorded.
    is_ended: bool,
    shared: Arc<Shared>,
    billing: RequestBilling,
    _in_flight: InFlight,
}

impl RequestContext {
    /// Begins a job, which its worker has queued and charged.
    pub fn for_job(shared: &Arc<Shared>, in_flight: InFlight, job: JobHeader) -> RequestContext {
        let mut ctx = RequestContext::begin(shared, in_flight);
        ctx.deadline = job.deadline;
        ctx.request_id = Arc::clone(&job.event_id);
        ctx.account = Some(job.account.clone());
        ctx.set_origin(Origin::Job(Box::new(job)));
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

    /// Begins with a complete head.
    pub fn begin(shared: &Arc<Shared>, in_flight: InFlight) -> RequestContext {
        let snapshot = shared.snapshot.load_full();
        let arrival_us = shared.clock.recent_micros();
        let arrival = Clock::millis_ceil(arrival_us);
        RequestContext {
            can: Origin::Client.capabilities(),
            origin: Origin::Client,
            request_id: request_id(),
            dialect: ApiDialect::OpenAi,
            account: None,
            deadline: arrival + Millis::from_secs(snapshot.timeouts.ceiling_secs),
            snapshot,
            arrival,
            page_origin: PageOrigin::None,
            model: None,
            replaced_model: None,
            terms: None,
            forced_site: None,
            rate_account: None,
            charged_task: None,
            account_guard: None,
            in_cluster: false,
            body_bytes: 0,
            ranking_class: RankingClass::default(),
            forwarding: None,
            attempts: 0,
            response_started: false,
            has_model_failed: false,
            status: 0,
            is_streaming: false,
            outcome: RequestOutcome::Failed,
            comment_interval: None,
            needs_fresh_connection: false,
            arriving: None,
            trace: TraceBuilder::new(arrival_us),
            span_identity: None,
            is_completion: false,
            is_passed: false,
            facts: EventFacts::default(),
            is_ended: false,
            shared: Arc::clone(shared),
            billing: RequestBilling::default(),
            _in_flight: in_flight,
        }
    }

    /// Lines of the response head with the rest of the account's limits.
    pub fn rate_lines(&self) -> RateLines {
        let account = self.rate_account.as_ref();
        account.map_or_else(RateLines::default, |account| {
            let now = self.shared.clock.recent();
            match self.dialect() {
                ApiDialect::Replicate => account.request_rate_lines(now),
                _ => account.rate_lines(now),
            }
        })
    }

    /// The client's name for this request.
    pub fn request_id(&self) -> &Arc<str> {
        &self.request_id
    }

    /// Since its client sent it, microseconds.
    pub fn elapsed_us(&self) -> u64 {
        self.trace
            .times
            .elapsed_us(self.shared.clock.recent_micros())
    }

    /// Dialect of the answer.
    pub fn dialect(&self) -> ApiDialect {
        self.dialect
    }

    /// Sets the dialect of the route, and the name that the client gave the request.
    pub fn set_route(&mut self, dialect: ApiDialect, client_request_id: Option<Arc<str>>) {
        self.dialect = dialect;
        self.facts.client_request_id = client_request_id;
    }

    /// Account that pays, once known.
    pub fn account(&self) -> Option<&AccountId> {
        self.account.as_ref()
    }

    /// Sets the account that pays.
    pub fn set_account(&mut self, account: AccountId) {
        self.account = Some(account);
    }

    /// Address of the client, as far as it is known.
    pub fn client(&self) -> ClientAddress {
        self.facts.client
    }

    /// Sets the address of the client.
    pub fn set_client(&mut self, client: ClientAddress) {
        self.facts.client = client;
    }

    /// Sets the end user that the client names.
    pub fn set_end_user(&mut self, client_id: Option<&str>) {
        self.facts.client_id = client_id.map(Arc::from);
    }

    /// Starts the trace of an authenticated inference request.
    pub fn begin_trace(&mut self) {
        let node = self
            .forwarding
            .as_ref()
            .and_then(|forwarding| forwarding.forwarder());
        self.trace.begin(self.snapshot.generation, node);
        self.trace.set_identity(self.span_identity.take());
    }

    /// Sets the deadline from model, configuration and caller; a forwarded request keeps that of the node
    /// before.
    pub fn set_deadline(&mut self, model_secs: u64, requested: Option<Millis>) {
        if !self.can.sets_deadline {
            return;
        }
        let mut rule = self.snapshot.deadline;
        let mut model_secs = model_secs;
        if let Some(secs) = self.terms.as_ref().and_then(|terms| terms.budget_secs()) {
            model_secs = secs;
            rule = DeadlineRule {
                model_floor_secs: 0,
                ..rule
            };
        }
        if let Some(terms) = &self.terms {
            rule.profile_secs = terms.profile_secs();
        }
        self.deadline = rule.deadline(self.arrival, model_secs, requested);
        self.trace.set_deadline(rule, model_secs, requested);
    }

    /// Records the number of requests that waited on arrival.
    pub fn record_queue_length(&mut self, waiting: usize) {
        // Only the first attempt counts: a retry joins the queue from within.
        if self.attempts == 0 {
            self.facts.queue_length = u32::try_from(waiting).unwrap_or(u32::MAX);
        }
    }

    /// Sets the model that answers and the one that the client requested.
    pub fn set_model(&mut self, model: &Arc<ModelRuntime>, requested: &ModelRuntime) {
        let id = &model.spec.id;
        if self.model.as_ref().is_some_and(|it| it.spec.id != *id) {
            self.trace.times.forget_load_wait();
        }
        let requested = self.name_in_terms().unwrap_or(&requested.spec.id);
        self.replaced_model = (id != requested).then(|| requested.clone());
        self.model = Some(Arc::clone(model));
        // What it waits for here is not the work of a server before.
        self.trace.times.forget_grant();
        if let Some(forwarding) = &mut self.forwarding {
            forwarding.reset_visited();
        }
    }

    /// Sets the named task that the client asked for, and the candidate that goes first.
    pub fn begin_task(&mut self, task: &Arc<NamedTask>, first: &Arc<ModelRuntime>) {
        self.terms.get_or_insert_default().task = Some(Arc::clone(task));
        self.replaced_model = self.name_in_terms().cloned();
        self.model = Some(Arc::clone(first));
    }

    /// Takes over the name that the client's profile has replaced.
    pub fn begin_profile(&mut self) {
        if let Some(name) = self.terms.as_ref().and_then(|it| it.replaced_name.clone()) {
            self.replaced_model = Some(name);
        }
    }

    /// Name that the client used, where that is not a model's by itself.
    fn name_in_terms(&self) -> Option<&ModelId> {
        let terms = self.terms.as_ref()?;
        let of_task = || Some(&terms.task.as_ref()?.id);
        terms.replaced_name.as_ref().or_else(of_task)
    }

    /// Finds the named task of a request that another node forwards, by the name that its client used there.
    pub fn restore_task(&mut self) {
        let Some(named) = &self.replaced_model else {
            return;
        };
        let profile = self.terms.as_ref().and_then(|it| it.profile.as_ref());
        let replacement = profile.and_then(|it| it.replacement(named.as_str()));
        let name = replacement.unwrap_or(named).as_str();
        if let Some(task) = self.snapshot.catalog.named_task(name).cloned() {
            self.terms.get_or_insert_default().task = Some(task);
        }
    }

    /// The named task that the client asked for.
    pub fn named_task(&self) -> Option<&Arc<NamedTask>> {
        self.terms.as_ref()?.task.as_ref()
    }

    /// Time for which the model that serves stays loaded, where that is not its own.
    pub fn keep_alive(&self) -> Option<KeepLoaded> {
        self.terms.as_ref()?.keep_alive()
    }

    /// State that all requests share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The model that answers, where it is not the one that was asked for.
    pub fn substitute_model(&self) -> Option<&ModelId> {
        self.replaced_model.as_ref()?;
        Some(&self.model.as_ref()?.spec.id)
    }

    /// The model that the client named, where another one takes its place.
    pub fn replaced_model(&self) -> Option<&ModelId> {
        self.replaced_model.as_ref()
    }

    /// Records an attempt at this server.
    pub fn record_attempt(&mut self, target: &Target) {
        self.attempts += 1;
        self.facts.endpoint = Some(Arc::clone(&target.url));
        self.facts.instance.clone_from(&target.instance);
        self.facts.is_external = target.is_external;
    }

    /// Wait for the model to be loaded, whole milliseconds; none where the request waited for none.
    pub fn load_ms(&self) -> Option<u64> {
        let waited = self.trace.times.load_wait_us()?;
        (waited > 0).then_some(waited / 1000)
    }

    /// Records a permit that was granted before the request began here.
    pub fn record_grant(&mut self, now_us: u64) {
        self.trace.times.record_grant(now_us);
    }

    /// Records that the first byte of the response's body goes to the client.
    pub fn record_first_byte(&mut self) {
        let times = &mut self.trace.times;
        if !times.has_first_byte() {
            times.record_first_byte(self.shared.clock.recent_micros());
        }
    }

    /// Holds what the request may come to of its account's day.
    ///
    /// # Errors
    /// [`Refusal::QuotaUsed`], [`Refusal::QuotaHeld`].
    pub fn reserve_quota(
        &mut self,
        account: &AccountSpec,
        model: &ModelRuntime,
        call: &Call,
    ) -> Result<(), Refusal> {
        let quota = &self.shared.quota;
        let limit = match &self.forwarding {
            // The node its client speaks to has looked at the limit, and prices by its own tariff. Here the
            // charge counts where there is a limit here, and never where the account is unknown.
            Some(forwarding) if !forwarding.is_from_client() => {
                self.billing.set_tariff(forwarding.tariff(), model)?;
                let is_known = self.snapshot.accounts.known(&account.id).is_some();
                let is_limited = forwarding.is_limited() || account.neurons_per_day.is_some();
                (is_known && is_limited).then_some(QuotaLimit::CheckedByPeer)
            }
            _ => account.neurons_per_day.map(QuotaLimit::PerDay),
        };
        self.billing.reserve(quota, account, limit, model, call)
    }

    /// Holds what it may come to at another model, in place of what was held for the former one.
    pub fn exchange_quota(&mut self, account: &AccountSpec, model: &ModelRuntime, call: &Call) {
        self.billing.exchange(account, model, call);
    }

    /// Records the usage of the response so far, where that is priced or counted here.
    pub fn record_usage(&mut self, transformer: &ResponseTransformer) {
        if let (Some(model), Some(account)) = (&self.model, &self.account) {
            let caller = Caller {
                account,
                request_id: &self.request_id,
            };
            self.billing.record_usage(transformer, model, caller);
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
    pub fn warn_of_unmetered(&self, model: &ModelRuntime, target: &Target) {
        if !self.billing.is_unmetered() {
            return;
        }
        model.metrics.record_unmetered_response();
        if !target.is_unmetered.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                model = model.spec.id.as_str(),
                url = &*target.url,
                "the server answers without usage: its answers are billed by estimates"
            );
        }
    }

    /// Records the progress of a stream, which is billed should the pipeline end here.
    pub fn record_progress(&mut self, transformer: &ResponseTransformer) {
        if transformer.is_stream() {
            self.billing.record_progress(transformer);
        }
    }

    /// Prices the request, once.
    pub fn price(&mut self) {
        let Some(model) = self.model.as_ref().filter(|_| !self.billing.is_settled()) else {
            return;
        };
        let times = &self.trace.times;
        let account = self.account.as_ref();
        let input = PriceInput {
            caller: account.map(|account| Caller {
                account,
                request_id: &self.request_id,
            }),
            outcome: self.outcome,
            is_streaming: self.is_streaming,
            times,
            clock: self.shared.clock,
            job: match &self.origin {
                Origin::Job(job) => Some(JobTimes {
                    run_from_us: times.begin_us(),
                    age: job.age,
                }),
                Origin::Client | Origin::Peer => None,
            },
        };
        self.billing.price(model, &input, &mut self.facts.plugins);
    }

    /// Returns whether the model's tariff charges requests that failed.
    pub fn charges_failures(&self) -> bool {
        let tariff = self.model.as_ref().and_then(|it| it.spec.tariff.as_ref());
        tariff.is_some_and(|tariff| tariff.charge_failed)
    }

    /// Charges nothing for the request: what it would have cost goes back.
    pub fn waive_charge(&mut self) {
        self.billing.waive();
    }

    /// Returns the charge, once priced.
    pub fn charge(&self) -> Option<&Charge> {
        self.billing.charge()
    }

    /// All plugins that had a say so far.
    pub fn record_plugins(&mut self, uses: &[PluginUse]) {
        let known = &mut self.facts.plugins;
        for one in uses {
            if !known.contains(one) {
                known.push(one.clone());
            }
        }
    }

    /// Tokens of prompt and answer together; none where no answer has begun.
    pub fn tokens_used(&self) -> Option<u64> {
        self.billing.tokens_used(self.model.as_deref())
    }

    /// Releases the account's concurrency unit. To be called before the client has the last byte: who has
    /// its answer may ask again at once.
    pub fn release_concurrency(&mut self) {
        if let Some(entered) = &mut self.account_guard {
            entered.release_concurrency();
        }
    }

    /// Sets the outcome so far; the last call before the drop counts.
    pub fn set_outcome(&mut self, outcome: RequestOutcome) {
        self.outcome = outcome;
    }

    /// Outcome so far.
    pub fn outcome(&self) -> RequestOutcome {
        self.outcome
    }

    /// Records a model server's own error, which has this code here.
    pub fn record_server_error(&mut self, code: u32, outcome: RequestOutcome) {
        self.facts.error_code = Some(code);
        self.outcome = outcome;
    }

    /// Records the refusal and the outcome in the event and the trace.
    pub fn record_refusal(&mut self, refusal: &Refusal, outcome: RequestOutcome) {
        let row = refusal.row();
        self.facts.error_code = Some(row.code);
        self.facts.reason = Some(row.reason);
        self.outcome = outcome;
        self.trace.record_refusal(refusal);
    }

    /// The client left before the end.
    pub fn record_client_gone(&mut self) {
        self.record_refusal(&Refusal::ClientGone, RequestOutcome::CutByClient);
    }
}

/// 128 bits of chance in hex: an id to find a request by, not a secret.
pub fn request_id() -> Arc<str> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let chance = fastrand::u128(..);
    let mut text = [0_u8; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(chance.to_le_bytes()) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xf)];
    }
    std::str::from_utf8(&text)
        .expect("hex digits are ASCII")
        .into()
}
