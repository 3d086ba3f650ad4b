//! Requests for the catalog, not for a model: lists, descriptions, schemas.
//!
//! An account sees only the models it may use.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::catalog::{self, CatalogQuery};
use infergate_core::api::render;
use infergate_core::model::{Access, Catalog};
use pingora_core::protocols::http::ServerSession;

use super::accounts::Account;
use super::call::{RequestContext, RequestError};
use super::head::RequestedOperation;
use super::{DownstreamServer, respond};
use crate::telemetry::RequestOutcome;

impl DownstreamServer {
    /// Answers what is asked of the catalog.
    pub(super) async fn answer_catalog(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        account: &Account,
        wanted: RequestedOperation,
    ) -> Result<(), RequestError> {
        match wanted {
            // Not reached: the walk takes calls itself.
            RequestedOperation::Call(..) => Err(Refusal::NoSuchRoute.into()),
            RequestedOperation::Models => self.list_models(session, trip, account).await,
            RequestedOperation::Model(id) => self.show_model(session, trip, account, &id).await,
            RequestedOperation::Search(search) => {
                self.search_models(session, trip, account, &search).await
            }
            RequestedOperation::Schema(id) => self.show_schema(session, trip, account, &id).await,
        }
    }

    async fn list_models(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        account: &Account,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&trip.snapshot);
        let allowed = world
            .catalog
            .models()
            .iter()
            .filter(|model| Catalog::access(&account.spec, model) == Access::Allowed)
            .map(|model| &**model);
        let body = render::models(allowed, self.shared.started_unix_secs);
        trip.set_outcome(RequestOutcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn show_model(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        account: &Account,
        id: &str,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&trip.snapshot);
        let (_, model) = world
            .catalog
            .model(id)
            .filter(|(_, model)| Catalog::access(&account.spec, model) == Access::Allowed)
            .ok_or(Refusal::NoSuchModel)?;
        let body = render::model(model, self.shared.started_unix_secs);
        trip.set_outcome(RequestOutcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn search_models(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        account: &Account,
        search: &CatalogQuery,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&trip.snapshot);
        let models = world.catalog.models().iter();
        let allowed =
            models.filter(|model| Catalog::access(&account.spec, model) == Access::Allowed);
        let body = search.render(allowed.map(|model| &**model));
        trip.set_outcome(RequestOutcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    async fn show_schema(
        &self,
        session: &mut ServerSession,
        trip: &mut RequestContext,
        account: &Account,
        id: &str,
    ) -> Result<(), RequestError> {
        let world = Arc::clone(&trip.snapshot);
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
        trip.set_outcome(RequestOutcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }
}
