//! Creates of predictions and trainings: from the request to the stored job, and the wait for its end.
//!
//! The job goes on when the client leaves.

use std::sync::Arc;
use std::time::Duration;

use infergate_core::api::replicate::{
    CreateRequest, ReplicateRoute, VersionName, model_path, read_create, wait_preference,
};
use infergate_core::job::cancel_after::parse_cancel_after;
use infergate_core::job::{JobClass, JobKind};
use infergate_core::model::{Access, AccountSpec, Catalog, Task, WhenQuotaUsed};
use infergate_core::{Millis, Refusal};
use sha2::{Digest, Sha256};

use super::answer::RouteAnswer;
use super::deployments::FoundDeployment;
use super::{input_check, objects};
use crate::downstream::request_body;
use crate::downstream::server::DownstreamServer;
use crate::downstream::session::Session;
use crate::jobs::{
    self, CatalogModel, Deployment, IdempotencyKey, Jobs, RepeatedCreate, RepeatedSubmit,
    ShownStatus, StoredJob, StoredRequest, SubmitRequest, replicate_object,
};
use crate::pipeline::{AuthenticatedRequest, RequestContext, RequestError};
use crate::state::trace_parent;

/// Longest idempotency key, bytes.
const KEY_BYTES_MAX: usize = 255;
/// Part of the wait that is left for the answer.
const ANSWER_TIME: Duration = Duration::from_millis(250);

/// Wishes in the head of a create.
struct CreateHead {
    base_url: String,
    wait_secs: Option<u64>,
    cancel_after: Option<Millis>,
    key: Option<Arc<str>>,
    is_batch: bool,
    traceparent: Option<Arc<str>>,
    target: String,
}

fn unprocessable(pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: pointer.to_owned(),
        message: message.into(),
    }
}

impl CreateHead {
    fn read(session: &Session, jobs: &Jobs) -> Result<CreateHead, Refusal> {
        let head = session.request_head();
        let text = |name: &str| head.headers.text_of(name);
        let cancel_after = head.headers.get("cancel-after");
        let cancel_after =
            cancel_after.map(|span| parse_cancel_after(&String::from_utf8_lossy(span)));
        let cancel_after = cancel_after.transpose();
        let cancel_after = cancel_after.map_err(|error| unprocessable("", error.to_string()))?;
        let key = head.headers.get("idempotency-key");
        let key = match key {
            None => None,
            Some(key) if (1..=KEY_BYTES_MAX).contains(&key.len()) => {
                Some(String::from_utf8_lossy(key).into())
            }
            Some(_) => {
                return Err(unprocessable("", "`Idempotency-Key` has 1 to 255 bytes"));
            }
        };
        let class = text("x-infergate-class");
        Ok(CreateHead {
            base_url: objects::base_url(session, jobs),
            wait_secs: text("prefer").and_then(wait_preference),
            cancel_after,
            key,
            is_batch: class.is_some_and(|class| class.eq_ignore_ascii_case("batch")),
            traceparent: trace_parent(head.headers).map(|parent| parent.to_string().into()),
            target: head.target.to_owned(),
        })
    }
}

/// Creates a job.
pub(super) async fn create(
    server: &DownstreamServer,
    jobs: &Jobs,
    session: &mut Session,
    ctx: &mut RequestContext,
    request: &AuthenticatedRequest,
    route: ReplicateRoute,
) -> Result<RouteAnswer, RequestError> {
    if jobs.is_draining() {
        return Err(Refusal::Draining.into());
    }
    let account = &request.account;
    if account.has_rates() {
        ctx.rate_account = Some(Arc::clone(account));
    }
    account.take_unit(ctx.arrival)?;
    let head = CreateHead::read(session, jobs)?;
    let shared = &server.shared;
    let (body, mut share) = request_body::read_body(shared, session, ctx, account).await?;
    let key = head.key.clone().map(|key| IdempotencyKey {
        key,
        digest: digest(&head.target, &body),
    });
    if let Some(key) = &key
        && let Some(repeated) = jobs.repeated(&account.spec.id, key).await?
    {
        let job = match repeated {
            RepeatedSubmit::Kept(job) => *job,
            RepeatedSubmit::Removed(id, removed) => {
                let create = repeated_create(server, jobs, request, (&head, &body), &route)?;
                create.removed(id, &removed)
            }
        };
        return answer(jobs, session, head.wait_secs, job).await;
    }
    let read = read_create(&body)?;
    let (model, deployment, submit) = prepare(server, jobs, request, (&head, read, key), route)?;
    let task = model.runtime.spec.task;
    let is_task_charged = account.take_task_unit(task, ctx.arrival)?;
    let checked = input_check::check(shared, session, ctx, (&model, &submit), &mut share);
    checked.await?;
    let stored = tokio::select! {
        stored = jobs.submit(submit.of(&account.spec, &model, deployment.as_deref())) => stored,
        // The store drops a submit that it has not begun.
        () = session.closed() => return Err(RequestError::Aborted),
    };
    let job = match stored {
        Ok(job) => job,
        Err(refusal) => {
            if refusal.is_out_of_capacity() || refusal == Refusal::JobsUnavailable {
                account.refund_unit();
                if is_task_charged {
                    account.refund_task_unit(task);
                }
            }
            return Err(refusal.into());
        }
    };
    drop((body, share));
    answer(jobs, session, head.wait_secs, job).await
}

/// Answers with the job, after the wait that the client wants.
async fn answer(
    jobs: &Jobs,
    session: &mut Session,
    wait_secs: Option<u64>,
    job: StoredJob,
) -> Result<RouteAnswer, RequestError> {
    let mut lines = Vec::new();
    let mut job = job;
    if let Some(secs) = wait_secs {
        lines.push(("preference-applied", format!("wait={secs}")));
        let limit = Duration::from_secs(secs) - ANSWER_TIME;
        let ended = tokio::select! {
            ended = jobs.wait(job.definition.id, limit) => ended,
            () = session.closed() => return Err(RequestError::Aborted),
        };
        // The job is accepted: a store that cannot be read meanwhile does not change that.
        job = ended.ok().flatten().unwrap_or(job);
    }
    Ok(RouteAnswer {
        status: 201,
        body: replicate_object(&jobs.choices(), &job, ShownStatus::Starting),
        lines,
    })
}

/// Submit without the parts that are borrowed.
pub(super) struct PreparedSubmit {
    pub kind: JobKind,
    class: JobClass,
    cancel_after: Option<Millis>,
    timeout: Option<Millis>,
    pub request: StoredRequest,
    key: Option<IdempotencyKey>,
}

impl PreparedSubmit {
    fn of<'a>(
        self,
        account: &'a AccountSpec,
        model: &'a CatalogModel,
        deployment: Option<&'a Deployment>,
    ) -> SubmitRequest<'a> {
        SubmitRequest {
            account,
            model,
            deployment,
            kind: self.kind,
            class: self.class,
            cancel_after: self.cancel_after,
            timeout: self.timeout,
            request: self.request,
            key: self.key,
        }
    }
}

/// Submit with the parts that it borrows.
type PreparedJob = (Arc<CatalogModel>, Option<Arc<Deployment>>, PreparedSubmit);

/// Finds the model, checks what can be checked before the job is stored, and makes the stored request.
fn prepare(
    server: &DownstreamServer,
    jobs: &Jobs,
    request: &AuthenticatedRequest,
    (head, read, key): (&CreateHead, CreateRequest, Option<IdempotencyKey>),
    route: ReplicateRoute,
) -> Result<PreparedJob, Refusal> {
    let account = &request.account.spec;
    let kind = kind_of(&route);
    let of_deployment = FoundDeployment::of_create(&server.shared, jobs, account, &route)?;
    let ((model, version), deployment) = match of_deployment {
        Some((found, version)) => ((found.model, version), Some(found.deployment)),
        None => (find_model(server, jobs, account, &read, &route)?, None),
    };
    if kind == JobKind::Training {
        check_training(account, &model, &read)?;
    }
    let spec = &model.runtime.spec;
    if let Some(limit) = account.neurons_per_day
        && spec.jobs.when_quota_used == WhenQuotaUsed::Fail
    {
        server.shared.quota.check(&account.id, limit)?;
    }
    let class = match (head.is_batch, head.wait_secs) {
        (true, _) => JobClass::Batch,
        (false, Some(_)) => JobClass::Interactive,
        (false, None) => JobClass::Normal,
    };
    if let Some(url) = &read.webhook {
        jobs.check_webhook(url)?;
    }
    let names = ShownNames {
        model: model.shown_name(),
        version,
        deployment: deployment.as_ref().map(|it| Arc::clone(&it.spec.id)),
    };
    let stored = StoredRequest {
        stream_token: (kind == JobKind::Prediction && has_text_output(spec.task))
            .then(stream_token)
            .transpose()?,
        ..stored_request(head, read, names)
    };
    let submit = PreparedSubmit {
        kind,
        class,
        cancel_after: head.cancel_after,
        timeout: request.requested_timeout,
        request: stored,
        key,
    };
    Ok((model, deployment, submit))
}

fn kind_of(route: &ReplicateRoute) -> JobKind {
    match route {
        ReplicateRoute::CreateTraining(..) => JobKind::Training,
        _ => JobKind::Prediction,
    }
}

/// Names that an object shows.
struct ShownNames {
    model: Arc<str>,
    version: Arc<str>,
    deployment: Option<Arc<str>>,
}

fn stored_request(head: &CreateHead, read: CreateRequest, names: ShownNames) -> StoredRequest {
    let events = read.webhook_events;
    StoredRequest {
        v: StoredRequest::VERSION,
        input_file: None,
        input: read.input,
        shown_model: names.model,
        version: names.version,
        base_url: head.base_url.as_str().into(),
        api: "replicate".into(),
        webhook: read.webhook.map(Arc::from),
        webhook_events: events.map(|events| events.into_iter().map(Arc::from).collect()),
        deployment: names.deployment,
        stream_token: None,
        destination: read.destination.map(Arc::from),
        traceparent: head.traceparent.clone(),
        retry_of: None,
    }
}

/// Makes what the answer to a repeat shows of a create whose record is gone.
fn repeated_create<'a>(
    server: &DownstreamServer,
    jobs: &Jobs,
    request: &'a AuthenticatedRequest,
    (head, body): (&CreateHead, &[u8]),
    route: &ReplicateRoute,
) -> Result<RepeatedCreate<'a>, Refusal> {
    let read = read_create(body)?;
    let names = former_names(server, jobs, &read, route);
    Ok(RepeatedCreate {
        account: &request.account.spec.id,
        kind: kind_of(route),
        cancel_after: head.cancel_after,
        timeout: request.requested_timeout,
        request: stored_request(head, read, names),
    })
}

/// Names of a job whose record is gone: the catalogue's, whoever may use the model now. The create's own stand in
/// where the model has gone too.
fn former_names(
    server: &DownstreamServer,
    jobs: &Jobs,
    read: &CreateRequest,
    route: &ReplicateRoute,
) -> ShownNames {
    let shared = &server.shared;
    let written = match route {
        ReplicateRoute::CreateOfModel(path) => path.full(),
        ReplicateRoute::CreateTraining(path, version) => format!("{}:{version}", path.full()),
        ReplicateRoute::CreateOfDeployment(_) => String::new(),
        _ => read.version.as_deref().unwrap_or_default().to_owned(),
    };
    let written = VersionName::read(&written);
    let (found, deployment) = match route {
        ReplicateRoute::CreateOfDeployment(path) => {
            let deployment = jobs.catalog.deployments.of_name(&path.full());
            let found = deployment.and_then(|it| {
                let model = jobs.catalog.of_deployment(shared, &it)?;
                let version = model.version_of(&it.spec)?;
                Some((model, version))
            });
            (found, Some(path.full().into()))
        }
        _ => (jobs.catalog.find(shared, written), None),
    };
    let (model, version) = match (found, written) {
        (Some((model, version)), _) => (model.shown_name(), version),
        (None, VersionName::Id(version)) => ("".into(), version.into()),
        (None, VersionName::Model(model)) => (model.into(), "".into()),
        (None, VersionName::OfModel(model, version)) => (model.into(), version.into()),
    };
    ShownNames {
        model,
        version,
        deployment,
    }
}

fn find_model(
    server: &DownstreamServer,
    jobs: &Jobs,
    account: &AccountSpec,
    read: &CreateRequest,
    route: &ReplicateRoute,
) -> Result<(Arc<CatalogModel>, Arc<str>), Refusal> {
    let allowed = |found: Option<(Arc<CatalogModel>, Arc<str>)>| {
        found.filter(|(model, _)| Catalog::access(account, &model.runtime.spec) == Access::Allowed)
    };
    let find = |name| allowed(jobs.catalog.find(&server.shared, name));
    match route {
        ReplicateRoute::CreateOfModel(path) => {
            find(VersionName::Model(&path.full())).ok_or(Refusal::NoSuchModel)
        }
        ReplicateRoute::CreateTraining(path, version) => {
            find(VersionName::OfModel(&path.full(), version)).ok_or(Refusal::NoSuchModel)
        }
        _ => {
            let version = read.version.as_deref();
            let version = version.ok_or_else(|| unprocessable("/version", "is required"))?;
            let unknown =
                || unprocessable("/version", "does not exist, or this account may not use it");
            find(VersionName::read(version)).ok_or_else(unknown)
        }
    }
}

/// Checks what a training needs beside its model: a trainer that the account may use, and a destination.
fn check_training(
    account: &AccountSpec,
    model: &CatalogModel,
    read: &CreateRequest,
) -> Result<(), Refusal> {
    let trainer = model.trainer.as_ref();
    let trainer = trainer
        .ok_or_else(|| unprocessable("", "this model cannot be trained: it has no trainer"))?;
    if Catalog::access(account, &trainer.spec) != Access::Allowed {
        return Err(unprocessable(
            "",
            "this model cannot be trained by this account: it may not use the model's trainer",
        ));
    }
    match read.destination.as_deref() {
        None => Err(unprocessable("/destination", "is required: `owner/name`")),
        Some(destination) if model_path(destination) => Ok(()),
        Some(_) => Err(Refusal::Rejected {
            status: 404,
            pointer: "/destination".to_owned(),
            message: "must have the form `owner/name`".to_owned(),
        }),
    }
}

/// Returns whether a task makes text that comes in pieces.
fn has_text_output(task: Task) -> bool {
    matches!(task, Task::TextGeneration | Task::ImageTextToText)
}

/// Makes the token of a job's stream.
fn stream_token() -> Result<Arc<str>, Refusal> {
    jobs::stream_token().map_err(|error| {
        tracing::warn!(%error, "the system has no random bytes for a stream's token");
        Refusal::JobsUnavailable
    })
}

/// Digest by which a repeated create is recognized.
fn digest(target: &str, body: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new();
    digest.update(target);
    digest.update([0]);
    digest.update(body);
    digest.finalize().into()
}
