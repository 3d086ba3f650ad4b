//! Submit as the service takes it: a request with the account, the model and the rules it came under.
//!
//! Not the stored job, which the service makes of it.

use infergate_core::Millis;
use infergate_core::job::{JobClass, JobKind};
use infergate_core::model::{AccountSpec, JobSpec};

use super::catalog::CatalogModel;
use super::deployments::Deployment;
use super::request::StoredRequest;
use super::store::IdempotencyKey;

/// Job to be submitted.
pub struct SubmitRequest<'a> {
    /// Account that pays.
    pub account: &'a AccountSpec,
    /// Model.
    pub model: &'a CatalogModel,
    /// Deployment of the model, whose queue it joins; none for the model's own.
    pub deployment: Option<&'a Deployment>,
    /// Kind.
    pub kind: JobKind,
    /// Class of its first run.
    pub class: JobClass,
    /// `Cancel-After`.
    pub cancel_after: Option<Millis>,
    /// `x-infergate-timeout-ms`.
    pub timeout: Option<Millis>,
    /// Request.
    pub request: StoredRequest,
    /// Key by which the submit may be repeated.
    pub key: Option<IdempotencyKey>,
}

impl SubmitRequest<'_> {
    /// Rules of the job: the account's win over the deployment's, and those over the model's.
    pub(super) fn rules(&self) -> JobSpec {
        let deployment = self.deployment;
        let secs = deployment.and_then(|deployment| deployment.spec.max_run_lifetime_secs);
        let rules = &self.model.runtime.spec.jobs;
        rules.with_limits(&self.account.jobs, secs)
    }
}
