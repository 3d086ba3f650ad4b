//! Server of requests: reads a head, answers what needs no model, and hands inference requests to the pipeline.
//!
//! Not the connection's timers (`serve.rs`) and not the steps of a request.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::Refusal;
use infergate_core::api::{ApiDialect, Operation};
use pingora_core::protocols::http::ServerSession;
use tokio::time::timeout;

use super::connection::DownstreamConnection;
use super::http1::Http1Downstream;
use super::{framing, request_body, session};
use super::{peer_requests, preflight};
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
}

impl DownstreamServer {
    /// A server over what is shared.
    pub fn new(shared: Arc<Shared>) -> DownstreamServer {
        DownstreamServer { shared }
    }

    /// Handles one request: the catalog here, inference in the pipeline.
    async fn handle(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
    ) -> Result<(), RequestError> {
        // 1, 2. A well-framed head: the operation and the account.
        let (head, requested) = AuthenticatedRequest::read(session::request_head(session), ctx)?;
        let (operation, path_model) = match requested {
            RequestedOperation::Call(operation, model) => (operation, model),
            other => {
                return self
                    .answer_catalog(session, ctx, &head.account, other)
                    .await;
            }
        };
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

    /// Receives the body and runs the pipeline.
    async fn infer(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        authenticated: AuthenticatedRequest,
        (operation, path_model, model): (Operation, Option<String>, Option<Arc<ModelRuntime>>),
    ) -> Result<(), RequestError> {
        let shared = &*self.shared;
        let (body, body_share) =
            request_body::read_body(shared, session, ctx, &authenticated.account).await?;
        let request = InferenceRequest {
            authenticated,
            operation,
            path_model,
            model,
            body,
            body_share,
            permit: None,
        };
        pipeline::run(shared, &mut Http1Downstream::new(session), ctx, request).await
    }

    /// Serves one request and returns whether the connection may carry another one.
    async fn serve(&self, session: &mut ServerSession) -> bool {
        let in_flight = self.shared.drain.enter();
        let header_timeout = {
            let snapshot = self.shared.snapshot.load();
            session::begin_count(session, head_bytes_max(session, &snapshot));
            Duration::from_secs(snapshot.limits.header_timeout_secs)
        };
        let mut page = PageOrigin::None;
        let (dialect, refusal) = match timeout(header_timeout, session.read_request()).await {
            Ok(Ok(true)) => {
                session::end_count(session);
                let snapshot = self.shared.snapshot.load();
                page = snapshot.cors.page_of(&session.req_header().headers);
                let refused = check_framing(session, &snapshot).err();
                let refused = refused.or_else(|| preflight::refuse(session, &page));
                (
                    request_head::dialect_of(session::request_head(session)),
                    refused,
                )
            }
            Ok(Ok(false)) => return false,
            Ok(Err(_)) => (ApiDialect::OpenAi, Some(session::unreadable(session))),
            Err(_) => (ApiDialect::OpenAi, Some(Refusal::RequestTimeout)),
        };
        if let Some(refusal) = refusal {
            self.shared
                .metrics
                .record_refused_connection(refusal.row().reason);
            if session::is_from_node(session) {
                // The other node must not take this for an answer to its client.
                session.set_keepalive(None);
                let _ = respond::reject_malformed_forward(&mut Http1Downstream::new(session)).await;
                return false;
            }
            session.set_keepalive(None);
            let mut downstream = Http1Downstream::new(session);
            // A client that cannot frame a request may not be there to read about it either.
            let _ = respond::refuse_unread(&mut downstream, dialect, &refusal, &page).await;
            return false;
        }
        if self.shared.drain.is_draining() {
            session.set_keepalive(None);
        }
        if let Some(usable) = peer_requests::serve(&self.shared, session).await {
            return usable;
        }
        if page.is_listed() && preflight::is_preflight(session.req_header()) {
            return preflight::grant(session, &page).await.is_ok();
        }
        let mut ctx = RequestContext::begin(&self.shared, in_flight);
        ctx.page_origin = page;
        if let Some(usable) = self.accept_forward(session, &mut ctx).await {
            return usable;
        }
        match self.handle(session, &mut ctx).await {
            Ok(()) => true,
            Err(RequestError::Refused(refusal)) => {
                respond::finish_refused(&mut Http1Downstream::new(session), &mut ctx, &refusal)
                    .await
            }
            Err(RequestError::Aborted) => false,
        }
    }
}

impl DownstreamServer {
    /// Serves the next request of a connection. Returns the connection when it can carry another.
    pub(super) fn serve_next(
        self: Arc<Self>,
        session: ServerSession,
    ) -> impl Future<Output = Option<Box<DownstreamConnection>>> + Send {
        // Moved in once: an `async fn` would hold it twice.
        let mut session = session;
        async move {
            if !self.serve(&mut session).await {
                session.shutdown().await;
                if session::is_over_limit(&session) {
                    session::linger(session).await;
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
}

fn check_framing(session: &ServerSession, snapshot: &ConfigSnapshot) -> Result<(), Refusal> {
    let raw = match session.as_http1() {
        Some(http1) => http1.get_headers_raw_bytes(),
        None => Default::default(),
    };
    framing::check_head(
        session.req_header(),
        &raw,
        head_bytes_max(session, snapshot),
    )
}

fn head_bytes_max(session: &ServerSession, snapshot: &ConfigSnapshot) -> usize {
    let max_bytes = snapshot.limits.request_headers_bytes() as usize;
    // What a node adds to its client's head is not the client's.
    match session::is_from_node(session) {
        true => max_bytes + FORWARDED_HEAD_BYTES_MAX,
        false => max_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the state of an inference request may take, allocated for each one. States of rare steps
    /// (forward, failure, heartbeat, an event on the disk) are boxed. The figure only goes down.
    const INFERENCE_BYTES_MAX: usize = 5_792;

    /// Bytes that the state of any request may take: the cost of a 401 and of the catalog. The figure only
    /// goes down.
    const REQUEST_BYTES_MAX: usize = 4_432;

    type Target = (Operation, Option<String>, Option<Arc<ModelRuntime>>);

    fn inference_bytes<'a, F: Future>(
        _: impl FnOnce(
            &'a DownstreamServer,
            &'a mut ServerSession,
            &'a mut RequestContext,
            AuthenticatedRequest,
            Target,
        ) -> F,
    ) -> usize {
        size_of::<F>()
    }

    fn request_bytes<F: Future>(
        _: impl FnOnce(Arc<DownstreamServer>, ServerSession) -> F,
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
