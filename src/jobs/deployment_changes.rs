//! Changes of deployments by accounts: made, released again, removed.
//!
//! Not the permission to use one, nor the shape of a request. What the configuration names is changed there alone.

use std::sync::Arc;

use infergate_core::model::{AccountSpec, DeploymentSpec, INSTANCES_MAX};
use infergate_core::{AccountId, Refusal};

use super::deployments::{Deployment, DeploymentResult, DeploymentWrite, StoredDeployment};
use super::service::{Jobs, unavailable};
use super::store::JobStore;

fn rejected(status: u16, pointer: &str, message: impl Into<String>) -> Refusal {
    Refusal::Rejected {
        status,
        pointer: pointer.to_owned(),
        message: message.into(),
    }
}

impl Jobs {
    /// Keeps a new deployment of an account.
    ///
    /// # Errors
    /// The refusal for the client; nothing is kept then.
    pub async fn create_deployment(
        &self,
        account: &AccountSpec,
        spec: DeploymentSpec,
    ) -> Result<Arc<Deployment>, Refusal> {
        if account.deployments_max == 0 {
            let message = "this account makes no deployments: its operator can set `accounts[].deployments_max`";
            return Err(rejected(403, "", message));
        }
        self.check_deployment(&spec)?;
        let name = Arc::clone(&spec.id);
        let exists = || rejected(409, "/name", "there is a deployment of this name");
        if self.catalog.deployments.of_name(&name).is_some() {
            return Err(exists());
        }
        let stored = self.release(&account.id, spec, 1);
        let write = DeploymentWrite::Create(stored, account.deployments_max);
        match self.write_deployment(write).await? {
            DeploymentResult::Full => {
                let most = account.deployments_max;
                let message = format!("this account has the {most} deployments that it may have");
                Err(rejected(403, "", message))
            }
            DeploymentResult::Done => self.made(&name),
            DeploymentResult::Exists | DeploymentResult::Stale => Err(exists()),
        }
    }

    /// Keeps the next release of a deployment.
    ///
    /// # Errors
    /// The refusal for the client; it is as it was then.
    pub async fn release_deployment(
        &self,
        present: &Deployment,
        spec: DeploymentSpec,
    ) -> Result<Arc<Deployment>, Refusal> {
        let account = maker(present)?;
        self.check_deployment(&spec)?;
        let name = Arc::clone(&spec.id);
        let next = self.release(account, spec, present.release.saturating_add(1));
        match self
            .write_deployment(DeploymentWrite::Release(next))
            .await?
        {
            DeploymentResult::Done => self.made(&name),
            _ => Err(rejected(
                409,
                "",
                "the deployment was changed meanwhile: read it again",
            )),
        }
    }

    /// Forgets a deployment. Its queued jobs end as `model_removed`, those that run go on.
    ///
    /// # Errors
    /// The refusal for the client; it is as it was then.
    pub async fn remove_deployment(&self, present: &Deployment) -> Result<(), Refusal> {
        maker(present)?;
        let name = Arc::clone(&present.spec.id);
        // One that is gone meanwhile is gone.
        self.write_deployment(DeploymentWrite::Remove(name)).await?;
        self.look_for_unserved();
        Ok(())
    }

    /// Checks what can be checked without the model.
    fn check_deployment(&self, spec: &DeploymentSpec) -> Result<(), Refusal> {
        let known = self.choices().hardware();
        if let Some(sku) = &spec.hardware
            && !known.iter().any(|hardware| hardware.sku == *sku)
        {
            let message = "there is no such hardware: `GET /v1/hardware` lists it";
            return Err(rejected(422, "/hardware", message));
        }
        if spec.max_instances == 0 || spec.min_instances > spec.max_instances {
            let message =
                format!("must be at least 1 and `min_instances`, at most {INSTANCES_MAX}");
            return Err(rejected(422, "/max_instances", message));
        }
        Ok(())
    }

    fn release(&self, account: &AccountId, spec: DeploymentSpec, release: u32) -> StoredDeployment {
        StoredDeployment {
            account: account.clone(),
            spec,
            release,
            released: self.now(),
        }
    }

    async fn write_deployment(&self, write: DeploymentWrite) -> Result<DeploymentResult, Refusal> {
        let written = self.store.write_deployment(write).await;
        written.map_err(|error| unavailable(&error))
    }

    fn made(&self, name: &str) -> Result<Arc<Deployment>, Refusal> {
        let made = self.catalog.deployments.of_name(name);
        // One that was removed at once is not there.
        made.ok_or(Refusal::NoSuchModel)
    }
}

/// Returns the account that has made a deployment.
fn maker(deployment: &Deployment) -> Result<&AccountId, Refusal> {
    deployment.account.as_ref().ok_or_else(|| {
        let message = "the deployment stands in the gateway's configuration: its operator changes it under `deployments`";
        rejected(403, "", message)
    })
}
