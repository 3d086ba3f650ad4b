//! Requests for the catalog, not for a model: lists, descriptions, schemas.
//!
//! An account sees only the models it may use.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::catalog::{self, Search};
use infergate_core::api::render;
use infergate_core::model::{Access, Catalog};
use pingora_core::protocols::http::ServerSession;

use super::accounts::Account;
use super::call::{Left, Trip};
use super::head::Wanted;
use super::{Edge, respond};
use crate::telemetry::Outcome;

impl Edge {
    /// Answers what is asked of the catalog.
    pub(super) async fn tell(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        account: &Account,
        wanted: Wanted,
    ) -> Result<(), Left> {
        match wanted {
            // Not reached: the walk takes calls itself.
            Wanted::Call(..) => Err(Refusal::NoSuchRoute.into()),
            Wanted::Models => self.list_models(session, trip, account).await,
            Wanted::Model(id) => self.show_model(session, trip, account, &id).await,
            Wanted::Search(search) => self.search_models(session, trip, account, &search).await,
            Wanted::Schema(id) => self.show_schema(session, trip, account, &id).await,
        }
    }

    async fn list_models(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        account: &Account,
    ) -> Result<(), Left> {
        let world = Arc::clone(&trip.world);
        let allowed = world
            .catalog
            .models()
            .iter()
            .filter(|model| Catalog::access(&account.spec, model) == Access::Allowed)
            .map(|model| &**model);
        let body = render::models(allowed, self.shared.started_unix_secs);
        trip.ends_as(Outcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| Left::Cut)
    }

    async fn show_model(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        account: &Account,
        id: &str,
    ) -> Result<(), Left> {
        let world = Arc::clone(&trip.world);
        let (_, model) = world
            .catalog
            .model(id)
            .filter(|(_, model)| Catalog::access(&account.spec, model) == Access::Allowed)
            .ok_or(Refusal::NoSuchModel)?;
        let body = render::model(model, self.shared.started_unix_secs);
        trip.ends_as(Outcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| Left::Cut)
    }

    async fn search_models(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        account: &Account,
        search: &Search,
    ) -> Result<(), Left> {
        let world = Arc::clone(&trip.world);
        let models = world.catalog.models().iter();
        let allowed =
            models.filter(|model| Catalog::access(&account.spec, model) == Access::Allowed);
        let body = search.render(allowed.map(|model| &**model));
        trip.ends_as(Outcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| Left::Cut)
    }

    async fn show_schema(
        &self,
        session: &mut ServerSession,
        trip: &mut Trip,
        account: &Account,
        id: &str,
    ) -> Result<(), Left> {
        let world = Arc::clone(&trip.world);
        let (index, _) = world
            .catalog
            .model(id)
            .filter(|(_, model)| Catalog::access(&account.spec, model) == Access::Allowed)
            .ok_or(Refusal::NoSuchModel)?;
        let task = &world.lanes.get(index).task;
        let body = catalog::schema(
            task.input_schema().as_deref(),
            task.output_schema().as_deref(),
        );
        trip.ends_as(Outcome::Completed);
        respond::json(session, trip, body)
            .await
            .map_err(|_| Left::Cut)
    }
}
