//! Deployments: those of the configuration and those that accounts have made by API, as one directory.
//!
//! Not their models, which the catalogue has, and not their rows, which the store has. Where both name one, the
//! configuration counts. Bounded by `deployments` and by `accounts[].deployments_max`.

use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use infergate_core::AccountId;
use infergate_core::job::{DeployableKey, DeployableKind, StoreTime};
use infergate_core::model::{AccountSpec, DeploymentSpec, ModelSpec};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::key::key_of;

/// Deployment that an account has made, as stores keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDeployment {
    /// Account that has made it, and alone may use it.
    pub account: AccountId,
    /// Deployment.
    pub spec: DeploymentSpec,
    /// Number of its release, from 1.
    pub release: u32,
    /// Moment of the release.
    pub released: StoreTime,
}

/// Change of the deployments that a store keeps.
#[derive(Clone, Debug)]
pub enum DeploymentWrite {
    /// Keeps a new one, where its account has less than this many.
    Create(StoredDeployment, u32),
    /// Keeps the next release of one.
    Release(StoredDeployment),
    /// Forgets the one of this name.
    Remove(Arc<str>),
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeploymentResult {
    /// Kept.
    Done,
    /// Another one has this name.
    Exists,
    /// The account has as many as it may.
    Full,
    /// None has this name, or it has another release meanwhile.
    Stale,
}

/// Deployment in force.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// Deployment.
    pub spec: DeploymentSpec,
    /// Account that has made it; none of the configuration's.
    pub account: Option<AccountId>,
    /// Number of its release, from 1.
    pub release: u32,
    /// Moment of the release; none of the configuration's.
    pub released: Option<StoreTime>,
    /// Queue of the deployment.
    pub queue: DeployableKey,
}

impl Deployment {
    fn configured(spec: DeploymentSpec) -> Deployment {
        Deployment {
            queue: key_of(DeployableKind::Deployment, &spec.id),
            spec,
            account: None,
            release: 1,
            released: None,
        }
    }

    fn stored(stored: StoredDeployment) -> Deployment {
        Deployment {
            account: Some(stored.account),
            release: stored.release,
            released: Some(stored.released),
            ..Deployment::configured(stored.spec)
        }
    }

    /// Returns whether an account may use it; `model` is its model. One that was made by API is its maker's alone.
    pub fn is_allowed(&self, account: &AccountSpec, model: &ModelSpec) -> bool {
        let is_makers = self
            .account
            .as_ref()
            .is_none_or(|maker| *maker == account.id);
        is_makers && self.spec.is_allowed(account, model)
    }
}

/// Deployments by name and by queue.
#[derive(Default)]
struct DeploymentTable {
    list: Vec<Arc<Deployment>>,
    by_name: HashMap<Arc<str>, Arc<Deployment>>,
    by_queue: HashMap<DeployableKey, Arc<Deployment>>,
}

/// Sources, from which the table is made.
#[derive(Default)]
struct DeploymentSources {
    configured: Vec<DeploymentSpec>,
    stored: Vec<StoredDeployment>,
}

/// Directory of one process.
#[derive(Default)]
pub struct DeploymentDirectory {
    table: ArcSwap<DeploymentTable>,
    /// Held for one making of the table.
    sources: Mutex<DeploymentSources>,
}

impl DeploymentDirectory {
    /// Sets those of the configuration.
    pub fn set_configured(&self, configured: &[DeploymentSpec]) {
        let mut sources = self.sources.lock();
        sources.configured = configured.to_vec();
        self.table.store(Arc::new(make_table(&sources)));
    }

    /// Sets those that the store keeps, in the order of their names.
    pub fn set_stored(&self, stored: Vec<StoredDeployment>) {
        let mut sources = self.sources.lock();
        sources.stored = stored;
        self.table.store(Arc::new(make_table(&sources)));
    }

    /// Returns the deployment of a name, `owner/name`.
    pub fn of_name(&self, name: &str) -> Option<Arc<Deployment>> {
        self.table.load().by_name.get(name).map(Arc::clone)
    }

    /// Returns the deployment of a queue.
    pub fn of_queue(&self, queue: &DeployableKey) -> Option<Arc<Deployment>> {
        self.table.load().by_queue.get(queue).map(Arc::clone)
    }

    /// Returns every deployment: the configuration's, then the others by name.
    pub fn all(&self) -> Vec<Arc<Deployment>> {
        self.table.load().list.clone()
    }
}

fn make_table(sources: &DeploymentSources) -> DeploymentTable {
    let configured = sources.configured.iter().cloned();
    let stored = sources.stored.iter().cloned();
    let all = configured
        .map(Deployment::configured)
        .chain(stored.map(Deployment::stored));
    let mut table = DeploymentTable::default();
    for deployment in all {
        if table.by_name.contains_key(&deployment.spec.id) {
            continue;
        }
        let deployment = Arc::new(deployment);
        let name = Arc::clone(&deployment.spec.id);
        table.by_name.insert(name, Arc::clone(&deployment));
        let queue = deployment.queue.clone();
        table.by_queue.insert(queue, Arc::clone(&deployment));
        table.list.push(deployment);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(id: &str, model: &str) -> DeploymentSpec {
        serde_json::from_value(serde_json::json!({ "id": id, "model": model })).unwrap()
    }

    #[test]
    fn the_configuration_counts_where_both_name_a_deployment() {
        let directory = DeploymentDirectory::default();
        directory.set_stored(vec![StoredDeployment {
            account: "a".into(),
            spec: spec("a/x", "stored"),
            release: 3,
            released: StoreTime(7),
        }]);
        let found = directory.of_name("a/x").unwrap();
        assert_eq!((found.release, found.spec.model.as_str()), (3, "stored"));
        directory.set_configured(&[spec("a/x", "configured")]);
        let found = directory.of_name("a/x").unwrap();
        assert_eq!(
            (found.release, found.spec.model.as_str()),
            (1, "configured")
        );
        assert!(found.account.is_none());
        assert_eq!(directory.all().len(), 1);
        assert!(directory.of_queue(&found.queue).is_some());
        assert!(found.queue.as_str().starts_with("dp-"));
    }

    #[test]
    fn one_that_was_made_by_api_is_its_makers_alone() {
        let model = ModelSpec::new(
            "m".into(),
            infergate_core::model::Task::TextGeneration,
            "openai".into(),
        );
        let account = |id: &str| AccountSpec {
            id: id.into(),
            ..AccountSpec::anonymous()
        };
        let mut made = Deployment::configured(spec("a/x", "m"));
        assert!(made.is_allowed(&account("b"), &model));
        made.account = Some("a".into());
        assert!(made.is_allowed(&account("a"), &model));
        assert!(!made.is_allowed(&account("b"), &model));
        made.account = None;
        made.spec.allowed_accounts = vec!["b".into()];
        assert!(!made.is_allowed(&account("a"), &model));
    }
}
