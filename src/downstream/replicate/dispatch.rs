//! Dispatch of the Replicate API's routes.
//!
//! Not the jobs themselves, which are the durable path's. No event is left but for a create that is refused.

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::replicate::ReplicateRoute;

use super::answer::RouteAnswer;
use super::{catalog, create, deployments, files, objects, stream};
use crate::downstream::request_body;
use crate::downstream::server::DownstreamServer;
use crate::downstream::session::Session;
use crate::jobs::Jobs;
use crate::pipeline::{
    AuthenticatedRequest, Downstream, RequestContext, RequestError, ResponseHead, respond,
};

/// Refusal where the configuration has no jobs.
const NOT_CONFIGURED: Refusal = Refusal::NotSupported(
    "this gateway keeps no jobs: its operator can add `jobs: {}` to the configuration",
);

impl DownstreamServer {
    /// Answers a request of the durable path.
    pub(in crate::downstream) async fn answer_replicate(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        head: AuthenticatedRequest,
        route: ReplicateRoute,
    ) -> Result<(), RequestError> {
        let jobs = self.jobs.as_deref().ok_or(NOT_CONFIGURED)?;
        let is_create = matches!(
            route,
            ReplicateRoute::Create
                | ReplicateRoute::CreateOfModel(_)
                | ReplicateRoute::CreateOfDeployment(_)
                | ReplicateRoute::CreateTraining(..)
        );
        if let ReplicateRoute::Stream(id, query) = &route {
            ctx.discard();
            return Box::pin(stream::follow(jobs, session, ctx, (id, query))).await;
        }
        if route.is_of_files() {
            ctx.discard();
            return Box::pin(files::answer(
                &self.shared,
                jobs,
                session,
                ctx,
                (&head, route),
            ))
            .await;
        }
        let answer = match is_create {
            true => Box::pin(create::create(self, jobs, session, ctx, &head, route)).await?,
            false => {
                // Reads leave no event, also where they are refused.
                ctx.discard();
                let host = objects::base_url(session, jobs);
                let body = self.read_own_body(session, ctx, &head, &route).await?;
                let asked = (&*host, &*body);
                Box::pin(self.answer_own(jobs, &head, asked, route)).await?
            }
        };
        ctx.discard();
        send(session, ctx, answer).await
    }

    /// Body of a search or of a change; empty for other routes.
    async fn read_own_body(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        head: &AuthenticatedRequest,
        route: &ReplicateRoute,
    ) -> Result<Bytes, RequestError> {
        let has_body = match route {
            ReplicateRoute::Search => true,
            ReplicateRoute::Deployments(route) => route.has_body(),
            _ => false,
        };
        if !has_body {
            return Ok(Bytes::new());
        }
        let account = &head.account;
        let read = request_body::read_body(&self.shared, session, ctx, account).await?;
        Ok(read.0)
    }

    async fn answer_own(
        &self,
        jobs: &Jobs,
        head: &AuthenticatedRequest,
        (host, body): (&str, &[u8]),
        route: ReplicateRoute,
    ) -> Result<RouteAnswer, Refusal> {
        let shared = &*self.shared;
        let account = &head.account.spec;
        match route {
            ReplicateRoute::Get(kind, id) => objects::get(jobs, account, kind, &id).await,
            ReplicateRoute::List(kind, query) => {
                objects::list(jobs, account, (kind, &query), host).await
            }
            ReplicateRoute::Cancel(kind, id) => objects::cancel(jobs, account, kind, &id).await,
            ReplicateRoute::Deployments(route) => {
                deployments::answer(shared, jobs, account, body, route).await
            }
            route => {
                let search = String::from_utf8_lossy(body);
                catalog::show(shared, jobs, account, (host, &search), route)
            }
        }
    }
}

pub(super) async fn send(
    session: &mut Session,
    ctx: &mut RequestContext,
    answer: RouteAnswer,
) -> Result<(), RequestError> {
    let RouteAnswer {
        status,
        body,
        lines,
    } = answer;
    if status == 204 {
        let mut head = ResponseHead::new(status);
        head.append("x-request-id", ctx.request_id().as_bytes());
        head.extend(ctx.page_origin.lines());
        let sent = session.respond(head, Bytes::new()).await;
        return sent.map_err(|_| RequestError::Aborted);
    }
    respond::json_with(session, ctx, (status, body), &lines)
        .await
        .map_err(|_| RequestError::Aborted)
}
