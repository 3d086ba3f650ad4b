//! Requests for the catalog, not for a model: lists, descriptions, schemas.
//!
//! An account sees only the models it may use.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::catalog::{self, CatalogQuery};
use infergate_core::api::openai;
use infergate_core::model::{Access, Catalog};
use pingora_core::protocols::http::ServerSession;

use super::http1::Http1Downstream;
use super::server::DownstreamServer;
use crate::pipeline::RequestedOperation;
use crate::pipeline::respond;
use crate::pipeline::{RequestContext, RequestError};
use crate::state::Account;
use crate::telemetry::RequestOutcome;

impl DownstreamServer {
    /// Answers what is asked of the catalog.
    pub(super) async fn answer_catalog(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        account: &Account,
        wanted: RequestedOperation,
    ) -> Result<(), RequestError> {
        match wanted {
            // Not reached: the walk takes calls itself.
            RequestedOperation::Call(..) => Err(Refusal::NoSuchRoute.into()),
            RequestedOperation::Models => self.list_models(session, ctx, account).await,
            RequestedOperation::Model(id) => self.show_model(session, ctx, account, &id).await,
            RequestedOperation::Search(search) => {
                self.search_models(session, ctx, account, &search).await
            }
            RequestedOperation::Schema(id) => self.show_schema(session, ctx, account, &id).await,
        }
    }

    async fn list_models(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        account: &Account,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&ctx.snapshot);
        let allowed = world
            .catalog
            .models()
            .iter()
            .filter(|model| Catalog::access(&account.spec, model) == Access::Allowed)
            .map(|model| &**model);
        let body = openai::models(allowed, self.shared.started_unix_secs);
        ctx.set_outcome(RequestOutcome::Completed);
        respond::json(&mut Http1Downstream::new(session), ctx, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn show_model(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        account: &Account,
        id: &str,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&ctx.snapshot);
        let (_, model) = world
            .catalog
            .model(id)
            .filter(|(_, model)| Catalog::access(&account.spec, model) == Access::Allowed)
            .ok_or(Refusal::NoSuchModel)?;
        let body = openai::model(model, self.shared.started_unix_secs);
        ctx.set_outcome(RequestOutcome::Completed);
        respond::json(&mut Http1Downstream::new(session), ctx, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn search_models(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        account: &Account,
        search: &CatalogQuery,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&ctx.snapshot);
        let models = world.catalog.models().iter();
        let allowed =
            models.filter(|model| Catalog::access(&account.spec, model) == Access::Allowed);
        let body = search.render(allowed.map(|model| &**model));
        ctx.set_outcome(RequestOutcome::Completed);
        respond::json(&mut Http1Downstream::new(session), ctx, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn show_schema(
        &self,
        session: &mut ServerSession,
        ctx: &mut RequestContext,
        account: &Account,
        id: &str,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&ctx.snapshot);
        let (index, _) = world
            .catalog
            .model(id)
            .filter(|(_, model)| Catalog::access(&account.spec, model) == Access::Allowed)
            .ok_or(Refusal::NoSuchModel)?;
        let task = &world.models.get(index).task;
        let body = catalog::schema(
            task.input_schema().as_deref(),
            task.output_schema().as_deref(),
        );
        ctx.set_outcome(RequestOutcome::Completed);
        respond::json(&mut Http1Downstream::new(session), ctx, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }
}
