//! Catalogue of the Replicate API: models, versions, hardware, the account.
//!
//! An account sees only the models it may use.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::replicate::{self, ModelPath, ModelView, ReplicateRoute, VersionName};
use infergate_core::model::{Access, AccountSpec, Catalog, Task};
use serde_json::Value;

use super::answer::RouteAnswer;
use crate::jobs::{CatalogModel, Jobs};
use crate::state::Shared;
use crate::telemetry::clock::rfc3339;

/// Answers a route of the catalogue.
pub(super) fn show(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    (host, search): (&str, &str),
    route: ReplicateRoute,
) -> Result<RouteAnswer, Refusal> {
    let body = match route {
        ReplicateRoute::Model(path) => {
            let model = find(shared, jobs, account, &path)?;
            replicate::model(&view(shared, &model, host))
        }
        ReplicateRoute::Versions(path) => {
            let model = find(shared, jobs, account, &path)?;
            replicate::versions(&view(shared, &model, host))
        }
        ReplicateRoute::Version(path, id) => {
            let model = find(shared, jobs, account, &path)?;
            let body = view(shared, &model, host).version_body(&id);
            body.ok_or(Refusal::NoSuchModel)?
        }
        ReplicateRoute::Search => {
            let words = replicate::search_words(search);
            let models = allowed(shared, jobs, account);
            let models = models.iter().filter(|model| {
                let path = model.path.as_deref().unwrap_or_default();
                path.to_lowercase().contains(&words)
            });
            let views: Vec<_> = models.map(|model| view(shared, model, host)).collect();
            replicate::models(&views)
        }
        ReplicateRoute::Collections => replicate::models(&[]),
        ReplicateRoute::Collection(name) => return Err(no_collection(&name)),
        ReplicateRoute::Hardware => hardware(jobs),
        ReplicateRoute::Account => replicate::account(account.id.as_str()),
        ReplicateRoute::WebhookSecret => {
            replicate::webhook_secret(&jobs.webhook_secret(&account.id)?)
        }
        _ => return Err(Refusal::NoSuchRoute),
    };
    Ok(RouteAnswer::ok(body))
}

/// Collections are Replicate's own: no name is one of this gateway.
fn no_collection(name: &str) -> Refusal {
    Refusal::Rejected {
        status: 404,
        pointer: String::new(),
        message: format!(
            "no such collection as `{name}`: `GET /v1/models` lists the models this key may use"
        ),
    }
}

fn hardware(jobs: &Jobs) -> Vec<u8> {
    let known = jobs.choices().hardware();
    let pairs: Vec<_> = known.iter().map(|it| (&*it.name, &*it.sku)).collect();
    replicate::hardware(&pairs)
}

/// Returns the models that an account may use, as members of their list beside OpenAI's.
pub(in crate::downstream) fn listed(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    host: &str,
) -> Vec<Value> {
    let models = allowed(shared, jobs, account);
    let views = models.iter().map(|model| view(shared, model, host));
    views.map(|view| view.object()).collect()
}

fn is_allowed(account: &AccountSpec, model: &CatalogModel) -> bool {
    Catalog::access(account, &model.runtime.spec) == Access::Allowed
}

/// Models with a path that the account may use.
fn allowed(shared: &Shared, jobs: &Jobs, account: &AccountSpec) -> Vec<Arc<CatalogModel>> {
    let models = jobs.catalog.models(shared).into_iter();
    models
        .filter(|model| model.path.is_some() && is_allowed(account, model))
        .collect()
}

fn find(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    path: &ModelPath,
) -> Result<Arc<CatalogModel>, Refusal> {
    let found = jobs.catalog.find(shared, VersionName::Model(&path.full()));
    let found = found.map(|(model, _)| model);
    found
        .filter(|model| is_allowed(account, model))
        .ok_or(Refusal::NoSuchModel)
}

fn view<'a>(shared: &Shared, model: &'a CatalogModel, host: &str) -> ModelView<'a> {
    let path = model.path.as_deref().unwrap_or_default();
    let task = &model.runtime.task;
    let schema =
        |text: Option<Arc<str>>| text.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let started = time::OffsetDateTime::from_unix_timestamp(shared.started_unix_secs as i64);
    let created = rfc3339(started.unwrap_or(time::OffsetDateTime::UNIX_EPOCH));
    ModelView {
        path,
        description: model.runtime.spec.task.slug(),
        created_at: created,
        versions: model.versions.iter().map(|id| id.to_string()).collect(),
        input_schema: schema(task.input_schema()),
        // Their results are lists of texts, whatever the model's response is.
        output_schema: match model.runtime.spec.task {
            Task::TextGeneration | Task::ImageTextToText => Some(replicate::text_output_schema()),
            _ => schema(task.output_schema()),
        },
        url: format!("{host}/v1/models/{path}"),
    }
}
