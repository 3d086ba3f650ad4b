//! Server of requests: reads a head, answers what needs no model, and hands inference requests to the pipeline.
//!
//! Not the connection's timers (`serve.rs`) and not the steps of a request.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::api::Operation;
use infergate_core::client_address::ForwardedFor;
use tokio::time::timeout;

use super::connections::{ClientConnections, ConnectionLimit};
use super::request_body::WantedStart;
use super::session::{RequestReadError, Session};
use super::{health, peer_requests, preflight, request_body};
use crate::jobs::Jobs;
use crate::peer::FORWARDED_HEAD_BYTES_MAX;
use crate::pipeline::{
    self, AuthenticatedRequest, InferenceRequest, RequestContext, RequestError, RequestedOperation,
    request_head, respond,
};
use crate::state::{ConfigSnapshot, PageOrigin, Shared};
use crate::upstream::ModelRuntime;

/// The client-facing server.
pub struct DownstreamServer {
    pub(super) shared: Arc<Shared>,
    /// The durable path, where it is configured.
    pub(super) jobs: Option<Arc<Jobs>>,
    connections: Arc<ClientConnections>,
}

/// Field in which proxies tell their clients' addresses.
const FORWARDED_FOR: &str = "x-forwarded-for";
/// Time for the rest of a file that was answered before it had come.
const ARRIVING_DRAIN_MAX: Duration = Duration::from_secs(2);

impl DownstreamServer {
    /// A server over what is shared.
    pub fn new(
        shared: Arc<Shared>,
        jobs: Option<Arc<Jobs>>,
        connections: &Arc<ClientConnections>,
    ) -> Arc<DownstreamServer> {
        Arc::new(DownstreamServer {
            shared,
            jobs,
            connections: Arc::clone(connections),
        })
    }

    /// State that requests share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Handles one request: the catalog here, inference in the pipeline.
    async fn handle(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
    ) -> Result<(), RequestError> {
        // 1, 2. A well-framed head: the operation and the account.
        let (head, requested) = AuthenticatedRequest::read(session.request_head(), ctx)?;
        let (operation, path_model) = match requested {
            RequestedOperation::Call(operation, model) => (operation, model),
            other => return self.answer_other(session, ctx, head, other).await,
        };
        if operation == Operation::WebSocket && !session.can_switch() {
            return Err(Refusal::UpgradeRequired("a WebSocket is opened over HTTP/1.1").into());
        }
        ctx.begin_trace();
        let path_model = path_model.map(|model| ctx.resolve_model_name(model));
        let shared = &*self.shared;
        let model = pipeline::enter(shared, ctx, &head, path_model.as_deref())?;
        let account = Arc::clone(&head.account);
        // Boxed: a request that is refused by its head, and the catalog, have no room for the pipeline's state.
        // Allocated before it is made, so that its 6 KB are made in place: `Box::pin` copies them.
        let room = Box::new_uninit();
        let inference = Box::write(
            room,
            self.infer(session, ctx, head, (operation, path_model, model)),
        );
        let ended = Box::into_pin(inference).await;
        pipeline::settle_account(shared, ctx, &account, &ended);
        ended
    }

    /// Answers a request that is no inference. Boxed here: other requests have no room for its state.
    fn answer_other<'a>(
        &'a self,
        session: &'a mut Session,
        ctx: &'a mut RequestContext,
        head: AuthenticatedRequest,
        requested: RequestedOperation,
    ) -> Pin<Box<dyn Future<Output = Result<(), RequestError>> + Send + 'a>> {
        match requested {
            RequestedOperation::Replicate(route) => {
                Box::pin(self.answer_replicate(session, ctx, head, *route))
            }
            RequestedOperation::OpenInference(route) => {
                Box::pin(self.answer_open_inference(session, ctx, head, *route))
            }
            other => Box::pin(self.answer_catalog(session, ctx, head.account, other)),
        }
    }

    /// Receives the body and runs the pipeline.
    async fn infer(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        authenticated: AuthenticatedRequest,
        (operation, path_model, model): (Operation, Option<String>, Option<Arc<ModelRuntime>>),
    ) -> Result<(), RequestError> {
        let shared = &*self.shared;
        let account = &authenticated.account;
        let (body, body_share) = match WantedStart::of(shared, session, operation) {
            None => request_body::read_body(shared, session, ctx, account).await?,
            Some(start) => request_body::read_form(shared, session, ctx, account, start).await?,
        };
        let request = InferenceRequest {
            authenticated,
            operation,
            path_model,
            model,
            body,
            body_share,
            permit: None,
        };
        pipeline::run(shared, session, ctx, request).await
    }

    /// Serves one request and returns whether the connection may carry another one.
    async fn serve(&self, session: &mut Session, is_last: bool) -> bool {
        let in_flight = self.shared.drain.enter();
        let mut page = PageOrigin::None;
        let refused = match self.read_head(session).await {
            Ok(snapshot) => {
                page = snapshot.cors.page_of(session.fields());
                let mut refused = session.check_framing().err();
                if refused.is_none() && snapshot.trusted_proxies.is_some() {
                    refused = self.find_client(session, &snapshot).err();
                }
                refused.or_else(|| preflight::refuse(session, &page))
            }
            Err(None) => return false,
            Err(Some(refusal)) => Some(refusal),
        };
        if let Some(refusal) = refused {
            // Boxed: no request that is served has room for it.
            Box::pin(self.refuse_unread(session, &refusal, &page)).await;
            return false;
        }
        if is_last || self.shared.drain.is_draining() {
            session.close_after();
        }
        if let Some(usable) = peer_requests::serve(&self.shared, session).await {
            return usable;
        }
        if session.serves_health() && health::asks(session.request_head()) {
            return Box::pin(health::answer(&self.shared, session))
                .await
                .is_ok();
        }
        if page.is_listed() && preflight::is_preflight(session.request_head()) {
            return Box::pin(preflight::grant(session, &page)).await.is_ok();
        }
        let mut ctx = RequestContext::begin(&self.shared, in_flight);
        ctx.page_origin = page;
        ctx.set_client(session.client());
        if let Some(usable) = self.accept_forward(session, &mut ctx).await {
            return usable;
        }
        let is_usable = match self.handle(session, &mut ctx).await {
            Ok(()) => true,
            Err(RequestError::Refused(refusal)) => {
                respond::finish_refused(session, &mut ctx, &refusal).await
            }
            Err(RequestError::Aborted) => false,
        };
        if is_usable && ctx.arriving.is_some() && !session.is_stream() && !session.is_body_done() {
            // A client that goes on to send its file first gets to see the response.
            Box::pin(session.drain_for(ARRIVING_DRAIN_MAX, u64::MAX)).await;
        }
        is_usable
    }

    /// Takes a trusted proxy's word on the client of a request, and counts the request by it.
    ///
    /// # Errors
    /// [`Refusal::TooManyFromAddress`].
    fn find_client(&self, session: &mut Session, snapshot: &ConfigSnapshot) -> Result<(), Refusal> {
        let proxy = session.other_side();
        let trusted = snapshot.trusted_proxies.as_ref();
        let Some(trusted) = trusted.filter(|trusted| trusted.trusts(proxy)) else {
            return Ok(());
        };
        match trusted.client_of(session.fields().get_all(FORWARDED_FOR)) {
            ForwardedFor::Absent => {}
            // Nobody's fault that is to be answered: the proxy's own address stands for the client's.
            ForwardedFor::Malformed => self.shared.metrics.record_malformed_forwarded_for(),
            ForwardedFor::Client(address) => {
                let entered = self.connections.enter_request(address, &snapshot.limits);
                let guard = entered.map_err(|_| Refusal::TooManyFromAddress)?;
                session.set_client(proxy.named(address), guard);
            }
        }
        Ok(())
    }

    /// Reads the head of a request whose first byte has come.
    ///
    /// # Errors
    /// There is none; with a refusal where somebody may read it.
    pub(super) async fn read_head(
        &self,
        session: &mut Session,
    ) -> Result<Arc<ConfigSnapshot>, Option<Refusal>> {
        let snapshot = self.shared.snapshot.load_full();
        let max = head_bytes_max(session, &snapshot);
        let read = match session.take_head(max) {
            Ok(true) => Ok(()),
            // No timer is set for a head that came in one piece.
            Ok(false) => {
                let limit = Duration::from_secs(snapshot.limits.header_timeout_secs);
                let reading = Box::pin(timeout(limit, session.read_head(max)));
                reading.await.map_err(|_| Refusal::RequestTimeout)?
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(()) => Ok(snapshot),
            Err(RequestReadError::Closed) if !session.has_received() => Err(None),
            Err(RequestReadError::TooLarge) => Err(Some(Refusal::HeadersTooLarge)),
            Err(_) => {
                let refusal = Refusal::BadFraming("the request head could not be read");
                Err(Some(refusal))
            }
        }
    }

    /// Answers what is no acceptable request.
    pub(super) async fn refuse_unread(
        &self,
        session: &mut Session,
        refusal: &Refusal,
        page: &PageOrigin,
    ) {
        // Where no head was read there is no path, and the answer has the usual form.
        let dialect = request_head::dialect_of(session.request_head());
        let metrics = &self.shared.metrics;
        metrics.record_refused_connection(match refusal {
            Refusal::TooManyFromAddress => ConnectionLimit::OfClient.reason(),
            _ => refusal.row().reason,
        });
        session.close_after();
        // A client that cannot frame a request may not be there to read about it either, and the other node must
        // not take this for an answer to its client.
        let _ = match session.is_from_node() {
            true => respond::reject_malformed_forward(session).await,
            false => respond::refuse_unread(session, dialect, refusal, page).await,
        };
    }

    /// Serves the next request of a connection, whose first byte has come. Returns whether it can carry another.
    pub(super) async fn serve_next(&self, session: &mut Session, is_last: bool) -> bool {
        let is_served = self.serve(session, is_last).await;
        if is_served && session.is_reusable() {
            return true;
        }
        // Boxed: it comes once in the life of a connection.
        Box::pin(session.end()).await;
        false
    }
}

fn head_bytes_max(session: &Session, snapshot: &ConfigSnapshot) -> usize {
    let max_bytes = snapshot.limits.request_headers_bytes() as usize;
    // What a node adds to its client's head is not the client's.
    match session.is_from_node() {
        true => max_bytes + FORWARDED_HEAD_BYTES_MAX,
        false => max_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the state of an inference request may take, allocated for each one. States of rare steps
    /// (forward, failure, heartbeat, an event on the disk) are boxed. The figure only goes down, but for words that every
    /// request has. Three of them are the byte counter of a slot's process, the wait for its load, and the count of answers
    /// that no slot is free. Others are the name of an adapter, the work that a permit is held for, and the count of own
    /// retries. The last is the rest of a body that goes on as it comes.
    const INFERENCE_BYTES_MAX: usize = 4_672;

    /// Bytes that the state of any request may take: the cost of a 401 and of the catalog. The figure only
    /// goes down, but for words that every request has: whether its listener shows health, its client's address, and the rest
    /// of its body.
    const REQUEST_BYTES_MAX: usize = 2336;

    type Target = (Operation, Option<String>, Option<Arc<ModelRuntime>>);

    fn inference_bytes<'a, F: Future>(
        _: impl FnOnce(
            &'a DownstreamServer,
            &'a mut Session,
            &'a mut RequestContext,
            AuthenticatedRequest,
            Target,
        ) -> F,
    ) -> usize {
        size_of::<F>()
    }

    fn request_bytes<'a, F: Future>(
        _: impl FnOnce(&'a DownstreamServer, &'a mut Session, bool) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_state_of_a_request_has_no_room_for_rare_steps() {
        let inference = inference_bytes(DownstreamServer::infer);
        let request = request_bytes(DownstreamServer::serve_next);
        println!("inference {inference} bytes, request {request} bytes");
        assert!(inference <= INFERENCE_BYTES_MAX, "{inference} bytes");
        assert!(request <= REQUEST_BYTES_MAX, "{request} bytes");
    }
}
