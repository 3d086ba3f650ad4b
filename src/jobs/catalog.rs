//! Models as the durable path names them: by queue, by version, by `owner/name`.
//!
//! Not the models themselves. The table is made again when another configuration is in force.

use std::fmt::Write;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use infergate_core::ModelId;
use infergate_core::api::replicate::{VersionName, model_path};
use infergate_core::job::{DeployableKey, DeployableKind, JobKind};
use infergate_core::model::{DeploymentSpec, FlowMode, ModelSpec};
use sha2::{Digest, Sha256};

use super::deployments::{Deployment, DeploymentDirectory};
use super::key::key_of;
use crate::state::{ConfigSnapshot, Shared};
use crate::upstream::ModelRuntime;

/// Model of the catalogue.
pub struct CatalogModel {
    /// The model.
    pub runtime: Arc<ModelRuntime>,
    /// Name as `owner/name`, where its id or an alias is one.
    pub path: Option<Arc<str>>,
    /// Versions, newest first; at least one.
    pub versions: Vec<Arc<str>>,
    /// Queue of its predictions: its own, or that of its base.
    pub queue: DeployableKey,
    /// Base on whose endpoints it runs; the model itself where it is one.
    base: Option<Arc<ModelRuntime>>,
    /// Trainer of the model.
    pub trainer: Option<Arc<ModelRuntime>>,
}

/// Place of a new job: the model that runs it, and the queue it waits in.
pub struct JobPlace<'a> {
    /// Model that the job is a job of.
    pub model: &'a Arc<ModelRuntime>,
    /// Model whose permits it waits for.
    pub server: &'a Arc<ModelRuntime>,
    /// Queue.
    pub queue: DeployableKey,
    /// Flows of the queue.
    pub flows: FlowMode,
}

impl CatalogModel {
    fn new(runtime: &Arc<ModelRuntime>, snapshot: &ConfigSnapshot) -> CatalogModel {
        let spec = &runtime.spec;
        let runtime_of = |id: &ModelId| {
            let mut models = snapshot.catalog.model(id.as_str()).into_iter();
            models.find_map(|(at, spec)| (spec.id == *id).then(|| snapshot.models.get(at)).cloned())
        };
        let base = spec.base.as_ref();
        let base = base.map_or(&spec.id, |base| &base.model);
        let mut bases = snapshot
            .models
            .iter()
            .filter_map(|it| it.spec.base.as_ref());
        let is_on_base = bases.any(|named| named.model == *base);
        let base = runtime_of(base).filter(|_| is_on_base);
        let queue = match &base {
            Some(base) => key_of(DeployableKind::HotSwap, base.spec.id.as_str()),
            None => key_of(DeployableKind::Model, spec.id.as_str()),
        };
        let names = std::iter::once(&spec.id).chain(&spec.aliases);
        let path = names
            .map(|name| name.as_str())
            .find(|name| model_path(name));
        CatalogModel {
            runtime: Arc::clone(runtime),
            path: path.map(Arc::from),
            versions: versions(spec),
            queue,
            base,
            trainer: spec.trainer.as_ref().and_then(runtime_of),
        }
    }

    /// Returns the place of a new job; none where the model has no trainer for a training.
    pub fn place(&self, kind: JobKind) -> Option<JobPlace<'_>> {
        if kind == JobKind::Training {
            let trainer = self.trainer.as_ref()?;
            return Some(JobPlace {
                model: trainer,
                server: trainer,
                queue: key_of(DeployableKind::Trainer, trainer.spec.id.as_str()),
                flows: trainer.spec.jobs.flows,
            });
        }
        Some(JobPlace {
            model: &self.runtime,
            server: self.base.as_ref().unwrap_or(&self.runtime),
            queue: self.queue.clone(),
            flows: match self.base {
                Some(_) => FlowMode::Model,
                None => self.runtime.spec.jobs.flows,
            },
        })
    }

    /// Returns every queue that jobs of the model may stand in, also under former configurations, with the model whose
    /// permits serve it.
    fn queues(&self) -> impl Iterator<Item = (DeployableKey, &Arc<ModelRuntime>)> {
        let id = self.runtime.spec.id.as_str();
        let own = [DeployableKind::Model, DeployableKind::HotSwap];
        let own = own.map(|kind| (key_of(kind, id), &self.runtime));
        let places = [JobKind::Prediction, JobKind::Training].map(|kind| self.place(kind));
        let places = places.into_iter().flatten();
        own.into_iter()
            .chain(places.map(|place| (place.queue, place.server)))
    }

    /// Returns the version that a deployment means; none where the model has it no more.
    pub fn version_of(&self, deployment: &DeploymentSpec) -> Option<Arc<str>> {
        match &*deployment.version {
            DeploymentSpec::LATEST => self.versions.first().map(Arc::clone),
            pinned => {
                let mut versions = self.versions.iter();
                versions.find(|known| &***known == pinned).map(Arc::clone)
            }
        }
    }

    /// Returns the name that objects show.
    pub fn shown_name(&self) -> Arc<str> {
        let id = || self.runtime.spec.id.as_str().into();
        self.path.clone().unwrap_or_else(id)
    }
}

/// Versions of a model: those that are configured, or one, which follows from what serves it.
fn versions(spec: &ModelSpec) -> Vec<Arc<str>> {
    if !spec.versions.is_empty() {
        return spec.versions.clone();
    }
    let mut digest = Sha256::new();
    digest.update(spec.id.as_str());
    digest.update([0]);
    digest.update(spec.backend.as_str());
    // Endpoints of one model serve the same: the first one names it.
    let named = spec
        .endpoints
        .first()
        .map(|endpoint| endpoint.backend_model.as_deref());
    let named = spec
        .base
        .as_ref()
        .map(|base| Some(&*base.weights))
        .or(named);
    if let Some(name) = named {
        digest.update([0]);
        digest.update(name.unwrap_or_default());
    }
    let mut text = String::with_capacity(64);
    for byte in digest.finalize() {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    vec![text.into()]
}

/// Table of one configuration generation.
#[derive(Default)]
struct CatalogTable {
    generation: u64,
    models: Vec<Arc<CatalogModel>>,
    by_queue: HashMap<DeployableKey, Arc<ModelRuntime>>,
    by_version: HashMap<Arc<str>, Arc<CatalogModel>>,
    by_name: HashMap<Arc<str>, Arc<CatalogModel>>,
}

/// Models that accept jobs.
#[derive(Default)]
pub struct JobCatalog {
    table: ArcSwap<CatalogTable>,
    /// Deployments of the models.
    pub deployments: Arc<DeploymentDirectory>,
}

impl JobCatalog {
    /// Creates the catalogue of models and these deployments.
    pub fn new(deployments: Arc<DeploymentDirectory>) -> JobCatalog {
        JobCatalog {
            table: ArcSwap::default(),
            deployments,
        }
    }

    fn table(&self, shared: &Shared) -> Arc<CatalogTable> {
        let snapshot = shared.snapshot.load();
        let present = self.table.load_full();
        if present.generation == snapshot.generation {
            return present;
        }
        // Two that come at once make the same table.
        let mut table = CatalogTable {
            generation: snapshot.generation,
            ..CatalogTable::default()
        };
        for runtime in snapshot
            .models
            .iter()
            .filter(|model| model.spec.jobs.enabled)
        {
            let model = Arc::new(CatalogModel::new(runtime, &snapshot));
            let queues = model
                .queues()
                .map(|(queue, server)| (queue, Arc::clone(server)));
            table.by_queue.extend(queues);
            for version in &model.versions {
                table
                    .by_version
                    .insert(Arc::clone(version), Arc::clone(&model));
            }
            let spec = &runtime.spec;
            for name in std::iter::once(&spec.id).chain(&spec.aliases) {
                table
                    .by_name
                    .insert(name.as_str().into(), Arc::clone(&model));
            }
            table.models.push(model);
        }
        let table = Arc::new(table);
        self.table.store(Arc::clone(&table));
        table
    }

    /// Returns the model that serves a queue.
    pub fn of_queue(&self, shared: &Shared, key: &DeployableKey) -> Option<Arc<ModelRuntime>> {
        let table = self.table(shared);
        if let Some(server) = table.by_queue.get(key) {
            return Some(Arc::clone(server));
        }
        let deployment = self.deployments.of_queue(key)?;
        let model = table.by_name.get(deployment.spec.model.as_str())?;
        let place = model.place(JobKind::Prediction)?;
        Some(Arc::clone(place.server))
    }

    /// Returns the model of a deployment; none where it is not served, or takes no jobs.
    pub fn of_deployment(
        &self,
        shared: &Shared,
        deployment: &Deployment,
    ) -> Option<Arc<CatalogModel>> {
        let table = self.table(shared);
        let model = table.by_name.get(deployment.spec.model.as_str())?;
        Some(Arc::clone(model))
    }

    /// Returns the model of a name, with the version that is meant.
    pub fn find(
        &self,
        shared: &Shared,
        name: VersionName<'_>,
    ) -> Option<(Arc<CatalogModel>, Arc<str>)> {
        let table = self.table(shared);
        let of_id = |id: &str| {
            let (version, model) = table.by_version.get_key_value(id)?;
            Some((Arc::clone(model), Arc::clone(version)))
        };
        match name {
            VersionName::Id(id) => of_id(id),
            VersionName::Model(name) => {
                let model = table.by_name.get(name)?;
                let newest = model.versions.first()?;
                Some((Arc::clone(model), Arc::clone(newest)))
            }
            VersionName::OfModel(name, id) => {
                let known = table.by_name.get(name)?;
                of_id(id).filter(|(model, _)| Arc::ptr_eq(model, known))
            }
        }
    }

    /// Returns every model, in the order of the configuration.
    pub fn models(&self, shared: &Shared) -> Vec<Arc<CatalogModel>> {
        self.table(shared).models.clone()
    }
}
