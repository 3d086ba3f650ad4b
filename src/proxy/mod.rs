//! The synchronous walk: one request from its head to its event, in twelve steps.
//!
//! [`Edge::walk`] reads top to bottom; the steps stand in the files beside it. Decisions are the core's and
//! the configuration's. Model servers are reached only through `upstream`. Pingora's HTTP session carries
//! the client side.
//!
//! Guards hold what is taken on the way (body memory, permit, queue slot, in-flight count) and are released
//! by drop. Leaving early, cancellation and panic need no code.

mod accounts;
mod admit;
mod arrival;
mod attempt;
mod away;
mod backlog;
mod beat;
mod bill;
mod budget;
mod call;
mod checks;
mod connections;
mod cors;
mod digest;
mod drain;
mod event;
mod explain;
mod forward;
mod front;
mod head;
mod headers;
mod intake;
mod interim;
mod journey;
mod ladder;
mod ledger;
mod limits;
mod listing;
mod peers;
mod progress;
mod readiness;
mod regrant;
mod relay;
mod respond;
mod route;
mod rules;
mod runtime;
mod task;
mod timeouts;
mod wire;
mod world;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::admission::PermitRequest;
use infergate_core::api::{ApiDialect, Call, Operation, body};
use infergate_core::model::{Access, Algorithm, Catalog};
use infergate_core::routing::FallbackReason;
use pingora_core::protocols::http::ServerSession;
use tokio::time::timeout;

pub use backlog::BacklogBudget;
pub use checks::BodyCheckSlots;
pub use connections::ClientConnections;
pub use cors::Cors;
pub use drain::Drain;
pub use explain::{NodeInfo, RequestTrace, TRACES_KEPT, TraceStore};
pub use front::{serve_connection, serve_peer};
pub use headers::{Headers, header_name_error as header_fault};
pub use ledger::QuotaStore;
pub use limits::Limits;
pub use readiness::Readiness;
pub use runtime::{RuntimeFlags, RuntimeSwitches};
pub use timeouts::Timeouts;
pub use world::{ConfigSnapshot, SnapshotParts};

use accounts::Account;
use attempt::{Attempts, UpstreamReply};
use away::ForwardedResponse;
use budget::{BodyBudget, BodyShare};
use call::{RequestContext, RequestError};
use cors::PageOrigin;
use head::{AuthenticatedRequest, RequestedOperation};
use ladder::{ModelError, ModelFallback};
use progress::comment_interval;
use relay::{Relay, RelayResult};
use route::EndpointPreference;
use wire::DownstreamConnection;

use crate::peer::{ClusterHandle, FORWARDED_HEAD_BYTES_MAX, PeerClient};
use crate::telemetry::{Clock, EventSink, Metrics, RequestOutcome};
use crate::upstream::{HttpClient, ModelRuntime, Permit, ResponseTransformer, UpstreamResponse};

/// State that all requests share for the life of the process.
pub struct Shared {
    /// The current configuration generation, swapped whole.
    pub snapshot: ArcSwap<ConfigSnapshot>,
    /// Time.
    pub clock: Clock,
    /// The way to model servers.
    pub client: HttpClient,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Where events go.
    pub sink: EventSink,
    /// Requests in flight, and whether the process drains.
    pub drain: Arc<Drain>,
    /// Memory of request bodies.
    pub bodies: Arc<BodyBudget>,
    /// Memory of answers that clients have not taken yet.
    pub backlogs: Arc<BacklogBudget>,
    /// The last requests, for operators who ask.
    pub traces: TraceStore,
    /// Turns at checking large bodies.
    pub body_checks: BodyCheckSlots,
    /// Neurons of the day.
    pub quota: Arc<QuotaStore>,
    /// Switches that operators change at run time.
    pub runtime: Arc<RuntimeSwitches>,
    /// The other nodes of the fleet.
    pub cluster: Arc<ClusterHandle>,
    /// The way to them.
    pub peer_client: Arc<PeerClient>,
    /// When the process started, seconds since 1970: `created` of every model.
    pub started_unix_secs: u64,
}

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

/// The client-facing server.
pub struct DownstreamServer {
    shared: Arc<Shared>,
}

impl DownstreamServer {
    /// A server over what is shared.
    pub fn new(shared: Arc<Shared>) -> DownstreamServer {
        DownstreamServer { shared }
    }

    /// Handles one request, in twelve steps.
    async fn handle(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
    ) -> Result<(), RequestError> {
        // 1, 2. The trip has begun with a well-framed head: what is asked, and for whom.
        let (head, wanted) = AuthenticatedRequest::read(session, trip)?;
        let (operation, path_model) = match wanted {
            RequestedOperation::Call(operation, model) => (operation, model),
            other => {
                return self
                    .answer_catalog(session, trip, &head.account, other)
                    .await;
            }
        };
        trip.begin_trace();
        let path_model = path_model.map(|model| trip.resolve_model_name(model));
        let lane = self.enter(trip, &head, path_model.as_deref())?;
        let account = Arc::clone(&head.account);
        let ended = self
            .run(session, trip, head, operation, path_model, lane)
            .await;
        if let Some(entered) = trip.account_guard.take()
            && has_worked(trip, &ended)
        {
            entered.settle(trip.tokens_used(), self.shared.clock.now());
        }
        if let Err(RequestError::Refused(refusal)) = &ended
            && cost_nothing(refusal)
            && trip.is_from_client()
        {
            account.refund_unit();
        }
        ended
    }

    /// Step 3: what is looked at before the body, so that a request that cannot pass is not read. Gives
    /// the model that stands in the path.
    fn enter(
        &self,
        trip: &mut RequestContext,
        head: &AuthenticatedRequest,
        path_model: Option<&str>,
    ) -> Result<Option<Arc<ModelRuntime>>, Refusal> {
        let found = path_model.map(|model| find_model(trip, model, &head.account));
        let lane = found.transpose()?;
        if trip.is_from_client() {
            let spec = &head.account.spec;
            if let Some(limit) = spec.neurons_per_day {
                self.shared.quota.check(&spec.id, limit)?;
            }
            if head.account.has_rates() {
                trip.rate_account = Some(Arc::clone(&head.account));
            }
            head.account.take_unit(self.shared.clock.now())?;
        }
        Ok(lane)
    }

    /// Steps 4 to 12.
    async fn run(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        mut head: AuthenticatedRequest,
        operation: Operation,
        path_model: Option<String>,
        path_lane: Option<Arc<ModelRuntime>>,
    ) -> Result<(), RequestError> {
        let shared = &*self.shared;
        // 4. The body, whole and parsed as far as needed.
        let (bytes, mut body_share) =
            intake::read_body(shared, session, trip, &head.account).await?;
        if shared.cluster.has_joined() || !trip.is_from_client() {
            trip.begin_forwarding(head.replayable(session, &bytes));
        }
        let mut call = intake::read_call(session, trip, operation, path_model, bytes.clone())?;
        call.model = trip.resolve_model_name(call.model);
        trip.event().client_id = call.client_id.as_deref().map(Arc::from);
        // 5. The model, and whether this account may use it.
        let lane = match path_lane {
            Some(lane) => lane,
            None => find_model(trip, &call.model, &head.account)?,
        };
        // 6. One deadline for queue, server and stream, and what the request may cost of the day.
        trip.set_deadline(lane.spec.timeout_secs, head.requested_timeout);
        trip.reserve_quota(&head.account.spec, &lane, &call)?;
        if trip.is_from_client() {
            let now = shared.clock.now();
            trip.account_guard = head.account.enter(|| tokens_ahead(&call), now)?;
        }
        // 7 to 10, at the model, and as long as nobody has begun to work at those of its ladder.
        let mut ladder = ModelFallback::begin(shared, trip, &head.account.spec, lane, call);
        let body_bytes = body_share.bytes();
        let begun = loop {
            let begun = self.start_at_model(session, trip, &head, &mut ladder, &mut body_share);
            match begun.await {
                Ok(begun) => break begun,
                Err(ModelError::Outdated) => {
                    (head, ladder) = self.reauthorize(session, trip, &bytes, ladder)?;
                }
                Err(unserved) => ladder.advance(trip, unserved)?,
            }
            body_share.shrink(body_share.bytes() - body_bytes);
        };
        // 11. The answer, chunk by chunk.
        let begun = match begun {
            Upstream::Local(begun) => begun,
            Upstream::Peer(away) => return away.relay(shared, session, trip).await,
        };
        self.finish(session, trip, begun, &head.account).await
    }

    /// Steps 11 and 12: the answer, chunk by chunk, and what goes back.
    async fn finish(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        begun: LocalUpstream<'_>,
        account: &Account,
    ) -> Result<(), RequestError> {
        let shared = &*self.shared;
        let LocalUpstream {
            mut attempts,
            permit,
            response: mut exchange,
            transformer: mut answer,
            charged_tokens: charged,
        } = begun;
        let mut permit = Some(permit);
        let mut release = |relayed: RelayResult, trip: &mut RequestContext| {
            if let Some(permit) = permit.take() {
                attempts.release(permit, relayed, trip, account, charged);
            }
        };
        let face = trip.dialect();
        let relay = Relay::new(shared, session, trip, &mut exchange, &mut release);
        let (relayed, ended) = relay.run(&mut answer, face).await;
        // The connection and the permit go back, in this order so that the next request finds the
        // connection warm; tokens are settled.
        shared.client.finish(exchange).await;
        release(relayed, trip);
        ended
    }

    /// Steps 2, 4 and 5 once more, under the configuration that holds now.
    fn reauthorize<'a>(
        &'a self,
        session: &ServerSession,
        trip: &mut RequestContext,
        bytes: &Bytes,
        former: ModelFallback<'a>,
    ) -> Result<(AuthenticatedRequest, ModelFallback<'a>), RequestError> {
        trip.snapshot = self.shared.snapshot.load_full();
        let (head, wanted) = AuthenticatedRequest::read(session, trip)?;
        let RequestedOperation::Call(operation, path_model) = wanted else {
            return Err(Refusal::NoSuchRoute.into());
        };
        let path_model = path_model.map(|model| trip.resolve_model_name(model));
        let mut call = intake::read_call(session, trip, operation, path_model, bytes.clone())?;
        call.model = trip.resolve_model_name(call.model);
        let lane = find_model(trip, &call.model, &head.account)?;
        trip.exchange_quota(&head.account.spec, &lane, &call);
        trip.set_model(&lane, &lane);
        let mut ladder = ModelFallback::begin(&self.shared, trip, &head.account.spec, lane, call);
        ladder.resume_after(former.model());
        Ok((head, ladder))
    }

    /// Steps 7 to 10 at one model.
    async fn start_at_model<'a>(
        &'a self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        head: &AuthenticatedRequest,
        ladder: &mut ModelFallback<'_>,
        body_share: &mut BodyShare,
    ) -> Result<Upstream<'a>, ModelError> {
        let shared = &*self.shared;
        let (call, lane) = (ladder.call()?, ladder.model());
        let call = with_parameters(call, lane, body_share)?;
        // 7. What the server will be asked.
        let mut ask = ask_for(trip, &head.account, lane, &call, head.reject_if_busy);
        let account = &head.account.spec.id;
        let (asked, task) =
            task::prepare(shared, session, trip, account, (lane, call), body_share).await?;
        let mut attempts = Attempts::new(shared, lane, asked, &head.passed_headers, trip)
            .map_err(ModelError::Unfit)?;
        if trip.response_started && !attempts.is_streaming() {
            // The client has been told that events follow.
            return Err(ModelError::Unfit(Refusal::Internal));
        }
        if !body_share.grow(attempts.copied_bytes()) {
            return Err(ModelError::Unfit(Refusal::BodyBudgetSpent));
        }
        // 8. Where it should go. The turnstile picks among what is free, so that the choice
        // cannot go stale in the queue.
        let now = shared.clock.now();
        let route = EndpointPreference::find(lane, trip, attempts.call(), ask.priority, now);
        ask.endpoint_order = route.order.clone();
        ask.is_retry = ladder.is_resumed();
        let descent = ladder.state();
        ask.has_alternative =
            descent.may_fall_back(FallbackReason::Unhealthy, trip.event().attempts);
        let charged = ask.tokens;
        // 9, 10. A permit, then the request; again elsewhere while the budget allows.
        let heartbeat = Duration::from_secs(lane.spec.queue_heartbeat_secs);
        // A node that forwards gives its own signs of life, and takes a head for an answer.
        let hears = attempts.is_streaming() && is_http11(session) && trip.is_from_client();
        let heartbeat = (hears && !heartbeat.is_zero()).then_some(heartbeat);
        trip.comment_interval = comment_interval(&lane.spec).filter(|_| hears);
        let served = attempts.run(session, trip, ask, heartbeat, ladder).await?;
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

    /// Reads one head, walks, and tells whether the connection may carry another request.
    async fn serve(&self, session: &mut ServerSession) -> bool {
        let in_flight = self.shared.drain.enter();
        let header_timeout = {
            let world = self.shared.snapshot.load();
            head::begin_count(session, head_bytes_max(session, &world));
            Duration::from_secs(world.limits.header_timeout_secs)
        };
        let mut page = PageOrigin::None;
        let (face, refusal) = match timeout(header_timeout, session.read_request()).await {
            Ok(Ok(true)) => {
                head::end_count(session);
                let world = self.shared.snapshot.load();
                page = world.cors.page_of(session.req_header());
                let refused = check_framing(session, &world).err();
                let refused = refused.or_else(|| cors::refuse_preflight(session, &page));
                (head::dialect_of(session.req_header()), refused)
            }
            Ok(Ok(false)) => return false,
            Ok(Err(_)) => (ApiDialect::OpenAi, Some(head::unreadable(session))),
            Err(_) => (ApiDialect::OpenAi, Some(Refusal::RequestTimeout)),
        };
        if let Some(refusal) = refusal {
            self.shared
                .metrics
                .record_refused_connection(refusal.row().reason);
            if head::is_from_node(session) {
                // The other node must not take this for an answer to its client.
                session.set_keepalive(None);
                let _ = respond::reject_malformed_forward(session).await;
                return false;
            }
            // A client that cannot frame a request may not be there to read about it either.
            let _ = respond::refuse_unread(session, face, &refusal, &page).await;
            return false;
        }
        if self.shared.drain.is_draining() {
            session.set_keepalive(None);
        }
        if let Some(usable) = peers::serve(&self.shared, session).await {
            return usable;
        }
        if page.is_listed() && cors::is_preflight(session.req_header()) {
            return cors::grant(session, &page).await.is_ok();
        }
        let mut trip = RequestContext::begin(&self.shared, in_flight);
        trip.page_origin = page;
        if let Some(usable) = self.accept_forward(session, &mut trip).await {
            return usable;
        }
        match self.handle(session, &mut trip).await {
            Ok(()) => true,
            Err(RequestError::Refused(refusal)) => {
                respond::finish_refused(session, &mut trip, &refusal).await
            }
            Err(RequestError::Aborted) => false,
        }
    }
}

impl DownstreamServer {
    /// Serves the next request of a connection. Returns the connection when it can carry another.
    async fn serve_next(
        self: Arc<Self>,
        mut session: ServerSession,
    ) -> Option<Box<DownstreamConnection>> {
        if !self.serve(&mut session).await {
            session.shutdown().await;
            if head::is_over_limit(&session) {
                head::linger(session).await;
            }
            return None;
        }
        let (stream, ahead) = session.finish().await.ok()??.into_parts();
        // Only our own connections carry requests, and read ahead of a request's end.
        let mut wire = stream.into_any().downcast::<DownstreamConnection>().ok()?;
        if let Some(ahead) = ahead {
            wire.put_back(ahead);
        }
        Some(wire)
    }
}

/// Older clients know no chunks, and a heartbeat must not decide where their answer ends.
fn is_http11(session: &ServerSession) -> bool {
    session.req_header().version == http::Version::HTTP_11
}

fn check_framing(session: &ServerSession, world: &ConfigSnapshot) -> Result<(), Refusal> {
    let raw = match session.as_http1() {
        Some(http1) => http1.get_headers_raw_bytes(),
        None => Default::default(),
    };
    rules::check_head(session.req_header(), &raw, head_bytes_max(session, world))
}

fn head_bytes_max(session: &ServerSession, world: &ConfigSnapshot) -> usize {
    let max_bytes = world.limits.request_headers_bytes() as usize;
    // What a node adds to its client's head is not the client's.
    match head::is_from_node(session) {
        true => max_bytes + FORWARDED_HEAD_BYTES_MAX,
        false => max_bytes,
    }
}

/// Returns whether work for the account used up some of its tokens: what a server failed to do did not.
fn has_worked(trip: &mut RequestContext, ended: &Result<(), RequestError>) -> bool {
    let outcome = match ended {
        _ if trip.is_event_elsewhere() => return true,
        Err(RequestError::Refused(refusal)) => respond::outcome_of(refusal),
        _ => trip.event().outcome,
    };
    trip.event().attempts > 0
        && !matches!(outcome, RequestOutcome::Failed | RequestOutcome::Refused)
}

/// Returns whether a refused request leaves its account's pace as it was: there was no room for it, here
/// or in the account's day.
fn cost_nothing(refusal: &Refusal) -> bool {
    let no_room = matches!(refusal, Refusal::BodyBudgetSpent | Refusal::QuotaUsed);
    no_room || refusal.is_out_of_capacity()
}

fn find_model(
    trip: &mut RequestContext,
    model: &str,
    account: &Account,
) -> Result<Arc<ModelRuntime>, Refusal> {
    let found = trip.snapshot.catalog.model(model);
    trip.trace
        .set_requested_model(model, found.map(|(_, spec)| &spec.id));
    let (index, spec) = found.ok_or(Refusal::NoSuchModel)?;
    let model_id = spec.id.clone();
    let lane = Arc::clone(trip.snapshot.models.get(index));
    // Another node has looked already, by the same rules.
    let access = match trip.is_from_client() {
        true => Catalog::access(&account.spec, &lane.spec),
        false => Access::Allowed,
    };
    trip.event().model_id = Some(model_id);
    trip.model = Some(Arc::clone(&lane));
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
    trip: &RequestContext,
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
        deadline: trip.deadline,
        no_wait: reject_if_busy || call.reject_if_busy,
        avoid: Vec::new(),
        endpoint_order: None,
        is_retry: false,
        has_alternative: false,
    }
}
