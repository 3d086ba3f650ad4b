//! Routes of deployments: shown, made, changed, removed, and found for a create.
//!
//! A deployment that an account may not use is as unknown as one that is not there.

use std::sync::Arc;

use infergate_core::Refusal;
use infergate_core::api::replicate::{
    self, DeploymentRequest, DeploymentRoute, DeploymentView, ModelPath, ReplicateRoute,
    VersionName,
};
use infergate_core::model::{Access, AccountSpec, Catalog, DeploymentSpec};

use super::answer::RouteAnswer;
use crate::jobs::{CatalogModel, Deployment, Jobs, rfc3339_micros};
use crate::state::Shared;
use crate::telemetry::clock::rfc3339;

/// Deployment with its model.
pub(super) struct FoundDeployment {
    /// Deployment.
    pub deployment: Arc<Deployment>,
    /// Its model, which the account may use.
    pub model: Arc<CatalogModel>,
}

fn unknown() -> Refusal {
    Refusal::Rejected {
        status: 404,
        pointer: String::new(),
        message: "no such deployment: `GET /v1/deployments` lists those this key may use"
            .to_owned(),
    }
}

fn invalid(pointer: &str, message: &str) -> Refusal {
    Refusal::Rejected {
        status: 422,
        pointer: pointer.to_owned(),
        message: message.to_owned(),
    }
}

impl FoundDeployment {
    fn new(
        shared: &Shared,
        jobs: &Jobs,
        account: &AccountSpec,
        deployment: Arc<Deployment>,
    ) -> Option<FoundDeployment> {
        let model = jobs.catalog.of_deployment(shared, &deployment)?;
        let is_allowed = deployment.is_allowed(account, &model.runtime.spec);
        is_allowed.then_some(FoundDeployment { deployment, model })
    }

    fn find(
        shared: &Shared,
        jobs: &Jobs,
        account: &AccountSpec,
        path: &ModelPath,
    ) -> Result<FoundDeployment, Refusal> {
        let found = jobs.catalog.deployments.of_name(&path.full());
        let found = found.and_then(|it| FoundDeployment::new(shared, jobs, account, it));
        found.ok_or_else(unknown)
    }

    /// Returns the deployment that a create names in its path, with the version that is meant.
    ///
    /// # Errors
    /// 404 for one that is not there, 422 for one whose version is gone.
    pub fn of_create(
        shared: &Shared,
        jobs: &Jobs,
        account: &AccountSpec,
        route: &ReplicateRoute,
    ) -> Result<Option<(FoundDeployment, Arc<str>)>, Refusal> {
        let ReplicateRoute::CreateOfDeployment(path) = route else {
            return Ok(None);
        };
        let found = FoundDeployment::find(shared, jobs, account, path)?;
        let version = found.model.version_of(&found.deployment.spec);
        let gone = "the version of this deployment is not served any more: give it another one";
        let version = version.ok_or_else(|| invalid("", gone))?;
        Ok(Some((found, version)))
    }

    fn body(&self, shared: &Shared, jobs: &Jobs) -> Vec<u8> {
        self.show(shared, jobs, replicate::deployment)
    }

    /// Makes the view of the deployment for `render`.
    fn show<T>(
        &self,
        shared: &Shared,
        jobs: &Jobs,
        render: impl FnOnce(&DeploymentView<'_>) -> T,
    ) -> T {
        let deployment = &*self.deployment;
        let spec = &deployment.spec;
        let started = time::OffsetDateTime::from_unix_timestamp(shared.started_unix_secs as i64);
        let started = || rfc3339(started.unwrap_or(time::OffsetDateTime::UNIX_EPOCH));
        let hardware = spec.hardware.clone();
        let hardware = hardware.or_else(|| Some(jobs.choices().hardware().first()?.sku.clone()));
        let owner = spec.id.split_once('/').map_or("", |(owner, _)| owner);
        let version = self.model.version_of(spec);
        render(&DeploymentView {
            name: &spec.id,
            release: deployment.release,
            model: &self.model.shown_name(),
            version: version.as_deref().unwrap_or(&spec.version),
            created_at: deployment.released.map_or_else(started, rfc3339_micros),
            created_by: deployment.account.as_ref().map_or(owner, |it| it.as_str()),
            hardware: hardware.as_deref().unwrap_or_default(),
            min_instances: spec.min_instances,
            max_instances: spec.max_instances,
        })
    }
}

/// Answers a route; `body` is the request's.
pub(super) async fn answer(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    body: &[u8],
    route: DeploymentRoute,
) -> Result<RouteAnswer, Refusal> {
    let find = |path: &ModelPath| FoundDeployment::find(shared, jobs, account, path);
    let found = match route {
        DeploymentRoute::List => return Ok(RouteAnswer::ok(list(shared, jobs, account))),
        DeploymentRoute::Get(path) => find(&path)?,
        DeploymentRoute::Create => {
            let request = DeploymentRequest::read(body)?;
            let (model, spec) = new_spec(shared, jobs, account, &request)?;
            let deployment = jobs.create_deployment(account, spec).await?;
            let found = FoundDeployment { deployment, model };
            return Ok(RouteAnswer {
                status: 201,
                ..RouteAnswer::ok(found.body(shared, jobs))
            });
        }
        DeploymentRoute::Update(path) => {
            let found = find(&path)?;
            let request = DeploymentRequest::read(body)?;
            let (model, spec) = changed_spec(shared, jobs, account, &found, &request)?;
            let deployment = jobs.release_deployment(&found.deployment, spec).await?;
            FoundDeployment { deployment, model }
        }
        DeploymentRoute::Delete(path) => {
            jobs.remove_deployment(&find(&path)?.deployment).await?;
            return Ok(RouteAnswer {
                status: 204,
                ..RouteAnswer::ok(Vec::new())
            });
        }
    };
    Ok(RouteAnswer::ok(found.body(shared, jobs)))
}

fn list(shared: &Shared, jobs: &Jobs, account: &AccountSpec) -> Vec<u8> {
    let all = jobs.catalog.deployments.all().into_iter();
    let found = all.filter_map(|it| FoundDeployment::new(shared, jobs, account, it));
    let objects = found.map(|it| it.show(shared, jobs, |view| view.object()));
    replicate::deployments(objects.collect())
}

/// Returns the model that a body names, which the account may use.
fn find_model(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    name: &str,
) -> Result<Arc<CatalogModel>, Refusal> {
    let found = jobs.catalog.find(shared, VersionName::Model(name));
    let found = found.map(|(model, _)| model);
    let allowed = found.filter(|it| Catalog::access(account, &it.runtime.spec) == Access::Allowed);
    allowed.ok_or_else(|| invalid("/model", "there is no such model, or it is not permitted"))
}

fn checked(
    model: Arc<CatalogModel>,
    spec: DeploymentSpec,
) -> Result<(Arc<CatalogModel>, DeploymentSpec), Refusal> {
    match model.version_of(&spec) {
        Some(_) => Ok((model, spec)),
        None => Err(invalid("/version", "is not a version of the model")),
    }
}

fn new_spec(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    request: &DeploymentRequest,
) -> Result<(Arc<CatalogModel>, DeploymentSpec), Refusal> {
    let name = request.full_name(account.id.as_str())?;
    let model = request.model.as_deref();
    let model = model.ok_or_else(|| invalid("/model", "is required"))?;
    let model = find_model(shared, jobs, account, model)?;
    let version = request.version.as_deref();
    let spec = DeploymentSpec {
        id: name.into(),
        model: model.runtime.spec.id.clone(),
        version: version.unwrap_or(DeploymentSpec::LATEST).into(),
        hardware: request.hardware.as_deref().map(Arc::from),
        min_instances: request.min_instances.unwrap_or(0),
        max_instances: request.max_instances.unwrap_or(1),
        allowed_accounts: Vec::new(),
        max_run_lifetime_secs: None,
    };
    checked(model, spec)
}

fn changed_spec(
    shared: &Shared,
    jobs: &Jobs,
    account: &AccountSpec,
    found: &FoundDeployment,
    request: &DeploymentRequest,
) -> Result<(Arc<CatalogModel>, DeploymentSpec), Refusal> {
    if request.name.is_some() {
        return Err(invalid("/name", "cannot be changed"));
    }
    let model = Arc::clone(&found.model);
    if let Some(name) = &request.model {
        let named = find_model(shared, jobs, account, name)?;
        // Its queued jobs are the model's: another one has a deployment of its own.
        if named.runtime.spec.id != model.runtime.spec.id {
            let message = "cannot be changed: make a deployment of the other model";
            return Err(invalid("/model", message));
        }
    }
    let mut spec = found.deployment.spec.clone();
    if let Some(version) = &request.version {
        spec.version = version.as_str().into();
    }
    if let Some(hardware) = &request.hardware {
        spec.hardware = Some(hardware.as_str().into());
    }
    spec.min_instances = request.min_instances.unwrap_or(spec.min_instances);
    spec.max_instances = request.max_instances.unwrap_or(spec.max_instances);
    checked(model, spec)
}
