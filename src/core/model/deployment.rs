//! Deployments and hardware: names under which models have queues of their own, and what autoscalers read.
//!
//! A deployment has no permits of its own: its jobs run on those of its model. Nothing is scaled here.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Access, AccountSpec, Catalog, ModelSpec};
use crate::{AccountId, ModelId};

/// Most instances of a deployment.
pub const INSTANCES_MAX: u32 = 1000;

/// Deployment of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentSpec {
    /// Name as `owner/name`.
    pub id: Arc<str>,
    /// Id of the model.
    pub model: ModelId,
    /// Version of the model: one of `models[].versions`, or `latest`.
    #[serde(default = "DeploymentSpec::default_version")]
    #[schemars(regex(pattern = "^([0-9a-f]{64}|latest)$"))]
    pub version: Arc<str>,
    /// Hardware by its `sku` under `hardware`; the first one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<Arc<str>>,
    /// Least instances, for an autoscaler.
    #[serde(default)]
    #[schemars(range(max = 1000))]
    pub min_instances: u32,
    /// Most instances, for an autoscaler.
    #[serde(default = "DeploymentSpec::default_max_instances")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_instances: u32,
    /// Accounts that may use the deployment; every account that may use its model when empty.
    #[serde(default)]
    pub allowed_accounts: Vec<AccountId>,
    /// Replaces `models[].jobs.max_run_lifetime_secs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2_592_000))]
    pub max_run_lifetime_secs: Option<u64>,
}

impl DeploymentSpec {
    /// Version that follows the model.
    pub const LATEST: &'static str = "latest";

    fn default_version() -> Arc<str> {
        Self::LATEST.into()
    }

    fn default_max_instances() -> u32 {
        1
    }

    /// Returns whether an account may use the deployment, which is one of `model`.
    pub fn is_allowed(&self, account: &AccountSpec, model: &ModelSpec) -> bool {
        let is_listed =
            self.allowed_accounts.is_empty() || self.allowed_accounts.contains(&account.id);
        is_listed && Catalog::access(account, model) == Access::Allowed
    }
}

/// Hardware that deployments name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HardwareSpec {
    /// Key by which deployments name it.
    #[schemars(length(min = 1, max = 64))]
    pub sku: Arc<str>,
    /// Name for people.
    #[schemars(length(min = 1, max = 256))]
    pub name: Arc<str>,
}

impl HardwareSpec {
    /// Returns the hardware there is where none is configured.
    pub fn usual() -> HardwareSpec {
        HardwareSpec {
            sku: "cpu".into(),
            name: "CPU".into(),
        }
    }
}
