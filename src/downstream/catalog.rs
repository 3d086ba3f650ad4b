//! Requests for the catalog, not for a model: lists, descriptions, schemas.
//!
//! An account sees only the models it may use.

use std::sync::Arc;

use bytes::Bytes;
use infergate_core::Refusal;
use infergate_core::api::catalog;
use infergate_core::api::{openai, openapi, workers_ai};
use infergate_core::model::{Access, Catalog, ModelSpec};

use super::replicate;
use super::server::DownstreamServer;
use super::session::Session;
use crate::pipeline::RequestedOperation;
use crate::pipeline::respond;
use crate::pipeline::{RequestContext, RequestError};
use crate::state::{Account, ConfigSnapshot};
use crate::telemetry::RequestOutcome;
use crate::telemetry::clock::rfc3339;

impl DownstreamServer {
    /// Answers what is asked of the catalog.
    pub(super) async fn answer_catalog(
        &self,
        session: &mut Session,
        ctx: &mut RequestContext,
        account: Arc<Account>,
        operation: RequestedOperation,
    ) -> Result<(), RequestError> {
        if matches!(operation, RequestedOperation::Description) {
            return describe(session, ctx).await;
        }
        let others = match (&operation, self.jobs.as_deref()) {
            (RequestedOperation::Models, Some(jobs)) => {
                let host = replicate::base_url(session, jobs);
                Some(replicate::listed(&self.shared, jobs, &account.spec, &host))
            }
            _ => None,
        };
        let body = self.catalog_body(&ctx.snapshot, &account, operation, others)?;
        ctx.set_outcome(RequestOutcome::Completed);
        respond::json(session, ctx, body)
            .await
            .map_err(|_| RequestError::Aborted)
    }

    fn catalog_body(
        &self,
        snapshot: &ConfigSnapshot,
        account: &Account,
        operation: RequestedOperation,
        others: Option<Vec<serde_json::Value>>,
    ) -> Result<Vec<u8>, Refusal> {
        let known = &snapshot.catalog;
        let is_allowed =
            |model: &ModelSpec| Catalog::access(&account.spec, model) == Access::Allowed;
        let allowed = known.models().iter().map(|model| &**model);
        let allowed = allowed.filter(|model| is_allowed(model));
        // A named task looks like a model of its candidates' kind.
        let tasks = known.named_tasks().iter().filter_map(|task| {
            let (_, first) = known.model_for(task.id.as_str(), &account.spec).ok()?;
            let (id, backend) = (task.id.clone(), first.backend.clone());
            Some(ModelSpec::new(id, first.task, backend))
        });
        let tasks: Vec<ModelSpec> = tasks.collect();
        let allowed = allowed.chain(&tasks);
        let find = |id: &str| {
            let found = known.model_for(id, &account.spec).ok();
            found.ok_or(Refusal::NoSuchModel)
        };
        match operation {
            // Not reached: these are answered before, by the pipeline, the durable path and model servers.
            RequestedOperation::Description
            | RequestedOperation::Call(..)
            | RequestedOperation::Replicate(_)
            | RequestedOperation::OpenInference(_) => Err(Refusal::NoSuchRoute),
            RequestedOperation::Models => {
                let started = self.shared.started_unix_secs;
                Ok(openai::models(allowed, started, others))
            }
            RequestedOperation::Model(id) => {
                let task = tasks.iter().find(|task| task.id.as_str() == id);
                let shown = match task {
                    Some(task) => task,
                    None => find(&id)?.1,
                };
                Ok(openai::model(shown, self.shared.started_unix_secs))
            }
            RequestedOperation::Search(search) => Ok(search.render(allowed)),
            RequestedOperation::Tasks => Ok(catalog::tasks(allowed)),
            RequestedOperation::Schema(id) => {
                let task = &snapshot.models.get(find(&id)?.0).task;
                let (input, output) = (task.input_schema(), task.output_schema());
                Ok(catalog::schema(input.as_deref(), output.as_deref()))
            }
            RequestedOperation::Finetunes(scope) => {
                let started = self.shared.started_unix_secs.cast_signed();
                let started = time::OffsetDateTime::from_unix_timestamp(started);
                let since = rfc3339(started.unwrap_or(time::OffsetDateTime::UNIX_EPOCH));
                let id = &account.spec.id;
                Ok(workers_ai::finetunes(allowed, id, scope, &since))
            }
        }
    }
}

/// Answers with the description of all routes, which is the same for everyone.
async fn describe(session: &mut Session, ctx: &mut RequestContext) -> Result<(), RequestError> {
    ctx.set_outcome(RequestOutcome::Completed);
    let document = Bytes::from_static(openapi::DOCUMENT.as_bytes());
    respond::json(session, ctx, document)
        .await
        .map_err(|_| RequestError::Aborted)
}
