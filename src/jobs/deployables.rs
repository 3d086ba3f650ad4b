//! Queues of jobs by the present configuration: which model serves a queue.
//!
//! Not the queues. The table is made again when another configuration is in force.

use std::sync::Arc;

use hashbrown::HashMap;
use infergate_core::job::{DeployableKey, DeployableKind};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::state::Shared;
use crate::upstream::ModelRuntime;

/// Returns the key of a queue by its configured name.
pub fn key_of(kind: DeployableKind, name: &str) -> DeployableKey {
    DeployableKey::new(kind, &Sha256::digest(name).into())
}

/// Models by queue.
#[derive(Default)]
pub struct Deployables {
    /// Table of one configuration generation. Held for one look-up, or while it is made again.
    table: Mutex<DeployableTable>,
}

#[derive(Default)]
struct DeployableTable {
    generation: u64,
    models: HashMap<DeployableKey, Arc<ModelRuntime>>,
}

impl Deployables {
    /// Returns the model that serves a queue.
    pub fn model(&self, shared: &Shared, key: &DeployableKey) -> Option<Arc<ModelRuntime>> {
        let snapshot = shared.snapshot.load();
        let mut table = self.table.lock();
        if table.generation != snapshot.generation {
            table.generation = snapshot.generation;
            let models = snapshot.models.iter();
            let models = models.filter(|model| model.spec.jobs.enabled);
            table.models = models
                .map(|model| {
                    let key = key_of(DeployableKind::Model, model.spec.id.as_str());
                    (key, Arc::clone(model))
                })
                .collect();
        }
        table.models.get(key).cloned()
    }
}
